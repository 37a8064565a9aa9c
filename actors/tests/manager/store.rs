use crate::world::{LEASE, Scripted, World, local, refused, settings};
use leasehold_actors::manager::LeadershipEnd;
use leasehold_model::{CallError, Refusal};
use leasehold_persistence::cluster::memory::{Fault, Op};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Group commit: while one write is in flight, commands collect; the next write carries all of them.
#[tokio::test(start_paused = true)]
async fn commands_that_wait_for_a_write_are_committed_together() {
    local(async {
        let w = World::new(64).await;
        sleep(Duration::from_millis(1)).await;
        let before = w.store.counters().read().commits;
        w.store.inject_when(|call| match call.op {
            Op::Commit => vec![Fault::DelayBefore(Duration::from_millis(100))],
            _ => Vec::new(),
        });
        let all: Vec<_> = (1..=50).map(Scripted::new).collect();
        let registrations = all.iter().map(|executor| executor.register(&w.manager));
        assert!(futures::future::join_all(registrations).await.into_iter().all(|answer| answer.is_ok()));
        let commits = w.store.counters().read().commits - before;
        assert!(commits <= 4, "{commits} writes for 50 registrations and their passes");
        assert_eq!(w.stored().executors().len(), 50);
    })
    .await;
}

/// Group commit: callers that come back a moment after they were answered do not go on in halves that take turns; and who is alone waits for nobody.
#[tokio::test(start_paused = true)]
async fn callers_who_take_turns_are_soon_written_together_and_one_alone_waits_for_nobody() {
    local(async {
        let w = World::new(8).await;
        sleep(Duration::from_millis(1)).await;
        w.store.inject_when(|call| match call.op {
            Op::Commit => vec![Fault::DelayBefore(Duration::from_millis(8))],
            _ => Vec::new(),
        });
        let manager = &w.manager;
        let caller = |number: u32| async move {
            sleep(Duration::from_millis(2) * (number % 2)).await;
            for turn in 0..10 {
                Scripted::new(u128::from(1 + number * 10 + turn)).register(manager).await.unwrap();
                sleep(Duration::from_millis(1)).await;
            }
        };
        let before = w.store.counters().read().commits;
        futures::future::join_all((0..16).map(caller)).await;
        let commits = w.store.counters().read().commits - before;
        assert!(commits <= 14, "{commits} writes for 10 turns of 16 callers, and passes");
        sleep(Duration::from_secs(5)).await;
        let began = Instant::now();
        Scripted::new(900).register(manager).await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_millis(8));
    })
    .await;
}

/// Case 26: a reap that the store refuses again and again is told and counted once.
#[tokio::test(start_paused = true)]
async fn a_lapse_is_counted_once_however_often_the_store_refuses_the_reap() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.join(&[&a]).await;
        w.store.inject_when(|call| match call.op {
            Op::Commit => vec![Fault::Refuse("full".to_owned())],
            _ => Vec::new(),
        });
        sleep(3 * LEASE).await;
        assert_eq!(w.counter("leasehold_reaped_leases_total"), 1);
    })
    .await;
}

/// Case 3: a write whose answer is lost is recognised as one's own: no step-down, no second epoch, no second write.
#[tokio::test(start_paused = true)]
async fn my_own_write_is_recognised_when_its_answer_is_lost() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.place(&a);
        for _ in 0..4 {
            w.store.inject(Op::Commit, [Fault::LoseAnswer]);
        }
        a.register(&w.manager).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        a.renew(&w.manager).await.unwrap();
        assert_eq!(w.owned(&a), 8);
        assert!(w.stored().shards().all(|(_, row)| row.epoch.get() == 1), "no second epoch bump");
        assert_eq!(w.ended(), None);
    })
    .await;
}

