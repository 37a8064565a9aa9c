//! The stored state of a cluster. Changed only by [`crate::command`]; checked after every change.

use crate::command::Changes;
use crate::ids::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Revision, ShardCount, ShardEpoch, ShardId,
};
use crate::message::{Owner, ShardTotals, Weight};
use crate::set::Holdings;
use crate::time::Ttl;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Who has a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// Nobody.
    Unassigned,
    /// This executor may admit work for it.
    Owned(ExecutorId),
    /// This executor was told to let go and may still be admitting work for it.
    Releasing {
        /// Who lets go.
        from: ExecutorId,
        /// The revision of the commit that took it out of its set (R26).
        since: Revision,
    },
}

impl ShardState {
    /// The executor in whose set the shard is.
    #[must_use]
    pub const fn owner(&self) -> Option<ExecutorId> {
        match self {
            Self::Owned(executor) => Some(*executor),
            Self::Unassigned | Self::Releasing { .. } => None,
        }
    }

    /// The executor that may still be using the shard.
    #[must_use]
    pub const fn executor(&self) -> Option<ExecutorId> {
        match self {
            Self::Unassigned => None,
            Self::Owned(executor) | Self::Releasing { from: executor, .. } => Some(*executor),
        }
    }
}

/// One shard's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shard {
    /// The greatest epoch ever minted for it.
    pub epoch: ShardEpoch,
    /// Who has it.
    pub state: ShardState,
}

impl Shard {
    const NEW: Self = Self { epoch: ShardEpoch::NEVER_OWNED, state: ShardState::Unassigned };
}

/// One executor's row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Executor {
    /// Stable across restarts; of all lives with this name at most one is not superseded.
    pub name: ExecutorName,
    /// Where it is dialled.
    pub address: Address,
    /// Failure domain, if any.
    pub zone: Option<String>,
    /// Its share relative to others.
    pub weight: Weight,
    /// The longest lease that may still be outstanding to it (R6).
    pub lease_length: Ttl,
    /// Hash of its secret.
    pub key_hash: LeaseKeyHash,
    /// Asked to leave: it is given nothing.
    pub draining: bool,
    /// A newer life has its name: it is granted no more (R35).
    pub superseded: bool,
    /// Unix milliseconds, for showing only.
    pub registered_at_ms: i64,
}

impl Executor {
    /// Whether placement may give it shards.
    #[must_use]
    pub const fn takes_shards(&self) -> bool {
        !self.draining && !self.superseded
    }
}

/// How many shards share one copy-on-write chunk (and one key, in stores that keep chunks).
pub const CHUNK: usize = 1024;

/// All shards in copy-on-write chunks: a copy of the state shares what did not change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shards(Vec<Arc<Vec<Shard>>>);

impl Shards {
    fn new(count: ShardCount) -> Self {
        let count = count.get() as usize;
        let full = Arc::new(vec![Shard::NEW; CHUNK.min(count)]);
        let chunks = count.div_ceil(CHUNK);
        let chunk = |at: usize| {
            let len = CHUNK.min(count - at * CHUNK);
            if len == full.len() { Arc::clone(&full) } else { Arc::new(vec![Shard::NEW; len]) }
        };
        Self((0..chunks).map(chunk).collect())
    }

    /// The row of `shard`, if there is such a shard.
    #[must_use]
    pub fn at(&self, shard: ShardId) -> Option<&Shard> {
        self.0.get(shard.index() / CHUNK)?.get(shard.index() % CHUNK)
    }

    pub(crate) fn at_mut(&mut self, shard: ShardId) -> Option<&mut Shard> {
        Arc::make_mut(self.0.get_mut(shard.index() / CHUNK)?).get_mut(shard.index() % CHUNK)
    }

    /// Every shard, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, &Shard)> {
        (0u32..).map(ShardId).zip(self.0.iter().flat_map(|chunk| chunk.iter()))
    }
}

