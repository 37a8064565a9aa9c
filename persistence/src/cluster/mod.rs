//! The manager's store.

mod counters;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod jobs;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rows;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use counters::{Counters, Counts};
#[cfg(feature = "etcd")]
pub use etcd::EtcdClusterStore;
pub use memory::MemoryClusterStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresClusterStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteClusterStore;

use crate::url::StoreUrl;
use async_trait::async_trait;
use leasehold_model::command::Changes;
use leasehold_model::state::{ClusterState, Head, ShardState};
use leasehold_model::{ClusterName, Revision, ShardCount};
use std::sync::Arc;

/// One compare-and-swap: `changes` take the store from revision `expected` to `next`.
#[derive(Debug, Clone)]
pub struct Write {
    /// Unique to this write: how an unknown outcome is looked up.
    pub tag: u128,
    /// The revision the writer believes is stored; 0 on an empty store.
    pub expected: Revision,
    /// The revision after it.
    pub next: Revision,
    /// What changes.
    pub changes: Changes,
}

impl Write {
    /// Checks, before anything is written, what every store relies on.
    ///
    /// # Errors
    /// [`Error::Incompatible`] when a revision does not fit a signed column of 64 bits.
    ///
    /// # Panics
    /// When the revisions do not ascend, or the head and the revisions disagree about this being the first write.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let releasing = self.changes.shards.values().filter_map(|shard| match shard.state {
            ShardState::Releasing { since, .. } => Some(since),
            ShardState::Unassigned | ShardState::Owned(_) => None,
        });
        if let Some(giant) = [self.expected, self.next].into_iter().chain(releasing).find(|at| *at > Revision::MAX) {
            return Err(Error::Incompatible(format!("revision {giant} is above the greatest, {}", Revision::MAX)));
        }
        assert!(self.next > self.expected, "a write from revision {} to {}", self.expected, self.next);
        let first = self.changes.first.as_ref().map(|head| head.revision);
        let due = (self.expected == Revision(0)).then_some(self.next);
        assert_eq!(first, due, "the head of a write from revision {} to {}", self.expected, self.next);
        Ok(())
    }

    /// About how many bytes of rows it carries, for measuring.
    pub(crate) fn bytes(&self) -> u64 {
        const HEAD: usize = 48;
        const SHARD: usize = 48;
        const EXECUTOR: usize = 96;
        const ID: usize = 16;
        let texts: usize = (self.changes.executors.values())
            .map(|row| row.name.as_str().len() + row.address.as_str().len() + row.zone.as_ref().map_or(0, String::len))
            .sum();
        let rows = self.changes.shards.len() * SHARD
            + self.changes.executors.len() * EXECUTOR
            + self.changes.removed.len() * ID;
        (HEAD + rows + texts) as u64
    }
}

/// What became of a write, or of a question to the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Somebody else wrote: this process does not own the store any more. Nothing was written.
    #[error("the store is at revision {found}, not {expected}: another process wrote")]
    Conflict {
        /// The writer's belief.
        expected: Revision,
        /// What is stored.
        found: Revision,
    },
    /// This process provably does not lead, or another process holds the store (says who).
    #[error("not the owner of the store: {0}")]
    NotOwner(String),
    /// Provably nothing was written; the same may succeed later (locked, full, read-only, unreachable).
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It may or may not have been written: look it up with [`ClusterStore::outcome`].
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// What is stored cannot be right; says where. The process must not start or go on.
    #[error("corrupt store at {place}: {what}")]
    Corrupt {
        /// Which file, table, row or column.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// Cannot be served as configured or by this build: an unknown schema version, another shard count, another cluster, a path
    /// at which no file can be.
    #[error("{0}")]
    Incompatible(String),
}

/// What an operator can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Waiting may help.
    Retry,
    /// Must be looked up.
    Unknown,
    /// The leadership or the process ends.
    Fatal,
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Unavailable(_) => Class::Retry,
            Self::Unknown(_) => Class::Unknown,
            Self::Conflict { .. } | Self::NotOwner(_) | Self::Corrupt { .. } | Self::Incompatible(_) => Class::Fatal,
        }
    }
}

