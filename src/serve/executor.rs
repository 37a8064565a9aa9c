//! An executor process: ports, oplog store, actors; the lease on a thread of its own.

use super::archive::{self, Layers};
use super::manager::{serve, serve_or_tell, told};
use super::{bind, limits, store_url};
use crate::bridge::{Bridge, BridgeSettings};
use crate::cli::{Exit, Failure};
use crate::http::{self, Operations};
use actix::{Addr, AsyncContext, Context};
use leasehold_actors::clock::{HolderClock, SharedClock};
use leasehold_actors::executor::agent::Surroundings;
use leasehold_actors::executor::agent_core::AgentLimits;
use leasehold_actors::executor::agent_host::{AgentHost, HostLimits, HostParts};
use leasehold_actors::executor::agent_type::{AgentType, AgentTypes};
use leasehold_actors::executor::front::{Draining, ExecutorFront};
use leasehold_actors::executor::lease_holder::{
    Crash, ExitWatch, HolderParts, LeaseHolder, Shutdown, spawn_on_own_thread,
};
use leasehold_actors::executor::lease_metrics::LeaseMetrics;
use leasehold_actors::executor::message::{CurrentLife, Pulse};
use leasehold_actors::executor::metrics::ExecutorMetrics;
use leasehold_actors::lease_key;
use leasehold_config::{BridgedApp, ExecutorConfig, StorageUrl};
use leasehold_model::fence::FenceKeeper;
use leasehold_model::holder::{self, Life};
use leasehold_model::message::LeaseKey;
use leasehold_model::{ExecutorId, ExecutorName};
use leasehold_persistence::oplog::{self, Error as OplogError};
use leasehold_rpc::api::{ExecutorApi, InvokeApi};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::managers::Managers;
use leasehold_rpc::server::serve_executor;
use prometheus_client::registry::Registry;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Longer than an attempt to renew the longest lease of all, 24 h, may take: a sixth of it.
const ATTEMPT_MOST: Duration = Duration::from_secs(5 * 60 * 60);

/// An executor that serves, or tries to register.
pub struct ExecutorProcess {
    /// Its name.
    pub name: ExecutorName,
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    lease_holder: Addr<LeaseHolder>,
    exit: ExitWatch,
    draining: Draining,
    /// Why it cannot be called any more.
    unreachable: watch::Sender<Option<String>>,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
}

/// The actors of one executor, and what the network side needs of them.
struct Actors {
    lease_holder: Addr<LeaseHolder>,
    exit: ExitWatch,
    front: Arc<ExecutorFront>,
}

impl ExecutorProcess {
    /// Binds, opens the oplog store and starts to register. Agents run on the current `LocalSet`, servers on the runtime's workers.
    ///
    /// # Errors
    /// A port in use (1), an address that nobody can dial (78), an oplog store that cannot be used (75, corrupt: 1,
    /// a folder that cannot be: 78), an archive that never can (78).
    pub async fn start(config: &ExecutorConfig, types: AgentTypes) -> Result<Self, Failure> {
        let (grpc_listener, grpc) = bind("listen.grpc", config.listen.grpc).await?;
        let (http_listener, http) = bind("listen.http", config.listen.http).await?;
        let resolved = config.executor.resolve(grpc);
        let (name, address) = resolved.map_err(|error| Failure::new(Exit::BadConfiguration, error.to_string()))?;
        let identity = holder::Identity {
            cluster: config.cluster.clone(),
            name: name.clone(),
            address,
            zone: config.executor.zone.clone(),
            weight: config.executor.weight,
            shard_count: config.shard_count,
        };
        let types = with_apps(types, config)?;
        let layers = open_oplogs(config).await?;
        let mut registry = Registry::default();
        let Actors { lease_holder, exit, front } = start_actors(config, identity, layers, (types, &mut registry))?;
        let draining = front.draining.clone();
        let (stop, stopping) = watch::channel(false);
        let routes = http::operations(Operations { not_ready: not_ready(&front), registry });
        let apis = (Arc::clone(&front) as Arc<dyn ExecutorApi>, front as Arc<dyn InvokeApi>);
        let connections = config.limits.connections as usize;
        let unreachable = watch::Sender::new(None);
        let tell = unreachable.clone();
        let calls = serve_executor(grpc_listener, apis, limits(&config.limits), told(stopping.clone()));
        let servers = vec![
            serve_or_tell("gRPC", calls, move |why| drop(tell.send_replace(Some(why)))),
            serve("HTTP", http::serve(http_listener, routes, connections, told(stopping))),
        ];
        tracing::info!(executor = %name, %grpc, %http, "serving");
        Ok(Self { name, grpc, http, lease_holder, exit, draining, unreachable, stop, servers })
    }

