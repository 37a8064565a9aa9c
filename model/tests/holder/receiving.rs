//! The one path of a set, whichever envelope it came in, and the end of a lease.

use crate::bench::*;
use leasehold_model::holder::{Effect, Event, Ignored, Loss, Purpose};
use leasehold_model::message::Push;
use leasehold_model::refusal::{Credential, Mismatch};
use leasehold_model::{LeaseKeyHash, Refusal, ShardCount, ShardEpoch, ShardId};

fn epoch(epoch: u64) -> ShardEpoch {
    ShardEpoch::new(epoch).unwrap()
}

/// R20: admission closes, then the sweep, and what stays is not touched.
#[test]
fn a_narrowed_set_closes_then_sweeps_and_claims_until_swept() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7)]);
    let (answer, effects) = bench.push(set(M1, 11, &[(2, 7)]));
    let [Effect::CloseShard(ShardId(1)), Effect::Sweep { id, shards: swept, grace }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((swept, *grace), (&shards(&[(1, 7)]), GRACE));
    let answer = answer.unwrap();
    assert!(answer.applied);
    assert_eq!(answer.claim, Some(claim(M1, 11, &[(1, 7), (2, 7)])), "R22: still draining, still claimed");

    let effects = bench.step(Event::Swept(*id));
    assert_eq!(calls(&effects), 1, "R22: renews at once");
    assert_eq!(bench.renewal().claim, claim(M1, 11, &[(2, 7)]));
}

/// R20
#[test]
fn a_set_narrowed_by_a_renewal_sweeps_exactly_as_one_narrowed_by_a_push() {
    let mut pushed = Bench::holding(&[(1, 7), (2, 7)]);
    let (_, by_push) = pushed.push(set(M1, 11, &[(2, 8)]));
    let mut renewed = Bench::holding(&[(1, 7), (2, 7)]);
    renewed.fire(Purpose::Call);
    let by_renewal = renewed.answer(Ok(grant(2, set(M1, 11, &[(2, 8)]))));
    assert_eq!(by_renewal[..by_push.len()], by_push[..]);
    let rest = &by_renewal[by_push.len()..];
    assert!(matches!(rest, [Effect::ArmFence(_), Effect::Arm { .. }, Effect::Arm { .. }]), "{rest:?}");
    assert_eq!(pushed.holder.claim(), renewed.holder.claim());
}

/// R20: what is gained is recovered, then admitted.
#[test]
fn a_gained_shard_is_recovered_and_admitted() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let (answer, effects) = bench.push(set(M1, 11, &[(1, 7), (2, 3)]));
    let [Effect::Recover { shards: gained, .. }, Effect::OpenShard(ShardId(2), at)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((gained, *at), (&shards(&[(2, 3)]), epoch(3)));
    assert_eq!(answer.unwrap().claim, Some(claim(M1, 11, &[(1, 7), (2, 3)])));
}

/// R29, R20: a changed epoch is a loss and a gain; the gain waits for the loss.
#[test]
fn a_shard_regained_at_a_new_epoch_is_admitted_only_after_the_old_drain_ended() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.push(set(M1, 11, &[])).0.unwrap();
    let (answer, effects) = bench.push(set(M1, 12, &[(1, 9)]));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(answer.unwrap().claim, Some(claim(M1, 12, &[(1, 7)])), "the old epoch is what is still held");
    assert_eq!(bench.sweeps.len(), 1);
    let effects = bench.swept();
    assert_eq!(admission(&effects), [Effect::OpenShard(ShardId(1), epoch(9))]);
    assert!(matches!(&effects[0], Effect::Recover { shards: gained, .. } if *gained == shards(&[(1, 9)])));
    assert_eq!(calls(&effects), 1);
    assert_eq!(bench.renewal().claim, claim(M1, 12, &[(1, 9)]));
}

/// R29: the same shard at the same epoch, dropped and given back while it drains, waits too.
#[test]
fn a_shard_given_back_while_it_drains_is_admitted_again_after_the_drain() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.push(set(M1, 11, &[])).0.unwrap();
    let (_, effects) = bench.push(set(M1, 12, &[(1, 7)]));
    assert!(effects.is_empty());
    let effects = bench.swept();
    assert_eq!(admission(&effects), [Effect::OpenShard(ShardId(1), epoch(7))]);
    assert_eq!(calls(&effects), 0, "nothing left the claim");
}

