//! Shutdown, a dead host, a panic, patience.

use crate::bench::*;
use leasehold_actors::executor::lease_holder::Shutdown;
use leasehold_model::Refusal;
use leasehold_model::fence::Closed;
use leasehold_model::message::Push;
use std::time::Duration;

/// R37: in this order: admission, sweep, deregistration, exit.
#[tokio::test(start_paused = true)]
async fn a_shutdown_drains_deregisters_and_ends_with_success() {
    local(async {
        let mut bench = Bench::start_with(&[(3, 7)], secs(3), Duration::from_millis(500), 16, |_| {});
        tokio::time::sleep(secs(1)).await;
        *bench.sweeps_take.lock().unwrap() = secs(8);
        let asked = bench.now();
        bench.holder.send(Shutdown).await.unwrap();
        assert_eq!(bench.admits(3), Err(Closed::NotHeld), "nothing new starts");
        let exit = bench.ended().await;
        assert_eq!(exit.code, 0, "{}", exit.why);
        let took = bench.now().since(asked);
        assert!(took >= secs(8) && took < secs(9), "{took:?}");
        let deregistered = bench.manager.deregistrations();
        assert_eq!(deregistered.len(), 1);
        assert!(deregistered[0].0.since(asked) >= secs(8), "never before everything is swept");
        let renewed = bench.manager.renewals().last().unwrap().0;
        assert!(renewed.since(asked) > secs(6), "a grace longer than the lease is renewed through");
        assert_eq!(bench.fence.deadline(), leasehold_model::Tick::ZERO);
        tokio::time::sleep(secs(1)).await;
        assert!(!bench.holder.connected());
    })
    .await;
}

/// R17: the call in flight would have taken ten seconds.
#[tokio::test(start_paused = true)]
async fn a_shutdown_is_raced_against_the_call_in_flight() {
    local(async {
        for registered in [true, false] {
            let mut bench = Bench::start_with(&[(3, 7)], TTL, FLOOR, 16, |manager| {
                if !registered {
                    manager.conduct(Conduct::LoseAnswers);
                }
            });
            tokio::time::sleep(secs(1)).await;
            bench.manager.conduct(Conduct::LoseAnswers);
            if registered {
                bench.until(secs(30), |bench| !bench.manager.renewals().is_empty()).await;
            }
            bench.manager.script().conduct = Conduct::Grant;
            bench.manager.script().answer_takes = Duration::from_millis(1);
            let asked = bench.now();
            bench.holder.do_send(Shutdown);
            assert_eq!(bench.ended().await.code, 0);
            let took = bench.now().since(asked);
            assert!(took < Duration::from_millis(100), "{took:?}");
            assert_eq!(bench.manager.deregistrations().len(), 1);
        }
    })
    .await;
}

/// R37: one attempt, bounded, when no manager answers any more.
#[tokio::test(start_paused = true)]
async fn a_shutdown_without_a_manager_ends_within_seconds() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        bench.manager.conduct(Conduct::Deaf);
        let asked = bench.now();
        bench.holder.do_send(Shutdown);
        assert_eq!(bench.ended().await.code, 0);
        assert!(bench.now().since(asked) <= secs(6));
    })
    .await;
}

/// Case 32: a sweep that does not end is not called a release.
#[tokio::test(start_paused = true)]
async fn a_shutdown_whose_sweep_hangs_ends_without_deregistering() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        *bench.sweeps_take.lock().unwrap() = secs(3_600);
        let asked = bench.now();
        bench.holder.do_send(Shutdown);
        let exit = bench.ended().await;
        assert_eq!(exit.code, 1, "{}", exit.why);
        assert!(bench.now().since(asked) <= secs(17));
        assert!(bench.manager.deregistrations().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_second_shutdown_ends_at_once() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        *bench.sweeps_take.lock().unwrap() = secs(9);
        bench.holder.do_send(Shutdown);
        tokio::time::sleep(secs(1)).await;
        let asked = bench.now();
        bench.holder.do_send(Shutdown);
        assert_eq!(bench.ended().await.code, 1);
        assert!(bench.now().since(asked) < Duration::from_millis(10));
    })
    .await;
}

