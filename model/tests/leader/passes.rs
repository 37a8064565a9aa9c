use crate::world::{LEASE, World, executor, nothing, settings};
use leasehold_model::command::Command;
use leasehold_model::leader::{CommitFailure, Effect, Note, Reply, Settings};
use leasehold_model::{ManagerId, Refusal, Revision, Tick};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// R32
#[test]
fn the_first_write_of_a_store_is_made_for_nothing_and_no_other() {
    let mut w = World::new(8);
    assert_eq!(w.stored.revision, Revision(1));
    for _ in 0..10 {
        w.pass_time(LEASE);
    }
    assert_eq!(w.stored.revision, Revision(1));
}

/// R30, R31: armed at the earliest deadline; lapsed leases first, in a commit of their own.
#[test]
fn a_lapsed_lease_is_reaped_at_its_deadline_before_anything_is_planned() {
    let mut w = World::new(8);
    w.register(1);
    w.now = w.now.plus(Duration::from_secs(30));
    w.register(2);
    w.written.clear();
    let ends = w.deadline(1);
    w.pass_time(ends.since(w.now) - Duration::from_nanos(1));
    assert!(w.stored.executor(executor(1)).is_some());
    w.pass_time(Duration::from_nanos(1));
    assert_eq!(w.now, ends);
    assert!(w.stored.executor(executor(1)).is_none());
    let reap = w.written.iter().position(|batch| matches!(batch[..], [Command::Reap(_)])).unwrap();
    let grants =
        |batch: &Vec<Command>| batch.iter().any(|c| matches!(c, Command::Plan(plan) if !plan.grants.is_empty()));
    assert!(w.written[reap + 1..].iter().any(grants));
    assert!(!grants(&w.written[reap]));
}

/// R30: at least every third of a lease, without a timer setting of its own.
#[test]
fn the_timer_is_always_armed_within_a_third_of_a_lease() {
    let mut w = World::new(8);
    for _ in 0..20 {
        assert!(w.armed <= w.now.plus(LEASE / 3));
        w.now = w.armed;
        w.armed = Tick::NEVER;
        w.step(leasehold_model::leader::Event::Timer);
    }
}

/// A renewal that comes while its executor is being reaped is decided when the write's outcome is known.
#[test]
fn a_renewal_during_its_reaping_waits_for_the_writes_outcome() {
    for stored in [true, false] {
        let mut w = World::new(8);
        w.register(1);
        w.prompt = false;
        let ends = w.deadline(1);
        w.pass_time(ends.since(w.now));
        let renewal = w.renew(1);
        w.confirm();
        assert!(!w.replies.contains_key(&renewal), "neither granted nor refused yet");
        if stored {
            w.commit_next();
            w.be_prompt();
            assert_eq!(*w.refusal(renewal), Refusal::UnknownExecutor);
        } else {
            w.fail_next(CommitFailure::Unavailable("locked".to_owned()));
            w.confirm();
            w.grant(renewal);
            assert!(w.deadline(1) > w.now);
        }
    }
}

/// Case 26: a write that the store refuses again and again is no news; a lease that ends once more is.
#[test]
fn the_end_of_a_lease_is_noted_once_however_often_its_reaping_is_refused() {
    let mut w = World::new(8);
    w.register(1);
    w.prompt = false;
    let lapsed = Note::Lapsed(vec![executor(1)]);
    for notes in 1..=2 {
        let ends = w.deadline(1);
        w.pass_time(ends.since(w.now));
        for _ in 0..5 {
            w.fail_next(CommitFailure::Unavailable("full".to_owned()));
            assert_eq!(w.noted(&lapsed), notes);
            w.pass_time(Duration::from_secs(1));
        }
        let renewal = w.renew(1);
        w.confirm();
        w.fail_next(CommitFailure::Unavailable("full".to_owned()));
        w.confirm();
        w.grant(renewal);
    }
}

/// L2: a store that is away loses no registration and moves no shard; the pass is tried again.
#[test]
fn a_pass_that_cannot_commit_is_tried_again() {
    let mut w = World::new(8);
    w.prompt = false;
    let request = w.register(1);
    w.commit_next();
    w.confirm();
    w.grant(request);
    w.fail_next(CommitFailure::Unavailable("disk full".to_owned()));
    let status = w.core.status(w.now);
    assert!(status.unassigned_because.unwrap().contains("disk full"));
    assert!(status.troubles[0].contains("disk full"));
    w.be_prompt();
    w.pass_time(Duration::from_secs(1));
    assert_eq!(w.owned(1), 8);
    assert!(w.core.status(w.now).troubles.is_empty());
}

/// What happens during a pass is seen by the next one.
#[test]
fn a_registration_during_a_pass_is_planned_for_after_it() {
    let mut w = World::new(8);
    w.prompt = false;
    w.register(1);
    w.commit_next();
    w.register(2);
    w.be_prompt();
    w.push_answered(1, w.claim_of_last_push(1));
    w.push_answered(1, w.claim_of_last_push(1));
    assert_eq!((w.owned(1), w.owned(2)), (4, 4));
}

