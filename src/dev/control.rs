//! How `shard-manager dev kill` asks the `dev` that runs: over HTTP, with a secret that only this user can read (see `running`).

use super::running::{Registered, Running, choose, folder, list};
use super::{Cluster, Killed};
use crate::cli::{Exit, Failure};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use leasehold_model::{Address, ExecutorName};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;
use uuid::Uuid;

/// What can be asked of a running `dev`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Kill this executor.
    Kill(ExecutorName),
    /// Start it again.
    Start(ExecutorName),
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Killed, and its shards are served elsewhere.
    Killed(Killed),
    /// Started; it registers and takes its share.
    Started,
    /// Why not, with the exit code.
    Failed(u8, String),
}

/// The longest a request may take: a lease, a pass, and slack.
const REQUEST_WITHIN: Duration = Duration::from_secs(40);

/// The header that carries the secret.
const SECRET: &str = "leasehold-dev-secret";

/// The listening side.
pub struct Control {
    _registered: Registered,
}

impl Control {
    /// Listens for requests about `cluster` of so many executors, whose manager is at `manager`, and writes where.
    ///
    /// # Errors
    /// What kept it from listening or from writing the file.
    pub async fn listen(
        cluster: Arc<Mutex<Option<Cluster>>>,
        manager: SocketAddr,
        executors: usize,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("dev's control port: {error}"));
        let listener = crate::http::bind("dev's control port", ([127, 0, 0, 1], 0).into()).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let running = Running { pid: std::process::id(), manager, executors, address, secret: Uuid::new_v4() };
        let registered = Registered::new(&folder(), &running).map_err(failed)?;
        let routes = Router::new().route("/", post(answer)).with_state((running.secret, cluster));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!(%error, "dev's control port is not served any more");
            }
        });
        Ok(Self { _registered: registered })
    }
}

type Shared = (Uuid, Arc<Mutex<Option<Cluster>>>);

async fn answer(
    State((secret, cluster)): State<Shared>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Json<Reply> {
    let presented = headers.get(SECRET).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    if presented != Some(secret) {
        return Json(Reply::Failed(Exit::NotPermitted.code(), "the secret is not this dev's".to_owned()));
    }
    let mut cluster = cluster.lock().await;
    let Some(cluster) = cluster.as_mut() else {
        return Json(Reply::Failed(Exit::TryAgain.code(), "dev is stopping".to_owned()));
    };
    let done = match request {
        Request::Kill(name) => cluster.kill(&name).await.map(Reply::Killed),
        Request::Start(name) => cluster.start_executor(&name).map(|()| Reply::Started),
    };
    Json(done.unwrap_or_else(|failure| Reply::Failed(failure.exit.code(), failure.message)))
}

/// Asks the `dev` that runs; where several do, the one whose manager is at `manager`.
///
/// # Errors
/// Exit code 69 when none runs there or it does not answer, 64 when one of several has to be named.
pub async fn ask(request: &Request, manager: Option<&Address>) -> Result<Reply, Failure> {
    let dev = choose(&list(&folder()), manager)?;
    let silent = || {
        let told = format!("the `shard-manager dev` at {} (pid {}) does not answer", dev.manager, dev.pid);
        Failure::new(Exit::NobodyAnswers, told)
    };
    let body = serde_json::to_vec(request).expect("plain values");
    let call = axum::http::Request::post(format!("http://{}/", dev.address))
        .header("content-type", "application/json")
        .header(SECRET, dev.secret.to_string())
        .body(axum::body::Body::from(body))
        .expect("a request of plain parts");
    let client = Client::builder(TokioExecutor::new()).build_http::<axum::body::Body>();
    let answer = timeout(REQUEST_WITHIN, client.request(call)).await.map_err(|_| silent())?.map_err(|_| silent())?;
    let body = axum::body::Body::new(answer.into_body());
    let body = axum::body::to_bytes(body, 64 * 1024).await.map_err(|_| silent())?;
    serde_json::from_slice(&body).map_err(|_| silent())
}
