//! Standing by, leading, and standing by again: every transition of the `Election` actor.

use crate::managers::{CALL, Manager, Managers, TTL, until};
use crate::world::{Pushes, Scripted, local, refused};
use leasehold_actors::manager::ElectionEnd;
use leasehold_model::{CallError, Refusal};
use leasehold_persistence::cluster::Error as StoreError;
use leasehold_persistence::cluster::memory::{Fault as StoreFault, Op};
use leasehold_persistence::election::memory::Network;
use leasehold_rpc::api::ManagerApi;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

/// What a standby answers while it knows of this leader.
fn not_leader(leader: Option<&Manager>) -> Refusal {
    Refusal::NotLeader { leader: leader.map(|leader| leader.address.clone()) }
}

/// How long `manager` takes to end.
async fn time_to_end(manager: &Manager) -> Duration {
    until("its end", TTL, || manager.ended() == Some(ElectionEnd::Stopped)).await
}

/// Waits for the end of a manager that the store does not fit, which says both shard counts.
async fn ends_as_incompatible(manager: &Manager) {
    until("its end", TTL, || manager.ended().is_some()).await;
    let Some(ElectionEnd::Failed(StoreError::Incompatible(why))) = manager.ended() else {
        panic!("{:?}", manager.ended())
    };
    assert!(why.contains('8') && why.contains("16"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_the_others_answer_with_its_address() {
    local(async {
        let w = Managers::new(3).await;
        assert_eq!(w.leaders(), [0]);
        let a = Scripted::new(1);
        for standby in &w.all[1..] {
            assert_eq!(refused(a.register(&standby.front).await), not_leader(Some(&w.all[0])));
            assert!(standby.front.status().await.is_err() && standby.front.routing_table().await.is_err());
            assert!(standby.front.watch_routing_table().await.is_err());
        }
        w.executors(2).await;
        assert_eq!(w.all[0].metric("leasehold_is_leader"), Some(1.0));
        assert_eq!(w.all[1].metric("leasehold_is_leader"), Some(0.0));
    })
    .await;
}

/// Case 24: before it is elected, a manager writes nothing, also while the leader is in the middle of a change.
#[tokio::test(start_paused = true)]
async fn a_standby_writes_nothing_before_it_is_elected() {
    local(async {
        let mut w = Managers::new(1).await;
        let a = Scripted::new(1);
        w.network.place(&a);
        let writers = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&writers);
        w.root.data().inject_when(move |call| {
            if call.op == Op::Commit {
                seen.lock().unwrap().push(call.handle);
            }
            match call.op {
                Op::Commit => vec![StoreFault::DelayBefore(Duration::from_secs(2))],
                _ => Vec::new(),
            }
        });
        let front = w.all[0].front.clone();
        let registering = a.register(&front);
        let (registered, ()) = tokio::join!(registering, w.add(2));
        registered.unwrap();
        sleep(3 * TTL).await;
        let writers = writers.lock().unwrap();
        assert!(!writers.is_empty() && writers.iter().all(|writer| *writer == writers[0]), "{writers:?}");
    })
    .await;
}

/// Graceful stop: nothing is granted any more, the place is given up, the next one leads within milliseconds; nobody's shard moves.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_is_followed_within_milliseconds() {
    local(async {
        let w = Managers::new(2).await;
        let executors = w.executors(2).await;
        let (owners, first) = (w.owners(), w.all[0].manager_id());
        w.all[0].stop();
        let took = w.led_by(1, TTL).await;
        assert!(took <= 20 * MS, "{took:?}");
        time_to_end(&w.all[0]).await;
        assert_ne!(w.all[1].manager_id(), first);
        for executor in &executors {
            assert!(executor.renew(&w.all[0].front).await.is_err());
            executor.renew(&w.all[1].front).await.unwrap();
        }
        assert_eq!(w.owners(), owners);
    })
    .await;
}

/// A write in flight is not left behind: the place is given up once its outcome is known, or after the deadline of a call.
#[tokio::test(start_paused = true)]
async fn a_stopped_leader_waits_for_its_write_no_longer_than_a_call_may_take() {
    for (delay, waits) in [(1, 1), (60, 3)] {
        local(async {
            let w = Managers::new(2).await;
            let a = Scripted::new(1);
            w.network.place(&a);
            let fault = StoreFault::DelayBefore(Duration::from_secs(delay));
            w.root.data().inject(Op::Commit, [fault]);
            let front = w.all[0].front.clone();
            let stopped = async {
                sleep(10 * MS).await;
                w.all[0].stop();
                w.led_by(1, TTL).await
            };
            let (registered, took) = tokio::join!(a.register(&front), stopped);
            let least = Duration::from_secs(waits) - 20 * MS;
            assert!((least..least + 100 * MS).contains(&took), "{delay}: {took:?}");
            assert!(registered.is_err(), "nothing is answered after the stop: {registered:?}");
        })
        .await;
    }
}

/// Case 24: a standby leaves the queue at once.
#[tokio::test(start_paused = true)]
async fn a_standby_that_is_stopped_leaves_the_queue_at_once() {
    local(async {
        let w = Managers::new(2).await;
        w.all[1].stop();
        let took = time_to_end(&w.all[1]).await;
        assert!(took <= 2 * MS, "{took:?}");
        assert_eq!((w.root.places().len(), w.leaders()), (1, vec![0]));
    })
    .await;
}

/// Case 24: a stop while the store is unreachable, in the queue, while joining and while leading.
#[tokio::test(start_paused = true)]
async fn a_stop_while_the_store_is_unreachable_takes_no_longer_than_two_calls() {
    for network in [Network::BlackHole, Network::Refused, Network::Deaf] {
        for which in [0, 1] {
            local(async {
                let w = Managers::new(2).await;
                w.all[which].way.network(network);
                w.all[which].stop();
                let took = time_to_end(&w.all[which]).await;
                assert!(took <= 2 * CALL + 10 * MS, "{network:?}: {took:?}");
            })
            .await;
        }
        local(async {
            let w = Managers::new(0).await;
            w.root.network(network);
            let way = w.root.another();
            way.network(network);
            let joining = Manager::start(way, &w.network, 1, 8);
            sleep(4 * TTL).await;
            joining.stop();
            let took = time_to_end(&joining).await;
            assert!(took <= 2 * MS, "{network:?}: {took:?}");
        })
        .await;
    }
}

/// A stop in the middle of a take-over that hangs.
#[tokio::test(start_paused = true)]
async fn a_stop_while_the_state_is_being_loaded_waits_for_no_load() {
    local(async {
        let w = Managers::new(0).await;
        w.root.data().inject(Op::Load, [StoreFault::DelayBefore(Duration::from_secs(60))]);
        let loading = Manager::start(w.root.another(), &w.network, 1, 8);
        until("a place", TTL, || !w.root.places().is_empty()).await;
        sleep(10 * MS).await;
        loading.stop();
        let took = time_to_end(&loading).await;
        assert!(took <= 2 * MS && w.root.places().is_empty(), "{took:?}");
    })
    .await;
}

/// Case 22, and back to standby in the same process: fresh actors, a new `ManagerId`.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_revoked_stands_by_and_leads_again_as_another_manager() {
    local(async {
        let w = Managers::new(1).await;
        let executors = w.executors(2).await;
        let (owners, first, front) = (w.owners(), w.all[0].manager_id(), w.all[0].front.clone());
        let place = w.root.places()[0].candidacy;
        w.root.revoke(place);
        until("it notices", MS * 50, || !w.all[0].leads()).await;
        assert_eq!(refused(executors[0].renew(&front).await), not_leader(None));
        w.led_by(0, TTL).await;
        assert_ne!(w.all[0].manager_id(), first);
        for executor in &executors {
            executor.renew(&front).await.unwrap();
        }
        assert_eq!(w.owners(), owners, "shards stay put");
        assert_eq!(w.all[0].metric("leasehold_leadership_changes_total{change=\"gained\"}"), Some(2.0));
        assert_eq!(w.all[0].metric("leasehold_leadership_changes_total{change=\"lost\"}"), Some(1.0));
    })
    .await;
}

