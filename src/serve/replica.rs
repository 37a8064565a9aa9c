//! A manager process of several on etcd: it stands by and leads, again and again, until it is told to stop.
//!
//! HTTP is served all the time. gRPC is served while this process leads (`leadership.standby_grpc = closed`: an open port is the
//! leader's), or all the time (`redirect`: a standby answers `NOT_LEADER`).

use super::manager::{Dialed, LAST_WRITE, serve, settings, store_failure, told};
use super::{bind, limits};
use crate::cli::{Exit, Failure};
use crate::http::{self, Operations};
use actix::{Actor, Addr};
use leasehold_actors::clock::{GranterClock, HolderClock};
use leasehold_actors::manager::{
    Election, ElectionEnd, ElectionMetrics, ElectionParts, ManagerFront, ManagerMetrics, Standing, StopElection,
    Surroundings,
};
use leasehold_config::{EtcdAccess, Leadership, ManagerConfig, StandbyGrpc};
use leasehold_model::{Ttl, election};
use leasehold_persistence::Elections;
use leasehold_persistence::cluster::Error as StoreError;
use leasehold_persistence::election::EtcdElections;
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions, EtcdTls};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::server::{Limits, serve_manager};
use prometheus_client::registry::Registry;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The pause before a port that is not to be had is tried again.
const PORT_PAUSE: Duration = Duration::from_millis(100);

/// A replica that runs.
pub struct ReplicaProcess {
    /// Where gRPC is served when it is.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    election: Addr<Election>,
    ended: watch::Receiver<Option<ElectionEnd>>,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
}

/// A secret or a certificate, from the file that `key` names.
fn read(key: &str, path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::new(Exit::BadConfiguration, format!("{key} = {}: {error}", path.display())))
}

fn options(access: &EtcdAccess) -> Result<EtcdOptions, Failure> {
    let (mut user, mut password) = (None, None);
    if let Some((name, file)) = &access.user {
        let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
        (user, password) = (Some(name.clone()), Some(first_line(read("store.password_file", file)?)));
    }
    let identity = match &access.identity {
        Some((cert, key)) => Some((read("store.cert_file", cert)?, read("store.key_file", key)?)),
        None => None,
    };
    let tls = match &access.ca_file {
        Some(file) => Some(EtcdTls { ca: read("store.ca_file", file)?, identity }),
        None => None,
    };
    Ok(EtcdOptions {
        endpoints: access.endpoints.clone(),
        user,
        password,
        tls,
        request_timeout: access.request_timeout,
        compaction_retention_revisions: access.compaction_retention_revisions,
    })
}

/// A connection; without one that answers yet, one that goes on trying: who starts before etcd waits for it.
async fn connect(config: &ManagerConfig, access: &EtcdAccess) -> Result<EtcdConnection, Failure> {
    let options = options(access)?;
    match EtcdConnection::open(options.clone()).await {
        Err(error @ StoreError::Unavailable(_)) => {
            tracing::warn!(%error, "etcd does not answer; trying on");
            EtcdConnection::lazy(options).map_err(|error| store_failure(config, &error))
        }
        opened => opened.map_err(|error| store_failure(config, &error)),
    }
}

