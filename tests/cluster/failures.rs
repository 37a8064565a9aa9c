//! Crashes, cuts, pauses: exclusive throughout, served again within the promised bounds.

use crate::moves::Load;
use crate::network::{MANAGER, Way};
use crate::world::{LEASE, SHARDS, Terms, cluster};
use leasehold_model::ShardId;
use leasehold_model::message::Invocation;
use leasehold_model::routing::shard_of;
use leasehold_persistence::oplog::Gate;
use leasehold_persistence::oplog::memory::{Call, Fault};
use leasehold_rpc::api::ManagerApi;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// L1, S1: after a crash every shard is served elsewhere within one lease plus one second.
#[tokio::test(start_paused = true)]
async fn a_crash_is_healed_within_a_lease_and_a_second() {
    cluster(Terms::default(), async |world| {
        let nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 400)).collect();
        world.settled().await;
        world.crash(&nodes[0]).await;
        let took = world.served(LEASE + SECOND).await;
        assert!(took > LEASE / 2);
    })
    .await;
}

/// L1, R27: a lost push is healed within a third of a lease.
#[tokio::test(start_paused = true)]
async fn a_lost_push_is_healed_within_a_third_of_a_lease() {
    cluster(Terms { handoff_grace: Duration::ZERO, ..Terms::default() }, async |world| {
        let _a = world.executor("a", 1, 0);
        world.settled().await;
        world.network.script(|leg| if leg.what == "push" { (Way::Drop, Way::Pass) } else { (Way::Pass, Way::Pass) });
        let b = world.executor("b", 2, 0);
        sleep(LEASE / 3 + SECOND).await;
        // A's release is proven by its renewal, B's gain by its own next one: two steps of a third each at the most.
        sleep(LEASE / 3 + SECOND).await;
        assert_eq!(world.owned(&b), 8);
        world.served(SECOND).await;
    })
    .await;
}

/// S1, S5 under a cut each way and both ways, for longer than two leases; L1 after it is healed.
#[tokio::test(start_paused = true)]
async fn an_executor_cut_off_in_any_way_is_replaced_and_comes_back() {
    for (to, from) in [(true, true), (true, false), (false, true)] {
        cluster(Terms::default(), async |world| {
            let a = world.executor("a", 1, 500);
            let b = world.executor("b", 2, -500);
            world.settled().await;
            let life = a.id();
            if to {
                world.network.cut("a", MANAGER);
            }
            if from {
                world.network.cut(MANAGER, "a");
            }
            // R46, case 48: also when renewals arrive and answers do not, within two leases and a pass.
            sleep(2 * LEASE + SECOND).await;
            assert!(!a.admits_any(), "it fenced itself");
            assert_eq!(world.owned(&b), SHARDS as usize, "cut to {to}, from {from}");
            world.served(SECOND).await;
            sleep(3 * LEASE).await;
            world.network.heal();
            world.settled().await;
            assert_ne!(a.id(), life, "it registered anew");
            assert_eq!((world.owned(&a), world.owned(&b)), (8, 8), "and takes its share");
        })
        .await;
    }
}

/// R10, case 16: after a sleep of two leases the first thing is a refusal; then it serves again, by itself.
#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_refuses_first_and_then_serves_again() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        let _b = world.executor("b", 2, 0);
        world.settled().await;
        assert!(a.admits_any());
        a.clock.sleep_machine(2 * LEASE);
        assert!(!a.admits_any(), "before anything has run");
        world.settled().await;
        assert!(a.admits_any());
    })
    .await;
}

/// Case 14: answers delayed by 0.6 of a lease, then a cut: the holder stops before any successor starts (the checker watches).
#[tokio::test(start_paused = true)]
async fn delayed_answers_never_let_a_holder_outlive_its_lease() {
    for tenths in [1, 3, 6] {
        cluster(Terms::default(), async |world| {
            let a = world.executor("a", 1, 900);
            let _b = world.executor("b", 2, 0);
            world.settled().await;
            let delay = LEASE * tenths / 10;
            world.network.script(move |leg| match (leg.from, leg.what) {
                ("a", "renew") => (Way::Pass, Way::Delay(delay)),
                _ => (Way::Pass, Way::Pass),
            });
            sleep(2 * LEASE).await;
            world.network.cut_both_ways("a", MANAGER);
            world.replaced(&a, 2 * LEASE + SECOND).await;
        })
        .await;
    }
}