/// Case 22: the key alone is deleted; the lease lives on and must not be held.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_key_is_deleted_is_followed_by_the_next() {
    local(async {
        let w = Managers::new(2).await;
        let executors = w.executors(2).await;
        let owners = w.owners();
        w.root.delete_place(w.root.places()[0].candidacy);
        w.led_by(1, 50 * MS).await;
        until("it queues again", TTL, || w.root.places().len() == 2).await;
        for executor in &executors {
            executor.renew(&w.all[1].front).await.unwrap();
            assert_eq!(refused(executor.renew(&w.all[0].front).await), not_leader(Some(&w.all[1])));
        }
        assert_eq!(w.owners(), owners);
    })
    .await;
}

/// Case 22: a standby whose place was deleted is not forgotten.
#[tokio::test(start_paused = true)]
async fn a_standby_whose_place_is_deleted_takes_another() {
    local(async {
        let w = Managers::new(2).await;
        w.root.delete_place(w.root.places()[1].candidacy);
        until("a place again", TTL, || w.root.places().len() == 2).await;
        w.all[0].stop();
        w.led_by(1, 50 * MS).await;
    })
    .await;
}

/// Case 3's other half: another process's write ends the leadership, and the process stands for it again.
#[tokio::test(start_paused = true)]
async fn a_leadership_lost_to_a_foreign_write_is_stood_for_again() {
    local(async {
        let w = Managers::new(1).await;
        w.executors(1).await;
        let first = w.all[0].manager_id();
        w.root.data().inject(Op::Commit, [StoreFault::ForeignWrite]);
        let b = Scripted::new(9);
        w.network.place(&b);
        assert!(b.register(&w.all[0].front).await.is_err());
        until("another leadership", TTL, || w.all[0].leads() && w.all[0].manager_id() != first).await;
        b.register(&w.all[0].front).await.unwrap();
    })
    .await;
}

