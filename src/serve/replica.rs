//! A manager process of several on etcd: it stands by and leads, again and again, until it is told to stop.
//!
//! HTTP is served all the time. gRPC is served while this process leads (`leadership.standby_grpc = closed`: an open port is the
//! leader's), or all the time (`redirect`: a standby answers `NOT_LEADER`).

use super::door::Door;
use super::manager::{Dialed, LAST_WRITE, serve, serve_or_tell, settings, store_failure, told};
use super::{bind, limits};
use crate::cli::{Exit, Failure};
use crate::http::{self, Operations};
use actix::Addr;
use leasehold_actors::clock::{GranterClock, HolderClock};
use leasehold_actors::manager::{
    Election, ElectionEnd, ElectionMetrics, ElectionParts, ManagerFront, ManagerMetrics, Stage, Standing, StopElection,
    Surroundings, elect_on_own_thread,
};
use leasehold_config::{EtcdAccess, Leadership, ManagerConfig, StandbyGrpc};
use leasehold_model::{Ttl, election};
use leasehold_persistence::Elections;
use leasehold_persistence::cluster::Error as StoreError;
use leasehold_persistence::election::EtcdElections;
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions, EtcdTls};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::server::serve_manager;
use prometheus_client::registry::Registry;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A replica that runs.
pub struct ReplicaProcess {
    /// Where gRPC is served when it is.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    election: Addr<Election>,
    ended: watch::Receiver<Option<ElectionEnd>>,
    /// Why it cannot serve what it leads.
    unreachable: watch::Sender<Option<Failure>>,
    signs: Arc<Signs>,
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

/// How long a starting process waits for etcd's first answer before it serves HTTP: its probes are not to fail for longer.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// A connection; without one that answers yet, one that goes on trying: who starts before etcd waits for it. What etcd refuses later ends the election.
async fn connect(config: &ManagerConfig, access: &EtcdAccess) -> Result<EtcdConnection, Failure> {
    let options = options(access)?;
    let opened = timeout(FIRST_ANSWER, EtcdConnection::open(options.clone())).await;
    let silent = || Err(StoreError::Unavailable(format!("no etcd endpoint answered within {FIRST_ANSWER:?}")));
    match opened.unwrap_or_else(|_| silent()) {
        Err(error @ StoreError::Unavailable(_)) => {
            tracing::warn!(%error, "etcd does not answer; trying on");
            EtcdConnection::lazy(options).map_err(|error| store_failure(config, &error))
        }
        opened => opened.map_err(|error| store_failure(config, &error)),
    }
}

impl ReplicaProcess {
    /// Binds, connects, and stands for leadership. The election runs on a thread of its own, a leadership's actors on the current
    /// `LocalSet`, servers on the runtime's workers.
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
        // R45: a connection of its own, driven by the election's own thread.
        let electing = EtcdConnection::lazy(connection.options().clone());
        let electing = electing.map_err(|error| store_failure(config, &error))?;
        let elections = EtcdElections::new(electing, config.cluster.clone()).storing_by(connection);
        let parts = ElectionParts {
            elections: Arc::new(elections) as Arc<dyn Elections>,
            // As patient as a successor, who would wait for the lease of one that is dead.
            election: election::Settings { ttl, allowance: config.lease.allowance, patience: leadership.lease_ttl },
            call_deadline: leadership.etcd.request_timeout,
            address,
            clock: Arc::new(HolderClock),
            manager,
            with: Surroundings {
                links: Arc::new(Dialed(Dialer::tcp())),
                clock: Arc::new(GranterClock),
                metrics: ManagerMetrics::register(&mut registry),
            },
            stage: Stage::on_this_thread(),
            metrics: ElectionMetrics::register(&mut registry, Arc::new(HolderClock)),
        };
        let elected = elect_on_own_thread(parts);
        let (election, standing, ended) = elected
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot start the election's thread: {error}")))?;
        let (stop, stopping) = watch::channel(false);
        let (signs, unreachable) = (Arc::<Signs>::default(), watch::Sender::new(None));
        tokio::spawn(introduce(standing.clone(), Arc::clone(&signs)));
        let not_ready = not_ready(standing.clone(), leadership.standby_grpc, Arc::clone(&signs));
        let operations = Operations { not_ready, registry };
        let routes = http::operations(operations).merge(http::leaderz(standing.clone()));
        let front = ManagerFront::new(standing.clone());
        let grpc_served = match leadership.standby_grpc {
            StandbyGrpc::Redirect => {
                let limits = limits(&config.limits);
                let calls = serve_manager(grpc_listener, Arc::new(front), limits, told(stopping.clone()));
                let unreachable = unreachable.clone();
                let lost = move |why| drop(unreachable.send_replace(Some(Failure::new(Exit::Failed, why))));
                serve_or_tell("gRPC", calls, lost)
            }
            StandbyGrpc::Closed => {
                drop(grpc_listener);
                let (stopping, limits) = (stopping.clone(), limits(&config.limits));
                let (open, unreachable) = (Arc::clone(&signs.open), unreachable.clone());
                tokio::spawn(Door { front, standing, stopping, limits, open, unreachable }.keep(grpc))
            }
        };
        let connections = config.limits.connections as usize;
        let http_served = serve("HTTP", http::serve(http_listener, routes, connections, told(stopping)));
        let servers = vec![grpc_served, http_served];
        tracing::info!(%grpc, %http, "serving");
        Ok(Self { grpc, http, election, ended, unreachable, signs, stop, servers })
    }

