//! A cluster on paused time.

use crate::checker::Checker;
use crate::network::{CALLER, MANAGER, Network, Seat, Way};
use actix::{Addr, AsyncContext, Context};
use leasehold::agents::{AgentTypes, shipped};
use leasehold::router::{Router, RouterSettings};
use leasehold_actors::clock::{Clock, SharedClock, VirtualClock, WallClock};
use leasehold_actors::executor::agent::Surroundings;
use leasehold_actors::executor::agent_host::{AgentHost, HostLimits, HostParts};
use leasehold_actors::executor::front::{Draining, ExecutorFront};
use leasehold_actors::executor::lease_holder::{ExitWatch, HolderParts, LeaseHolder, Shutdown};
use leasehold_actors::executor::lease_metrics::LeaseMetrics;
use leasehold_actors::executor::message::{CurrentLife, Pulse};
use leasehold_actors::executor::metrics::ExecutorMetrics;
use leasehold_actors::lease_key;
use leasehold_actors::manager::{self, ManagerMetrics, Running};
use leasehold_model::fence::{Fence, FenceKeeper};
use leasehold_model::holder::{self, Life};
use leasehold_model::lease::Allowance;
use leasehold_model::message::{Invocation, InvocationAnswer, Weight};
use leasehold_model::state::{ClusterState, ShardState};
use leasehold_model::{Address, ClusterName, ExecutorId, ExecutorName, ShardCount, Tick, Ttl, leader};
use leasehold_persistence::cluster::MemoryClusterStore;
use leasehold_persistence::oplog::MemoryOplogStore;
use prometheus_client::registry::Registry;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub const LEASE: Duration = Duration::from_secs(60);
pub const SHARDS: u32 = 16;

/// A clock whose rate differs from the manager's by some parts per million.
#[derive(Clone)]
pub struct SkewedClock {
    inner: VirtualClock,
    began: Tick,
    ppm: i64,
}

impl SkewedClock {
    fn new(ppm: i64) -> Self {
        let inner = VirtualClock::start();
        Self { began: inner.now(), inner, ppm }
    }

    pub fn sleep_machine(&self, span: Duration) {
        self.inner.sleep_machine(span);
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Tick {
        let elapsed = i128::from(self.inner.now().0 - self.began.0);
        let skewed = elapsed + elapsed * i128::from(self.ppm) / 1_000_000;
        Tick(self.began.0 + u64::try_from(skewed).unwrap())
    }
}

/// The clock of managers, which a test can have stand still with them: what they then do, they do at one instant.
#[derive(Clone)]
struct ManagersClock {
    inner: VirtualClock,
    stopped: Arc<Mutex<Option<Instant>>>,
}

impl Clock for ManagersClock {
    fn now(&self) -> Tick {
        let since = *self.stopped.lock().unwrap();
        self.inner.now().minus(since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    fn wall_ms(&self) -> i64 {
        self.inner.wall_ms()
    }
}

/// One life of an executor process.
pub struct Node {
    pub name: String,
    pub address: Address,
    pub clock: SkewedClock,
    pub fence: Fence,
    pub life: CurrentLife,
    pub exit: ExitWatch,
    pub oplogs: Arc<MemoryOplogStore>,
    lease_holder: Addr<LeaseHolder>,
    draining: Draining,
}

impl Node {
    pub fn id(&self) -> ExecutorId {
        self.life.read()
    }

    pub fn admits(&self, shard: leasehold_model::ShardId) -> bool {
        self.fence.admit(self.clock.now(), shard).is_ok()
    }

    pub fn admits_any(&self) -> bool {
        (0..SHARDS).any(|shard| self.admits(leasehold_model::ShardId(shard)))
    }

    /// As SIGTERM.
    pub async fn shut_down(&self) -> holder::Exit {
        self.draining.begin();
        self.lease_holder.do_send(Shutdown);
        self.exit.clone().ended().await
    }
}

/// What a test can vary.
#[derive(Debug, Clone)]
pub struct Terms {
    pub handoff_grace: Duration,
    pub settle: Duration,
    pub max_moves: u32,
    /// The managers' seats that executors and callers are told of.
    pub seats: &'static [usize],
    /// How often the invariants are looked at.
    pub check_every: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            handoff_grace: Duration::from_secs(10),
            settle: Duration::ZERO,
            max_moves: 1024,
            seats: &[0],
            check_every: Duration::from_millis(20),
        }
    }
}

pub struct World {
    pub network: Network,
    pub store: Arc<MemoryClusterStore>,
    pub oplogs: Arc<MemoryOplogStore>,
    pub checker: Checker,
    pub router: Router,
    pub terms: Terms,
    running: RefCell<Option<Running>>,
    /// Since when managers are stopped.
    stopped: Arc<Mutex<Option<Instant>>>,
    /// What the wall clocks of managers and executors are off by.
    pub wall: WallClock,
}

/// Runs a test's body where actors can live; the invariants are checked throughout.
pub async fn cluster<F: Future<Output = ()>>(terms: Terms, body: impl FnOnce(Rc<World>) -> F) {
    tokio::task::LocalSet::new()
        .run_until(async move {
            let network = Network::default();
            let store = Arc::new(MemoryClusterStore::new());
            let managers = network.managers(CALLER, terms.seats);
            let router = Router::new(managers, Arc::new(network.clone()), RouterSettings::default());
            let checker = Checker::default();
            let (oplogs, running) = (Arc::new(MemoryOplogStore::new()), RefCell::default());
            let wall = WallClock::default();
            let stopped = Arc::default();
            let world = Rc::new(World { network, store, oplogs, checker, router, terms, running, stopped, wall });
            world.start_manager().await;
            let checking = tokio::task::spawn_local(world.checker.clone().watch(Rc::clone(&world)));
            body(Rc::clone(&world)).await;
            world.checker.check(&world);
            assert!(!checking.is_finished(), "{:?}", checking.await);
            checking.abort();
        })
        .await;
}

fn identity(name: &str, address: &Address) -> holder::Identity {
    holder::Identity {
        cluster: ClusterName::new("test").unwrap(),
        name: ExecutorName::new(name).unwrap(),
        address: address.clone(),
        zone: None,
        weight: Weight::default(),
        shard_count: None,
    }
}

impl World {
    pub async fn start_manager(&self) {
        self.start_manager_in(0).await;
    }