/// L2, case 45: a store that takes no writes for three leases moves nothing of whoever renews.
#[tokio::test(start_paused = true)]
async fn a_store_outage_longer_than_a_lease_moves_nothing_of_whoever_renews() {
    use leasehold_persistence::cluster::memory::{Fault, Op};
    cluster(Terms::default(), async |world| {
        let _nodes: Vec<_> = (1..=3).map(|n| world.executor(&format!("e{n}"), n, 0)).collect();
        world.settled().await;
        let before: Vec<_> = world.stored().shards().map(|(_, row)| *row).collect();
        world.store.inject_when(|call| match call.op {
            Op::Commit => vec![Fault::Refuse("read-only file system".to_owned())],
            _ => Vec::new(),
        });
        sleep(3 * LEASE).await;
        assert!(world.checker.unserved().is_empty());
        world.store.heal();
        sleep(LEASE).await;
        let after: Vec<_> = world.stored().shards().map(|(_, row)| *row).collect();
        assert_eq!(after, before);
    })
    .await;
}

/// Case 30, S6: A is cut off with an append under way, B takes over and appends; A's claim and append are refused, the record stays.
#[tokio::test(start_paused = true)]
async fn a_stale_owner_can_neither_finish_its_write_nor_reopen_the_oplog() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        world.increment("counter/x", LEASE).await.unwrap();
        let b = world.executor("b", 2, 0);
        world.settled().await;
        let shard = shard_of(&"counter/x".parse().unwrap(), leasehold_model::ShardCount::new(SHARDS).unwrap());
        let (owner, other) = if a.admits(shard) { (&a, &b) } else { (&b, &a) };
        let gate = Gate::default();
        for _ in 0..64 {
            owner.oplogs.script(Call::Append, Fault::HoldBefore(gate.clone()));
        }
        let held = {
            let world = Rc::clone(&world);
            tokio::task::spawn_local(async move { world.increment("counter/x", 4 * LEASE).await })
        };
        sleep(SECOND).await;
        world.network.cut_both_ways(&owner.name, MANAGER);
        world.replaced(owner, LEASE + SECOND).await;
        assert!(other.admits(shard));
        // The caller's own retry, under the same key, has run at the new owner.
        let answer = held.await.unwrap().unwrap();
        assert_eq!(answer.executor.as_str(), other.name);
        gate.release();
        sleep(SECOND).await;
        world.network.heal();
        world.settled().await;
        assert_eq!(world.value("counter/x").await, 2, "A's was fenced, the repeated call counted once");
    })
    .await;
}

/// Case 31: A's append is held inside the database while B recovers and appends; let go, it is fenced.
#[tokio::test(start_paused = true)]
async fn a_commit_held_inside_the_database_is_fenced_when_it_goes_on() {
    cluster(Terms { handoff_grace: SECOND, ..Terms::default() }, async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        world.increment("counter/x", LEASE).await.unwrap();
        let gate = Gate::default();
        a.oplogs.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let held = {
            let world = Rc::clone(&world);
            tokio::task::spawn_local(async move { world.increment("counter/x", 3 * LEASE).await })
        };
        sleep(SECOND).await;
        let b = world.executor("b", 2, 0);
        world.crash(&a).await;
        world.served(LEASE + SECOND).await;
        held.await.unwrap().unwrap();
        gate.release();
        sleep(SECOND).await;
        assert_eq!(world.value("counter/x").await, 2);
        assert!(world.owned(&b) == SHARDS as usize);
    })
    .await;
}

/// Case 34: renewals blackholed during one long invocation. At the deadline nothing new starts; the caller gets an answer in the end.
#[tokio::test(start_paused = true)]
async fn a_long_invocation_over_a_lapse_ends_with_one_result() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        world.increment("counter/x", LEASE).await.unwrap();
        for _ in 0..64 {
            a.oplogs.script(Call::Append, Fault::DelayBefore(2 * LEASE));
        }
        let long = {
            let world = Rc::clone(&world);
            tokio::task::spawn_local(async move { world.increment("counter/x", 6 * LEASE).await })
        };
        sleep(SECOND).await;
        world.network.cut_both_ways("a", MANAGER);
        sleep(LEASE).await;
        assert!(!a.admits_any(), "nothing new starts");
        let _b = world.executor("b", 2, 0);
        let answer = long.await.unwrap().unwrap();
        assert_eq!(answer.executor.as_str(), "b");
        world.network.heal();
        world.settled().await;
        assert_eq!(world.value("counter/x").await, 2);
    })
    .await;
}

/// Case 35: the work loop hangs on storage while renewals go on: status shows it, and a drain moves the shard, safely.
#[tokio::test(start_paused = true)]
async fn a_wedged_executor_shows_in_status_and_its_shards_can_be_moved() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        let gate = Gate::default();
        for _ in 0..64 {
            a.oplogs.script(Call::Append, Fault::HoldBefore(gate.clone()));
            a.oplogs.script(Call::Read, Fault::HoldBefore(gate.clone()));
        }
        let stuck = {
            let world = Rc::clone(&world);
            tokio::task::spawn_local(async move { world.increment("counter/x", 10 * LEASE).await })
        };
        for (after, trouble) in [(LEASE / 2, "a looks wedged"), (LEASE * 3 / 2, "a cannot use its oplog store")] {
            sleep(after).await;
            assert!(a.admits_any(), "renewals go on");
            let status = world.manager().status().await.unwrap();
            assert!(status.troubles.iter().any(|told| told.contains(trouble)), "{status:?}");
        }
        let b = world.executor("b", 2, 0);
        world.manager().set_draining("a".parse().unwrap(), true).await.unwrap();
        stuck.await.unwrap().unwrap();
        world.settled().await;
        assert_eq!(world.owned(&b), SHARDS as usize);
        assert_eq!(world.value("counter/x").await, 1);
        gate.release();
    })
    .await;
}

