//! Fakes behind the traits, and a server around them.

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold_model::agents::{AgentPage, AgentQuery, AgentStanding, DeletionAnswer, ListedAgent};
use leasehold_model::message::*;
use leasehold_model::set::Holdings;
use leasehold_model::*;
use leasehold_rpc::api::{ExecutorApi, InvokeApi, ManagerApi};
use leasehold_rpc::channel::{Channel, Dialer};
use leasehold_rpc::server::{self, Limits};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// How long a test waits for what must happen; far more than it takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("what must happen did not happen in time")
}

pub fn holdings(pairs: &[(u32, u64)]) -> Holdings {
    Holdings::new(pairs.iter().map(|(shard, epoch)| (ShardId(*shard), ShardEpoch::owned(*epoch).unwrap())).collect())
        .unwrap()
}

pub fn claim() -> Claim {
    Claim { manager: ManagerId::from_u128(2), applied: Revision(41), shards: holdings(&[(3, 7), (5, 1)]) }
}

pub fn grant() -> Grant {
    let set = ShardSet {
        manager: ManagerId::from_u128(2),
        revision: Revision(42),
        shard_count: ShardCount::new(64).unwrap(),
        shards: holdings(&[(3, 7)]),
    };
    Grant { set, ttl: Ttl::from_ms(60_000).unwrap(), seq: GrantSeq(5) }
}

pub fn owner() -> Owner {
    Owner {
        executor: ExecutorId::from_u128(1),
        name: ExecutorName::new("executor-1").unwrap(),
        address: Address::new("127.0.0.1:7101").unwrap(),
    }
}

pub fn registration() -> Registration {
    Registration {
        cluster: ClusterName::new("main").unwrap(),
        shard_count: None,
        hash_scheme: routing::HASH_SCHEME.to_owned(),
        executor: ExecutorId::from_u128(1),
        name: ExecutorName::new("executor-1").unwrap(),
        address: Address::new("127.0.0.1:7101").unwrap(),
        zone: None,
        weight: Weight::default(),
        lease_key: LeaseKey([7; 32]),
    }
}

pub fn renewal() -> Renewal {
    Renewal {
        executor: ExecutorId::from_u128(1),
        lease_key: LeaseKey([7; 32]),
        claim: claim(),
        heard: GrantSeq(4),
        epoch_floors: vec![(ShardId(9), ShardEpoch::owned(77).unwrap())],
        condition: Condition { agents: 1, running: 2, oldest_running_ms: 3, oplog_failing_ms: 4 },
    }
}

pub fn deregistration() -> Deregistration {
    Deregistration { executor: ExecutorId::from_u128(1), lease_key: LeaseKey([7; 32]) }
}

pub fn push() -> Push {
    Push { executor: ExecutorId::from_u128(1), key_hash: LeaseKeyHash([9; 32]), set: grant().set }
}

pub fn inspection() -> Inspection {
    Inspection {
        executor: ExecutorId::from_u128(1),
        name: ExecutorName::new("executor-1").unwrap(),
        manager: None,
        applied: Revision(0),
        lease_remaining_ms: 0,
        held: holdings(&[]),
        draining: holdings(&[(5, 1)]),
        condition: Condition::default(),
    }
}

pub fn invocation() -> Invocation {
    Invocation {
        agent: AgentId::new("counter/a").unwrap(),
        method: "add".to_owned(),
        payload: b"1".to_vec(),
        idempotency_key: Some("line-1".to_owned()),
    }
}

pub fn answer() -> InvocationAnswer {
    InvocationAnswer {
        payload: b"18".to_vec(),
        shard: ShardId(3),
        epoch: ShardEpoch::owned(7).unwrap(),
        executor: ExecutorName::new("executor-1").unwrap(),
        replayed: false,
    }
}

pub fn deleted() -> DeletionAnswer {
    let InvocationAnswer { shard, epoch, executor, .. } = answer();
    DeletionAnswer { shard, epoch, executor }
}

pub fn page() -> AgentPage {
    let listed = ListedAgent { agent: invocation().agent, standing: AgentStanding::Unloaded };
    AgentPage { agents: vec![listed], more: true }
}

pub fn table(revision: u64) -> Arc<RoutingTable> {
    let routes = vec![Route::Owned(0, ShardEpoch::owned(7).unwrap()), Route::Unassigned, Route::Releasing(0)];
    let table =
        RoutingTable { manager: ManagerId::from_u128(2), revision: Revision(revision), owners: vec![owner()], routes };
    Arc::new(table)
}

pub fn status() -> ClusterStatus {
    ClusterStatus {
        cluster: ClusterName::new("main").unwrap(),
        manager: ManagerId::from_u128(2),
        revision: Revision(42),
        shard_count: ShardCount::new(64).unwrap(),
        totals: ShardTotals { owned: 1, releasing: 2, unassigned: 61 },
        unassigned_because: Some("nobody is there".to_owned()),
        troubles: vec![],
        executors: vec![],
        leading_ms: 5,
    }
}

pub fn explanation() -> ShardExplanation {
    ShardExplanation {
        shard: ShardId(3),
        epoch: ShardEpoch::owned(7).unwrap(),
        state: "owned".to_owned(),
        owner: Some(owner()),
        lease_remaining_ms: Some(5),
        because: vec!["it is so".to_owned()],
    }
}

