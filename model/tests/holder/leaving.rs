//! The ways out.

use crate::bench::*;
use leasehold_model::holder::{DEREGISTER_LIMIT, Effect, Event, Purpose, Request, SWEEP_SLACK};
use leasehold_model::refusal::Credential;
use leasehold_model::{CallError, Refusal, ShardId, Tick};

/// R37: admission closes, running invocations get their grace, then everything is given back, then exit 0.
#[test]
fn a_shutdown_drains_deregisters_and_exits_with_success() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let effects = bench.step(Event::Shutdown);
    let [Effect::CloseShard(ShardId(1)), Effect::Sweep { grace, .. }, Effect::Arm { purpose: Purpose::Leave, at }] =
        effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((grace, at), (GRACE, bench.now.plus(GRACE).plus(SWEEP_SLACK)));
    let effects = bench.swept();
    assert_eq!((effects[0].clone(), calls(&effects)), (Effect::CloseFence, 1));
    let (attempt, request, within) = bench.call.clone().unwrap();
    let Request::Deregister(deregistration) = request else { panic!("{request:?}") };
    assert_eq!((deregistration.executor, deregistration.lease_key), (life(1).executor, life(1).lease_key));
    assert_eq!(within, DEREGISTER_LIMIT);
    let effects = bench.step(Event::Deregistered { attempt, result: Ok(()) });
    let exit = exits(&effects).unwrap();
    assert_eq!((exit.code, effects.len()), (0, 1));
}

/// R37: one attempt, whatever comes of it.
#[test]
fn a_deregistration_that_fails_is_not_repeated() {
    let mut bench = Bench::holding(&[]);
    bench.step(Event::Shutdown);
    let (attempt, ..) = bench.call.clone().unwrap();
    let effects = bench.step(Event::Deregistered { attempt, result: Err(CallError::Unknown("lost".to_owned())) });
    assert_eq!((exits(&effects).unwrap().code, calls(&effects)), (0, 0));
}

/// R17: neither a renewal nor a registration in flight is waited for.
#[test]
fn a_shutdown_does_not_wait_for_the_call_in_flight() {
    let mut bench = Bench::holding(&[]);
    bench.fire(Purpose::Call);
    let effects = bench.step(Event::Shutdown);
    assert_eq!(effects[1..3], [Effect::CloseFence, Effect::CancelCall]);
    assert!(matches!(bench.call, Some((_, Request::Deregister(_), _))), "{effects:?}");

    let mut bench = Bench::started();
    let effects = bench.step(Event::Shutdown);
    assert_eq!(effects[1], Effect::CancelCall);
    assert!(matches!(bench.call, Some((_, Request::Deregister(_), _))), "it may have been registered: {effects:?}");
}

#[test]
fn a_shutdown_before_the_start_just_ends() {
    let mut bench = Bench::new(identity());
    let effects = bench.step(Event::Shutdown);
    assert_eq!((exits(&effects).unwrap().code, calls(&effects)), (0, 0));
}

/// R37: the grace may be longer than what is left of the lease.
#[test]
fn the_lease_is_renewed_while_a_shutdown_drains_and_nothing_is_taken_on() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    assert_eq!(calls(&bench.fire(Purpose::Call)), 1);
    assert_eq!(bench.renewal().claim, claim(M1, 10, &[(1, 7)]));
    let noted = bench.now;
    let effects = bench.answer(Ok(grant(2, set(M1, 11, &[(1, 7), (2, 1)]))));
    assert_eq!(admission(&effects), [Effect::ArmFence(ends(noted))], "case 11: nothing is given to it any more");
    let (answer, effects) = bench.push(set(M1, 12, &[(1, 7), (2, 1)]));
    let answer = answer.unwrap();
    assert_eq!((answer.applied, effects), (false, vec![]));
    assert_eq!(answer.claim.unwrap().shards.len(), 1);
}

/// R37: unknown to the manager, there is nothing to give back.
#[test]
fn a_leaving_executor_that_is_unknown_leaves_without_deregistering() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    bench.fire(Purpose::Call);
    let effects = bench.refuse(Refusal::UnknownExecutor);
    assert_eq!((admission(&effects), calls(&effects)), (vec![Effect::CloseFence], 0));
    let effects = bench.swept();
    assert_eq!((exits(&effects).unwrap().code, calls(&effects)), (0, 0));
}

/// R37, R36: whoever is not believed has nothing to give back; that it was asked to stop stays why it ends.
#[test]
fn a_leaving_executor_that_is_refused_for_good_keeps_its_end_and_gives_nothing_back() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    bench.fire(Purpose::Call);
    let effects = bench.refuse(Refusal::BadCredential(Credential::LeaseKey));
    assert_eq!((admission(&effects), calls(&effects)), (vec![Effect::CloseFence], 0));
    let effects = bench.swept();
    assert_eq!((exits(&effects).unwrap().code, calls(&effects)), (0, 0));
}

