//! Managers that take over from each other, at the same and at other addresses: executors and callers find the one that leads.

use crate::moves::Load;
use crate::network::{MANAGER, Seat, Way};
use crate::world::{LEASE, SHARDS, Terms, World, cluster};
use leasehold_actors::clock::Clock;
use leasehold_model::state::Shard;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn rows(world: &World) -> Vec<Shard> {
    world.stored().shards().map(|(_, row)| *row).collect()
}

/// Kills whoever leads in `from`; its successor leads in `to` after `away`.
async fn fail_over(world: &World, from: usize, to: usize, away: Duration) {
    world.kill_manager_in(from).await;
    sleep(away).await;
    world.start_manager_in(to).await;
}

/// Everybody is heard by the manager that leads now, nobody was reaped, nothing moved, and the router has its table.
async fn undisturbed(world: &World, before: &[Shard]) {
    sleep(LEASE / 2).await;
    assert!(world.checker.unserved().is_empty());
    assert_eq!(rows(world), before, "no shard moved");
    let status = leasehold_rpc::api::ManagerApi::status(&world.manager()).await.unwrap();
    assert!(status.executors.iter().all(|executor| executor.lease_remaining_ms > 20_000), "{status:?}");
    let table = world.router.subscribe().borrow().clone().unwrap();
    assert_eq!(table.manager, status.manager, "the router follows the one that leads");
}

/// L2, R18: the leader's address changes there and back; standbys name it, though nobody was configured with it.
#[tokio::test(start_paused = true)]
async fn a_leader_at_an_address_nobody_was_told_of_is_found_through_a_standby_and_lost_again() {
    cluster(Terms { seats: &[0, 1], ..Terms::default() }, async |world| {
        let _nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
        world.settled().await;
        let (before, load) = (rows(&world), Load::start(&world, 6, LEASE));
        for (from, to) in [(0, 3), (3, 1), (1, 0), (0, 1)] {
            for standby in (0..2).filter(|seat| *seat != to) {
                world.network.seat(standby, Some(Seat::StandsBy(Some(to))));
            }
            fail_over(&world, from, to, 5 * SECOND).await;
            if from < 2 {
                world.network.seat(from, Some(Seat::StandsBy(Some(to))));
            }
            undisturbed(&world, &before).await;
        }
        assert_eq!(*load.errors.borrow(), Vec::<String>::new());
        load.end(&world).await;
    })
    .await;
}

/// R13: of three managers the first is dead or a black hole, the second names one that is: the third is found before a lease ends.
#[tokio::test(start_paused = true)]
async fn a_dead_manager_a_black_hole_and_a_stale_name_before_the_leader_cost_no_lease() {
    for first in [None, Some(Seat::BlackHole)] {
        cluster(Terms { seats: &[0, 1, 2], ..Terms::default() }, async |world| {
            let _nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
            world.settled().await;
            let before = rows(&world);
            world.network.seat(1, Some(Seat::StandsBy(Some(0))));
            world.kill_manager().await;
            world.network.seat(0, first.clone());
            sleep(5 * SECOND).await;
            world.start_manager_in(2).await;
            sleep(LEASE).await;
            undisturbed(&world, &before).await;
        })
        .await;
    }
}

/// R2, S5: a redirect belongs to the attempt that it follows from: the lease counts from before the first manager was asked.
#[tokio::test(start_paused = true)]
async fn a_lease_granted_after_a_redirect_counts_from_before_the_first_manager_was_asked() {
    cluster(Terms { seats: &[0], ..Terms::default() }, async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        world.kill_manager().await;
        world.network.seat(0, Some(Seat::StandsBy(Some(1))));
        world.start_manager_in(1).await;
        // The standby takes eight seconds to say who leads; only an answer of the new leader moves the deadline.
        world.network.script(|leg| match (leg.to, leg.what) {
            (MANAGER, "renew") => (Way::Delay(4 * SECOND), Way::Delay(4 * SECOND)),
            _ => (Way::Pass, Way::Pass),
        });
        let before = a.fence.deadline();
        let began = Instant::now();
        while a.fence.deadline() == before {
            assert!(began.elapsed() < LEASE, "never renewed");
            sleep(Duration::from_millis(1)).await;
        }
        let left = a.fence.deadline().since(a.clock.now());
        assert!(left <= LEASE - 8 * SECOND, "{left:?} left");
        assert!(left > LEASE - 9 * SECOND, "{left:?} left: renewed within one attempt");
    })
    .await;
}

/// Two managers that stand by and name each other, for a while: nobody spins, nobody lapses.
#[tokio::test(start_paused = true)]
async fn managers_that_name_each_other_are_asked_no_more_often_than_dead_ones() {
    cluster(Terms { seats: &[0, 1], ..Terms::default() }, async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        let before = rows(&world);
        world.kill_manager().await;
        world.network.seat(0, Some(Seat::StandsBy(Some(1))));
        world.network.seat(1, Some(Seat::StandsBy(Some(0))));
        let asked = counted(&world);
        sleep(LEASE / 2).await;
        let times = asked.lock().unwrap().values().map(Vec::len).sum::<usize>();
        assert!(times <= 40, "{times} renewals sent in half a lease");
        assert!(a.admits_any());
        world.start_manager().await;
        undisturbed(&world, &before).await;
    })
    .await;
}

