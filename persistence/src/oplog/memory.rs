//! Oplogs in memory, with scriptable faults: for tests and simulations.
//!
//! A [`MemoryOplogStore`] is one process's handle; [`MemoryOplogStore::handle`] makes another on the same data with
//! faults and counters of its own. Time is tokio's, so that a paused clock drives the delays.

mod chunks;
mod fault;

pub use fault::Fault;
pub(crate) use fault::carried_out;

use super::layers::{Chunk, Found, Page};
use super::{Append, Claimed, Entry, EntryIndex, EntryKind, Error, OplogStore, Writer, check_writer, key_taken};
use async_trait::async_trait;
use leasehold_model::{AgentId, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The calls that a fault can be scripted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// [`OplogStore::claim`]
    Claim,
    /// [`OplogStore::append`]
    Append,
    /// [`OplogStore::read`]
    Read,
    /// [`OplogStore::find`]
    Find,
    /// [`OplogStore::delete`]
    Delete,
    /// [`OplogStore::suspend`]
    Suspend,
    /// [`OplogStore::running`]
    Running,
    /// [`OplogStore::agents`]
    Agents,
    /// [`OplogStore::recorded`]
    Recorded,
    /// [`super::layers::ChunkStore::move_out`]
    MoveOut,
    /// [`super::layers::ChunkStore::page`], where it is not part of a read
    Page,
    /// [`super::layers::ChunkStore::chunks`]
    Chunks,
    /// [`super::layers::ChunkStore::look_up`], where it is not part of [`OplogStore::find`]
    LookUp,
    /// [`super::layers::ChunkStore::listing`]
    Listing,
}

/// What a handle was asked and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that arrived, by kind.
    pub calls: BTreeMap<Call, u64>,
    /// Entries written.
    pub entries: u64,
    /// Calls refused as fenced.
    pub fenced: u64,
    /// Faults used up.
    pub faults: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Suspended,
    Running,
    Deleted,
}

#[derive(Debug)]
struct Oplog {
    shard: ShardId,
    writer: Writer,
    life: Life,
    /// The first index of the present life.
    base: u64,
    /// Without gaps from `base` on.
    chunks: Vec<Chunk>,
    /// Of this life's entries, wherever they are.
    keys: BTreeMap<String, EntryIndex>,
    snapshot: Option<EntryIndex>,
    /// The primary layer.
    entries: Vec<Entry>,
}

impl Oplog {
    fn primary_from(&self) -> u64 {
        self.chunks.last().map_or(self.base, |chunk| chunk.last.0 + 1)
    }

    fn next(&self) -> EntryIndex {
        EntryIndex(self.primary_from() + self.entries.len() as u64)
    }

    /// Whether `append` may be written; then what is known of its entries wherever they go is.
    fn admit(&mut self, append: &Append) -> Result<(), Error> {
        if self.next() != append.expected {
            return Err(Error::IndexConflict { expected: append.expected, found: self.next() });
        }
        if let Some(key) = append.entries.iter().filter_map(|e| e.key.as_ref()).find(|key| self.keys.contains_key(*key))
        {
            return Err(key_taken(key));
        }
        for (entry, at) in append.entries.iter().zip(append.expected.0..) {
            if let Some(key) = &entry.key {
                self.keys.insert(key.clone(), EntryIndex(at));
            }
            if entry.kind == EntryKind::Snapshot {
                self.snapshot = Some(EntryIndex(at));
            }
        }
        Ok(())
    }

    fn page(&self, from: EntryIndex, limit: u32) -> Page {
        let entries = self.entries.iter().filter(|e| e.index >= from).take(limit as usize).cloned().collect();
        Page { first: EntryIndex(self.base), primary_from: EntryIndex(self.primary_from()), entries }
    }

    fn look_up(&self, key: &str) -> Option<Found> {
        let at = *self.keys.get(key)?;
        let entry = self.entries.iter().find(|entry| entry.index == at);
        Some(entry.map_or(Found::Archived(at), |entry| Found::Entry(entry.clone())))
    }
}

#[derive(Debug, Default)]
struct Script {
    faults: VecDeque<(Call, Fault)>,
    counts: Counts,
}

/// A handle; see the module's documentation.
#[derive(Debug, Default)]
pub struct MemoryOplogStore {
    oplogs: Arc<Mutex<BTreeMap<AgentId, Oplog>>>,
    script: Mutex<Script>,
}

