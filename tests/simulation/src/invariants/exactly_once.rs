//! Each acknowledged increment counts once: answers are in an order that agrees with time, and at the end every counter is what was
//! acknowledged, in its oplog too.

use super::{Invariant, View};
use crate::world::Event;
use futures::FutureExt;
use leasehold_persistence::OplogStore;
use leasehold_persistence::oplog::{EntryIndex, MemoryOplogStore};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub struct ExactlyOnce {
    oplogs: MemoryOplogStore,
    counters: BTreeMap<String, Counter>,
}

#[derive(Default)]
struct Counter {
    /// The greatest value that was answered.
    known: u64,
    /// That when each operation under way began.
    floors: BTreeMap<String, u64>,
    /// The values that increments were answered, and under which key.
    increments: BTreeMap<u64, String>,
}

impl ExactlyOnce {
    pub fn new(oplogs: MemoryOplogStore) -> Self {
        Self { oplogs, counters: BTreeMap::new() }
    }

    fn stored_keys(&self, agent: &str) -> Vec<String> {
        let agent = agent.parse().expect("a counter's id");
        let recorded = self.oplogs.recorded(&agent).now_or_never().and_then(Result::ok).flatten();
        let read = |writer| self.oplogs.read(&agent, writer, EntryIndex(1), u32::MAX).now_or_never();
        let entries = recorded.and_then(read).and_then(Result::ok).unwrap_or_default();
        entries.into_iter().filter_map(|entry| entry.entry.key).collect()
    }
}

impl Invariant for ExactlyOnce {
    fn id(&self) -> &'static str {
        "exactly once"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::Began { agent, key } => {
                let counter = self.counters.entry(agent.clone()).or_default();
                counter.floors.insert(key.clone(), counter.known);
            }
            Event::Answered { agent, key, value, read } => {
                let counter = self.counters.entry(agent.clone()).or_default();
                let floor = counter.floors.remove(key).unwrap_or_default();
                let stale = if *read { *value < floor } else { *value <= floor };
                if stale {
                    return Err(format!("{agent}: call {key} is answered {value}, {floor} was known before it began"));
                }
                if !*read && let Some(other) = counter.increments.insert(*value, key.clone()) {
                    return Err(format!("{agent}: increments {other} and {key} are both answered {value}"));
                }
                counter.known = counter.known.max(*value);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        for (agent, counter) in &self.counters {
            if !counter.floors.is_empty() {
                return Err(format!("{agent}: {:?} was never answered", counter.floors.keys().collect::<Vec<_>>()));
            }
            let values: Vec<u64> = counter.increments.keys().copied().collect();
            if values != (1..=values.len() as u64).collect::<Vec<_>>() {
                return Err(format!("{agent}: {} increments were answered {values:?}", values.len()));
            }
            let (stored, acknowledged) = (self.stored_keys(agent), counter.increments.values());
            let once: BTreeSet<&String> = stored.iter().collect();
            if once.len() != stored.len() || once != acknowledged.collect() {
                return Err(format!("{agent}: {} entries for {} increments", stored.len(), values.len()));
            }
        }
        Ok(())
    }
}
