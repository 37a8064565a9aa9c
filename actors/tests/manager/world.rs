//! A manager's actors on paused time, between a scripted store and scripted executors.

use async_trait::async_trait;
use leasehold_actors::clock::VirtualClock;
use leasehold_actors::lease_key::key_hash;
use leasehold_actors::manager::{
    ExecutorLinks, LeadershipEnd, ManagerHandle, ManagerMetrics, Running, Settings, Surroundings, start,
};
use leasehold_model::leader;
use leasehold_model::message::{
    Condition, Deregistration, Inspection, LeaseKey, Push, PushAnswer, Registration, Renewal, Weight,
};
use leasehold_model::routing::HASH_SCHEME;
use leasehold_model::set::Holdings;
use leasehold_model::state::{ClusterState, ShardState};
use leasehold_model::{
    Address, CallError, Claim, ClusterName, ExecutorId, ExecutorName, Grant, GrantSeq, ManagerId, Refusal, Revision,
    ShardCount, Ttl,
};
use leasehold_persistence::cluster::MemoryClusterStore;
use leasehold_rpc::api::{ExecutorApi, ManagerApi};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub const LEASE: Duration = Duration::from_secs(60);

/// How a scripted executor treats pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushes {
    /// Applies and answers at once.
    Prompt,
    /// Applies at once, answers this much later.
    AnswerAfter(Duration),
    /// Applies, and the answer is lost.
    LoseAnswer,
    /// Is never reached.
    Drop,
    /// Accepts and never answers.
    Silent,
    /// Breaks the session that calls, by a panic.
    Panic,
}

/// An executor that does as a test says. Releases at once what it is not told any more.
pub struct Scripted {
    pub id: ExecutorId,
    pub name: String,
    pub key: LeaseKey,
    pub address: Address,
    state: Mutex<State>,
}

struct State {
    pushes: Pushes,
    claim: Option<Claim>,
    heard: GrantSeq,
    lease_ends: Option<Instant>,
    received: Vec<(ManagerId, Revision)>,
}

impl Scripted {
    pub fn new(n: u128) -> Arc<Self> {
        Arc::new(Self {
            id: ExecutorId::from_u128(n),
            name: format!("e{n}"),
            key: LeaseKey([n as u8; 32]),
            address: Address::new(format!("127.0.0.1:{}", 4000 + n)).unwrap(),
            state: Mutex::new(State {
                pushes: Pushes::Prompt,
                claim: None,
                heard: GrantSeq(0),
                lease_ends: None,
                received: Vec::new(),
            }),
        })
    }

    pub fn pushes(&self, how: Pushes) {
        self.state.lock().unwrap().pushes = how;
    }

    pub fn claim(&self) -> Option<Claim> {
        self.state.lock().unwrap().claim.clone()
    }

    pub fn received(&self) -> Vec<Revision> {
        self.state.lock().unwrap().received.iter().map(|(_, revision)| *revision).collect()
    }

    /// How many pushes of this manager have reached it.
    pub fn received_of(&self, manager: ManagerId) -> usize {
        self.state.lock().unwrap().received.iter().filter(|(of, _)| *of == manager).count()
    }

    /// Whether it would admit work now, by its own copy of the lease.
    pub fn admits(&self) -> bool {
        self.state.lock().unwrap().lease_ends.is_some_and(|ends| Instant::now() < ends)
    }

    pub fn registration(&self) -> Registration {
        Registration {
            cluster: ClusterName::new("test").unwrap(),
            shard_count: None,
            hash_scheme: HASH_SCHEME.to_owned(),
            executor: self.id,
            name: ExecutorName::new(self.name.clone()).unwrap(),
            address: self.address.clone(),
            zone: None,
            weight: Weight::default(),
            lease_key: self.key.clone(),
        }
    }

