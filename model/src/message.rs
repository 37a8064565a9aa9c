//! What the parties say to each other, as plain values. `rpc` carries them, `actors` exchange them.

use crate::ids::{
    Address, AgentId, ClusterName, ExecutorId, ExecutorName, GrantSeq, InvalidValue, LeaseKeyHash, ManagerId, Revision,
    ShardCount, ShardEpoch, ShardId,
};
use crate::set::{Claim, Holdings, ShardSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The secret of one executor life: 32 random bytes (R36). Never logged, never stored.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LeaseKey(pub [u8; 32]);

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseKey(secret)")
    }
}

impl LeaseKey {
    /// Decodes 32 bytes.
    ///
    /// # Errors
    /// Names `lease_key` when there are not 32; the value is not shown.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, InvalidValue> {
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| InvalidValue::new("lease_key", format!("{} bytes", bytes.len()), "32 bytes"))
    }
}

/// `Register`: an executor life introduces itself. Idempotent by `executor` (R34).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Registration {
    /// The cluster it means to join.
    pub cluster: ClusterName,
    /// The shard count it was configured with, if it was.
    pub shard_count: Option<ShardCount>,
    /// How it maps keys to shards; must be [`crate::routing::HASH_SCHEME`].
    pub hash_scheme: String,
    /// This life.
    pub executor: ExecutorId,
    /// Stable across restarts.
    pub name: ExecutorName,
    /// Where managers and routers dial it.
    pub address: Address,
    /// Failure domain, if any.
    pub zone: Option<String>,
    /// Its share relative to others, `1..=1000`.
    pub weight: Weight,
    /// Its secret.
    pub lease_key: LeaseKey,
}

/// An executor's share of the shards relative to the others': `1..=1000`, 100 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

impl Weight {
    /// The greatest weight.
    pub const MAX: u32 = 1000;

    /// A weight in `1..=1000`.
    ///
    /// # Errors
    /// Names `weight` when outside that range.
    pub fn new(weight: u32) -> Result<Self, InvalidValue> {
        if (1..=Self::MAX).contains(&weight) {
            Ok(Self(weight))
        } else {
            Err(InvalidValue::new("weight", weight, "1..=1000"))
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(100)
    }
}

impl TryFrom<u32> for Weight {
    type Error = InvalidValue;
    fn try_from(weight: u32) -> Result<Self, InvalidValue> {
        Self::new(weight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

/// How an executor is doing, as it says with each renewal; for people and for placement, never for safety.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Condition {
    /// Agents in memory.
    pub agents: u32,
    /// Invocations running.
    pub running: u32,
    /// Age of the oldest running invocation in milliseconds, 0 if none: a wedged executor shows here (case 35).
    pub oldest_running_ms: u64,
    /// For how long its oplog store has been failing, in milliseconds, 0 if it works: a full disk shows here.
    pub oplog_failing_ms: u64,
}

/// `RenewShardLease`: an executor claims what it holds. Repeated, lost or doubled it is harmless (R12).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Renewal {
    /// Who.
    pub executor: ExecutorId,
    /// Its secret.
    pub lease_key: LeaseKey,
    /// What it holds.
    pub claim: Claim,
    /// The last grant that it heard from the manager named in the claim; 0 if none (R46).
    pub heard: GrantSeq,
    /// Epochs that storage has recorded above the ones this executor was told (R40).
    pub epoch_floors: Vec<(ShardId, ShardEpoch)>,
    /// How it is doing.
    pub condition: Condition,
}

/// `Deregister`: an executor gives everything back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Deregistration {
    /// Who.
    pub executor: ExecutorId,
    /// Its secret.
    pub lease_key: LeaseKey,
}

/// `AssignShards`: the leader pushes a full set. It has no field that could move a deadline (R4).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Push {
    /// The life it is meant for.
    pub executor: ExecutorId,
    /// Proves that a manager sends it (R36).
    pub key_hash: LeaseKeyHash,
    /// The set.
    pub set: ShardSet,
}

/// The answer to a push: the claim as it stands (R22), whether or not the set was applied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PushAnswer {
    /// Whether the set was applied now or had been already.
    pub applied: bool,
    /// What the executor holds, draining shards included. `None` before the first grant.
    pub claim: Option<Claim>,
}

/// One call of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Which agent.
    pub agent: AgentId,
    /// Which method of its type; 1 to 128 letters, digits, `.`, `_`, `-`.
    pub method: String,
    /// JSON text, at most 1 MiB; empty means `null`.
    pub payload: Vec<u8>,
    /// With a key a call is run at most once (1 to 128 bytes).
    pub idempotency_key: Option<String>,
}

