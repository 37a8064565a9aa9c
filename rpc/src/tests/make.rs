//! Arbitrary model values.

use leasehold_model::agents::{AgentPage, AgentQuery, AgentStanding, DeletionAnswer, ListedAgent, MAX_PAGE};
use leasehold_model::message::*;
use leasehold_model::set::Holdings;
use leasehold_model::*;
use quickcheck::{Arbitrary, Gen};

/// Something quickcheck can make.
pub(super) trait Make: Clone + std::fmt::Debug + 'static {
    fn make(g: &mut Gen) -> Self;
}

/// A made value.
#[derive(Debug, Clone)]
pub(super) struct Any<T>(pub(super) T);

impl<T: Make> Arbitrary for Any<T> {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(T::make(g))
    }
}

fn maybe<T>(g: &mut Gen, make: impl FnOnce(&mut Gen) -> T) -> Option<T> {
    bool::arbitrary(g).then(|| make(g))
}

fn some<T>(g: &mut Gen, make: impl Fn(&mut Gen) -> T) -> Vec<T> {
    (0..u8::arbitrary(g) % 8).map(|_| make(g)).collect()
}

fn bytes32(g: &mut Gen) -> [u8; 32] {
    std::array::from_fn(|_| u8::arbitrary(g))
}

/// `0..=2^63-1`, the ends often.
fn signed(g: &mut Gen) -> u64 {
    let any = u64::arbitrary(g) >> 1;
    *g.choose(&[0, 1, any, i64::MAX as u64]).unwrap()
}

fn name_text(g: &mut Gen, max: usize) -> String {
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain("._-".chars()).collect();
    let len = *g.choose(&[1, 2, 9, max]).unwrap();
    (0..len).map(|_| *g.choose(&letters).unwrap()).collect()
}

fn executor(g: &mut Gen) -> ExecutorId {
    ExecutorId::from_u128(u128::arbitrary(g).max(1))
}

fn manager(g: &mut Gen) -> ManagerId {
    ManagerId::from_u128(u128::arbitrary(g).max(1))
}

fn epoch(g: &mut Gen) -> ShardEpoch {
    ShardEpoch::owned(signed(g).max(1)).unwrap()
}

fn name(g: &mut Gen) -> ExecutorName {
    ExecutorName::new(name_text(g, 128)).unwrap()
}

fn cluster(g: &mut Gen) -> ClusterName {
    ClusterName::new(name_text(g, 128)).unwrap()
}

fn address(g: &mut Gen) -> Address {
    let host = g.choose(&["10.0.0.1", "[::1]", "executor-1.example.org"]).unwrap();
    Address::new(format!("{host}:{}", u16::arbitrary(g).max(1))).unwrap()
}

fn zone(g: &mut Gen) -> Option<String> {
    maybe(g, |g| name_text(g, 128))
}

fn weight(g: &mut Gen) -> Weight {
    Weight::new(u32::arbitrary(g) % Weight::MAX + 1).unwrap()
}

fn count(g: &mut Gen) -> ShardCount {
    let any = u32::arbitrary(g) % ShardCount::MAX + 1;
    ShardCount::new(*g.choose(&[1, 2, 1024, ShardCount::MAX, any]).unwrap()).unwrap()
}

fn holdings(g: &mut Gen, count: u32) -> Holdings {
    let mut shards: Vec<u32> = some(g, |g| u32::arbitrary(g) % count);
    shards.sort_unstable();
    shards.dedup();
    Holdings::new(shards.into_iter().map(|shard| (ShardId(shard), epoch(g))).collect()).unwrap()
}

fn condition(g: &mut Gen) -> Condition {
    let (agents, running) = (u32::arbitrary(g), u32::arbitrary(g));
    Condition { agents, running, oldest_running_ms: signed(g), oplog_failing_ms: signed(g) }
}

fn owner(g: &mut Gen) -> Owner {
    Owner { executor: executor(g), name: name(g), address: address(g) }
}

fn claim(g: &mut Gen) -> Claim {
    Claim { manager: manager(g), applied: Revision(signed(g)), shards: holdings(g, 65_536) }
}

fn set(g: &mut Gen) -> ShardSet {
    let shard_count = count(g);
    let shards = holdings(g, shard_count.get());
    ShardSet { manager: manager(g), revision: Revision(signed(g).max(1)), shard_count, shards }
}

impl Make for Grant {
    fn make(g: &mut Gen) -> Self {
        let any = u64::arbitrary(g) % Ttl::MAX_MS + 1;
        let ttl = *g.choose(&[1, Ttl::MAX_MS, any]).unwrap();
        Self { set: set(g), ttl: Ttl::from_ms(ttl).unwrap(), seq: GrantSeq(signed(g).max(1)) }
    }
}

impl Make for Registration {
    fn make(g: &mut Gen) -> Self {
        Self {
            cluster: cluster(g),
            shard_count: maybe(g, count),
            hash_scheme: name_text(g, 64),
            executor: executor(g),
            name: name(g),
            address: address(g),
            zone: zone(g),
            weight: weight(g),
            lease_key: LeaseKey(bytes32(g)),
        }
    }
}

impl Make for Renewal {
    fn make(g: &mut Gen) -> Self {
        Self {
            executor: executor(g),
            lease_key: LeaseKey(bytes32(g)),
            claim: claim(g),
            heard: GrantSeq(signed(g)),
            epoch_floors: some(g, |g| (ShardId(u32::arbitrary(g) % 65_536), epoch(g))),
            condition: condition(g),
        }
    }
}