/// S4: whatever is told was committed first, also while another write is under way.
#[test]
fn nothing_is_told_before_it_is_stored() {
    let mut w = World::new(8);
    w.prompt = false;
    let request = w.register(1);
    w.commit_next();
    assert!(w.pushes.is_empty(), "the assignment is planned, not stored");
    w.confirm();
    assert_eq!(w.grant(request).set.shards.len(), 0);
    w.commit_next();
    assert_eq!(w.pushed(1).set.shards.len(), 8);
    assert_eq!(w.pushed(1).set.revision, w.stored.revision);
}

/// The end of a leadership leaves nobody waiting.
#[test]
fn a_foreign_write_ends_the_leadership_and_answers_everybody() {
    let mut w = World::new(8);
    w.register(1);
    w.prompt = false;
    let renewal = w.renew(1);
    let registration = w.register(2);
    w.fail_next(CommitFailure::Lost("another process wrote".to_owned()));
    assert!(matches!(w.refusal(renewal), Refusal::NotLeader { .. }));
    assert!(matches!(w.replies[&registration], Reply::Unknown(_)));
    assert_eq!(w.ended(), Some("another process wrote"));
    let pushes = w.pushes.len();
    w.pass_time(10 * LEASE);
    assert_eq!(w.pushes.len(), pushes);
    assert!(w.commits.is_empty());
}

/// Case 38's manager half: 200 executors renew, nothing is written and nobody lapses.
#[test]
fn steady_renewals_of_many_move_nothing() {
    let mut w = World::new(1024);
    for n in 1..=200 {
        w.register(n);
    }
    for _ in 0..4 {
        for n in 1..=200 {
            w.renew(n);
        }
    }
    let (revision, owners) = (w.stored.revision, w.owners());
    for _ in 0..10 {
        w.pass_time(LEASE / 3);
        for n in 1..=200 {
            w.renew(n);
        }
    }
    assert_eq!((w.stored.revision, w.owners()), (revision, owners));
}

/// Never "unassigned" without a reason.
#[test]
fn an_unassigned_shard_always_has_a_reason() {
    let mut w = World::new(4);
    let why = |w: &World| w.core.status(w.now).unassigned_because;
    assert_eq!(why(&w).as_deref(), Some("no executor is registered"));
    w.register(1);
    assert_eq!(why(&w), None);
    w.drain("e1", true);
    assert_eq!(w.owned(1), 4, "nobody else could take them");
    w.deregister(1);
    w.register(2);
    w.drain("e2", true);
    let explained = w.core.explain(w.now, leasehold_model::ShardId(0)).unwrap();
    assert!(!explained.because.is_empty());
    assert_eq!(w.core.explain(w.now, leasehold_model::ShardId(4)), None);
}

/// Compaction follows a pass that wrote, and names what is stored.
#[test]
fn history_is_forgotten_after_a_pass_that_wrote() {
    let mut w = World::new(8);
    w.other.clear();
    w.register(1);
    let upto = w.other.iter().find_map(|effect| match effect {
        Effect::Compact(upto) => Some(*upto),
        _ => None,
    });
    assert_eq!(upto, Some(w.stored.revision));
}

/// R30: exactly a third of a lease while no lease ends earlier, and exactly then when one does.
#[test]
fn the_timer_is_armed_for_the_next_pass_or_the_earliest_end_of_a_lease() {
    let mut w = World::new(8);
    assert_eq!(w.armed, w.now.plus(LEASE / 3));
    w.register(1);
    let ends = w.deadline(1);
    w.pass_time(Duration::from_secs(45));
    assert_eq!(w.armed, ends);
    w.renew(1);
    w.pass_time(Duration::from_secs(15));
    assert_eq!(w.armed, ends.plus(LEASE / 3), "the lease no longer ends first");
}

/// R39: at take-over too.
#[test]
fn a_new_leader_arms_its_timer_at_once() {
    let mut w = World::new(8);
    w.register(1);
    let next = World::take_over(w.stored.clone(), settings(), ManagerId::from_u128(2), w.now);
    assert_eq!(next.armed, next.now.plus(LEASE / 3));
}

/// Several batches in one write: its changes are taken in once, every request is answered.
#[test]
fn batches_that_are_stored_together_are_told_once() {
    let mut w = World::new(8);
    w.register(1);
    w.register(2);
    w.push_answered(1, w.claim_of_last_push(1));
    w.push_answered(2, w.claim_of_last_push(2));
    w.prompt = false;
    let leaves = w.deregister(1);
    let drained = w.drain("e2", true);
    let (pushes, published) =
        (w.pushes.len(), |w: &World| w.other.iter().filter(|effect| matches!(effect, Effect::Publish(..))).count());
    let before = published(&w);
    w.commit_together();
    assert_eq!((&w.replies[&leaves], &w.replies[&drained]), (&Reply::Done, &Reply::Done));
    assert_eq!(published(&w), before + 1);
    assert_eq!(w.pushes.len(), pushes, "nobody's set has changed");
}

