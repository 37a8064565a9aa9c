//! What an observer of everything remembers, and the invariants that it holds against what is told and stored.
//!
//! Written from the invariants' wording, apart from the protocol: nothing here asks a leader or a holder what it thinks.

use leasehold_model::commits::WriteEnd;
use leasehold_model::oplog::Writer;
use leasehold_model::set::Holdings;
use leasehold_model::state::ClusterState;
use leasehold_model::{ExecutorId, ManagerId, Revision, ShardEpoch, ShardId, ShardSet};
use std::collections::{BTreeMap, BTreeSet};

/// An invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Two executors admit work for one shard.
    S1,
    /// Two executors were told one shard at one epoch.
    S2,
    /// An epoch fell.
    S3,
    /// Something was told that was not stored at the revision that it names.
    S4,
    /// An executor's copy of a lease outlives the manager's.
    S5,
    /// A stale owner wrote.
    S6,
    /// An acknowledged registration was lost.
    S7,
    /// A leader misjudged how a write of its own ended.
    Outcome,
    /// Two managers lead at once.
    OneLeader,
    /// A shard is admitted while its last owner, whose lease runs, is still stopping its agents (R20, R26).
    HandOff,
    /// The shipped code found an invariant of its own broken and stopped.
    Panic,
    /// Faults stopped, and a shard was not served again in time.
    L1,
}

impl Rule {
    /// Its id, in short.
    #[must_use]
    pub fn id(self) -> String {
        let text = self.text();
        text.split_once(':').map_or_else(|| format!("{self:?}"), |(id, _)| id.to_owned())
    }

    /// The invariant's id and sentence, as the table says it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::S1 => "S1: one executor at most admits work for a shard",
            Self::S2 => "S2: a shard at an epoch is told to one executor only",
            Self::S3 => "S3: a shard's epoch never falls",
            Self::S4 => "S4: what is told was stored before",
            Self::S5 => "S5: the executor's copy of a lease ends first",
            Self::S6 => "S6: a stale owner cannot write",
            Self::S7 => "S7: an acknowledged registration survives",
            Self::Outcome => "no leader misjudges how a write of its own ended",
            Self::OneLeader => "R7: one process at most leads, by the clocks of all",
            Self::HandOff => "R20, R26: the last owner's agents have stopped before the next one admits",
            Self::Panic => "the shipped code finds its own invariants whole",
            Self::L1 => "L1: once faults stop, every shard is served",
        }
    }
}

/// A broken invariant, with the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub rule: Rule,
    /// The ids and numbers.
    pub evidence: String,
}

/// What the observer remembers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Truth {
    /// To whom each shard was told, or stored as owned, at each epoch.
    owners: BTreeMap<(ShardId, ShardEpoch), ExecutorId>,
    /// The greatest epoch ever stored of each shard.
    highest: BTreeMap<ShardId, ShardEpoch>,
    /// Who owned what at each stored revision.
    history: BTreeMap<Revision, Vec<(ShardId, ShardEpoch, ExecutorId)>>,
    /// Lives whose registration was acknowledged.
    acknowledged: BTreeSet<ExecutorId>,
    /// Lives that a stored write removed.
    removed: BTreeSet<ExecutorId>,
    /// Writes that their managers have taken as not stored, for good.
    refused: BTreeSet<(ManagerId, u8)>,
    /// The greatest epoch that ever claimed each oplog.
    claimed: BTreeMap<ShardId, ShardEpoch>,
    /// The store was wiped: another world, of which only S6 is promised across the border (R40).
    pub(crate) wiped: bool,
}

fn breach(rule: Rule, evidence: String) -> Result<(), Breach> {
    Err(Breach { rule, evidence })
}

impl Truth {
    fn own(&mut self, shard: ShardId, epoch: ShardEpoch, executor: ExecutorId) -> Result<(), Breach> {
        let first = *self.owners.entry((shard, epoch)).or_insert(executor);
        if first == executor {
            return Ok(());
        }
        breach(Rule::S2, format!("shard {shard} at epoch {epoch} belongs to {first}, and now to {executor}"))
    }

