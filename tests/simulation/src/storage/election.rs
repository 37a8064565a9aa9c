//! The election over a connection.

use super::cluster::SimCluster;
use super::{Connection, Kind};
use async_trait::async_trait;
use leasehold_model::election::{CandidacyId, Kept, Leading};
use leasehold_model::{Address, ClusterName, ShardCount, Ttl};
use leasehold_persistence::cluster::Error;
use leasehold_persistence::election::MemoryElections;
use leasehold_persistence::{ClusterStore, Elections};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long one question who leads waits at the store before it is asked anew.
const OBSERVED: Duration = Duration::from_secs(1);
/// After so long without an answer a connection counts as dead, as an unanswered ping tells.
const DEAD: Duration = Duration::from_millis(1500);

/// One manager process's way to the election.
pub struct SimElections {
    connection: Connection,
    inner: Arc<MemoryElections>,
}

impl SimElections {
    /// Over `connection`.
    pub fn new(connection: Connection) -> Self {
        let inner = Arc::new(connection.storage.elections.another());
        Self { connection, inner }
    }

    async fn call<T: Send + 'static>(
        &self,
        applied: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.connection.call((Kind::Election, false), applied, (Error::Unavailable, Error::Unavailable)).await
    }
}

#[async_trait]
impl Elections for SimElections {
    async fn check(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<(), Error> {
        let (inner, cluster) = (Arc::clone(&self.inner), cluster.clone());
        self.call(async move { inner.check(&cluster, shard_count).await }).await
    }

    async fn join(&self, ttl: Ttl) -> Result<(CandidacyId, Ttl), Error> {
        let inner = Arc::clone(&self.inner);
        self.call(async move { inner.join(ttl).await }).await
    }

    async fn enlist(&self, id: CandidacyId, address: &Address) -> Result<Kept<()>, Error> {
        let (inner, address) = (Arc::clone(&self.inner), address.clone());
        self.call(async move { inner.enlist(id, &address).await }).await
    }

    async fn keep_alive(&self, id: CandidacyId) -> Result<Kept<Ttl>, Error> {
        let inner = Arc::clone(&self.inner);
        self.call(async move { inner.keep_alive(id).await }).await
    }

    async fn observe(&self, known: Option<&Leading>) -> Result<Option<Leading>, Error> {
        loop {
            let (inner, known) = (Arc::clone(&self.inner), known.cloned());
            let observed = self.call(async move {
                match timeout(OBSERVED, inner.observe(known.as_ref())).await {
                    Ok(observed) => observed.map(Some),
                    Err(_) => Ok(None),
                }
            });
            match timeout(OBSERVED + DEAD, observed).await {
                Ok(Ok(Some(observed))) => return Ok(observed),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(Error::Unavailable("the connection is dead".to_owned())),
            }
        }
    }

    fn store(&self, leading: &Leading) -> Arc<dyn ClusterStore> {
        Arc::new(SimCluster::new(self.connection.clone(), self.inner.store(leading)))
    }

    async fn leave(&self, id: CandidacyId) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.call(async move { inner.leave(id).await }).await
    }
}
