//! The only ways to change a [`ClusterState`]. A command yields its outcome, or a refusal that leaves no trace.

use crate::ids::{ExecutorId, Revision, ShardEpoch, ShardId};
use crate::plan::Plan;
use crate::refusal::{Credential, Refusal};
use crate::state::{ClusterState, Executor, Head, Shard, ShardState};
use crate::time::Ttl;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A change somebody wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Command {
    /// Adds an executor life; the same life again changes nothing (R34).
    Register {
        /// The life.
        id: ExecutorId,
        /// Its row.
        executor: Executor,
        /// An earlier life with the same name and address that is known to be gone: its shards are freed at once (R35). Any
        /// other life under the name is superseded.
        replaces: Option<ExecutorId>,
    },
    /// Removes a life that gave everything back.
    Deregister(ExecutorId),
    /// Removes lives whose lease has ended; unknown ones are left out.
    Reap(Vec<ExecutorId>),
    /// Carries out what of a plan still fits the state.
    Plan(Plan),
    /// `executor` has provably let go of everything it was releasing since `applied` or earlier (R26).
    ConfirmRelease {
        /// Who let go.
        executor: ExecutorId,
        /// The revision its claim named.
        applied: Revision,
        /// What its claim lacks.
        shards: Vec<ShardId>,
    },
    /// Records the longest lease that may be outstanding (R6).
    SetLeaseLength(ExecutorId, Ttl),
    /// Starts or ends a drain.
    SetDraining(ExecutorId, bool),
    /// Storage has recorded `above` for a shard: its next epoch must exceed that (R40).
    RaiseEpoch {
        /// Which shard.
        shard: ShardId,
        /// The recorded epoch.
        above: ShardEpoch,
    },
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use]
pub enum Outcome {
    /// The state changed.
    Changed,
    /// The state was so already.
    Unchanged,
}

/// Why a shard changed hands; stands in the log line of every ownership change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// It had no owner.
    Assign,
    /// Balance or a drain asks for it.
    Rebalance,
    /// Its holder proved that it let go.
    Released,
    /// Its holder left.
    Deregistered,
    /// Its holder's lease ended.
    Reaped,
    /// Its holder's process was replaced at the same address.
    Replaced,
    /// Storage had recorded a higher epoch.
    EpochFloor,
}

impl Cause {
    /// One word for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Assign => "assign",
            Self::Rebalance => "rebalance",
            Self::Released => "released",
            Self::Deregistered => "deregistered",
            Self::Reaped => "reaped",
            Self::Replaced => "replaced",
            Self::EpochFloor => "epoch_floor",
        }
    }
}

/// One change of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    /// Which shard.
    pub shard: ShardId,
    /// Its row before.
    pub from: Shard,
    /// Its row after.
    pub to: Shard,
    /// Why.
    pub cause: Cause,
}

/// Everything one write changes, for a store that writes only changed rows, and for logs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Changes {
    /// Set when the write is the first on an empty store.
    pub first: Option<Head>,
    /// Changed shards with their new rows.
    pub shards: BTreeMap<ShardId, Shard>,
    /// New or changed executors.
    pub executors: BTreeMap<ExecutorId, Arc<Executor>>,
    /// Removed executors.
    pub removed: BTreeSet<ExecutorId>,
    /// Each step of ownership, in order.
    pub moves: Vec<Move>,
    /// Executors whose set is another than before.
    pub touched: BTreeSet<ExecutorId>,
}

impl Changes {
    /// Whether nothing is to be written (R32).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.shards.is_empty() && self.executors.is_empty() && self.removed.is_empty()
    }
}

/// A state being changed by the commands of one write: [`Draft::apply`] them in order, then [`Draft::finish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    state: ClusterState,
    next: Revision,
    changes: Changes,
}

impl Draft {
    /// Starts a write on top of `committed`. All its commands share the revision after it.
    #[must_use]
    pub fn on(committed: &ClusterState) -> Self {
        let mut changes = Changes::default();
        let next = committed.revision.next();
        if committed.revision == Revision(0) {
            changes.first =
                Some(Head { cluster: committed.cluster.clone(), shard_count: committed.shard_count, revision: next });
        }
        Self { state: committed.clone(), next, changes }
    }

