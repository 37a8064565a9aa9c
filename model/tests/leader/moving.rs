use crate::world::{World, executor, nothing, settings};
use leasehold_model::command::Command;
use leasehold_model::leader::Settings;
use leasehold_model::set::Holdings;
use leasehold_model::state::ShardState;
use leasehold_model::{Claim, ManagerId, Revision, ShardEpoch};
use std::sync::Arc;
use std::time::Duration;

/// A owns all eight, B has joined: four are being released by A.
fn half_way() -> World {
    let mut w = World::new(8);
    w.register(1);
    w.renew(1);
    let claim = w.claim_of_last_push(1);
    w.push_answered(1, claim);
    w.register(2);
    w
}

/// R24, R25, case 6: narrowed first, granted only after proof.
#[test]
fn a_shard_moves_in_two_commits() {
    let mut w = half_way();
    assert_eq!((w.owned(1), w.releasing(1).len(), w.owned(2)), (4, 4, 0));
    let narrowed = w.pushed(1).set.clone();
    assert_eq!(narrowed.shards.len(), 4, "neither a push nor a renewal can hand it back");
    let renewal = w.renew_with(w.facts(1, w.claim_of_last_push(1), 9));
    assert_eq!(w.grant(renewal).set.shards.len(), 4);
    assert_eq!((w.owned(1), w.owned(2)), (4, 4));
    assert!(w.pushed(2).set.shards.iter().all(|(_, epoch)| epoch == ShardEpoch::new(2).unwrap()));
}

/// R26 (a): the claim names this process, a revision no older than the release, and lacks the shard.
#[test]
fn an_older_claim_proves_nothing() {
    let mut w = half_way();
    let since = w.stored.revision;
    for applied in [0, since.0 - 1] {
        w.push_answered(1, nothing(w.core.manager(), Revision(applied)));
        assert_eq!(w.releasing(1).len(), 4, "a delivery still in flight could be adopted after it");
    }
    w.push_answered(1, nothing(w.core.manager(), since));
    assert_eq!((w.releasing(1).len(), w.owned(2)), (0, 4));
}

/// R26 (a): not even one whose revision would fit here.
#[test]
fn a_claim_under_another_manager_proves_nothing() {
    let mut w = half_way();
    for applied in [w.stored.revision, Revision(1_000_000)] {
        w.push_answered(1, nothing(ManagerId::from_u128(99), applied));
        w.renew_with(w.facts(1, nothing(ManagerId::from_u128(99), applied), 0));
        w.pass_time(Duration::from_secs(20));
        assert_eq!((w.releasing(1).len(), w.owned(2)), (4, 0));
    }
}

/// R22, R26 (a): a shard that still drains is still in the claim.
#[test]
fn a_draining_shard_is_not_given_away() {
    let mut w = half_way();
    let releasing = w.releasing(1);
    let mut shards: Vec<_> = w.pushed(1).set.shards.iter().collect();
    shards.push((releasing[0], ShardEpoch::new(1).unwrap()));
    let claim = Claim { manager: w.core.manager(), applied: w.stored.revision, shards: Holdings::new(shards).unwrap() };
    w.push_answered(1, claim);
    assert_eq!((w.releasing(1), w.owned(2)), (vec![releasing[0]], 3));
    w.push_answered(1, w.claim_of_last_push(1));
    assert_eq!(w.owned(2), 4);
}

/// R26: an executor proves only for itself.
#[test]
fn another_executors_claim_proves_nothing() {
    let mut w = half_way();
    w.push_answered(2, nothing(w.core.manager(), w.stored.revision));
    assert_eq!(w.releasing(1).len(), 4);
}

/// R26 (c), R44
#[test]
fn a_lease_that_ends_frees_what_was_being_released() {
    let mut w = half_way();
    w.renew(2);
    for _ in 0..7 {
        w.pass_time(Duration::from_secs(10));
        w.renew_with(w.facts(2, w.up_to_date_claim(2), i64::MAX as u64));
    }
    assert!(w.stored.executor(executor(1)).is_none());
    assert_eq!(w.owned(2), 8);
}

