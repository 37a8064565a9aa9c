//! The planner: its time against the plainest pass over the shards, its moves against the least there can be.

use crate::cluster::{cluster_name, owned_by, registration};
use crate::figure::{Measured, Result};
use crate::rounds::{Dice, in_turns_sync};
use leasehold_actors::lease_key::key_hash;
use leasehold_model::command::{Command, Draft};
use leasehold_model::message::Weight;
use leasehold_model::plan::{Limits, plan};
use leasehold_model::state::{ClusterState, Executor, Head, Shard, ShardState};
use leasehold_model::{ExecutorId, Revision, ShardCount, ShardEpoch, ShardId, Ttl};
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::time::{Duration, Instant};

fn row(number: usize) -> Result<(ExecutorId, Executor)> {
    let from = registration(number)?;
    let executor = Executor {
        name: from.name,
        address: from.address,
        zone: from.zone,
        weight: from.weight,
        lease_length: Ttl::from_ms(60_000)?,
        key_hash: key_hash(&from.lease_key),
        draining: false,
        superseded: false,
        registered_at_ms: 0,
    };
    Ok((from.executor, executor))
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

/// `plan_vs_counting`: 65,536 shards, 1,000 executors, one gone and one new; against counting once who owns how many.
pub async fn plan_against_counting() -> Result<Measured> {
    let state = owned_by(65_536, 1000)?;
    let gone = state.executors().nth(500).map(|(id, _)| id).ok_or("no executors")?;
    let (id, executor) = row(1000)?;
    let mut draft = Draft::on(&state);
    let _ = draft.apply(&Command::Deregister(gone))?;
    let _ = draft.apply(&Command::Register { id, executor, replaces: None })?;
    let (state, _) = draft.finish();
    let limits = Limits::none();
    let subject = || {
        let began = Instant::now();
        black_box(plan(black_box(&state), &limits));
        micros(began.elapsed())
    };
    let baseline = || {
        let began = Instant::now();
        let mut counts: HashMap<ExecutorId, u32> = HashMap::new();
        for (_, row) in black_box(&state).shards() {
            if let ShardState::Owned(owner) = row.state {
                *counts.entry(owner).or_default() += 1;
            }
        }
        black_box(counts);
        micros(began.elapsed())
    };
    in_turns_sync(101, subject, baseline).await
}

/// A cluster of 1 to 200 shards and 1 to 24 executors in some disorder; half of them with different weights.
fn random_cluster(dice: &Dice) -> Result<ClusterState> {
    let (shards, executors) = (1 + dice.roll(200), 1 + dice.roll(24));
    let weighted = dice.roll(2) == 0;
    let rows = (1..=executors).map(|number| {
        let (_, mut executor) = row(usize::try_from(number)?)?;
        executor.weight = Weight::new([100, 1, 7, 50, 200, 1000][if weighted { dice.roll(6) as usize } else { 0 }])?;
        executor.draining = dice.roll(8) == 0;
        executor.superseded = dice.roll(12) == 0;
        Ok((ExecutorId::from_u128(number.into()), executor))
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let favourite = 1 + dice.roll(executors);
    let shard = |number| {
        let owner = if dice.roll(3) == 0 { favourite } else { 1 + dice.roll(executors) };
        let state = match dice.roll(10) {
            0 => ShardState::Unassigned,
            _ => ShardState::Owned(ExecutorId::from_u128(owner.into())),
        };
        Ok((ShardId(u32::try_from(number)?), Shard { epoch: ShardEpoch::owned(1 + dice.roll(9))?, state }))
    };
    let rows_of_shards = (0..shards).map(shard).collect::<Result<Vec<_>>>()?;
    let shard_count = ShardCount::new(u32::try_from(shards)?)?;
    let head = Head { cluster: cluster_name()?, shard_count, revision: Revision(7) };
    Ok(ClusterState::from_rows(head, rows_of_shards, rows)?)
}

/// The least moves that balance needs, found without the planner: every executor that takes shards ends with its proportional share
/// rounded down or up, all of them together with every shard. Of all such roundings (by dynamic programming over the executors) those that leave
/// the fewest executors empty count, and of these the one that takes the fewest shards away.
fn least_moves(state: &ClusterState) -> u64 {
    let mut owned: BTreeMap<ExecutorId, u64> = BTreeMap::new();
    for (_, row) in state.shards() {
        if let ShardState::Owned(owner) = row.state {
            *owned.entry(owner).or_default() += 1;
        }
    }
    let owned = |id: &ExecutorId| owned.get(id).copied().unwrap_or(0);
    let (takers, leavers): (Vec<_>, Vec<_>) = state.executors().partition(|(_, row)| row.takes_shards());
    if takers.is_empty() {
        return 0;
    }
    let pool = u64::from(state.shard_count.get());
    let total: u64 = takers.iter().map(|(_, row)| u64::from(row.weight.get())).sum();
    // By how many are rounded up so far: the fewest (empty executors, moves).
    let mut best: Vec<Option<(u64, u64)>> = vec![Some((0, 0))];
    let mut floors = 0;
    for (id, row) in &takers {
        let portion = pool * u64::from(row.weight.get());
        let (floor, owned) = (portion / total, owned(id));
        floors += floor;
        let cost = |quota: u64| (u64::from(quota == 0), owned.saturating_sub(quota));
        let plus = |(empty, moves): (u64, u64), quota| (empty + cost(quota).0, moves + cost(quota).1);
        let up_allowed = !portion.is_multiple_of(total);
        let next = (0..=best.len()).map(|ups| {
            let down = best.get(ups).copied().flatten().map(|so_far| plus(so_far, floor));
            let before = ups.checked_sub(1).and_then(|before| best.get(before).copied().flatten());
            let up = before.filter(|_| up_allowed).map(|so_far| plus(so_far, floor + 1));
            down.into_iter().chain(up).min()
        });
        best = next.collect();
    }
    let ups = usize::try_from(pool - floors).unwrap_or(usize::MAX);
    let moves_of_takers = best.get(ups).copied().flatten().map_or(u64::MAX, |(_, moves)| moves);
    moves_of_takers + leavers.iter().map(|(id, _)| owned(id)).sum::<u64>()
}

/// Plans, carries out and lets go until nothing is left to do; how many shards were taken away from an owner.
fn moves_until_balanced(mut state: ClusterState, limits: &Limits) -> Result<u64> {
    let mut moves = 0;
    for _ in 0..1000 {
        let planned = plan(&state, limits);
        if planned.is_empty() {
            return Ok(moves);
        }
        moves += planned.releases.len() as u64;
        let released = planned.releases.clone();
        let mut draft = Draft::on(&state);
        let _ = draft.apply(&Command::Plan(planned))?;
        state = draft.finish().0;
        let mut draft = Draft::on(&state);
        for (shard, executor) in released {
            let _ = draft.apply(&Command::ConfirmRelease { executor, applied: state.revision, shards: vec![shard] })?;
        }
        state = draft.finish().0;
    }
    Err("a cluster does not come to rest".into())
}

/// `plan_excess_moves`: in all 10,000 clusters together; the baseline is what had to move.
pub async fn excess_moves() -> Result<Measured> {
    let dice = Dice::new(7);
    let (mut excess, mut least) = (0, 0);
    for round in 0..10_000 {
        let state = random_cluster(&dice)?;
        let max_moves = if round % 2 == 0 { u32::MAX } else { 5 + u32::try_from(dice.roll(40))? };
        let needed = least_moves(&state);
        let moved = moves_until_balanced(state, &Limits { max_moves, ..Limits::none() })?;
        least += needed;
        excess += moved.abs_diff(needed);
    }
    Ok(Measured { value: excess as f64, baseline: least as f64 })
}
