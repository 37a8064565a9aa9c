//! Placement: least movement against brute force and over 10,000 clusters, spread, limits, convergence.
#![allow(clippy::unwrap_used, reason = "tests")]

use leasehold_model::command::{Command, Draft, Outcome};
use leasehold_model::message::Weight;
use leasehold_model::plan::{Limits, Plan, plan, quotas};
use leasehold_model::state::{ClusterState, Executor, Head, Shard, ShardState};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Revision, ShardCount, ShardEpoch, ShardId, Ttl,
};
use quickcheck::quickcheck;
use std::collections::{BTreeMap, BTreeSet};

/// A small generator, so that ten thousand clusters are the same ten thousand on every machine.
struct Dice(u64);

impl Dice {
    /// `0..sides`, by splitmix64.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

fn id(number: u128) -> ExecutorId {
    ExecutorId::from_u128(number)
}

fn executor(number: u128, weight: u32) -> Executor {
    Executor {
        name: ExecutorName::new(format!("executor-{number}")).unwrap(),
        address: Address::new("localhost:1").unwrap(),
        zone: None,
        weight: Weight::new(weight).unwrap(),
        lease_length: Ttl::from_ms(60_000).unwrap(),
        key_hash: LeaseKeyHash([0; 32]),
        draining: false,
        superseded: false,
        registered_at_ms: 0,
    }
}

/// `owners[shard]` is the number of its owner, 0 for nobody; executors as given.
fn cluster(owners: &[u128], executors: Vec<(u128, Executor)>) -> ClusterState {
    let head = Head {
        cluster: ClusterName::new("test").unwrap(),
        shard_count: ShardCount::new(u32::try_from(owners.len()).unwrap()).unwrap(),
        revision: Revision(7),
    };
    let row = |owner: &u128| Shard {
        epoch: ShardEpoch::new(3).unwrap(),
        state: if *owner == 0 { ShardState::Unassigned } else { ShardState::Owned(id(*owner)) },
    };
    let shards = (0..).map(ShardId).zip(owners.iter().map(row));
    ClusterState::from_rows(head, shards, executors.into_iter().map(|(number, row)| (id(number), row))).unwrap()
}

fn equal(numbers: impl IntoIterator<Item = u128>) -> Vec<(u128, Executor)> {
    numbers.into_iter().map(|number| (number, executor(number, 100))).collect()
}

fn random_cluster(dice: &mut Dice, most_shards: u64, most_executors: u64, one_weight: bool) -> ClusterState {
    let shards = 1 + dice.roll(most_shards);
    let executors = 1 + dice.roll(most_executors);
    let rows = (1..=executors).map(|number| {
        let weight = [100, 100, 1, 7, 50, 200, 1000][if one_weight { 0 } else { dice.roll(7) as usize }];
        let mut row = executor(number.into(), weight);
        row.draining = dice.one_in(8);
        row.superseded = dice.one_in(12);
        (number.into(), row)
    });
    let rows: Vec<(u128, Executor)> = rows.collect();
    let favourite = 1 + dice.roll(executors);
    let head = Head {
        cluster: ClusterName::new("test").unwrap(),
        shard_count: ShardCount::new(u32::try_from(shards).unwrap()).unwrap(),
        revision: Revision(7),
    };
    let shard = |number| {
        let owner = id(if dice.one_in(3) { favourite } else { 1 + dice.roll(executors) }.into());
        let state = match dice.roll(10) {
            0 => ShardState::Unassigned,
            1 => ShardState::Releasing { from: owner, since: Revision(5) },
            _ => ShardState::Owned(owner),
        };
        (ShardId(u32::try_from(number).unwrap()), Shard { epoch: ShardEpoch::new(1 + dice.roll(9)).unwrap(), state })
    };
    let shards: Vec<_> = (0..shards).map(shard).collect();
    ClusterState::from_rows(head, shards, rows.into_iter().map(|(number, row)| (id(number), row))).unwrap()
}

fn counts(state: &ClusterState) -> BTreeMap<ExecutorId, u32> {
    let mut counts: BTreeMap<ExecutorId, u32> = state.executors().map(|(id, _)| (id, 0)).collect();
    for (_, row) in state.shards() {
        if let ShardState::Owned(owner) = row.state {
            *counts.get_mut(&owner).unwrap() += 1;
        }
    }
    counts
}

/// Every way to round the proportional shares to quotas that add up to the shard count.
fn all_roundings(state: &ClusterState) -> Vec<BTreeMap<ExecutorId, u32>> {
    let takers: Vec<(ExecutorId, u64)> = state
        .executors()
        .filter(|(_, row)| row.takes_shards())
        .map(|(id, row)| (id, u64::from(row.weight.get())))
        .collect();
    let total: u64 = takers.iter().map(|(_, weight)| weight).sum();
    let pool = u64::from(state.shard_count.get());
    let mut all = Vec::new();
    for up in 0_u32..1 << takers.len() {
        let mut quotas: BTreeMap<ExecutorId, u32> = state.executors().map(|(id, _)| (id, 0)).collect();
        let mut allowed = true;
        for (at, (id, weight)) in takers.iter().enumerate() {
            let rounded_up = up >> at & 1 == 1;
            allowed &= !rounded_up || !(pool * weight).is_multiple_of(total);
            quotas.insert(*id, u32::try_from(pool * weight / total).unwrap() + u32::from(rounded_up));
        }
        if allowed && quotas.values().sum::<u32>() == state.shard_count.get() {
            all.push(quotas);
        }
    }
    all
}

fn moves_to(quotas: &BTreeMap<ExecutorId, u32>, counts: &BTreeMap<ExecutorId, u32>) -> u32 {
    counts.iter().map(|(id, owned)| owned.saturating_sub(quotas[id])).sum()
}

/// The least moves of all quotas that leave as few executors empty as can be.
fn least_moves(state: &ClusterState) -> u32 {
    let counts = counts(state);
    let empty = |quotas: &BTreeMap<ExecutorId, u32>| quotas.values().filter(|quota| **quota == 0).count();
    all_roundings(state)
        .iter()
        .map(|quotas| (empty(quotas), moves_to(quotas, &counts)))
        .min()
        .map_or(0, |least| least.1)
}

fn apply(state: &ClusterState, command: &Command) -> ClusterState {
    let mut draft = Draft::on(state);
    let _: Outcome = draft.apply(command).unwrap();
    draft.finish().0
}

/// Every executor proves that it let go of what it was releasing.
fn confirm_all(state: &ClusterState) -> ClusterState {
    let mut draft = Draft::on(state);
    for (shard, row) in state.shards() {
        if let ShardState::Releasing { from, .. } = row.state {
            let shards = vec![shard];
            let command = Command::ConfirmRelease { executor: from, applied: state.revision, shards };
            assert_eq!(draft.apply(&command), Ok(Outcome::Changed));
        }
    }
    draft.finish().0
}

/// Plans, carries out and confirms until nothing is left to do: the shards moved and the state reached.
fn settle(mut state: ClusterState, limits: &Limits) -> (u32, ClusterState) {
    let mut moved = 0;
    for _ in 0..1_000 {
        let next = plan(&state, limits);
        let releasing = state.totals().releasing;
        if next.is_empty() && releasing == 0 {
            return (moved, state);
        }
        moved += u32::try_from(next.releases.len()).unwrap();
        state = confirm_all(&apply(&state, &Command::Plan(next)));
    }
    panic!("no end to it: {state:?}");
}

/// L3: the proof on tiny clusters, by trying every rounding.
#[test]
fn no_rounding_of_the_shares_needs_fewer_moves() {
    let mut dice = Dice(1);
    for _ in 0..4_000 {
        let state = random_cluster(&mut dice, 14, 6, false);
        let planned = plan(&state, &Limits::none());
        let takers = state.executors().filter(|(_, row)| row.takes_shards()).count();
        let least = if takers == 0 { 0 } else { least_moves(&state) };
        assert_eq!(planned.releases.len(), least as usize, "{planned:?} for {state:?}");
        let quotas = quotas(&state, &Limits::none());
        assert_eq!(takers > 0, all_roundings(&state).contains(&quotas), "{quotas:?} for {state:?}");
    }
}

/// L3, L2, R28: over 10,000 clusters of up to 96 shards and 24 executors, to the end. What is moved in all is what the quotas
/// reached require of the first state, and the cluster then stands still.
#[test]
fn ten_thousand_clusters_reach_balance_with_no_move_too_many() {
    let mut dice = Dice(2);
    for round in 0..10_000 {
        let one_weight = round % 2 == 0;
        let state = random_cluster(&mut dice, 96, 24, one_weight);
        let max_moves = if dice.one_in(2) { u32::MAX } else { 10 + u32::try_from(dice.roll(40)).unwrap() };
        let limits = Limits { max_moves, ..Limits::none() };
        let first = plan(&state, &Limits::none()).releases.len();
        let (moved, settled) = settle(state.clone(), &limits);
        assert_eq!(moved as usize, first, "moves beyond the least for {state:?}");
        assert_eq!(moves_to(&counts(&settled), &counts(&state)), moved, "each shard moved once");
        if settled.executors().any(|(_, row)| row.takes_shards()) {
            assert_eq!(settled.totals().unassigned, 0);
            let reached = counts(&settled);
            assert_eq!(reached, quotas(&settled, &limits));
            let spread: Vec<u32> =
                settled.executors().filter(|(_, row)| row.takes_shards()).map(|(id, _)| reached[&id]).collect();
            let (least, most) = (spread.iter().min().unwrap(), spread.iter().max().unwrap());
            assert!(!one_weight || most - least <= 1, "spread {spread:?}");
        }
    }
}

quickcheck! {
    fn a_plan_fits_the_state_it_was_made_from(seed: u64, max_moves: u8) -> bool {
        let mut dice = Dice(seed);
        let state = random_cluster(&mut dice, 80, 10, false);
        let keep_only = state.executors().map(|(id, _)| id).filter(|_| dice.one_in(4)).collect();
        let limits = Limits { max_moves: max_moves.into(), keep_only };
        let planned = plan(&state, &limits);
        let ascends = |list: &[(ShardId, ExecutorId)]| list.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let owned = planned.releases.iter().all(|(shard, from)| state.shard(*shard).unwrap().state == ShardState::Owned(*from));
        let free = planned.grants.iter().all(|(shard, to)| {
            state.shard(*shard).unwrap().state == ShardState::Unassigned
                && state.executor(*to).unwrap().takes_shards()
                && !limits.keep_only.contains(to)
        });
        let releasing = state.totals().releasing + u32::try_from(planned.releases.len()).unwrap();
        let within = planned.releases.is_empty() || releasing <= u32::from(max_moves);
        let somebody_gains = state.executors().any(|(id, row)| row.takes_shards() && !limits.keep_only.contains(&id));
        let all_out = planned.grants.len() == if somebody_gains { state.totals().unassigned as usize } else { 0 };
        planned.revision == state.revision && owned && free && within && all_out
            && ascends(&planned.releases) && ascends(&planned.grants) && plan(&state, &limits) == planned
    }

    /// R28: what has no owner goes to whoever is then furthest below quota.
    fn each_grant_goes_to_whoever_is_furthest_below_quota(seed: u64) -> bool {
        let state = random_cluster(&mut Dice(seed), 80, 10, false);
        let limits = Limits::none();
        let quotas = quotas(&state, &limits);
        let mut given: BTreeMap<ExecutorId, u32> = BTreeMap::new();
        for (_, to) in plan(&state, &limits).grants {
            *given.entry(to).or_default() += 1;
        }
        let counts = counts(&state);
        let left = |id: &ExecutorId| {
            quotas[id].saturating_sub(counts[id]) - given.get(id).copied().unwrap_or(0)
        };
        let deepest = quotas.keys().map(left).max().unwrap_or(0);
        given.keys().all(|id| left(id) + 1 >= deepest)
    }

    /// Case 12, case 13: executors that may only keep do so without moving anything to and fro.
    fn a_cluster_with_unreachable_executors_settles_too(seed: u64) -> bool {
        let mut dice = Dice(seed);
        let state = random_cluster(&mut dice, 80, 10, false);
        let keep_only: BTreeSet<_> = state.executors().map(|(id, _)| id).filter(|_| dice.one_in(3)).collect();
        let limits = Limits { max_moves: 5, keep_only };
        let (before, quotas) = (counts(&state), quotas(&state, &limits));
        let (moved, settled) = settle(state, &limits);
        let after = counts(&settled);
        let kept = limits.keep_only.iter().all(|id| after[id] <= before[id]);
        kept && (quotas.is_empty() || moved == moves_to(&quotas, &before) && after == quotas)
    }
}

/// Case 46.
#[test]
fn counts_differ_by_at_most_one_however_many_executors() {
    for executors in [600, 200, 10, 1, 1_024] {
        let state = cluster(&[0; 1_024], equal(1..=executors));
        let (moved, settled) = settle(state, &Limits::none());
        let counts = counts(&settled);
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert_eq!(moved, 0);
        assert!(*least >= 1 && most - least <= 1, "{executors} executors: {least}..={most}");
    }
}

/// Case 13: 1 -> 3 -> 5 -> 2 executors on 1,024 shards.
#[test]
fn joins_and_leaves_move_only_what_balance_needs() {
    let (moved, one) = settle(cluster(&[0; 1_024], equal(1..=1)), &Limits::none());
    assert_eq!(moved, 0);
    let join = |state: &ClusterState, number| {
        let command = Command::Register { id: id(number), executor: executor(number, 100), replaces: None };
        apply(state, &command)
    };
    let (moved, three) = settle(join(&join(&one, 2), 3), &Limits::none());
    assert_eq!(moved, 1_024 - 342);
    let (moved, five) = settle(join(&join(&three, 4), 5), &Limits::none());
    assert_eq!(moved, 205 + 204);
    let mut state = five;
    for number in 1..=3 {
        state = apply(&state, &Command::Deregister(id(number)));
    }
    let (moved, two) = settle(state, &Limits::none());
    assert_eq!(moved, 0, "what the leavers had goes out, nothing else moves");
    assert!(counts(&two).values().all(|count| *count == 512));
    assert!(plan(&two, &Limits::none()).is_empty());
}

/// R43: proportional, and the smallest still gets one.
#[test]
fn shares_follow_the_weights() {
    let weights = vec![(1, executor(1, 200)), (2, executor(2, 100)), (3, executor(3, 100))];
    let (_, settled) = settle(cluster(&[0; 8], weights), &Limits::none());
    assert_eq!(counts(&settled).into_values().collect::<Vec<_>>(), [4, 2, 2]);
    let lopsided = || vec![(1, executor(1, 1_000)), (2, executor(2, 1)), (3, executor(3, 1_000))];
    let (_, settled) = settle(cluster(&[0; 9], lopsided()), &Limits::none());
    assert_eq!(counts(&settled).into_values().collect::<Vec<_>>(), [4, 1, 4], "not left empty");
    let (moved, settled) = settle(cluster(&[1, 1, 1, 1, 3, 3, 3, 3, 3], lopsided()), &Limits::none());
    assert_eq!((moved, counts(&settled)[&id(2)]), (1, 1), "nor if that takes a move");
}

/// A share without a fraction is the quota: owning more than it gives no claim to the odd shard.
#[test]
fn an_exact_share_is_not_rounded_up() {
    let weights = || vec![(1, executor(1, 200)), (2, executor(2, 100)), (3, executor(3, 100))];
    let state = cluster(&[1, 1, 1, 1, 1, 1, 2, 2, 3, 3], weights());
    assert_eq!(quotas(&state, &Limits::none()).into_values().collect::<Vec<_>>(), [5, 3, 2]);
    assert_eq!(plan(&state, &Limits::none()).releases, [(ShardId(0), id(1))]);
}

/// Case 46: with fewer shards than executors nobody gets two.
#[test]
fn too_few_shards_are_not_piled_up() {
    let (_, settled) = settle(cluster(&[0; 3], equal(1..=5)), &Limits::none());
    assert_eq!(counts(&settled).into_values().collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
}

/// Ties: who owns more first, then the greater fraction, then the smaller id.
#[test]
fn the_odd_shard_stays_where_it_is_or_goes_by_fraction_and_then_by_id() {
    let state = cluster(&[1, 1, 2, 2, 2], equal(1..=2));
    assert!(plan(&state, &Limits::none()).is_empty(), "the second keeps three");
    let by_id = plan(&cluster(&[0; 5], equal(1..=2)), &Limits::none());
    assert_eq!(by_id.grants.iter().filter(|(_, to)| *to == id(1)).count(), 3);
    let unequal = vec![(1, executor(1, 100)), (2, executor(2, 130))];
    let by_fraction = quotas(&cluster(&[0; 5], unequal), &Limits::none());
    assert_eq!(by_fraction.into_values().collect::<Vec<_>>(), [2, 3], "2.17 and 2.83");
}

/// Case 11: no path gives them anything.
#[test]
fn those_who_leave_give_up_everything_and_are_given_nothing() {
    let mut executors = equal(1..=3);
    executors[0].1.draining = true;
    executors[1].1.superseded = true;
    let planned = plan(&cluster(&[1, 1, 2, 3, 0, 0], executors), &Limits::none());
    assert_eq!(planned.releases, [(ShardId(0), id(1)), (ShardId(1), id(1)), (ShardId(2), id(2))]);
    assert_eq!(planned.grants, [(ShardId(4), id(3)), (ShardId(5), id(3))]);
}

#[test]
fn nobody_gives_up_a_shard_that_nobody_could_take() {
    let mut leaving = equal(1..=2);
    leaving.iter_mut().for_each(|(_, row)| row.draining = true);
    assert!(plan(&cluster(&[1, 2, 0], leaving), &Limits::none()).is_empty());
    let unreachable = Limits { keep_only: [id(1), id(2)].into(), ..Limits::none() };
    assert!(plan(&cluster(&[1, 1, 1, 0], equal(1..=2)), &unreachable).is_empty());
    assert!(quotas(&cluster(&[1, 1, 1, 0], equal(1..=2)), &unreachable).is_empty());
    assert!(plan(&cluster(&[0, 0], vec![]), &Limits::none()).is_empty());
}

/// Case 9: the silent executor keeps up to its share; the others serve the rest.
#[test]
fn an_unreachable_executor_keeps_its_share_at_most_and_gains_nothing() {
    let limits = Limits { keep_only: [id(1)].into(), ..Limits::none() };
    let keeps_less = cluster(&[1, 2, 2, 3, 3, 3, 0, 0, 0], equal(1..=3));
    assert_eq!(quotas(&keeps_less, &limits).into_values().collect::<Vec<_>>(), [1, 4, 4]);
    let planned = plan(&keeps_less, &limits);
    assert!(planned.releases.is_empty());
    assert_eq!(planned.grants, [(ShardId(6), id(2)), (ShardId(7), id(2)), (ShardId(8), id(3))]);
    let has_more = cluster(&[1, 1, 1, 1, 1, 2, 2, 3, 3], equal(1..=3));
    assert_eq!(quotas(&has_more, &limits).into_values().collect::<Vec<_>>(), [3, 3, 3]);
    assert_eq!(plan(&has_more, &limits).releases, [(ShardId(0), id(1)), (ShardId(1), id(1))]);
}

/// R28: and what is on its way out already counts.
#[test]
fn releases_are_limited_from_whoever_has_most_too_many() {
    let crowded = cluster(&[1, 1, 1, 1, 1, 2, 2, 2, 2, 0], equal(1..=5));
    let limits = |max_moves| Limits { max_moves, ..Limits::none() };
    let releases = |state: &ClusterState, max_moves| plan(state, &limits(max_moves)).releases;
    assert!(releases(&crowded, 0).is_empty());
    assert_eq!(releases(&crowded, 1), [(ShardId(0), id(1))]);
    assert_eq!(releases(&crowded, 2), [(ShardId(0), id(1)), (ShardId(1), id(1))]);
    assert_eq!(releases(&crowded, 3), [(ShardId(0), id(1)), (ShardId(1), id(1)), (ShardId(5), id(2))]);
    assert_eq!(releases(&crowded, 99).len(), 5);
    assert_eq!(plan(&crowded, &limits(0)).grants.len(), 1, "grants are not limited");
    let under_way = apply(&crowded, &Command::Plan(plan(&crowded, &limits(2))));
    assert_eq!(under_way.totals().releasing, 2);
    assert!(releases(&under_way, 2).is_empty());
    assert_eq!(releases(&under_way, 3).len(), 1);
}

/// R28, L3: nothing more is moved to fill the room that is kept for a shard on its way.
#[test]
fn room_is_kept_for_a_shard_that_is_being_released() {
    let state = cluster(&[1, 1, 1, 1], equal(1..=2));
    let under_way = apply(&state, &Command::Plan(plan(&state, &Limits::none())));
    assert_eq!(under_way.totals().releasing, 2);
    assert!(plan(&under_way, &Limits::none()).is_empty(), "not granted before it is proved, not released twice");
    let freed = confirm_all(&under_way);
    assert_eq!(plan(&freed, &Limits::none()).grants, [(ShardId(0), id(2)), (ShardId(1), id(2))]);
}

/// Case 33: an exhausted epoch cannot be followed by another owner's.
#[test]
fn a_shard_whose_epochs_are_exhausted_is_neither_granted_nor_taken() {
    let head = Head {
        cluster: ClusterName::new("test").unwrap(),
        shard_count: ShardCount::new(6).unwrap(),
        revision: Revision(7),
    };
    let last = |state| Shard { epoch: ShardEpoch::MAX, state };
    let usual = |state| Shard { epoch: ShardEpoch::new(1).unwrap(), state };
    let shards = [
        last(ShardState::Unassigned),
        last(ShardState::Owned(id(1))),
        usual(ShardState::Owned(id(1))),
        usual(ShardState::Owned(id(1))),
        usual(ShardState::Owned(id(1))),
        usual(ShardState::Unassigned),
    ];
    let executors = equal(1..=2).into_iter().map(|(number, row)| (id(number), row));
    let state = ClusterState::from_rows(head, (0..).map(ShardId).zip(shards), executors).unwrap();
    assert_eq!(quotas(&state, &Limits::none()).values().sum::<u32>(), 5, "nobody's share counts what nobody can own");
    let planned = plan(&state, &Limits::none());
    assert_eq!(planned.releases, [(ShardId(2), id(1))]);
    assert_eq!(planned.grants, [(ShardId(5), id(2))]);
    let (_, settled) = settle(state, &Limits::none());
    assert_eq!(settled.shard(ShardId(0)).unwrap().state, ShardState::Unassigned);
}

#[test]
fn a_plan_is_empty_only_without_releases_and_grants() {
    assert!(Plan::default().is_empty());
    assert!(!Plan { releases: vec![(ShardId(1), id(1))], ..Plan::default() }.is_empty());
    assert!(!Plan { grants: vec![(ShardId(1), id(1))], ..Plan::default() }.is_empty());
}