/// Nothing is left half changed by a panic here: every change is complete before the guard goes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryOplogStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another process's handle on the same oplogs.
    #[must_use]
    pub fn handle(&self) -> Self {
        Self { oplogs: Arc::clone(&self.oplogs), script: Mutex::default() }
    }

    /// The next `call` through this handle meets `fault`. Faults of a kind queue up, one per call.
    pub fn script(&self, call: Call, fault: Fault) {
        lock(&self.script).faults.push_back((call, fault));
    }

    /// What came through this handle so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        lock(&self.script).counts.clone()
    }

    fn arrive(&self, call: Call) -> Option<Fault> {
        let mut script = lock(&self.script);
        *script.counts.calls.entry(call).or_default() += 1;
        let at = script.faults.iter().position(|(on, _)| *on == call)?;
        script.counts.faults += 1;
        script.faults.remove(at).map(|(_, fault)| fault)
    }

    /// Applies `change` as the scripted fault for `call` says.
    async fn perform<T>(
        &self,
        call: Call,
        change: impl FnOnce(&mut BTreeMap<AgentId, Oplog>) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let fault = self.arrive(call);
        let applied = async {
            let outcome = change(&mut lock(&self.oplogs));
            if matches!(outcome, Err(Error::Fenced { .. })) {
                lock(&self.script).counts.fenced += 1;
            }
            outcome
        };
        carried_out(fault, applied).await
    }
}

/// The oplog, if `writer` may write it and it is not deleted.
fn open<'a>(
    oplogs: &'a mut BTreeMap<AgentId, Oplog>,
    agent: &AgentId,
    offered: Writer,
) -> Result<&'a mut Oplog, Error> {
    match oplogs.get_mut(agent) {
        None => Err(Error::Fenced { recorded: None, offered }),
        Some(oplog) if !offered.may_write(Some(oplog.writer)) => {
            Err(Error::Fenced { recorded: Some(oplog.writer), offered })
        }
        Some(oplog) if oplog.life == Life::Deleted => Err(Error::Fenced { recorded: None, offered }),
        Some(oplog) => Ok(oplog),
    }
}

fn take(oplog: &mut Oplog, shard: ShardId, offered: Writer) -> Result<Claimed, Error> {
    if !offered.may_claim(Some(oplog.writer)) {
        return Err(Error::Fenced { recorded: Some(oplog.writer), offered });
    }
    oplog.writer = offered;
    oplog.shard = shard;
    oplog.life = Life::Running;
    Ok(Claimed { next: oplog.next(), snapshot: oplog.snapshot })
}

fn extend(oplog: &mut Oplog, append: Append) -> Result<EntryIndex, Error> {
    oplog.admit(&append)?;
    for entry in append.entries {
        let index = oplog.next();
        oplog.entries.push(Entry { index, writer: append.writer, entry });
    }
    Ok(oplog.next())
}

#[async_trait]
impl OplogStore for MemoryOplogStore {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        check_writer(writer)?;
        self.perform(Call::Claim, |oplogs| {
            let fresh = || Oplog {
                shard,
                writer,
                life: Life::Running,
                base: 1,
                chunks: Vec::new(),
                keys: BTreeMap::new(),
                snapshot: None,
                entries: Vec::new(),
            };
            take(oplogs.entry(agent.clone()).or_insert_with(fresh), shard, writer)
        })
        .await
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        append.check()?;
        let count = append.entries.len() as u64;
        self.perform(Call::Append, |oplogs| {
            let next = extend(open(oplogs, &append.agent.clone(), append.writer)?, append)?;
            lock(&self.script).counts.entries += count;
            Ok(next)
        })
        .await
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.perform(Call::Read, |oplogs| open(oplogs, agent, writer)?.page(from, limit).primary_only(agent, from))
            .await
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        self.perform(Call::Find, |oplogs| {
            let found = open(oplogs, agent, writer)?.look_up(key);
            found.map(|found| found.primary_only(agent)).transpose()
        })
        .await
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        self.perform(Call::Delete, |oplogs| match oplogs.get_mut(agent) {
            Some(oplog)
                if writer.may_write(Some(oplog.writer)) && oplog.life != Life::Deleted && oplog.next() != expected =>
            {
                Err(Error::IndexConflict { expected, found: oplog.next() })
            }
            Some(oplog) if writer.may_write(Some(oplog.writer)) => {
                oplog.base = oplog.next().0;
                oplog.chunks.clear();
                oplog.keys.clear();
                oplog.snapshot = None;
                oplog.entries.clear();
                oplog.life = Life::Deleted;
                Ok(())
            }
            other => Err(Error::Fenced { recorded: other.map(|oplog| oplog.writer), offered: writer }),
        })
        .await
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        self.perform(Call::Suspend, |oplogs| {
            open(oplogs, agent, writer)?.life = Life::Suspended;
            Ok(())
        })
        .await
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        self.perform(Call::Running, |oplogs| {
            let here = oplogs.iter().filter(|(_, oplog)| oplog.shard == shard && oplog.life == Life::Running);
            let beyond = here.map(|(agent, _)| agent).filter(|agent| after.is_none_or(|after| *agent > after));
            Ok(beyond.take(limit as usize).cloned().collect())
        })
        .await
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        self.perform(Call::Agents, |oplogs| {
            let here = oplogs.iter().filter(|(_, oplog)| oplog.shard == shard && oplog.life != Life::Deleted);
            let beyond = here.filter(|(agent, _)| after.is_none_or(|after| *agent > after));
            Ok(beyond.take(limit as usize).map(|(agent, o)| (agent.clone(), o.life == Life::Running)).collect())
        })
        .await
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        self.perform(Call::Recorded, |oplogs| Ok(oplogs.get(agent).map(|oplog| oplog.writer))).await
    }
}
