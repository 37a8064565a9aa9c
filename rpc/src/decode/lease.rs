//! What executors and managers say to each other about leases.

use super::{Decoded, Path, bytes32, committed, condition, executor_id, holdings, pairs, required, text, zone};
use crate::bounds::MAX_HASH_SCHEME;
use crate::wire;
use leasehold_model::message::{Deregistration, LeaseKey, Push, PushAnswer, Registration, Renewal, Weight};
use leasehold_model::{
    Address, Claim, ClusterName, ExecutorName, Grant, GrantSeq, InvalidValue, LeaseKeyHash, ManagerId, Revision,
    ShardCount, ShardSet, Ttl,
};

fn set(wire: &wire::ShardSet) -> Decoded<ShardSet> {
    let manager = ManagerId::from_slice("manager_id", &wire.manager_id)?;
    let revision = committed(wire.revision)?;
    let shard_count = ShardCount::new(wire.shard_count)?;
    let shards = holdings(&wire.shards, &wire.epochs, shard_count.get())?;
    Ok(ShardSet { manager, revision, shard_count, shards })
}

fn claim(wire: &wire::Claim) -> Decoded<Claim> {
    let manager = ManagerId::from_slice("manager_id", &wire.manager_id)?;
    let applied = Revision::new(wire.applied_revision).called("applied_revision")?;
    Ok(Claim { manager, applied, shards: holdings(&wire.shards, &wire.epochs, ShardCount::MAX)? })
}

/// R8: zero, negative and above 24 h are errors.
fn ttl(ms: i64) -> Decoded<Ttl> {
    match u64::try_from(ms) {
        Ok(ms) => Ttl::from_ms(ms),
        Err(_) => Err(InvalidValue::new("ttl_ms", ms, "1..=86400000 (24 h)")),
    }
}

fn seq(seq: u64) -> Decoded<GrantSeq> {
    match GrantSeq::new(seq).called("seq")? {
        GrantSeq(0) => Err(InvalidValue::new("seq", 0, "1..=9223372036854775807")),
        seq => Ok(seq),
    }
}

/// The answer to a registration or a renewal.
pub(crate) fn grant(wire: Option<wire::Grant>) -> Decoded<Grant> {
    let wire = required("grant", wire)?;
    let decoded = || {
        let set = set(&required("set", wire.set)?).within("set")?;
        Ok(Grant { set, ttl: ttl(wire.ttl_ms)?, seq: seq(wire.seq)? })
    };
    decoded().within("grant")
}

/// `Register`.
pub(crate) fn registration(wire: wire::RegisterRequest) -> Decoded<Registration> {
    Ok(Registration {
        cluster: ClusterName::new(wire.cluster)?,
        shard_count: wire.shard_count.map(ShardCount::new).transpose()?,
        hash_scheme: text("hash_scheme", wire.hash_scheme, MAX_HASH_SCHEME)?,
        executor: executor_id(&wire.executor_id)?,
        name: ExecutorName::new(wire.name)?,
        address: Address::new(wire.address)?,
        zone: zone(wire.zone)?,
        weight: Weight::new(wire.weight)?,
        lease_key: LeaseKey::from_slice(&wire.lease_key)?,
    })
}

/// `RenewShardLease`: the hot path.
pub(crate) fn renewal(wire: wire::RenewShardLeaseRequest) -> Decoded<Renewal> {
    let executor = executor_id(&wire.executor_id)?;
    let lease_key = LeaseKey::from_slice(&wire.lease_key)?;
    let claim = claim(&required("claim", wire.claim)?).within("claim")?;
    let heard = GrantSeq::new(wire.heard_grant)?;
    let epoch_floors = pairs(&wire.floor_shards, &wire.floor_epochs, ShardCount::MAX).within("epoch_floors")?;
    Ok(Renewal { executor, lease_key, claim, heard, epoch_floors, condition: condition(wire.condition)? })
}

/// `Deregister`.
pub(crate) fn deregistration(wire: &wire::DeregisterRequest) -> Decoded<Deregistration> {
    let executor = executor_id(&wire.executor_id)?;
    Ok(Deregistration { executor, lease_key: LeaseKey::from_slice(&wire.lease_key)? })
}

/// `AssignShards`.
pub(crate) fn push(wire: wire::AssignShardsRequest) -> Decoded<Push> {
    let executor = executor_id(&wire.executor_id)?;
    let key_hash = LeaseKeyHash(bytes32("key_hash", &wire.key_hash)?);
    Ok(Push { executor, key_hash, set: set(&required("set", wire.set)?).within("set")? })
}

/// The answer to `AssignShards`.
pub(crate) fn push_answer(wire: &wire::AssignShardsResponse) -> Decoded<PushAnswer> {
    let claim = wire.claim.as_ref().map(|wire| claim(wire).within("claim")).transpose()?;
    Ok(PushAnswer { applied: wire.applied, claim })
}
