//! Registering, renewing, and what ends a life.

use crate::bench::*;
use leasehold_model::holder::{Effect, Event, Purpose};
use leasehold_model::refusal::{Credential, Mismatch};
use leasehold_model::{CallError, ExecutorId, GrantSeq, Refusal, ShardCount, ShardId, Tick, Ttl};

fn timeout() -> Result<leasehold_model::Grant, CallError> {
    Err(CallError::Unknown("deadline".to_owned()))
}

#[test]
fn a_started_executor_registers_and_arms_its_patience() {
    let mut bench = Bench::new(identity());
    let effects = bench.step(Event::Started { seed: 7 });
    let registration = bench.registration().clone();
    assert_eq!(registration.executor, life(1).executor);
    assert_eq!((registration.lease_key, registration.shard_count), (life(1).lease_key, None));
    assert_eq!(bench.call.as_ref().unwrap().2, FLOOR);
    assert_eq!(effects[0], Effect::Arm { purpose: Purpose::Patience, at: bench.now.plus(PATIENCE) });
    assert_eq!((calls(&effects), effects.len()), (1, 2));
    assert!(bench.step(Event::Started { seed: 8 }).is_empty(), "a second start changes nothing");
}

/// R2
#[test]
fn the_lease_ends_a_ttl_after_the_attempt_was_noted_less_the_allowance() {
    let mut bench = Bench::started();
    let noted = bench.now;
    bench.wait(ms(4_000));
    let effects = bench.answer(Ok(grant(1, set(M1, 10, &[(3, 7)]))));
    let deadline = ends(noted);
    assert_eq!(
        admission(&effects),
        [
            Effect::SizeFence(ShardCount::new(64).unwrap()),
            Effect::ArmFence(deadline),
            Effect::OpenShard(ShardId(3), shards(&[(3, 7)])[0].1),
        ]
    );
    assert_eq!(bench.armed(Purpose::Lapse), deadline);
    assert_eq!(bench.holder.deadline(), deadline);
}

/// R2: a grant sets the deadline, also to an earlier one.
#[test]
fn a_shorter_grant_brings_the_deadline_forward() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let noted = bench.now;
    let mut short = grant(2, set(M1, 10, &[(3, 7)]));
    short.ttl = Ttl::from_ms(1_000).unwrap();
    let effects = bench.answer(Ok(short));
    assert_eq!(admission(&effects), [Effect::ArmFence(noted.plus(ms(999)))]);
}

/// R11
#[test]
fn it_renews_when_a_third_of_the_time_left_has_passed_or_a_little_earlier() {
    for seed in 0..200 {
        let mut bench = Bench::new(identity());
        bench.step(Event::Started { seed });
        bench.wait(ms(1_000));
        bench.answer(Ok(grant(1, set(M1, 10, &[]))));
        let third = bench.holder.deadline().since(bench.now) / 3;
        let waits = bench.armed(Purpose::Call).since(bench.now);
        assert!(waits <= third && waits >= third * 9 / 10, "seed {seed}: {waits:?} of {third:?}");
    }
}

/// R11: the claim names every shard's epoch, R46: and the grant that was heard.
#[test]
fn a_renewal_claims_every_shard_at_its_epoch_and_names_the_grant_it_heard() {
    let mut bench = Bench::holding(&[(3, 7), (5, 2)]);
    let effects = bench.fire(Purpose::Call);
    assert_eq!(calls(&effects), 1);
    let renewal = bench.renewal();
    assert_eq!(renewal.claim, claim(M1, 10, &[(3, 7), (5, 2)]));
    assert_eq!((renewal.executor, &renewal.lease_key), (life(1).executor, &life(1).lease_key));
    assert_eq!(renewal.heard, GrantSeq(1));
}

/// R11: one in flight.
#[test]
fn nothing_makes_it_call_while_a_call_is_in_flight() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    assert_eq!(calls(&bench.step(Event::Timer(Purpose::Call))), 0);
    let (answer, effects) = bench.push(set(M2, 99, &[]));
    assert_eq!((answer.unwrap().applied, effects), (false, vec![]), "no call is planned either");
    let fenced = Event::Fenced { shard: ShardId(3), held: shards(&[(3, 7)])[0].1, recorded: None };
    assert_eq!(calls(&bench.step(fenced)), 0);
}

