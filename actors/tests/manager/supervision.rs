//! What the death of an actor means where no panic hook aborts the process (a library user's process).

use crate::world::{Pushes, Scripted, World, local, settings};
use async_trait::async_trait;
use leasehold_actors::clock::VirtualClock;
use leasehold_actors::manager::{ExecutorLinks, LeadershipEnd, ManagerMetrics, Surroundings, start};
use leasehold_model::state::ClusterState;
use leasehold_model::{Address, CallError, ClusterName, Revision, ShardCount};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{Error, MemoryClusterStore, Write};
use leasehold_rpc::api::{ExecutorApi, ManagerApi};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// A dead session is replaced when there is something to deliver; until then renewals carry the set.
#[tokio::test(start_paused = true)]
async fn a_session_that_died_is_begun_anew_with_the_newest_set() {
    local(async {
        let w = World::new(8).await;
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        w.join(&[&a]).await;
        a.pushes(Pushes::Panic);
        w.place(&b);
        b.register(&w.manager).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        a.pushes(Pushes::Prompt);
        let pushed = a.received().len();
        a.renew(&w.manager).await.unwrap();
        a.renew(&w.manager).await.unwrap();
        b.deregister(&w.manager).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert!(a.received().len() > pushed, "pushed to again");
        assert_eq!(a.claim().unwrap().shards.len(), 8);
        assert_eq!(w.ended(), None);
    })
    .await;
}

/// A store whose driver panics.
struct Panicking {
    inner: MemoryClusterStore,
    panics: Arc<AtomicBool>,
}

#[async_trait]
impl ClusterStore for Panicking {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        self.inner.load(cluster, shard_count).await
    }
    async fn commit(&self, write: &Write) -> Result<(), Error> {
        assert!(!self.panics.load(Ordering::Relaxed), "a broken driver");
        self.inner.commit(write).await
    }
    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        self.inner.outcome(tag).await
    }
    async fn confirm_leadership(&self) -> Result<(), Error> {
        self.inner.confirm_leadership().await
    }
    async fn compact(&self, upto: Revision) -> Result<(), Error> {
        self.inner.compact(upto).await
    }
}

struct Nowhere(Arc<dyn ExecutorApi>);

impl ExecutorLinks for Nowhere {
    fn link(&self, _: &Address) -> Arc<dyn ExecutorApi> {
        Arc::clone(&self.0)
    }
}

/// `Leader` does not limp on without `Persistence`: whoever waits is told, nothing more is granted, the leadership is over.
#[tokio::test(start_paused = true)]
async fn a_dead_persistence_ends_the_leadership() {
    local(async {
        let panics = Arc::new(AtomicBool::new(false));
        let store = Arc::new(Panicking { inner: MemoryClusterStore::new(), panics: Arc::clone(&panics) });
        let (a, b) = (Scripted::new(1), Scripted::new(2));
        let with = Surroundings {
            links: Arc::new(Nowhere(Arc::clone(&a) as _)),
            clock: Arc::new(VirtualClock::start()),
            metrics: ManagerMetrics::register(&mut Registry::default()),
        };
        let running = start(settings(8), store, with).await.unwrap();
        a.register(&running.handle).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        panics.store(true, Ordering::Relaxed);
        let waiting = b.register(&running.handle);
        let renewing = async {
            sleep(Duration::from_secs(1)).await;
            a.renew(&running.handle).await
        };
        let (registered, renewed) = tokio::join!(waiting, renewing);
        assert!(matches!(registered, Err(CallError::Unknown(_))), "{registered:?}");
        assert!(renewed.is_err(), "nothing is granted any more");
        let ended = running.ended.borrow().clone();
        assert!(matches!(ended, Some(LeadershipEnd::Lost(_))), "{ended:?}");
        assert!(running.handle.status().await.is_err());
    })
    .await;
}