/// What an agent answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvocationAnswer {
    /// JSON text.
    pub payload: Vec<u8>,
    /// The agent's shard.
    pub shard: ShardId,
    /// The epoch under which it ran (or, if `replayed`, is held now).
    pub epoch: ShardEpoch,
    /// Name of the executor that answered.
    pub executor: ExecutorName,
    /// Whether the answer was read from the oplog instead of running the call.
    pub replayed: bool,
}

/// What an executor says of itself (`Inspect`). Never refused, never fenced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// This life.
    pub executor: ExecutorId,
    /// Its name.
    pub name: ExecutorName,
    /// The manager process it follows, if any.
    pub manager: Option<ManagerId>,
    /// The revision of the last set it applied.
    pub applied: Revision,
    /// Milliseconds left on its lease, 0 if lapsed.
    pub lease_remaining_ms: u64,
    /// Shards it admits work for (while the lease lasts).
    pub held: Holdings,
    /// Shards still draining.
    pub draining: Holdings,
    /// How it is doing.
    pub condition: Condition,
}

/// Who owns a shard, for routing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The life that owns it.
    pub executor: ExecutorId,
    /// Its name.
    pub name: ExecutorName,
    /// Where to dial it.
    pub address: Address,
}

/// One row of the routing table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Route {
    /// Nobody owns it now.
    Unassigned,
    /// An owner may admit work for it. Index into [`RoutingTable::owners`].
    Owned(u32, ShardEpoch),
    /// It is being handed off. Index into [`RoutingTable::owners`].
    Releasing(u32),
}

/// The committed owners of all shards. Advisory: the executor decides admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingTable {
    /// Who says so.
    pub manager: ManagerId,
    /// The committed state it was read from.
    pub revision: Revision,
    /// All executors that appear.
    pub owners: Vec<Owner>,
    /// One row per shard; the length is the shard count.
    pub routes: Vec<Route>,
}

impl RoutingTable {
    /// The owner of `shard`, if one may admit work for it.
    #[must_use]
    pub fn owner(&self, shard: ShardId) -> Option<(&Owner, ShardEpoch)> {
        match self.routes.get(shard.index())? {
            Route::Owned(at, epoch) => self.owners.get(*at as usize).map(|owner| (owner, *epoch)),
            Route::Unassigned | Route::Releasing(_) => None,
        }
    }
}

/// One executor as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorStatus {
    /// The life.
    pub id: ExecutorId,
    /// Its name.
    pub name: ExecutorName,
    /// Where it is dialled.
    pub address: Address,
    /// Failure domain, if any.
    pub zone: Option<String>,
    /// Its share relative to others.
    pub weight: Weight,
    /// Shards owned.
    pub owned: u32,
    /// Shards it is still releasing.
    pub releasing: u32,
    /// Milliseconds left on its lease by the leader's clock.
    pub lease_remaining_ms: u64,
    /// Whether it was asked to leave.
    pub draining: bool,
    /// Whether a newer life has its name.
    pub superseded: bool,
    /// How long the newest push has gone unanswered, in milliseconds; `None` when it has not.
    pub lagging_ms: Option<u64>,
    /// What it last said of itself.
    pub condition: Condition,
    /// When it registered, Unix milliseconds; for showing only.
    pub registered_at_ms: i64,
}

/// Shards by state, in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardTotals {
    /// Owned.
    pub owned: u32,
    /// Being handed off.
    pub releasing: u32,
    /// Without an owner.
    pub unassigned: u32,
}

/// A short account of the cluster, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's name.
    pub cluster: ClusterName,
    /// The process that answers.
    pub manager: ManagerId,
    /// Its committed revision.
    pub revision: Revision,
    /// How many shards.
    pub shard_count: ShardCount,
    /// Shards by state.
    pub totals: ShardTotals,
    /// Why shards have no owner, if any has none: never empty while `totals.unassigned > 0`.
    pub unassigned_because: Option<String>,
    /// What is wrong at the moment, one sentence each, worst first.
    pub troubles: Vec<String>,
    /// Every executor, by name.
    pub executors: Vec<ExecutorStatus>,
    /// How long this process has led, in milliseconds.
    pub leading_ms: u64,
}

/// One shard's row and why it is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardExplanation {
    /// Which.
    pub shard: ShardId,
    /// Its epoch.
    pub epoch: ShardEpoch,
    /// `owned`, `releasing` or `unassigned`.
    pub state: String,
    /// Its owner, or who still releases it.
    pub owner: Option<Owner>,
    /// Milliseconds left on that executor's lease, by the leader's clock.
    pub lease_remaining_ms: Option<u64>,
    /// Sentences: what it waits for, who gets it next and when at the latest.
    pub because: Vec<String>,
}
