use crate::world::{LEASE, World, executor};
use leasehold_model::command::Command;
use leasehold_model::leader::{CommitFailure, Effect, Reply};
use leasehold_model::{Refusal, Revision, Tick};
use std::time::Duration;

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