/// Case 8: a push is dropped for a shard that only reads: the stale owner lets go within one renewal, and does not spin.
#[tokio::test(start_paused = true)]
async fn a_quiet_shard_is_let_go_of_within_one_renewal() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        world.increment("counter/x", LEASE).await.unwrap();
        world.network.script(|leg| match (leg.to, leg.what) {
            ("a", "push") => (Way::Drop, Way::Pass),
            _ => (Way::Pass, Way::Pass),
        });
        let b = world.executor("b", 2, 0);
        sleep(LEASE / 3 + SECOND).await;
        assert_eq!(world.owned(&b), 8);
        let gone: Vec<_> = (0..SHARDS).map(ShardId).filter(|shard| !a.admits(*shard)).collect();
        assert_eq!(gone.len(), 8);
        let calls = a.oplogs.counts().calls.values().sum::<u64>();
        sleep(2 * LEASE).await;
        assert!(a.oplogs.counts().calls.values().sum::<u64>() <= calls + 2, "no hot error loop");
    })
    .await;
}

/// Case 7: two renewals' answers and a push arrive in every order; what was given up stays given up.
#[tokio::test(start_paused = true)]
async fn late_answers_give_nothing_back() {
    cluster(Terms { handoff_grace: Duration::ZERO, ..Terms::default() }, async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        let mut turn = 0;
        world.network.script(move |leg| {
            turn += 1;
            match (leg.from, leg.what, turn % 3) {
                ("a", "renew", 0) => (Way::Pass, Way::Delay(Duration::from_secs(9))),
                ("a", "renew", 1) => (Way::Delay(Duration::from_secs(8)), Way::Pass),
                (_, "push", 2) => (Way::Pass, Way::Delay(Duration::from_secs(5))),
                _ => (Way::Pass, Way::Pass),
            }
        });
        let b = world.executor("b", 2, 0);
        sleep(5 * LEASE).await;
        assert_eq!((world.owned(&a), world.owned(&b)), (8, 8));
        world.network.heal();
        world.settled().await;
    })
    .await;
}

/// Case 4, 5, R40: the manager's store is wiped under living executors: storage refuses what it minted too low, and it heals by itself.
#[tokio::test(start_paused = true)]
async fn a_wiped_store_heals_by_itself_above_what_storage_recorded() {
    cluster(Terms::default(), async |world| {
        let a = world.executor("a", 1, 0);
        world.settled().await;
        for n in 0..12 {
            world.increment(&format!("counter/old{n}"), LEASE).await.unwrap();
        }
        // Epochs rise a little before the wipe.
        let b = world.executor("b", 2, 0);
        world.settled().await;
        let load = Load::start(&world, 12, 6 * LEASE);
        world.kill_manager().await;
        // S1 cannot hold over a wipe: nobody knows of the leases that were out. S6 does, and the counts show it.
        world.checker.forget_for(LEASE);
        world.store.wipe();
        world.network.forget_told();
        world.start_manager().await;
        sleep(4 * LEASE).await;
        world.settled().await;
        assert_eq!(world.owned(&a) + world.owned(&b), SHARDS as usize);
        assert!(load.errors.borrow().is_empty(), "{:?}", load.errors.borrow());
        load.end(&world).await;
        for n in 0..12 {
            assert_eq!(world.value(&format!("counter/old{n}")).await, 1);
        }
    })
    .await;
}

/// Requests refused by an executor name themselves, and an invocation without an owner waits for one.
#[tokio::test(start_paused = true)]
async fn a_call_before_there_is_an_executor_waits_for_one() {
    cluster(Terms::default(), async |world| {
        let early = {
            let world = Rc::clone(&world);
            tokio::task::spawn_local(async move { world.increment("counter/x", LEASE).await })
        };
        sleep(5 * SECOND).await;
        let _a = world.executor("a", 1, 0);
        assert_eq!(early.await.unwrap().unwrap().executor.as_str(), "a");
        let hopeless = Invocation {
            agent: "nosuch/x".parse().unwrap(),
            method: "get".to_owned(),
            payload: Vec::new(),
            idempotency_key: None,
        };
        let error = world.router.call(hopeless, LEASE).await.unwrap_err().to_string();
        assert!(error.contains("nosuch"), "{error}");
    })
    .await;
}