/// R20: drains overlap, each ends by itself.
#[test]
fn sets_that_change_while_sweeps_run_are_applied_at_once() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7), (3, 7)]);
    bench.push(set(M1, 11, &[(2, 7), (3, 7)])).0.unwrap();
    bench.push(set(M1, 12, &[(3, 7)])).0.unwrap();
    let (answer, effects) = bench.push(set(M1, 13, &[(3, 7), (4, 1)]));
    assert_eq!(admission(&effects), [Effect::OpenShard(ShardId(4), epoch(1))]);
    assert_eq!(answer.unwrap().claim, Some(claim(M1, 13, &[(1, 7), (2, 7), (3, 7), (4, 1)])));
    let later = bench.sweeps.remove(1);
    bench.step(Event::Swept(later));
    assert_eq!(bench.renewal().claim, claim(M1, 13, &[(1, 7), (3, 7), (4, 1)]));
    bench.swept();
    assert_eq!(bench.holder.claim(), Some(claim(M1, 13, &[(3, 7), (4, 1)])));
    let effects = bench.answer(Ok(grant(2, set(M1, 13, &[(3, 7), (4, 1)]))));
    assert_eq!(calls(&effects), 1, "R22: the second drain ended while a renewal was in flight; its claim was too old");
    assert_eq!(bench.renewal().claim, claim(M1, 13, &[(3, 7), (4, 1)]));
}

/// R19
#[test]
fn an_older_set_is_not_applied_and_the_same_one_again_is_harmless() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let (answer, effects) = bench.push(set(M1, 9, &[]));
    assert_eq!((answer.unwrap().applied, effects), (false, vec![]));
    let (answer, effects) = bench.push(set(M1, 10, &[(1, 7)]));
    let answer = answer.unwrap();
    assert_eq!((answer.applied, effects), (true, vec![]));
    assert_eq!(answer.claim, Some(claim(M1, 10, &[(1, 7)])));
}

/// R18
#[test]
fn a_push_from_a_manager_that_is_not_followed_is_not_applied_and_makes_it_renew() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let regular = bench.armed(Purpose::Call);
    let (answer, effects) = bench.push(set(M2, 99, &[]));
    let answer = answer.unwrap();
    assert_eq!((answer.applied, answer.claim), (false, Some(claim(M1, 10, &[(1, 7)]))));
    assert_eq!(admission(&effects), []);
    let soon = bench.armed(Purpose::Call);
    assert!(soon < regular && soon <= bench.now.plus(ms(1_000)), "{effects:?}");
    assert_eq!(calls(&bench.fire(Purpose::Call)), 1);
}

/// R18: another manager that answers is followed, whatever its revisions.
#[test]
fn a_grant_from_another_manager_starts_revisions_over() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7)]);
    bench.fire(Purpose::Call);
    let effects = bench.answer(Ok(grant(1, set(M2, 3, &[(1, 7)]))));
    assert!(effects.contains(&Effect::CloseShard(ShardId(2))));
    assert_eq!(bench.holder.claim(), Some(claim(M2, 3, &[(1, 7), (2, 7)])));
    assert!(bench.push(set(M2, 4, &[(1, 7)])).0.unwrap().applied);
    assert!(!bench.push(set(M1, 99, &[])).0.unwrap().applied);
}

/// R40: a wiped store may mint lower epochs; its sets are applied.
#[test]
fn a_set_with_lower_epochs_from_another_manager_is_applied() {
    let mut bench = Bench::holding(&[(1, 1_000)]);
    bench.fire(Purpose::Call);
    bench.answer(Ok(grant(1, set(M2, 1, &[(1, 1)]))));
    let effects = bench.swept();
    assert_eq!(admission(&effects), [Effect::OpenShard(ShardId(1), epoch(1))]);
}

/// R4: whatever a push says, the deadline stands.
#[test]
fn a_push_never_moves_the_deadline() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let before = bench.holder.deadline();
    bench.wait(ms(1_000));
    let (_, effects) = bench.push(set(M1, 11, &[(1, 7), (2, 1)]));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ArmFence(_))));
    assert_eq!(bench.holder.deadline(), before);
}

/// R36
#[test]
fn a_push_must_be_meant_for_this_life_and_prove_itself() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let push = |executor| Push { executor, key_hash: LeaseKeyHash([0; 32]), set: set(M1, 11, &[]) };
    let (answer, effects) = bench.push_as(false, push(life(1).executor));
    assert_eq!((answer, effects), (Err(Refusal::BadCredential(Credential::LeaseKey)), vec![]));
    let (answer, effects) = bench.push_as(false, push(life(2).executor));
    assert_eq!((answer, effects), (Err(Refusal::UnknownExecutor), vec![]));
    assert_eq!(bench.holder.claim(), Some(claim(M1, 10, &[(1, 7)])));
}