/// R11: a timer that fires early, or twice, is compared with what was armed.
#[test]
fn a_call_timer_that_fires_early_does_nothing() {
    let mut bench = Bench::holding(&[(3, 7)]);
    assert!(bench.step(Event::Timer(Purpose::Call)).is_empty());
    assert!(bench.step(Event::Timer(Purpose::Patience)).is_empty());
    assert!(bench.step(Event::Timer(Purpose::Leave)).is_empty());
}

/// R13
#[test]
fn failed_renewals_back_off_and_several_fit_before_the_lease_ends() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let mut tried = 1;
    let mut pauses = Vec::new();
    for _ in 0..10_000 {
        let (_, _, within) = bench.call.clone().unwrap();
        assert_eq!(within, FLOOR);
        bench.wait(ms(1));
        let effects = bench.refuse(Refusal::NotLeader { leader: None });
        assert_eq!(calls(&effects), 0, "the pause is never skipped");
        pauses.push(bench.armed(Purpose::Call).since(bench.now));
        bench.fire(Purpose::Call);
        if bench.now >= ends(Tick(1_000_000_000_000)) {
            break;
        }
        tried += 1;
    }
    assert!(tried > 12, "{tried} attempts");
    assert!(pauses[4] > pauses[0] * 4, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= ms(5_000) && *pause >= ms(25)), "{pauses:?}");
}

/// R13: attempts that are never answered fit several times too.
#[test]
fn at_least_three_unanswered_renewals_fit_before_the_lease_ends() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let mut unanswered = 0;
    for _ in 0..100 {
        let within = bench.call.as_ref().unwrap().2;
        bench.wait(within);
        if bench.now >= bench.holder.deadline() {
            break;
        }
        unanswered += 1;
        bench.answer(timeout());
        bench.fire(Purpose::Call);
    }
    assert!(unanswered >= 3, "{unanswered}");
}

/// R13: an attempt's own deadline is a sixth of the lease once that exceeds the floor.
#[test]
fn an_attempt_may_take_a_sixth_of_a_long_lease() {
    let mut bench = Bench::started();
    let mut long = grant(1, set(M1, 10, &[]));
    long.ttl = Ttl::from_ms(600_000).unwrap();
    bench.answer(Ok(long));
    bench.fire(Purpose::Call);
    assert_eq!(bench.call.as_ref().unwrap().2, ms(100_000));
}

/// R3: the set of an overtaken answer is old, its lease is not taken either.
#[test]
fn of_two_grants_the_one_noted_later_counts() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.wait(FLOOR);
    bench.answer(timeout());
    bench.fire(Purpose::Call);
    let second = bench.call.clone().unwrap().0;
    bench.answer(Ok(grant(3, set(M1, 10, &[(3, 7)]))));
    assert_eq!(bench.holder.deadline(), ends(second.noted));
    let late = bench.step(Event::Answered { attempt: first, result: Ok(grant(2, set(M1, 10, &[(3, 7)]))) });
    assert!(late.is_empty(), "{late:?}");
    assert_eq!(bench.holder.deadline(), ends(second.noted));
}

/// R3: the answer to an attempt that was given up on still is a grant.
#[test]
fn a_grant_heard_late_counts_while_the_next_attempt_is_unanswered() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.wait(FLOOR);
    bench.answer(timeout());
    bench.fire(Purpose::Call);
    let effects = bench.step(Event::Answered { attempt: first, result: Ok(grant(2, set(M1, 10, &[(3, 7)]))) });
    assert_eq!(admission(&effects), [Effect::ArmFence(ends(first.noted))]);
    assert_eq!(calls(&effects), 0, "the second attempt is still in flight");
}

/// R11, R13: with the lease renewed there is nothing left to hurry for.
#[test]
fn a_grant_heard_late_takes_the_place_of_the_hurried_repeat() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.answer(timeout());
    assert!(bench.armed(Purpose::Call) < bench.now.plus(ms(5_000)), "a repeat is due soon");
    bench.step(Event::Answered { attempt: first, result: Ok(grant(2, set(M1, 10, &[(3, 7)]))) });
    let third = bench.holder.deadline().since(bench.now) / 3;
    assert!(bench.armed(Purpose::Call) >= bench.now.plus(third * 9 / 10), "a third of the lease, as after any grant");
}

