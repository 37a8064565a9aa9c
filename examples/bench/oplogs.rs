//! Oplogs: what the fence costs on each store, and what grouping brings.

use crate::cluster::folder;
use crate::figure::{Measured, Result};
use crate::raw::{self, RawPostgres, RawRedis, RawSqlite};
use crate::rounds::in_turns;
use leasehold_harness::{Postgres, Redis};
use leasehold_model::{AgentId, ClusterName, ExecutorId, ShardEpoch, ShardId};
use leasehold_persistence::OplogStore;
use leasehold_persistence::oplog::sqlite::Settings;
use leasehold_persistence::oplog::{
    Append, EntryIndex, EntryKind, NewEntry, PostgresOplogStore, RedisOplogStore, SqliteOplogStore, Writer, postgres,
    redis,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Agents with the index that each appends at next.
struct Agents {
    writer: Writer,
    agents: Vec<(AgentId, u64)>,
}

impl Agents {
    async fn claim(store: &dyn OplogStore, prefix: &str, count: usize) -> Result<Self> {
        let writer = Writer { epoch: ShardEpoch::owned(5)?, executor: ExecutorId::from_u128(7) };
        let mut agents = Vec::new();
        for number in 0..count {
            let agent = AgentId::new(format!("counter/{prefix}-{number}"))?;
            let claimed = store.claim(&agent, ShardId(1), writer).await?;
            agents.push((agent, claimed.next.0));
        }
        Ok(Self { writer, agents })
    }

    /// Appends per second while each agent appends so many entries of 100 bytes, one after the other.
    async fn rate(&mut self, store: &Arc<dyn OplogStore>, appends: u64) -> Result<f64> {
        let (began, writer) = (Instant::now(), self.writer);
        let append = |(agent, next): &mut (AgentId, u64)| {
            let (store, agent, first) = (Arc::clone(store), agent.clone(), *next);
            *next += appends;
            tokio::spawn(async move {
                for index in first..first + appends {
                    let key = Some(format!("key-{index}"));
                    let entries = vec![NewEntry { kind: EntryKind::Invocation, key, body: vec![7; 100] }];
                    store.append(Append { agent: agent.clone(), writer, expected: EntryIndex(index), entries }).await?;
                }
                Result::Ok(())
            })
        };
        let tasks: Vec<_> = self.agents.iter_mut().map(append).collect();
        let count = tasks.len();
        for task in tasks {
            task.await??;
        }
        Ok(count as f64 * appends as f64 / began.elapsed().as_secs_f64())
    }
}

async fn open(path: &Path, unfenced: bool) -> Result<Arc<dyn OplogStore>> {
    Ok(Arc::new(SqliteOplogStore::open_with(path, Settings { unfenced, ..Settings::default() }).await?))
}

/// `fenced_append_sqlite`: 64 agents, one table, with the fence and without.
pub async fn fenced() -> Result<Measured> {
    let folder = folder()?;
    let (fenced, unfenced) = (open(folder.path(), false).await?, open(folder.path(), true).await?);
    compared(&fenced, &unfenced, 121).await
}

async fn compared(fenced: &Arc<dyn OplogStore>, unfenced: &Arc<dyn OplogStore>, rounds: usize) -> Result<Measured> {
    let mut one = Agents::claim(&**fenced, "fenced", 64).await?;
    let mut other = Agents::claim(&**fenced, "unfenced", 64).await?;
    in_turns(rounds, async || one.rate(fenced, 20).await, async || other.rate(unfenced, 20).await).await
}

/// `fenced_append_postgres`: the same on a server that syncs every commit.
pub async fn fenced_postgres() -> Result<Measured> {
    let server = Postgres::start_with(&[("fsync", "on"), ("full_page_writes", "on")]);
    let cluster = ClusterName::new("bench")?;
    let open = async |unfenced| -> Result<Arc<dyn OplogStore>> {
        let settings = postgres::Settings { unfenced, ..Default::default() };
        let store = PostgresOplogStore::open_with(&server.url(), &cluster, settings).await?;
        Ok(Arc::new(store) as Arc<dyn OplogStore>)
    };
    compared(&open(false).await?, &open(true).await?, 61).await
}

/// `fenced_append_redis`: the same on a server that syncs before each answer.
pub async fn fenced_redis() -> Result<Measured> {
    let server = Redis::start();
    let cluster = ClusterName::new("bench")?;
    let open = async |unfenced| -> Result<Arc<dyn OplogStore>> {
        let settings = redis::Settings { unfenced, ..Default::default() };
        let store = RedisOplogStore::open_with(&server.url(), &cluster, settings).await?;
        Ok(Arc::new(store) as Arc<dyn OplogStore>)
    };
    compared(&open(false).await?, &open(true).await?, 61).await
}

/// `grouped_append_sqlite`: 256 agents at once against one.
pub async fn grouped() -> Result<Measured> {
    let folder = folder()?;
    let store = open(folder.path(), false).await?;
    let mut many = Agents::claim(&*store, "many", 256).await?;
    let mut one = Agents::claim(&*store, "one", 1).await?;
    in_turns(21, async || many.rate(&store, 20).await, async || one.rate(&store, 200).await).await
}

/// Appends of each agent in a round, against as many raw batches of one row per agent.
const APPENDS: u64 = 20;

/// `grouped_append_vs_raw_sqlite`: 256 agents at once against SQLite's own batches of the same bytes.
pub async fn grouped_sqlite() -> Result<Measured> {
    let folder = folder()?;
    let store = open(folder.path(), false).await?;
    let mut raw = RawSqlite::open(folder.path()).await?;
    let mut many = Agents::claim(&*store, "many", raw::ROWS).await?;
    in_turns(21, async || many.rate(&store, APPENDS).await, async || raw.rate(APPENDS as usize).await).await
}

/// `grouped_append_postgres`: the same on a server that syncs every commit.
pub async fn grouped_postgres() -> Result<Measured> {
    let server = Postgres::start_with(&[("fsync", "on"), ("full_page_writes", "on")]);
    let store: Arc<dyn OplogStore> =
        Arc::new(PostgresOplogStore::open(&server.url(), &ClusterName::new("bench")?).await?);
    let mut raw = RawPostgres::open(&server).await?;
    let mut many = Agents::claim(&*store, "many", raw::ROWS).await?;
    in_turns(21, async || many.rate(&store, APPENDS).await, async || raw.rate(APPENDS as usize).await).await
}

/// `grouped_append_redis`: the same on a server that syncs before each answer.
pub async fn grouped_redis() -> Result<Measured> {
    let server = Redis::start();
    let store: Arc<dyn OplogStore> = Arc::new(RedisOplogStore::open(&server.url(), &ClusterName::new("bench")?).await?);
    let mut raw = RawRedis::open(&server).await?;
    let mut many = Agents::claim(&*store, "many", raw::ROWS).await?;
    in_turns(21, async || many.rate(&store, APPENDS).await, async || raw.rate(APPENDS as usize).await).await
}