    /// The same in this seat.
    pub async fn start_manager_in(&self, seat: usize) {
        let store = Arc::new(self.store.another());
        let mut registry = Registry::default();
        let settings = manager::Settings {
            cluster: ClusterName::new("test").unwrap(),
            shard_count: ShardCount::new(SHARDS).unwrap(),
            leader: leader::Settings {
                lease: Ttl::from_duration(LEASE).unwrap(),
                settle: self.terms.settle,
                max_moves: self.terms.max_moves,
            },
            push_deadline: Duration::from_secs(10),
            store_patience: LEASE,
        };
        let with = manager::Surroundings {
            links: Arc::new(self.network.clone()),
            clock: Arc::new(ManagersClock {
                inner: VirtualClock::start().with_wall(self.wall.clone()),
                stopped: Arc::clone(&self.stopped),
            }),
            metrics: ManagerMetrics::register(&mut registry),
        };
        let running = manager::start(settings, store, with).await.unwrap();
        self.network.seat(seat, Some(Seat::Leads(running.handle.clone())));
        self.running.replace(Some(running));
    }

    /// As `kill -9`: nobody is answered any more. What it has written is stored.
    pub async fn kill_manager(&self) {
        self.kill_manager_in(0).await;
    }

    /// The same for the manager in this seat.
    pub async fn kill_manager_in(&self, seat: usize) {
        self.network.seat(seat, None);
        let running = self.running.take().expect("a manager runs");
        running.handle.stop().await;
    }

