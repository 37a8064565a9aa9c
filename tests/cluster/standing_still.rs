//! A manager that is stopped (SIGSTOP, a paused VM, swapping) and goes on: executors outlive it as they outlive a restart.

use crate::network::MANAGER;
use crate::world::{LEASE, Node, SHARDS, Terms, World, cluster};
use leasehold_model::state::Shard;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

fn rows(world: &World) -> Vec<Shard> {
    world.stored().shards().map(|(_, row)| *row).collect()
}

/// Case 2's kind, L1, L2, L3: while it stands still everybody lapses by itself; when it goes on they are back within one attempt, each
/// with what it had, at the epochs it had, also when it stops again before all of them are.
#[tokio::test(start_paused = true)]
async fn a_manager_stopped_for_three_leases_moves_nothing_and_everybody_is_back_within_one_attempt() {
    cluster(Terms { settle: 3 * SECOND, ..Terms::default() }, async |world| {
        let nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
        world.settled().await;
        let (before, lives) = (rows(&world), nodes.iter().map(|node| node.id()).collect::<Vec<_>>());
        for span in [3 * LEASE, LEASE + SECOND, 10 * LEASE] {
            world.stop_manager(span).await;
            assert!(nodes.iter().all(|node| !node.admits_any()), "their leases ended by their own clocks");
            let took = world.served(LEASE / 4).await;
            assert!(took <= LEASE / 4, "{took:?}");
        }
        world.stop_manager(3 * LEASE).await;
        sleep(Duration::from_millis(5)).await;
        world.stop_manager(3 * LEASE).await;
        world.served(LEASE / 4).await;
        sleep(2 * LEASE).await;
        assert_eq!(rows(&world), before);
        assert_eq!(nodes.iter().map(|node| node.id()).collect::<Vec<_>>(), lives, "nobody registered anew");
    })
    .await;
}

/// S5, L1: an executor whose clock runs 400 ppm slow or fast, and one that dies meanwhile, whose shards are served one lease after.
#[tokio::test(start_paused = true)]
async fn whoever_died_while_the_manager_was_stopped_is_replaced_a_lease_after_it_goes_on() {
    cluster(Terms::default(), async |world| {
        let nodes: Vec<_> =
            [(1, 400), (2, -400), (3, 0)].map(|(n, ppm)| world.executor(&format!("e{n}"), n, ppm)).into();
        world.settled().await;
        let dies = async {
            sleep(LEASE / 2).await;
            world.crash(&nodes[2]).await;
        };
        tokio::join!(world.stop_manager(3 * LEASE), dies);
        world.served(LEASE + 2 * SECOND).await;
        balanced(&world, &nodes[..2], 3 * LEASE).await;
    })
    .await;
}

/// Waits until the shards are spread evenly over `nodes`.
async fn balanced(world: &World, nodes: &[Rc<Node>], within: Duration) {
    let counts = || nodes.iter().map(|node| world.owned(node)).collect::<Vec<_>>();
    let even = |counts: &[usize]| {
        counts.iter().sum::<usize>() == SHARDS as usize
            && counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1
    };
    for _ in 0..within.as_secs() {
        if even(&counts()) {
            return;
        }
        sleep(SECOND).await;
    }
    panic!("not balanced within {within:?}: {:?}, {:?}", counts(), world.stored().totals());
}

/// L1, L3: the manager and one executor stopped for three leases; the executor goes on with it, or up to two leases later or earlier.
#[tokio::test(start_paused = true)]
async fn a_manager_and_an_executor_that_stood_still_together_end_up_balanced() {
    for settle in [Duration::ZERO, 3 * SECOND] {
        for later in [-120_i64, -45, -10, 0, 1, 10, 20, 29, 31, 45, 59, 61, 75, 120] {
            cluster(Terms { settle, ..Terms::default() }, async |world| {
                let nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
                world.settled().await;
                let before = rows(&world);
                world.network.cut_both_ways("e1", MANAGER);
                let goes_on = async {
                    sleep(Duration::from_secs(180_u64.saturating_add_signed(later))).await;
                    world.network.mend();
                };
                tokio::join!(world.stop_manager(3 * LEASE), goes_on);
                balanced(&world, &nodes, LEASE).await;
                world.served(LEASE).await;
                if later < 50 {
                    sleep(LEASE).await;
                    assert_eq!(rows(&world), before, "{later} s later: nothing moved");
                }
            })
            .await;
        }
    }
}