/// No process goes on renewing or admitting with a dead actor behind it.
#[tokio::test(start_paused = true)]
async fn a_dead_agent_host_closes_the_fence_and_ends_the_process_part() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        bench.host.do_send(Die);
        let noticed = bench.until(secs(3), |bench| bench.admits(3).is_err()).await;
        assert!(noticed <= Duration::from_millis(1_100), "{noticed:?}");
        let exit = bench.ended().await;
        assert_eq!(exit.code, 1);
        assert!(exit.why.contains("host"), "{}", exit.why);
        assert_eq!(bench.manager.deregistrations().len(), 1);
        let renewals = bench.manager.renewals().len();
        tokio::time::sleep(secs(120)).await;
        assert_eq!(bench.manager.renewals().len(), renewals);
    })
    .await;
}

/// A host that dies with a sweep in its hands is noticed by that.
#[tokio::test(start_paused = true)]
async fn a_host_that_dies_during_a_sweep_is_noticed_at_once() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        *bench.sweeps_take.lock().unwrap() = secs(9);
        bench.push(set(11, &[])).await.unwrap();
        let asked = bench.now();
        bench.host.do_send(Die);
        assert_eq!(bench.ended().await.code, 1);
        assert!(bench.now().since(asked) < secs(2));
        assert_eq!(bench.fence.deadline(), leasehold_model::Tick::ZERO);
    })
    .await;
}

/// A panic is fail-stop: the fence closes as the actor is dropped, and whoever waits is told.
#[tokio::test(start_paused = true)]
async fn a_panic_closes_the_fence_and_is_told() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        assert_eq!(bench.admits(3), Ok(7));
        bench.manager.conduct(Conduct::Panic);
        let exit = bench.ended().await;
        assert_eq!(exit.code, 1);
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
        assert!(!bench.holder.connected());
        let push =
            Push { executor: bench.current.read(), key_hash: *bench.hash.lock().unwrap(), set: set(11, &[(3, 7)]) };
        let answer = bench.holder.send(leasehold_actors::executor::message::Assign(push)).await;
        assert!(answer.is_err(), "nothing reopens it");
    })
    .await;
}

/// R38
#[tokio::test(start_paused = true)]
async fn without_a_manager_it_is_not_ready_and_gives_up_after_its_patience() {
    for conduct in [Conduct::Down, Conduct::Deaf, Conduct::Refuse(Refusal::NotLeader { leader: None })] {
        local(async {
            let mut bench = Bench::start_with(&[(3, 7)], TTL, FLOOR, 16, |manager| manager.conduct(conduct));
            let began = bench.now();
            tokio::time::sleep(secs(59)).await;
            assert_eq!(bench.admits(3), Err(Closed::NotReady));
            let exit = bench.ended().await;
            assert_eq!(exit.code, 69);
            assert!(exit.why.contains("127.0.0.1:7000"), "{}", exit.why);
            let took = bench.now().since(began);
            assert!(took >= secs(60) && took <= secs(66), "{took:?}");
        })
        .await;
    }
}

/// R38: a manager that comes up in time is found by itself.
#[tokio::test(start_paused = true)]
async fn a_manager_that_comes_up_later_is_registered_with() {
    local(async {
        let bench = Bench::start_with(&[(3, 7)], TTL, FLOOR, 16, |manager| manager.conduct(Conduct::Down));
        tokio::time::sleep(secs(50)).await;
        bench.manager.conduct(Conduct::Grant);
        bench.until(secs(9), |bench| bench.admits(3) == Ok(7)).await;
    })
    .await;
}

/// R16: superseded by a newer process of the same name: it stops, and says why.
#[tokio::test(start_paused = true)]
async fn a_superseded_executor_sweeps_and_ends_with_failure() {
    local(async {
        let mut bench = Bench::start(&[(3, 7)]);
        tokio::time::sleep(secs(1)).await;
        bench.manager.conduct(Conduct::Refuse(Refusal::Superseded));
        let exit = bench.ended().await;
        assert_eq!(exit.code, 78);
        assert!(exit.why.contains("same name"), "{}", exit.why);
        assert_eq!(bench.told().last(), Some(&Told::Sweep(shards(&[(3, 7)]), Duration::ZERO)));
        assert_eq!(bench.admits(3), Err(Closed::NotReady));
    })
    .await;
}
