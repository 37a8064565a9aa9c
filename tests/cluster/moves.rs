//! Planned moves: callers see added latency and no error.

use crate::world::{LEASE, SHARDS, Terms, World, cluster};
use leasehold_model::ShardId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Callers that increment their own counters without end, and what they heard.
pub struct Load {
    acknowledged: Rc<Vec<Cell<u64>>>,
    unknown: Rc<Vec<Cell<u64>>>,
    pub errors: Rc<RefCell<Vec<String>>>,
    pub longest: Rc<Cell<Duration>>,
    stop: Rc<Cell<bool>>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(world: &Rc<World>, callers: usize, within: Duration) -> Self {
        let counts = || Rc::new((0..callers).map(|_| Cell::new(0)).collect::<Vec<_>>());
        let (acknowledged, unknown) = (counts(), counts());
        let (errors, longest, stop) = (Rc::default(), Rc::default(), Rc::default());
        let mut load = Self { acknowledged, unknown, errors, longest, stop, callers: Vec::new() };
        for caller in 0..callers {
            let (world, errors, longest) = (Rc::clone(world), Rc::clone(&load.errors), Rc::clone(&load.longest));
            let (acknowledged, unknown) = (Rc::clone(&load.acknowledged), Rc::clone(&load.unknown));
            let stop = Rc::clone(&load.stop);
            load.callers.push(tokio::task::spawn_local(async move {
                while !stop.get() {
                    let began = Instant::now();
                    match world.increment(&format!("counter/c{caller}"), within).await {
                        Ok(_) => acknowledged[caller].set(acknowledged[caller].get() + 1),
                        Err(error) => {
                            unknown[caller].set(unknown[caller].get() + 1);
                            errors.borrow_mut().push(error);
                        }
                    }
                    longest.set(longest.get().max(began.elapsed()));
                    sleep(Duration::from_millis(100)).await;
                }
            }));
        }
        load
    }

    /// Ends the callers and checks that every acknowledged increment counted once, and nothing else did.
    pub async fn end(self, world: &World) -> u64 {
        self.stop.set(true);
        for caller in self.callers {
            caller.await.unwrap();
        }
        let mut sum = 0;
        for (caller, (acknowledged, unknown)) in self.acknowledged.iter().zip(self.unknown.iter()).enumerate() {
            let value = world.value(&format!("counter/c{caller}")).await;
            let (least, most) = (acknowledged.get(), acknowledged.get() + unknown.get());
            assert!((least..=most).contains(&value), "counter {caller}: {value}, acknowledged {least}, unknown {most}");
            sum += value;
        }
        sum
    }
}

/// For how long each shard is admitted by nobody.
struct Gaps {
    longest: Rc<Cell<Duration>>,
    watching: JoinHandle<()>,
}

impl Gaps {
    fn watch(world: &Rc<World>) -> Self {
        let (world, longest) = (Rc::clone(world), Rc::<Cell<Duration>>::default());
        let found = Rc::clone(&longest);
        let watching = tokio::task::spawn_local(async move {
            let mut since: BTreeMap<ShardId, Instant> = BTreeMap::new();
            loop {
                let (unserved, now) = (world.checker.unserved(), Instant::now());
                since.retain(|shard, _| unserved.contains(shard));
                for shard in unserved {
                    let gap = now - *since.entry(shard).or_insert(now);
                    found.set(found.get().max(gap));
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { longest, watching }
    }

    fn end(self) -> Duration {
        self.watching.abort();
        self.longest.get()
    }
}

/// Cases 12, 13, 39: joins move the least possible, and nothing after that; callers see no error.
#[tokio::test(start_paused = true)]
async fn a_join_under_load_moves_the_least_and_then_nothing() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 300);
        let b = world.executor("b", 2, -300);
        world.settled().await;
        let load = Load::start(&world, 8, LEASE);
        sleep(Duration::from_secs(5)).await;
        let before = world.stored();
        let c = world.executor("c", 3, 0);
        world.settled().await;
        let moved = before.shards().zip(world.stored().shards()).filter(|((_, a), (_, b))| a.epoch != b.epoch).count();
        assert_eq!(moved, 5);
        assert_eq!([&a, &b, &c].map(|node| world.owned(node)).iter().sum::<usize>(), SHARDS as usize);
        let revision = world.stored().revision;
        sleep(3 * LEASE).await;
        assert_eq!(world.stored().revision, revision, "moves stop after one round");
        assert_eq!(*load.errors.borrow(), Vec::<String>::new());
        assert!(load.longest.get() < Duration::from_secs(15), "{:?}", load.longest.get());
        assert!(load.end(&world).await > 100);
    })
    .await;
}