/// A write that changes no set pushes none.
#[test]
fn a_drain_that_moves_nothing_pushes_nothing() {
    let mut w = World::new(8);
    w.register(1);
    let pushes = w.pushes.len();
    w.drain("e1", true);
    assert_eq!(w.pushes.len(), pushes);
}

/// R27: what was pushed is repeated until it is known to have been applied, and then no more.
#[test]
fn a_delivery_ends_when_the_claim_names_it() {
    let mut w = World::new(8);
    w.register(1);
    let delivered = |w: &World| w.other.iter().filter(|effect| matches!(effect, Effect::Delivered(..))).count();
    let claim = w.claim_of_last_push(1);
    let older = Revision(claim.applied.0 - 1);
    w.push_answered(1, nothing(w.core.manager(), older));
    assert_eq!(delivered(&w), 0);
    w.push_answered(1, claim.clone());
    w.push_answered(1, claim.clone());
    assert_eq!(delivered(&w), 1);
    assert!(w.other.contains(&Effect::Delivered(executor(1), claim.applied)));
}

/// After a failure the store is given half a second; what happens meanwhile waits.
#[test]
fn a_failed_pass_is_tried_again_after_half_a_second_and_not_before() {
    let mut w = World::new(8);
    w.prompt = false;
    w.register(1);
    w.commit_next();
    w.confirm();
    w.fail_next(CommitFailure::Unavailable("locked".to_owned()));
    assert_eq!(w.noted(&Note::PassFailed("locked".to_owned())), 1);
    let retry = w.now.plus(Duration::from_millis(500));
    assert_eq!(w.armed, retry);
    w.drain("e1", false);
    w.commit_next();
    assert!(w.commits.is_empty(), "a pass was asked for and waits");
    w.pass_time(Duration::from_millis(499));
    assert!(w.commits.is_empty());
    w.pass_time(Duration::from_millis(1));
    assert_eq!(w.commits.len(), 1);
}

/// What a pass came to is noted in full.
#[test]
fn a_pass_is_noted_with_what_it_released_and_granted() {
    let mut w = World::new(8);
    w.register(1);
    assert_eq!(w.noted(&Note::Passed { released: 0, granted: 8 }), 1);
    w.push_answered(1, w.claim_of_last_push(1));
    w.register(2);
    assert_eq!(w.noted(&Note::Passed { released: 4, granted: 0 }), 1);
}

/// R33: one wait, from the first registration, also when nothing is assigned by the time of the second.
#[test]
fn a_later_registration_does_not_prolong_the_wait_of_a_cold_cluster() {
    let mut w = World::with(8, Settings { settle: Duration::from_secs(3), ..settings() });
    w.register(1);
    assert_eq!(w.armed, w.now.plus(Duration::from_secs(3)));
    w.pass_time(Duration::from_secs(2));
    w.register(2);
    assert_eq!(w.noted(&Note::Settling), 1);
    w.pass_time(Duration::from_secs(1));
    assert_eq!((w.owned(1), w.owned(2)), (4, 4));
}

/// R44, case 9: an executor that has been silent for more than half a lease is out of the plan.
#[test]
fn whoever_is_silent_for_more_than_half_a_lease_is_given_nothing_new() {
    for (span, owned) in [(LEASE / 2, 8), (LEASE / 2 + MS, 4)] {
        let mut w = World::new(8);
        w.settle(&[1, 2]);
        w.pass_time(span);
        w.deregister(1);
        assert_eq!(w.owned(2), owned, "after {span:?}");
    }
}

/// R44, case 9: so is one that has not acknowledged its newest set for more than a sixth of a lease.
#[test]
fn whoever_lags_for_more_than_a_sixth_of_a_lease_is_given_nothing_new() {
    for (span, owned) in [(LEASE / 6, 12), (LEASE / 6 + MS, 6)] {
        let mut w = World::new(12);
        w.settle(&[1, 2, 3]);
        w.deregister(3);
        w.pass_time(span);
        w.deregister(1);
        assert_eq!(w.owned(2), owned, "after {span:?}");
    }
}

/// R46, R44: nor is anything given to one that has not heard a grant for half a lease.
#[test]
fn whoever_has_not_heard_for_half_a_lease_is_given_nothing_new() {
    for (span, given) in [(LEASE / 2, 8), (LEASE / 2 + MS, 4)] {
        let mut w = World::new(8);
        w.settle(&[1, 2]);
        w.pass_time(span);
        w.push_answered(2, w.claim_of_last_push(2));
        w.deregister(1);
        assert_eq!(w.owned(2), given, "after {span:?}");
    }
}

/// R7: a leadership that is over is noticed within a pass interval, also while nobody renews.
#[test]
fn an_idle_leader_asks_whether_it_still_leads() {
    let mut w = World::new(8);
    w.prompt = false;
    w.pass_time(LEASE / 3);
    assert_eq!(w.confirms, 1);
    w.pass_time(LEASE);
    assert_eq!(w.confirms, 1, "one at a time");
    w.step(leasehold_model::leader::Event::Confirmed(leasehold_model::leader::Confirmation::Lost(
        "replaced".to_owned(),
    )));
    assert_eq!(w.ended(), Some("replaced"));
}