/// The other half: a write that never arrived is refused retryably, and nothing of it is told.
#[tokio::test(start_paused = true)]
async fn a_write_that_never_arrived_is_found_out_and_refused() {
    local(async {
        let w = World::new(8).await;
        sleep(Duration::from_millis(1)).await;
        let a = Scripted::new(1);
        w.place(&a);
        w.store.inject(Op::Commit, [Fault::LoseRequest]);
        let Refusal::StoreUnavailable { why } = refused(a.register(&w.manager).await) else { panic!("not that") };
        // By then it is known, and STORE_UNAVAILABLE means that nothing was done.
        assert!(why.ends_with("looked up since: nothing was written") && !why.contains("outcome unknown"), "{why}");
        assert_eq!(w.stored().executors().len(), 0);
        a.register(&w.manager).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(w.owned(&a), 8);
    })
    .await;
}

/// Case 3, second half: a genuinely foreign write ends the leadership and nothing more is told.
#[tokio::test(start_paused = true)]
async fn a_foreign_write_ends_the_leadership() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.join(&[&a]).await;
        w.store.inject(Op::Commit, [Fault::ForeignWrite]);
        let b = Scripted::new(2);
        w.place(&b);
        assert!(matches!(b.register(&w.manager).await, Err(CallError::Unknown(_))));
        let Some(LeadershipEnd::Lost(why)) = w.ended() else { panic!("it goes on") };
        assert!(why.contains("another process wrote"), "{why}");
        let received = a.received().len();
        assert!(a.renew(&w.manager).await.is_err());
        sleep(LEASE).await;
        assert_eq!(a.received().len(), received);
    })
    .await;
}

/// R7: deposed, a manager grants nothing more, although it has not noticed by itself.
#[tokio::test(start_paused = true)]
async fn a_deposed_manager_grants_nothing() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.join(&[&a]).await;
        let next = w.successor(settings(8)).await;
        assert!(matches!(refused(a.renew(&w.manager).await), Refusal::LeadershipUnconfirmed { .. }));
        assert!(matches!(w.ended(), Some(LeadershipEnd::Lost(_))));
        a.renew(&next.manager).await.unwrap();
    })
    .await;
}

/// R7, case 23's kind: a hiccup of the store is no loss of leadership.
#[tokio::test(start_paused = true)]
async fn a_confirmation_that_is_refused_once_is_tried_again() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.join(&[&a]).await;
        w.store.inject(Op::Confirm, [Fault::Refuse("busy".to_owned())]);
        w.store.inject(Op::Confirm, [Fault::Refuse("busy".to_owned())]);
        a.renew(&w.manager).await.unwrap();
        assert_eq!(w.ended(), None);
    })
    .await;
}

/// L2, case 45: a store that takes no writes for longer than a lease costs no renewal, no lapse and no registration for good.
#[tokio::test(start_paused = true)]
async fn a_store_locked_for_longer_than_a_lease_costs_nobody_a_shard() {
    local(async {
        let w = World::new(8).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a]).await;
        let owners: Vec<_> = w.stored().shards().map(|(_, row)| *row).collect();
        w.store.inject_when(|call| match call.op {
            Op::Commit => vec![Fault::Refuse("database is locked".to_owned())],
            _ => Vec::new(),
        });
        w.place(&b);
        assert!(matches!(refused(b.register(&w.manager).await), Refusal::StoreUnavailable { .. }));
        w.live(&[&a], 2 * LEASE).await;
        assert!(a.admits());
        assert_eq!(w.stored().shards().map(|(_, row)| *row).collect::<Vec<_>>(), owners);
        w.store.heal();
        b.register(&w.manager).await.unwrap();
        w.quiet(&[&a, &b]).await;
        assert_eq!((w.owned(&a), w.owned(&b)), (4, 4));
    })
    .await;
}

/// R45: a store that is slow to write delays no renewal.
#[tokio::test(start_paused = true)]
async fn a_slow_write_delays_no_renewal() {
    local(async {
        let w = World::new(8).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a]).await;
        w.store.inject(Op::Commit, [Fault::DelayBefore(Duration::from_secs(30))]);
        w.place(&b);
        let registering = b.register(&w.manager);
        let renewing = async {
            sleep(Duration::from_secs(1)).await;
            timeout(Duration::from_millis(10), a.renew(&w.manager)).await.unwrap().unwrap();
        };
        let (registered, ()) = tokio::join!(registering, renewing);
        registered.unwrap();
    })
    .await;
}