    /// How the executor ended by itself: it could not register, was superseded, lost an actor, or its gRPC listener died. Then it
    /// gives its shards back first: renewing what nobody can call would keep them from everybody.
    pub async fn ended(&self) -> holder::Exit {
        let (mut exit, mut unreachable) = (self.exit.clone(), self.unreachable.subscribe());
        let lost = async move {
            let lost = unreachable.wait_for(Option::is_some).await;
            lost.map(|why| why.clone().unwrap_or_default())
        };
        tokio::select! {
            end = exit.ended() => end,
            // Its sender lives as long as `self`.
            Ok(why) = lost => {
                self.draining.begin();
                self.lease_holder.do_send(Shutdown);
                self.exit.clone().ended().await;
                holder::Exit { code: 1, why: format!("{why}; its shards were given back") }
            }
        }
    }

    /// R37: admits nothing new, lets running invocations finish within the grace, deregisters, closes the ports. Safe to drop:
    /// then it goes on by itself.
    pub async fn shut_down(self) -> holder::Exit {
        self.draining.begin();
        self.lease_holder.do_send(Shutdown);
        let end = self.exit.clone().ended().await;
        self.close().await;
        end
    }

    /// Ends as a crash would: nothing is drained, nothing is given back. For `dev` and for tests; connections end with the runtime.
    pub fn crash(self) {
        self.lease_holder.do_send(Crash);
    }

    /// Closes the ports.
    pub async fn close(self) {
        self.stop.send_replace(true);
        for server in self.servers {
            // A server that panicked has said so; the others still end in order.
            drop(server.await);
        }
    }
}

/// The types that applications decide for, beside `types`.
fn with_apps(types: AgentTypes, config: &ExecutorConfig) -> Result<AgentTypes, Failure> {
    let settings = BridgeSettings { timeout: config.bridge.timeout, calls: config.bridge.calls };
    let mut bridges: Vec<Arc<dyn AgentType>> = Vec::new();
    for BridgedApp { kind, url } in &config.bridge.apps {
        let refused = |why: String| Failure::new(Exit::BadConfiguration, format!("bridge.apps: {kind}={url}: {why}"));
        if types.find(kind).is_some() {
            return Err(refused("this executor has that agent type itself; call yours something else".to_owned()));
        }
        let bridge = Bridge::new(kind, url, settings).map_err(|error| refused(error.to_string()))?;
        tracing::info!(kind, url, "an application decides for this agent type");
        bridges.push(Arc::new(bridge));
    }
    Ok(types.with(bridges))
}

async fn open_oplogs(config: &ExecutorConfig) -> Result<Layers, Failure> {
    let url = &config.oplog.url;
    if let StorageUrl::Sqlite(folder) = url {
        make_folder(folder).map_err(|failure| failure.about(&format!("oplog.url = {url}")))?;
    }
    let opened = oplog::open(&store_url(url), &config.cluster, config.oplog.step_around_after).await;
    let opened = opened.map_err(|error| {
        let exit = match error {
            OplogError::Corrupt { .. } => Exit::Failed,
            OplogError::Invalid(_) => Exit::BadConfiguration,
            OplogError::Fenced { .. }
            | OplogError::IndexConflict { .. }
            | OplogError::Unavailable(_)
            | OplogError::Unknown(_) => Exit::TryAgain,
        };
        Failure::new(exit, format!("oplog.url = {url}: {error}"))
    })?;
    for warning in opened.warnings {
        tracing::warn!(%warning, "oplog.url");
    }
    archive::layered(config, opened.store).await
}

