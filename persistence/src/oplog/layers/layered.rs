//! [`Layered`]: an oplog store with an archive layer beneath it.

use super::blobs::Blobs;
use super::cache::Cache;
use super::names::{ObjectName, ObjectPath};
use super::sweep::Swept;
use super::{Chunk, ChunkStore, Content, chunk};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, Error, NewEntry, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::{AgentId, ShardId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of the primary layer that are read at a time for a move.
const PAGE: u32 = 256;

/// Where new chunks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveTo {
    /// Into the list, in indexed storage.
    List,
    /// Into blob storage.
    Blobs,
}

/// What one move did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Entries moved; 0: there was nothing to do.
    pub entries: u64,
    /// Their bytes before compression.
    pub raw: u64,
    /// The bytes of the chunk.
    pub stored: u64,
    /// Where the primary layer begins now.
    pub primary_from: EntryIndex,
}

/// What an executor does with the archive layer. Every call may be dropped, and repeated.
#[async_trait]
pub trait Archive: Send + Sync + 'static {
    /// Moves the oldest entries of the primary layer that are before `upto`, one chunk of them, if there are at least `least`.
    ///
    /// # Errors
    /// As [`OplogStore::append`]. Each entry is in one of the layers all the same.
    async fn archive(&self, agent: &AgentId, shard: ShardId, writer: Writer, upto: Upto) -> Result<Moved, Error>;

    /// Removes the agent's objects that no list names and none ever will. Safe for anybody, at any time.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: some may be left, which a later sweep finds.
    async fn sweep_agent(&self, shard: ShardId, agent: &AgentId) -> Result<Swept, Error>;

    /// The same for all agents of a shard, deleted ones among them.
    ///
    /// # Errors
    /// As [`Archive::sweep_agent`].
    async fn sweep_shard(&self, shard: ShardId) -> Result<Swept, Error>;
}

/// Which entries a move may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upto {
    /// Those before this one.
    pub index: EntryIndex,
    /// None, unless there are this many.
    pub least: u64,
}

/// See the module's documentation. Cheap to make; one per process, for its cache.
pub struct Layered {
    pub(super) store: Arc<dyn ChunkStore>,
    pub(super) blobs: Option<Arc<dyn Blobs>>,
    to: ArchiveTo,
    pub(super) cache: Cache,
    /// Tells this process's objects apart.
    nonce: AtomicU64,
}

impl std::fmt::Debug for Layered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layered").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Layered {
    /// `store`, with new chunks in its list. What was once archived into blob storage cannot be read.
    #[must_use]
    pub fn in_list(store: Arc<dyn ChunkStore>) -> Self {
        Self { store, blobs: None, to: ArchiveTo::List, cache: Cache::default(), nonce: AtomicU64::new(0) }
    }

    /// The same, reading what was once archived into `blobs`.
    #[must_use]
    pub fn reading(self, blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs: Some(blobs), ..self }
    }

    /// `store`, with new chunks in `blobs`. What was archived into the list stays readable.
    #[must_use]
    pub fn in_blobs(store: Arc<dyn ChunkStore>, blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs: Some(blobs), to: ArchiveTo::Blobs, ..Self::in_list(store) }
    }

    /// Puts the bytes where chunks go; they exist for nobody yet.
    async fn put(
        &self,
        (agent, shard, writer): (&AgentId, ShardId, Writer),
        (first, last): (EntryIndex, EntryIndex),
        bytes: Vec<u8>,
    ) -> Result<Content, Error> {
        let Some(blobs) = self.blobs.as_ref().filter(|_| self.to == ArchiveTo::Blobs) else {
            return Ok(Content::Inline(bytes));
        };
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
        let path = ObjectPath { shard, agent: agent.clone(), name: ObjectName { first, last, writer, nonce } };
        let path = path.to_string();
        blobs.put(&path, bytes).await?;
        Ok(Content::Blob(path))
    }

    /// The oldest entries of the primary layer before `upto.index`, as many as fill a chunk, and where that layer begins.
    async fn oldest(&self, agent: &AgentId, writer: Writer, upto: Upto) -> Result<(Vec<Entry>, EntryIndex), Error> {
        let (mut oldest, mut raw, mut from) = (Vec::<Entry>::new(), 0, EntryIndex(1));
        loop {
            let page = self.store.page(agent, writer, from, PAGE).await?;
            let movable = upto.index.0.saturating_sub(page.primary_from.0);
            if oldest.is_empty() && movable < upto.least.max(1) {
                return Ok((oldest, page.primary_from));
            }
            let full = page.entries.len() == PAGE as usize;
            let begins = oldest.first().map(|entry| entry.index);
            // Somebody of this process has moved them meanwhile.
            if begins.is_some_and(|begins| begins != page.primary_from) {
                return Ok((Vec::new(), page.primary_from));
            }
            for entry in page.entries {
                if entry.index >= upto.index || raw >= chunk::TARGET_BYTES || oldest.len() >= chunk::MAX_ENTRIES {
                    return Ok((oldest, page.primary_from));
                }
                raw += chunk::raw_length(&entry.entry);
                from = EntryIndex(entry.index.0.saturating_add(1));
                oldest.push(entry);
            }
            if !full {
                return Ok((oldest, page.primary_from));
            }
        }
    }
}

