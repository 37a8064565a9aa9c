//! The executors' store over a connection.

use super::{Connection, Kind};
use crate::bugs::{self, Around};
use crate::world::{Event, Process, SHARDS, lock};
use async_trait::async_trait;
use leasehold_model::routing::shard_of;
use leasehold_model::{AgentId, ExecutorId, ShardCount, ShardId};
use leasehold_persistence::OplogStore;
use leasehold_persistence::oplog::{Append, Claimed, Entry, EntryIndex, Error, MemoryOplogStore, Writer};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One executor process's way to the oplogs.
pub struct SimOplogs {
    connection: Connection,
    process: Arc<Process>,
    inner: Arc<MemoryOplogStore>,
    /// Where the last append of each agent was to go, while its outcome is unknown.
    unknown: Mutex<BTreeMap<AgentId, EntryIndex>>,
}

/// Who writes, as the store hears it.
fn heard(writer: Writer) -> Writer {
    if bugs::is(Around::EqualEpochClaims) { Writer { executor: ExecutorId::from_u128(1), ..writer } } else { writer }
}

impl SimOplogs {
    /// `process`'s, over `connection`.
    pub fn new(connection: Connection, process: Arc<Process>) -> Self {
        let inner = Arc::new(connection.storage.oplogs.handle());
        Self { connection, process, inner, unknown: Mutex::default() }
    }

    async fn call<T: Send + 'static>(
        &self,
        kind: Kind,
        applied: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let unknown: fn(String) -> Error = if kind == Kind::OplogWrite { Error::Unknown } else { Error::Unavailable };
        let world = Arc::clone(&self.connection.storage.world);
        let counted = async move {
            let outcome = applied.await;
            if matches!(outcome, Err(Error::Fenced { .. })) {
                world.reach(if kind == Kind::OplogWrite {
                    "oplog: a write was fenced"
                } else {
                    "oplog: a read was fenced"
                });
            }
            outcome
        };
        self.connection.call((kind, false), counted, (Error::Unavailable, unknown)).await
    }
}

#[async_trait]
impl OplogStore for SimOplogs {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        let (inner, agent) = (Arc::clone(&self.inner), agent.clone());
        let world = Arc::clone(&self.connection.storage.world);
        let claim = async move {
            let claimed = inner.claim(&agent, shard, heard(writer)).await;
            match &claimed {
                Ok(Claimed { next, .. }) => world.happen(Event::Claimed { agent, writer, next: *next }),
                Err(Error::Fenced { recorded: Some(recorded), .. }) if recorded.epoch == writer.epoch => {
                    world.reach("oplog: an equal epoch of another writer was refused");
                }
                Err(_) => {}
            }
            claimed
        };
        self.call(Kind::OplogWrite, claim).await
    }

    async fn append(&self, mut append: Append) -> Result<EntryIndex, Error> {
        append.writer = heard(append.writer);
        let (inner, world) = (Arc::clone(&self.inner), Arc::clone(&self.connection.storage.world));
        let (whose, at) = (append.agent.clone(), append.expected);
        // Whoever stops waiting does not know either.
        lock(&self.unknown).insert(whose.clone(), at);
        let append = async move {
            let agent = append.agent.clone();
            let keys = append.entries.iter().filter_map(|entry| entry.key.clone()).collect();
            let appended = inner.append(append).await;
            if appended.is_ok() {
                world.happen(Event::Appended { agent, keys });
            }
            appended
        };
        let appended = self.call(Kind::OplogWrite, append).await;
        if !matches!(appended, Err(Error::Unknown(_))) {
            lock(&self.unknown).remove(&whose);
        }
        appended
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        let (inner, whose) = (Arc::clone(&self.inner), agent.clone());
        let read =
            self.call(Kind::OplogRead, async move { inner.read(&whose, heard(writer), from, limit).await }).await;
        if let Ok(entries) = &read
            && lock(&self.unknown).remove(agent) == Some(from)
        {
            let there = if entries.is_empty() { "it was not there" } else { "it was there" };
            self.connection.storage.world.reach(format!("unknown append: {there}"));
        }
        read
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        let shards = ShardCount::new(SHARDS).expect("a small number");
        let admitted = self.process.admits(shard_of(agent, shards)).is_some();
        lock(&self.process.lookups).entry(agent.clone()).or_insert(admitted);
        let (inner, asked, key) = (Arc::clone(&self.inner), agent.clone(), key.to_owned());
        let found = self.call(Kind::OplogRead, async move { inner.find(&asked, heard(writer), &key).await }).await;
        if matches!(found, Ok(Some(_))) {
            lock(&self.process.lookups).remove(agent);
        }
        found
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        let (inner, agent) = (Arc::clone(&self.inner), agent.clone());
        self.call(Kind::OplogWrite, async move { inner.delete(&agent, heard(writer), expected).await }).await
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        let (inner, agent) = (Arc::clone(&self.inner), agent.clone());
        self.call(Kind::OplogWrite, async move { inner.suspend(&agent, heard(writer)).await }).await
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        let (inner, after) = (Arc::clone(&self.inner), after.cloned());
        self.call(Kind::OplogRead, async move { inner.running(shard, after.as_ref(), limit).await }).await
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        let (inner, after) = (Arc::clone(&self.inner), after.cloned());
        self.call(Kind::OplogRead, async move { inner.agents(shard, after.as_ref(), limit).await }).await
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        let (inner, agent) = (Arc::clone(&self.inner), agent.clone());
        self.call(Kind::OplogRead, async move { inner.recorded(&agent).await }).await
    }
}
