//! One plain value of everything that is said.

use leasehold_model::agents::{AgentPage, AgentQuery, AgentStanding, DeletionAnswer, ListedAgent};
use leasehold_model::message::*;
use leasehold_model::set::Holdings;
use leasehold_model::*;

pub(crate) fn executor() -> ExecutorId {
    ExecutorId::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef)
}

pub(crate) fn manager() -> ManagerId {
    ManagerId::from_u128(0xfedc_ba98_7654_4210_8edc_ba98_7654_3210)
}

pub(crate) fn holdings(pairs: &[(u32, u64)]) -> Holdings {
    Holdings::new(pairs.iter().map(|(shard, epoch)| (ShardId(*shard), ShardEpoch::owned(*epoch).unwrap())).collect())
        .unwrap()
}

pub(crate) fn condition() -> Condition {
    Condition { agents: 12, running: 3, oldest_running_ms: 450, oplog_failing_ms: 7 }
}

pub(crate) fn owner() -> Owner {
    Owner {
        executor: executor(),
        name: ExecutorName::new("executor-1").unwrap(),
        address: Address::new("10.0.0.1:7101").unwrap(),
    }
}

pub(crate) fn claim() -> Claim {
    Claim { manager: manager(), applied: Revision(41), shards: holdings(&[(0, 7), (300, 1), (1023, 1 << 40)]) }
}

pub(crate) fn set() -> ShardSet {
    ShardSet {
        manager: manager(),
        revision: Revision(42),
        shard_count: ShardCount::new(1024).unwrap(),
        shards: holdings(&[(0, 7), (1023, 1 << 40)]),
    }
}

pub(crate) fn grant() -> Grant {
    Grant { set: set(), ttl: Ttl::from_ms(60_000).unwrap(), seq: GrantSeq(5) }
}

pub(crate) fn registration() -> Registration {
    Registration {
        cluster: ClusterName::new("main").unwrap(),
        shard_count: Some(ShardCount::new(1024).unwrap()),
        hash_scheme: routing::HASH_SCHEME.to_owned(),
        executor: executor(),
        name: ExecutorName::new("executor-1").unwrap(),
        address: Address::new("10.0.0.1:7101").unwrap(),
        zone: Some("zone-a".to_owned()),
        weight: Weight::new(200).unwrap(),
        lease_key: LeaseKey([7; 32]),
    }
}

pub(crate) fn renewal() -> Renewal {
    Renewal {
        executor: executor(),
        lease_key: LeaseKey([7; 32]),
        claim: claim(),
        heard: GrantSeq(4),
        epoch_floors: vec![(ShardId(9), ShardEpoch::owned(77).unwrap())],
        condition: condition(),
    }
}

pub(crate) fn deregistration() -> Deregistration {
    Deregistration { executor: executor(), lease_key: LeaseKey([7; 32]) }
}

pub(crate) fn push() -> Push {
    Push { executor: executor(), key_hash: LeaseKeyHash([9; 32]), set: set() }
}

pub(crate) fn push_answer() -> PushAnswer {
    PushAnswer { applied: true, claim: Some(claim()) }
}

pub(crate) fn table() -> RoutingTable {
    let routes = vec![Route::Owned(0, ShardEpoch::owned(7).unwrap()), Route::Unassigned, Route::Releasing(0)];
    RoutingTable { manager: manager(), revision: Revision(42), owners: vec![owner()], routes }
}

pub(crate) fn status() -> ClusterStatus {
    let executor = ExecutorStatus {
        id: executor(),
        name: ExecutorName::new("executor-1").unwrap(),
        address: Address::new("10.0.0.1:7101").unwrap(),
        zone: Some("zone-a".to_owned()),
        weight: Weight::default(),
        owned: 500,
        releasing: 2,
        lease_remaining_ms: 41_000,
        draining: true,
        superseded: true,
        lagging_ms: Some(0),
        condition: condition(),
        registered_at_ms: 1_764_666_000_000,
    };
    ClusterStatus {
        cluster: ClusterName::new("main").unwrap(),
        manager: manager(),
        revision: Revision(42),
        shard_count: ShardCount::new(1024).unwrap(),
        totals: ShardTotals { owned: 500, releasing: 2, unassigned: 522 },
        unassigned_because: Some("no executor takes shards".to_owned()),
        troubles: vec!["executor-1 lags".to_owned()],
        executors: vec![executor],
        leading_ms: 90_000,
    }
}

pub(crate) fn explanation() -> ShardExplanation {
    ShardExplanation {
        shard: ShardId(300),
        epoch: ShardEpoch::owned(7).unwrap(),
        state: "releasing".to_owned(),
        owner: Some(owner()),
        lease_remaining_ms: Some(1500),
        because: vec!["executor-1 still drains".to_owned()],
    }
}

pub(crate) fn inspection() -> Inspection {
    Inspection {
        executor: executor(),
        name: ExecutorName::new("executor-1").unwrap(),
        manager: Some(manager()),
        applied: Revision(41),
        lease_remaining_ms: 30_000,
        held: holdings(&[(0, 7)]),
        draining: holdings(&[(300, 1)]),
        condition: condition(),
    }
}

pub(crate) fn invocation() -> Invocation {
    Invocation {
        agent: AgentId::new("counter/ünï code").unwrap(),
        method: "add".to_owned(),
        payload: b"{\"by\":1}".to_vec(),
        idempotency_key: Some("line-17".to_owned()),
    }
}

pub(crate) fn answer() -> InvocationAnswer {
    InvocationAnswer {
        payload: b"18".to_vec(),
        shard: ShardId(300),
        epoch: ShardEpoch::owned(7).unwrap(),
        executor: ExecutorName::new("executor-1").unwrap(),
        replayed: true,
    }
}

pub(crate) fn deletion_answer() -> DeletionAnswer {
    let InvocationAnswer { shard, epoch, executor, .. } = answer();
    DeletionAnswer { shard, epoch, executor }
}

pub(crate) fn agent_query() -> AgentQuery {
    AgentQuery { shard: ShardId(300), after: Some(invocation().agent), limit: 1000 }
}

pub(crate) fn agent_page() -> AgentPage {
    let standings = [AgentStanding::Working, AgentStanding::Idle, AgentStanding::Unloaded, AgentStanding::Suspended];
    let listed = |standing: AgentStanding| {
        let agent = AgentId::new(format!("counter/{}", standing.as_str())).unwrap();
        ListedAgent { agent, standing }
    };
    AgentPage { agents: standings.into_iter().map(listed).collect(), more: true }
}