/// Case 28: store calls slower than the caller's patience; callers cancel; memory and store agree once it is quiet.
#[tokio::test(start_paused = true)]
async fn cancelled_callers_leave_memory_and_store_in_agreement() {
    local(async {
        let w = World::new(16).await;
        let mut turn = 0_u64;
        w.store.inject_when(move |call| {
            turn += 1;
            match (call.op, turn % 4) {
                (Op::Commit, 0) => vec![Fault::LoseAnswer, Fault::DelayAfter(Duration::from_secs(3))],
                (Op::Commit, 1) => vec![Fault::DelayBefore(Duration::from_secs(3))],
                (Op::Commit, 2) => vec![Fault::LoseRequest],
                _ => Vec::new(),
            }
        });
        let all: Vec<_> = (1..=8).map(Scripted::new).collect();
        for executor in &all {
            w.place(executor);
            drop(timeout(Duration::from_millis(1), executor.register(&w.manager)).await);
        }
        w.store.heal();
        sleep(Duration::from_secs(20)).await;
        for executor in &all {
            executor.register(&w.manager).await.unwrap();
        }
        w.quiet(&all.iter().collect::<Vec<_>>()).await;
        assert_eq!(*w.manager.published().state, w.stored());
        assert!(all.iter().all(|executor| w.owned(executor) == 2));
    })
    .await;
}

/// Case 37: another shard count is refused and the store is untouched.
#[tokio::test(start_paused = true)]
async fn a_store_with_another_shard_count_is_refused_untouched() {
    local(async {
        let w = World::new(64).await;
        sleep(Duration::from_millis(1)).await;
        w.manager.stop().await;
        let before = w.stored();
        use leasehold_persistence::ClusterStore;
        let other = settings(128);
        let error = w.store.another().load(&other.cluster, other.shard_count).await.unwrap_err().to_string();
        assert!(error.contains("64") && error.contains("128"), "{error}");
        assert_eq!(w.stored(), before);
    })
    .await;
}

/// Case 40's kind: a manager that stops does so once its write is known, and says so to whoever waits.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_write_in_flight() {
    local(async {
        let w = World::new(8).await;
        sleep(Duration::from_millis(1)).await;
        let a = Scripted::new(1);
        w.place(&a);
        w.store.inject(Op::Commit, [Fault::DelayBefore(Duration::from_secs(4))]);
        let began = Instant::now();
        let stopping = async {
            sleep(Duration::from_secs(1)).await;
            w.manager.stop().await;
        };
        let (registered, ()) = tokio::join!(a.register(&w.manager), stopping);
        assert!(began.elapsed() >= Duration::from_secs(4));
        assert!(w.stored().executor(a.id).is_some());
        drop(registered);
        assert_eq!(w.ended(), Some(LeadershipEnd::Stopped));
    })
    .await;
}

/// S7: an acknowledged registration survives the manager.
#[tokio::test(start_paused = true)]
async fn an_acknowledged_registration_survives_any_end_of_the_manager() {
    local(async {
        let w = World::new(8).await;
        let all: Vec<_> = (1..=6).map(Scripted::new).collect();
        for (at, executor) in all.iter().enumerate() {
            w.place(executor);
            let fault = if at % 2 == 0 { Fault::LoseAnswer } else { Fault::DelayAfter(Duration::from_secs(1)) };
            w.store.inject(Op::Commit, [fault]);
            executor.register(&w.manager).await.unwrap();
        }
        let next = w.successor(settings(8)).await;
        for executor in &all {
            executor.renew(&next.manager).await.unwrap();
        }
        let _: Arc<_> = next.manager.published();
    })
    .await;
}