/// The committed state of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterState {
    /// The cluster's name.
    pub cluster: ClusterName,
    /// Fixed when the store was first written.
    pub shard_count: ShardCount,
    /// Counts commits.
    pub revision: Revision,
    pub(crate) shards: Shards,
    pub(crate) executors: BTreeMap<ExecutorId, Arc<Executor>>,
}

/// A stored or computed state that breaks an invariant; says which and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {evidence}")]
pub struct Broken {
    /// Which invariant.
    pub invariant: &'static str,
    /// The ids and numbers.
    pub evidence: String,
}

impl ClusterState {
    /// A new cluster: no executor, every shard unassigned at epoch 0, revision 0 (nothing committed yet).
    #[must_use]
    pub fn empty(cluster: ClusterName, shard_count: ShardCount) -> Self {
        Self {
            cluster,
            shard_count,
            revision: Revision(0),
            shards: Shards::new(shard_count),
            executors: BTreeMap::new(),
        }
    }

    /// Puts a state together from stored rows. Shards without a row are unassigned at epoch 0.
    ///
    /// # Errors
    /// Says which row breaks which invariant.
    pub fn from_rows(
        head: Head,
        shards: impl IntoIterator<Item = (ShardId, Shard)>,
        executors: impl IntoIterator<Item = (ExecutorId, Executor)>,
    ) -> Result<Self, Broken> {
        let mut rows = StateRows::new(head);
        for (shard, row) in shards {
            rows.shard(shard, row)?;
        }
        for (id, row) in executors {
            rows.executor(id, row);
        }
        rows.finish()
    }