/// Compresses beside the caller's thread: a chunk takes milliseconds.
async fn encoded(agent: &AgentId, first: EntryIndex, entries: Vec<(Writer, NewEntry)>) -> Result<Vec<u8>, Error> {
    let agent = agent.clone();
    let encode = move || chunk::encode(&agent, first, entries.iter().map(|(writer, entry)| (*writer, entry)));
    let encoded = tokio::task::spawn_blocking(encode).await;
    encoded.map_err(|error| Error::Unavailable(format!("a chunk could not be compressed: {error}")))
}

#[async_trait]
impl Archive for Layered {
    async fn archive(&self, agent: &AgentId, shard: ShardId, writer: Writer, upto: Upto) -> Result<Moved, Error> {
        let (oldest, primary_from) = self.oldest(agent, writer, upto).await?;
        let Some((first, last)) = oldest.first().zip(oldest.last()).map(|(first, last)| (first.index, last.index))
        else {
            return Ok(Moved { entries: 0, raw: 0, stored: 0, primary_from });
        };
        let raw = oldest.iter().map(|entry| chunk::raw_length(&entry.entry) as u64).sum();
        let entries = oldest.len() as u64;
        let parts = oldest.into_iter().map(|entry| (entry.writer, entry.entry)).collect();
        let bytes = encoded(agent, first, parts).await?;
        let stored = bytes.len() as u64;
        let content = self.put((agent, shard, writer), (first, last), bytes).await?;
        self.store.move_out(agent, writer, Chunk { first, last, content }).await?;
        Ok(Moved { entries, raw, stored, primary_from: EntryIndex(last.0.saturating_add(1)) })
    }

    async fn sweep_agent(&self, shard: ShardId, agent: &AgentId) -> Result<Swept, Error> {
        self.sweep(&super::names::agent_folder(shard, agent)).await
    }

    async fn sweep_shard(&self, shard: ShardId) -> Result<Swept, Error> {
        self.sweep(&super::names::shard_folder(shard)).await
    }
}

#[async_trait]
impl OplogStore for Layered {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        self.store.claim(agent, shard, writer).await
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        self.store.append(append).await
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.read_through(agent, writer, from, limit).await
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        self.find_through(agent, writer, key).await
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        self.store.delete(agent, writer, expected).await
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        self.store.suspend(agent, writer).await
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        self.store.running(shard, after, limit).await
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        self.store.agents(shard, after, limit).await
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        self.store.recorded(agent).await
    }
}
