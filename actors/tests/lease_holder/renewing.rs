//! Renewals, grants that are late or lost, pushes, sleep.

use crate::bench::*;
use leasehold_actors::executor::message::{Assign, Fenced, Inspect};
use leasehold_model::fence::Closed;
use leasehold_model::message::Push;
use leasehold_model::refusal::Credential;
use leasehold_model::{CallError, ExecutorId, GrantSeq, LeaseKeyHash, Refusal, Revision, ShardEpoch, ShardId, Ttl};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// R11, R45: ten minutes of renewals, one per period.
#[tokio::test(start_paused = true)]
async fn it_renews_once_whenever_a_third_of_its_lease_has_passed() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        bench.until(secs(1), |bench| bench.admits(3) == Ok(7)).await;
        let mut closed = 0;
        for _ in 0..6_000 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            closed += u32::from(bench.admits(3).is_err());
        }
        assert_eq!(closed, 0);
        let renewals = bench.manager.renewals();
        for pair in renewals.windows(2) {
            let gap = pair[1].0.since(pair[0].0);
            assert!(gap > secs(17) && gap < secs(20), "{gap:?}");
        }
        assert!((29..=34).contains(&renewals.len()), "{}", renewals.len());
        assert_eq!(bench.told(), [Told::Recover(shards(&[(3, 7)]))]);
        assert_eq!(renewals[3].1.heard, GrantSeq(4), "R46");
    })
    .await;
}

/// R12, R13: renewals that are lost on the way or on the way back are repeated, and nothing is given up meanwhile.
#[tokio::test(start_paused = true)]
async fn lost_answers_are_repeated_while_the_lease_lasts() {
    for conduct in [Conduct::LoseAnswers, Conduct::Deaf, Conduct::Down] {
        local(async {
            let bench = Bench::start(&[(3, 7)]);
            tokio::time::sleep(secs(15)).await;
            bench.manager.conduct(conduct);
            tokio::time::sleep(secs(38)).await;
            bench.manager.conduct(Conduct::Grant);
            for _ in 0..600 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert_eq!(bench.admits(3), Ok(7));
            }
            assert_eq!(bench.manager.registrations().len(), 1);
        })
        .await;
    }
}

/// S5, R2, R5, case 14: whatever the request and the answer take, the fence is closed by the time the manager's deadline comes.
#[tokio::test(start_paused = true)]
async fn however_long_request_and_answer_take_the_fence_closes_before_the_managers_deadline() {
    for request_ms in [0, 300, 900, 1_900] {
        for answer_ms in [0, 300, 900, 1_900, 3_600] {
            local(async move {
                let (ttl, floor) = (secs(6), secs(2));
                let bench = Bench::start_with(&[(3, 7)], ttl, floor, 16, |manager| {
                    manager.script().request_takes = Duration::from_millis(request_ms);
                });
                tokio::time::sleep(secs(5)).await;
                bench.manager.script().answer_takes = Duration::from_millis(answer_ms);
                for _ in 0..200 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let told = bench.manager.script().deadline;
                    assert!(bench.fence.deadline() < told, "{request_ms} ms, {answer_ms} ms");
                }
                bench.manager.conduct(Conduct::Deaf);
                bench.until(secs(20), |bench| bench.now() >= bench.manager.script().deadline).await;
                assert_eq!(bench.admits(3), Err(Closed::NotReady), "{request_ms} ms, {answer_ms} ms");
            })
            .await;
        }
    }
}

/// Case 14: the lease is counted from before the request was sent, to the millisecond.
#[tokio::test(start_paused = true)]
async fn a_delayed_answer_does_not_prolong_the_lease() {
    local(async {
        let bench = Bench::start_with(&[(3, 7)], TTL, FLOOR, 16, |manager| {
            manager.script().answer_takes = secs(9);
        });
        let noted = bench.now();
        bench.until(secs(10), |bench| bench.admits(3) == Ok(7)).await;
        bench.manager.conduct(Conduct::Deaf);
        let lasts = TTL - TTL / 1000;
        tokio::time::sleep(noted.plus(lasts).since(bench.now()) - Duration::from_millis(2)).await;
        assert_eq!(bench.admits(3), Ok(7));
        tokio::time::sleep(Duration::from_millis(4)).await;
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
    })
    .await;
}

