//! How soon a committed set is applied: from the store's answer to the executor's hands.

use crate::cluster::{Idle, applied, folder, manage, registration, settled};
use crate::figure::{Measured, Result};
use crate::load::{Serving, listener};
use async_trait::async_trait;
use futures::future::{join_all, try_join_all};
use leasehold_actors::manager::ExecutorLinks;
use leasehold_model::message::{Inspection, Push, PushAnswer};
use leasehold_model::state::ClusterState;
use leasehold_model::{Address, CallError, ClusterName, ExecutorId, ExecutorName, Revision, ShardCount};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{Error as StoreError, SqliteClusterStore, Write};
use leasehold_rpc::api::{ExecutorApi, ManagerApi};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ExecutorClient;
use leasehold_rpc::server::{Limits, serve_executor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const EXECUTORS: usize = 200;
const SHARDS: u32 = 1024;
const SETTLE: Duration = Duration::from_millis(300);
const ROUNDS: usize = 12;

/// What happened when.
#[derive(Default)]
struct Times {
    commits: Mutex<Vec<(Revision, Instant, BTreeSet<ExecutorId>)>>,
    pushes: Mutex<BTreeMap<ExecutorId, Vec<(Instant, Push)>>>,
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A store whose answers are timed.
struct Timed(SqliteClusterStore, Arc<Times>);

#[async_trait]
impl ClusterStore for Timed {
    async fn load(
        &self,
        cluster: &ClusterName,
        shard_count: ShardCount,
    ) -> std::result::Result<ClusterState, StoreError> {
        self.0.load(cluster, shard_count).await
    }

    async fn commit(&self, write: &Write) -> std::result::Result<(), StoreError> {
        self.0.commit(write).await?;
        lock(&self.1.commits).push((write.next, Instant::now(), write.changes.touched.clone()));
        Ok(())
    }

    async fn outcome(&self, tag: u128) -> std::result::Result<bool, StoreError> {
        self.0.outcome(tag).await
    }

    async fn confirm_leadership(&self) -> std::result::Result<(), StoreError> {
        self.0.confirm_leadership().await
    }

    async fn compact(&self, upto: Revision) -> std::result::Result<(), StoreError> {
        self.0.compact(upto).await
    }
}

/// An executor that notes when it was told what.
struct Noting(Arc<Times>);

#[async_trait]
impl ExecutorApi for Noting {
    async fn assign(&self, push: Push) -> std::result::Result<PushAnswer, CallError> {
        let now = Instant::now();
        lock(&self.0.pushes).entry(push.executor).or_default().push((now, push.clone()));
        Ok(applied(push))
    }

    async fn inspect(&self) -> std::result::Result<Inspection, CallError> {
        Err(CallError::Unreachable("executors of the benchmark say nothing".to_owned()))
    }
}

/// As `shard-manager serve` dials.
struct Dialed(Dialer);

impl ExecutorLinks for Dialed {
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi> {
        Arc::new(ExecutorClient::new(self.0.dial(address)))
    }
}

/// The 99th of a hundred.
fn p99(mut times: Vec<Duration>) -> f64 {
    times.sort();
    let at = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// From each commit to each executor whose set it changed: when that, or something newer, was applied.
fn latencies(times: &Times) -> Vec<Duration> {
    let (commits, pushes) = (lock(&times.commits), lock(&times.pushes));
    let mut found = Vec::new();
    for (revision, at, touched) in commits.iter() {
        for executor in touched {
            let told = pushes.get(executor).into_iter().flatten();
            let first = told.filter(|(_, push)| push.set.revision >= *revision).map(|(when, _)| *when).min();
            found.extend(first.map(|when| when.saturating_duration_since(*at)));
        }
    }
    found
}

/// `push_p99_ms`: the p99 from a commit to its application at 200 executors over gRPC, less that of bare unary calls with the same messages
/// to the same executors in bursts of the same sizes. Each round drains half of the executors, or takes that back.
pub async fn p99_beyond_bare() -> Result<Measured> {
    let (folder, times) = (folder()?, Arc::<Times>::default());
    let mut servers = Vec::new();
    let mut registrations = Vec::new();
    for number in 0..EXECUTORS {
        let (listener, address) = listener().await?;
        let apis = (Arc::new(Noting(Arc::clone(&times))) as Arc<dyn ExecutorApi>, Arc::new(Idle) as _);
        servers.push(Serving::start(|stop| serve_executor(listener, apis, Limits::default(), stop)));
        let mut registration = registration(number)?;
        registration.address = address;
        registrations.push(registration);
    }
    let store = SqliteClusterStore::open(folder.path().join("manager.db")).await?;
    let store = Arc::new(Timed(store, Arc::clone(&times)));
    let manager = manage(store, Arc::new(Dialed(Dialer::tcp())), (SHARDS, SETTLE)).await?;
    try_join_all(registrations.iter().map(|registration| manager.register(registration.clone()))).await?;
    settled(&manager).await?;
    let bare: BTreeMap<_, _> = (registrations.iter())
        .map(|registration| (registration.executor, ExecutorClient::new(Dialer::tcp().dial(&registration.address))))
        .collect();
    let newest = |executor| lock(&times.pushes).get(executor).and_then(|told| Some(told.last()?.1.clone()));
    // The first call of each connection dials.
    let mut last: BTreeMap<_, _> = bare.keys().filter_map(|executor| Some((*executor, newest(executor)?))).collect();
    join_all(last.iter().map(|(executor, push)| bare[executor].assign(push.clone()))).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        lock(&times.commits).clear();
        lock(&times.pushes).clear();
        let halves = registrations.iter().take(EXECUTORS / 2).map(|from| from.name.clone());
        let order = |name: ExecutorName| manager.set_draining(name, round % 2 == 0);
        try_join_all(halves.map(order)).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        settled(&manager).await?;
        ours.extend(latencies(&times));
        let bursts: Vec<BTreeSet<_>> = lock(&times.commits).iter().map(|(.., touched)| touched.clone()).collect();
        last.extend(bare.keys().filter_map(|executor| Some((*executor, newest(executor)?))));
        for touched in &bursts {
            lock(&times.pushes).clear();
            let began = Instant::now();
            let call = |executor| Some(bare.get(executor)?.assign(last.get(executor)?.clone()));
            join_all(touched.iter().filter_map(call)).await;
            theirs.extend(lock(&times.pushes).values().flatten().map(|(when, _)| when.duration_since(began)));
        }
        eprintln!("  round {}: {} pushes, {} bare calls", round + 1, ours.len(), theirs.len());
    }
    drop(bare);
    manager.stop().await;
    for server in servers {
        server.stop().await?;
    }
    let (ours, theirs) = (p99(ours), p99(theirs));
    eprintln!("  p99 from commit to applied {ours:.2} ms, of a bare call {theirs:.2} ms");
    Ok(Measured { value: ours - theirs, baseline: theirs })
}