    /// The row of `shard`, if there is such a shard.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&Shard> {
        self.shards.at(shard)
    }

    /// Every shard, ascending.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, &Shard)> {
        self.shards.iter()
    }

    /// The row of an executor.
    #[must_use]
    pub fn executor(&self, id: ExecutorId) -> Option<&Arc<Executor>> {
        self.executors.get(&id)
    }

    /// Every executor, ascending by id.
    pub fn executors(&self) -> impl ExactSizeIterator<Item = (ExecutorId, &Arc<Executor>)> {
        self.executors.iter().map(|(id, executor)| (*id, executor))
    }

    /// The life that has `name` now: registered under it and not superseded.
    #[must_use]
    pub fn named(&self, name: &ExecutorName) -> Option<(ExecutorId, &Arc<Executor>)> {
        self.executors().find(|(_, executor)| executor.name == *name && !executor.superseded)
    }

    /// What each of `of` owns (R25: a shard being released is in nobody's set). Two passes over all shards.
    #[must_use]
    pub fn holdings(&self, of: impl IntoIterator<Item = ExecutorId>) -> BTreeMap<ExecutorId, Holdings> {
        let of: Vec<ExecutorId> = of.into_iter().collect();
        let mut counts: HashMap<ExecutorId, usize> = of.iter().map(|id| (*id, 0)).collect();
        let owned = || self.shards().filter_map(|(shard, row)| Some((shard, row.epoch, row.state.owner()?)));
        for (.., owner) in owned() {
            if let Some(count) = counts.get_mut(&owner) {
                *count += 1;
            }
        }
        // Each list is made in its final size: growing lists leave holes that a manager would keep for good.
        let mut lists: HashMap<ExecutorId, Vec<_>> =
            of.iter().map(|id| (*id, Vec::with_capacity(counts[id]))).collect();
        for (shard, epoch, owner) in owned() {
            if let Some(list) = lists.get_mut(&owner) {
                list.push((shard, epoch));
            }
        }
        let sorted = |list| Holdings::new(list).expect("shards ascend and owned shards have an epoch");
        of.into_iter().filter_map(|id| Some((id, sorted(lists.remove(&id)?)))).collect()
    }

    /// How many shards are in which state.
    #[must_use]
    pub fn totals(&self) -> ShardTotals {
        let mut totals = ShardTotals::default();
        for (_, row) in self.shards() {
            match row.state {
                ShardState::Owned(_) => totals.owned += 1,
                ShardState::Releasing { .. } => totals.releasing += 1,
                ShardState::Unassigned => totals.unassigned += 1,
            }
        }
        totals
    }

    /// `id` as callers see it.
    #[must_use]
    pub fn owner(&self, id: ExecutorId) -> Option<Owner> {
        let executor = self.executor(id)?;
        Some(Owner { executor: id, name: executor.name.clone(), address: executor.address.clone() })
    }

    /// Checks what must hold of every state by itself.
    ///
    /// # Errors
    /// The first broken invariant, with ids and numbers.
    pub fn check(&self) -> Result<(), Broken> {
        // One hash for each shard instead of a descent.
        let registered: HashSet<ExecutorId> = self.executors.keys().copied().collect();
        for (shard, row) in self.shards() {
            self.check_shard(shard, row, |executor| registered.contains(executor))?;
        }
        self.check_names(|_| true)
    }

    /// The same after a write, for the price of what it changed: what it did not touch held before. Only after a removal is every
    /// shard looked at, since any of them could have been the removed one's; finding those took a pass as well.
    pub(crate) fn check_changes(&self, changes: &Changes) -> Result<(), Broken> {
        if !changes.removed.is_empty() {
            return self.check();
        }
        for shard in changes.shards.keys() {
            let row = self.shard(*shard).expect("a changed shard exists");
            self.check_shard(*shard, row, |executor| self.executors.contains_key(executor))?;
        }
        if changes.executors.is_empty() {
            return Ok(());
        }
        let named: HashSet<&ExecutorName> = changes.executors.values().map(|row| &row.name).collect();
        self.check_names(|name| named.contains(name))
    }

    fn check_shard(
        &self,
        shard: ShardId,
        row: &Shard,
        is_registered: impl Fn(&ExecutorId) -> bool,
    ) -> Result<(), Broken> {
        let broken = |invariant, evidence| Err(Broken { invariant, evidence });
        if let Some(executor) = row.state.executor() {
            if !is_registered(&executor) {
                return broken("a shard's executor is registered", format!("shard {shard}: {executor}"));
            }
            if row.epoch == ShardEpoch::NEVER_OWNED {
                return broken("an owned shard has an epoch", format!("shard {shard}: {executor}"));
            }
        }
        if let ShardState::Releasing { since, .. } = row.state
            && since > self.revision
        {
            return broken(
                "a release was committed in the past",
                format!("shard {shard}: since {since}, state at {}", self.revision),
            );
        }
        Ok(())
    }

    /// Looks only at the names that `concern` the caller.
    fn check_names(&self, concern: impl Fn(&ExecutorName) -> bool) -> Result<(), Broken> {
        let mut current: HashMap<&ExecutorName, ExecutorId> = HashMap::new();
        for (id, executor) in self.executors() {
            if !executor.superseded
                && concern(&executor.name)
                && let Some(other) = current.insert(&executor.name, id)
            {
                let evidence = format!("{}: {other} and {id}", executor.name);
                return Err(Broken { invariant: "one life per name", evidence });
            }
        }
        Ok(())
    }
}

/// A state being put together row by row, for whoever reads rows one at a time: there is never a second copy of them.
#[derive(Debug)]
pub struct StateRows(ClusterState);

impl StateRows {
    /// Shards without a row are unassigned at epoch 0.
    #[must_use]
    pub fn new(head: Head) -> Self {
        let mut state = ClusterState::empty(head.cluster, head.shard_count);
        state.revision = head.revision;
        Self(state)
    }

    /// Takes the row of a shard.
    ///
    /// # Errors
    /// When there is no such shard.
    pub fn shard(&mut self, shard: ShardId, row: Shard) -> Result<(), Broken> {
        let count = self.0.shard_count;
        *self.0.shards.at_mut(shard).ok_or_else(|| Broken {
            invariant: "every shard is below shard_count",
            evidence: format!("shard {shard} of {count}"),
        })? = row;
        Ok(())
    }