impl Make for Deregistration {
    fn make(g: &mut Gen) -> Self {
        Self { executor: executor(g), lease_key: LeaseKey(bytes32(g)) }
    }
}

impl Make for Push {
    fn make(g: &mut Gen) -> Self {
        Self { executor: executor(g), key_hash: LeaseKeyHash(bytes32(g)), set: set(g) }
    }
}

impl Make for PushAnswer {
    fn make(g: &mut Gen) -> Self {
        Self { applied: bool::arbitrary(g), claim: maybe(g, claim) }
    }
}

impl Make for RoutingTable {
    fn make(g: &mut Gen) -> Self {
        let mut owners = some(g, owner);
        owners.push(owner(g));
        let known = u32::try_from(owners.len()).unwrap();
        let mut routes = some(g, |g| {
            let at = u32::arbitrary(g) % known;
            g.choose(&[Route::Unassigned, Route::Releasing(at), Route::Owned(at, epoch(&mut Gen::new(8)))])
                .cloned()
                .unwrap()
        });
        routes.push(Route::Owned(0, epoch(g)));
        Self { manager: manager(g), revision: Revision(signed(g)), owners, routes }
    }
}

impl Make for ClusterStatus {
    fn make(g: &mut Gen) -> Self {
        let totals =
            ShardTotals { owned: u32::arbitrary(g), releasing: u32::arbitrary(g), unassigned: u32::arbitrary(g) };
        Self {
            cluster: cluster(g),
            manager: manager(g),
            revision: Revision(signed(g)),
            shard_count: count(g),
            totals,
            unassigned_because: maybe(g, String::arbitrary),
            troubles: some(g, String::arbitrary),
            executors: some(g, executor_status),
            leading_ms: signed(g),
        }
    }
}

fn executor_status(g: &mut Gen) -> ExecutorStatus {
    ExecutorStatus {
        id: executor(g),
        name: name(g),
        address: address(g),
        zone: zone(g),
        weight: weight(g),
        owned: u32::arbitrary(g),
        releasing: u32::arbitrary(g),
        lease_remaining_ms: signed(g),
        draining: bool::arbitrary(g),
        superseded: bool::arbitrary(g),
        lagging_ms: maybe(g, signed),
        condition: condition(g),
        registered_at_ms: i64::arbitrary(g),
    }
}

impl Make for ShardId {
    fn make(g: &mut Gen) -> Self {
        Self(u32::arbitrary(g) % 65_536)
    }
}

impl Make for ShardExplanation {
    fn make(g: &mut Gen) -> Self {
        Self {
            shard: ShardId::make(g),
            epoch: ShardEpoch::new(signed(g)).unwrap(),
            state: (*g.choose(&["owned", "releasing", "unassigned"]).unwrap()).to_owned(),
            owner: maybe(g, owner),
            lease_remaining_ms: maybe(g, signed),
            because: some(g, String::arbitrary),
        }
    }
}

impl Make for (ExecutorName, bool) {
    fn make(g: &mut Gen) -> Self {
        (name(g), bool::arbitrary(g))
    }
}

impl Make for Inspection {
    fn make(g: &mut Gen) -> Self {
        Self {
            executor: executor(g),
            name: name(g),
            manager: maybe(g, manager),
            applied: Revision(signed(g)),
            lease_remaining_ms: signed(g),
            held: holdings(g, 65_536),
            draining: holdings(g, 65_536),
            condition: condition(g),
        }
    }
}

impl Make for AgentId {
    fn make(g: &mut Gen) -> Self {
        let printable = String::arbitrary(g).replace(char::is_control, "");
        let id: String = format!("x{printable}").chars().take(90).collect();
        Self::new(format!("{}/{id}", name_text(g, 128))).unwrap()
    }
}

impl Make for DeletionAnswer {
    fn make(g: &mut Gen) -> Self {
        Self { shard: ShardId::make(g), epoch: epoch(g), executor: name(g) }
    }
}

impl Make for AgentQuery {
    fn make(g: &mut Gen) -> Self {
        let limit = u32::arbitrary(g) % MAX_PAGE + 1;
        Self { shard: ShardId::make(g), after: maybe(g, AgentId::make), limit }
    }
}

impl Make for AgentPage {
    fn make(g: &mut Gen) -> Self {
        let listed = |g: &mut Gen| {
            let standings =
                [AgentStanding::Working, AgentStanding::Idle, AgentStanding::Unloaded, AgentStanding::Suspended];
            ListedAgent { agent: AgentId::make(g), standing: *g.choose(&standings).unwrap() }
        };
        Self { agents: some(g, listed), more: bool::arbitrary(g) }
    }
}

impl Make for Invocation {
    fn make(g: &mut Gen) -> Self {
        Self {
            agent: AgentId::make(g),
            method: name_text(g, 128),
            payload: Vec::arbitrary(g),
            idempotency_key: maybe(g, |g| name_text(g, 128)),
        }
    }
}

impl Make for InvocationAnswer {
    fn make(g: &mut Gen) -> Self {
        Self {
            payload: Vec::arbitrary(g),
            shard: ShardId::make(g),
            epoch: epoch(g),
            executor: name(g),
            replayed: bool::arbitrary(g),
        }
    }
}