/// Case 10
#[test]
fn a_push_before_the_registration_is_answered_is_answered_without_a_claim() {
    let mut bench = Bench::started();
    let (answer, effects) = bench.push(set(M1, 11, &[(1, 7)]));
    let answer = answer.unwrap();
    assert_eq!((answer.applied, answer.claim, effects), (false, None, vec![]));
    bench.answer(Ok(grant(1, set(M1, 10, &[]))));
    assert!(bench.push(set(M1, 11, &[(1, 7)])).0.unwrap().applied, "delivered again, it is applied");
}

/// R23
#[test]
fn a_set_of_another_shard_count_is_refused_and_ends_the_process() {
    let other = |set: leasehold_model::ShardSet| leasehold_model::ShardSet {
        shard_count: ShardCount::new(128).unwrap(),
        ..set
    };
    let mut bench = Bench::holding(&[(1, 7)]);
    let (answer, effects) = bench.push(other(set(M1, 11, &[(1, 7)])));
    let expected =
        Refusal::Mismatch { what: Mismatch::ShardCount, expected: "128".to_owned(), actual: "64".to_owned() };
    assert_eq!(answer, Err(expected));
    assert_eq!(admission(&effects), [Effect::CloseFence, Effect::CloseShard(ShardId(1))]);
    let effects = bench.swept();
    let exit = exits(&bench.finish_deregistering(effects)).unwrap().clone();
    assert_eq!(exit.code, 78);
    assert!(exit.why.contains("128") && exit.why.contains("64"), "{}", exit.why);

    let mut identity = identity();
    identity.shard_count = Some(ShardCount::new(32).unwrap());
    let mut bench = Bench::new(identity);
    bench.step(Event::Started { seed: 7 });
    assert_eq!(bench.registration().shard_count, ShardCount::new(32).ok());
    let effects = bench.answer(Ok(grant(1, set(M1, 10, &[(1, 7)]))));
    assert_eq!(admission(&effects), [], "nothing of it is applied");
    assert_eq!(exits(&bench.finish_deregistering(effects)).unwrap().code, 78);
}

/// R21: pending from the moment the lease ended, run by the grant that revives it, although its set is unchanged.
#[test]
fn a_lapsed_lease_sweeps_everything_and_the_reviving_grant_recovers_it() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7)]);
    bench.fire(Purpose::Call);
    let effects = bench.fire(Purpose::Lapse);
    let [
        Effect::CloseFence,
        Effect::CloseShard(ShardId(1)),
        Effect::CloseShard(ShardId(2)),
        Effect::Sweep { shards: swept, .. },
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(*swept, shards(&[(1, 7), (2, 7)]));
    let effects = bench.swept();
    assert!(effects.is_empty(), "nothing is recovered without a lease: {effects:?}");
    assert_eq!(bench.holder.claim(), Some(claim(M1, 10, &[(1, 7), (2, 7)])), "nobody took them away");

    bench.answer(Err(leasehold_model::CallError::Unknown("deadline".to_owned())));
    bench.fire(Purpose::Call);
    let effects = bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7), (2, 7)]))));
    let opened: Vec<_> = shards(&[(1, 7), (2, 7)]).into_iter().map(|(s, e)| Effect::OpenShard(s, e)).collect();
    assert_eq!(admission(&effects)[1..], opened[..]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Recover { .. })));
}

/// R21: the drain that the lapse began is still running when the grant comes.
#[test]
fn a_lease_revived_during_the_sweep_recovers_each_shard_when_its_sweep_ends() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.fire(Purpose::Call);
    bench.fire(Purpose::Lapse);
    bench.answer(Err(leasehold_model::CallError::Unknown("deadline".to_owned())));
    bench.fire(Purpose::Call);
    let effects = bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7)]))));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::OpenShard(..))), "{effects:?}");
    let effects = bench.swept();
    assert_eq!(admission(&effects), [Effect::OpenShard(ShardId(1), epoch(7))]);
}

/// R21: a lapsed executor sweeps what a set takes and recovers nothing of what it gives.
#[test]
fn a_set_received_without_a_lease_is_applied_but_recovers_nothing() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.fire(Purpose::Lapse);
    bench.swept();
    let (answer, effects) = bench.push(set(M1, 11, &[(2, 3)]));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(answer.unwrap().claim, Some(claim(M1, 11, &[(2, 3)])));
    bench.fire(Purpose::Call);
    let effects = bench.answer(Ok(grant(2, set(M1, 11, &[(2, 3)]))));
    assert_eq!(admission(&effects)[1], Effect::OpenShard(ShardId(2), epoch(3)));
}