/// Case 7: a push overtakes the answer to a renewal.
#[tokio::test(start_paused = true)]
async fn what_a_push_took_stays_given_up_when_an_older_answer_comes() {
    local(async {
        let bench = Bench::start(&[(1, 7), (2, 7)]);
        tokio::time::sleep(secs(1)).await;
        bench.manager.script().answer_takes = secs(5);
        let before = bench.manager.renewals().len();
        bench.until(secs(30), |bench| bench.manager.renewals().len() > before).await;
        let asked = bench.manager.renewals().last().unwrap().0;
        bench.manager.script().set = set(12, &[(1, 7)]);
        assert!(bench.push(set(12, &[(1, 7)])).await.unwrap().applied);
        assert_eq!(bench.fence.revision(), Revision(12), "what a refusal says is of the set that was just applied");
        tokio::time::sleep(secs(6)).await;
        assert_eq!((bench.admits(1), bench.admits(2)), (Ok(7), Err(Closed::NotHeld)));
        assert!(bench.fence.deadline() > asked.plus(secs(59)), "the held answer moved the lease");
        assert_eq!(
            bench.manager.renewals().last().unwrap().1.claim.shards.len(),
            1,
            "R22: the release is told at once"
        );
    })
    .await;
}

/// Case 10
#[tokio::test(start_paused = true)]
async fn a_push_before_the_registration_is_answered_is_retryable() {
    local(async {
        let bench = Bench::start_with(&[], TTL, FLOOR, 16, |manager| manager.script().answer_takes = secs(5));
        tokio::time::sleep(secs(1)).await;
        let answer = bench.push(set(11, &[(1, 7)])).await.unwrap();
        assert_eq!((answer.applied, answer.claim), (false, None));
        tokio::time::sleep(secs(5)).await;
        assert!(bench.push(set(11, &[(1, 7)])).await.unwrap().applied);
        assert_eq!(bench.admits(1), Ok(7));
    })
    .await;
}

/// R36
#[tokio::test(start_paused = true)]
async fn a_push_without_the_right_hash_or_for_another_life_is_refused() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        let executor = bench.current.read();
        let forged = Push { executor, key_hash: LeaseKeyHash([1; 32]), set: set(11, &[]) };
        let answer = bench.holder.send(Assign(forged)).await.unwrap();
        assert_eq!(answer, Err(CallError::Refused(Refusal::BadCredential(Credential::LeaseKey))));
        let key_hash = *bench.hash.lock().unwrap();
        let other = Push { executor: ExecutorId::from_u128(9), key_hash, set: set(11, &[]) };
        let answer = bench.holder.send(Assign(other)).await.unwrap();
        assert_eq!(answer, Err(CallError::Refused(Refusal::UnknownExecutor)));
        assert_eq!(bench.admits(3), Ok(7));
    })
    .await;
}

/// Case 33: the greatest numbers that the wire can carry are applied or ignored, and nothing wraps.
#[tokio::test(start_paused = true)]
async fn giant_epochs_and_revisions_do_no_harm() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        let greatest = ShardEpoch::MAX.get();
        assert!(bench.push(set(i64::MAX as u64, &[(3, greatest), (63, greatest - 1)])).await.unwrap().applied);
        tokio::time::sleep(secs(1)).await;
        assert_eq!((bench.admits(3), bench.admits(63)), (Ok(greatest), Ok(greatest - 1)));
        bench.holder.do_send(Fenced { shard: ShardId(3), held: ShardEpoch::MAX, recorded: Some(ShardEpoch::MAX) });
        bench.holder.do_send(Fenced { shard: ShardId(u32::MAX), held: ShardEpoch::MAX, recorded: None });
        tokio::time::sleep(secs(60)).await;
        assert_eq!(bench.admits(3), Ok(greatest), "later sets of revision 10 are older");
    })
    .await;
}

/// Case 19: a lease longer than the machine has been up.
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_day_is_held_from_the_first_hour_on() {
    local(async {
        let bench = Bench::start_with(&[(3, 7)], Duration::from_millis(Ttl::MAX_MS), FLOOR, 16, |_| {});
        tokio::time::sleep(secs(7 * 3_600)).await;
        assert_eq!(bench.admits(3), Ok(7));
        let inspection = bench.holder.send(Inspect).await.unwrap();
        assert!(inspection.lease_remaining_ms > 16 * 3_600 * 1_000);
        assert_eq!(bench.manager.renewals().len(), 0);
    })
    .await;
}

