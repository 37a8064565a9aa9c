use crate::world::{LEASE, Pushes, Scripted, World, local, refused, settings};
use leasehold_model::Refusal;
use leasehold_rpc::api::ManagerApi;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Case 1, R27, L1: whatever happens to the narrowing push or its answer, the next renewal and one pass heal it.
#[tokio::test(start_paused = true)]
async fn a_timeout_is_not_a_no() {
    for how in [
        Pushes::AnswerAfter(Duration::from_secs(11)),
        Pushes::AnswerAfter(Duration::from_secs(20)),
        Pushes::LoseAnswer,
        Pushes::Drop,
        Pushes::Silent,
    ] {
        local(async {
            let w = World::new(8).await;
            let (a, c) = (Scripted::new(1), Scripted::new(3));
            w.join(&[&a]).await;
            assert_eq!(w.owned(&a), 8);
            a.pushes(how);
            w.place(&c);
            c.register(&w.manager).await.unwrap();
            assert_eq!((w.owned(&a), w.owned(&c)), (4, 0), "{how:?}");
            let epochs: Vec<_> = w.stored().shards().map(|(_, row)| row.epoch).collect();
            a.renew(&w.manager).await.unwrap();
            a.renew(&w.manager).await.unwrap();
            sleep(Duration::from_millis(100)).await;
            assert_eq!((w.owned(&a), w.owned(&c)), (4, 4), "{how:?}");
            w.quiet(&[&a, &c]).await;
            let revision = w.stored().revision;
            w.live(&[&a, &c], 2 * LEASE).await;
            assert_eq!(w.stored().revision, revision, "{how:?}: the same plan is not repeated");
            assert!(w.stored().shards().zip(epochs).all(|((_, row), before)| row.epoch >= before));
        })
        .await;
    }
}

/// Case 6: s is not given to B until A let go or lapsed, however long A's answer is away.
#[tokio::test(start_paused = true)]
async fn a_doubtful_holder_is_ruled_out_before_anybody_else_is_granted() {
    local(async {
        let w = World::new(8).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a]).await;
        a.pushes(Pushes::Drop);
        w.place(&b);
        let lapses = Instant::now() + LEASE;
        a.renew(&w.manager).await.unwrap();
        b.register(&w.manager).await.unwrap();
        while Instant::now() < lapses - Duration::from_secs(1) {
            b.renew(&w.manager).await.unwrap();
            assert_eq!(w.owned(&b), 0);
            sleep(Duration::from_secs(5)).await;
        }
        w.live(&[&b], Duration::from_secs(10)).await;
        assert!(!a.admits());
        assert_eq!(w.owned(&b), 8);
    })
    .await;
}

/// Case 9, R44: a target that never answers delays nobody else.
#[tokio::test(start_paused = true)]
async fn one_silent_target_delays_only_its_own_shards() {
    local(async {
        let w = World::new(12).await;
        let (a, b, c) = (Scripted::new(1), Scripted::new(2), Scripted::new(3));
        w.join(&[&a, &b, &c]).await;
        let before = w.owned(&c);
        c.pushes(Pushes::Silent);
        a.deregister(&w.manager).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        assert!(w.owned(&b) > 4, "served elsewhere at once");
        w.live(&[&b], Duration::from_secs(30)).await;
        let status = w.manager.status().await.unwrap();
        assert!(status.troubles.iter().any(|trouble| trouble.starts_with("e3 is")), "{:?}", status.troubles);
        assert!(w.owned(&c) >= before);
        c.pushes(Pushes::Prompt);
        w.quiet(&[&b, &c]).await;
        assert_eq!((w.owned(&b), w.owned(&c)), (6, 6), "it converges when it wakes");
    })
    .await;
}