/// Case 1, R27: a lost answer is no "no"; the next renewal heals it and the same plan is not repeated.
#[test]
fn a_push_whose_answer_is_lost_is_healed_by_the_next_renewal() {
    let mut w = half_way();
    let plans = |w: &World| w.written.iter().flatten().filter(|c| matches!(c, Command::Plan(_))).count();
    let before = plans(&w);
    w.pass_time(Duration::from_secs(20));
    assert_eq!(plans(&w), before, "nothing is repeated while nothing is known");
    w.renew_with(w.facts(1, w.claim_of_last_push(1), 9));
    assert_eq!((w.owned(1), w.owned(2), w.releasing(1).len()), (4, 4, 0));
    w.push_answered(2, w.claim_of_last_push(2));
    let (revision, epochs) = (w.stored.revision, w.epochs());
    for _ in 0..5 {
        w.pass_time(Duration::from_secs(10));
        w.renew(1);
        w.renew(2);
    }
    assert_eq!((w.stored.revision, w.epochs()), (revision, epochs), "with nothing changing the revision stands still");
}

/// Two commits, one of them carrying proof and grant together (R25).
#[test]
fn release_and_grant_land_in_one_write() {
    let mut w = half_way();
    let revision = w.stored.revision;
    w.push_answered(1, w.claim_of_last_push(1));
    assert_eq!(w.stored.revision, revision.next());
}

/// R28
#[test]
fn moves_on_their_way_are_limited_and_unassigned_shards_are_not() {
    let few = Settings { max_moves: 3, ..settings() };
    let mut w = World::with(64, few);
    w.register(1);
    assert_eq!(w.owned(1), 64, "all in one commit");
    w.push_answered(1, w.claim_of_last_push(1));
    w.register(2);
    let mut passes = 0;
    while !w.releasing(1).is_empty() {
        assert!(w.releasing(1).len() <= 3);
        w.push_answered(1, w.claim_of_last_push(1));
        passes += 1;
        assert!(passes < 100);
    }
    assert_eq!((w.owned(1), w.owned(2)), (32, 32));
}

/// R29
#[test]
fn a_shard_regained_while_it_drains_comes_back_under_a_new_epoch() {
    let mut w = half_way();
    let releasing = w.releasing(1);
    w.deregister(2);
    assert_eq!(w.releasing(1), releasing, "it is still letting go");
    w.push_answered(1, w.claim_of_last_push(1));
    assert_eq!(w.owned(1), 8);
    for shard in releasing {
        assert_eq!(w.epochs()[shard.index()], ShardEpoch::new(2).unwrap());
    }
}

/// Case 11: no path gives anything to somebody leaving.
#[test]
fn whoever_drains_is_given_nothing_and_gives_everything_back() {
    let mut w = World::new(9);
    for n in 1..=3 {
        w.register(n);
        w.renew(n);
    }
    for _ in 0..3 {
        for n in 1..=3 {
            w.push_answered(n, w.claim_of_last_push(n));
        }
    }
    w.drain("e2", true);
    w.deregister(1);
    for _ in 0..3 {
        w.push_answered(2, w.claim_of_last_push(2));
        w.push_answered(3, w.claim_of_last_push(3));
        w.renew(2);
        w.renew(3);
    }
    assert_eq!((w.owned(2), w.owned(3)), (0, 9));
    w.drain("e2", false);
    assert_eq!(w.releasing(3).len(), 4, "and takes its share when it stays after all");
}

