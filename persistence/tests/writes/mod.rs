//! Writes for the tests of cluster stores.

use leasehold_model::command::{Command, Draft};
use leasehold_model::message::Weight;
use leasehold_model::plan::Plan;
use leasehold_model::state::{ClusterState, Executor};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, ShardCount, ShardEpoch, ShardId, Ttl,
};
use leasehold_persistence::cluster::Write;

pub const SHARDS: u32 = 1024;
const EXECUTORS: u128 = 200;

pub fn cluster() -> ClusterName {
    ClusterName::new("c").unwrap()
}

pub fn count(shards: u32) -> ShardCount {
    ShardCount::new(shards).unwrap()
}

fn register(number: u128) -> Command {
    let executor = Executor {
        name: ExecutorName::new(format!("executor-{number}")).unwrap(),
        address: Address::new("localhost:1").unwrap(),
        zone: None,
        weight: Weight::default(),
        lease_length: Ttl::from_ms(10_000).unwrap(),
        key_hash: LeaseKeyHash([0; 32]),
        draining: false,
        superseded: false,
        registered_at_ms: 0,
    };
    Command::Register { id: ExecutorId::from_u128(number), executor, replaces: None }
}

/// The first write of a store with 200 executors and 1,024 shards.
pub fn first_write() -> (Write, ClusterState) {
    let mut commands: Vec<_> = (1..=EXECUTORS).map(register).collect();
    let owner = |shard| ExecutorId::from_u128(1 + u128::from(shard) % EXECUTORS);
    let grants = (0..SHARDS).map(|shard| (ShardId(shard), owner(shard))).collect();
    commands.push(Command::Plan(Plan { grants, ..Plan::default() }));
    draft(&ClusterState::empty(cluster(), count(SHARDS)), 1, &commands)
}

/// The write of `commands`, none of which may be refused, and the state after it.
pub fn draft(state: &ClusterState, tag: u128, commands: &[Command]) -> (Write, ClusterState) {
    let mut draft = Draft::on(state);
    for command in commands {
        let _ = draft.apply(command).unwrap();
    }
    let (after, changes) = draft.finish();
    (Write { tag, expected: state.revision, next: after.revision, changes }, after)
}

/// A write that raises one epoch, tagged by the revision it leads to. What it does depends on nothing else.
pub fn raise(state: &ClusterState) -> (Write, ClusterState) {
    let next = state.revision.next().0;
    let shard = ShardId(u32::try_from(next % u64::from(state.shard_count.get())).unwrap());
    let raise = Command::RaiseEpoch { shard, above: ShardEpoch::new(next).unwrap() };
    draft(state, u128::from(next), &[raise])
}