/// S1, R16: what is swept for good is not brought back by an answer that comes late.
#[test]
fn an_executor_that_was_refused_for_good_takes_no_grant_any_more() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.fire(Purpose::Call);
    let (first, ..) = bench.call.clone().unwrap();
    bench.answer(Err(CallError::Unknown("deadline".to_owned())));
    bench.fire(Purpose::Call);
    bench.refuse(Refusal::Superseded);
    let effects = bench.step(Event::Answered { attempt: first, result: Ok(grant(2, set(M1, 10, &[(1, 7)]))) });
    assert!(effects.is_empty(), "{effects:?}");
}

/// R37: the sweep of the life before still runs, the next one was asked for and is not wanted any more.
#[test]
fn a_registration_that_is_answered_after_the_shutdown_brings_no_lease() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.fire(Purpose::Call);
    bench.refuse(Refusal::UnknownExecutor);
    bench.step(Event::NewIdentity(life(2)));
    assert_eq!(bench.registration().executor, life(2).executor);
    let effects = bench.step(Event::Shutdown);
    assert_eq!((calls(&effects), exits(&effects)), (0, None), "the sweep is waited for");
    let effects = bench.answer(Ok(grant(1, set(M1, 11, &[(2, 1)]))));
    assert!(effects.is_empty(), "{effects:?}");
    bench.swept();
    assert!(matches!(bench.call, Some((_, Request::Deregister(_), _))), "it may have been registered");
}

/// R37: the timer only says when to look.
#[test]
fn a_leaving_executor_waits_until_its_instant_and_not_longer_however_late_the_timer() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    bench.now = Tick(bench.armed(Purpose::Leave).0 - 1);
    let effects = bench.step(Event::Timer(Purpose::Leave));
    assert_eq!(exits(&effects), None, "{effects:?}");
    bench.wait(ms(5_000));
    assert_eq!(exits(&bench.step(Event::Timer(Purpose::Leave))).unwrap().code, 1);
}

/// Case 32: what was not let go of is not given back.
#[test]
fn a_sweep_that_does_not_end_is_left_to_the_lease() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    let effects = bench.fire(Purpose::Leave);
    let exit = exits(&effects).unwrap();
    assert_eq!((exit.code, calls(&effects)), (1, 0));
    assert!(exit.why.contains("1 shards"), "{}", exit.why);
}

#[test]
fn a_deregistration_that_is_never_answered_does_not_hold_it_up() {
    let mut bench = Bench::holding(&[]);
    bench.step(Event::Shutdown);
    let effects = bench.fire(Purpose::Leave);
    assert_eq!(exits(&effects).unwrap().code, 0);
    assert!(effects.contains(&Effect::CancelCall));
}

/// R37: a second signal exits immediately.
#[test]
fn asked_a_second_time_it_stops_at_once() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    let effects = bench.step(Event::Shutdown);
    assert_eq!(exits(&effects).unwrap().code, 1);
    assert!(bench.step(Event::Shutdown).is_empty(), "it ends once");
}

/// No process goes on renewing with a dead actor behind it.
#[test]
fn without_the_agents_host_the_fence_closes_and_the_process_ends() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.push(set(M1, 11, &[])).0.unwrap();
    bench.fire(Purpose::Call);
    let effects = bench.step(Event::HostGone);
    assert_eq!(effects[..2], [Effect::CloseFence, Effect::CancelCall]);
    assert!(matches!(bench.call, Some((_, Request::Deregister(_), _))));
    assert!(bench.step(Event::HostGone).is_empty(), "noticed once");
    let exit = exits(&bench.finish_deregistering(effects)).unwrap().clone();
    assert_eq!(exit.code, 1);
    assert!(exit.why.contains("host"), "{}", exit.why);
}

/// It died while a shutdown waited for it.
#[test]
fn without_the_agents_host_a_shutdown_is_a_failure() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(Event::Shutdown);
    let effects = bench.step(Event::HostGone);
    assert_eq!(exits(&bench.finish_deregistering(effects)).unwrap().code, 1);
}

#[test]
fn once_it_is_gone_it_does_nothing_and_refuses_pushes() {
    let mut bench = Bench::holding(&[]);
    bench.step(Event::Shutdown);
    let effects = bench.fire(Purpose::Leave);
    assert!(exits(&effects).is_some());
    let (answer, effects) = bench.push(set(M1, 11, &[(1, 7)]));
    assert_eq!((answer, effects), (Err(Refusal::UnknownExecutor), vec![]));
    assert!(bench.fire(Purpose::Call).is_empty());
    assert!(bench.step(Event::HostGone).is_empty());
}
