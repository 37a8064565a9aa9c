//! Reading an oplog through both layers, without a fence.
//!
//! Entries never change, and go one way only: so a walk that asks at each step where the layers meet sees each of them once, whatever is
//! moved meanwhile.

use super::{ChunkPage, Damage, Depth, OplogAudit, Page, Read, Record};
use crate::oplog::layers::blobs::Blobs;
use crate::oplog::layers::{Chunk, Content, chunk};
use crate::oplog::{EntryIndex, Error};

/// Chunks that are read at a time.
const CHUNKS: u32 = 4;

/// How often a step is begun anew because the oplog changed its life under it.
const ATTEMPTS: u32 = 16;

/// A store, and the blob storage of its archive, if that is at hand.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    /// Indexed storage.
    pub store: &'a dyn OplogAudit,
    /// Blob storage.
    pub blobs: Option<&'a dyn Blobs>,
}

impl std::fmt::Debug for Layers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layers").field("store", &self.store.place()).finish_non_exhaustive()
    }
}

/// Why a chunk's entries are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// They are damaged or lost.
    Damaged(String),
    /// Blob storage is not at hand.
    Away(String),
}

/// A chunk in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPart {
    /// Its first entry.
    pub first: EntryIndex,
    /// Its last entry.
    pub last: EntryIndex,
    /// Bytes of it that are stored, if they were read.
    pub stored: u64,
    /// Its entries, from where the step began.
    pub entries: Result<Vec<Read>, Unread>,
}

/// What one step of a [`Reader`] found: chunks, or entries of the primary layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The record, of the same moment as the entries.
    pub record: Result<Record, Damage>,
    /// Of the archive layer.
    pub chunks: Vec<Result<ChunkPart, Damage>>,
    /// What the list of chunks lacks or has too much, at which index.
    pub seam: Option<Damage>,
    /// Of the primary layer.
    pub entries: Vec<Result<Read, Damage>>,
    /// Where the next part begins; `None`: this was the last one.
    pub more: Option<EntryIndex>,
    /// See [`Page::source`].
    pub source: u64,
}

impl Part {
    /// The life that it belongs to: parts of different ones do not belong together.
    #[must_use]
    pub fn life(&self) -> (u64, Option<EntryIndex>) {
        (self.source, self.record.as_ref().ok().map(|record| record.base))
    }
}

/// A walk along one oplog.
#[derive(Debug)]
pub struct Reader<'a> {
    layers: Layers<'a>,
    name: &'a str,
    depth: Depth,
    next: Option<EntryIndex>,
    /// Where the layers met when they were asked last.
    archived_before: EntryIndex,
}

impl<'a> Layers<'a> {
    /// A store whose blob storage, if it has any, is not at hand.
    #[must_use]
    pub fn indexed(store: &'a dyn OplogAudit) -> Self {
        Self { store, blobs: None }
    }

    /// Reads the oplog called `name` from index `from` on.
    #[must_use]
    pub fn read(self, name: &'a str, from: EntryIndex, depth: Depth) -> Reader<'a> {
        Reader { layers: self, name, depth, next: Some(from), archived_before: EntryIndex(0) }
    }

    async fn part(
        &self,
        chunk: Result<Chunk, Damage>,
        at: EntryIndex,
        depth: Depth,
        record: &Record,
    ) -> Result<ChunkPart, Damage> {
        let Chunk { first, last, content } = chunk?;
        let bytes = match content {
            Content::Inline(bytes) => Ok(bytes),
            Content::Blob(path) => self.object(&path).await,
        };
        let stored = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let entries = bytes.and_then(|bytes| {
            let decoded = chunk::decode(&record.agent, (first, last), &bytes);
            decoded.map_err(|error| Unread::Damaged(format!("chunk {}..={}: {error}", first.0, last.0)))
        });
        let entries = entries.map(|entries| {
            let wanted = entries.into_iter().filter(|entry| entry.index >= at);
            let read = wanted.map(|mut entry| {
                let size = entry.entry.body.len() as u64;
                if depth == Depth::Heads {
                    entry.entry.body = Vec::new();
                }
                Read { entry, size }
            });
            read.collect()
        });
        Ok(ChunkPart { first, last, stored, entries })
    }

    async fn object(&self, path: &str) -> Result<Vec<u8>, Unread> {
        let Some(blobs) = self.blobs else {
            return Err(Unread::Away(format!(
                "object {path:?} is in blob storage, which was not named: set oplog.archive.url"
            )));
        };
        match blobs.get(path).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(Unread::Damaged(format!("archive {}: object {path:?} is not there", blobs.place()))),
            Err(error) => Err(Unread::Away(error.to_string())),
        }
    }
}

impl Reader<'_> {
    /// The next part, with at most `limit` entries of the primary layer; `None`: the oplog has ended, or there is none. Whoever gets parts of
    /// different lives begins anew.
    ///
    /// # Errors
    /// As [`OplogAudit::page`].
    pub async fn part(&mut self, limit: u32) -> Result<Option<Part>, Error> {
        let Some(from) = self.next else { return Ok(None) };
        let Layers { store, .. } = self.layers;
        for _ in 0..ATTEMPTS {
            // Where the archive layer is read entries of the primary one are of no use.
            let limit = if from < self.archived_before { 1 } else { limit };
            let Some(page) = store.page(self.name, from, self.depth, limit).await? else { return Ok(None) };
            let record = match &page.record {
                Ok(record) if from.max(record.base) < record.primary_from => record,
                Ok(_) | Err(_) => {
                    self.next = page.more;
                    let Page { record, entries, more, source } = page;
                    return Ok(Some(Part { record, chunks: Vec::new(), seam: None, entries, more, source }));
                }
            };
            self.archived_before = record.primary_from;
            let at = from.max(record.base);
            let Some(listed) = store.chunks(self.name, at, CHUNKS).await? else { return Ok(None) };
            if (listed.base, listed.source) != (record.base, page.source) {
                continue;
            }
            let (seam, next) = self.seam(at, &listed);
            let mut chunks = Vec::with_capacity(listed.chunks.len());
            for chunk in listed.chunks {
                chunks.push(self.layers.part(chunk, at, self.depth, record).await);
            }
            self.next = Some(next);
            let Page { record, source, .. } = page;
            return Ok(Some(Part { record, chunks, seam, entries: Vec::new(), more: self.next, source }));
        }
        Err(Error::Unavailable(format!(
            "{}: oplog {:?} is deleted again and again while it is read",
            store.place(),
            self.name
        )))
    }

    /// Where the walk goes on after these chunks, and what is wrong if the list ends with them at another place than the primary layer begins.
    fn seam(&self, at: EntryIndex, listed: &ChunkPage) -> (Option<Damage>, EntryIndex) {
        let past = |chunk: &Result<Chunk, Damage>| match chunk {
            Ok(chunk) => chunk.last.0.saturating_add(1),
            Err(damage) => damage.index.map_or(at.0, |last| last.saturating_add(1)),
        };
        let (end, primary_from) = (listed.chunks.last().map_or(at.0, past), listed.primary_from.0);
        let whole = listed.chunks.len() < CHUNKS as usize || end >= primary_from;
        if !whole {
            return (None, EntryIndex(end.max(at.0 + 1)));
        }
        let what = format!("the list of chunks ends before {end}, the primary layer begins at {primary_from}");
        let seam = (end != primary_from).then_some(Damage { index: Some(end), what });
        (seam, EntryIndex(end.max(primary_from)))
    }
}
