//! An executor process.

use super::observed::{Ear, HeardManager};
use super::watched::Watched;
use super::{Machine, Orders, Site, cluster, told};
use crate::net::{self, address, dialer};
use crate::storage::{Connection, SimOplogs};
use crate::world::{ALLOWANCE_PPM, Process, SHARDS};
use actix::{Addr, AsyncContext, Context};
use leasehold::agents::{AgentType, AgentTypes};
use leasehold_actors::clock::SharedClock;
use leasehold_actors::executor::agent::Surroundings;
use leasehold_actors::executor::agent_core::AgentLimits;
use leasehold_actors::executor::agent_host::{AgentHost, HostLimits, HostParts};
use leasehold_actors::executor::front::{Draining, ExecutorFront};
use leasehold_actors::executor::lease_holder::{ExitWatch, HolderParts, LeaseHolder, Shutdown};
use leasehold_actors::executor::lease_metrics::LeaseMetrics;
use leasehold_actors::executor::message::{CurrentLife, Pulse};
use leasehold_actors::executor::metrics::ExecutorMetrics;
use leasehold_actors::lease_key;
use leasehold_model::fence::FenceKeeper;
use leasehold_model::holder::{self, Life};
use leasehold_model::lease::Allowance;
use leasehold_model::message::Weight;
use leasehold_model::{ExecutorName, ShardCount};
use leasehold_rpc::api::{ExecutorApi, InvokeApi};
use leasehold_rpc::managers::Managers;
use leasehold_rpc::server::serve_executor_with_incoming;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// How long running invocations may take when a shard is given up.
const GRACE: Duration = Duration::from_millis(400);

/// The actors of one process.
struct Actors {
    holder: Addr<LeaseHolder>,
    exit: ExitWatch,
    front: Arc<ExecutorFront>,
}

/// Lives until it ends by itself or is told to stop; then it waits for its machine to take it away.
pub async fn run(site: Site, machine: Arc<Machine>) {
    let mut actors = start(&site, &machine);
    let orders = machine.orders.subscribe();
    let serving = tokio::spawn(serve(Arc::clone(&actors.front), orders.clone()));
    let end = tokio::select! {
        biased;
        end = actors.exit.ended() => end,
        () = told(orders, |orders| orders.stop) => {
            actors.front.draining.begin();
            actors.holder.do_send(Shutdown);
            actors.exit.ended().await
        }
    };
    serving.abort();
    site.world.says_ended(&machine.host, format!("code {}: {}", end.code, end.why));
    std::future::pending::<()>().await;
}

/// Serves while it is not to be deaf.
async fn serve(front: Arc<ExecutorFront>, orders: tokio::sync::watch::Receiver<Orders>) {
    loop {
        told(orders.clone(), |orders| !orders.deaf).await;
        let apis = (Arc::clone(&front) as Arc<dyn ExecutorApi>, Arc::clone(&front) as Arc<dyn InvokeApi>);
        let Ok(incoming) = net::listen().await else { return };
        let deaf = told(orders.clone(), |orders| orders.deaf);
        let served = serve_executor_with_incoming(Box::pin(incoming), apis, net::limits(), deaf).await;
        served.expect("a simulated transport serves");
    }
}

fn holder_settings() -> holder::Settings {
    holder::Settings {
        handoff_grace: GRACE,
        call_deadline_floor: Duration::from_millis(500),
        registration_patience: Duration::from_secs(60),
        allowance: Allowance::from_ppm(ALLOWANCE_PPM).expect("at most 10 %"),
        managers: "the simulated managers".to_owned(),
    }
}

fn host_limits() -> HostLimits {
    let agent = AgentLimits { snapshot_every: 3, ..AgentLimits::default() };
    HostLimits {
        agents: 100,
        store_timeout: Duration::from_millis(600),
        idle_after: Some(Duration::from_secs(4)),
        agent,
        ..HostLimits::default()
    }
}

fn start(site: &Site, machine: &Machine) -> Actors {
    let clock: SharedClock = Arc::new(machine.clock.clone());
    let keeper = FenceKeeper::new();
    let (fence, pulse) = (keeper.fence(), Arc::new(Pulse::default()));
    let life = CurrentLife::new(lease_key::fresh().0);
    let process = site.world.begin(&machine.host, machine.clock.clone(), fence.clone(), life.clone());
    let mut registry = Registry::default();
    let metrics = ExecutorMetrics::register(&mut registry);
    let name = ExecutorName::new(crate::world::lock(&machine.name).as_str()).expect("a plain name");
    let context = Context::<AgentHost>::new();
    let host = context.address();
    let parts = HolderParts {
        settings: holder_settings(),
        identity: holder::Identity {
            cluster: cluster(),
            name: name.clone(),
            address: address(&machine.host),
            zone: None,
            weight: Weight::default(),
            shard_count: None,
        },
        mint: Box::new(|| {
            let (executor, lease_key) = lease_key::fresh();
            Life { executor, lease_key }
        }),
        seed: rand::random(),
        keeper,
        clock: Arc::clone(&clock),
        current: life.clone(),
        sweep: host.clone().recipient(),
        recover: host.clone().recipient(),
        pulse: Arc::clone(&pulse),
        metrics: LeaseMetrics::register(&mut registry, fence.clone(), Arc::clone(&clock)),
    };
    let (holder, exit) = LeaseHolder::new(parts, managers(site, machine));
    let holder = holder.launch();
    let limits = host_limits();
    let store = Arc::new(SimOplogs::new(Connection::new(&site.storage, &machine.host), Arc::clone(&process)));
    let (store_timeout, shared) = (limits.store_timeout, metrics.clone());
    let around =
        Surroundings { fence: fence.clone(), clock, store, archiver: None, store_timeout, metrics: shared, pulse };
    let types = types(site, process);
    let (clock, fenced) = (Arc::clone(&around.clock), holder.clone().recipient());
    context.run(AgentHost::new(HostParts { name: name.clone(), life, around, types: types.clone(), fenced, limits }));
    let front = ExecutorFront {
        name,
        fence,
        clock,
        types,
        host: host.clone().recipient(),
        delete: host.clone().recipient(),
        list: host.recipient(),
        assign: holder.clone().recipient(),
        inspect: holder.clone().recipient(),
        draining: Draining::default(),
        metrics,
    };
    Actors { holder, exit, front: Arc::new(front) }
}

fn types(site: &Site, process: Arc<Process>) -> AgentTypes {
    let shards = ShardCount::new(SHARDS).expect("a small number");
    let watched = Watched { process, world: Arc::clone(&site.world), shards };
    AgentTypes::new([Arc::new(watched) as Arc<dyn AgentType>])
}

fn managers(site: &Site, machine: &Machine) -> Arc<HeardManager<Managers>> {
    let addresses: Vec<_> = site.managers.iter().map(|host| address(host)).collect();
    // The lease holder bounds each attempt by the lease it has; this only has to be longer.
    let inner = Managers::dial(dialer(), &addresses).deadline(Duration::from_secs(60));
    let (host, world) = (machine.host.clone(), Arc::clone(&site.world));
    Arc::new(HeardManager { inner, ear: Ear::Executor, host, world })
}
