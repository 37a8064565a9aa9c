//! A manager and a host that do as they are told and write down what was asked of them.

use actix::{Actor, ActorContext, Addr, Context, Handler, Message, ResponseFuture};
use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_actors::clock::{Clock, VirtualClock};
use leasehold_actors::executor::lease_holder::{ExitWatch, HolderParts, LeaseHolder};
use leasehold_actors::executor::lease_metrics::LeaseMetrics;
use leasehold_actors::executor::message::{Assign, CurrentLife, Pulse, Recover, Sweep};
use leasehold_actors::lease_key::{fresh, key_hash};
use leasehold_model::fence::{Closed, Fence, FenceKeeper};
use leasehold_model::holder::{Exit, Identity, Life, Settings};
use leasehold_model::lease::Allowance;
use leasehold_model::message::{
    ClusterStatus, Deregistration, Push, PushAnswer, Registration, Renewal, RoutingTable, ShardExplanation, Weight,
};
use leasehold_model::set::Holdings;
use leasehold_model::{
    Address, CallError, ClusterName, ExecutorId, ExecutorName, Grant, GrantSeq, LeaseKeyHash, ManagerId, Refusal,
    Revision, ShardCount, ShardEpoch, ShardId, ShardSet, Tick, Ttl,
};
use leasehold_rpc::api::ManagerApi;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub const M1: ManagerId = ManagerId::from_u128(101);
pub const TTL: Duration = Duration::from_secs(60);
pub const FLOOR: Duration = Duration::from_secs(10);
pub const GRACE: Duration = Duration::from_secs(10);

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn shards(pairs: &[(u32, u64)]) -> Vec<(ShardId, ShardEpoch)> {
    pairs.iter().map(|(shard, epoch)| (ShardId(*shard), ShardEpoch::new(*epoch).unwrap())).collect()
}

pub fn set(revision: u64, pairs: &[(u32, u64)]) -> ShardSet {
    ShardSet {
        manager: M1,
        revision: Revision(revision),
        shard_count: ShardCount::new(64).unwrap(),
        shards: Holdings::new(shards(pairs)).unwrap(),
    }
}

/// What the scripted manager does with a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Conduct {
    /// Grants.
    Grant,
    /// Takes the request, loses the answer.
    LoseAnswers,
    /// Hears nothing.
    Deaf,
    /// Refuses.
    Refuse(Refusal),
    /// Cannot be dialled.
    Down,
    /// Panics in the caller's task.
    Panic,
}

/// What was asked, and when.
#[derive(Debug, Clone)]
pub enum Asked {
    Register(Registration),
    Renew(Renewal),
    Deregister(Deregistration),
}

pub struct Script {
    pub conduct: Conduct,
    pub set: ShardSet,
    pub ttl: Ttl,
    pub request_takes: Duration,
    pub answer_takes: Duration,
    /// Refuse renewals of these as unknown.
    pub reaped: Vec<ExecutorId>,
    pub asked: Vec<(Tick, Asked)>,
    /// R5: the manager's deadline for the executor.
    pub deadline: Tick,
    seq: u64,
}

/// The manager. Clones share the script.
#[derive(Clone)]
pub struct ScriptedManager {
    script: Arc<Mutex<Script>>,
    clock: Arc<dyn Clock>,
}

impl ScriptedManager {
    pub fn new(clock: Arc<dyn Clock>, ttl: Duration, pairs: &[(u32, u64)]) -> Self {
        let script = Script {
            conduct: Conduct::Grant,
            set: set(10, pairs),
            ttl: Ttl::from_duration(ttl).unwrap(),
            request_takes: Duration::from_millis(1),
            answer_takes: Duration::from_millis(1),
            reaped: Vec::new(),
            asked: Vec::new(),
            deadline: Tick::ZERO,
            seq: 0,
        };
        Self { script: Arc::new(Mutex::new(script)), clock }
    }

    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    pub fn conduct(&self, conduct: Conduct) {
        self.script().conduct = conduct;
    }

    pub fn renewals(&self) -> Vec<(Tick, Renewal)> {
        let asked = self.script().asked.clone();
        asked
            .into_iter()
            .filter_map(|(at, asked)| if let Asked::Renew(it) = asked { Some((at, it)) } else { None })
            .collect()
    }