/// A state that cannot be read at once is tried again, by whoever is next; nobody leads meanwhile.
#[tokio::test(start_paused = true)]
async fn a_take_over_that_fails_is_left_to_the_next() {
    local(async {
        let mut w = Managers::new(0).await;
        w.root.data().inject(Op::Load, [StoreFault::Refuse("busy".to_owned())]);
        w.add(1).await;
        until("somebody leads", TTL, || w.leaders() == [0]).await;
        assert_eq!(w.all[0].ended(), None);
    })
    .await;
}

/// Case 37: a standby with another shard count is refused, saying both, and the leader is not disturbed.
#[tokio::test(start_paused = true)]
async fn a_standby_with_another_shard_count_ends() {
    local(async {
        let w = Managers::new(1).await;
        w.executors(1).await;
        let other = Manager::start(w.root.another(), &w.network, 2, 16);
        ends_as_incompatible(&other).await;
        assert_eq!((w.leaders(), w.root.places().len()), (vec![0], 1));
    })
    .await;
}

/// Cases 14, 20: what was under way when a leadership ended is neither pushed nor answered any more: whether it was lost, or its process
/// was told to stop and waits for its last write.
#[tokio::test(start_paused = true)]
async fn nothing_of_an_ended_leadership_is_pushed_or_answered() {
    for told_to_stop in [false, true] {
        local(async {
            let w = Managers::new(2).await;
            let executors = w.executors(2).await;
            let (hidden, late) = (Scripted::new(3), Scripted::new(4));
            hidden.pushes(Pushes::Drop);
            w.network.place(&hidden);
            w.network.place(&late);
            let (front, old) = (w.all[0].front.clone(), w.all[0].manager_id());
            hidden.register(&front).await.unwrap();
            let watching = front.watch_routing_table().await.unwrap();
            sleep(Duration::from_secs(1)).await;
            assert!(hidden.received_of(old) > 1, "it is being pushed to again and again");
            w.root.data().inject(Op::Commit, [StoreFault::DelayBefore(Duration::from_secs(2))]);
            let ending = async {
                sleep(10 * MS).await;
                if told_to_stop {
                    w.all[0].stop()
                } else {
                    w.root.revoke(w.root.places()[0].candidacy)
                }
                until("its end", 50 * MS, || !w.all[0].leads()).await;
                let pushed = hidden.received_of(old);
                for executor in &executors {
                    assert!(matches!(refused(executor.renew(&front).await), Refusal::NotLeader { .. }));
                }
                w.led_by(1, TTL).await;
                sleep(Duration::from_secs(3)).await;
                assert_eq!(hidden.received_of(old), pushed, "told to stop: {told_to_stop}");
            };
            let (registered, ()) = tokio::join!(late.register(&front), ending);
            assert!(registered.is_err(), "told to stop: {told_to_stop}: {registered:?}");
            assert!(hidden.received_of(w.all[1].manager_id()) > 0, "its successor pushes");
            let ended = futures::StreamExt::collect::<Vec<_>>(watching).await;
            assert!(!ended.is_empty(), "the watch ended with the leadership");
        })
        .await;
    }
}

