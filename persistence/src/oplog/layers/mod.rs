//! The archive layer: older entries, in compressed chunks.
//!
//! ```text
//!  index:   first            primary_from            next
//!             │  chunk  chunk  │ entry entry entry entry │
//!             └─ archive layer ┘└──── primary layer ─────┘
//! ```
//!
//! An oplog's chunks are a list without gaps from the first index of its life on; where it ends the primary layer begins
//! (`primary_from`). The list and that number change in one fenced write: so an entry is in one of the two, and which one it is does not
//! depend on when it is asked for. Chunks are never changed; they go with the agent.
//!
//! A chunk's content stands in the list itself, or in blob storage, where nothing can be fenced: an object is put there first, under a
//! name that nobody else uses, and exists for readers once the list names it. What no list names is swept away later ([`Archive::sweep_agent`]).
//!
//! [`ChunkStore`] is what a backend does, [`Layered`] what the agents see.

pub mod blobs;
mod cache;
pub mod chunk;
mod layered;
pub mod names;
#[cfg(any(feature = "files", feature = "s3"))]
pub mod objects;
mod reading;
mod sweep;

pub use layered::{Archive, ArchiveTo, Layered, Moved, Upto};
pub use sweep::Swept;

use super::{Entry, EntryIndex, Error, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::AgentId;

/// The most chunks that one call of a store returns.
pub const MAX_CHUNKS_PER_READ: u32 = 16;

/// Where the bytes of a chunk are; [`chunk`] says what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// In the list itself.
    Inline(Vec<u8>),
    /// In the object of blob storage that has this path (see [`names::ObjectPath`]).
    Blob(String),
}

/// A chunk in the list: the entries `first..=last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its first entry.
    pub first: EntryIndex,
    /// Its last entry.
    pub last: EntryIndex,
    /// Where its bytes are.
    pub content: Content,
}

/// A chunk's place in the list, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its first entry.
    pub first: EntryIndex,
    /// Its last entry.
    pub last: EntryIndex,
    /// The path of the object that holds its bytes; `None`: they are in the list.
    pub object: Option<String>,
}

/// What [`ChunkStore::page`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The first index of the agent's present life.
    pub first: EntryIndex,
    /// Entries before it are in the archive layer, all others in the primary one.
    pub primary_from: EntryIndex,
    /// Entries of the primary layer, ascending and without gaps, from the greater of `primary_from` and what was asked for.
    pub entries: Vec<Entry>,
}

/// What [`ChunkStore::look_up`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// An entry of the primary layer.
    Entry(Entry),
    /// It stands at this index in the archive layer.
    Archived(EntryIndex),
}

/// What [`ChunkStore::listing`] found: one moment of the record and a part of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Who may write.
    pub writer: Writer,
    /// Where the primary layer begins. It never goes down, not even when the agent is deleted.
    pub primary_from: EntryIndex,
    /// The chunks of the agent's present life whose `first` is in the range asked for, ascending.
    pub chunks: Vec<Listed>,
}

/// Indexed storage of the archive layer: what an [`OplogStore`] does beside, so that [`Layered`] can move entries. Its own
/// [`OplogStore::read`] and [`OplogStore::find`] refuse where entries of the archive would be needed.
///
/// Keys of archived entries stay unique and are found; a claim's newest snapshot may be an archived one.
#[async_trait]
pub trait ChunkStore: OplogStore {
    /// Moves the entries of `chunk` out of the primary layer: lists the chunk and takes their bodies away, in one write that is
    /// fenced as an append is. Listing what is listed is fine, as after an unknown outcome.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`Error::IndexConflict`] when the primary layer does not begin with the chunk's first entry (`found` is where it
    /// begins), or has not its last one (`found` is the next index). Nothing was written.
    async fn move_out(&self, agent: &AgentId, writer: Writer, chunk: Chunk) -> Result<(), Error>;

    /// Where the layers of the oplog meet, and at most `limit` entries of the primary one. Fenced.
    ///
    /// # Errors
    /// As [`OplogStore::read`].
    async fn page(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Page, Error>;

    /// Chunks from the one that holds entry `from` on (or the first of this life, if that is later), ascending, at most `limit` and
    /// [`MAX_CHUNKS_PER_READ`]. Fenced.
    ///
    /// # Errors
    /// As [`OplogStore::read`].
    async fn chunks(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Chunk>, Error>;

    /// Where the entry with this idempotency key is. Fenced.
    ///
    /// # Errors
    /// As [`OplogStore::read`].
    async fn look_up(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Found>, Error>;

    /// The record and the chunks whose first entry is in `first..=last`, as of one moment. Not fenced. `None`: the oplog has no record.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    async fn listing(&self, agent: &AgentId, first: EntryIndex, last: EntryIndex) -> Result<Option<Listing>, Error>;
}

impl Page {
    /// The entries, if none of those asked for is in the archive layer.
    pub(super) fn primary_only(self, agent: &AgentId, from: EntryIndex) -> Result<Vec<Entry>, Error> {
        if from.max(self.first) < self.primary_from {
            Err(archived(agent, self.primary_from))
        } else {
            Ok(self.entries)
        }
    }
}

impl Found {
    /// The entry, if it is not in the archive layer.
    pub(super) fn primary_only(self, agent: &AgentId) -> Result<Entry, Error> {
        match self {
            Self::Entry(entry) => Ok(entry),
            Self::Archived(EntryIndex(at)) => Err(archived(agent, EntryIndex(at.saturating_add(1)))),
        }
    }
}

/// What a move came to, if its chunk is listed already: it was moved before, and that was not known.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(super) async fn moved_before(
    store: &dyn ChunkStore,
    (agent, writer): (&AgentId, Writer),
    chunk: &Chunk,
    outcome: Result<(), Error>,
) -> Result<(), Error> {
    if let Err(Error::IndexConflict { expected, found }) = &outcome
        && *expected == chunk.first
        && *found > chunk.last
    {
        let listed = store.chunks(agent, writer, chunk.first, 1).await?;
        if listed.first() == Some(chunk) {
            return Ok(());
        }
    }
    outcome
}

/// What a store answers by itself where entries of the archive layer would be needed.
fn archived(agent: &AgentId, primary_from: EntryIndex) -> Error {
    Error::Invalid(format!(
        "entries of {agent} before {} are in the archive layer: read them through it",
        primary_from.0
    ))
}

/// The bounds of a chunk that is to be moved, checked before storage is touched.
pub(super) fn check_move(chunk: &Chunk) -> Result<(), Error> {
    let (first, last) = (chunk.first.0, chunk.last.0);
    if first == 0 || last < first || last >= i64::MAX as u64 || last - first >= chunk::MAX_ENTRIES as u64 {
        return Err(Error::Invalid(format!(
            "chunk of the entries {first}..={last}: 1 to {} entries from 1 on are accepted",
            chunk::MAX_ENTRIES
        )));
    }
    Ok(())
}
