//! Invocations, and what an executor says of itself.

use super::{Decoded, Path, any_shard, at_most, condition, executor_id, holdings, millis, text};
use crate::bounds::{MAX_IDEMPOTENCY_KEY, MAX_METHOD, MAX_PAYLOAD};
use crate::wire;
use leasehold_model::agents::{AgentPage, AgentQuery, AgentStanding, DeletionAnswer, ListedAgent, MAX_PAGE};
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

/// `Delete`.
pub(crate) fn deletion(wire: wire::DeleteRequest) -> Decoded<AgentId> {
    AgentId::new(wire.agent)
}

/// The answer to `Delete`.
pub(crate) fn deletion_answer(wire: wire::DeleteResponse) -> Decoded<DeletionAnswer> {
    Ok(DeletionAnswer {
        shard: any_shard(wire.shard)?,
        epoch: ShardEpoch::owned(wire.epoch)?,
        executor: ExecutorName::new(wire.executor).called("executor")?,
    })
}

/// `ListAgents`.
pub(crate) fn agent_query(wire: wire::ListAgentsRequest) -> Decoded<AgentQuery> {
    if !(1..=MAX_PAGE).contains(&wire.limit) {
        return Err(InvalidValue::new("limit", wire.limit, format!("1..={MAX_PAGE}")));
    }
    let after = wire.after.map(AgentId::new).transpose().called("after")?;
    Ok(AgentQuery { shard: any_shard(wire.shard)?, after, limit: wire.limit })
}

/// The answer to `ListAgents`.
pub(crate) fn agent_page(wire: wire::ListAgentsResponse) -> Decoded<AgentPage> {
    at_most("agents", wire.agents.len(), MAX_PAGE as usize)?;
    let listed = |(at, wire): (usize, wire::ListedAgent)| {
        let within = format!("agents[{at}]");
        let standing = match wire::AgentStanding::try_from(wire.standing) {
            Ok(wire::AgentStanding::Working) => AgentStanding::Working,
            Ok(wire::AgentStanding::Idle) => AgentStanding::Idle,
            Ok(wire::AgentStanding::Unloaded) => AgentStanding::Unloaded,
            Ok(wire::AgentStanding::Suspended) => AgentStanding::Suspended,
            Ok(wire::AgentStanding::Unspecified) | Err(_) => {
                return Err(InvalidValue::new("standing", wire.standing, "1..=4")).within(&within);
            }
        };
        Ok(ListedAgent { agent: AgentId::new(wire.agent).within(&within)?, standing })
    };
    let agents = wire.agents.into_iter().enumerate().map(listed).collect::<Decoded<_>>()?;
    Ok(AgentPage { agents, more: wire.more })
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
