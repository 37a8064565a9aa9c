//! Invocations, and what an executor says of itself.

use super::{condition, holdings};
use crate::wire;
use leasehold_model::AgentId;
use leasehold_model::agents::{AgentPage, AgentQuery, AgentStanding, DeletionAnswer, ListedAgent};
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

/// `Delete`.
pub(crate) fn deletion(agent: AgentId) -> wire::DeleteRequest {
    wire::DeleteRequest { agent: agent.into() }
}

/// The answer to `Delete`.
pub(crate) fn deletion_answer(answer: DeletionAnswer) -> wire::DeleteResponse {
    let DeletionAnswer { shard, epoch, executor } = answer;
    wire::DeleteResponse { shard: shard.0, epoch: epoch.get(), executor: executor.into() }
}

/// `ListAgents`.
pub(crate) fn agent_query(query: AgentQuery) -> wire::ListAgentsRequest {
    let AgentQuery { shard, after, limit } = query;
    wire::ListAgentsRequest { shard: shard.0, after: after.map(String::from), limit }
}

/// The answer to `ListAgents`.
pub(crate) fn agent_page(page: AgentPage) -> wire::ListAgentsResponse {
    let listed = |ListedAgent { agent, standing }| {
        let standing = match standing {
            AgentStanding::Working => wire::AgentStanding::Working,
            AgentStanding::Idle => wire::AgentStanding::Idle,
            AgentStanding::Unloaded => wire::AgentStanding::Unloaded,
            AgentStanding::Suspended => wire::AgentStanding::Suspended,
        };
        wire::ListedAgent { agent: agent.into(), standing: standing.into() }
    };
    wire::ListAgentsResponse { agents: page.agents.into_iter().map(listed).collect(), more: page.more }
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
