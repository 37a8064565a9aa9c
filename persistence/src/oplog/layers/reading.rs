//! Reading through both layers. Each step asks the store where the layers meet, under the fence; chunks never change. So a move under way
//! changes where an entry is read, not whether.

use super::cache::Entries;
use super::{Chunk, Content, Found, Layered, MAX_CHUNKS_PER_READ, Page, chunk};
use crate::oplog::{Entry, EntryIndex, Error, Writer};
use futures::{StreamExt, TryStreamExt};
use leasehold_model::AgentId;
use std::sync::Arc;

/// Objects that are fetched at a time.
const FETCHES: usize = 8;

/// How often a read begins anew because the agent was deleted, and began another life, under it.
const ATTEMPTS: u32 = 5;

impl Layered {
    pub(super) async fn read_through(
        &self,
        agent: &AgentId,
        writer: Writer,
        from: EntryIndex,
        limit: u32,
    ) -> Result<Vec<Entry>, Error> {
        for _ in 0..ATTEMPTS {
            let page = self.store.page(agent, writer, from, limit).await?;
            let begin = from.max(page.first);
            if begin >= page.primary_from {
                return Ok(page.entries);
            }
            let mut found = Vec::new();
            if self.archived((agent, writer), (begin, &page), limit as usize, &mut found).await? {
                let left = limit as usize - found.len();
                found.extend(page.entries.into_iter().take(left));
                return Ok(found);
            }
        }
        Err(Error::Unavailable(format!("{agent} was deleted and began anew several times while it was read")))
    }

    /// Entries of the archive layer from `begin` on, up to the primary one or to `limit`. False: they belong to a life that is over.
    async fn archived(
        &self,
        (agent, writer): (&AgentId, Writer),
        (begin, page): (EntryIndex, &Page),
        limit: usize,
        found: &mut Vec<Entry>,
    ) -> Result<bool, Error> {
        let (mut at, mut ahead) = (begin, 1);
        while at < page.primary_from && found.len() < limit {
            let chunks = match self.cache.find(agent, at) {
                Some(chunk) => vec![chunk],
                None => {
                    let listed = self.store.chunks(agent, writer, at, ahead).await?;
                    // One was not enough: the next ones may be as small.
                    ahead = MAX_CHUNKS_PER_READ;
                    self.fetched(agent, listed).await?
                }
            };
            let before = at;
            for entries in &chunks {
                let holds = entries.first().is_some_and(|first| first.index <= at);
                let Some(last) = entries.last().filter(|last| holds && last.index >= at) else { break };
                let room = limit - found.len();
                found.extend(entries.iter().filter(|entry| entry.index >= at).take(room).cloned());
                at = EntryIndex(last.index.0.saturating_add(1));
            }
            if at == before {
                return self.gap(agent, writer, at, page).await.map(|()| false);
            }
        }
        Ok(true)
    }

    /// The list has no chunk for an entry that is in no other place: the agent is in another life by now, or it is lost.
    async fn gap(&self, agent: &AgentId, writer: Writer, at: EntryIndex, before: &Page) -> Result<(), Error> {
        let now = self.store.page(agent, writer, at, 0).await?;
        if now.first != before.first {
            return Ok(());
        }
        let what = format!("no chunk holds it, and the primary layer begins at {}", now.primary_from.0);
        Err(Error::Corrupt { place: format!("{agent} entry {}", at.0), what })
    }

    pub(super) async fn find_through(
        &self,
        agent: &AgentId,
        writer: Writer,
        key: &str,
    ) -> Result<Option<Entry>, Error> {
        let at = match self.store.look_up(agent, writer, key).await? {
            None => return Ok(None),
            Some(Found::Entry(entry)) => return Ok(Some(entry)),
            Some(Found::Archived(at)) => at,
        };
        let entry = self.read_through(agent, writer, at, 1).await?.into_iter().next();
        match entry {
            Some(entry) if entry.index == at && entry.entry.key.as_deref() == Some(key) => Ok(Some(entry)),
            // Deleted meanwhile; what is there now has another index.
            Some(entry) if entry.index != at => Ok(None),
            None => Ok(None),
            Some(_) => {
                let what = format!("the list has it as the one with idempotency key {key:?}, its chunk has not");
                Err(Error::Corrupt { place: format!("{agent} entry {}", at.0), what })
            }
        }
    }

    /// The entries of listed chunks, in order; they are kept for the next reader.
    async fn fetched(&self, agent: &AgentId, chunks: Vec<Chunk>) -> Result<Vec<Entries>, Error> {
        let fetches = futures::stream::iter(chunks.into_iter().map(|chunk| self.fetch(agent, chunk)));
        fetches.buffered(FETCHES).try_collect().await
    }

    async fn fetch(&self, agent: &AgentId, Chunk { first, last, content }: Chunk) -> Result<Entries, Error> {
        let (bytes, object) = match content {
            Content::Inline(bytes) => (bytes, String::new()),
            Content::Blob(path) => (self.object(agent, &path).await?, format!(", object {path:?}")),
        };
        let place = format!("chunk {}..={} of {agent}{object}", first.0, last.0);
        let whose = agent.clone();
        let decoded = tokio::task::spawn_blocking(move || chunk::decode(&whose, (first, last), &bytes)).await;
        let decoded =
            decoded.map_err(|error| Error::Unavailable(format!("{place}: it could not be decompressed: {error}")))?;
        let entries: Entries = decoded.map_err(|error| Error::Corrupt { place, what: error.to_string() })?.into();
        self.cache.keep(agent, &entries);
        Ok(Arc::clone(&entries))
    }

    async fn object(&self, agent: &AgentId, path: &str) -> Result<Vec<u8>, Error> {
        let Some(blobs) = &self.blobs else {
            return Err(Error::Unavailable(format!(
                "entries of {agent} are in blob storage, object {path:?}, and this executor has none: set oplog.archive.url to what it was"
            )));
        };
        // Not there may be a folder that is not mounted as well as an object that somebody deleted: waiting may mend it.
        blobs.get(path).await?.ok_or_else(|| {
            let place = blobs.place();
            Error::Unavailable(format!(
                "archive {place}: object {path:?} of {agent} is not there; is the archive the one that it was?"
            ))
        })
    }
}
