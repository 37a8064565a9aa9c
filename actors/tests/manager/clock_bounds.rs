use crate::world::{LEASE, Scripted, World, local};
use leasehold_persistence::cluster::memory::{Fault, Op};
use leasehold_rpc::api::ManagerApi;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// S5, R2, R5, case 14: for each request transit, store delay and answer transit, the executor's copy of the lease ends
/// before the manager takes a shard away.
#[tokio::test(start_paused = true)]
async fn the_executors_copy_lapses_first_for_every_delay_on_every_leg() {
    let tenths = |n: u32| LEASE * n / 10;
    for (request, store, answer) in
        [(0, 0, 0), (0, 0, 6), (6, 0, 0), (0, 6, 0), (3, 3, 3), (9, 0, 9), (0, 9, 9), (5, 5, 0), (1, 0, 8)]
    {
        local(async {
            let w = World::new(8).await;
            let (a, b) = (Scripted::new(1), Scripted::new(2));
            w.join(&[&a, &b]).await;
            w.store.inject(Op::Confirm, [Fault::DelayBefore(tenths(store))]);
            let noted = Instant::now();
            sleep(tenths(request)).await;
            let renewal = a.renewal();
            let Ok(grant) = w.manager.renew(renewal).await else { return };
            let granted = Instant::now();
            sleep(tenths(answer)).await;
            a.hear(noted, &grant);
            let ends = noted + grant.ttl.as_duration().mul_f64(0.999);
            assert!(ends < granted + grant.ttl.as_duration());
            // Silence from here on: the instant at which A is reaped is after its own copy ended.
            while w.stored().executor(a.id).is_some() {
                assert!(Instant::now() < granted + LEASE + Duration::from_secs(2), "reaped at its deadline");
                drop(b.renew(&w.manager).await);
                sleep(Duration::from_millis(100)).await;
            }
            assert!(Instant::now() >= ends && !a.admits(), "delays of {request}, {store}, {answer} tenths");
        })
        .await;
    }
}

/// Case 18: the granter's clock is steady; what people are shown comes from it too.
#[tokio::test(start_paused = true)]
async fn no_absurd_ages_are_shown() {
    local(async {
        let w = World::new(8).await;
        let a = Scripted::new(1);
        w.join(&[&a]).await;
        sleep(Duration::from_secs(30)).await;
        let status = w.manager.status().await.unwrap();
        let row = &status.executors[0];
        assert!((25_000..=30_500).contains(&row.lease_remaining_ms), "{}", row.lease_remaining_ms);
        assert!((30_000..40_000).contains(&status.leading_ms));
    })
    .await;
}

/// L1: after a crash every shard is served elsewhere within one lease plus one second.
#[tokio::test(start_paused = true)]
async fn a_crashed_executors_shards_are_served_within_a_lease_and_a_second() {
    local(async {
        let w = World::new(12).await;
        let (a, b, c) = (Scripted::new(1), Scripted::new(2), Scripted::new(3));
        w.join(&[&a, &b, &c]).await;
        a.renew(&w.manager).await.unwrap();
        let crashed = Instant::now();
        while !(w.owned(&a) == 0 && w.everything_owned()) {
            w.live(&[&b, &c], Duration::from_millis(500)).await;
            assert!(crashed.elapsed() <= LEASE + Duration::from_secs(1), "{:?}", w.stored().totals());
        }
        assert!(crashed.elapsed() >= LEASE - Duration::from_secs(1));
    })
    .await;
}