/// R21, at startup: the first grant may be over before it is heard.
#[test]
fn a_first_grant_heard_too_late_recovers_nothing_and_the_next_one_does() {
    let mut bench = Bench::started();
    bench.wait(ms(TTL_MS));
    let effects = bench.answer(Ok(grant(1, set(M1, 10, &[(1, 7)]))));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Recover { .. } | Effect::OpenShard(..))));
    bench.fire(Purpose::Call);
    let effects = bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7)]))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Recover { .. })));
}

/// R10, S1: whatever wakes it first finds the lease over.
#[test]
fn any_event_after_the_deadline_closes_the_fence_first() {
    let fenced = Event::Fenced { shard: ShardId(9), held: epoch(1), recorded: None };
    for event in [Event::Timer(Purpose::Call), Event::Timer(Purpose::Lapse), fenced, Event::Shutdown] {
        let mut bench = Bench::holding(&[(1, 7)]);
        bench.now = bench.holder.deadline();
        let effects = bench.step(event.clone());
        assert_eq!(effects[..2], [Effect::CloseFence, Effect::CloseShard(ShardId(1))], "{event:?}");
    }
}

/// F6, case 8: storage says that another owner exists; the manager is asked at once, and once.
#[test]
fn a_fenced_write_makes_it_renew_at_once_but_not_in_a_loop() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let fenced =
        |held, recorded| Event::Fenced { shard: ShardId(1), held: epoch(held), recorded: Some(epoch(recorded)) };
    assert_eq!(calls(&bench.step(fenced(7, 8))), 1);
    bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7)]))));
    for _ in 0..10 {
        assert_eq!(calls(&bench.step(fenced(7, 8))), 0);
    }
    bench.push(set(M1, 11, &[(1, 9)])).0.unwrap();
    bench.swept();
    bench.answer(Ok(grant(3, set(M1, 11, &[(1, 9)]))));
    assert_eq!(calls(&bench.step(fenced(7, 8))), 0, "an old epoch's agent says nothing new");
    assert_eq!(calls(&bench.step(fenced(9, 12))), 1);
}

/// R40, case 4: reported until the epoch held exceeds it, an equal one (another writer) included.
#[test]
fn recorded_epochs_are_reported_until_the_epoch_held_exceeds_them() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7)]);
    let fenced =
        |shard, recorded| Event::Fenced { shard: ShardId(shard), held: epoch(7), recorded: Some(epoch(recorded)) };
    bench.step(fenced(1, 7));
    assert_eq!(bench.renewal().epoch_floors, shards(&[(1, 7)]));
    bench.step(fenced(2, 30));
    bench.step(fenced(2, 20));
    bench.step(Event::Fenced { shard: ShardId(5), held: epoch(1), recorded: Some(epoch(99)) });
    bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7), (2, 7)]))));
    assert_eq!(bench.renewal().epoch_floors, shards(&[(1, 7), (2, 30)]), "the greatest; nothing of what is not held");
    bench.answer(Ok(grant(3, set(M1, 11, &[(1, 8), (2, 30)]))));
    bench.fire(Purpose::Call);
    assert_eq!(bench.renewal().epoch_floors, shards(&[(2, 30)]), "8 exceeds 7, 30 does not exceed 30");
    bench.answer(Ok(grant(4, set(M1, 12, &[(1, 8), (2, 31)]))));
    bench.fire(Purpose::Call);
    assert_eq!(bench.renewal().epoch_floors, shards(&[]));
    bench.step(Event::Fenced { shard: ShardId(1), held: epoch(8), recorded: Some(epoch(3)) });
    bench.answer(Ok(grant(5, set(M1, 12, &[(1, 8), (2, 31)]))));
    assert_eq!(bench.renewal().epoch_floors, shards(&[]), "a lower record is no floor");
}

/// R40: epochs rise with a new owner and at no other time. What storage refuses of an earlier ownership may be refused because of this one.
#[test]
fn an_append_of_an_earlier_ownership_refused_under_the_present_epoch_is_no_floor() {
    let mut bench = Bench::holding(&[(1, 7)]);
    let fenced =
        |held, recorded| Event::Fenced { shard: ShardId(1), held: epoch(held), recorded: Some(epoch(recorded)) };
    bench.step(fenced(5, 7));
    bench.fire(Purpose::Call);
    assert_eq!(bench.renewal().epoch_floors, shards(&[]), "7 may be its own record");
    bench.step(fenced(5, 8));
    bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7)]))));
    bench.fire(Purpose::Call);
    assert_eq!(bench.renewal().epoch_floors, shards(&[(1, 8)]), "8 is nobody's but a stranger's");
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.step(fenced(7, 7));
    assert_eq!(bench.renewal().epoch_floors, shards(&[(1, 7)]), "the present epoch was refused: another writer has it");
}

