//! Shard sets, claims and grants: what owner and manager tell each other about ownership.

use crate::ids::{GrantSeq, InvalidValue, ManagerId, Revision, ShardCount, ShardEpoch, ShardId};
use crate::time::Ttl;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Shards with their epochs, ascending by shard, each shard once. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<(ShardId, ShardEpoch)>", into = "Vec<(ShardId, ShardEpoch)>")]
pub struct Holdings(Arc<[(ShardId, ShardEpoch)]>);

impl Holdings {
    /// Sorts `shards` and checks them.
    ///
    /// # Errors
    /// Names `shards` when a shard stands twice or an epoch is `0`.
    pub fn new(mut shards: Vec<(ShardId, ShardEpoch)>) -> Result<Self, InvalidValue> {
        if shards.is_empty() {
            // Shares one allocation with every other empty set.
            return Ok(Self::default());
        }
        shards.sort_unstable();
        if let Some(pair) = shards.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(InvalidValue::new("shards", format!("shard {} twice", pair[0].0), "each shard once"));
        }
        if let Some((shard, _)) = shards.iter().find(|(_, epoch)| *epoch == ShardEpoch::NEVER_OWNED) {
            return Err(InvalidValue::new("shards", format!("shard {shard} at epoch 0"), "epochs of 1 and above"));
        }
        Ok(Self(shards.into()))
    }

    /// Ascending by shard.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ShardId, ShardEpoch)> + '_ {
        self.0.iter().copied()
    }

    /// The epoch at which `shard` is in the set, if it is.
    #[must_use]
    pub fn epoch_of(&self, shard: ShardId) -> Option<ShardEpoch> {
        self.0.binary_search_by_key(&shard, |(held, _)| *held).ok().map(|at| self.0[at].1)
    }

    /// Whether `shard` is in the set, at any epoch.
    #[must_use]
    pub fn contains(&self, shard: ShardId) -> bool {
        self.epoch_of(shard).is_some()
    }

    /// How many shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no shard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<Vec<(ShardId, ShardEpoch)>> for Holdings {
    type Error = InvalidValue;
    fn try_from(shards: Vec<(ShardId, ShardEpoch)>) -> Result<Self, InvalidValue> {
        Self::new(shards)
    }
}

impl From<Holdings> for Vec<(ShardId, ShardEpoch)> {
    fn from(holdings: Holdings) -> Self {
        holdings.0.to_vec()
    }
}

/// Everything one executor holds, as committed at `revision`. Always the full set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardSet {
    /// The manager process that says so.
    pub manager: ManagerId,
    /// The committed state that the set was read from.
    pub revision: Revision,
    /// How many shards the cluster has.
    pub shard_count: ShardCount,
    /// The shards, each below `shard_count`.
    pub shards: Holdings,
}

/// What an executor says it holds. A shard whose agents are still draining is still in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The manager process whose sets it applies.
    pub manager: ManagerId,
    /// The revision of the last set it applied from that manager.
    pub applied: Revision,
    /// The shards.
    pub shards: Holdings,
}

/// The answer to a registration or a renewal: a set and the time for which it may be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// The full set.
    pub set: ShardSet,
    /// The time to live of the lease, counted by the executor from before it asked (R2).
    pub ttl: Ttl,
    /// Numbers this manager's grants to this executor, from 1; the next renewal names it (R46).
    pub seq: GrantSeq,
}