/// What a fake was asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Register(Registration),
    Renew(Renewal),
    Deregister(Deregistration),
    Explain(ShardId),
    SetDraining(ExecutorName, bool),
    Assign(Push),
    Invoke(Invocation, Duration),
    Delete(AgentId, Duration),
    ListAgents(AgentQuery),
}

/// Answers with the samples above, or with one error; each call but renewals first takes a permit of the gate.
pub struct Fake {
    pub asked: Mutex<Vec<Asked>>,
    pub fails: Mutex<Option<CallError>>,
    pub gate: Semaphore,
    pub arrived: Semaphore,
    pub tables: watch::Sender<Arc<RoutingTable>>,
}

impl Fake {
    /// Answers at once.
    pub fn open() -> Arc<Self> {
        let fake = Self::shut();
        fake.gate.add_permits(1_000_000);
        fake
    }

    /// Answers nothing before the gate gets permits.
    pub fn shut() -> Arc<Self> {
        Arc::new(Self {
            asked: Mutex::default(),
            fails: Mutex::default(),
            gate: Semaphore::new(0),
            arrived: Semaphore::new(0),
            tables: watch::Sender::new(table(42)),
        })
    }

    pub fn failing(error: impl Into<CallError>) -> Arc<Self> {
        let fake = Self::open();
        *fake.fails.lock().unwrap() = Some(error.into());
        fake
    }

    /// Resolves when one more call has arrived.
    pub async fn arrival(&self) {
        soon(self.arrived.acquire()).await.unwrap().forget();
    }

    pub fn last(&self) -> Option<Asked> {
        self.asked.lock().unwrap().last().cloned()
    }

    async fn answer<T>(&self, asked: Option<Asked>, answer: T) -> Result<T, CallError> {
        self.asked.lock().unwrap().extend(asked);
        self.arrived.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        let fails = self.fails.lock().unwrap().clone();
        fails.map_or(Ok(answer), Err)
    }
}

#[async_trait]
impl ManagerApi for Fake {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        self.answer(Some(Asked::Register(registration)), grant()).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        self.asked.lock().unwrap().push(Asked::Renew(renewal));
        let fails = self.fails.lock().unwrap().clone();
        fails.map_or(Ok(grant()), Err)
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        self.answer(Some(Asked::Deregister(deregistration)), ()).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.answer(None, table(42)).await
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        let fails = self.fails.lock().unwrap().clone();
        let tables = tokio_stream::wrappers::WatchStream::new(self.tables.subscribe());
        Ok(tables.map(move |table| fails.clone().map_or(Ok(table), Err)).boxed())
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.answer(None, status()).await
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        self.answer(Some(Asked::Explain(shard)), explanation()).await
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        self.answer(Some(Asked::SetDraining(name, draining)), ()).await
    }
}

#[async_trait]
impl ExecutorApi for Fake {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        self.answer(Some(Asked::Assign(push)), PushAnswer { applied: true, claim: Some(claim()) }).await
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        self.answer(None, inspection()).await
    }

    async fn list_agents(&self, query: AgentQuery) -> Result<AgentPage, CallError> {
        self.answer(Some(Asked::ListAgents(query)), page()).await
    }
}

#[async_trait]
impl InvokeApi for Fake {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        self.answer(Some(Asked::Invoke(invocation, within)), answer()).await
    }

    async fn delete(&self, agent: AgentId, within: Duration) -> Result<DeletionAnswer, CallError> {
        self.answer(Some(Asked::Delete(agent, within)), deleted()).await
    }
}

/// A server that runs in a task.
pub struct Served {
    pub address: Address,
    pub task: JoinHandle<Result<(), server::Error>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Served {
    pub fn channel(&self) -> Channel {
        Dialer::tcp().dial(&self.address)
    }

    /// Asks it to shut down.
    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// As a crash: everything is gone at once.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

pub async fn listener() -> (TcpListener, Address) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(listener.local_addr().unwrap().to_string()).unwrap();
    (listener, address)
}

/// Serves in a task; `serve` gets the listener and the shutdown.
pub async fn served<F>(serve: impl FnOnce(TcpListener, futures::future::BoxFuture<'static, ()>) -> F) -> Served
where
    F: Future<Output = Result<(), server::Error>> + Send + 'static,
{
    let (listener, address) = listener().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = Box::pin(async {
        let _ = stopped.await;
    });
    Served { address, task: tokio::spawn(serve(listener, shutdown)), stop: Some(stop) }
}

pub async fn manager(fake: &Arc<Fake>, limits: Limits) -> Served {
    let api = Arc::clone(fake);
    served(|listener, shutdown| server::serve_manager(listener, api, limits, shutdown)).await
}

pub async fn executor(fake: &Arc<Fake>, limits: Limits) -> Served {
    let (api, agents) = (Arc::clone(fake), Arc::clone(fake));
    served(|listener, shutdown| server::serve_executor(listener, (api, agents), limits, shutdown)).await
}

pub async fn gateway(fake: &Arc<Fake>, limits: Limits) -> Served {
    let api = Arc::clone(fake);
    served(|listener, shutdown| server::serve_gateway(listener, api, limits, shutdown)).await
}
