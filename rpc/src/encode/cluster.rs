//! What routers and operators ask a manager.

use super::{condition, owner};
use crate::wire;
use leasehold_model::message::{ClusterStatus, ExecutorStatus, Route, RoutingTable, ShardExplanation};
use leasehold_model::{ExecutorName, ShardId};

/// The answer to `GetRoutingTable`, and each one of `WatchRoutingTable`.
pub(crate) fn routing_table(table: &RoutingTable) -> Option<wire::RoutingTable> {
    let (mut routes, mut epochs) = (Vec::with_capacity(table.routes.len()), Vec::with_capacity(table.routes.len()));
    for route in &table.routes {
        let (route, epoch) = match route {
            Route::Unassigned => (0, 0),
            Route::Owned(at, epoch) => (at.saturating_mul(2).saturating_add(1), epoch.get()),
            Route::Releasing(at) => (at.saturating_mul(2).saturating_add(2), 0),
        };
        routes.push(route);
        epochs.push(epoch);
    }
    Some(wire::RoutingTable {
        manager_id: table.manager.as_bytes().to_vec(),
        revision: table.revision.0,
        owners: table.owners.iter().map(owner).collect(),
        routes,
        epochs,
    })
}

/// The answer to `GetClusterStatus`.
pub(crate) fn status(status: ClusterStatus) -> wire::GetClusterStatusResponse {
    wire::GetClusterStatusResponse {
        cluster: status.cluster.into(),
        manager_id: status.manager.as_bytes().to_vec(),
        revision: status.revision.0,
        shard_count: status.shard_count.get(),
        owned: status.totals.owned,
        releasing: status.totals.releasing,
        unassigned: status.totals.unassigned,
        unassigned_because: status.unassigned_because,
        troubles: status.troubles,
        executors: status.executors.into_iter().map(executor).collect(),
        leading_ms: status.leading_ms,
    }
}

fn executor(executor: ExecutorStatus) -> wire::ExecutorStatus {
    wire::ExecutorStatus {
        executor_id: executor.id.as_bytes().to_vec(),
        name: executor.name.into(),
        address: executor.address.into(),
        zone: executor.zone,
        weight: executor.weight.get(),
        owned: executor.owned,
        releasing: executor.releasing,
        lease_remaining_ms: executor.lease_remaining_ms,
        draining: executor.draining,
        superseded: executor.superseded,
        lagging_ms: executor.lagging_ms,
        condition: condition(executor.condition),
        registered_at_ms: executor.registered_at_ms,
    }
}

/// `ExplainShard`.
pub(crate) fn shard(shard: ShardId) -> wire::ExplainShardRequest {
    wire::ExplainShardRequest { shard: Some(shard.0) }
}

/// The answer to `ExplainShard`.
pub(crate) fn explanation(explanation: ShardExplanation) -> wire::ExplainShardResponse {
    let state = match explanation.state.as_str() {
        "unassigned" => wire::ShardState::Unassigned,
        "owned" => wire::ShardState::Owned,
        "releasing" => wire::ShardState::Releasing,
        _ => wire::ShardState::Unspecified,
    };
    wire::ExplainShardResponse {
        shard: explanation.shard.0,
        epoch: explanation.epoch.get(),
        state: state.into(),
        owner: explanation.owner.as_ref().map(owner),
        lease_remaining_ms: explanation.lease_remaining_ms,
        because: explanation.because,
    }
}

/// `SetDraining`.
pub(crate) fn draining(name: ExecutorName, draining: bool) -> wire::SetDrainingRequest {
    wire::SetDrainingRequest { name: name.into(), draining }
}
