//! A manager process of several.

use super::observed::{Ear, HeardLinks, HeardManager};
use super::{Machine, Site, cluster, told};
use crate::clock::SleeplessClock;
use crate::net::{self, address, dialer};
use crate::storage::{Connection, SimElections};
use crate::world::{ALLOWANCE_PPM, ELECTION_TTL, LEASE, SHARDS};
use actix::{Actor, Addr};
use leasehold_actors::manager::{
    Election, ElectionEnd, ElectionMetrics, ElectionParts, ManagerFront, ManagerMetrics, Settings, Stage, StopElection,
    Surroundings,
};
use leasehold_model::lease::Allowance;
use leasehold_model::{ShardCount, Ttl, election, leader};
use leasehold_rpc::server::serve_manager_with_incoming;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long one call of the election may take.
const CALL: Duration = Duration::from_millis(600);

/// Stands for leadership until it is told to stop; then it waits for its machine to take it away.
pub async fn run(site: Site, machine: Arc<Machine>) {
    let (election, front, mut ended) = start(&site, &machine);
    let orders = machine.orders.subscribe();
    let heard =
        HeardManager { inner: front, ear: Ear::Manager, host: machine.host.clone(), world: Arc::clone(&site.world) };
    let closing = told(orders.clone(), |orders| orders.stop);
    let incoming = net::listen().await.expect("nobody else listens on this machine");
    let serving = serve_manager_with_incoming(Box::pin(incoming), Arc::new(heard), net::limits(), closing);
    let serving = tokio::spawn(async move { serving.await.expect("a simulated transport serves") });
    let mut stopped = ended.clone();
    let end = tokio::select! {
        biased;
        end = end_of(&mut ended) => end,
        () = told(orders, |orders| orders.stop) => {
            election.do_send(StopElection);
            let end = end_of(&mut stopped).await;
            // It serves on until its connections are closed, within the grace.
            drop(serving.await);
            end
        }
    };
    site.world.says_ended(&machine.host, format!("{end:?}"));
    std::future::pending::<()>().await;
}

async fn end_of(ended: &mut watch::Receiver<Option<ElectionEnd>>) -> Option<ElectionEnd> {
    ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone())
}

type Started = (Addr<Election>, ManagerFront, watch::Receiver<Option<ElectionEnd>>);

fn start(site: &Site, machine: &Machine) -> Started {
    let mut registry = Registry::default();
    let holder = Arc::new(machine.clock.clone());
    let manager = Settings {
        cluster: cluster(),
        shard_count: ShardCount::new(SHARDS).expect("a small number"),
        leader: leader::Settings {
            lease: Ttl::from_duration(LEASE).expect("a lease of seconds"),
            settle: Duration::from_millis(300),
            max_moves: 1024,
        },
        push_deadline: Duration::from_millis(500),
        store_patience: ELECTION_TTL,
    };
    let links = HeardLinks { dialer: dialer(), host: machine.host.clone(), world: Arc::clone(&site.world) };
    let parts = ElectionParts {
        elections: Arc::new(SimElections::new(Connection::new(&site.storage, &machine.host))),
        election: election::Settings {
            ttl: Ttl::from_duration(ELECTION_TTL).expect("a lease of seconds"),
            allowance: Allowance::from_ppm(ALLOWANCE_PPM).expect("at most 10 %"),
            patience: ELECTION_TTL,
        },
        call_deadline: CALL,
        address: address(&machine.host),
        clock: Arc::clone(&holder) as _,
        manager,
        with: Surroundings {
            links: Arc::new(links),
            clock: Arc::new(SleeplessClock(machine.clock.clone())),
            metrics: ManagerMetrics::register(&mut registry),
        },
        stage: Stage::beside_the_election(),
        metrics: ElectionMetrics::register(&mut registry, holder),
    };
    let (election, standing, ended) = Election::new(parts);
    (election.start(), ManagerFront::new(standing), ended)
}
