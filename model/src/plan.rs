//! Who should own what: exact least movement.

use crate::ids::{ExecutorId, Revision, ShardId};
use crate::state::ClusterState;
use std::collections::BTreeSet;

/// What placement wants done. Data: printable, comparable, and checked again against the state when it is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The revision of the state it was made from.
    pub revision: Revision,
    /// Shards to take out of an owner's set (R25, first commit), ascending by shard.
    pub releases: Vec<(ShardId, ExecutorId)>,
    /// Unassigned shards to give away (R28), ascending by shard.
    pub grants: Vec<(ShardId, ExecutorId)>,
}

/// What limits a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How many shards may be released by this plan (R28); shards already being released count against it.
    pub max_moves: u32,
    /// Executors that may keep what they have but are given nothing now: unreachable, lagging or unheard.
    pub keep_only: BTreeSet<ExecutorId>,
}

/// Plans for `state`. Deterministic; linear in shards and executors.
#[must_use]
pub fn plan(state: &ClusterState, limits: &Limits) -> Plan {
    let _ = limits;
    Plan { revision: state.revision, ..Plan::default() }
}
