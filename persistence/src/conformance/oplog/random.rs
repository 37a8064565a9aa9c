//! Random histories, against a reference that is as plain as the rules.

use super::{Fixture, agent, at, writer};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, EntryKind, Error, NewEntry, OplogStore, Writer};
use leasehold_model::{AgentId, ShardId};
use quickcheck::{Arbitrary, Gen};
use std::collections::BTreeMap;

/// How many random histories are played.
const HISTORIES: u64 = 24;

/// One step of a random history over three agents and four writers, two of which share an epoch.
#[derive(Debug, Clone)]
struct Step {
    agent: u8,
    writer: Writer,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Claim,
    /// At the next index plus this much.
    Append(i8, Vec<NewEntry>),
    Read(u8),
    Find(u8),
    Delete,
    Suspend,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let pick = |g: &mut Gen, from: &[u64]| g.choose(from).copied().unwrap_or(0);
        let writer = match pick(g, &[0, 0, 0, 1, 2, 3]) {
            0 => writer(5, 1),
            1 => writer(5, 2),
            2 => writer(6, 1),
            _ => writer(i64::MAX as u64, 3),
        };
        let what = match pick(g, &[0, 0, 1, 1, 1, 1, 1, 2, 3, 4, 5]) {
            0 => What::Claim,
            1 => {
                let off = g.choose(&[0, 0, 0, 0, 0, 0, -2, -1, 1, 2]).copied().unwrap_or(0);
                let count = pick(g, &[1, 1, 2, 5]);
                let entries = (0..count).map(|_| {
                    let kind = if pick(g, &[0, 1, 2]) == 0 { EntryKind::Snapshot } else { EntryKind::Invocation };
                    let key = pick(g, &[0, 0, 0, 1, 2, 3, 4, 5]);
                    NewEntry { kind, key: (key > 0).then(|| key.to_string()), body: Vec::arbitrary(g) }
                });
                What::Append(off, entries.collect())
            }
            2 => What::Read(u8::arbitrary(g) % 8),
            3 => What::Find(u8::arbitrary(g) % 6),
            4 => What::Delete,
            _ => What::Suspend,
        };
        Self { agent: u8::arbitrary(g) % 3, writer, what }
    }
}

/// The reference: as plain as the rules.
#[derive(Debug, Default)]
struct Reference(BTreeMap<AgentId, Known>);

#[derive(Debug)]
struct Known {
    writer: Writer,
    running: bool,
    deleted: bool,
    next: u64,
    entries: Vec<Entry>,
}

impl Reference {
    fn open(&mut self, agent: &AgentId, offered: Writer) -> Result<&mut Known, Error> {
        let recorded = self.0.get(agent).map(|known| known.writer);
        match self.0.get_mut(agent) {
            Some(known) if known.writer == offered && !known.deleted => Ok(known),
            _ => Err(Error::Fenced { recorded: recorded.filter(|recorded| *recorded != offered), offered }),
        }
    }

    fn claim(&mut self, agent: &AgentId, offered: Writer) -> Result<Claimed, Error> {
        let fresh = Known { writer: offered, running: true, deleted: false, next: 1, entries: Vec::new() };
        let known = self.0.entry(agent.clone()).or_insert(fresh);
        if known.writer.epoch > offered.epoch || (known.writer.epoch == offered.epoch && known.writer != offered) {
            return Err(Error::Fenced { recorded: Some(known.writer), offered });
        }
        (known.writer, known.running, known.deleted) = (offered, true, false);
        let snapshot = known.entries.iter().filter(|e| e.entry.kind == EntryKind::Snapshot).map(|e| e.index).max();
        Ok(Claimed { next: EntryIndex(known.next), snapshot })
    }