    /// The state with what was applied so far.
    #[must_use]
    pub const fn state(&self) -> &ClusterState {
        &self.state
    }

    /// The state after the write and what it changes.
    ///
    /// # Panics
    /// When an invariant is broken: a bug, and nothing has been written yet.
    #[must_use]
    pub fn finish(mut self) -> (ClusterState, Changes) {
        if !self.changes.is_empty() {
            self.state.revision = self.next;
        }
        // Debug builds look at everything, in case the reasoning about what a change can break is wrong.
        let checked = if cfg!(debug_assertions) { self.state.check() } else { self.state.check_changes(&self.changes) };
        if let Err(broken) = checked {
            panic!("a command broke an invariant: {broken}");
        }
        (self.state, self.changes)
    }

    /// Applies one command.
    ///
    /// # Errors
    /// A refusal leaves the draft as it was.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome, Refusal> {
        match command {
            Command::Register { id, executor, replaces } => self.register(*id, executor, *replaces),
            Command::Deregister(id) => match self.remove(&[*id], Cause::Deregistered) {
                Outcome::Changed => Ok(Outcome::Changed),
                Outcome::Unchanged => Err(Refusal::UnknownExecutor),
            },
            Command::Reap(ids) => Ok(self.remove(ids, Cause::Reaped)),
            Command::Plan(plan) => self.carry_out(plan),
            Command::ConfirmRelease { executor, applied, shards } => Ok(self.confirm(*executor, *applied, shards)),
            Command::SetLeaseLength(id, length) => self.amend(*id, |row| row.lease_length = *length),
            Command::SetDraining(id, draining) => self.amend(*id, |row| row.draining = *draining),
            Command::RaiseEpoch { shard, above } => self.raise_epoch(*shard, *above),
        }
    }

    fn register(&mut self, id: ExecutorId, row: &Executor, replaces: Option<ExecutorId>) -> Result<Outcome, Refusal> {
        if let Some(known) = self.state.executors.get(&id) {
            if known.key_hash != row.key_hash {
                return Err(Refusal::BadCredential(Credential::LeaseKey));
            }
            return if known.superseded { Err(Refusal::Superseded) } else { Ok(Outcome::Unchanged) };
        }
        let is_gone = |earlier: &Arc<Executor>| earlier.name == row.name && earlier.address == row.address;
        if let Some(gone) = replaces.filter(|earlier| self.state.executor(*earlier).is_some_and(is_gone)) {
            let _: Outcome = self.remove(&[gone], Cause::Replaced);
        }
        if let Some((earlier, _)) = self.state.named(&row.name) {
            let _: Outcome = self.amend(earlier, |row| row.superseded = true)?;
        }
        self.put(id, Arc::new(row.clone()));
        self.changes.touched.insert(id);
        Ok(Outcome::Changed)
    }

    /// Frees what the removed held, in one pass over the shards however many they are.
    fn remove(&mut self, ids: &[ExecutorId], cause: Cause) -> Outcome {
        let gone: BTreeSet<ExecutorId> =
            ids.iter().copied().filter(|id| self.state.executors.remove(id).is_some()).collect();
        if gone.is_empty() {
            return Outcome::Unchanged;
        }
        for id in &gone {
            self.changes.executors.remove(id);
            self.changes.touched.remove(id);
        }
        self.changes.removed.extend(&gone);
        let held = |row: &Shard| row.state.executor().is_some_and(|id| gone.contains(&id));
        let freed: Vec<ShardId> = self.state.shards().filter(|(_, row)| held(row)).map(|(shard, _)| shard).collect();
        for shard in freed {
            self.set(shard, |row| row.state = ShardState::Unassigned, cause);
        }
        Outcome::Changed
    }

    fn amend(&mut self, id: ExecutorId, change: impl FnOnce(&mut Executor)) -> Result<Outcome, Refusal> {
        let before = self.state.executors.get(&id).ok_or(Refusal::UnknownExecutor)?;
        let mut after = Executor::clone(before);
        change(&mut after);
        if after == **before {
            return Ok(Outcome::Unchanged);
        }
        self.put(id, Arc::new(after));
        Ok(Outcome::Changed)
    }

    /// R24, R25, R28: epochs are minted here, in the write that grants them. Of a plan made on an older state, what no longer fits is left out.
    fn carry_out(&mut self, plan: &Plan) -> Result<Outcome, Refusal> {
        let mut changed = false;
        for (shard, from) in &plan.releases {
            if self.state.shard(*shard).is_some_and(|row| row.state == ShardState::Owned(*from)) {
                let since = self.next;
                self.set(*shard, |row| row.state = ShardState::Releasing { from: *from, since }, Cause::Rebalance);
                changed = true;
            }
        }
        for (shard, to) in &plan.grants {
            let takes = self.state.executor(*to).is_some_and(|row| row.takes_shards());
            let Some(row) = self.state.shard(*shard) else { continue };
            if takes
                && row.state == ShardState::Unassigned
                && let Some(epoch) = row.epoch.next()
            {
                let granted = Shard { epoch, state: ShardState::Owned(*to) };
                self.set(*shard, |row| *row = granted, Cause::Assign);
                changed = true;
            }
        }
        Ok(if changed { Outcome::Changed } else { Outcome::Unchanged })
    }

    /// R26 (a): only releases that the claim can have known of, and only from the executor that makes it. A claim that
    /// names this write's revision or a later one is of no state that was ever told, and proves nothing.
    fn confirm(&mut self, executor: ExecutorId, applied: Revision, shards: &[ShardId]) -> Outcome {
        let mut outcome = Outcome::Unchanged;
        if applied >= self.next {
            return outcome;
        }
        for shard in shards {
            let proven = self.state.shard(*shard).is_some_and(|row| match row.state {
                ShardState::Releasing { from, since } => from == executor && since <= applied,
                ShardState::Unassigned | ShardState::Owned(_) => false,
            });
            if proven {
                self.set(*shard, |row| row.state = ShardState::Unassigned, Cause::Released);
                outcome = Outcome::Changed;
            }
        }
        outcome
    }

    /// R40: a floor that would exhaust the epochs is refused.
    fn raise_epoch(&mut self, shard: ShardId, above: ShardEpoch) -> Result<Outcome, Refusal> {
        const GREATEST_FLOOR: u64 = ShardEpoch::MAX.get() - (1 << 32);
        let invalid = |field: &str, value: u64, accepted: String| {
            Refusal::InvalidField(crate::ids::InvalidValue::new(field, value, accepted))
        };
        if above.get() > GREATEST_FLOOR {
            return Err(invalid("epoch_floors.epoch", above.get(), format!("0..={GREATEST_FLOOR}")));
        }
        let count = self.state.shard_count;
        let row = self
            .state
            .shard(shard)
            .ok_or_else(|| invalid("epoch_floors.shard", shard.0.into(), format!("0..{count}")))?;
        if row.epoch > above || above == ShardEpoch::NEVER_OWNED {
            return Ok(Outcome::Unchanged);
        }
        let epoch = above.next().expect("a floor is far below the greatest epoch");
        self.set(shard, |row| row.epoch = epoch, Cause::EpochFloor);
        Ok(Outcome::Changed)
    }

    fn put(&mut self, id: ExecutorId, row: Arc<Executor>) {
        self.changes.removed.remove(&id);
        self.state.executors.insert(id, Arc::clone(&row));
        self.changes.executors.insert(id, row);
    }

    fn set(&mut self, shard: ShardId, change: impl FnOnce(&mut Shard), cause: Cause) {
        let row = self.state.shards.at_mut(shard).expect("the shard was found by the caller");
        let from = *row;
        change(row);
        assert!(row.epoch >= from.epoch, "S3: shard {shard} went from epoch {} to {}", from.epoch, row.epoch);
        let to = *row;
        if let ShardState::Owned(owner) = to.state {
            assert!(from.state == to.state || to.epoch > from.epoch, "S2: shard {shard} to {owner} at {}", to.epoch);
        }
        self.changes.shards.insert(shard, to);
        self.changes.moves.push(Move { shard, from, to, cause });
        for end in [from, to] {
            if let ShardState::Owned(owner) = end.state
                && !self.changes.removed.contains(&owner)
            {
                self.changes.touched.insert(owner);
            }
        }
    }
}
