//! L1, L2, L3: what must come about once nothing fails any more.

use crate::cluster::{Cluster, EXECUTORS, JOINER};
use crate::invariants::Violation;
use crate::world::{ELECTION_TTL, LEASE, SHARDS, shards};
use leasehold_model::state::{ClusterState, ShardState};
use leasehold_model::{ExecutorId, ShardEpoch, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// L1 after any number of faults at once: an election (a candidacy that nobody keeps, then a pause before the next attempt), the leases of
/// the dead in full from then on (R39), a call that was under way and stalls once more, a pass, and a push or a renewal.
const HEALED_WITHIN: Duration =
    Duration::from_millis(ELECTION_TTL.as_millis() as u64 + 3 * LEASE.as_millis() as u64 + 4_000);
/// A failover alone.
const TAKEN_OVER_WITHIN: Duration = Duration::from_millis(ELECTION_TTL.as_millis() as u64 + 2_000);
/// The callers' last answers.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

fn violated<T>(id: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation { id, what })
}

fn state(cluster: &Cluster<'_>) -> Option<Arc<ClusterState>> {
    cluster.invariants.view(cluster.now()).state
}

fn epochs(state: &ClusterState) -> BTreeMap<ShardId, ShardEpoch> {
    state.shards().map(|(shard, row)| (shard, row.epoch)).collect()
}

fn owned(state: &ClusterState) -> BTreeMap<ExecutorId, u32> {
    let mut owned: BTreeMap<_, _> = state.executors().map(|(id, _)| (id, 0)).collect();
    for (_, row) in state.shards() {
        if let ShardState::Owned(owner) = row.state {
            *owned.entry(owner).or_default() += 1;
        }
    }
    owned
}

/// What is still missing, if anything.
fn missing(cluster: &Cluster<'_>, executors: usize) -> Option<String> {
    let processes = cluster.world.processes();
    let unserved: Vec<_> =
        shards().filter(|shard| !processes.iter().any(|process| process.admits(*shard).is_some())).collect();
    if !unserved.is_empty() {
        return Some(format!("shards {unserved:?} are served by nobody"));
    }
    let Some(state) = state(cluster) else { return Some("nothing is stored".to_owned()) };
    let owned = owned(&state);
    if owned.len() != executors || owned.values().sum::<u32>() != SHARDS {
        return Some(format!("{executors} executors should have {SHARDS} shards, stored is {owned:?}"));
    }
    let (least, most) = (owned.values().min().copied(), owned.values().max().copied());
    (most.unwrap_or_default() > least.unwrap_or_default() + 1).then(|| format!("it is not balanced: {owned:?}"))
}

/// L1: every shard is served and the load is even. Returns how long that took.
fn healed(cluster: &mut Cluster<'_>, executors: usize, within: Duration) -> Result<Duration, Violation> {
    let began = cluster.now();
    while let Some(missing) = missing(cluster, executors) {
        let took = cluster.now() - began;
        if took > within {
            return violated("L1", format!("{missing}, {took:?} after the last fault"));
        }
        cluster.step()?;
    }
    Ok(cluster.now() - began)
}

/// L2: nothing moves, nothing is written.
fn stands_still(cluster: &mut Cluster<'_>, span: Duration) -> Result<(), Violation> {
    let before = state(cluster).map(|state| state.revision);
    cluster.pass(span)?;
    let after = state(cluster).map(|state| state.revision);
    if before != after {
        return violated("L2", format!("at rest the state went from revision {before:?} to {after:?}"));
    }
    Ok(())
}

/// After the chaos.
pub fn after_faults(cluster: &mut Cluster<'_>) -> Result<(), Violation> {
    let took = healed(cluster, EXECUTORS.len(), HEALED_WITHIN)?;
    cluster.trace.say(&format!("healed after {took:?}"));
    // What was under way when the last fault ended may still be refused, and then asked for again.
    cluster.pass(LEASE)?;
    healed(cluster, EXECUTORS.len(), Duration::ZERO)?;
    stands_still(cluster, LEASE + LEASE / 2)
}

/// L2: a failover moves no shard of an executor that keeps answering.
pub fn failover(cluster: &mut Cluster<'_>) -> Result<(), Violation> {
    let Some((leader, before)) = cluster.world.leader().zip(state(cluster)) else { return Ok(()) };
    cluster.trace.say(&format!("the leader {leader} crashes, and nothing else happens"));
    cluster.crash(&leader);
    let began = cluster.now();
    while cluster.world.leader().as_ref() == Some(&leader) {
        if cluster.now() - began > TAKEN_OVER_WITHIN {
            return violated("L1", format!("nobody took over within {TAKEN_OVER_WITHIN:?}"));
        }
        cluster.step()?;
        healed(cluster, EXECUTORS.len(), Duration::ZERO)?;
    }
    cluster.begin(&leader);
    for _ in 0..(LEASE.as_millis() / 10) {
        cluster.step()?;
        healed(cluster, EXECUTORS.len(), Duration::ZERO)?;
    }
    cluster.pass(LEASE)?;
    let after = state(cluster).map(|state| epochs(&state));
    if after != Some(epochs(&before)) {
        return violated("L2", format!("a failover moved shards: {:?} became {after:?}", epochs(&before)));
    }
    stands_still(cluster, LEASE)
}

/// L3: a join moves what the new balance requires and no more.
pub fn join(cluster: &mut Cluster<'_>) -> Result<(), Violation> {
    let Some(before) = state(cluster) else { return Ok(()) };
    cluster.trace.say(&format!("{JOINER} joins, and nothing else happens"));
    cluster.begin(JOINER);
    let executors = EXECUTORS.len() + 1;
    healed(cluster, executors, LEASE + Duration::from_secs(2))?;
    cluster.pass(LEASE)?;
    let Some(after) = state(cluster) else { return Ok(()) };
    let moved = epochs(&before).iter().filter(|(shard, epoch)| epochs(&after).get(shard) != Some(epoch)).count();
    let due = SHARDS as usize / executors;
    if moved != due {
        return violated("L3", format!("{moved} shards moved where {due} were enough"));
    }
    stands_still(cluster, LEASE)
}

/// L1: what a crashed executor served is served elsewhere within a lease and a second.
pub fn crash(cluster: &mut Cluster<'_>) -> Result<(), Violation> {
    let [victim, others @ ..] = EXECUTORS;
    cluster.trace.say(&format!("{victim} crashes, and nothing else happens"));
    cluster.crash(victim);
    let took = healed(cluster, others.len(), LEASE + Duration::from_secs(1))?;
    cluster.trace.say(&format!("{victim} is replaced after {took:?}"));
    cluster.begin(victim);
    healed(cluster, EXECUTORS.len(), LEASE + Duration::from_secs(1))?;
    cluster.pass(LEASE)?;
    stands_still(cluster, LEASE)
}

/// The callers get their last answers, and the counts agree.
pub fn callers(cluster: &mut Cluster<'_>) -> Result<(), Violation> {
    cluster.load.enough();
    let began = cluster.now();
    while !cluster.load.done() {
        if cluster.now() - began > ANSWERED_WITHIN {
            return violated("L1", format!("a caller has no answer {ANSWERED_WITHIN:?} after everything was well"));
        }
        cluster.step()?;
    }
    cluster.invariants.finish()
}