/// Case 10: a push that comes before the registration's answer is refused retryably and delivered again.
#[tokio::test(start_paused = true)]
async fn a_set_pushed_before_the_registration_was_answered_is_delivered_again() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.place(&a);
        let noted = Instant::now();
        let held = w.manager.register(a.registration()).await.unwrap();
        sleep(Duration::from_secs(3)).await;
        assert!(!a.received().is_empty(), "the manager pushes already");
        assert_eq!(a.claim(), None, "not applied");
        a.hear(noted, &held);
        sleep(Duration::from_secs(11)).await;
        assert_eq!(a.claim().unwrap().shards.len(), 8, "delivered again");
    })
    .await;
}

/// Case 44: a slow taker's pushes back off and cost only its own shards.
#[tokio::test(start_paused = true)]
async fn a_slow_taker_costs_only_its_own_shards_and_its_pushes_back_off() {
    local(async {
        let mut quick = settings(12);
        quick.push_deadline = Duration::from_secs(5);
        let w = World::on(std::sync::Arc::default(), quick).await;
        let (slow, b, c) = (Scripted::new(1), Scripted::new(2), Scripted::new(3));
        w.join(&[&slow]).await;
        slow.pushes(Pushes::AnswerAfter(Duration::from_secs(7)));
        w.place(&b);
        b.register(&w.manager).await.unwrap();
        w.place(&c);
        c.register(&w.manager).await.unwrap();
        let pushed = slow.received().len();
        slow.renew(&w.manager).await.unwrap();
        slow.renew(&w.manager).await.unwrap();
        sleep(Duration::from_millis(100)).await;
        assert!(w.owned(&b) > 0 && w.owned(&c) > 0, "joiners get their share at once");
        sleep(Duration::from_secs(60)).await;
        assert!(slow.received().len() - pushed <= 12, "{}", slow.received().len());
    })
    .await;
}

/// Case 42: detecting one frozen executor never waits for another.
#[tokio::test(start_paused = true)]
async fn one_frozen_executor_among_many_blinds_nobody() {
    local(async {
        let w = World::new(1024).await;
        let all: Vec<_> = (1..=200).map(Scripted::new).collect();
        for executor in &all {
            w.place(executor);
            executor.register(&w.manager).await.unwrap();
        }
        let everybody: Vec<_> = all.iter().collect();
        w.quiet(&everybody).await;
        all[0].pushes(Pushes::Silent);
        w.live(&everybody[1..], Duration::from_secs(20)).await;
        let died = Instant::now();
        let living = &everybody[2..];
        while w.stored().executor(all[1].id).is_some() {
            w.live(living, Duration::from_secs(1)).await;
            assert!(died.elapsed() <= LEASE + Duration::from_secs(1));
        }
        w.quiet(living).await;
        assert!(w.everything_owned());
        for executor in living {
            assert!(executor.admits());
        }
    })
    .await;
}

/// Case 2, L2: a manager away for three leases moves nothing of executors that answer when it is back.
#[tokio::test(start_paused = true)]
async fn a_manager_away_for_three_leases_reaps_nobody_who_comes_back() {
    local(async {
        let w = World::new(12).await;
        let (a, b, c) = (Scripted::new(1), Scripted::new(2), Scripted::new(3));
        w.join(&[&a, &b, &c]).await;
        let owners: Vec<_> = w.stored().shards().map(|(_, row)| *row).collect();
        w.manager.stop().await;
        sleep(3 * LEASE).await;
        let next = w.successor(settings(12)).await;
        a.renew(&next.manager).await.unwrap();
        sleep(Duration::from_secs(2)).await;
        b.renew(&next.manager).await.unwrap();
        c.renew(&next.manager).await.unwrap();
        next.live(&[&a, &b, &c], 2 * LEASE).await;
        let after: Vec<_> = next.stored().shards().map(|(_, row)| *row).collect();
        assert_eq!(after, owners);
        assert_eq!(a.claim().unwrap().shards.len(), 4, "and they serve what they served");
    })
    .await;
}

