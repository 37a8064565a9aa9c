//! Invocations, and what an executor says of itself.

use super::{condition, holdings};
use crate::wire;
use leasehold_model::message::{Inspection, Invocation, InvocationAnswer};

/// `Invoke`.
pub(crate) fn invocation(invocation: Invocation) -> wire::InvokeRequest {
    wire::InvokeRequest {
        agent: invocation.agent.into(),
        method: invocation.method,
        payload: invocation.payload,
        idempotency_key: invocation.idempotency_key,
    }
}

/// The answer to `Invoke`.
pub(crate) fn answer(answer: InvocationAnswer) -> wire::InvokeResponse {
    wire::InvokeResponse {
        payload: answer.payload,
        shard: answer.shard.0,
        epoch: answer.epoch.get(),
        executor: answer.executor.into(),
        replayed: answer.replayed,
    }
}

/// The answer to `Inspect`.
pub(crate) fn inspection(inspection: Inspection) -> wire::InspectResponse {
    let (held_shards, held_epochs) = holdings(&inspection.held);
    let (draining_shards, draining_epochs) = holdings(&inspection.draining);
    wire::InspectResponse {
        executor_id: inspection.executor.as_bytes().to_vec(),
        name: inspection.name.into(),
        manager_id: inspection.manager.map(|id| id.as_bytes().to_vec()),
        applied_revision: inspection.applied.0,
        lease_remaining_ms: inspection.lease_remaining_ms,
        held_shards,
        held_epochs,
        draining_shards,
        draining_epochs,
        condition: condition(inspection.condition),
    }
}
