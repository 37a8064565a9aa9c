//! Reads a store from outside the fence, and proves or refutes what the fence promises.
//!
//! An [`OplogAudit`] is one backend's way to its records, entries and chunks, without a claim and without a write; a [`Reader`] goes
//! through both layers; [`check`] has the rules, once for all of them. Executors may be at work meanwhile: each [`Page`] is one moment of the
//! store, and the walk through an oplog begins again when the oplog is deleted, or its store replaced, under it.

mod check;
mod layers;
mod open;
mod report;
mod walk;

pub use check::{Options, check};
pub use layers::{ChunkPart, Layers, Part, Reader, Unread};
pub use open::open;
pub use report::{Finding, Kind, Report, Rule, Usage};

use super::layers::Chunk;
use super::{Entry, EntryIndex, Error, Writer};
use async_trait::async_trait;
use leasehold_model::{AgentId, ShardId};

/// What an oplog is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its agent is not recovered by the next owner.
    Suspended,
    /// Its agent is.
    Running,
    /// Its entries are gone, its record stays.
    Deleted,
}

/// An oplog's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Whose oplog.
    pub agent: AgentId,
    /// The shard under which it was claimed last.
    pub shard: ShardId,
    /// Who may write.
    pub writer: Writer,
    /// What it is for.
    pub standing: Standing,
    /// The first index of the present life.
    pub base: EntryIndex,
    /// Entries of this life before it are in the archive layer.
    pub primary_from: EntryIndex,
    /// The next index, as a claim would be told.
    pub next: EntryIndex,
    /// The newest snapshot, as a claim would be told.
    pub snapshot: Option<EntryIndex>,
    /// What only this backend keeps beside a record, and is wrong.
    pub faults: Vec<String>,
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The entry; its body is empty in a page of [`Depth::Heads`].
    pub entry: Entry,
    /// How many bytes the body has.
    pub size: u64,
}

/// What is stored there cannot be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Which entry; `None`: the record.
    pub index: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// A part of one oplog, all of it as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Its record.
    pub record: Result<Record, Damage>,
    /// Entries of the primary layer, ascending.
    pub entries: Vec<Result<Read, Damage>>,
    /// Where the next page begins; `None`: this was the last one.
    pub more: Option<EntryIndex>,
    /// Which of the files that follow each other was read; 0 where there is but one.
    pub source: u64,
}

/// A part of one oplog's list of chunks, all of it as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPage {
    /// The first index of the present life.
    pub base: EntryIndex,
    /// Where the list ends.
    pub primary_from: EntryIndex,
    /// Chunks from the one that holds the index asked for on, ascending.
    pub chunks: Vec<Result<Chunk, Damage>>,
    /// See [`Page::source`].
    pub source: u64,
}

/// How much of an entry is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// All but the body.
    Heads,
    /// All.
    Bodies,
}

/// One store, read without a fence. Only [`OplogAudit::clear`] writes.
#[async_trait]
pub trait OplogAudit: Send + Sync + 'static {
    /// Names the store, without a password.
    fn place(&self) -> String;

    /// What is wrong with the store as a whole.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it cannot be read; [`Error::Corrupt`] when it is none.
    async fn faults(&self) -> Result<Vec<String>, Error>;

    /// How many oplogs there are about, deleted ones included.
    ///
    /// # Errors
    /// As [`OplogAudit::faults`].
    async fn count(&self) -> Result<u64, Error>;

    /// Names of oplogs after `after`, ascending by their bytes, at most `limit`, deleted ones included.
    ///
    /// # Errors
    /// As [`OplogAudit::faults`].
    async fn names(&self, after: Option<&str>, limit: u32) -> Result<Vec<String>, Error>;

    /// A page of the primary layer of the oplog called `name` from index `from` on; `None` when there is none.
    ///
    /// # Errors
    /// As [`OplogAudit::faults`]; what is wrong with the record or an entry is in the page.
    async fn page(&self, name: &str, from: EntryIndex, depth: Depth, limit: u32) -> Result<Option<Page>, Error>;

    /// At most `limit` chunks of the oplog called `name`; `None` when there is none.
    ///
    /// # Errors
    /// As [`OplogAudit::faults`]; what is wrong with a chunk's place in the list is in the page.
    async fn chunks(&self, name: &str, from: EntryIndex, limit: u32) -> Result<Option<ChunkPage>, Error>;

    /// Where the oplog called `name` finds each of these idempotency keys, in their order.
    ///
    /// # Errors
    /// As [`OplogAudit::faults`].
    async fn positions(&self, name: &str, keys: &[&str]) -> Result<Vec<Option<EntryIndex>>, Error>;

    /// Puts `to` into the record of `name` if it holds `found`; whether it did. Touches no entry.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: nothing was written. [`Error::Unknown`]: it may have been.
    async fn clear(&self, name: &str, found: Writer, to: Writer) -> Result<bool, Error>;

    /// How many calls at once are of use.
    fn width(&self) -> usize {
        1
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
impl Standing {
    /// As every backend numbers it.
    pub(super) fn numbered(number: i64) -> Result<Self, String> {
        match number {
            0 => Ok(Self::Suspended),
            1 => Ok(Self::Running),
            2 => Ok(Self::Deleted),
            other => Err(format!("state {other}: 0..=2 make sense")),
        }
    }
}

/// Where each of `keys` was found, in their order.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn in_order(
    keys: &[&str],
    found: impl Iterator<Item = Result<(String, EntryIndex), Error>>,
) -> Result<Vec<Option<EntryIndex>>, Error> {
    let found = found.collect::<Result<std::collections::HashMap<_, _>, _>>()?;
    Ok(keys.iter().map(|key| found.get(*key).copied()).collect())
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
impl Damage {
    /// Of the record.
    pub(super) fn record(error: &Error) -> Self {
        Self { index: None, what: told(error) }
    }

    /// Of the entry at `index`.
    pub(super) fn entry(index: u64, error: &Error) -> Self {
        Self { index: Some(index), what: told(error) }
    }
}

/// Without the place, which a finding names by itself.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
fn told(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.clone(),
        Error::Fenced { .. }
        | Error::IndexConflict { .. }
        | Error::Unavailable(_)
        | Error::Unknown(_)
        | Error::Invalid(_) => error.to_string(),
    }
}