    /// As SIGSTOP for `span`, then SIGCONT: what is sent to it or by it meanwhile arrives when it wakes, and its clock has run on.
    pub async fn stop_manager(&self, span: Duration) {
        let wakes = Instant::now() + span;
        self.network.script(move |leg| {
            let held = Way::Delay(wakes.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            let at_work = !leg.from.starts_with(MANAGER) && !leg.to.starts_with(MANAGER);
            (if at_work || Instant::now() >= wakes { Way::Pass } else { held }, Way::Pass)
        });
        *self.stopped.lock().unwrap() = Some(Instant::now());
        sleep(span).await;
        *self.stopped.lock().unwrap() = None;
    }

    pub fn manager(&self) -> manager::ManagerHandle {
        self.running.borrow().as_ref().expect("a manager runs").handle.clone()
    }

    /// Starts an executor process whose clock is off by `ppm`.
    pub fn executor(self: &Rc<Self>, name: &str, port: u16, ppm: i64) -> Rc<Node> {
        let address = Address::new(format!("10.0.0.1:{port}")).unwrap();
        let clock = SkewedClock::new(ppm);
        let shared: SharedClock = Arc::new(clock.clone());
        let keeper = FenceKeeper::new();
        let (fence, pulse) = (keeper.fence(), Arc::new(Pulse::default()));
        let life = CurrentLife::new(ExecutorId::from_u128(1));
        let mut registry = Registry::default();
        let metrics = ExecutorMetrics::register(&mut registry);
        let context = Context::<AgentHost>::new();
        let host = context.address();
        let parts = HolderParts {
            settings: self.holder_settings(),
            identity: identity(name, &address),
            mint: Box::new(|| {
                let (executor, lease_key) = lease_key::fresh();
                Life { executor, lease_key }
            }),
            seed: u64::from(port),
            keeper,
            clock: Arc::clone(&shared),
            current: life.clone(),
            sweep: host.clone().recipient(),
            recover: host.clone().recipient(),
            pulse: Arc::clone(&pulse),
            metrics: LeaseMetrics::register(&mut registry, fence.clone(), Arc::clone(&shared)),
        };
        let (holder, exit) = LeaseHolder::new(parts, Arc::new(self.network.managers(name, self.terms.seats)));
        let lease_holder = holder.launch();
        let oplogs = Arc::new(self.oplogs.handle());
        let limits = HostLimits::default();
        let around = Surroundings {
            fence: fence.clone(),
            clock: Arc::clone(&shared),
            store: Arc::clone(&oplogs) as _,
            archiver: None,
            store_timeout: limits.store_timeout,
            metrics: metrics.clone(),
            pulse,
        };
        let types = AgentTypes::new(shipped());
        let executor_name = ExecutorName::new(name).unwrap();
        context.run(AgentHost::new(HostParts {
            name: executor_name.clone(),
            life: life.clone(),
            around,
            types: types.clone(),
            fenced: lease_holder.clone().recipient(),
            limits,
        }));
        let draining = Draining::default();
        let front = ExecutorFront {
            name: executor_name,
            fence: fence.clone(),
            clock: shared,
            types,
            host: host.clone().recipient(),
            delete: host.clone().recipient(),
            list: host.recipient(),
            assign: lease_holder.clone().recipient(),
            inspect: lease_holder.clone().recipient(),
            draining: draining.clone(),
            metrics,
        };
        self.network.place(&address, name, Arc::new(front));
        let name = name.to_owned();
        let node = Rc::new(Node { name, address, clock, fence, life, exit, oplogs, lease_holder, draining });
        self.checker.add(&node);
        node
    }

    fn holder_settings(&self) -> holder::Settings {
        holder::Settings {
            handoff_grace: self.terms.handoff_grace,
            call_deadline_floor: Duration::from_secs(10),
            registration_patience: 10 * LEASE,
            allowance: Allowance::default(),
            managers: "the manager".to_owned(),
        }
    }

    /// As `kill -9`.
    pub async fn crash(&self, node: &Node) {
        self.network.remove(&node.address);
        self.network.cut_both_ways(&node.name, crate::network::MANAGER);
        node.lease_holder.do_send(Shutdown);
        node.lease_holder.do_send(Shutdown);
        node.exit.clone().ended().await;
    }

    /// Waits until `node` admits nothing any more, and its shards are served by others.
    pub async fn replaced(&self, node: &Node, within: Duration) {
        let began = Instant::now();
        while node.admits_any() {
            assert!(began.elapsed() <= within, "{} goes on admitting", node.name);
            sleep(Duration::from_millis(10)).await;
        }
        self.served(within - began.elapsed()).await;
    }

    pub fn stored(&self) -> ClusterState {
        self.store.peek().expect("something is stored")
    }

    pub fn owned(&self, node: &Node) -> usize {
        self.stored().shards().filter(|(_, row)| row.state == ShardState::Owned(node.id())).count()
    }

    /// Waits until every shard is admitted by somebody; returns how long that took.
    pub async fn served(&self, within: Duration) -> Duration {
        let began = Instant::now();
        loop {
            let missing: Vec<_> = self.checker.unserved();
            if missing.is_empty() {
                return began.elapsed();
            }
            assert!(
                began.elapsed() <= within,
                "not served within {within:?}: {missing:?}, {:?}",
                self.stored().totals()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until nothing has changed for a while.
    pub async fn settled(&self) {
        self.served(3 * LEASE).await;
        for _ in 0..200 {
            let before = self.stored().revision;
            sleep(LEASE / 2).await;
            let totals = self.stored().totals();
            if self.stored().revision == before && totals.releasing + totals.unassigned == 0 {
                return;
            }
        }
        panic!("it never settles: {:?}", self.stored().totals());
    }

    pub async fn increment(&self, agent: &str, within: Duration) -> Result<InvocationAnswer, String> {
        let invocation = Invocation {
            agent: agent.parse().unwrap(),
            method: "increment".to_owned(),
            payload: Vec::new(),
            idempotency_key: None,
        };
        self.router.call(invocation, within).await.map_err(|error| error.to_string())
    }

    pub async fn value(&self, agent: &str) -> u64 {
        let invocation = Invocation {
            agent: agent.parse().unwrap(),
            method: "get".to_owned(),
            payload: Vec::new(),
            idempotency_key: None,
        };
        let answer = self.router.call(invocation, 3 * LEASE).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()["value"].as_u64().unwrap()
    }
}