    pub fn renewal(&self) -> Renewal {
        let state = self.state.lock().unwrap();
        let nothing =
            Claim { manager: ManagerId::from_u128(u128::MAX), applied: Revision(0), shards: Holdings::default() };
        Renewal {
            executor: self.id,
            lease_key: self.key.clone(),
            claim: state.claim.clone().unwrap_or(nothing),
            heard: state.heard,
            epoch_floors: Vec::new(),
            condition: Condition::default(),
        }
    }

    /// Takes in a grant that was asked for at `noted`.
    pub fn hear(&self, noted: Instant, grant: &Grant) {
        let mut state = self.state.lock().unwrap();
        let follows = state.claim.as_ref().map(|claim| (claim.manager, claim.applied));
        if follows.is_none_or(|(manager, applied)| manager != grant.set.manager || applied <= grant.set.revision) {
            state.claim = Some(claim_of(&grant.set));
        }
        state.heard = grant.seq;
        state.lease_ends = Some(noted + grant.ttl.as_duration().mul_f64(0.999));
    }

    pub async fn register(&self, manager: &impl ManagerApi) -> Result<Grant, CallError> {
        let noted = Instant::now();
        let grant = manager.register(self.registration()).await?;
        self.hear(noted, &grant);
        Ok(grant)
    }

    pub async fn renew(&self, manager: &impl ManagerApi) -> Result<Grant, CallError> {
        let noted = Instant::now();
        let grant = manager.renew(self.renewal()).await?;
        self.hear(noted, &grant);
        Ok(grant)
    }

    pub async fn deregister(&self, manager: &impl ManagerApi) -> Result<(), CallError> {
        manager.deregister(Deregistration { executor: self.id, lease_key: self.key.clone() }).await
    }
}

fn claim_of(set: &leasehold_model::ShardSet) -> Claim {
    Claim { manager: set.manager, applied: set.revision, shards: set.shards.clone() }
}

#[async_trait]
impl ExecutorApi for Scripted {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        assert_eq!(push.key_hash, key_hash(&self.key), "R36: a push proves itself");
        let how = {
            let mut state = self.state.lock().unwrap();
            state.received.push((push.set.manager, push.set.revision));
            let applies = !matches!(state.pushes, Pushes::Drop | Pushes::Silent | Pushes::Panic)
                && state
                    .claim
                    .as_ref()
                    .is_some_and(|claim| claim.manager == push.set.manager && claim.applied <= push.set.revision);
            if applies {
                state.claim = Some(claim_of(&push.set));
            }
            state.pushes
        };
        match how {
            Pushes::Prompt => {}
            Pushes::AnswerAfter(span) => sleep(span).await,
            Pushes::LoseAnswer => return Err(CallError::Unknown("the answer was lost".to_owned())),
            Pushes::Drop => return Err(CallError::Unreachable("refused".to_owned())),
            Pushes::Silent => std::future::pending().await,
            Pushes::Panic => panic!("a push that kills its session"),
        }
        let claim = self.claim();
        let applied = claim.as_ref().is_some_and(|claim| claim.applied >= push.set.revision);
        Ok(PushAnswer { applied, claim })
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        Ok(Inspection {
            executor: self.id,
            name: ExecutorName::new(self.name.clone()).unwrap(),
            manager: None,
            applied: Revision(0),
            lease_remaining_ms: 0,
            held: Holdings::default(),
            draining: Holdings::default(),
            condition: Condition::default(),
        })
    }
}

/// Who is where.
#[derive(Default)]
pub struct Network(Mutex<BTreeMap<Address, Arc<Scripted>>>);

impl Network {
    pub fn place(&self, executor: &Arc<Scripted>) {
        self.0.lock().unwrap().insert(executor.address.clone(), Arc::clone(executor));
    }
}

impl ExecutorLinks for Network {
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi> {
        match self.0.lock().unwrap().get(address) {
            Some(executor) => Arc::clone(executor) as _,
            None => Arc::new(Nobody),
        }
    }
}

struct Nobody;

#[async_trait]
impl ExecutorApi for Nobody {
    async fn assign(&self, _: Push) -> Result<PushAnswer, CallError> {
        Err(CallError::Unreachable("nobody there".to_owned()))
    }
    async fn inspect(&self) -> Result<Inspection, CallError> {
        Err(CallError::Unreachable("nobody there".to_owned()))
    }
}

