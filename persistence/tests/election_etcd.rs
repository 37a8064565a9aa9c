//! The election on real etcd.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use leasehold_harness::{Etcd, EtcdCluster, EtcdConfig};
use leasehold_model::election::{CandidacyId, Kept, Leading};
use leasehold_model::{Address, ClusterName, ShardCount, Ttl};
use leasehold_persistence::Elections;
use leasehold_persistence::cluster::Error;
use leasehold_persistence::election::EtcdElections;
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

fn cluster() -> ClusterName {
    ClusterName::new("blue").unwrap()
}

fn address(port: u16) -> Address {
    Address::new(format!("127.0.0.1:{port}")).unwrap()
}

async fn elections(endpoints: Vec<String>) -> EtcdElections {
    let options = EtcdOptions { endpoints, request_timeout: Duration::from_secs(2), ..EtcdOptions::default() };
    EtcdElections::new(EtcdConnection::open(options).await.unwrap(), cluster())
}

/// An etcd, and a way to its election.
async fn alone() -> (Etcd, EtcdElections) {
    let etcd = Etcd::start();
    let elections = elections(etcd.endpoints()).await;
    (etcd, elections)
}

/// Joins, takes a place, and finds it the first.
async fn lead(elections: &EtcdElections) -> Leading {
    let id = stand(elections, 1).await;
    let leading = elections.observe(None).await.unwrap().unwrap();
    assert_eq!((leading.candidacy, leading.address.clone()), (id, address(1)));
    leading
}

/// Joins and takes a place.
async fn stand(elections: &EtcdElections, port: u16) -> CandidacyId {
    let (id, _) = elections.join(Ttl::from_duration(TTL).unwrap()).await.unwrap();
    assert_eq!(elections.enlist(id, &address(port)).await.unwrap(), Kept::Held(()));
    id
}

async fn first(elections: &EtcdElections) -> Option<CandidacyId> {
    elections.observe(None).await.unwrap().map(|leading| leading.candidacy)
}

#[tokio::test]
async fn the_first_in_the_queue_leads_and_the_next_one_when_it_leaves() {
    let (_etcd, elections) = alone().await;
    let leading = lead(&elections).await;
    let (one, two) = (leading.candidacy, stand(&elections, 2).await);
    // A place is kept when it is taken again.
    assert_eq!(elections.enlist(one, &address(1)).await.unwrap(), Kept::Held(()));
    assert_eq!(elections.observe(None).await.unwrap().unwrap(), leading);
    let watching = elections.clone();
    let known = leading.clone();
    let next = tokio::spawn(async move { watching.observe(Some(&known)).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!next.is_finished(), "nothing has changed");
    let left = Instant::now();
    elections.leave(one).await.unwrap();
    let next = timeout(PATIENCE, next).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(next.candidacy, two);
    assert!(left.elapsed() < Duration::from_millis(500), "heard after {:?}", left.elapsed());
    // What is gone has been left.
    elections.leave(one).await.unwrap();
    assert_eq!(elections.keep_alive(one).await.unwrap(), Kept::Gone);
    assert_eq!(elections.enlist(one, &address(1)).await.unwrap(), Kept::Gone);
    assert_eq!(first(&elections).await, Some(two));
}

/// Case 22: the lease is revoked, or the key deleted, under the leader: its store takes nothing any more.
#[tokio::test]
async fn case_22_a_leader_whose_place_is_gone_is_not_confirmed() {
    let (etcd, elections) = alone().await;
    for revoked in [true, false] {
        let leading = lead(&elections).await;
        let id = leading.candidacy;
        let store = elections.store(&leading);
        let state = store.load(&cluster(), ShardCount::new(8).unwrap()).await.unwrap();
        assert_eq!(state.shard_count.get(), 8);
        store.confirm_leadership().await.unwrap();
        if revoked {
            elections.leave(id).await.unwrap();
        } else {
            let _deleted = etcd.ctl(&["del", "--prefix", "/leasehold/blue/election/"]);
            assert!(matches!(elections.keep_alive(id).await.unwrap(), Kept::Held(_)), "the lease itself lives");
        }
        assert_eq!(elections.observe(Some(&leading)).await.unwrap(), None);
        assert!(matches!(store.confirm_leadership().await, Err(Error::NotOwner(_))));
        // A place that was deleted can be taken again, at the end; it is another leadership.
        if !revoked {
            elections.enlist(id, &address(1)).await.unwrap();
            let again = elections.observe(None).await.unwrap().unwrap();
            assert!(again.since > leading.since);
            assert!(matches!(store.confirm_leadership().await, Err(Error::NotOwner(_))));
        }
    }
}

/// Case 41: what etcd granted counts, not what was asked for.
#[tokio::test]
async fn case_41_the_ttl_that_was_granted_is_answered() {
    let slow = EtcdConfig::default().with_args(["--heartbeat-interval=500", "--election-timeout=4000"]);
    let etcd = Etcd::start_with(&slow);
    let elections = elections(etcd.endpoints()).await;
    let (id, granted) = elections.join(Ttl::from_duration(Duration::from_secs(2)).unwrap()).await.unwrap();
    assert!(granted.as_duration() >= Duration::from_secs(6), "{granted:?}");
    assert_eq!(elections.keep_alive(id).await.unwrap(), Kept::Held(granted));
}

/// Cases 23 and 27: etcd's leader is killed and members come and go; a lease that is kept alive lives through all of it.
#[tokio::test(flavor = "multi_thread")]
async fn case_23_a_candidacy_outlives_the_death_of_etcds_leader() {
    let mut etcd = EtcdCluster::start();
    let elections = elections(etcd.endpoints()).await;
    let leading = lead(&elections).await;
    let id = leading.candidacy;
    let keeping = {
        let elections = elections.clone();
        tokio::spawn(async move {
            loop {
                // A failure is repeated, as the candidacy's core does.
                assert!(!matches!(elections.keep_alive(id).await, Ok(Kept::Gone)), "the lease is gone");
                sleep(Duration::from_millis(100)).await;
            }
        })
    };
    for _ in 0..3 {
        let leader = etcd.leader();
        etcd.kill(leader);
        sleep(Duration::from_secs(2)).await;
        etcd.restart(leader);
        etcd.wait_ready();
    }
    assert!(!keeping.is_finished(), "{:?}", keeping.await);
    keeping.abort();
    assert_eq!(elections.observe(None).await.unwrap().unwrap(), leading);
}

/// Case 27: a lease that nobody keeps ends, and its place with it.
#[tokio::test]
async fn a_place_ends_with_a_lease_that_nobody_keeps() {
    let (_etcd, elections) = alone().await;
    let leading = lead(&elections).await;
    let ended = timeout(PATIENCE, elections.observe(Some(&leading))).await.unwrap().unwrap();
    assert_eq!(ended, None);
    assert_eq!(elections.keep_alive(leading.candidacy).await.unwrap(), Kept::Gone);
}
