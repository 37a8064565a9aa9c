//! Elections under faults of the store and of the network to it.

use crate::managers::{Managers, TTL, until};
use crate::world::local;
use leasehold_model::election::Call;
use leasehold_persistence::election::memory::{Fault, Network};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Cases 14, 20: cut off with sockets open, the leader stops by its lease, before a successor starts, and no sooner than it must.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_its_successor_starts() {
    for network in [Network::BlackHole, Network::Deaf, Network::Refused] {
        local(async {
            let w = Managers::new(2).await;
            let executors = w.executors(2).await;
            let owners = w.owners();
            w.all[0].way.network(network);
            let (began, mut stopped, mut followed) = (Instant::now(), None, None);
            while followed.is_none() {
                assert!(began.elapsed() < 3 * TTL, "{network:?}: nobody follows");
                if stopped.is_none() && !w.all[0].leads() {
                    stopped = Some(began.elapsed());
                }
                if w.all[1].leads() {
                    followed = Some(began.elapsed());
                }
                sleep(MS).await;
            }
            let (stopped, followed) = (stopped.expect("it stopped first"), followed.unwrap());
            assert!(stopped < followed && stopped > TTL / 2, "{network:?}: {stopped:?} {followed:?}");
            assert!(followed <= TTL + SECOND / 2 || network == Network::Deaf, "{network:?}: {followed:?}");
            for executor in &executors {
                executor.renew(&w.all[1].front).await.unwrap();
                assert!(executor.renew(&w.all[0].front).await.is_err());
            }
            assert_eq!(w.owners(), owners);
            w.all[0].way.network(Network::Fine);
            until("it queues again", 2 * TTL, || w.root.places().len() == 2).await;
            assert_eq!(w.leaders(), [1]);
        })
        .await;
    }
}

/// Case 14: every answer takes 0.6 of a ttl, then none comes: what counts is when the question was sent.
#[tokio::test(start_paused = true)]
async fn late_answers_do_not_make_a_leadership_last_longer_than_the_store_grants() {
    local(async {
        let w = Managers::new(2).await;
        // As long as a call may take at the most.
        for _ in 0..3 {
            w.all[0].way.inject(Call::KeepAlive, Fault::DelayAnswer(TTL.mul_f64(0.29)));
        }
        let mut checked = 0;
        let began = Instant::now();
        while began.elapsed() < 12 * SECOND {
            sleep(10 * MS).await;
            checked += usize::from(w.leaders() == [0]);
        }
        assert!(checked > 1_000, "it leads all the time");
        w.all[0].way.network(Network::Deaf);
        until("it stops", TTL, || !w.all[0].leads()).await;
        assert!(!w.all[1].leads(), "not yet");
        w.led_by(1, 2 * TTL).await;
    })
    .await;
}

/// Case 23: refused calls, a closed observation, half a ttl without the store: the same leader, nothing moves.
#[tokio::test(start_paused = true)]
async fn a_hiccup_is_not_a_loss() {
    local(async {
        let w = Managers::new(2).await;
        let executors = w.executors(2).await;
        let (owners, manager) = (w.owners(), w.all[0].manager_id());
        for call in [Call::KeepAlive, Call::Observe, Call::Enlist] {
            for manager in &w.all {
                manager.way.inject(call, Fault::Refuse("unavailable".to_owned()));
            }
        }
        sleep(2 * TTL).await;
        for network in [Network::Refused, Network::BlackHole] {
            for manager in &w.all {
                manager.way.network(network);
            }
            sleep(TTL / 2).await;
            for manager in &w.all {
                manager.way.network(Network::Fine);
            }
            sleep(2 * TTL).await;
            for executor in &executors {
                executor.renew(&w.all[0].front).await.unwrap();
            }
        }
        assert_eq!((w.leaders(), w.owners(), w.all[0].manager_id()), (vec![0], owners, manager));
    })
    .await;
}