/// R16, R29: the life before still drains; what the new one is given waits for it.
#[test]
fn a_new_life_waits_for_the_sweeps_of_the_one_before() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.fire(Purpose::Call);
    bench.refuse(Refusal::UnknownExecutor);
    bench.step(Event::NewIdentity(life(2)));
    let effects = bench.answer(Ok(grant(1, set(M1, 20, &[(1, 8), (2, 1)]))));
    assert_eq!(admission(&effects)[1..], [Effect::OpenShard(ShardId(2), epoch(1))]);
    assert_eq!(bench.holder.claim(), Some(claim(M1, 20, &[(1, 7), (2, 1)])));
    let effects = bench.swept();
    assert_eq!(admission(&effects), [Effect::OpenShard(ShardId(1), epoch(8))]);
}

#[test]
fn it_says_of_itself_what_it_holds_and_what_drains() {
    let mut bench = Bench::holding(&[(1, 7), (2, 7)]);
    bench.push(set(M1, 11, &[(2, 7)])).0.unwrap();
    let said = bench.holder.inspection(bench.now, leasehold_model::message::Condition::default());
    assert_eq!((said.executor, said.manager, said.applied.0), (life(1).executor, Some(M1), 11));
    assert_eq!(said.held.iter().collect::<Vec<_>>(), shards(&[(2, 7)]));
    assert_eq!(said.draining.iter().collect::<Vec<_>>(), shards(&[(1, 7)]));
    assert_eq!(said.lease_remaining_ms, 59_930);
    assert_eq!(said.name.as_str(), "a");
}

/// R19: at least the last applied, so an equal revision counts, by renewal as by push.
#[test]
fn a_set_of_the_revision_applied_last_is_applied() {
    let mut bench = Bench::holding(&[(1, 7)]);
    bench.push(set(M1, 10, &[(1, 7), (2, 1)])).0.unwrap();
    assert_eq!(bench.holder.claim(), Some(claim(M1, 10, &[(1, 7), (2, 1)])));
    bench.fire(Purpose::Call);
    bench.answer(Ok(grant(2, set(M1, 10, &[(1, 7), (2, 1), (3, 1)]))));
    assert_eq!(bench.holder.claim(), Some(claim(M1, 10, &[(1, 7), (2, 1), (3, 1)])));
}

/// R18: with jitter, within a thirtieth of the lease, so that a new manager's pushes do not bring everybody at once.
#[test]
fn a_foreign_push_spreads_the_renewals_over_a_thirtieth_of_a_short_lease() {
    let mut waits = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut bench = Bench::new(identity());
        bench.step(Event::Started { seed });
        let mut short = grant(1, set(M1, 10, &[]));
        short.ttl = leasehold_model::Ttl::from_ms(3_000).unwrap();
        bench.answer(Ok(short));
        bench.push(set(M2, 99, &[])).0.unwrap();
        waits.insert(bench.armed(Purpose::Call).since(bench.now));
    }
    assert!(waits.len() > 40 && waits.last() <= Some(&ms(100)), "{waits:?}");
}

/// Case 47: an operator finds the word of a metric in the guide.
#[test]
fn why_shards_close_and_pushes_are_ignored_is_said_in_the_words_of_the_operations_guide() {
    let guide = include_str!("../../../docs/operations.md");
    let row = |metric: &str| {
        let row = guide.lines().find(|line| line.starts_with(&format!("| `{metric}`"))).unwrap();
        let words = row.rsplit_once(": ").unwrap().1.trim_end_matches(" |").replace("applied, or ", "");
        words.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let losses = [Loss::Narrowed, Loss::EpochChanged, Loss::Lapsed, Loss::Unregistered, Loss::Leaving];
    assert_eq!(row("leasehold_executor_shards_closed_total"), losses.map(Loss::as_str));
    let ignored = [
        Ignored::TooEarly,
        Ignored::Foreign,
        Ignored::Stale,
        Ignored::Leaving,
        Ignored::OtherLife,
        Ignored::Unproven,
        Ignored::ShardCount,
    ];
    assert_eq!(row("leasehold_executor_pushes_total"), ignored.map(Ignored::as_str));
}