/// Case 16: whatever was said to a call that was given up on, only a grant still counts.
#[test]
fn a_refusal_of_a_call_that_was_given_up_on_says_nothing() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.wait(ms(2 * TTL_MS));
    assert_eq!(calls(&bench.step(Event::Timer(Purpose::Lapse))), 1, "asked afresh");
    for error in [CallError::Refused(Refusal::UnknownExecutor), CallError::Unknown("late".to_owned())] {
        let effects = bench.step(Event::Answered { attempt: first, result: Err(error) });
        assert!(effects.is_empty(), "{effects:?}");
    }
    assert_eq!(bench.holder.life(), &life(1));
}

/// R18: who is in charge is heard with the call that is due anyway.
#[test]
fn a_push_of_another_manager_never_postpones_the_call_that_is_due() {
    let mut bench = Bench::holding(&[(3, 7)]);
    let due = bench.armed(Purpose::Call);
    bench.now = Tick(due.0 - 1);
    let (answer, effects) = bench.push(set(M2, 99, &[]));
    assert_eq!((answer.unwrap().applied, effects), (false, vec![]));
    assert_eq!(calls(&bench.fire(Purpose::Call)), 1);
    assert_eq!(bench.now, due);
}

/// R18: an overtaken answer of another manager brings nobody back into charge.
#[test]
fn an_overtaken_answer_of_another_manager_is_ignored() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.wait(FLOOR);
    bench.answer(timeout());
    bench.fire(Purpose::Call);
    bench.answer(Ok(grant(1, set(M2, 4, &[(3, 7)]))));
    bench.wait(ms(5));
    let late = bench.step(Event::Answered { attempt: first, result: Ok(grant(9, set(M1, 99, &[]))) });
    assert!(late.is_empty());
    assert_eq!(bench.holder.claim(), Some(claim(M2, 4, &[(3, 7)])));
}

/// Case 7: the set is older than the one applied, the lease still moves.
#[test]
fn a_held_answer_moves_the_lease_and_brings_nothing_back() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7)]);
    bench.fire(Purpose::Call);
    let noted = bench.now;
    bench.wait(ms(100));
    bench.push(set(M1, 12, &[(1, 7)])).0.unwrap();
    bench.swept();
    let effects = bench.answer(Ok(grant(2, set(M1, 11, &[(1, 7), (2, 7)]))));
    assert_eq!(admission(&effects), [Effect::ArmFence(ends(noted))]);
    assert_eq!(bench.holder.claim(), Some(claim(M1, 12, &[(1, 7)])));
}

/// R46: `heard` belongs to the manager that the claim names.
#[test]
fn what_was_heard_starts_over_with_another_manager() {
    let mut bench = Bench::started();
    bench.answer(Ok(grant(40, set(M1, 10, &[]))));
    bench.fire(Purpose::Call);
    assert_eq!(bench.renewal().heard, GrantSeq(40));
    bench.answer(Ok(grant(2, set(M2, 3, &[]))));
    bench.fire(Purpose::Call);
    assert_eq!((bench.renewal().heard, bench.renewal().claim.manager), (GrantSeq(2), M2));
}

/// R16, R46, S1: closed first, swept at once, then another life.
#[test]
fn an_executor_that_is_unknown_or_unheard_sweeps_everything_and_registers_anew() {
    for refusal in [Refusal::UnknownExecutor, Refusal::Unheard] {
        let mut bench = Bench::holding(&[(3, 7), (5, 2)]);
        bench.fire(Purpose::Call);
        let effects = bench.refuse(refusal);
        let [
            Effect::CloseFence,
            Effect::CloseShard(ShardId(3)),
            Effect::CloseShard(ShardId(5)),
            Effect::Sweep { shards: swept, grace, .. },
            Effect::AskIdentity,
        ] = &effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!((swept, *grace), (&shards(&[(3, 7), (5, 2)]), ms(0)));
        assert_eq!(bench.holder.claim(), None);
        assert_eq!(bench.holder.deadline(), Tick::ZERO);

        let effects = bench.step(Event::NewIdentity(life(2)));
        assert_eq!(calls(&effects), 1);
        assert_eq!(bench.registration().executor, ExecutorId::from_u128(2));
        assert_eq!(bench.registration().lease_key, life(2).lease_key);
    }
}

