//! R45, in real time: the keepalive's thread does not care what the others do, and does not keep a dead leader in office.

use crate::managers::TTL;
use crate::world::{Network, settings};
use leasehold_actors::clock::{GranterClock, HolderClock};
use leasehold_actors::manager::{
    ElectionMetrics, ElectionParts, ManagerMetrics, Stage, Standing, StopElection, Surroundings, elect_on_own_thread,
};
use leasehold_model::lease::Allowance;
use leasehold_model::{Address, Ttl, election};
use leasehold_persistence::election::MemoryElections;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::LocalSet;

/// Blocks this thread, and with it the leader's actors, until `condition`. It sleeps meanwhile: a loop that spins would take a
/// processor away from the thread whose freedom is tested.
fn block_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < 6 * TTL, "{what}: not within {:?}", 6 * TTL);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Leads `elections` by a lease of `ttl`, its actors on this thread; stops it after `test`.
async fn leading(
    elections: MemoryElections,
    (ttl, patience): (Duration, Duration),
    test: impl AsyncFnOnce(&watch::Receiver<Standing>),
) {
    let lead = async {
        let parts = ElectionParts {
            elections: Arc::new(elections),
            election: election::Settings {
                ttl: Ttl::from_duration(ttl).unwrap(),
                allowance: Allowance::default(),
                patience,
            },
            call_deadline: ttl / 2,
            address: Address::new("127.0.0.1:7001").unwrap(),
            clock: Arc::new(HolderClock),
            manager: settings(8),
            with: Surroundings {
                links: Arc::new(Network::default()),
                clock: Arc::new(GranterClock),
                metrics: ManagerMetrics::register(&mut Registry::default()),
            },
            stage: Stage::on_this_thread(),
            metrics: ElectionMetrics::default(),
        };
        let (election, mut standing, mut ended) = elect_on_own_thread(parts).unwrap();
        standing.wait_for(|standing| standing.leadership().is_some()).await.unwrap();
        test(&standing).await;
        election.do_send(StopElection);
        ended.wait_for(Option::is_some).await.unwrap();
    };
    tokio::time::timeout(10 * TTL, LocalSet::new().run_until(lead)).await.unwrap();
}

#[tokio::test]
async fn keepalives_go_out_while_the_leaders_runtime_is_blocked_for_two_leases() {
    let (root, ttl) = (MemoryElections::new(), Duration::from_secs(3));
    leading(root.another(), (ttl, 20 * TTL), async |standing| {
        let (began, place) = (Instant::now(), root.places());
        block_until("two leases", || began.elapsed() > 2 * ttl);
        assert!(standing.borrow().leadership().is_some(), "it leads all the time");
        assert_eq!(root.places(), place);
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_answers_nothing_is_given_up_although_the_keepalives_go_out() {
    let (root, ttl) = (MemoryElections::new(), Duration::from_secs(3));
    leading(root.another(), (ttl, Duration::from_millis(300)), async |standing| {
        let place = root.places();
        block_until("it is given up", || standing.borrow().leadership().is_none());
        block_until("its place is left to another", || !root.places().contains(&place[0]));
    })
    .await;
}