/// Case 16, R10, R16: the first thing after a sleep is a refusal; then it registers and serves again, by itself.
#[tokio::test(start_paused = true)]
async fn after_a_machine_slept_past_its_lease_it_refuses_then_registers_anew_and_serves() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        let before = bench.current.read();
        bench.manager.script().reaped.push(before);
        bench.manager.script().set = set(20, &[(3, 8)]);
        bench.clock.sleep_machine(secs(120));
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
        let took = bench.until(secs(3), |bench| bench.admits(3) == Ok(8)).await;
        assert!(took < secs(2), "{took:?}");
        assert_ne!(bench.current.read(), before);
        assert_eq!(bench.manager.registrations().last().unwrap().1.executor, bench.current.read());
        assert_eq!(
            bench.told()[1..],
            [Told::Sweep(shards(&[(3, 7)]), GRACE), Told::Recover(shards(&[(3, 8)]))],
            "swept as the lease was found over, recovered under the new epoch"
        );
    })
    .await;
}

/// Case 16: a manager that slept along still knows it; the reviving grant recovers what it holds (R21).
#[tokio::test(start_paused = true)]
async fn after_a_sleep_that_the_manager_did_not_count_the_same_life_serves_again() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        let before = bench.current.read();
        bench.clock.sleep_machine(secs(120));
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
        bench.until(secs(2), |bench| bench.admits(3) == Ok(7)).await;
        assert_eq!(bench.current.read(), before);
        let expected = [Told::Sweep(shards(&[(3, 7)]), GRACE), Told::Recover(shards(&[(3, 7)]))];
        assert_eq!(bench.told()[1..], expected);
    })
    .await;
}

/// Case 34: at the deadline nothing new starts, and what runs is given its grace.
#[tokio::test(start_paused = true)]
async fn when_renewals_go_into_a_black_hole_admission_ends_at_the_deadline() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        bench.manager.conduct(Conduct::Deaf);
        let deadline = bench.fence.deadline();
        tokio::time::sleep(deadline.since(bench.now()) - Duration::from_millis(2)).await;
        assert_eq!(bench.admits(3), Ok(7));
        tokio::time::sleep(Duration::from_millis(3)).await;
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
        tokio::time::sleep(secs(1)).await;
        assert_eq!(bench.told()[1..], [Told::Sweep(shards(&[(3, 7)]), GRACE)]);
        bench.manager.conduct(Conduct::Grant);
        bench.until(secs(20), |bench| bench.admits(3) == Ok(7)).await;
    })
    .await;
}

/// Case 48, R46: renewals arrive, answers do not, for five leases; then the manager says so.
#[tokio::test(start_paused = true)]
async fn an_executor_that_hears_nothing_fences_itself_and_registers_anew_when_it_hears_again() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        let (before, deadline) = (bench.current.read(), bench.fence.deadline());
        bench.manager.conduct(Conduct::LoseAnswers);
        tokio::time::sleep(secs(5 * 60)).await;
        assert!(bench.fence.deadline() <= deadline);
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
        let renewals = bench.manager.renewals();
        assert!(renewals.len() > 20, "it goes on asking: {}", renewals.len());
        assert!(renewals.iter().all(|(_, renewal)| renewal.heard == GrantSeq(1)));
        bench.manager.conduct(Conduct::Refuse(Refusal::Unheard));
        bench.until(secs(30), |bench| bench.current.read() != before).await;
        bench.manager.script().set = set(30, &[(5, 2)]);
        bench.manager.conduct(Conduct::Grant);
        bench.until(secs(10), |bench| bench.admits(5) == Ok(2)).await;
        assert_eq!(bench.admits(3), Err(Closed::NotHeld));
        let registered = bench.manager.registrations().last().unwrap().1.executor;
        assert_eq!(registered, bench.current.read());
    })
    .await;
}

/// F6, R40, case 8: one fenced write after another makes it renew at once, once, with the recorded epoch.
#[tokio::test(start_paused = true)]
async fn fenced_writes_are_reported_at_once_and_not_in_a_loop() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        let recorded = Some(ShardEpoch::new(40).unwrap());
        let held = ShardEpoch::new(7).unwrap();
        for _ in 0..1_000 {
            bench.holder.do_send(Fenced { shard: ShardId(3), held, recorded });
        }
        tokio::time::sleep(secs(5)).await;
        let renewals = bench.manager.renewals();
        assert_eq!(renewals.len(), 1);
        assert_eq!(renewals[0].1.epoch_floors, shards(&[(3, 40)]));
        assert_eq!(bench.metrics.fenced_writes.get(), 1_000);
    })
    .await;
}

