//! A leader that took no step for a while cannot tell who was silent from what it did not hear (R6, R39, L2).

use crate::world::{LEASE, World, executor, settings};
use leasehold_model::command::Command;
use leasehold_model::leader::{BatchId, CommitFailure, Confirmation, Effect, Event, Note, RequestId, Settings};
use leasehold_model::{ManagerId, Refusal, Ttl};
use std::time::Duration;

const NANO: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);

/// Everybody owns a share, has been heard, and the next renewals are due.
fn at_work(executors: &[u128]) -> World {
    let mut w = World::new(12);
    w.settle(executors);
    for n in executors {
        w.renew(*n);
    }
    w.other.clear();
    w
}

impl World {
    /// Nothing at all happens for `span`: no timer, no message.
    fn stand_still(&mut self, span: Duration) {
        self.now = self.now.plus(span);
    }

    fn timer(&mut self) {
        self.step(Event::Timer);
    }

    /// The standstills noted, and how many executors got their lease in full at each.
    fn standstills(&self) -> Vec<(Duration, usize)> {
        let noted = self.other.iter().filter_map(|effect| match effect {
            Effect::Note(Note::StoodStill { span, in_full }) => Some((*span, *in_full)),
            _ => None,
        });
        noted.collect()
    }

    fn registered(&self) -> Vec<u128> {
        self.stored.executors().map(|(id, _)| id.0.as_u128()).collect()
    }
}

/// What happens first after a standstill.
type Comes = fn(&mut World);

/// L2, case 2: stopped for three leases, whatever is first in the mailbox when it wakes.
#[test]
fn whatever_comes_first_after_a_standstill_nobody_is_reaped_for_it() {
    let first: [(&str, Comes); 9] = [
        ("the timer", World::timer),
        ("a renewal", |w| {
            let _ = w.renew(1);
        }),
        ("a registration", |w| {
            let _ = w.register(4);
        }),
        ("a departure", |w| {
            let _ = w.deregister(3);
        }),
        ("a drain", |w| {
            let _ = w.drain("e3", true);
        }),
        ("an answered push", |w| w.push_answered(1, w.up_to_date_claim(1))),
        ("a confirmation", |w| w.step(Event::Confirmed(Confirmation::Leads))),
        ("a probe", |w| w.step(Event::Probed { request: RequestId(99), answered_by: None })),
        ("a commit", |w| {
            let result = Err(CommitFailure::Unavailable("locked".to_owned()));
            w.step(Event::CommitEnded { batch: BatchId(9_999), result });
        }),
    ];
    for (what, comes) in first {
        let mut w = at_work(&[1, 2, 3]);
        w.stand_still(3 * LEASE);
        let woke = w.now;
        comes(&mut w);
        w.timer();
        assert_eq!(w.standstills(), [(3 * LEASE, 3)], "{what}");
        assert_eq!((w.deadline(1), w.deadline(2)), (woke.plus(LEASE), woke.plus(LEASE)), "{what}");
        assert!(!w.written.iter().flatten().any(|command| matches!(command, Command::Reap(_))), "{what}");
    }
}

/// L2, L3: the renewals that wait when it wakes are granted, and nothing is written or moved, in whatever order they and the timer come.
#[test]
fn a_standstill_moves_no_shard_and_writes_nothing() {
    for timer_first in [true, false] {
        let mut w = at_work(&[1, 2, 3]);
        let (revision, owners, epochs) = (w.stored.revision, w.owners(), w.epochs());
        w.stand_still(3 * LEASE);
        if timer_first {
            w.timer();
        }
        for n in 1..=3 {
            let renewal = w.renew(n);
            assert_eq!(w.grant(renewal).set.shards.len(), 4);
        }
        w.pass_time(LEASE / 2);
        assert_eq!((w.stored.revision, w.owners(), w.epochs()), (revision, owners, epochs));
    }
}

/// R30, R11, R13: no timer that runs is so late, and what is shorter costs nobody a lease.
#[test]
fn more_than_half_a_lease_without_a_step_is_a_standstill_and_nothing_less() {
    for (span, stood) in [(LEASE / 2, false), (LEASE / 2 + NANO, true)] {
        let mut w = at_work(&[1]);
        let before = w.deadline(1);
        w.stand_still(span);
        w.timer();
        assert_eq!(w.standstills().len(), usize::from(stood), "{span:?}");
        assert_eq!(w.deadline(1), if stood { w.now.plus(LEASE) } else { before }, "{span:?}");
    }
}

/// Steps of any kind show that it does not stand still; only the time between two counts.
#[test]
fn a_leader_that_takes_steps_does_not_stand_still() {
    let mut w = at_work(&[1]);
    for _ in 0..5 {
        w.stand_still(LEASE / 2);
        w.push_answered(1, w.up_to_date_claim(1));
    }
    assert_eq!(w.standstills(), []);
}

/// R6: in full is what is stored, not what is configured now.
#[test]
fn the_stored_length_is_what_runs_in_full() {
    let w = at_work(&[1]);
    let shorter = Settings { lease: Ttl::from_duration(LEASE / 4).unwrap(), ..settings() };
    let mut w = World::take_over(w.stored, shorter, ManagerId::from_u128(2), w.now);
    w.renew(1);
    w.stand_still(2 * LEASE);
    w.timer();
    assert_eq!(w.deadline(1), w.now.plus(LEASE));
}

/// S5: a deadline only ever gets later, also that of one who is not heard between two standstills.
#[test]
fn a_standstill_never_takes_time_back() {
    let mut w = at_work(&[1]);
    for left in [LEASE, LEASE - LEASE / 3] {
        let before = w.deadline(1);
        w.stand_still(2 * LEASE);
        w.timer();
        assert!(w.deadline(1) > before);
        assert_eq!(w.deadline(1), w.now.plus(left), "the time until its timer was due may have been spent listening");
    }
}

