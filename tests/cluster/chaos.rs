//! Random faults of every kind at once, then peace: exclusive throughout, exact afterwards.

use crate::moves::Load;
use crate::network::{MANAGER, Way};
use crate::world::{LEASE, Node, SHARDS, Terms, World, cluster};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

fn way(rng: &mut StdRng) -> Way {
    match rng.random_range(0..100) {
        0..4 => Way::Drop,
        4..12 => Way::Delay(Duration::from_millis(rng.random_range(1..15_000))),
        12..30 => Way::Delay(Duration::from_millis(rng.random_range(1..200))),
        _ => Way::Pass,
    }
}

fn store_faults(world: &World, mut rng: StdRng) {
    use leasehold_persistence::cluster::memory::{Fault, Op};
    world.store.inject_when(move |call| match (call.op, rng.random_range(0..20)) {
        (Op::Commit, 0) => vec![Fault::LoseAnswer],
        (Op::Commit, 1) => vec![Fault::LoseRequest],
        (Op::Commit, 2) => vec![Fault::Refuse("busy".to_owned())],
        (Op::Commit, 3..6) => vec![Fault::DelayBefore(Duration::from_millis(rng.random_range(1..5_000)))],
        (Op::Confirm, 0..2) => vec![Fault::DelayBefore(Duration::from_millis(rng.random_range(1..8_000)))],
        _ => Vec::new(),
    });
}

async fn turmoil(world: &Rc<World>, nodes: &mut [Rc<Node>], rng: &mut StdRng) {
    let mut script = StdRng::seed_from_u64(rng.random());
    world.network.script(move |_| (way(&mut script), way(&mut script)));
    store_faults(world, StdRng::seed_from_u64(rng.random()));
    let mut next_port = 100;
    for _ in 0..12 {
        sleep(Duration::from_millis(rng.random_range(1_000..40_000))).await;
        let victim = rng.random_range(0..nodes.len());
        match rng.random_range(0..7) {
            0 => world.network.cut_both_ways(&nodes[victim].name, MANAGER),
            1 => world.network.cut(MANAGER, &nodes[victim].name),
            2 => world.network.cut(&nodes[victim].name, MANAGER),
            3 => {
                world.kill_manager().await;
                sleep(Duration::from_millis(rng.random_range(1..90_000))).await;
                world.start_manager().await;
            }
            4 => nodes[victim].clock.sleep_machine(Duration::from_millis(rng.random_range(1..90_000))),
            5 => {
                world.crash(&nodes[victim]).await;
                next_port += 1;
                nodes[victim] = world.executor(&format!("n{next_port}"), next_port, rng.random_range(-400..=400));
            }
            _ => {
                let cuts = rng.random_bool(0.5);
                if cuts {
                    world.network.mend();
                }
            }
        }
    }
}

/// S1, S2, S3, S6, L1 and L3 together, for seeds of one test; the checker watches every 20 ms.
async fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    cluster(Terms { handoff_grace: Duration::from_secs(rng.random_range(0..8)), ..Terms::default() }, async |world| {
        let mut nodes: Vec<_> =
            (1..=3).map(|n| world.executor(&format!("e{n}"), n, rng.random_range(-400..=400))).collect();
        world.settled().await;
        let load = Load::start(&world, 6, 4 * LEASE);
        turmoil(&world, &mut nodes, &mut rng).await;
        world.network.heal();
        world.store.heal();
        world.served(2 * LEASE + Duration::from_secs(30)).await;
        world.settled().await;
        let counts: Vec<_> = nodes.iter().map(|node| world.owned(node)).collect();
        assert_eq!(counts.iter().sum::<usize>(), SHARDS as usize, "seed {seed}: {counts:?}");
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "seed {seed}: {counts:?}");
        load.end(&world).await;
        assert!(world.checker.checks() > 1_000);
    })
    .await;
}

/// How many seeds are tried: `LEASEHOLD_CHAOS_SEEDS=200 cargo nextest run -p leasehold --test cluster chaos` tries more.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("LEASEHOLD_CHAOS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    0..count
}

#[test]
fn whatever_happens_shards_are_exclusive_and_acknowledged_calls_count_once() {
    for seed in seeds() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        eprintln!("seed {seed}");
        runtime.block_on(run(seed));
    }
}