/// R20, R22: the claim keeps what drains; the release is told the moment it is true. R29: and what comes back meanwhile waits.
#[tokio::test(start_paused = true)]
async fn a_drain_is_claimed_until_it_ends_and_told_at_once() {
    local(async {
        let bench = Bench::start(&[(1, 7), (2, 7)]);
        tokio::time::sleep(secs(1)).await;
        *bench.sweeps_take.lock().unwrap() = secs(4);
        bench.manager.script().set = set(11, &[(2, 7)]);
        let answer = bench.push(set(11, &[(2, 7)])).await.unwrap();
        assert_eq!((answer.applied, answer.claim.unwrap().shards.len()), (true, 2));
        assert_eq!(bench.admits(1), Err(Closed::NotHeld), "admission closed before the answer");
        tokio::time::sleep(secs(2)).await;
        bench.manager.script().set = set(12, &[(1, 9), (2, 7)]);
        let answer = bench.push(set(12, &[(1, 9), (2, 7)])).await.unwrap();
        assert_eq!(answer.claim.unwrap().shards.epoch_of(ShardId(1)), ShardEpoch::new(7).ok());
        assert_eq!(bench.admits(1), Err(Closed::NotHeld));
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        assert_eq!(bench.admits(1), Ok(9));
        assert_eq!(
            bench.manager.renewals().last().unwrap().1.claim.shards.epoch_of(ShardId(1)),
            ShardEpoch::new(9).ok()
        );
    })
    .await;
}

/// Sweeps and recoveries reach the host in the order of the decisions, also when its mailbox is full: a recovery that was overtaken by its
/// sweep would start agents of a lost shard.
#[tokio::test(start_paused = true)]
async fn a_full_mailbox_does_not_reorder_sweeps_and_recoveries() {
    local(async {
        let bench = Bench::start_with(&[], TTL, FLOOR, 1, |_| {});
        tokio::time::sleep(secs(1)).await;
        let mut expected = Vec::new();
        let mut answers = Vec::new();
        for round in 0..20_u64 {
            let gained = [(u32::try_from(round).unwrap(), 7)];
            for (revision, pairs) in [(20 + 2 * round, &gained[..]), (21 + 2 * round, &[])] {
                let push = Push {
                    executor: bench.current.read(),
                    key_hash: *bench.hash.lock().unwrap(),
                    set: set(revision, pairs),
                };
                answers.push(bench.holder.send(Assign(push)));
            }
            expected.extend([Told::Recover(shards(&gained)), Told::Sweep(shards(&gained), GRACE)]);
        }
        for answer in answers {
            assert!(answer.await.unwrap().unwrap().applied);
        }
        tokio::time::sleep(secs(1)).await;
        assert_eq!(bench.told(), expected);
    })
    .await;
}

/// Case 47: success and failure are told apart.
#[tokio::test(start_paused = true)]
async fn renewals_are_counted_by_outcome() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(30)).await;
        bench.manager.conduct(Conduct::Refuse(Refusal::NotLeader { leader: None }));
        tokio::time::sleep(secs(10)).await;
        let count = |outcome: &'static str| {
            let outcome = leasehold_actors::executor::metrics::Outcome { outcome };
            bench.metrics.renewals.get_or_create(&outcome).get()
        };
        assert_eq!(count("granted"), 1);
        assert!(count("NOT_LEADER") >= 1);
        assert_eq!(count("OUTCOME_UNKNOWN"), 0);
    })
    .await;
}

/// Case 35: an executor whose work hangs goes on renewing, and says how long it has hung.
#[tokio::test(start_paused = true)]
async fn renewals_report_the_condition_without_asking_the_host() {
    local(async {
        let bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        bench.pulse.agents.store(5, Ordering::Relaxed);
        bench.pulse.running.store(2, Ordering::Relaxed);
        bench.pulse.oldest_began.store(bench.now().0, Ordering::Relaxed);
        tokio::time::sleep(secs(20)).await;
        let (at, renewal) = bench.manager.renewals().remove(0);
        assert_eq!((renewal.condition.agents, renewal.condition.running), (5, 2));
        assert!(renewal.condition.oldest_running_ms > 16_000 && at > bench.now().minus(secs(4)));
        let inspection = bench.holder.send(Inspect).await.unwrap();
        assert!(inspection.condition.oldest_running_ms >= 20_000);
    })
    .await;
}