/// R16: an answer to the life before says nothing about this one.
#[test]
fn answers_to_an_earlier_life_are_ignored() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.refuse(Refusal::UnknownExecutor);
    bench.step(Event::NewIdentity(life(2)));
    let effects = bench.step(Event::Answered { attempt: first, result: Ok(grant(2, set(M1, 11, &[(3, 7)]))) });
    assert!(effects.is_empty(), "{effects:?}");
    assert!(bench.step(Event::NewIdentity(life(3))).is_empty(), "nobody asked for a third life");
}

/// R16: a manager that refuses registrations as unknown is not asked in a hot loop.
#[test]
fn a_registration_refused_as_unknown_is_repeated_after_a_pause() {
    let mut bench = Bench::started();
    bench.refuse(Refusal::UnknownExecutor);
    let effects = bench.step(Event::NewIdentity(life(2)));
    assert_eq!(calls(&effects), 0);
    assert!(bench.armed(Purpose::Call) > bench.now);
    bench.fire(Purpose::Call);
    assert_eq!(bench.registration().executor, life(2).executor);
}

/// R16 and the error contract: these never come right by asking again.
#[test]
fn refusals_that_are_final_end_the_process_after_the_sweep() {
    let mismatch = Refusal::Mismatch { what: Mismatch::HashScheme, expected: "x".to_owned(), actual: "y".to_owned() };
    let table = [
        (Refusal::Superseded, 78, true),
        (mismatch, 78, false),
        (Refusal::BadCredential(Credential::LeaseKey), 77, false),
    ];
    for (refusal, code, deregisters) in table {
        let mut bench = Bench::holding(&[(3, 7)]);
        bench.fire(Purpose::Call);
        let effects = bench.refuse(refusal.clone());
        assert_eq!(admission(&effects), [Effect::CloseFence, Effect::CloseShard(ShardId(3))]);
        assert_eq!((exits(&effects), calls(&effects)), (None, 0), "not before the sweep is done");
        let mut effects = bench.swept();
        if deregisters {
            let (attempt, ..) = bench.call.clone().unwrap();
            assert_eq!((calls(&effects), exits(&effects)), (1, None));
            effects = bench.step(Event::Deregistered { attempt, result: Ok(()) });
        }
        let exit = exits(&effects).unwrap();
        assert_eq!(exit.code, code, "{refusal}");
        assert!(exit.why.contains(&refusal.to_string()), "{}", exit.why);
        assert_eq!(calls(&effects), 0);
    }
}

/// A name or address that the manager does not accept will not be accepted later; a claim may.
#[test]
fn a_field_refused_at_registration_is_final_and_at_renewal_is_not() {
    let invalid = || Refusal::InvalidField(leasehold_model::InvalidValue::new("weight", 0, "1..=1000"));
    let mut bench = Bench::started();
    let effects = bench.refuse(invalid());
    assert_eq!(exits(&bench.finish_deregistering(effects)).unwrap().code, 78);
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    let effects = bench.refuse(invalid());
    assert!(matches!(effects[..], [Effect::Arm { purpose: Purpose::Call, .. }]), "{effects:?}");
}

/// R38
#[test]
fn without_a_manager_it_gives_up_after_its_patience_and_says_what_it_tried() {
    let mut bench = Bench::started();
    let started = bench.now;
    for _ in 0..10_000 {
        bench.answer(Err(CallError::Unreachable("connection refused".to_owned())));
        if bench.armed(Purpose::Call) >= bench.armed(Purpose::Patience) {
            break;
        }
        bench.fire(Purpose::Call);
    }
    let effects = bench.fire(Purpose::Patience);
    assert_eq!(bench.now, started.plus(PATIENCE));
    let effects = bench.finish_deregistering(effects);
    let exit = exits(&effects).unwrap();
    assert_eq!(exit.code, 69);
    for part in ["127.0.0.1:7000", "connection refused", "attempts", "60s"] {
        assert!(exit.why.contains(part), "{part} in {}", exit.why);
    }
}