    /// Why it can never lead, or not be reached where it does, once that is known.
    pub async fn ended(&self, config: &ManagerConfig) -> Result<Exit, Failure> {
        let (mut ended, mut unreachable) = (self.ended.clone(), self.unreachable.subscribe());
        let end = tokio::select! {
            end = ended.wait_for(Option::is_some) => end.map(|end| end.clone()),
            // Its sender lives as long as `self`.
            Ok(failure) = unreachable.wait_for(Option::is_some) => match &*failure {
                Some(failure) => return Err(failure.clone()),
                None => return Ok(Exit::Fine),
            },
        };
        match end {
            Ok(Some(ElectionEnd::Failed(error))) => Err(store_failure(config, &error)),
            Ok(Some(ElectionEnd::Stopped) | None) => Ok(Exit::Fine),
            Err(_) => Err(Failure::new(Exit::Failed, "the election is gone".to_owned())),
        }
    }

    /// Gives up what it leads or waits for, lets the write in flight end, closes the ports.
    pub async fn stop(self) {
        self.signs.leaving.store(true, Ordering::Release);
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

/// What `/readyz` goes by, besides who leads.
#[derive(Default)]
struct Signs {
    /// `standby_grpc = closed`: the gRPC port is open.
    open: Arc<AtomicBool>,
    /// etcd has said once who leads.
    introduced: AtomicBool,
    /// The process has been told to stop.
    leaving: AtomicBool,
}

/// With `closed`, ready is who can be reached and leads: balancers send everything there.
///
/// With `redirect`, ready is whoever etcd has let into the queue, and it stays so until it stops. It is not asked again: a rollout must not go on
/// while a new process has not found etcd, but nobody has a leader during an election, and replicas that all turned unready at
/// once would be taken out of a balancer together, and come back only a probe after the election.
fn not_ready(
    standing: watch::Receiver<Standing>,
    standby: StandbyGrpc,
    signs: Arc<Signs>,
) -> Box<dyn Fn() -> Option<String> + Send + Sync> {
    Box::new(move || {
        let standing = standing.borrow();
        if signs.leaving.load(Ordering::Acquire) {
            return Some("stopping".to_owned());
        }
        match (standby, standing.leadership(), standing.leader()) {
            (StandbyGrpc::Redirect, ..) if signs.introduced.load(Ordering::Acquire) => None,
            (StandbyGrpc::Redirect, ..) => Some("etcd has not said yet who leads".to_owned()),
            (StandbyGrpc::Closed, Some(_), _) if signs.open.load(Ordering::Acquire) => None,
            (StandbyGrpc::Closed, Some(_), _) => Some("it leads; its gRPC port is not open yet".to_owned()),
            (StandbyGrpc::Closed, None, Some(leader)) => Some(format!("standing by; {leader} leads")),
            (StandbyGrpc::Closed, None, None) => Some("no leader is known".to_owned()),
        }
    })
}

/// Notes when it is first known who leads.
async fn introduce(mut standing: watch::Receiver<Standing>, signs: Arc<Signs>) {
    let known = |standing: &Standing| standing.leadership().is_some() || standing.leader().is_some();
    if standing.wait_for(known).await.is_ok() {
        signs.introduced.store(true, Ordering::Release);
    }
}