    /// A write was stored.
    pub(crate) fn stored(
        &mut self,
        state: &ClusterState,
        removed: impl IntoIterator<Item = ExecutorId>,
    ) -> Result<(), Breach> {
        if self.wiped {
            return Ok(());
        }
        self.removed.extend(removed);
        let mut owned = Vec::new();
        for (shard, row) in state.shards() {
            let highest = self.highest.entry(shard).or_default();
            if row.epoch < *highest {
                return breach(
                    Rule::S3,
                    format!("shard {shard} was stored at epoch {highest}, and now at {}", row.epoch),
                );
            }
            *highest = row.epoch;
            if let Some(owner) = row.state.owner() {
                self.own(shard, row.epoch, owner)?;
                owned.push((shard, row.epoch, owner));
            }
        }
        if let Some(before) = self.history.insert(state.revision, owned.clone())
            && before != owned
        {
            return breach(Rule::S4, format!("revision {} was stored twice, differently", state.revision));
        }
        self.registered(state)
    }

    /// A manager takes its write as ended, with it `stored` or not.
    pub(crate) fn judged(&mut self, write: (ManagerId, u8), end: &WriteEnd, stored: bool) -> Result<(), Breach> {
        let fits = match end {
            WriteEnd::Applied => stored,
            WriteEnd::Refused(_) => !stored,
            WriteEnd::Lost(_) => return Ok(()),
        };
        if !fits && !self.wiped {
            let what = if stored { "is stored" } else { "is not stored" };
            return breach(Rule::Outcome, format!("write {} of {} {what}, and taken as {end:?}", write.1, write.0));
        }
        if !stored {
            self.refused.insert(write);
        }
        Ok(())
    }

    /// A write reaches the store and is taken.
    pub(crate) fn landed(&self, write: (ManagerId, u8)) -> Result<(), Breach> {
        if self.refused.contains(&write) && !self.wiped {
            return breach(Rule::Outcome, format!("write {} of {} was taken as refused, and lands", write.1, write.0));
        }
        Ok(())
    }

    /// The leader says that it does not know `id`.
    pub(crate) fn unknown(&self, id: ExecutorId) -> Result<(), Breach> {
        if self.acknowledged.contains(&id) && !self.removed.contains(&id) && !self.wiped {
            return breach(Rule::S7, format!("{id} was acknowledged, never removed, and is unknown to the leader"));
        }
        Ok(())
    }

    /// S7, of a stored state.
    fn registered(&self, state: &ClusterState) -> Result<(), Breach> {
        let kept = |id: &&ExecutorId| self.removed.contains(id) || state.executor(**id).is_some();
        match self.acknowledged.iter().find(|id| !kept(id)) {
            None => Ok(()),
            Some(lost) => breach(Rule::S7, format!("{lost} was acknowledged, never removed, and is not stored")),
        }
    }

    /// A set leaves a manager.
    pub(crate) fn told(&mut self, to: ExecutorId, set: &ShardSet) -> Result<(), Breach> {
        if self.wiped {
            return Ok(());
        }
        for (shard, epoch) in set.shards.iter() {
            self.own(shard, epoch, to)?;
        }
        if set.revision == Revision(0) && set.shards.is_empty() {
            return Ok(());
        }
        let Some(stored) = self.history.get(&set.revision) else {
            return breach(Rule::S4, format!("{to} is told of revision {}, which is not stored", set.revision));
        };
        let theirs = stored.iter().filter(|(.., owner)| *owner == to).map(|(shard, epoch, _)| (*shard, *epoch));
        if Holdings::new(theirs.collect()).is_ok_and(|theirs| theirs == set.shards) {
            return Ok(());
        }
        breach(Rule::S4, format!("{to} is told {:?} of revision {}, which has {stored:?}", set.shards, set.revision))
    }

    /// A registration is acknowledged, with `state` stored.
    pub(crate) fn acknowledge(&mut self, id: ExecutorId, state: &ClusterState) -> Result<(), Breach> {
        if self.wiped {
            return Ok(());
        }
        self.acknowledged.insert(id);
        self.registered(state)
    }

    /// An oplog's record was taken over (F4).
    pub(crate) fn claimed(&mut self, shard: ShardId, by: Writer) -> Result<(), Breach> {
        let highest = self.claimed.entry(shard).or_default();
        if by.epoch < *highest {
            return breach(Rule::S6, format!("the record of shard {shard} fell from epoch {highest} to {}", by.epoch));
        }
        *highest = by.epoch;
        Ok(())
    }

    /// An entry was stored after `entries`: never under an epoch that a later owner has passed, and one writer for each epoch.
    pub(crate) fn appended(&self, shard: ShardId, entries: &[Writer], by: Writer) -> Result<(), Breach> {
        let highest = self.claimed.get(&shard).copied().unwrap_or_default();
        if by.epoch < highest {
            return breach(
                Rule::S6,
                format!("shard {shard}: {by:?} wrote after epoch {highest} had claimed the oplog"),
            );
        }
        match entries.iter().find(|entry| entry.epoch == by.epoch && entry.executor != by.executor) {
            None => Ok(()),
            Some(other) => breach(Rule::S6, format!("shard {shard}: {other:?} and {by:?} wrote under one epoch")),
        }
    }