/// R38: the timer only says when to look.
#[test]
fn patience_ends_at_its_instant_and_not_before_however_late_the_timer() {
    let mut bench = Bench::started();
    bench.now = Tick(bench.armed(Purpose::Patience).0 - 1);
    assert!(bench.step(Event::Timer(Purpose::Patience)).is_empty());
    bench.wait(ms(5_000));
    let effects = bench.step(Event::Timer(Purpose::Patience));
    assert_eq!(exits(&bench.finish_deregistering(effects)).unwrap().code, 69);
}

/// R38, case 2: an executor that was granted something once keeps trying for as long as it takes.
#[test]
fn patience_is_for_the_first_registration_only() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    for _ in 0..100 {
        bench.answer(timeout());
        bench.fire(Purpose::Call);
    }
    let effects = bench.fire(Purpose::Patience);
    assert!(effects.is_empty(), "{effects:?}");
    assert!(!bench.holder.is_leaving());
    assert_eq!(
        bench.holder.claim(),
        Some(claim(M1, 10, &[(3, 7)])),
        "S1 needs no manager: the fence is closed, the claim stands"
    );
}

/// Case 19: nothing overflows at the ends of the clock.
#[test]
fn the_longest_durations_and_the_end_of_the_clock_do_no_harm() {
    let mut settings = settings();
    settings.handoff_grace = std::time::Duration::MAX;
    settings.registration_patience = std::time::Duration::MAX;
    settings.call_deadline_floor = std::time::Duration::MAX;
    for now in [Tick(0), Tick(1), Tick(u64::MAX - 1), Tick::NEVER] {
        let mut bench = Bench::new(identity());
        bench.holder = leasehold_model::holder::Holder::new(settings.clone(), identity(), life(1));
        bench.now = now;
        bench.step(Event::Started { seed: 7 });
        let mut day = grant(u64::MAX, set(M1, u64::MAX, &[(3, i64::MAX as u64)]));
        day.ttl = Ttl::from_ms(Ttl::MAX_MS).unwrap();
        bench.answer(Ok(day));
        bench.fire(Purpose::Call);
        bench.answer(timeout());
        bench.step(Event::Timer(Purpose::Lapse));
        bench.step(Event::Shutdown);
        bench.fire(Purpose::Leave);
    }
}

/// Case 16: what was asked before the sleep is given up, and asked afresh at once.
#[test]
fn after_a_sleep_past_the_lease_a_call_in_flight_is_given_up_for_a_fresh_one() {
    let mut bench = Bench::holding(&[(3, 7)]);
    bench.fire(Purpose::Call);
    bench.wait(ms(2 * TTL_MS));
    let effects = bench.step(Event::Timer(Purpose::Call));
    assert_eq!(admission(&effects), [Effect::CloseFence, Effect::CloseShard(ShardId(3))]);
    assert!(effects.contains(&Effect::CancelCall));
    assert_eq!(calls(&effects), 1);
    assert_eq!(bench.call.as_ref().unwrap().0.noted, bench.now);
}

/// R13: without a lease a short one is not slept through.
#[test]
fn pauses_are_never_longer_than_one_attempt() {
    let mut bench = Bench::new(identity());
    let mut settings = settings();
    settings.call_deadline_floor = ms(500);
    bench.holder = leasehold_model::holder::Holder::new(settings, identity(), life(1));
    bench.step(Event::Started { seed: 7 });
    for _ in 0..20 {
        bench.answer(timeout());
        assert!(bench.armed(Purpose::Call).since(bench.now) <= ms(500));
        bench.fire(Purpose::Call);
    }
}

/// An answer that always comes after its lease is over must not make it spin.
#[test]
fn a_lease_heard_only_after_its_end_is_renewed_after_a_gap() {
    let mut bench = Bench::started();
    bench.wait(ms(TTL_MS));
    let effects = bench.answer(Ok(grant(1, set(M1, 10, &[(3, 7)]))));
    assert_eq!(admission(&effects), [Effect::SizeFence(ShardCount::new(64).unwrap())]);
    assert_eq!(bench.armed(Purpose::Call), bench.now.plus(ms(20)));
}
