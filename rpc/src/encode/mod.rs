//! Model to wire. Nothing is checked: the model's types cannot hold what the wire would refuse, texts aside, and those
//! the receiver checks.

mod agent;
mod cluster;
mod lease;

pub(crate) use agent::{agent_page, agent_query, answer, deletion, deletion_answer, inspection, invocation};
pub(crate) use cluster::{draining, explanation, routing_table, shard, status};
pub(crate) use lease::{deregistration, grant, push, push_answer, registration, renewal};

use crate::wire;
use leasehold_model::message::{Condition, Owner};
use leasehold_model::set::Holdings;
use leasehold_model::{ShardEpoch, ShardId};

fn pairs(pairs: impl ExactSizeIterator<Item = (ShardId, ShardEpoch)>) -> (Vec<u32>, Vec<u64>) {
    let (mut shards, mut epochs) = (Vec::with_capacity(pairs.len()), Vec::with_capacity(pairs.len()));
    for (shard, epoch) in pairs {
        shards.push(shard.0);
        epochs.push(epoch.get());
    }
    (shards, epochs)
}

fn holdings(holdings: &Holdings) -> (Vec<u32>, Vec<u64>) {
    pairs(holdings.iter())
}

/// Idle and well is absent on the wire.
fn condition(condition: Condition) -> Option<wire::Condition> {
    let Condition { agents, running, oldest_running_ms, oplog_failing_ms } = condition;
    (condition != Condition::default()).then_some(wire::Condition {
        agents,
        running,
        oldest_running_ms,
        oplog_failing_ms,
    })
}

fn owner(owner: &Owner) -> wire::Owner {
    wire::Owner {
        executor_id: owner.executor.as_bytes().to_vec(),
        name: owner.name.as_str().to_owned(),
        address: owner.address.as_str().to_owned(),
    }
}
