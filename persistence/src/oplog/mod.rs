//! The executors' store: one oplog per agent, guarded by a record of who may write it (rules F1-F7).
//!
//! An oplog's life, in every backend: a claim creates the record, appends follow it, a deletion removes the entries
//! and leaves the record as a tombstone. A claim at the same or a higher epoch begins a new life, whose indexes go on
//! where the old one's ended: no index is ever used twice, so a write left over from the old life can never land in
//! the new one. Until then a deleted oplog answers its own writer `Fenced { recorded: None }`, others
//! `Fenced { recorded: Some(newer) }`; deleting it again is fine.

pub mod audit;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod call;
mod gate;
pub mod layers;
pub mod memory;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod warning;

pub use gate::Gate;
pub use leasehold_model::oplog::Writer;
pub use memory::MemoryOplogStore;
pub use open::{Opened, open};
#[cfg(feature = "postgres")]
pub use postgres::PostgresOplogStore;
#[cfg(feature = "redis")]
pub use redis::RedisOplogStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteOplogStore;
pub use warning::Warning;

use async_trait::async_trait;
use leasehold_model::{AgentId, ShardEpoch, ShardId};

/// Position of an entry in its oplog, from 1, without gaps: below `i64::MAX`. A deleted oplog's are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryIndex(pub u64);

/// What an entry is, as far as a store must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// An invocation and its outcome.
    Invocation,
    /// The whole state: recovery starts at the newest of these.
    Snapshot,
}

/// An entry to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// What it is.
    pub kind: EntryKind,
    /// The idempotency key of the invocation, if it had one: 1 to [`MAX_KEY_BYTES`] bytes, unique in its oplog.
    pub key: Option<String>,
    /// Opaque to the store, at most 1 MiB.
    pub body: Vec<u8>,
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub index: EntryIndex,
    /// Who wrote it.
    pub writer: Writer,
    /// What was appended.
    pub entry: NewEntry,
}

/// A successful claim: the oplog as the new owner finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    /// The index that the next append must expect; 1 for a new oplog, after a deletion where the deleted one ended.
    pub next: EntryIndex,
    /// The newest snapshot, where replay starts; `None`: from the first entry.
    pub snapshot: Option<EntryIndex>,
}

/// An append of one agent's entries, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// Whose oplog.
    pub agent: AgentId,
    /// Who writes.
    pub writer: Writer,
    /// The index of the first entry.
    pub expected: EntryIndex,
    /// At least one, at most [`MAX_ENTRIES_PER_APPEND`].
    pub entries: Vec<NewEntry>,
}

/// The most entries in one append.
pub const MAX_ENTRIES_PER_APPEND: usize = 256;

/// The longest idempotency key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// The longest body of an entry, in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// What became of a call to the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The record names another writer, or is absent under an open oplog. Nothing was written.
    #[error("fenced: recorded {recorded:?}, offered {offered:?}")]
    Fenced {
        /// Who may write; `None` when the record is absent.
        recorded: Option<Writer>,
        /// Who tried.
        offered: Writer,
    },
    /// The oplog's next index is another. Nothing was written.
    #[error("the next index is {found:?}, not {expected:?}")]
    IndexConflict {
        /// The writer's belief.
        expected: EntryIndex,
        /// What is stored.
        found: EntryIndex,
    },
    /// Provably nothing was written; the same may succeed later (locked, full, unreachable).
    #[error("the oplog store is unavailable: {0}")]
    Unavailable(String),
    /// It may or may not have been written: read back before doing anything else (F7).
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// What is stored cannot be right; says where.
    #[error("corrupt oplog at {place}: {what}")]
    Corrupt {
        /// Which agent and entry.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The call itself is wrong: a bound was exceeded, or the key is taken. Nothing was written.
    #[error("{0}")]
    Invalid(String),
}

impl Append {
    /// The index after the last entry.
    #[must_use]
    pub fn end(&self) -> EntryIndex {
        EntryIndex(self.expected.0.saturating_add(self.entries.len() as u64))
    }