    /// R40: the store is another from now on.
    pub(crate) fn wipe(&mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        *self = Self { claimed, wiped: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::{Rule, Truth};
    use crate::state::executor_id;
    use leasehold_model::ShardSet;
    use leasehold_model::set::Holdings;
    use leasehold_model::state::{ClusterState, Executor, Head, Shard, ShardState};
    use leasehold_model::{
        Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, ManagerId, Revision, ShardCount, ShardEpoch,
        ShardId, Ttl,
    };

    const A: ExecutorId = executor_id(0, 1);
    const B: ExecutorId = executor_id(1, 1);

    fn epoch(number: u64) -> ShardEpoch {
        ShardEpoch::new(number).expect("a valid epoch")
    }

    fn executor(name: &str) -> Executor {
        Executor {
            name: ExecutorName::new(name).expect("a valid name"),
            address: Address::new(format!("{name}:1")).expect("a valid address"),
            zone: None,
            weight: Default::default(),
            lease_length: Ttl::from_ms(3000).expect("a valid lease"),
            key_hash: LeaseKeyHash([0; 32]),
            draining: false,
            superseded: false,
            registered_at_ms: 0,
        }
    }

    /// Shard 0 owned by `owner` at an epoch, among those who are `here`.
    fn state(revision: u64, (owner, at): (ExecutorId, u64), here: &[(ExecutorId, &str)]) -> ClusterState {
        let cluster = ClusterName::new("model").expect("a valid name");
        let shard_count = ShardCount::new(1).expect("a valid count");
        let head = Head { cluster, shard_count, revision: Revision(revision) };
        let row = Shard { epoch: epoch(at), state: ShardState::Owned(owner) };
        let executors = here.iter().map(|(id, name)| (*id, executor(name)));
        ClusterState::from_rows(head, [(ShardId(0), row)], executors).expect("it is whole")
    }

    const BOTH: &[(ExecutorId, &str)] = &[(A, "a"), (B, "b")];

    fn rule(result: Result<(), super::Breach>) -> Option<Rule> {
        result.err().map(|breach| breach.rule)
    }

    #[test]
    fn an_epoch_of_two_owners_is_seen() {
        let mut truth = Truth::default();
        assert_eq!(rule(truth.stored(&state(1, (A, 1), BOTH), [])), None);
        assert_eq!(rule(truth.stored(&state(2, (B, 1), BOTH), [])), Some(Rule::S2));
    }

    #[test]
    fn an_epoch_that_falls_is_seen() {
        let mut truth = Truth::default();
        assert_eq!(rule(truth.stored(&state(1, (A, 2), BOTH), [])), None);
        assert_eq!(rule(truth.stored(&state(2, (B, 1), BOTH), [])), Some(Rule::S3));
    }

    #[test]
    fn a_set_that_is_not_what_its_revision_stored_is_seen() {
        let mut truth = Truth::default();
        assert_eq!(rule(truth.stored(&state(1, (A, 1), BOTH), [])), None);
        let told = |revision, shards: Vec<(ShardId, ShardEpoch)>| ShardSet {
            manager: ManagerId::from_u128(1),
            revision: Revision(revision),
            shard_count: ShardCount::new(1).expect("a valid count"),
            shards: Holdings::new(shards).expect("each once"),
        };
        assert_eq!(rule(truth.told(A, &told(1, vec![(ShardId(0), epoch(1))]))), None);
        assert_eq!(rule(truth.told(A, &told(1, vec![]))), Some(Rule::S4));
        assert_eq!(rule(truth.told(A, &told(2, vec![(ShardId(0), epoch(1))]))), Some(Rule::S4));
    }

    #[test]
    fn an_acknowledged_registration_that_is_gone_or_unknown_is_seen() {
        let both = state(1, (A, 1), BOTH);
        let without = state(2, (A, 1), &[(A, "a")]);
        let mut truth = Truth::default();
        assert_eq!(rule(truth.acknowledge(B, &both)), None);
        assert_eq!(rule(truth.unknown(B)), Some(Rule::S7));
        assert_eq!(rule(truth.clone().stored(&without, [B])), None, "it was removed");
        assert_eq!(rule(truth.stored(&without, [])), Some(Rule::S7));
    }
}
