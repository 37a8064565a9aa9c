//! A manager as `shard-manager serve` has it (actors on this thread, gRPC on the workers, SQLite on a disk), and executors that
//! apply every push at once.

use crate::figure::Result;
use crate::load::{Serving, listener};
use async_trait::async_trait;
use leasehold_actors::clock::GranterClock;
use leasehold_actors::lease_key::{fresh, key_hash};
use leasehold_actors::manager::{self, ExecutorLinks, ManagerHandle, ManagerMetrics, Running, Settings, Surroundings};
use leasehold_model::command::{Command, Draft};
use leasehold_model::message::{
    Inspection, Invocation, InvocationAnswer, LeaseKey, Push, PushAnswer, Registration, Renewal, Weight,
};
use leasehold_model::plan::{Limits, plan};
use leasehold_model::state::{ClusterState, Executor};
use leasehold_model::{
    Address, CallError, Claim, ClusterName, ExecutorId, ExecutorName, Grant, GrantSeq, ShardCount, Ttl, leader, routing,
};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{Counters, SqliteClusterStore, Write};
use leasehold_rpc::api::{ExecutorApi, InvokeApi, ManagerApi};
use leasehold_rpc::server::{Limits as ServerLimits, serve_manager};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any figure takes, so that nobody lapses in between.
const LEASE_MS: u64 = 600_000;
/// How long a cluster may take to settle.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder beside this binary: on a disk, which the temporary folder of a machine may not be.
pub fn folder() -> Result<TempDir> {
    let exe = std::env::current_exe()?;
    let beside = exe.parent().ok_or("this binary is nowhere")?;
    Ok(tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(beside)?)
}

pub fn cluster_name() -> Result<ClusterName> {
    Ok(ClusterName::new("bench")?)
}

pub fn lease() -> Result<Ttl> {
    Ok(Ttl::from_ms(LEASE_MS)?)
}

/// What the executor with this number says of itself.
pub fn registration(number: usize) -> Result<Registration> {
    let (executor, lease_key) = fresh();
    Ok(Registration {
        cluster: cluster_name()?,
        shard_count: None,
        hash_scheme: routing::HASH_SCHEME.to_owned(),
        executor,
        name: ExecutorName::new(format!("executor-{number}"))?,
        address: Address::new(format!("127.0.{}.{}:7101", number / 250, number % 250 + 1))?,
        zone: None,
        weight: Weight::default(),
        lease_key,
    })
}

/// Applies every push, and counts them.
#[derive(Default)]
pub struct Obedient(Arc<AtomicU64>);

/// The claim of somebody who has applied what was pushed.
pub fn applied(push: Push) -> PushAnswer {
    let set = push.set;
    let claim = Claim { manager: set.manager, applied: set.revision, shards: set.shards };
    PushAnswer { applied: true, claim: Some(claim) }
}

/// Runs nothing.
pub struct Idle;

#[async_trait]
impl InvokeApi for Idle {
    async fn invoke(&self, _: Invocation, _: Duration) -> std::result::Result<InvocationAnswer, CallError> {
        Err(CallError::Unreachable("executors of the benchmark run nothing".to_owned()))
    }
}

#[async_trait]
impl ExecutorApi for Obedient {
    async fn assign(&self, push: Push) -> std::result::Result<PushAnswer, CallError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(applied(push))
    }

    async fn inspect(&self) -> std::result::Result<Inspection, CallError> {
        Err(CallError::Unreachable("executors of the benchmark are not dialled".to_owned()))
    }
}

impl ExecutorLinks for Obedient {
    fn link(&self, _: &Address) -> Arc<dyn ExecutorApi> {
        Arc::new(Self(Arc::clone(&self.0)))
    }
}

/// Starts the actors of a manager.
pub async fn manage(
    store: Arc<dyn ClusterStore>,
    links: Arc<dyn ExecutorLinks>,
    (shards, settle): (u32, Duration),
) -> Result<ManagerHandle> {
    let settings = Settings {
        cluster: cluster_name()?,
        shard_count: ShardCount::new(shards)?,
        leader: leader::Settings { lease: lease()?, settle, max_moves: 1024 },
        push_deadline: Duration::from_secs(5),
        store_patience: Duration::from_secs(60),
    };
    let metrics = ManagerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let with = Surroundings { links, clock: Arc::new(GranterClock), metrics };
    let Running { handle, .. } = manager::start(settings, store, with).await?;
    Ok(handle)
}

/// Waits until every shard is owned and every executor has its set.
pub async fn settled(handle: &ManagerHandle) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let status = handle.status().await?;
        let lagging = status.executors.iter().any(|executor| executor.lagging_ms.is_some());
        if status.totals.owned == status.shard_count.get() && !lagging {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("the cluster does not settle".into())
}

/// A manager that serves.
pub struct Manager {
    /// The way to its actors.
    pub handle: ManagerHandle,
    /// Where gRPC is served.
    pub address: Address,
    /// What its store counts.
    pub counters: Arc<Counters>,
    /// How many pushes its executors have applied.
    pub pushed: Arc<AtomicU64>,
    server: Serving,
}