    /// The bounds that every backend keeps, before it touches storage.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the bound and what was given.
    pub fn check(&self) -> Result<(), Error> {
        check_writer(self.writer)?;
        let count = self.entries.len();
        if count == 0 || count > MAX_ENTRIES_PER_APPEND {
            return Err(Error::Invalid(format!(
                "append of {count} entries: 1..={MAX_ENTRIES_PER_APPEND} are accepted"
            )));
        }
        if self.expected.0 == 0 || self.end().0 > i64::MAX as u64 {
            return Err(Error::Invalid(format!("append at index {}: 1..{} are accepted", self.expected.0, i64::MAX)));
        }
        let mut keys = std::collections::BTreeSet::new();
        for entry in &self.entries {
            if entry.body.len() > MAX_BODY_BYTES {
                let given = entry.body.len();
                return Err(Error::Invalid(format!("entry of {given} bytes: at most {MAX_BODY_BYTES} are accepted")));
            }
            let Some(key) = &entry.key else { continue };
            if key.is_empty() || key.len() > MAX_KEY_BYTES || key.contains('\0') {
                let given = key.len();
                return Err(Error::Invalid(format!(
                    "idempotency key of {given} bytes: 1..={MAX_KEY_BYTES} without NUL are accepted"
                )));
            }
            if !keys.insert(key) {
                return Err(key_taken(key));
            }
        }
        Ok(())
    }
}

/// Epoch 0 is "never owned": nobody writes under it.
fn check_writer(writer: Writer) -> Result<(), Error> {
    if writer.epoch == ShardEpoch::NEVER_OWNED {
        return Err(Error::Invalid("epoch 0 owns nothing: 1..=9223372036854775807 are accepted".into()));
    }
    Ok(())
}

/// A database's integers are signed: nothing stored is beyond.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The same words from every backend.
fn key_taken(key: &str) -> Error {
    Error::Invalid(format!("idempotency key {key:?} is in the oplog already"))
}

/// Where oplogs live. Shared by all executors of a cluster.
///
/// Dropping a returned future must be safe: an append then has an unknown outcome.
#[async_trait]
pub trait OplogStore: Send + Sync + 'static {
    /// F1: takes the record by one conditional write, and marks the agent as running.
    ///
    /// # Errors
    /// [`Error::Fenced`] when the record is higher, or equal with another executor. A deleted oplog keeps its
    /// record (F4), so that an older owner cannot bring it back (case 30).
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error>;

    /// F3: appends all entries or none, checked against the record and the expected index in the same transaction.
    /// Returns the next index. Concurrent appends of several agents are grouped into one durable write.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::IndexConflict`]: nothing written. [`Error::Unknown`]: read back (F7).
    async fn append(&self, append: Append) -> Result<EntryIndex, Error>;

    /// Entries from `from` on, ascending, at most `limit`; fenced like a write, so that a stale owner notices on reads too (case 8).
    ///
    /// # Errors
    /// [`Error::Fenced`] when the record is not `writer`'s.
    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error>;

    /// The entry with this idempotency key, if there is one; fenced like [`OplogStore::read`].
    ///
    /// # Errors
    /// As [`OplogStore::read`].
    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error>;

    /// F5: removes every entry before `expected`, the next index, keeping the record. Fenced. Deleting what is deleted is
    /// fine. A deletion that comes late, after a new life has begun to be written, finds another index and removes nothing of it (case 28).
    ///
    /// # Errors
    /// As [`OplogStore::append`]; fenced removes nothing.
    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error>;

    /// Marks the agent as not running: it is not recovered by the next owner. Fenced.
    ///
    /// # Errors
    /// As [`OplogStore::append`].
    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error>;

    /// Agents of `shard` that are marked as running, after `after`, ascending, at most `limit`. Not fenced.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error>;

    /// Agents of `shard` that are not deleted, after `after`, ascending, at most `limit`, each with whether it is marked as
    /// running. Not fenced.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error>;

    /// Who may write `agent`'s oplog. Not fenced.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error>;
}