/// Where the committed [`ClusterState`] lives. Every method is one round trip; callers bound the time.
///
/// Dropping a returned future must be safe: the write then has an unknown outcome.
#[async_trait]
pub trait ClusterStore: Send + Sync + 'static {
    /// Reads the state linearizably; on an empty store, the empty state of `cluster` with `shard_count` shards at revision 0.
    ///
    /// # Errors
    /// [`Error::Incompatible`] when the store has another cluster name or shard count; [`Error::Corrupt`] with the place.
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error>;

    /// Writes all of `write` or nothing, only if the store is at `write.expected` and this process owns it.
    ///
    /// # Errors
    /// Three kinds: refused (nothing written), unavailable (nothing written), unknown.
    async fn commit(&self, write: &Write) -> Result<(), Error>;

    /// Whether the write tagged `tag` is the last one stored. Asked only by its writer, before it writes anything else.
    ///
    /// `false` is a promise: the write is not stored and never will be, whatever of it is still under way. A store that cannot see that by itself
    /// (an answer that was lost, a transaction that its server still holds) fences the write off before it answers, or fails with
    /// [`Error::Unavailable`] and is asked again.
    ///
    /// # Errors
    /// As [`ClusterStore::load`]; `Unknown` is not an answer to this question.
    async fn outcome(&self, tag: u128) -> Result<bool, Error>;

    /// R7: confirms, by a linearizable check that begins now, that this process still owns the store.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when it provably does not; anything else when it could not be confirmed.
    async fn confirm_leadership(&self) -> Result<(), Error>;

    /// Forgets history that nothing needs, up to and including `upto`. A failure delays nothing.
    ///
    /// # Errors
    /// Whatever the store said.
    async fn compact(&self, upto: Revision) -> Result<(), Error>;
}

/// Opens the store of `cluster` at `url` and takes ownership of it. `address` is where this process will be reached over
/// gRPC; a second process that finds the store taken shows it.
///
/// # Errors
/// [`Error::Incompatible`] when the backend was not built in (names the cargo feature), otherwise as
/// [`SqliteClusterStore::open`] and [`PostgresClusterStore::open`].
pub async fn open(
    url: &StoreUrl,
    cluster: &ClusterName,
    address: Option<&str>,
) -> Result<Arc<dyn ClusterStore>, Error> {
    // Some of it is of use only to a backend that may not be built in.
    let _ = (cluster, address);
    match url {
        StoreUrl::Memory => Ok(Arc::new(MemoryClusterStore::new())),
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            let options = sqlite::Options { address: address.map(str::to_owned), ..sqlite::Options::default() };
            Ok(Arc::new(SqliteClusterStore::open_with(path, options).await?))
        }
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => Err(Error::Incompatible(format!(
            "{url}: this build has no SQLite store; build it with the cargo feature `sqlite`"
        ))),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let options = postgres::Options { address: address.map(str::to_owned), ..postgres::Options::default() };
            Ok(Arc::new(PostgresClusterStore::open_with(url, cluster, options).await?))
        }
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres(_) => Err(Error::Incompatible(format!(
            "{url}: this build has no PostgreSQL store; build it with the cargo feature `postgres`"
        ))),
        StoreUrl::Redis(_) => Err(Error::Incompatible(format!(
            "{url}: Redis keeps oplogs, not a manager's state; use sqlite:, postgres: or etcd:"
        ))),
        StoreUrl::Etcd(_) => {
            Err(Error::Incompatible(format!("{url}: on etcd a manager must be elected before it owns the store")))
        }
    }
}

/// Refuses to serve a store that was written for another cluster or shard count (case 37), saying both.
fn check_head(stored: &Head, cluster: &ClusterName, shard_count: ShardCount) -> Result<(), Error> {
    if stored.cluster != *cluster {
        return Err(Error::Incompatible(format!(
            "the store belongs to cluster {:?}, this process is configured for cluster {:?}",
            stored.cluster.as_str(),
            cluster.as_str()
        )));
    }
    if stored.shard_count != shard_count {
        return Err(Error::Incompatible(format!(
            "the store of cluster {:?} has shard_count {}, this process is configured for {shard_count}",
            cluster.as_str(),
            stored.shard_count
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_store_that_is_built_in_opens_by_its_url() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = ClusterName::new("c").unwrap();
        let count = ShardCount::new(4).unwrap();
        let memory = open(&StoreUrl::Memory, &cluster, None).await.unwrap();
        assert_eq!(memory.load(&cluster, count).await.unwrap(), ClusterState::empty(cluster.clone(), count));
        let sqlite = open(&StoreUrl::Sqlite(dir.path().join("manager.db")), &cluster, None).await;
        #[cfg(feature = "sqlite")]
        assert_eq!(sqlite.unwrap().load(&cluster, count).await.unwrap(), ClusterState::empty(cluster, count));
        #[cfg(not(feature = "sqlite"))]
        match sqlite {
            Err(Error::Incompatible(why)) => assert!(why.contains("cargo feature `sqlite`"), "{why}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened without its backend"),
        }
    }
}