/// Case 27: the store away for less and for more than the ttl, twenty times; few calls while it is down; afterwards one leader.
#[tokio::test(start_paused = true)]
async fn a_store_that_goes_away_again_and_again_leaves_one_leader() {
    local(async {
        let w = Managers::new(3).await;
        w.executors(2).await;
        let calls = |at: usize| {
            ["join", "enlist", "keep_alive", "observe", "leave"]
                .iter()
                .filter_map(|call| w.all[at].metric(&format!("leasehold_campaign_failures_total{{call=\"{call}\"}}")))
                .sum::<f64>()
        };
        for turn in 1..=20_u64 {
            let away = Duration::from_millis(1_300 * turn);
            let before = calls(0);
            for manager in &w.all {
                manager.way.network(Network::Refused);
            }
            sleep(away).await;
            let failed = calls(0) - before;
            assert!(failed <= 2.0 * away.as_secs_f64() + 16.0, "{failed} calls in {away:?}");
            for manager in &w.all {
                manager.way.network(Network::Fine);
            }
            until("one leader", 2 * TTL, || w.leaders().len() == 1).await;
            until("everybody queues", 2 * TTL, || w.root.places().len() == 3).await;
        }
        assert!(w.all.iter().all(|manager| manager.ended().is_none()));
    })
    .await;
}

/// Case 21: three managers frozen for two ttl, only those that did not lead wake.
#[tokio::test(start_paused = true)]
async fn whoever_wakes_after_everybody_was_frozen_leads() {
    local(async {
        let w = Managers::new(3).await;
        let executors = w.executors(2).await;
        let owners = w.owners();
        for manager in &w.all {
            manager.way.network(Network::BlackHole);
        }
        sleep(2 * TTL).await;
        for manager in &w.all[1..] {
            manager.clock.sleep_machine(2 * TTL);
            manager.way.network(Network::Fine);
        }
        until("one of them leads", TTL + 4 * SECOND, || w.leaders().len() == 1).await;
        let leader = w.leaders()[0];
        assert_ne!(leader, 0);
        for executor in &executors {
            executor.renew(&w.all[leader].front).await.unwrap();
        }
        assert_eq!(w.owners(), owners);
    })
    .await;
}

/// Case 21: a standby that has waited ten ttl is as good as a new one.
#[tokio::test(start_paused = true)]
async fn a_standby_that_waited_for_long_still_follows() {
    local(async {
        let w = Managers::new(2).await;
        w.executors(1).await;
        sleep(10 * TTL).await;
        w.all[0].way.network(Network::BlackHole);
        let took = w.led_by(1, 2 * TTL).await;
        assert!(took <= TTL + SECOND / 2, "{took:?}");
    })
    .await;
}

/// Case 20, R10's kind: a leader whose machine slept past its deadline finds its gate closed before anything else runs.
#[tokio::test(start_paused = true)]
async fn a_leader_that_slept_answers_nothing_when_it_wakes() {
    local(async {
        let w = Managers::new(1).await;
        let executors = w.executors(1).await;
        w.all[0].clock.sleep_machine(TTL);
        assert!(!w.all[0].leads());
        assert!(executors[0].renew(&w.all[0].front).await.is_err());
        w.led_by(0, TTL).await;
        executors[0].renew(&w.all[0].front).await.unwrap();
    })
    .await;
}

/// Case 41: everything was killed and starts at once, the dead leader's place still in the queue: it comes up unaided within its ttl.
#[tokio::test(start_paused = true)]
async fn the_place_of_a_dead_predecessor_holds_nobody_up_for_longer_than_its_ttl() {
    local(async {
        let mut w = Managers::new(1).await;
        // Its packets vanish for good: dead to everybody else, its place lives on.
        w.all[0].way.network(Network::BlackHole);
        w.add(2).await;
        w.add(3).await;
        assert_eq!(w.root.places().len(), 3);
        let took = w.led_by(1, 2 * TTL).await;
        assert!(took <= TTL + SECOND / 2, "{took:?}");
    })
    .await;
}

/// A join whose answer is lost leaves a lease without a place: it holds nobody up.
#[tokio::test(start_paused = true)]
async fn lost_answers_to_any_call_only_delay() {
    for call in [Call::Join, Call::Enlist, Call::KeepAlive, Call::Observe] {
        local(async {
            let mut w = Managers::new(0).await;
            let way = w.root.another();
            way.inject(call, Fault::LoseAnswer);
            if call == Call::Join {
                // The first of the two questions of a join is whether the store fits.
                way.inject(call, Fault::LoseAnswer);
            }
            w.all.push(crate::managers::Manager::start(way, &w.network, 1, 8));
            let took = w.led_by(0, TTL).await;
            assert!(took <= 8 * SECOND, "{call:?}: {took:?}");
            sleep(3 * TTL).await;
            assert_eq!((w.leaders(), w.all[0].ended()), (vec![0], None), "{call:?}");
        })
        .await;
    }
}