pub struct World {
    pub store: Arc<MemoryClusterStore>,
    pub network: Arc<Network>,
    pub manager: ManagerHandle,
    pub ended: watch::Receiver<Option<LeadershipEnd>>,
    pub registry: Registry,
}

pub fn settings(shards: u32) -> Settings {
    Settings {
        cluster: ClusterName::new("test").unwrap(),
        shard_count: ShardCount::new(shards).unwrap(),
        leader: leader::Settings {
            lease: Ttl::from_duration(LEASE).unwrap(),
            settle: Duration::ZERO,
            max_moves: 10_000,
        },
        push_deadline: Duration::from_secs(10),
        store_patience: LEASE,
    }
}

/// Runs a test's body where actors can live.
pub async fn local<T>(body: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(body).await
}

impl World {
    pub async fn new(shards: u32) -> Self {
        Self::on(Arc::new(MemoryClusterStore::new()), settings(shards)).await
    }

    pub async fn on(store: Arc<MemoryClusterStore>, settings: Settings) -> Self {
        let network = Arc::new(Network::default());
        Self::start(store, network, settings).await
    }

    async fn start(store: Arc<MemoryClusterStore>, network: Arc<Network>, settings: Settings) -> Self {
        let mut registry = Registry::default();
        let with = Surroundings {
            links: Arc::clone(&network) as _,
            clock: Arc::new(VirtualClock::start()),
            metrics: ManagerMetrics::register(&mut registry),
        };
        let Running { handle, ended } = start(settings, Arc::clone(&store) as _, with).await.unwrap();
        Self { store, network, manager: handle, ended, registry }
    }

    /// Another manager process on the same store and network.
    pub async fn successor(&self, settings: Settings) -> Self {
        let store = Arc::new(self.store.another());
        Self::start(store, Arc::clone(&self.network), settings).await
    }

    pub fn place(&self, executor: &Arc<Scripted>) {
        self.network.place(executor);
    }

    /// Registers executors and lets the dust settle.
    pub async fn join(&self, executors: &[&Arc<Scripted>]) {
        for executor in executors {
            self.place(executor);
            executor.register(&self.manager).await.unwrap();
        }
        self.quiet(executors).await;
    }

    /// Lets everybody renew until nothing changes any more.
    pub async fn quiet(&self, executors: &[&Arc<Scripted>]) {
        for _ in 0..20 {
            let before = self.stored().revision;
            for executor in executors {
                drop(executor.renew(&self.manager).await);
            }
            sleep(Duration::from_millis(200)).await;
            if self.stored().revision == before {
                return;
            }
        }
        panic!("it never settles: {:?}", self.stored().totals());
    }

    /// For `span`, `executors` renew every ten seconds.
    pub async fn live(&self, executors: &[&Arc<Scripted>], span: Duration) {
        let until = Instant::now() + span;
        while Instant::now() < until {
            for executor in executors {
                drop(executor.renew(&self.manager).await);
            }
            sleep((LEASE / 6).min(until - Instant::now())).await;
        }
    }

    pub fn stored(&self) -> ClusterState {
        self.store.peek().expect("something is stored")
    }

    pub fn owned(&self, executor: &Scripted) -> usize {
        self.stored().shards().filter(|(_, row)| row.state == ShardState::Owned(executor.id)).count()
    }

    pub fn everything_owned(&self) -> bool {
        let totals = self.stored().totals();
        totals.releasing == 0 && totals.unassigned == 0
    }

    pub fn ended(&self) -> Option<LeadershipEnd> {
        self.ended.borrow().clone()
    }

    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// The value of a counter without labels.
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.metrics();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

pub fn refused(answer: Result<Grant, CallError>) -> Refusal {
    match answer {
        Err(CallError::Refused(refusal)) => refusal,
        other => panic!("no refusal but {other:?}"),
    }
}