/// Case 9: nothing new for one that does not answer; the others' shards go where they are served.
#[test]
fn an_executor_that_does_not_answer_is_given_nothing_new() {
    let mut w = World::new(12);
    for n in 1..=3 {
        w.register(n);
        w.renew(n);
    }
    for _ in 0..3 {
        for n in 1..=3 {
            w.push_answered(n, w.claim_of_last_push(n));
            w.renew(n);
        }
    }
    assert_eq!((w.owned(1), w.owned(2), w.owned(3)), (4, 4, 4));
    // 3 falls silent just after 1 is gone; 2 lives.
    for _ in 0..4 {
        w.pass_time(Duration::from_secs(10));
        w.renew(2);
    }
    w.deregister(1);
    assert_eq!((w.owned(2), w.owned(3)), (8, 4));
    assert!(w.core.status(w.now).troubles.iter().any(|t| t.contains("e3 is silent")));
    w.renew(3);
    w.push_answered(2, w.claim_of_last_push(2));
    w.renew(2);
    assert_eq!((w.owned(2), w.owned(3)), (6, 6), "it converges when it wakes");
}

/// L3, case 13: the joins of a growing cluster settle, and a restart moves nothing.
#[test]
fn a_growing_and_shrinking_cluster_settles_with_a_spread_of_one() {
    let mut w = World::new(1024);
    let settle = |w: &mut World, live: &[u128]| {
        for _ in 0..40 {
            for n in live {
                w.renew_with(w.facts(*n, w.claim_of(*n), i64::MAX as u64));
            }
        }
        let counts: Vec<usize> = live.iter().map(|n| w.owned(*n)).collect();
        assert_eq!(counts.iter().sum::<usize>(), 1024, "{counts:?}");
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    };
    w.register(1);
    settle(&mut w, &[1]);
    w.register(2);
    w.now = w.now.plus(Duration::from_millis(200));
    w.register(3);
    settle(&mut w, &[1, 2, 3]);
    w.register(4);
    w.register(5);
    settle(&mut w, &[1, 2, 3, 4, 5]);
    for gone in [1, 3, 5] {
        w.deregister(gone);
    }
    settle(&mut w, &[2, 4]);
    let (owners, revision) = (w.owners(), w.stored.revision);
    settle(&mut w, &[2, 4]);
    assert_eq!(w.stored.revision, revision);
    let mut next = World::take_over(Arc::clone(&w.stored), settings(), ManagerId::from_u128(2), w.now);
    settle(&mut next, &[2, 4]);
    assert_eq!(next.owners(), owners);
}

impl World {
    /// What `n` would claim having applied everything that is stored.
    fn claim_of(&self, n: u128) -> Claim {
        self.up_to_date_claim(n)
    }
}

/// Case 46
#[test]
fn with_more_executors_than_even_shares_everybody_gets_one() {
    let mut w = World::with(1024, Settings { settle: Duration::from_secs(3), ..settings() });
    for n in 1..=600 {
        w.register(n);
    }
    w.pass_time(Duration::from_secs(4));
    let counts: Vec<usize> = {
        let mut by = std::collections::BTreeMap::new();
        for (_, row) in w.stored.shards() {
            let ShardState::Owned(owner) = row.state else { panic!("unassigned") };
            *by.entry(owner).or_insert(0) += 1;
        }
        by.into_values().collect()
    };
    assert_eq!(counts.len(), 600);
    assert!(counts.iter().all(|count| (1..=2).contains(count)));
}

/// Case 9: its first sign of life is enough, it does not wait for the next pass.
#[test]
fn whoever_wakes_is_given_what_is_free_with_its_first_renewal() {
    let mut w = World::new(8);
    w.settle(&[1, 2]);
    w.now = w.now.plus(Duration::from_secs(31));
    w.deregister(1);
    assert_eq!(w.owned(2), 4);
    w.renew(2);
    assert_eq!(w.owned(2), 8);
}

/// R32: what has been proven once is not confirmed again.
#[test]
fn a_proven_release_is_forgotten_when_it_is_stored() {
    let mut w = half_way();
    w.push_answered(1, w.claim_of_last_push(1));
    w.written.clear();
    for _ in 0..3 {
        w.renew(1);
        w.renew(2);
        w.pass_time(Duration::from_secs(20));
    }
    assert!(w.written.is_empty(), "{:?}", w.written);
}
