//! What executors and managers say to each other about leases.

use super::{condition, holdings, pairs};
use crate::wire;
use leasehold_model::message::{Deregistration, Push, PushAnswer, Registration, Renewal};
use leasehold_model::{Claim, Grant, ShardSet};

fn set(set: &ShardSet) -> wire::ShardSet {
    let (shards, epochs) = holdings(&set.shards);
    wire::ShardSet {
        manager_id: set.manager.as_bytes().to_vec(),
        revision: set.revision.0,
        shard_count: set.shard_count.get(),
        shards,
        epochs,
    }
}

fn claim(claim: &Claim) -> wire::Claim {
    let (shards, epochs) = holdings(&claim.shards);
    wire::Claim { manager_id: claim.manager.as_bytes().to_vec(), applied_revision: claim.applied.0, shards, epochs }
}

/// The answer to a registration or a renewal.
pub(crate) fn grant(grant: &Grant) -> Option<wire::Grant> {
    let ttl_ms = i64::try_from(grant.ttl.as_ms()).expect("a ttl is at most 24 h");
    Some(wire::Grant { set: Some(set(&grant.set)), ttl_ms, seq: grant.seq.0 })
}

/// `Register`.
pub(crate) fn registration(registration: Registration) -> wire::RegisterRequest {
    wire::RegisterRequest {
        cluster: registration.cluster.into(),
        shard_count: registration.shard_count.map(|count| count.get()),
        hash_scheme: registration.hash_scheme,
        executor_id: registration.executor.as_bytes().to_vec(),
        name: registration.name.into(),
        address: registration.address.into(),
        zone: registration.zone,
        weight: registration.weight.get(),
        lease_key: registration.lease_key.0.to_vec(),
    }
}

/// `RenewShardLease`: the hot path.
pub(crate) fn renewal(renewal: &Renewal) -> wire::RenewShardLeaseRequest {
    let (floor_shards, floor_epochs) = pairs(renewal.epoch_floors.iter().copied());
    wire::RenewShardLeaseRequest {
        executor_id: renewal.executor.as_bytes().to_vec(),
        lease_key: renewal.lease_key.0.to_vec(),
        claim: Some(claim(&renewal.claim)),
        heard_grant: renewal.heard.0,
        condition: condition(renewal.condition),
        floor_shards,
        floor_epochs,
    }
}

/// `Deregister`.
pub(crate) fn deregistration(deregistration: &Deregistration) -> wire::DeregisterRequest {
    wire::DeregisterRequest {
        executor_id: deregistration.executor.as_bytes().to_vec(),
        lease_key: deregistration.lease_key.0.to_vec(),
    }
}

/// `AssignShards`.
pub(crate) fn push(push: &Push) -> wire::AssignShardsRequest {
    wire::AssignShardsRequest {
        executor_id: push.executor.as_bytes().to_vec(),
        key_hash: push.key_hash.0.to_vec(),
        set: Some(set(&push.set)),
    }
}

/// The answer to `AssignShards`.
pub(crate) fn push_answer(answer: &PushAnswer) -> wire::AssignShardsResponse {
    wire::AssignShardsResponse { applied: answer.applied, claim: answer.claim.as_ref().map(claim) }
}
