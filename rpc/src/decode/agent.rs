//! Invocations, and what an executor says of itself.

use super::{Decoded, Path, any_shard, condition, executor_id, holdings, millis, text};
use crate::bounds::{MAX_IDEMPOTENCY_KEY, MAX_METHOD, MAX_PAYLOAD};
use crate::wire;
use leasehold_model::message::{Inspection, Invocation, InvocationAnswer};
use leasehold_model::{AgentId, ExecutorName, InvalidValue, ManagerId, Revision, ShardCount, ShardEpoch};

/// `Invoke`.
pub(crate) fn invocation(wire: wire::InvokeRequest) -> Decoded<Invocation> {
    if wire.payload.len() > MAX_PAYLOAD {
        let found = format!("{} bytes", wire.payload.len());
        return Err(InvalidValue::new("payload", found, format!("at most {MAX_PAYLOAD} bytes")));
    }
    let key = wire.idempotency_key.map(|key| text("idempotency_key", key, MAX_IDEMPOTENCY_KEY)).transpose()?;
    let agent = AgentId::new(wire.agent)?;
    Ok(Invocation { agent, method: method(wire.method)?, payload: wire.payload, idempotency_key: key })
}

fn method(method: String) -> Decoded<String> {
    let plain = method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if plain && (1..=MAX_METHOD).contains(&method.len()) {
        Ok(method)
    } else {
        Err(InvalidValue::new("method", method, "1 to 128 of letters, digits, '.', '_', '-'"))
    }
}

/// The answer to `Invoke`. Its payload is bounded by the message alone.
pub(crate) fn answer(wire: wire::InvokeResponse) -> Decoded<InvocationAnswer> {
    Ok(InvocationAnswer {
        shard: any_shard(wire.shard)?,
        epoch: ShardEpoch::owned(wire.epoch)?,
        executor: ExecutorName::new(wire.executor).called("executor")?,
        payload: wire.payload,
        replayed: wire.replayed,
    })
}

/// The answer to `Inspect`.
pub(crate) fn inspection(wire: wire::InspectResponse) -> Decoded<Inspection> {
    Ok(Inspection {
        executor: executor_id(&wire.executor_id)?,
        name: ExecutorName::new(wire.name)?,
        manager: wire.manager_id.map(|id| ManagerId::from_slice("manager_id", &id)).transpose()?,
        applied: Revision::new(wire.applied_revision).called("applied_revision")?,
        lease_remaining_ms: millis("lease_remaining_ms", wire.lease_remaining_ms)?,
        held: holdings(&wire.held_shards, &wire.held_epochs, ShardCount::MAX).within("held")?,
        draining: holdings(&wire.draining_shards, &wire.draining_epochs, ShardCount::MAX).within("draining")?,
        condition: condition(wire.condition)?,
    })
}
