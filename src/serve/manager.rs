//! A manager process: ports, store, actors.

use super::{bind, limits, store_url};
use crate::cli::{Exit, Failure};
use crate::http::{self, Operations};
use leasehold_actors::clock::GranterClock;
use leasehold_actors::manager::{
    self, ExecutorLinks, LeadershipEnd, ManagerHandle, ManagerMetrics, Running, Surroundings,
};
use leasehold_config::ManagerConfig;
use leasehold_model::{Address, leader};
use leasehold_persistence::cluster::{self, Error as StoreError};
use leasehold_rpc::api::ExecutorApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ExecutorClient;
use leasehold_rpc::server::serve_manager;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a stopping manager waits for a write in flight.
pub(super) const LAST_WRITE: Duration = Duration::from_secs(10);

/// Reaches executors over the network.
pub(super) struct Dialed(pub(super) Dialer);

impl ExecutorLinks for Dialed {
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi> {
        Arc::new(ExecutorClient::new(self.0.dial(address)))
    }
}

/// A manager that serves.
pub struct ManagerProcess {
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// The way to its actors.
    pub handle: ManagerHandle,
    ended: watch::Receiver<Option<LeadershipEnd>>,
    /// Why it cannot be called any more.
    unreachable: watch::Sender<Option<String>>,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
}

/// The settings of the actors.
pub(super) fn settings(config: &ManagerConfig) -> manager::Settings {
    let lease = config.lease.times.ttl();
    manager::Settings {
        cluster: config.cluster.clone(),
        shard_count: config.shard_count,
        leader: leader::Settings {
            lease,
            settle: config.rebalance.settle,
            max_moves: config.rebalance.max_moves_per_pass,
        },
        push_deadline: config.lease.times.attempt_deadline(),
        store_patience: lease.as_duration().max(Duration::from_secs(30)),
    }
}

/// What the store said, and the exit code for it.
pub(super) fn store_failure(config: &ManagerConfig, error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::Incompatible(_) => Exit::BadConfiguration,
        StoreError::NotOwner(_) | StoreError::Unavailable(_) | StoreError::Unknown(_) => Exit::TryAgain,
        StoreError::Conflict { .. } | StoreError::Corrupt { .. } => Exit::Failed,
    };
    Failure::new(exit, format!("store.url = {}: {error}", config.store))
}

impl ManagerProcess {
    /// Binds, opens the store, takes over and serves. Actors run on the current `LocalSet`, servers on the runtime's workers.
    ///
    /// # Errors
    /// A port in use (1), a store of somebody else or unavailable (75), of another cluster or shard count (78), corrupt (1): each with what to do.
    pub async fn start(config: &ManagerConfig) -> Result<Self, Failure> {
        let (grpc_listener, grpc) = bind("listen.grpc", config.listen.grpc).await?;
        let (http_listener, http) = bind("listen.http", config.listen.http).await?;
        let failed = |error: StoreError| store_failure(config, &error);
        let store = cluster::open(&store_url(&config.store), &config.cluster, Some(&grpc.to_string())).await;
        let store = store.map_err(failed)?;
        let mut registry = Registry::default();
        let with = Surroundings {
            links: Arc::new(Dialed(Dialer::tcp())),
            clock: Arc::new(GranterClock),
            metrics: ManagerMetrics::register(&mut registry),
        };
        let Running { handle, ended } = manager::start(settings(config), store, with).await.map_err(failed)?;
        let (stop, stopping) = watch::channel(false);
        let not_ready = not_ready(ended.clone());
        let routes = http::operations(Operations { not_ready, registry });
        let calls =
            serve_manager(grpc_listener, Arc::new(handle.clone()), limits(&config.limits), told(stopping.clone()));
        let unreachable = watch::Sender::new(None);
        let tell = unreachable.clone();
        let servers = vec![
            serve_or_tell("gRPC", calls, move |why| drop(tell.send_replace(Some(why)))),
            serve("HTTP", http::serve(http_listener, routes, config.limits.connections as usize, told(stopping))),
        ];
        tracing::info!(%grpc, %http, "serving");
        Ok(Self { grpc, http, handle, ended, unreachable, stop, servers })
    }

    /// Why the leadership ended, once it has, or why nobody can call this process any more.
    pub async fn ended(&self) -> LeadershipEnd {
        let (mut ended, mut unreachable) = (self.ended.clone(), self.unreachable.subscribe());
        let ended = tokio::select! {
            ended = ended.wait_for(Option::is_some) => ended,
            // Its sender lives as long as `self`.
            Ok(why) = unreachable.wait_for(Option::is_some) => {
                return LeadershipEnd::Lost(why.clone().unwrap_or_default());
            }
        };
        match ended {
            Ok(end) => end.clone().unwrap_or(LeadershipEnd::Stopped),
            Err(_) => LeadershipEnd::Lost("the leader is gone".to_owned()),
        }
    }

    /// Stops granting, lets the write in flight end, closes the ports.
    pub async fn stop(self) {
        if timeout(LAST_WRITE, self.handle.stop()).await.is_err() {
            tracing::warn!(waited = ?LAST_WRITE, "a write is still in flight; its outcome will be read when the store is next opened");
        }
        self.stop.send_replace(true);
        for server in self.servers {
            // A server that panicked has said so; the others still end in order.
            drop(server.await);
        }
    }
}

fn not_ready(ended: watch::Receiver<Option<LeadershipEnd>>) -> Box<dyn Fn() -> Option<String> + Send + Sync> {
    Box::new(move || match &*ended.borrow() {
        None => None,
        Some(LeadershipEnd::Stopped) => Some("stopping".to_owned()),
        Some(LeadershipEnd::Lost(why)) => Some(format!("the leadership is over: {why}")),
    })
}

/// Resolves when `stopping` turns true, or its sender is gone.
pub(crate) async fn told(mut stopping: watch::Receiver<bool>) {
    // An error means that whoever would tell us is gone.
    drop(stopping.wait_for(|stop| *stop).await);
}

/// Runs a server on the workers; its failure is logged with its name, and `lost` is told.
pub(crate) fn serve_or_tell<E: std::fmt::Display>(
    name: &'static str,
    server: impl Future<Output = Result<(), E>> + Send + 'static,
    lost: impl FnOnce(String) + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "{name} is not served any more");
            lost(format!("{name} is not served any more: {error}"));
        }
    })
}

/// Runs a server on the workers; its failure is logged with its name.
pub(crate) fn serve<E: std::fmt::Display>(
    name: &'static str,
    server: impl Future<Output = Result<(), E>> + Send + 'static,
) -> JoinHandle<()> {
    serve_or_tell(name, server, drop)
}