    pub fn registrations(&self) -> Vec<(Tick, Registration)> {
        let asked = self.script().asked.clone();
        asked
            .into_iter()
            .filter_map(|(at, asked)| if let Asked::Register(it) = asked { Some((at, it)) } else { None })
            .collect()
    }

    pub fn deregistrations(&self) -> Vec<(Tick, Deregistration)> {
        let asked = self.script().asked.clone();
        asked
            .into_iter()
            .filter_map(|(at, asked)| if let Asked::Deregister(it) = asked { Some((at, it)) } else { None })
            .collect()
    }

    /// The request travels, is taken, and the answer travels back.
    async fn answer(&self, executor: ExecutorId, asked: Asked) -> Result<Grant, CallError> {
        let (conduct, takes) = {
            let script = self.script();
            (script.conduct.clone(), script.request_takes)
        };
        match &conduct {
            Conduct::Deaf => pending().await,
            Conduct::Down => return Err(CallError::Unreachable("connection refused".to_owned())),
            Conduct::Panic => panic!("put in on purpose"),
            Conduct::Grant | Conduct::LoseAnswers | Conduct::Refuse(_) => tokio::time::sleep(takes).await,
        }
        let (answer, takes) = {
            let now = self.clock.now();
            let mut script = self.script();
            script.asked.push((now, asked));
            let unknown = script.reaped.contains(&executor);
            let answer = match conduct {
                Conduct::Refuse(refusal) => Err(CallError::Refused(refusal)),
                Conduct::Grant | Conduct::LoseAnswers | Conduct::Deaf | Conduct::Down | Conduct::Panic if unknown => {
                    Err(CallError::Refused(Refusal::UnknownExecutor))
                }
                Conduct::Grant | Conduct::LoseAnswers | Conduct::Deaf | Conduct::Down | Conduct::Panic => {
                    script.seq += 1;
                    script.deadline = script.deadline.max(now.plus(script.ttl.as_duration()));
                    Ok(Grant { set: script.set.clone(), ttl: script.ttl, seq: GrantSeq(script.seq) })
                }
            };
            (answer, script.answer_takes)
        };
        tokio::time::sleep(takes).await;
        if self.script().conduct == Conduct::LoseAnswers { pending().await } else { answer }
    }
}

#[async_trait]
impl ManagerApi for ScriptedManager {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        self.answer(registration.executor, Asked::Register(registration)).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        self.answer(renewal.executor, Asked::Renew(renewal)).await
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        self.answer(deregistration.executor, Asked::Deregister(deregistration)).await.map(|_| ())
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        unreachable!("a lease holder does not route")
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        unreachable!("a lease holder does not route")
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        unreachable!("a lease holder asks for no status")
    }

    async fn explain(&self, _: ShardId) -> Result<ShardExplanation, CallError> {
        unreachable!("a lease holder asks for no explanation")
    }

    async fn set_draining(&self, _: ExecutorName, _: bool) -> Result<(), CallError> {
        unreachable!("a lease holder drains nobody")
    }
}

/// What the host was told, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Sweep(Vec<(ShardId, ShardEpoch)>, Duration),
    Recover(Vec<(ShardId, ShardEpoch)>),
}

/// The agents' host.
pub struct ScriptedHost {
    pub told: Arc<Mutex<Vec<(Tick, Told)>>>,
    pub sweeps_take: Arc<Mutex<Duration>>,
    pub mailbox: usize,
    pub clock: Arc<dyn Clock>,
}

impl Actor for ScriptedHost {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(self.mailbox);
    }
}

impl Handler<Sweep> for ScriptedHost {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Sweep { shards, grace }: Sweep, _: &mut Context<Self>) -> Self::Result {
        self.told.lock().unwrap().push((self.clock.now(), Told::Sweep(shards, grace)));
        let takes = *self.sweeps_take.lock().unwrap();
        Box::pin(tokio::time::sleep(takes))
    }
}

impl Handler<Recover> for ScriptedHost {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Recover { shards }: Recover, _: &mut Context<Self>) -> Self::Result {
        self.told.lock().unwrap().push((self.clock.now(), Told::Recover(shards)));
        Box::pin(async {})
    }
}

/// The host ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Die;

impl Handler<Die> for ScriptedHost {
    type Result = ();