    /// Takes the row of an executor.
    pub fn executor(&mut self, id: ExecutorId, row: Executor) {
        self.0.executors.insert(id, Arc::new(row));
    }

    /// Whether an executor with this id was taken.
    #[must_use]
    pub fn has_executor(&self, id: ExecutorId) -> bool {
        self.0.executors.contains_key(&id)
    }

    /// The state.
    ///
    /// # Errors
    /// Says which row breaks which invariant.
    pub fn finish(self) -> Result<ClusterState, Broken> {
        self.0.check()?;
        Ok(self.0)
    }
}

/// The head row of a stored state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Head {
    /// The cluster's name.
    pub cluster: ClusterName,
    /// How many shards.
    pub shard_count: ShardCount,
    /// Counts commits.
    pub revision: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaseKeyHash;

    const KNOWN: ExecutorId = ExecutorId::from_u128(1);
    const UNKNOWN: ExecutorId = ExecutorId::from_u128(9);

    fn executor(name: &str) -> Arc<Executor> {
        Arc::new(Executor {
            name: ExecutorName::new(name).unwrap(),
            address: Address::new("localhost:1").unwrap(),
            zone: None,
            weight: Weight::default(),
            lease_length: Ttl::from_ms(60_000).unwrap(),
            key_hash: LeaseKeyHash([0; 32]),
            draining: false,
            superseded: false,
            registered_at_ms: 0,
        })
    }

    fn sound() -> ClusterState {
        let mut state = ClusterState::empty(ClusterName::new("test").unwrap(), ShardCount::new(4).unwrap());
        state.revision = Revision(7);
        state.executors.insert(KNOWN, executor("a"));
        state
    }

    fn owned(epoch: u64, state: ShardState) -> Shard {
        Shard { epoch: ShardEpoch::new(epoch).unwrap(), state }
    }

    /// What a write breaks is found by looking at what it changed, as it is by looking at everything.
    #[test]
    fn a_broken_change_is_found_without_looking_at_the_rest() {
        let rows = [
            (owned(3, ShardState::Owned(UNKNOWN)), "a shard's executor is registered"),
            (owned(3, ShardState::Releasing { from: UNKNOWN, since: Revision(1) }), "a shard's executor is registered"),
            (owned(0, ShardState::Owned(KNOWN)), "an owned shard has an epoch"),
            (
                owned(3, ShardState::Releasing { from: KNOWN, since: Revision(8) }),
                "a release was committed in the past",
            ),
        ];
        for (row, invariant) in rows {
            let (mut state, mut changes) = (sound(), Changes::default());
            *state.shards.at_mut(ShardId(2)).unwrap() = row;
            changes.shards.insert(ShardId(2), row);
            assert_eq!(state.check_changes(&changes), state.check());
            assert_eq!(state.check_changes(&changes).unwrap_err().invariant, invariant);
        }
        let (mut state, mut changes) = (sound(), Changes::default());
        changes.executors.insert(ExecutorId::from_u128(2), executor("a"));
        state.executors.extend(changes.executors.clone());
        assert_eq!(state.check_changes(&changes), state.check());
        assert_eq!(state.check_changes(&changes).unwrap_err().invariant, "one life per name");
    }

    #[test]
    fn a_shard_left_behind_by_a_removed_executor_is_found() {
        let (mut state, mut changes) = (sound(), Changes::default());
        *state.shards.at_mut(ShardId(3)).unwrap() = owned(2, ShardState::Owned(KNOWN));
        assert_eq!(state.check_changes(&changes), Ok(()), "nothing changed");
        state.executors.remove(&KNOWN);
        changes.removed.insert(KNOWN);
        assert_eq!(state.check_changes(&changes), state.check());
        assert!(state.check_changes(&changes).is_err());
    }
}