/// R7, R10's kind: a grant that was being confirmed while the machine slept past the leadership's end does not leave.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_outlasted_the_leadership_in_a_sleep_is_not_granted() {
    local(async {
        let w = Managers::new(1).await;
        let executors = w.executors(1).await;
        let front = w.all[0].front.clone();
        w.root.data().inject(Op::Confirm, [StoreFault::DelayAfter(200 * MS)]);
        let slept = async {
            sleep(100 * MS).await;
            w.all[0].clock.sleep_machine(TTL);
        };
        let (renewed, ()) = tokio::join!(executors[0].renew(&front), slept);
        assert!(matches!(renewed, Err(CallError::Unknown(_))), "{renewed:?}");
    })
    .await;
}

/// A process whose election ends without a word, by a panic or with its system, has no leadership left that could answer.
#[tokio::test(start_paused = true)]
async fn an_election_that_is_gone_takes_its_leadership_with_it() {
    let (front, standing, executor) = local(async {
        let w = Managers::new(1).await;
        let executor = w.executors(1).await.remove(0);
        (w.all[0].front.clone(), w.all[0].standing.clone(), executor)
    })
    .await;
    assert!(standing.borrow().leadership().is_none());
    assert!(executor.renew(&front).await.is_err());
}

/// Case 37: the store fitted when the standby joined, and does not when it is elected: it gives its place up and ends, saying both.
#[tokio::test(start_paused = true)]
async fn a_successor_that_the_store_does_not_fit_any_more_ends_and_leaves_the_queue() {
    local(async {
        let w = Managers::new(1).await;
        w.executors(1).await;
        let stored = w.root.data().snapshot();
        w.root.data().wipe();
        let other = Manager::start(w.root.another(), &w.network, 2, 16);
        until("a place in the queue", TTL, || w.root.places().len() == 2).await;
        w.root.data().restore(&stored);
        w.all[0].stop();
        ends_as_incompatible(&other).await;
        assert_eq!(w.root.places(), []);
    })
    .await;
}

/// Case 20: a leader whose machine slept pushes nothing when it wakes, although a push is due before it has noticed anything.
#[tokio::test(start_paused = true)]
async fn a_leader_that_slept_pushes_nothing_when_it_wakes() {
    local(async {
        let w = Managers::new(1).await;
        let hidden = Scripted::new(1);
        hidden.pushes(Pushes::Drop);
        w.network.place(&hidden);
        hidden.register(&w.all[0].front).await.unwrap();
        sleep(Duration::from_millis(500)).await;
        let received = hidden.received().len();
        assert!(received > 1, "it is being pushed to again and again");
        w.all[0].clock.sleep_machine(TTL);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(hidden.received().len(), received);
    })
    .await;
}

/// Case 41: the ttl that is granted counts, not the one that was asked for.
#[tokio::test(start_paused = true)]
async fn a_ttl_granted_longer_than_asked_is_the_one_that_counts() {
    local(async {
        let (root, network) = (Managers::new(0).await.root, Arc::default());
        root.least_ttl(3 * TTL);
        let leader = Manager::start(root.another(), &network, 1, 8);
        until("it leads", TTL, || leader.leads()).await;
        sleep(11 * Duration::from_secs(1)).await;
        // The next keepalive is sent 20 s after the start; until then a cut changes nothing for 30 s in all.
        leader.way.network(Network::BlackHole);
        let lasted = until("its deadline", 3 * TTL, || !leader.leads()).await + Duration::from_secs(11);
        assert!((Duration::from_millis(29_950)..=Duration::from_millis(39_980)).contains(&lasted), "{lasted:?}");
    })
    .await;
}
