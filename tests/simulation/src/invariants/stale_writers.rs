//! S6: a stale owner cannot write. Read from the oplogs themselves: indexes without a gap, epochs that never fall, one writer per
//! epoch, and nothing of an older writer behind the place where a newer one claimed.

use super::{Invariant, View};
use crate::world::Event;
use futures::FutureExt;
use leasehold_model::AgentId;
use leasehold_persistence::OplogStore;
use leasehold_persistence::oplog::{Entry, EntryIndex, MemoryOplogStore, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub struct StaleWriters {
    oplogs: MemoryOplogStore,
    seen: BTreeMap<AgentId, Seen>,
    touched: BTreeSet<AgentId>,
}

#[derive(Default)]
struct Seen {
    last: Option<(EntryIndex, Writer)>,
    /// The latest claim, and the index from which on nobody older may stand.
    claim: Option<(Writer, EntryIndex)>,
    /// Those before it of which entries may still be unread.
    earlier: Vec<(Writer, EntryIndex)>,
}

impl StaleWriters {
    pub fn new(oplogs: MemoryOplogStore) -> Self {
        Self { oplogs, seen: BTreeMap::new(), touched: BTreeSet::new() }
    }

    /// What was written to `agent` since it was last looked at.
    fn fresh(&self, agent: &AgentId, from: EntryIndex) -> Vec<Entry> {
        let recorded = self.oplogs.recorded(agent).now_or_never().and_then(Result::ok).flatten();
        let read = |writer| self.oplogs.read(agent, writer, from, u32::MAX).now_or_never().and_then(Result::ok);
        recorded.and_then(read).unwrap_or_default()
    }
}

impl Seen {
    fn claimed(&mut self, agent: &AgentId, writer: Writer, next: EntryIndex) -> Result<(), String> {
        match self.claim {
            Some((before, _)) if writer.epoch < before.epoch => {
                return Err(format!("{agent}: claimed at epoch {} after epoch {}", writer.epoch, before.epoch));
            }
            Some((before, _)) if writer.epoch == before.epoch && writer.executor != before.executor => {
                return Err(format!("{agent}: claimed at epoch {} by two executors", writer.epoch));
            }
            Some((before, _)) if writer == before => {}
            before => {
                self.earlier.extend(before);
                self.claim = Some((writer, next));
            }
        }
        Ok(())
    }

    fn read(&mut self, agent: &AgentId, entry: &Entry) -> Result<(), String> {
        let (index, writer) = (entry.index, entry.writer);
        if let Some((last, by)) = self.last {
            if index.0 != last.0 + 1 {
                return Err(format!("{agent}: entry {} follows entry {}", index.0, last.0));
            }
            if writer.epoch < by.epoch || (writer.epoch == by.epoch && writer.executor != by.executor) {
                return Err(format!("{agent}: entry {} by {writer:?} follows one by {by:?}", index.0));
            }
        }
        self.last = Some((index, writer));
        if let Some((claim, from)) = self.claim.filter(|(claim, from)| index >= *from && writer != *claim) {
            return Err(format!("{agent}: {writer:?} wrote entry {}, {claim:?} had claimed from {}", index.0, from.0));
        }
        if !self.earlier.iter().chain(&self.claim).any(|(claim, _)| *claim == writer) {
            return Err(format!("{agent}: {writer:?} wrote entry {} without a claim", index.0));
        }
        Ok(())
    }
}

impl Invariant for StaleWriters {
    fn id(&self) -> &'static str {
        "S6"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::Claimed { agent, writer, next } => {
                self.touched.insert(agent.clone());
                self.seen.entry(agent.clone()).or_default().claimed(agent, *writer, *next)
            }
            Event::Appended { agent, .. } => {
                self.touched.insert(agent.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn look(&mut self, _: &View) -> Result<(), String> {
        for agent in std::mem::take(&mut self.touched) {
            let from = self.seen.get(&agent).and_then(|seen| seen.last).map_or(1, |(last, _)| last.0 + 1);
            let fresh = self.fresh(&agent, EntryIndex(from));
            let seen = self.seen.entry(agent.clone()).or_default();
            fresh.iter().try_for_each(|entry| seen.read(&agent, entry))?;
            seen.earlier.clear();
        }
        Ok(())
    }
}