/// Case 43: a restart opens at once, whoever is frozen; status tells.
#[tokio::test(start_paused = true)]
async fn a_frozen_executor_in_the_stored_state_delays_no_start() {
    local(async {
        let w = World::new(12).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a, &b]).await;
        w.manager.stop().await;
        a.pushes(Pushes::Silent);
        let began = Instant::now();
        let next = w.successor(settings(12)).await;
        b.renew(&next.manager).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        next.live(&[&b], Duration::from_secs(40)).await;
        let troubles = next.manager.status().await.unwrap().troubles;
        assert!(troubles.iter().any(|trouble| trouble.contains("e1 is silent")), "{troubles:?}");
        next.live(&[&b], Duration::from_secs(25)).await;
        assert_eq!(next.owned(&b), 12);
    })
    .await;
}

/// Case 38: the return of 200 executors after a restart costs nobody its lease and no write.
#[tokio::test(start_paused = true)]
async fn a_herd_of_executors_returns_without_a_lapse_and_without_a_write() {
    local(async {
        let w = World::new(1024).await;
        let all: Vec<_> = (1..=200).map(Scripted::new).collect();
        for executor in &all {
            w.place(executor);
            executor.register(&w.manager).await.unwrap();
        }
        let everybody: Vec<_> = all.iter().collect();
        w.quiet(&everybody).await;
        w.manager.stop().await;
        let next = w.successor(settings(1024)).await;
        let commits = next.store.counters().read().commits;
        let renewals = everybody.iter().map(|executor| executor.renew(&next.manager));
        assert!(futures::future::join_all(renewals).await.into_iter().all(|answer| answer.is_ok()));
        next.live(&everybody, LEASE).await;
        assert_eq!(next.store.counters().read().commits, commits);
    })
    .await;
}

/// Case 36: of two processes with one name the newer wins; the older is told and stops.
#[tokio::test(start_paused = true)]
async fn of_two_with_one_name_the_newer_wins() {
    local(async {
        let w = World::new(8).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a]).await;
        w.place(&b);
        let mut twin = b.registration();
        twin.name = a.registration().name;
        w.manager.register(twin).await.unwrap();
        assert_eq!(refused(a.renew(&w.manager).await), Refusal::Superseded);
        assert_eq!(refused(w.manager.register(a.registration()).await), Refusal::Superseded);
    })
    .await;
}

/// R35: the new process itself answers at its predecessor's address.
#[tokio::test(start_paused = true)]
async fn a_process_restarted_at_its_address_takes_over_at_once() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.join(&[&a]).await;
        let mut restarted = Scripted::new(2);
        {
            let new = std::sync::Arc::get_mut(&mut restarted).unwrap();
            new.name.clone_from(&a.name);
            new.address = a.address.clone();
        }
        w.place(&restarted);
        let began = Instant::now();
        restarted.register(&w.manager).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_eq!((w.owned(&a), w.owned(&restarted)), (0, 8));
    })
    .await;
}

/// Case 47: successes and failures are counted apart, and what the alert rules name exists.
#[tokio::test(start_paused = true)]
async fn success_and_failure_are_counted_apart() {
    local(async {
        let w = World::new(8).await;
        let (a, stranger) = (Scripted::new(1), Scripted::new(9));
        w.join(&[&a]).await;
        drop(stranger.renew(&w.manager).await);
        w.join(&[&Scripted::new(2)]).await;
        a.pushes(Pushes::Drop);
        w.join(&[&Scripted::new(3)]).await;
        let text = w.metrics();
        for line in [
            "leasehold_renewals_total{outcome=\"UNKNOWN_EXECUTOR\"} 1",
            "leasehold_renewals_total{outcome=\"granted\"}",
            "leasehold_registrations_total{outcome=\"granted\"} 3",
            "leasehold_pushes_total{outcome=\"applied\"}",
            "leasehold_pushes_total{outcome=\"failed\"}",
            "leasehold_commits_total{outcome=\"applied\"}",
            "leasehold_is_leader 1",
            "leasehold_shards{state=\"owned\"}",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    })
    .await;
}
