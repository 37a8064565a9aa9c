//! The manager's store.

use async_trait::async_trait;
use leasehold_model::command::Changes;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};

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
    /// Cannot be served by this build: an unknown schema version, another shard count, another cluster.
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
