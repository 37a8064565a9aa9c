//! Who of several manager processes leads: a queue of candidacies, each under a lease of its own; the first in it leads.
//!
//! An implementation answers and never decides: when to call, and what an answer means, is `leasehold_model::election`'s business. No
//! method but [`Elections::observe`] waits for anybody else. Dropping a returned future must be safe: the call then has an unknown
//! outcome, and repeating it does no harm.

#[cfg(feature = "etcd")]
mod etcd;
pub mod memory;

#[cfg(feature = "etcd")]
pub use etcd::EtcdElections;
pub use memory::MemoryElections;

use crate::cluster::{ClusterStore, Error};
use async_trait::async_trait;
use leasehold_model::election::{CandidacyId, Kept, Leading};
use leasehold_model::{Address, ClusterName, ShardCount, Ttl};
use std::sync::Arc;

/// The election of one cluster.
#[async_trait]
pub trait Elections: Send + Sync + 'static {
    /// Reads, without owning anything, whether the store fits this cluster and shard count (case 37).
    ///
    /// # Errors
    /// [`Error::Incompatible`] when it does not, saying both, or when the store refuses this user; [`Error::Unavailable`] when the
    /// store was not reached.
    async fn check(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<(), Error>;

    /// Opens a lease. Answers the ttl that was granted, which may be longer than `ttl`. A lease that nobody heard of holds no place.
    ///
    /// # Errors
    /// When it may not have been opened.
    async fn join(&self, ttl: Ttl) -> Result<(CandidacyId, Ttl), Error>;

    /// Takes a place at the end of the queue, proclaiming `address`; a candidacy that has one keeps it.
    ///
    /// # Errors
    /// When the place may not have been taken.
    async fn enlist(&self, id: CandidacyId, address: &Address) -> Result<Kept<()>, Error>;

    /// Keeps the lease alive: one question, one answer, with the ttl that was granted from some instant after the question was sent.
    ///
    /// # Errors
    /// When there was no answer.
    async fn keep_alive(&self, id: CandidacyId) -> Result<Kept<Ttl>, Error>;

    /// Who is first, by a linearizable read, as soon as that is not `known`. While it is, this waits, holding on to nothing that a
    /// dead connection could make deaf for good.
    ///
    /// # Errors
    /// When the store was not reached.
    async fn observe(&self, known: Option<&Leading>) -> Result<Option<Leading>, Error>;

    /// The store in the hands of `leading`: every write and confirmation is conditional on its place.
    fn store(&self, leading: &Leading) -> Arc<dyn ClusterStore>;

    /// Ends the lease and with it the place in the queue; one that is gone already has been left.
    ///
    /// # Errors
    /// When it may still be there.
    async fn leave(&self, id: CandidacyId) -> Result<(), Error>;
}