/// L1: whoever died meanwhile is reaped one lease after the wake, as after a take-over (R39), and not before.
#[test]
fn whoever_died_while_it_stood_still_is_reaped_one_lease_after_it_woke() {
    let mut w = at_work(&[1, 2]);
    w.stand_still(3 * LEASE);
    w.timer();
    let woke = w.now;
    w.pass_time(LEASE / 2);
    w.renew(1);
    w.pass_time(LEASE / 2 - NANO);
    assert_eq!(w.registered(), [1, 2]);
    w.pass_time(NANO);
    assert_eq!((w.registered(), w.now), (vec![1], woke.plus(LEASE)));
    assert_eq!(w.owned(1), 12);
}

/// L1: a leader that stands still again and again keeps the dead for no more than two leases of the time that it runs.
#[test]
fn a_leader_that_stands_still_for_ever_still_reaps_the_dead_and_keeps_the_living() {
    let mut w = at_work(&[1, 2]);
    let mut ran = Duration::ZERO;
    for round in 0..100 {
        w.stand_still(2 * LEASE);
        w.timer();
        w.renew(1);
        w.pass_time(LEASE / 10);
        ran += LEASE / 10;
        let kept = w.registered().contains(&2);
        assert_eq!(w.standstills().len(), round + 1, "each is noted");
        assert!(!kept || ran < LEASE, "after {ran:?}");
        assert!(kept || round > 0);
        assert!(w.registered().contains(&1), "after {ran:?}");
    }
    let in_full: Vec<_> = w.standstills().into_iter().map(|(_, in_full)| in_full).collect();
    assert_eq!(in_full[..3], [2, 1, 1], "the dead one only once");
}

/// R39: a take-over gave everybody a full lease already; a standstill before anybody was heard only makes up for itself.
#[test]
fn a_standstill_after_a_take_over_gives_no_second_lease_to_the_silent() {
    let w = at_work(&[1, 2]);
    let mut w = World::take_over(w.stored, settings(), ManagerId::from_u128(2), w.now);
    w.pass_time(LEASE / 6);
    w.renew(1);
    w.stand_still(3 * LEASE);
    w.timer();
    assert_eq!(w.deadline(1), w.now.plus(LEASE));
    assert_eq!(w.deadline(2), w.now.plus(LEASE - LEASE / 3), "its timer was due a third after the take-over");
}

/// The event that wakes it may be the first word of somebody: that counts as heard since it woke.
#[test]
fn whoever_speaks_in_the_instant_that_it_wakes_has_been_heard() {
    let mut w = at_work(&[1]);
    for _ in 0..3 {
        w.stand_still(2 * LEASE);
        w.renew(1);
    }
    assert_eq!(w.standstills(), [(2 * LEASE, 1); 3]);
}

/// R46: a grant whose answer it did not get out before it stood still has not gone unheard for that long.
#[test]
fn an_answer_lost_to_a_standstill_costs_nobody_the_registration() {
    let mut w = at_work(&[1]);
    w.renew(1);
    let lost = |w: &World| w.facts(1, w.up_to_date_claim(1), 0);
    w.stand_still(3 * LEASE);
    for (after, granted) in [(Duration::ZERO, true), (2 * LEASE / 3 - NANO, true), (NANO, false)] {
        w.pass_time(after);
        let renewal = w.renew_with(lost(&w));
        match granted {
            true => drop(w.grant(renewal).clone()),
            false => assert_eq!(*w.refusal(renewal), Refusal::Unheard),
        }
    }
}

/// R15: nor do its pushes count as not landing, or the executor as lagging, for the time in which it could not hear.
#[test]
fn a_push_it_could_not_hear_answered_is_no_mismatch() {
    let mut w = at_work(&[1, 2]);
    let behind = w.claim_of_last_push(2);
    w.deregister(1);
    w.stand_still(3 * LEASE);
    w.renew_with(w.facts(2, behind.clone(), i64::MAX as u64));
    assert_eq!(w.noted(&Note::ClaimMismatch(executor(2))), 0);
    w.pass_time(LEASE / 6 + SECOND);
    w.renew_with(w.facts(2, behind, i64::MAX as u64));
    assert_eq!(w.noted(&Note::ClaimMismatch(executor(2))), 1, "awake, it counts");
}

/// Case 9: whoever has not been heard since it woke keeps what it has and is given nothing.
#[test]
fn nothing_is_given_to_anybody_before_it_is_heard_again() {
    let mut w = at_work(&[1, 2, 3]);
    w.stand_still(3 * LEASE);
    w.deregister(3);
    assert_eq!((w.owned(1), w.owned(2)), (4, 4));
    w.renew(1);
    w.renew(2);
    for n in [1, 2, 1, 2] {
        w.push_answered(n, w.up_to_date_claim(n));
    }
    assert_eq!((w.owned(1), w.owned(2)), (6, 6));
}

/// A lease that had ended before it stood still has ended; if that could not be written, there is another chance to renew.
#[test]
fn a_reaping_under_way_when_it_stood_still_is_carried_out_or_reconsidered() {
    for stored in [true, false] {
        let mut w = at_work(&[1]);
        w.prompt = false;
        let ends = w.deadline(1);
        w.pass_time(ends.since(w.now));
        w.stand_still(3 * LEASE);
        if stored {
            w.be_prompt();
            assert_eq!(w.registered(), [0; 0]);
        } else {
            w.fail_next(CommitFailure::Unavailable("locked".to_owned()));
            w.be_prompt();
            w.pass_time(SECOND);
            let renewal = w.renew(1);
            w.grant(renewal);
            assert_eq!(w.registered(), [1]);
        }
    }
}
