//! What routers and operators ask a manager.

use super::{Decoded, Path, any_shard, at_most, condition, executor_id, millis, owner, required, zone};
use crate::bounds::MAX_LIST;
use crate::wire;
use leasehold_model::message::{
    ClusterStatus, ExecutorStatus, Route, RoutingTable, ShardExplanation, ShardTotals, Weight,
};
use leasehold_model::{
    Address, ClusterName, ExecutorName, InvalidValue, ManagerId, Revision, ShardCount, ShardEpoch, ShardId,
};

/// The answer to `GetRoutingTable`, and each one of `WatchRoutingTable`.
pub(crate) fn routing_table(wire: Option<wire::RoutingTable>) -> Decoded<RoutingTable> {
    table(required("table", wire)?).within("table")
}

fn table(wire: wire::RoutingTable) -> Decoded<RoutingTable> {
    let manager = ManagerId::from_slice("manager_id", &wire.manager_id)?;
    let revision = Revision::new(wire.revision)?;
    at_most("owners", wire.owners.len(), MAX_LIST)?;
    let shards = u32::try_from(wire.routes.len()).unwrap_or(u32::MAX);
    ShardCount::new(shards).called("routes")?;
    if wire.epochs.len() != wire.routes.len() {
        let (found, expected) = (wire.epochs.len(), wire.routes.len());
        return Err(InvalidValue::new("epochs", format!("{found} entries"), format!("{expected}, one per route")));
    }
    let known = wire.owners.len();
    let listed = wire.owners.into_iter().enumerate();
    let owners = listed.map(|(at, wire)| owner(wire).map_err(|invalid| invalid.within(&format!("owners[{at}]"))));
    let owners = owners.collect::<Decoded<_>>()?;
    let listed = wire.routes.iter().zip(&wire.epochs).enumerate();
    let routes = listed
        .map(|(at, (wire, epoch))| {
            route(*wire, *epoch, known).map_err(|invalid| invalid.within(&format!("routes[{at}]")))
        })
        .collect::<Decoded<_>>()?;
    Ok(RoutingTable { manager, revision, owners, routes })
}

/// `0` is nobody, `2i+1` owned by `owners[i]`, `2i+2` being handed off by it.
fn route(wire: u32, epoch: u64, owners: usize) -> Decoded<Route> {
    let Some(place) = wire.checked_sub(1) else { return Ok(Route::Unassigned) };
    let at = place / 2;
    if at as usize >= owners {
        return Err(InvalidValue::new("owner", at, format!("0..{owners}, an index into owners")));
    }
    Ok(if place % 2 == 0 { Route::Owned(at, ShardEpoch::owned(epoch)?) } else { Route::Releasing(at) })
}

/// The answer to `GetClusterStatus`.
pub(crate) fn status(wire: wire::GetClusterStatusResponse) -> Decoded<ClusterStatus> {
    at_most("troubles", wire.troubles.len(), MAX_LIST)?;
    at_most("executors", wire.executors.len(), MAX_LIST)?;
    let listed = wire.executors.into_iter().enumerate();
    let executors =
        listed.map(|(at, wire)| executor(wire).map_err(|invalid| invalid.within(&format!("executors[{at}]"))));
    Ok(ClusterStatus {
        cluster: ClusterName::new(wire.cluster)?,
        manager: ManagerId::from_slice("manager_id", &wire.manager_id)?,
        revision: Revision::new(wire.revision)?,
        shard_count: ShardCount::new(wire.shard_count)?,
        totals: ShardTotals { owned: wire.owned, releasing: wire.releasing, unassigned: wire.unassigned },
        unassigned_because: wire.unassigned_because,
        troubles: wire.troubles,
        executors: executors.collect::<Decoded<_>>()?,
        leading_ms: millis("leading_ms", wire.leading_ms)?,
    })
}

fn executor(wire: wire::ExecutorStatus) -> Decoded<ExecutorStatus> {
    Ok(ExecutorStatus {
        id: executor_id(&wire.executor_id)?,
        name: ExecutorName::new(wire.name)?,
        address: Address::new(wire.address)?,
        zone: zone(wire.zone)?,
        weight: Weight::new(wire.weight)?,
        owned: wire.owned,
        releasing: wire.releasing,
        lease_remaining_ms: millis("lease_remaining_ms", wire.lease_remaining_ms)?,
        draining: wire.draining,
        superseded: wire.superseded,
        lagging_ms: wire.lagging_ms.map(|ms| millis("lagging_ms", ms)).transpose()?,
        condition: condition(wire.condition)?,
        registered_at_ms: wire.registered_at_ms,
    })
}

/// `ExplainShard`. An absent shard is not taken for shard 0.
pub(crate) fn shard(wire: wire::ExplainShardRequest) -> Decoded<ShardId> {
    any_shard(required("shard", wire.shard)?)
}

/// The answer to `ExplainShard`.
pub(crate) fn explanation(wire: wire::ExplainShardResponse) -> Decoded<ShardExplanation> {
    at_most("because", wire.because.len(), MAX_LIST)?;
    let state = match wire::ShardState::try_from(wire.state) {
        Ok(wire::ShardState::Unassigned) => "unassigned",
        Ok(wire::ShardState::Owned) => "owned",
        Ok(wire::ShardState::Releasing) => "releasing",
        Ok(wire::ShardState::Unspecified) | Err(_) => {
            return Err(InvalidValue::new("state", wire.state, "1 (unassigned), 2 (owned), 3 (releasing)"));
        }
    };
    Ok(ShardExplanation {
        shard: any_shard(wire.shard)?,
        epoch: ShardEpoch::new(wire.epoch)?,
        state: state.to_owned(),
        owner: wire.owner.map(owner).transpose().within("owner")?,
        lease_remaining_ms: wire.lease_remaining_ms.map(|ms| millis("lease_remaining_ms", ms)).transpose()?,
        because: wire.because,
    })
}

/// `SetDraining`.
pub(crate) fn draining(wire: wire::SetDrainingRequest) -> Decoded<(ExecutorName, bool)> {
    Ok((ExecutorName::new(wire.name)?, wire.draining))
}
