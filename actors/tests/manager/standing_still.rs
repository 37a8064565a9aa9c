//! A manager whose process was stopped: every clock ran on, every timer is late, and what came meanwhile waits.
//! `tokio::time::advance` is exactly that: time jumps, and only then does anything run.

use crate::world::{LEASE, Scripted, World, local};
use leasehold_actors::manager::LeadershipEnd;
use leasehold_model::state::Shard;
use leasehold_persistence::cluster::memory::{Fault, Op};
use std::time::Duration;
use tokio::time::{advance, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn rows(w: &World) -> Vec<Shard> {
    w.stored().shards().map(|(_, row)| *row).collect()
}

/// Case 2's kind, L2, R39: stopped for three leases, it reaps and moves nothing, whether its timer or a waiting renewal comes first.
#[tokio::test(start_paused = true)]
async fn a_manager_that_stood_still_for_three_leases_reaps_nobody_who_comes_back() {
    for renewal_waits in [false, true] {
        local(async {
            let w = World::new(12).await;
            let (a, b, c) = (Scripted::new(1), Scripted::new(2), Scripted::new(3));
            w.join(&[&a, &b, &c]).await;
            let (owners, revision) = (rows(&w), w.stored().revision);
            if renewal_waits {
                let (granted, ()) = tokio::join!(a.renew(&w.manager), advance(3 * LEASE));
                granted.unwrap();
            } else {
                advance(3 * LEASE).await;
                sleep(SECOND).await;
            }
            for executor in [&b, &a, &c] {
                executor.renew(&w.manager).await.unwrap();
                sleep(SECOND).await;
            }
            w.live(&[&a, &b, &c], 2 * LEASE).await;
            assert_eq!((rows(&w), w.stored().revision), (owners, revision));
            assert_eq!(a.claim().unwrap().shards.len(), 4, "and they serve what they served");
            assert_eq!(w.counter("leasehold_standstills_total"), 1);
            assert_eq!(w.counter("leasehold_reaped_leases_total"), 0);
        })
        .await;
    }
}

/// L1, case 2: whoever died while it stood still is replaced one lease after it woke, by those who live.
#[tokio::test(start_paused = true)]
async fn whoever_died_while_the_manager_stood_still_is_replaced_a_lease_after_it_woke() {
    local(async {
        let w = World::new(12).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a, &b]).await;
        advance(3 * LEASE).await;
        w.live(&[&a], LEASE - SECOND).await;
        assert_eq!((w.owned(&a), w.owned(&b)), (6, 6));
        w.live(&[&a], 2 * SECOND).await;
        assert_eq!((w.owned(&a), w.owned(&b)), (12, 0));
    })
    .await;
}

/// A store has had no time to answer while nobody ran: the write or the check under way is waited for as from the wake, once.
#[tokio::test(start_paused = true)]
async fn what_was_asked_of_the_store_before_a_standstill_may_be_answered_after_it() {
    for (op, answered_after, kept) in [
        (Op::Commit, LEASE - SECOND, true),
        (Op::Commit, LEASE + SECOND, false),
        (Op::Confirm, LEASE - SECOND, true),
        (Op::Confirm, LEASE + SECOND, false),
    ] {
        local(async {
            let w = World::new(12).await;
            let (a, b) = (Scripted::new(1), Scripted::new(2));
            w.join(&[&a]).await;
            w.place(&b);
            w.store.inject(op, [Fault::DelayBefore(3 * LEASE + answered_after)]);
            let stands_still = async {
                sleep(Duration::from_millis(1)).await;
                advance(3 * LEASE).await;
            };
            let (registered, ()) = tokio::join!(b.register(&w.manager), stands_still);
            sleep(2 * SECOND).await;
            assert_eq!(registered.is_ok(), kept, "{op:?} {answered_after:?}: {registered:?}");
            assert_eq!(w.ended().is_none(), kept, "{op:?} {answered_after:?}: {:?}", w.ended());
        })
        .await;
    }
}

/// R7: a store that does not answer a manager that ran all the time has the patience it always had.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_silent_while_the_manager_runs_is_waited_for_no_longer_than_ever() {
    for op in [Op::Commit, Op::Confirm] {
        local(async {
            let w = World::new(12).await;
            let (a, b) = (Scripted::new(1), Scripted::new(2));
            w.join(&[&a]).await;
            w.place(&b);
            w.store.inject(op, [Fault::DelayBefore(LEASE + SECOND)]);
            assert!(b.register(&w.manager).await.is_err(), "{op:?}");
            assert!(matches!(w.ended(), Some(LeadershipEnd::Lost(_))), "{op:?}");
        })
        .await;
    }
}