    /// `None` stands for "invalid", whose words are the store's own.
    fn append(&mut self, append: &Append) -> Result<Option<EntryIndex>, Error> {
        let keys: Vec<_> = append.entries.iter().filter_map(|e| e.key.as_ref()).collect();
        if append.expected.0 == 0 || keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key)) {
            return Ok(None);
        }
        let known = self.open(&append.agent, append.writer)?;
        if known.next != append.expected.0 {
            return Err(Error::IndexConflict { expected: append.expected, found: EntryIndex(known.next) });
        }
        if known.entries.iter().any(|e| e.entry.key.as_ref().is_some_and(|key| keys.contains(&key))) {
            return Ok(None);
        }
        for entry in &append.entries {
            let index = EntryIndex(known.next);
            known.entries.push(Entry { index, writer: append.writer, entry: entry.clone() });
            known.next += 1;
        }
        Ok(Some(EntryIndex(known.next)))
    }

    fn delete(&mut self, agent: &AgentId, offered: Writer, expected: EntryIndex) -> Result<(), Error> {
        match self.0.get_mut(agent) {
            Some(known) if known.writer == offered && !known.deleted && known.next != expected.0 => {
                Err(Error::IndexConflict { expected, found: EntryIndex(known.next) })
            }
            Some(known) if known.writer == offered => {
                (known.running, known.deleted) = (false, true);
                known.entries.clear();
                Ok(())
            }
            other => Err(Error::Fenced { recorded: other.map(|known| known.writer), offered }),
        }
    }
}

/// Every rule at once, against a reference.
///
/// # Panics
/// With the seed, the step and both answers, when the store differs.
pub async fn random_histories_follow_the_reference(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    for seed in 0..HISTORIES {
        let mut g = Gen::from_size_and_seed(12, seed);
        let mut reference = Reference::default();
        let shard = ShardId(u32::try_from(seed).expect("a small number"));
        for number in 0..60 {
            let step = Step::arbitrary(&mut g);
            let handle = if bool::arbitrary(&mut g) { &store } else { &other };
            let agent = agent(format!("{seed}/{}", step.agent));
            compare(&**handle, &mut reference, (&agent, shard), &step)
                .await
                .unwrap_or_else(|what| panic!("seed {seed}, step {number}, {step:?}: {what}"));
        }
        let running = reference.0.iter().filter(|(_, known)| known.running).map(|(agent, _)| agent.clone());
        assert_eq!(other.running(shard, None, 10).await, Ok(running.collect()), "seed {seed}");
    }
}

async fn compare(
    store: &dyn OplogStore,
    reference: &mut Reference,
    (agent, shard): (&AgentId, ShardId),
    step: &Step,
) -> Result<(), String> {
    let offered = step.writer;
    match &step.what {
        What::Claim => same(store.claim(agent, shard, offered).await, reference.claim(agent, offered))?,
        What::Append(off, entries) => {
            let next = reference.0.get(agent).map_or(1, |known| known.next);
            let append = at(agent, offered, next.saturating_add_signed(i64::from(*off)), entries.clone());
            let outcome = match store.append(append.clone()).await {
                Err(Error::Invalid(_)) => Ok(None),
                other => other.map(Some),
            };
            same(outcome, reference.append(&append))?;
        }
        What::Read(from) => {
            let expected = reference.open(agent, offered).map(|known| known.entries.clone());
            let from = EntryIndex(u64::from(*from));
            let expected = expected.map(|all| all.into_iter().filter(|e| e.index >= from).take(7).collect::<Vec<_>>());
            same(store.read(agent, offered, from, 7).await, expected)?;
        }
        What::Find(key) => {
            let key = key.to_string();
            let expected = reference
                .open(agent, offered)
                .map(|known| known.entries.iter().find(|e| e.entry.key.as_ref() == Some(&key)).cloned());
            same(store.find(agent, offered, &key).await, expected)?;
        }
        What::Delete => {
            let next = reference.0.get(agent).map_or(1, |known| known.next);
            // Now and then it is one that comes late.
            let expected = EntryIndex(if next.is_multiple_of(5) { next - 1 } else { next });
            same(store.delete(agent, offered, expected).await, reference.delete(agent, offered, expected))?;
        }
        What::Suspend => {
            let expected = reference.open(agent, offered).map(|known| known.running = false);
            same(store.suspend(agent, offered).await, expected)?;
        }
    }
    same(store.recorded(agent).await, Ok(reference.0.get(agent).map(|known| known.writer)))
}

fn same<T: PartialEq + std::fmt::Debug>(found: Result<T, Error>, expected: Result<T, Error>) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
}