    fn handle(&mut self, _: Die, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

pub struct Bench {
    pub holder: Addr<LeaseHolder>,
    pub host: Addr<ScriptedHost>,
    pub manager: ScriptedManager,
    pub fence: Fence,
    pub clock: VirtualClock,
    pub current: CurrentLife,
    pub exit: ExitWatch,
    pub metrics: LeaseMetrics,
    pub told: Arc<Mutex<Vec<(Tick, Told)>>>,
    pub sweeps_take: Arc<Mutex<Duration>>,
    pub pulse: Arc<Pulse>,
    pub hash: Arc<Mutex<LeaseKeyHash>>,
}

pub fn settings(floor: Duration) -> Settings {
    Settings {
        handoff_grace: GRACE,
        call_deadline_floor: floor,
        registration_patience: secs(60),
        allowance: Allowance::default(),
        managers: "127.0.0.1:7000".to_owned(),
    }
}

pub fn identity() -> Identity {
    Identity {
        cluster: ClusterName::new("test").unwrap(),
        name: ExecutorName::new("a").unwrap(),
        address: Address::new("127.0.0.1:7001").unwrap(),
        zone: None,
        weight: Weight::default(),
        shard_count: None,
    }
}

impl Bench {
    /// A holder beside a manager that grants `pairs`; call it inside a `LocalSet`.
    pub fn start(pairs: &[(u32, u64)]) -> Self {
        Self::start_with(pairs, TTL, FLOOR, 16, |_| {})
    }

    pub fn start_with(
        pairs: &[(u32, u64)],
        ttl: Duration,
        floor: Duration,
        host_mailbox: usize,
        before: impl FnOnce(&ScriptedManager),
    ) -> Self {
        let clock = VirtualClock::start();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let manager = ScriptedManager::new(shared.clone(), ttl, pairs);
        before(&manager);
        let told = Arc::default();
        let sweeps_take = Arc::new(Mutex::new(Duration::ZERO));
        let host = ScriptedHost {
            told: Arc::clone(&told),
            sweeps_take: Arc::clone(&sweeps_take),
            mailbox: host_mailbox,
            clock: shared.clone(),
        }
        .start();
        let keeper = FenceKeeper::new();
        let fence = keeper.fence();
        let current = CurrentLife::new(ExecutorId::from_u128(1));
        let metrics = LeaseMetrics::default();
        let pulse = Arc::new(Pulse::default());
        let hash = Arc::new(Mutex::new(LeaseKeyHash([0; 32])));
        let minted = Arc::clone(&hash);
        let parts = HolderParts {
            settings: settings(floor),
            identity: identity(),
            mint: Box::new(move || {
                let (executor, lease_key) = fresh();
                *minted.lock().unwrap() = key_hash(&lease_key);
                Life { executor, lease_key }
            }),
            seed: 11,
            keeper,
            clock: shared,
            current: current.clone(),
            sweep: host.clone().recipient(),
            recover: host.clone().recipient(),
            pulse: Arc::clone(&pulse),
            metrics: metrics.clone(),
        };
        let (holder, exit) = LeaseHolder::new(parts, Arc::new(manager.clone()));
        let holder = holder.launch();
        Self { holder, host, manager, fence, clock, current, exit, metrics, told, sweeps_take, pulse, hash }
    }

    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    pub fn admits(&self, shard: u32) -> Result<u64, Closed> {
        self.fence.admit(self.now(), ShardId(shard)).map(|admitted| admitted.epoch.get())
    }

    /// Pushes as the manager would.
    pub async fn push(&self, set: ShardSet) -> Result<PushAnswer, CallError> {
        let push = Push { executor: self.current.read(), key_hash: *self.hash.lock().unwrap(), set };
        self.holder.send(Assign(push)).await.unwrap()
    }

    /// How it ended, which must be within minutes.
    pub async fn ended(&mut self) -> Exit {
        tokio::time::timeout(secs(300), self.exit.ended()).await.expect("it ends")
    }

    pub fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().iter().map(|(_, told)| told.clone()).collect()
    }

    /// Lets virtual time pass until `condition`, for at most `limit`.
    pub async fn until(&self, limit: Duration, condition: impl Fn(&Self) -> bool) -> Duration {
        let began = self.now();
        while !condition(self) {
            assert!(self.now().since(began) < limit, "not within {limit:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.now().since(began)
    }
}

/// Runs `story` in a `LocalSet`, as the actors need it.
pub async fn local(story: impl Future<Output = ()>) {
    tokio::task::LocalSet::new().run_until(story).await;
}