/// Makes the folder of the oplogs, with those above it. Where it cannot be, the configuration is wrong; where there is no room, wait.
fn make_folder(folder: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let waits = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::ReadOnlyFilesystem];
        let exit = if waits.contains(&error.kind()) { Exit::TryAgain } else { Exit::BadConfiguration };
        Failure::new(exit, format!("the folder {} cannot be made: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(failed)
}

/// `AgentHost` and `LeaseHolder` know each other: the host's address exists before the host does.
fn start_actors(
    config: &ExecutorConfig,
    identity: holder::Identity,
    layers: Layers,
    (types, registry): (AgentTypes, &mut Registry),
) -> Result<Actors, Failure> {
    let clock: SharedClock = Arc::new(HolderClock);
    let keeper = FenceKeeper::new();
    let fence = keeper.fence();
    let first = lease_key::fresh();
    let life = CurrentLife::new(first.0);
    let pulse = Arc::new(Pulse::default());
    let metrics = ExecutorMetrics::register(registry);
    let name = identity.name.clone();
    let context = Context::<AgentHost>::new();
    let host = context.address();
    let parts = HolderParts {
        settings: holder_settings(config),
        identity,
        mint: Box::new(mint(first)),
        seed: rand::random(),
        keeper,
        clock: Arc::clone(&clock),
        current: life.clone(),
        sweep: host.clone().recipient(),
        recover: host.clone().recipient(),
        pulse: Arc::clone(&pulse),
        metrics: LeaseMetrics::register(registry, fence.clone(), Arc::clone(&clock)),
    };
    let managers = config.executor.managers.clone();
    // The lease holder bounds each attempt by the lease it has (R13); this only has to be longer.
    let dial = move || Managers::dial(Dialer::tcp(), &managers).deadline(ATTEMPT_MOST);
    let (lease_holder, exit) = spawn_on_own_thread(parts, move || Arc::new(dial()))
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start the lease holder's thread: {error}")))?;
    let limits = host_limits(config);
    let around = Surroundings {
        fence: fence.clone(),
        clock: Arc::clone(&clock),
        store: layers.store,
        archiver: layers.archiver,
        store_timeout: limits.store_timeout,
        metrics: metrics.clone(),
        pulse,
    };
    let fenced = lease_holder.clone().recipient();
    context.run(AgentHost::new(HostParts { name: name.clone(), life, around, types: types.clone(), fenced, limits }));
    let front = ExecutorFront {
        name,
        fence,
        clock,
        types,
        host: host.clone().recipient(),
        delete: host.clone().recipient(),
        list: host.recipient(),
        assign: lease_holder.clone().recipient(),
        inspect: lease_holder.clone().recipient(),
        draining: Draining::default(),
        metrics,
    };
    Ok(Actors { lease_holder, exit, front: Arc::new(front) })
}

/// The first life is `first`, every later one fresh.
fn mint(first: (ExecutorId, LeaseKey)) -> impl FnMut() -> Life {
    let mut first = Some(first);
    move || {
        let (executor, lease_key) = first.take().unwrap_or_else(lease_key::fresh);
        Life { executor, lease_key }
    }
}

fn holder_settings(config: &ExecutorConfig) -> holder::Settings {
    let managers: Vec<String> = config.executor.managers.iter().map(ToString::to_string).collect();
    holder::Settings {
        handoff_grace: config.executor.handoff_grace,
        call_deadline_floor: config.lease.times.floor(),
        registration_patience: config.executor.registration_patience,
        allowance: config.lease.allowance,
        managers: managers.join(", "),
    }
}

fn host_limits(config: &ExecutorConfig) -> HostLimits {
    let agent = AgentLimits {
        queue: config.agents.queue,
        snapshot_every: config.oplog.snapshot_every,
        archive: archive::policy(config),
        ..AgentLimits::default()
    };
    let idle_after = Some(config.agents.idle_after).filter(|after| !after.is_zero());
    HostLimits { agents: config.agents.max_in_memory, idle_after, agent, ..HostLimits::default() }
}

/// An executor is ready while it holds a live lease and is not leaving.
fn not_ready(front: &Arc<ExecutorFront>) -> Box<dyn Fn() -> Option<String> + Send + Sync> {
    let front = Arc::clone(front);
    Box::new(move || {
        if front.draining.begun() {
            Some("draining".to_owned())
        } else if front.clock.now() >= front.fence.deadline() {
            Some("no live lease".to_owned())
        } else {
            None
        }
    })
}
