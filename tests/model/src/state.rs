//! One state of everything: processes, messages, stores, and what an observer of all of it remembers.

use crate::mark::Marks;
use crate::scenario::Budget;
use crate::truth::{Breach, Truth};
use leasehold_model::commits::{Commits, Due, Said};
use leasehold_model::fence::FenceKeeper;
use leasehold_model::holder::{Attempt, Holder, Purpose, Request, WorkId};
use leasehold_model::leader::{Leader, RequestId};
use leasehold_model::message::Push;
use leasehold_model::oplog::Writer;
use leasehold_model::state::ClusterState;
use leasehold_model::{
    CallError, Claim, ExecutorId, Grant, LeaseKeyHash, ManagerId, Revision, ShardCount, ShardEpoch, ShardId, Tick,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// The clock's step. A lease of 3 units has its third, half and sixth at 1, 1.5 and 0.5 units, so every comparison that the protocol
/// makes falls on both sides of a step.
pub const UNIT: Duration = Duration::from_secs(1);

/// The instant `units` after the beginning, on everybody's clock.
#[must_use]
pub fn instant(units: u8) -> Tick {
    const BEGINNING: Tick = Tick(1 << 40);
    BEGINNING.plus(UNIT * u32::from(units))
}

/// A part of a state: shared by all states that have it, with its hash computed once.
#[derive(Debug)]
pub struct Part<T>(Arc<(u64, T)>);

impl<T: Hash> Part<T> {
    pub(crate) fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self(Arc::new((hasher.finish(), value)))
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Part<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.1
    }
}

impl<T> PartialEq for Part<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl<T> Eq for Part<T> {}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.0);
    }
}

impl<T> Part<T> {
    pub(crate) fn order(&self) -> u64 {
        self.0.0
    }
}

/// What a fence was told. Admission is asked of the shipped fence, made from this.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FenceImage {
    pub(crate) deadline: Tick,
    pub(crate) epochs: BTreeMap<ShardId, ShardEpoch>,
    pub(crate) count: Option<ShardCount>,
}

impl FenceImage {
    /// The epoch under which work for `shard` may start at `now`.
    #[must_use]
    pub fn admits(&self, now: Tick, shard: ShardId) -> Option<ShardEpoch> {
        let keeper = FenceKeeper::new();
        let _ = keeper.size(self.count?);
        for (shard, epoch) in &self.epochs {
            keeper.open(*shard, *epoch);
        }
        keeper.arm(self.deadline);
        keeper.fence().admit(now, shard).ok().map(|admitted| admitted.epoch)
    }
}

/// One executor process.
#[derive(Debug, Clone, Hash)]
pub struct Process {
    pub(crate) holder: Holder,
    pub(crate) fence: FenceImage,
    pub(crate) timers: BTreeMap<Purpose, Tick>,
    pub(crate) call: Option<Attempt>,
    /// Agents that are being stopped.
    pub(crate) sweeps: BTreeMap<WorkId, Vec<(ShardId, ShardEpoch)>>,
    /// Sweeps that a lapse began or overtook: nobody need wait for those.
    pub(crate) void: BTreeSet<WorkId>,
    /// The greatest revision ever heard; only kept for a bug that compares with it.
    pub(crate) greatest: Revision,
}

/// Where a write of a manager is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Flight {
    /// On its way to the store.
    Sent(Due),
    /// The store has said so; the answer is on its way.
    Landed(Said),
    /// The manager has heard that the outcome is unknown; the write may still be on its way.
    InDoubt(String, Option<Due>),
}

/// Where a confirmation is (R7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirming {
    /// None was asked for.
    Idle,
    /// On its way to the store.
    Asked,
    /// The store has answered; the answer is on its way.
    Checked(bool),
}

/// Who waits for a manager's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Waits {
    /// An executor that registers.
    Registration(usize, Attempt),
    /// An executor that renews.
    Renewal(usize, Attempt),
    /// An executor that leaves.
    Departure(usize, Attempt),
    /// An operator.
    Operator,
}