/// The renewals that each executor sent: when, and to whom.
type Sent = Arc<Mutex<BTreeMap<String, Vec<(Instant, String)>>>>;

fn counted(world: &World) -> Sent {
    let sent: Sent = Arc::default();
    let counting = Arc::clone(&sent);
    world.network.script(move |leg| {
        if leg.what == "renew" {
            counting.lock().unwrap().entry(leg.from.to_owned()).or_default().push((Instant::now(), leg.to.to_owned()));
        }
        (Way::Pass, Way::Pass)
    });
    sent
}

/// Case 38: 200 executors, the leader is killed and another takes over at another address: nobody lapses, their return is spread,
/// and each renews once per period before and after.
#[tokio::test(start_paused = true)]
async fn two_hundred_executors_outlive_their_leader_and_renew_once_a_period() {
    const EXECUTORS: u16 = 200;
    let terms = Terms { seats: &[0, 1], check_every: SECOND, ..Terms::default() };
    cluster(terms, async |world| {
        let nodes: Vec<_> = (1..=EXECUTORS).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
        world.settled().await;
        let (before, lives) = (rows(&world), nodes.iter().map(|node| node.id()).collect::<Vec<_>>());
        let sent = counted(&world);
        let span = 6 * LEASE;
        sleep(span).await;
        once_a_period(&sent, span);

        world.network.seat(1, Some(Seat::StandsBy(None)));
        world.kill_manager().await;
        sleep(5 * SECOND).await;
        world.start_manager_in(1).await;
        let took_over = Instant::now();
        sleep(LEASE / 3 + SECOND).await;
        spread(&sent, took_over);
        sent.lock().unwrap().clear();
        sleep(span).await;
        once_a_period(&sent, span);
        assert_eq!(rows(&world), before);
        assert_eq!(nodes.iter().map(|node| node.id()).collect::<Vec<_>>(), lives, "nobody registered anew");
        assert_eq!(before.len(), SHARDS as usize);
    })
    .await;
}

/// A third of the lease is a period, cut short by at most a tenth of it.
fn once_a_period(sent: &Sent, span: Duration) {
    let sent = sent.lock().unwrap();
    assert_eq!(sent.len(), 200);
    let (least, most) = (span.as_secs() / 20, span.as_secs() / 18 + 1);
    for (executor, renewals) in sent.iter() {
        let times = renewals.len() as u64;
        assert!((least..=most).contains(&times), "{executor}: {times} renewals in {span:?}");
    }
}

/// No instant in which a great part of all arrive at the new leader.
fn spread(sent: &Sent, since: Instant) {
    let mut buckets: BTreeMap<u128, usize> = BTreeMap::new();
    for (at, to) in sent.lock().unwrap().values().flatten().filter(|(at, _)| *at >= since) {
        if to != MANAGER {
            *buckets.entry(at.duration_since(since).as_millis() / 100).or_default() += 1;
        }
    }
    let fullest = buckets.values().max().copied().unwrap_or_default();
    assert!((1..=60).contains(&fullest), "{fullest} renewals within 100 ms: {buckets:?}");
}

/// Case 18: the wall clock goes an hour either way, while managers and executors run and across a restart of the manager.
#[tokio::test(start_paused = true)]
async fn a_wall_clock_stepped_an_hour_either_way_changes_nothing_but_what_is_shown() {
    const HOUR_MS: i64 = 3_600_000;
    for step in [HOUR_MS, -HOUR_MS] {
        cluster(Terms::default(), async |world| {
            let nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
            world.settled().await;
            let (before, lives) = (rows(&world), nodes.iter().map(|node| node.id()).collect::<Vec<_>>());
            world.wall.step_ms(step);
            undisturbed(&world, &before).await;
            world.kill_manager().await;
            world.wall.step_ms(step);
            sleep(10 * SECOND).await;
            world.start_manager().await;
            undisturbed(&world, &before).await;
            sleep(3 * LEASE).await;
            undisturbed(&world, &before).await;
            assert_eq!(nodes.iter().map(|node| node.id()).collect::<Vec<_>>(), lives, "nobody was reaped");
            sane(&world).await;
            // Who dies is replaced as if nothing had happened: no shard is locked for an hour.
            world.crash(&nodes[0]).await;
            world.served(LEASE + SECOND).await;
            let _d = world.executor("e4", 4, 0);
            world.settled().await;
            sane(&world).await;
        })
        .await;
    }
}

/// What status shows are ages that can be: minutes, not hours, and a lease that is no longer than a lease.
async fn sane(world: &Rc<World>) {
    let status = leasehold_rpc::api::ManagerApi::status(&world.manager()).await.unwrap();
    assert_eq!(status.troubles, Vec::<String>::new());
    assert!(status.leading_ms < 30 * 60 * 1000, "{status:?}");
    for executor in &status.executors {
        assert!(executor.lease_remaining_ms <= 60_000, "{executor:?}");
        assert_eq!(executor.lagging_ms, None, "{executor:?}");
    }
}
