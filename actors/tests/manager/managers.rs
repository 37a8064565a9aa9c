//! Several manager processes on one election in memory, on paused time.

use crate::world::{Network, Scripted, settings};
use actix::{Actor, Addr};
use leasehold_actors::clock::VirtualClock;
use leasehold_actors::manager::{
    Election, ElectionEnd, ElectionMetrics, ElectionParts, ManagerFront, ManagerMetrics, Stage, Standing, StopElection,
    Surroundings,
};
use leasehold_model::election;
use leasehold_model::lease::Allowance;
use leasehold_model::{Address, ManagerId, Ttl};
use leasehold_persistence::election::MemoryElections;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub const TTL: Duration = Duration::from_secs(10);
pub const CALL: Duration = Duration::from_secs(3);

/// One manager process.
pub struct Manager {
    pub way: Arc<MemoryElections>,
    pub front: ManagerFront,
    pub standing: watch::Receiver<Standing>,
    pub ended: watch::Receiver<Option<ElectionEnd>>,
    pub clock: VirtualClock,
    pub address: Address,
    pub registry: Registry,
    election: Addr<Election>,
}

impl Manager {
    pub fn start(way: MemoryElections, network: &Arc<Network>, n: u16, shards: u32) -> Self {
        let (way, clock) = (Arc::new(way), VirtualClock::start());
        let address = Address::new(format!("127.0.0.1:{}", 7000 + n)).unwrap();
        let mut registry = Registry::default();
        let parts = ElectionParts {
            elections: Arc::clone(&way) as _,
            election: election::Settings {
                ttl: Ttl::from_duration(TTL).unwrap(),
                allowance: Allowance::default(),
                patience: TTL,
            },
            call_deadline: CALL,
            address: address.clone(),
            clock: Arc::new(clock.clone()),
            manager: settings(shards),
            with: Surroundings {
                links: Arc::clone(network) as _,
                clock: Arc::new(VirtualClock::start()),
                metrics: ManagerMetrics::register(&mut registry),
            },
            stage: Stage::beside_the_election(),
            metrics: ElectionMetrics::register(&mut registry, Arc::new(clock.clone())),
        };
        let (actor, standing, ended) = Election::new(parts);
        let front = ManagerFront::new(standing.clone());
        Self { way, front, standing, ended, clock, address, registry, election: actor.start() }
    }

    pub fn leads(&self) -> bool {
        self.standing.borrow().leadership().is_some()
    }

    pub fn manager_id(&self) -> ManagerId {
        self.standing.borrow().leadership().expect("it leads").handle.published().manager
    }

    pub fn stop(&self) {
        self.election.do_send(StopElection);
    }

    pub fn ended(&self) -> Option<ElectionEnd> {
        self.ended.borrow().clone()
    }

    pub fn metric(&self, line: &str) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
    }
}

/// Waits until `ready`; says how long it took.
pub async fn until(what: &str, patience: Duration, mut ready: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !ready() {
        assert!(began.elapsed() <= patience, "{what}: not within {patience:?}");
        sleep(Duration::from_millis(1)).await;
    }
    began.elapsed()
}

/// A cluster of managers.
pub struct Managers {
    pub root: MemoryElections,
    pub network: Arc<Network>,
    pub all: Vec<Manager>,
}

impl Managers {
    /// Starts `count` managers in order: the first leads.
    pub async fn new(count: u16) -> Self {
        let (root, network) = (MemoryElections::new(), Arc::new(Network::default()));
        let mut managers = Self { root, network, all: Vec::new() };
        for n in 1..=count {
            managers.add(n).await;
        }
        managers
    }

    /// One more, once it has its place.
    pub async fn add(&mut self, n: u16) {
        let places = self.root.places().len();
        self.all.push(Manager::start(self.root.another(), &self.network, n, 8));
        until("a place in the queue", TTL, || self.root.places().len() > places).await;
        sleep(Duration::from_millis(1)).await;
    }

    pub fn leaders(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|at| self.all[*at].leads()).collect()
    }

    /// Waits until exactly `at` leads.
    pub async fn led_by(&self, at: usize, patience: Duration) -> Duration {
        until(&format!("manager {at} leads"), patience, || self.leaders() == [at]).await
    }

    /// Registers executors with the leader and waits until everything is owned.
    pub async fn executors(&self, count: u128) -> Vec<Arc<Scripted>> {
        let all: Vec<_> = (1..=count).map(Scripted::new).collect();
        let [leader] = self.leaders()[..] else { panic!("leaders: {:?}", self.leaders()) };
        for executor in &all {
            self.network.place(executor);
            executor.register(&self.all[leader].front).await.unwrap();
        }
        for _ in 0..20 {
            for executor in &all {
                executor.renew(&self.all[leader].front).await.unwrap();
            }
            sleep(Duration::from_millis(200)).await;
        }
        all
    }

    /// Who owns what, at which epoch.
    pub fn owners(&self) -> Vec<leasehold_model::state::Shard> {
        self.root.data().peek().expect("something is stored").shards().map(|(_, row)| *row).collect()
    }
}
