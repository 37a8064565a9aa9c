//! How `shard-manager dev kill` finds and asks the `dev` that runs: a file that only this user reads, with an address and a secret.

use super::{Cluster, Killed};
use crate::cli::{Exit, Failure};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use leasehold_model::ExecutorName;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
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

/// Where a running `dev` listens, as its file says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Listening {
    pid: u32,
    address: SocketAddr,
    secret: Uuid,
}

/// The longest a request may take: a lease, a pass, and slack.
const REQUEST_WITHIN: Duration = Duration::from_secs(40);

/// The header that carries the secret.
const SECRET: &str = "leasehold-dev-secret";

/// The listening side.
pub struct Control {
    file: PathBuf,
}

fn file() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    folder.join(format!("leasehold-dev-{}.json", rustix::process::getuid().as_raw()))
}

impl Control {
    /// Listens for requests about `cluster`, and writes where.
    ///
    /// # Errors
    /// What kept it from listening or from writing the file.
    pub async fn listen(cluster: Arc<Mutex<Option<Cluster>>>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("dev's control port: {error}"));
        let listener = crate::http::bind("dev's control port", ([127, 0, 0, 1], 0).into()).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let listening = Listening { pid: std::process::id(), address, secret: Uuid::new_v4() };
        let file = file();
        // A file left behind by a `dev` that was killed is replaced.
        drop(fs::remove_file(&file));
        let mut options = OpenOptions::new();
        let mut opened = options.write(true).create_new(true).mode(0o600).open(&file).map_err(failed)?;
        let text = serde_json::to_vec(&listening).expect("plain values");
        opened.write_all(&text).map_err(failed)?;
        let routes = Router::new().route("/", post(answer)).with_state((listening.secret, cluster));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!(%error, "dev's control port is not served any more");
            }
        });
        Ok(Self { file })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Another `dev` may have replaced it; whatever is left is replaced by the next one.
        let ours = fs::read(&self.file).ok().and_then(|text| serde_json::from_slice::<Listening>(&text).ok());
        if ours.is_some_and(|listening| listening.pid == std::process::id()) {
            drop(fs::remove_file(&self.file));
        }
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

/// Asks the `dev` that runs.
///
/// # Errors
/// Exit code 69 when none runs or it does not answer.
pub async fn ask(request: &Request) -> Result<Reply, Failure> {
    let none = || {
        Failure::new(Exit::NobodyAnswers, "no `shard-manager dev` of yours is running; start one in another terminal")
    };
    let text = fs::read(file()).map_err(|_| none())?;
    let listening: Listening = serde_json::from_slice(&text).map_err(|_| none())?;
    let body = serde_json::to_vec(request).expect("plain values");
    let call = axum::http::Request::post(format!("http://{}/", listening.address))
        .header("content-type", "application/json")
        .header(SECRET, listening.secret.to_string())
        .body(axum::body::Body::from(body))
        .expect("a request of plain parts");
    let client = Client::builder(TokioExecutor::new()).build_http::<axum::body::Body>();
    let answer = timeout(REQUEST_WITHIN, client.request(call)).await.map_err(|_| none())?.map_err(|_| none())?;
    let body = axum::body::to_bytes(axum::body::Body::new(answer.into_body()), 64 * 1024).await.map_err(|_| none())?;
    serde_json::from_slice(&body).map_err(|_| none())
}