/// Case 39, R37: five executors restarted one by one under load: only the restarted one's share moves, there and back; no shard is
/// without an owner for longer than a second, where a lease takes sixty; no caller sees an error.
#[tokio::test(start_paused = true)]
async fn a_rolling_restart_of_executors_is_not_seen_by_callers() {
    cluster(Terms::default(), async |world| {
        let mut nodes: Vec<_> = (1..=5).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
        world.settled().await;
        let load = Load::start(&world, 8, LEASE);
        let gaps = Gaps::watch(&world);
        for (n, node) in nodes.iter_mut().enumerate() {
            let before = world.stored();
            let share = world.owned(node);
            assert_eq!(node.shut_down().await.code, 0);
            world.network.remove(&node.address);
            world.served(Duration::from_secs(1)).await;
            let after = world.stored();
            let moved = before.shards().zip(after.shards()).filter(|((_, a), (_, b))| a.epoch != b.epoch);
            assert_eq!(moved.count(), share, "only its own share moved");
            *node = world.executor(&format!("e{}", n + 1), u16::try_from(n).unwrap() + 10, 0);
            world.settled().await;
            let back =
                after.shards().zip(world.stored().shards()).filter(|((_, a), (_, b))| a.epoch != b.epoch).count();
            assert!((3..=4).contains(&back) && back == world.owned(node), "{back} moved to the newcomer");
        }
        assert_eq!(*load.errors.borrow(), Vec::<String>::new());
        assert!(load.longest.get() < Duration::from_secs(2), "{:?}", load.longest.get());
        let longest = gaps.end();
        assert!(longest <= Duration::from_secs(1), "a shard was without an owner for {longest:?}");
        load.end(&world).await;
    })
    .await;
}

/// Case 40, L2: managers restarted under load cost no caller anything and move no shard.
#[tokio::test(start_paused = true)]
async fn managers_killed_under_load_are_not_seen_by_callers_and_move_nothing() {
    cluster(Terms::default(), async |world| {
        let _nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
        world.settled().await;
        let load = Load::start(&world, 6, LEASE);
        let before: Vec<_> = world.stored().shards().map(|(_, row)| *row).collect();
        for away in [1, 20, 39] {
            world.kill_manager().await;
            sleep(Duration::from_secs(away)).await;
            assert!(world.checker.unserved().is_empty(), "executors serve on while no manager answers");
            world.start_manager().await;
            sleep(LEASE).await;
            assert!(world.checker.unserved().is_empty());
        }
        let after: Vec<_> = world.stored().shards().map(|(_, row)| *row).collect();
        assert_eq!(after, before);
        assert_eq!(*load.errors.borrow(), Vec::<String>::new());
        load.end(&world).await;
    })
    .await;
}

/// R20, case 32: a slow append is finished before its shard is released, and its successor's write comes after it.
#[tokio::test(start_paused = true)]
async fn the_last_write_comes_before_the_release_and_the_successors_first_after_it() {
    use leasehold_persistence::oplog::memory::{Call, Fault};
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        assert_eq!(world.increment("counter/x", LEASE).await.unwrap().executor.as_str(), "a");
        let _b = world.executor("b", 2, 0);
        a.oplogs.script(Call::Append, Fault::DelayBefore(Duration::from_secs(4)));
        let slow = {
            let world = Rc::clone(&world);
            tokio::task::spawn_local(async move { world.increment("counter/x", LEASE).await })
        };
        sleep(Duration::from_millis(100)).await;
        assert_eq!(a.shut_down().await.code, 0);
        slow.await.unwrap().unwrap();
        let next = world.increment("counter/x", LEASE).await.unwrap();
        assert_eq!((next.executor.as_str(), world.value("counter/x").await), ("b", 3));
    })
    .await;
}