/// One manager process that leads, or believes so.
#[derive(Debug, Clone, Hash)]
pub struct Manager {
    pub(crate) leader: Leader,
    pub(crate) commits: Commits<()>,
    pub(crate) flight: Option<Flight>,
    /// Counts the writes, to tag them.
    pub(crate) writes: u8,
    pub(crate) confirming: Confirming,
    /// What the store last said to that; only kept for a bug that answers with it.
    pub(crate) checked_before: Option<bool>,
    pub(crate) armed: Option<Tick>,
    pub(crate) waits: BTreeMap<RequestId, Waits>,
    pub(crate) requests: u64,
}

/// A message on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// To any manager.
    Call(usize, Attempt, Request),
    /// To a registration or renewal.
    Granted(usize, Attempt, Result<Grant, CallError>),
    /// To a deregistration.
    Departed(usize, Attempt, Result<(), CallError>),
    /// From a manager.
    Push(Push),
    /// The answer to a push.
    Claimed(ManagerId, ExecutorId, Claim),
    /// A write to an oplog; the first of a writer claims the record.
    Write(usize, ShardId, Writer, Stage),
}

/// What a write to an oplog is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Take the record over.
    Claim,
    /// Append an entry.
    Append,
}

/// The managers' store.
#[derive(Debug, Clone, Hash)]
pub struct Store {
    pub(crate) state: Arc<ClusterState>,
    pub(crate) owner: Option<ManagerId>,
    pub(crate) last: (Option<ManagerId>, u8),
    /// Writes of managers that have ended.
    pub(crate) floating: Vec<(ManagerId, u8, Due)>,
    /// Every manager that ever led.
    pub(crate) managers: u8,
    /// The state before the last write; only kept for a bug that reads it.
    pub(crate) previous: Option<Arc<ClusterState>>,
}

/// The oplog of one agent of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Oplog {
    pub(crate) record: Option<Writer>,
    pub(crate) entries: Vec<Writer>,
}

/// Everything.
#[derive(Debug, Clone)]
pub struct State {
    pub(crate) now: u8,
    /// No step of time is taken beyond this.
    pub(crate) until: u8,
    pub(crate) budget: Budget,
    pub(crate) executors: Vec<Option<Part<Process>>>,
    /// How many lives each executor has had.
    pub(crate) lives: Vec<u8>,
    pub(crate) managers: Vec<Option<Part<Manager>>>,
    /// By their hashes: two states that differ in the order of sending alone are one.
    pub(crate) net: Vec<Part<Message>>,
    pub(crate) store: Part<Store>,
    pub(crate) oplogs: Part<Vec<Oplog>>,
    pub(crate) truth: Part<Truth>,
    pub(crate) breach: Option<Breach>,
    /// Whether every shard was served again after faults had stopped.
    pub(crate) healed: Option<bool>,
    /// Of the last step only: no part of the state's identity.
    pub(crate) marks: Marks,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.now, self.budget, self.healed).hash(hasher);
        self.executors.hash(hasher);
        self.lives.hash(hasher);
        self.managers.hash(hasher);
        self.net.hash(hasher);
        self.store.hash(hasher);
        self.oplogs.hash(hasher);
        self.truth.hash(hasher);
        self.breach.as_ref().map(|breach| breach.rule).hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let of = |state: &Self| {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            hasher.finish()
        };
        of(self) == of(other)
    }
}

/// The life numbered `life` of the executor in `slot`.
pub(crate) const fn executor_id(slot: usize, life: u8) -> ExecutorId {
    ExecutorId::from_u128(((slot as u128 + 1) << 8) | life as u128)
}

/// The slot and the life that an id was made of.
pub(crate) fn slot_and_life(id: ExecutorId) -> (usize, u8) {
    let bytes = id.as_bytes();
    (usize::from(bytes[14]) - 1, bytes[15])
}

/// The secret of a life is its id; so is what stands for the secret's hash.
pub(crate) fn key_of(id: ExecutorId) -> [u8; 32] {
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.as_bytes());
    key
}

pub(crate) fn key_hash(id: ExecutorId) -> LeaseKeyHash {
    LeaseKeyHash(key_of(id))
}
