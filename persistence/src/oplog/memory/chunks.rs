//! The archive layer of oplogs in memory.

use super::{Call, MemoryOplogStore, Oplog, open};
use crate::oplog::layers::{Chunk, ChunkStore, Content, Found, Listed, Listing, MAX_CHUNKS_PER_READ, Page, check_move};
use crate::oplog::{EntryIndex, Error, Writer};
use async_trait::async_trait;
use leasehold_model::AgentId;

fn move_out(oplog: &mut Oplog, chunk: Chunk) -> Result<(), Error> {
    if oplog.chunks.contains(&chunk) {
        return Ok(());
    }
    let (first, last, primary_from) = (chunk.first, chunk.last, oplog.primary_from());
    if first.0 != primary_from {
        return Err(Error::IndexConflict { expected: first, found: EntryIndex(primary_from) });
    }
    if last >= oplog.next() {
        return Err(Error::IndexConflict { expected: EntryIndex(last.0 + 1), found: oplog.next() });
    }
    oplog.entries.retain(|entry| entry.index > last);
    oplog.chunks.push(chunk);
    Ok(())
}

impl Chunk {
    fn listed(&self) -> Listed {
        let object = match &self.content {
            Content::Inline(_) => None,
            Content::Blob(path) => Some(path.clone()),
        };
        Listed { first: self.first, last: self.last, object }
    }
}

#[async_trait]
impl ChunkStore for MemoryOplogStore {
    async fn move_out(&self, agent: &AgentId, writer: Writer, chunk: Chunk) -> Result<(), Error> {
        check_move(&chunk)?;
        self.perform(Call::MoveOut, |oplogs| move_out(open(oplogs, agent, writer)?, chunk)).await
    }

    async fn page(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Page, Error> {
        self.perform(Call::Page, |oplogs| Ok(open(oplogs, agent, writer)?.page(from, limit))).await
    }

    async fn chunks(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Chunk>, Error> {
        self.perform(Call::Chunks, |oplogs| {
            let chunks = open(oplogs, agent, writer)?.chunks.iter().filter(|chunk| chunk.last >= from);
            Ok(chunks.take(limit.min(MAX_CHUNKS_PER_READ) as usize).cloned().collect())
        })
        .await
    }

    async fn look_up(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Found>, Error> {
        self.perform(Call::LookUp, |oplogs| Ok(open(oplogs, agent, writer)?.look_up(key))).await
    }

    async fn listing(&self, agent: &AgentId, first: EntryIndex, last: EntryIndex) -> Result<Option<Listing>, Error> {
        self.perform(Call::Listing, |oplogs| {
            Ok(oplogs.get(agent).map(|oplog| Listing {
                writer: oplog.writer,
                primary_from: EntryIndex(oplog.primary_from()),
                chunks: oplog
                    .chunks
                    .iter()
                    .filter(|chunk| (first..=last).contains(&chunk.first))
                    .map(Chunk::listed)
                    .collect(),
            }))
        })
        .await
    }
}