impl ReplicaProcess {
    /// Binds, connects, and stands for leadership. Actors run on the current `LocalSet`, servers on the runtime's workers.
    ///
    /// # Errors
    /// A port in use (1), credentials that etcd refuses or files that cannot be read (78): each with what to do.
    pub async fn start(config: &ManagerConfig, leadership: &Leadership) -> Result<Self, Failure> {
        let (grpc_listener, grpc) = bind("listen.grpc", config.listen.grpc).await?;
        let (http_listener, http) = bind("listen.http", config.listen.http).await?;
        let address = leadership.reached_at(grpc);
        let address = address.map_err(|error| Failure::new(Exit::BadConfiguration, error.to_string()))?;
        let ttl = Ttl::from_duration(leadership.lease_ttl);
        let ttl = ttl.map_err(|error| Failure::new(Exit::BadConfiguration, error.to_string()))?;
        let connection = connect(config, &leadership.etcd).await?;
        let mut registry = Registry::default();
        let mut manager = settings(config);
        // Longer than its own lease no leadership waits for its store.
        manager.store_patience = leadership.lease_ttl;
        let parts = ElectionParts {
            elections: Arc::new(EtcdElections::new(connection, config.cluster.clone())) as Arc<dyn Elections>,
            election: election::Settings { ttl, allowance: config.lease.allowance },
            call_deadline: leadership.etcd.request_timeout,
            address,
            clock: Arc::new(HolderClock),
            manager,
            with: Surroundings {
                links: Arc::new(Dialed(Dialer::tcp())),
                clock: Arc::new(GranterClock),
                metrics: ManagerMetrics::register(&mut registry),
            },
            metrics: ElectionMetrics::register(&mut registry, Arc::new(HolderClock)),
        };
        let (actor, standing, ended) = Election::new(parts);
        let (stop, stopping) = watch::channel(false);
        let operations = Operations { not_ready: not_ready(standing.clone(), leadership.standby_grpc), registry };
        let routes = http::operations(operations).merge(http::leaderz(standing.clone()));
        let front = ManagerFront::new(standing.clone());
        let grpc_served = match leadership.standby_grpc {
            StandbyGrpc::Redirect => {
                let limits = limits(&config.limits);
                serve("gRPC", serve_manager(grpc_listener, Arc::new(front), limits, told(stopping.clone())))
            }
            StandbyGrpc::Closed => {
                drop(grpc_listener);
                let door = Door { front, standing, stopping: stopping.clone(), limits: limits(&config.limits) };
                tokio::spawn(door.keep(grpc))
            }
        };
        let connections = config.limits.connections as usize;
        let http_served = serve("HTTP", http::serve(http_listener, routes, connections, told(stopping)));
        let servers = vec![grpc_served, http_served];
        tracing::info!(%grpc, %http, "serving");
        Ok(Self { grpc, http, election: actor.start(), ended, stop, servers })
    }

    /// Why it can never lead, once that is known.
    pub async fn ended(&self, config: &ManagerConfig) -> Result<Exit, Failure> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(ElectionEnd::Failed(error))) => Err(store_failure(config, &error)),
            Ok(Some(ElectionEnd::Stopped) | None) => Ok(Exit::Fine),
            Err(_) => Err(Failure::new(Exit::Failed, "the election is gone".to_owned())),
        }
    }

    /// Gives up what it leads or waits for, lets the write in flight end, closes the ports.
    pub async fn stop(self) {
        self.election.do_send(StopElection);
        let mut ended = self.ended;
        if timeout(LAST_WRITE, ended.wait_for(Option::is_some)).await.is_err() {
            tracing::warn!(waited = ?LAST_WRITE, "the place in etcd's queue could not be left; it ends with its lease");
        }
        self.stop.send_replace(true);
        for server in self.servers {
            // A server that panicked has said so; the others still end in order.
            drop(server.await);
        }
    }
}

fn not_ready(
    standing: watch::Receiver<Standing>,
    standby: StandbyGrpc,
) -> Box<dyn Fn() -> Option<String> + Send + Sync> {
    Box::new(move || {
        let standing = standing.borrow();
        match (standing.leadership(), standing.leader(), standby) {
            (Some(_), _, _) | (None, Some(_), StandbyGrpc::Redirect) => None,
            (None, Some(leader), StandbyGrpc::Closed) => Some(format!("standing by; {leader} leads")),
            (None, None, _) => Some("no leader is known".to_owned()),
        }
    })
}

/// A gRPC port that is open while this process leads.
struct Door {
    front: ManagerFront,
    standing: watch::Receiver<Standing>,
    stopping: watch::Receiver<bool>,
    limits: Limits,
}

impl Door {
    async fn keep(mut self, address: SocketAddr) {
        loop {
            tokio::select! {
                led = self.standing.wait_for(|standing| standing.leadership().is_some()) => {
                    if led.is_err() { return }
                }
                () = told(self.stopping.clone()) => return,
            }
            match TcpListener::bind(address).await {
                Ok(listener) => self.serve(listener).await,
                Err(error) => {
                    tracing::error!(%error, %address, "listen.grpc: this process leads and cannot serve; trying again");
                    sleep(PORT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(&self, listener: TcpListener) {
        let (mut standing, stopping) = (self.standing.clone(), self.stopping.clone());
        let over = async move {
            tokio::select! {
                // An error means that the election is gone, and the leadership with it.
                lost = standing.wait_for(|standing| standing.leadership().is_none()) => drop(lost),
                () = told(stopping) => {}
            }
        };
        tracing::info!("gRPC is open");
        if let Err(error) = serve_manager(listener, Arc::new(self.front.clone()), self.limits, over).await {
            tracing::error!(%error, "gRPC is not served any more");
        }
        tracing::info!("gRPC is closed");
    }
}
