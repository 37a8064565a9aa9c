//! An oplog store as somebody else would write one: a map in memory, shared by all handles.

use async_trait::async_trait;
use leasehold::testkit::oplog::{
    AgentId, Append, Claimed, Entry, EntryIndex, EntryKind, Error, Fixture, Gate, OplogStore, ShardEpoch, ShardId,
    Writer,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(PartialEq, Clone, Copy)]
enum Life {
    Suspended,
    Running,
    Deleted,
}

struct Oplog {
    shard: ShardId,
    writer: Writer,
    life: Life,
    base: u64,
    entries: Vec<Entry>,
}

impl Oplog {
    fn next(&self) -> EntryIndex {
        EntryIndex(self.base + self.entries.len() as u64)
    }
}

/// Every handle has the same map.
#[derive(Clone)]
pub struct Outside {
    oplogs: Arc<Mutex<BTreeMap<AgentId, Oplog>>>,
    /// Whether an append is checked against the record: without that the store is broken.
    pub fenced: bool,
    hold: Option<Gate>,
}

impl Outside {
    pub fn new(fenced: bool) -> Self {
        Self { oplogs: Arc::default(), fenced, hold: None }
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<AgentId, Oplog>) -> T) -> T {
        act(&mut self.oplogs.lock().unwrap())
    }

    /// Runs `act` on the oplog if its record is `writer`'s and it lives: the fence, under the lock that the write is made under.
    fn fenced<T>(&self, agent: &AgentId, offered: Writer, act: impl FnOnce(&mut Oplog) -> T) -> Result<T, Error> {
        self.with(|oplogs| match oplogs.get_mut(agent) {
            Some(oplog) if oplog.writer != offered => Err(Error::Fenced { recorded: Some(oplog.writer), offered }),
            Some(oplog) if oplog.life != Life::Deleted => Ok(act(oplog)),
            Some(_) | None => Err(Error::Fenced { recorded: None, offered }),
        })
    }
}

fn add(oplog: &mut Oplog, append: Append) -> Result<EntryIndex, Error> {
    if oplog.next() != append.expected {
        return Err(Error::IndexConflict { expected: append.expected, found: oplog.next() });
    }
    let there = |key| oplog.entries.iter().any(|entry| entry.entry.key.as_ref() == Some(key));
    if let Some(key) = append.entries.iter().filter_map(|entry| entry.key.as_ref()).find(|key| there(key)) {
        return Err(Error::Invalid(format!("idempotency key {key:?} is in the oplog already")));
    }
    for entry in append.entries {
        let index = oplog.next();
        oplog.entries.push(Entry { index, writer: append.writer, entry });
    }
    Ok(oplog.next())
}

#[async_trait]
impl OplogStore for Outside {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        if writer.epoch == ShardEpoch::NEVER_OWNED {
            return Err(Error::Invalid("epoch 0 owns nothing".into()));
        }
        self.with(|oplogs| {
            let fresh = || Oplog { shard, writer, life: Life::Running, base: 1, entries: Vec::new() };
            let oplog = oplogs.entry(agent.clone()).or_insert_with(fresh);
            if !writer.may_claim(Some(oplog.writer)) {
                return Err(Error::Fenced { recorded: Some(oplog.writer), offered: writer });
            }
            (oplog.shard, oplog.writer, oplog.life) = (shard, writer, Life::Running);
            let snapshots = oplog.entries.iter().rev().find(|entry| entry.entry.kind == EntryKind::Snapshot);
            Ok(Claimed { next: oplog.next(), snapshot: snapshots.map(|entry| entry.index) })
        })
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        append.check()?;
        if let Some(gate) = &self.hold {
            gate.pass().await;
        }
        let agent = append.agent.clone();
        if !self.fenced {
            let absent = Err(Error::Fenced { recorded: None, offered: append.writer });
            return self.with(|oplogs| oplogs.get_mut(&agent).map_or(absent, |oplog| add(oplog, append)));
        }
        self.fenced(&agent, append.writer, |oplog| add(oplog, append))?
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.fenced(agent, writer, |oplog| {
            let entries = oplog.entries.iter().filter(|entry| entry.index >= from);
            entries.take(limit as usize).cloned().collect()
        })
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        self.fenced(agent, writer, |oplog| {
            oplog.entries.iter().find(|entry| entry.entry.key.as_deref() == Some(key)).cloned()
        })
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        let deleted = self.fenced(agent, writer, |oplog| {
            if oplog.next() != expected {
                return Err(Error::IndexConflict { expected, found: oplog.next() });
            }
            (oplog.base, oplog.life) = (oplog.next().0, Life::Deleted);
            oplog.entries.clear();
            Ok(())
        });
        match deleted {
            // Deleting what is deleted is fine, for whoever holds the record.
            Err(Error::Fenced { recorded: None, .. }) if self.recorded(agent).await? == Some(writer) => Ok(()),
            Err(error) => Err(error),
            Ok(deleted) => deleted,
        }
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        self.fenced(agent, writer, |oplog| oplog.life = Life::Suspended)
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        let agents = self.agents(shard, after, u32::MAX).await?;
        Ok(agents.into_iter().filter(|(_, runs)| *runs).map(|(agent, _)| agent).take(limit as usize).collect())
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        self.with(|oplogs| {
            let living = oplogs.iter().filter(|(_, oplog)| oplog.shard == shard && oplog.life != Life::Deleted);
            let later = living.filter(|(agent, _)| after.is_none_or(|after| *agent > after));
            Ok(later.take(limit as usize).map(|(agent, oplog)| (agent.clone(), oplog.life == Life::Running)).collect())
        })
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        Ok(self.with(|oplogs| oplogs.get(agent).map(|oplog| oplog.writer)))
    }
}

/// How the suite gets at it.
#[async_trait]
impl Fixture for Outside {
    async fn open(&self) -> Arc<dyn OplogStore> {
        Arc::new(self.clone())
    }

    async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
        Arc::new(Self { hold: Some(gate), ..self.clone() })
    }
}
