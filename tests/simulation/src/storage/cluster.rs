//! The manager's store over a connection.

use super::{Connection, Kind};
use crate::bugs::{self, Around};
use crate::world::Event;
use async_trait::async_trait;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{Error, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// One leadership's way to the store.
pub struct SimCluster {
    connection: Connection,
    inner: Arc<dyn ClusterStore>,
}

impl SimCluster {
    pub fn new(connection: Connection, inner: Arc<dyn ClusterStore>) -> Self {
        Self { connection, inner }
    }
}

const FAILS: super::Fails<Error> = (Error::Unavailable, Error::Unavailable);

#[async_trait]
impl ClusterStore for SimCluster {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        let (inner, cluster) = (Arc::clone(&self.inner), cluster.clone());
        let Connection { storage, host, .. } = self.connection.clone();
        let load = async move {
            let loaded = inner.load(&cluster, shard_count).await;
            if loaded.is_ok() {
                storage.world.happen(Event::TookOver { host });
            }
            loaded
        };
        self.connection.call((Kind::Load, true), load, FAILS).await
    }

    async fn commit(&self, write: &Write) -> Result<(), Error> {
        let (inner, write) = (Arc::clone(&self.inner), write.clone());
        let Connection { storage, host, .. } = self.connection.clone();
        let commit = async move {
            let committed = inner.commit(&write).await;
            match &committed {
                Ok(()) => {
                    let state = storage.elections.data().peek().expect("something was just written");
                    storage.world.happen(Event::Committed { state: Arc::new(state) });
                }
                Err(Error::Conflict { .. }) => {
                    let why = format!("expected revision {}", write.expected);
                    storage.world.happen(Event::Misjudged { host, why });
                }
                Err(_) => {}
            }
            committed
        };
        let committed = self.connection.call((Kind::Commit, true), commit, (Error::Unavailable, Error::Unknown));
        if bugs::is(Around::LookUpDoesNotSettle) {
            // Given up on after a moment, and still under way.
            let late = |_| Err(Error::Unknown("no answer yet".to_owned()));
            return timeout(Duration::from_millis(100), committed).await.unwrap_or_else(late);
        }
        committed.await
    }

    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        let (inner, world) = (Arc::clone(&self.inner), Arc::clone(&self.connection.storage.world));
        let outcome = async move {
            let outcome = inner.outcome(tag).await;
            if let Ok(there) = outcome {
                world.reach(if there { "unknown write: it was there" } else { "unknown write: it was not there" });
            }
            outcome
        };
        let ordered = !bugs::is(Around::LookUpDoesNotSettle);
        self.connection.call((Kind::Outcome, ordered), outcome, FAILS).await
    }

    async fn confirm_leadership(&self) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        if bugs::is(Around::ConfirmedByNobody) {
            return Ok(());
        }
        self.connection.call((Kind::Confirm, false), async move { inner.confirm_leadership().await }, FAILS).await
    }

    async fn compact(&self, upto: Revision) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.connection.call((Kind::Outcome, true), async move { inner.compact(upto).await }, FAILS).await
    }
}