impl Manager {
    /// Takes over the SQLite store at `path`, with executors that apply every push. A cold cluster waits for `settle`.
    pub async fn start(path: &Path, shards: u32, settle: Duration) -> Result<Self> {
        let store = SqliteClusterStore::open(path).await?;
        let counters = store.counters();
        Self::on(Arc::new(store), counters, (shards, settle)).await
    }

    /// The same on any store, which counts in `counters`.
    pub async fn on(
        store: Arc<dyn ClusterStore>,
        counters: Arc<Counters>,
        (shards, settle): (u32, Duration),
    ) -> Result<Self> {
        let pushed = Arc::<AtomicU64>::default();
        let links = Arc::new(Obedient(Arc::clone(&pushed)));
        let handle = manage(store, links, (shards, settle)).await?;
        let (listener, address) = listener().await?;
        let api: Arc<dyn ManagerApi> = Arc::new(handle.clone());
        let server = Serving::start(|stop| serve_manager(listener, api, ServerLimits::default(), stop));
        Ok(Self { handle, address, counters, pushed, server })
    }

    pub async fn stop(self) -> Result<()> {
        self.handle.stop().await;
        self.server.stop().await
    }
}

/// One executor that renews.
pub struct Member {
    id: ExecutorId,
    key: LeaseKey,
    /// The last grant it had.
    pub grant: Grant,
    heard: AtomicU64,
}

impl Member {
    pub fn new(id: ExecutorId, key: LeaseKey, grant: Grant) -> Self {
        let heard = AtomicU64::new(grant.seq.0);
        Self { id, key, grant, heard }
    }

    /// The same after another grant.
    pub fn with(self, grant: Grant) -> Self {
        Self::new(self.id, self.key, grant)
    }

    /// What it says next; each answer that it gets is one grant more.
    pub fn renewal(&self) -> Renewal {
        let set = &self.grant.set;
        Renewal {
            executor: self.id,
            lease_key: self.key.clone(),
            claim: Claim { manager: set.manager, applied: set.revision, shards: set.shards.clone() },
            heard: GrantSeq(self.heard.load(Ordering::Relaxed)),
            epoch_floors: Vec::new(),
            condition: leasehold_model::message::Condition::default(),
        }
    }

    pub fn granted(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the last grant that it had.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    pub fn hear(&self, grant: u64) {
        self.heard.store(grant, Ordering::Relaxed);
    }
}

/// Registers so many executors and waits until they own every shard.
pub async fn populate(manager: &Manager, executors: usize) -> Result<Vec<Member>> {
    let registrations = (0..executors).map(registration).collect::<Result<Vec<_>>>()?;
    let register = registrations.iter().map(|registration| manager.handle.register(registration.clone()));
    let grants = futures::future::try_join_all(register).await?;
    settled(&manager.handle).await?;
    let mut members = Vec::new();
    for (registration, grant) in registrations.into_iter().zip(grants) {
        let mut member = Member::new(registration.executor, registration.lease_key, grant);
        // The grant to a registration was given before there were shards to give.
        member.grant = manager.handle.renew(member.renewal()).await?;
        members.push(Member::new(member.id, member.key, member.grant));
    }
    Ok(members)
}

/// The first write of a cluster: so many executors, which own nothing yet.
pub fn unassigned(shards: u32, executors: usize) -> Result<Draft> {
    let mut draft = Draft::on(&ClusterState::empty(cluster_name()?, ShardCount::new(shards)?));
    for number in 0..executors {
        let from = registration(number)?;
        let executor = Executor {
            name: from.name,
            address: from.address,
            zone: from.zone,
            weight: from.weight,
            lease_length: lease()?,
            key_hash: key_hash(&from.lease_key),
            draining: false,
            superseded: false,
            registered_at_ms: 1_790_000_000_000,
        };
        let _ = draft.apply(&Command::Register { id: from.executor, executor, replaces: None })?;
    }
    Ok(draft)
}

/// The state of a cluster in which so many executors own every shard.
pub fn owned_by(shards: u32, executors: usize) -> Result<ClusterState> {
    let mut draft = unassigned(shards, executors)?;
    let planned = plan(draft.state(), &Limits::none());
    let _ = draft.apply(&Command::Plan(planned))?;
    Ok(draft.finish().0)
}

/// Writes such a state to a new store at `path`.
pub async fn store(path: &Path, shards: u32, executors: usize) -> Result<()> {
    let state = owned_by(shards, executors)?;
    let store = SqliteClusterStore::open(path).await?;
    let empty = store.load(&state.cluster, state.shard_count).await?;
    let changes = leasehold_model::command::Changes {
        first: Some(leasehold_model::state::Head {
            cluster: state.cluster.clone(),
            shard_count: state.shard_count,
            revision: state.revision,
        }),
        shards: state.shards().map(|(shard, row)| (shard, *row)).collect(),
        executors: state.executors().map(|(id, row)| (id, Arc::clone(row))).collect(),
        ..Default::default()
    };
    store.commit(&Write { tag: 1, expected: empty.revision, next: state.revision, changes }).await?;
    Ok(())
}
