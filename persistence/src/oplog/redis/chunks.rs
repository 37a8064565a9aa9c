//! The archive layer of oplogs in Redis.

use super::link::Effect;
use super::values::{self, corrupt, decode, index};
use super::{MOST_EXACT, NONE, RedisOplogStore, scripts};
use crate::oplog::layers::{
    Chunk, ChunkStore, Content, Found, Listed, Listing, MAX_CHUNKS_PER_READ, Page, check_move, chunk, moved_before,
};
use crate::oplog::{EntryIndex, Error, Writer};
use async_trait::async_trait;
use leasehold_model::AgentId;
use redis::Script;

/// A chunk as the list has it: how to read it, then what it is.
fn stored(content: &Content) -> Vec<u8> {
    match content {
        Content::Inline(bytes) => [b"i", bytes.as_slice()].concat(),
        Content::Blob(path) => [b"o", path.as_bytes()].concat(),
    }
}

/// First index, last index and content.
pub(super) fn chunk([first, last, stored]: [&[u8]; 3], place: &str) -> Result<Chunk, Error> {
    let (first, last) = (index(first, place)?, index(last, place)?);
    let content = match stored.split_first() {
        Some((b'i', bytes)) => Content::Inline(bytes.to_vec()),
        Some((b'o', path)) => {
            let path = String::from_utf8(path.to_vec());
            Content::Blob(path.map_err(|error| corrupt(place, format!("chunk {}: {error}", first.0)))?)
        }
        _ => return Err(corrupt(place, format!("chunk {}: it is neither bytes nor an object's path", first.0))),
    };
    Ok(Chunk { first, last, content })
}

fn chunks(told: &[Vec<u8>], place: &str) -> Result<Vec<Chunk>, Error> {
    told.chunks_exact(3).map(|part| chunk([&part[0], &part[1], &part[2]], place)).collect()
}

impl RedisOplogStore {
    async fn tell(
        &self,
        (script, effect): (&Script, Effect),
        (agent, writer): (&AgentId, Writer),
        args: [&[u8]; 4],
        expected: EntryIndex,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut call = self.prepare(script, agent, writer);
        call.key(self.key(agent, "chunks")).key(self.key(agent, "chunk-order"));
        for arg in args {
            call.arg(arg);
        }
        self.run((agent, writer), (effect, &call), expected).await
    }
}

#[async_trait]
impl ChunkStore for RedisOplogStore {
    async fn move_out(&self, agent: &AgentId, writer: Writer, chunk: Chunk) -> Result<(), Error> {
        check_move(&chunk)?;
        let (first, last, past) = (chunk.first.0.to_string(), chunk.last.0.to_string(), (chunk.last.0 + 1).to_string());
        let args = [first.as_bytes(), last.as_bytes(), past.as_bytes(), &stored(&chunk.content)];
        let told = self.tell((&scripts::MOVING, Effect::Writes), (agent, writer), args, chunk.first).await;
        let outcome = match told.as_deref() {
            Ok([word, next]) if word == b"short" => {
                let found = index(next, &self.at_oplog(agent))?;
                Err(Error::IndexConflict { expected: EntryIndex(chunk.last.0 + 1), found })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.clone()),
        };
        moved_before(self, (agent, writer), &chunk, outcome).await
    }

    async fn page(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Page, Error> {
        let mut call = self.prepare(&scripts::READING, agent, writer);
        call.arg(from.0.min(MOST_EXACT)).arg(limit);
        let told = self.run((agent, writer), (Effect::Reads, &call), NONE).await?;
        let place = self.at_oplog(agent);
        let [first, primary_from, entries @ ..] = told.as_slice() else {
            return Err(corrupt(&place, "a read was answered with nonsense"));
        };
        let entries =
            entries.chunks_exact(2).map(|pair| decode(&pair[0], &pair[1], &place)).collect::<Result<_, _>>()?;
        Ok(Page { first: index(first, &place)?, primary_from: index(primary_from, &place)?, entries })
    }

    async fn chunks(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Chunk>, Error> {
        let (from, limit) = (from.0.min(MOST_EXACT).to_string(), limit.min(MAX_CHUNKS_PER_READ).to_string());
        let args = [from.as_bytes(), limit.as_bytes(), b"", b""];
        let told = self.tell((&scripts::READING_CHUNKS, Effect::Reads), (agent, writer), args, NONE).await?;
        chunks(&told, &self.at_oplog(agent))
    }

    async fn look_up(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Found>, Error> {
        let mut call = self.prepare(&scripts::FINDING, agent, writer);
        call.arg(key);
        let told = self.run((agent, writer), (Effect::Reads, &call), NONE).await?;
        let place = self.at_oplog(agent);
        match told.as_slice() {
            [] => Ok(None),
            [at] => index(at, &place).map(|at| Some(Found::Archived(at))),
            [at, value] => decode(at, value, &place).map(|entry| Some(Found::Entry(entry))),
            _ => Err(corrupt(&place, "a key was answered with nonsense")),
        }
    }

    async fn listing(&self, agent: &AgentId, first: EntryIndex, last: EntryIndex) -> Result<Option<Listing>, Error> {
        let mut call = scripts::LISTING_CHUNKS.prepare_invoke();
        call.key(self.key(agent, "oplog")).key(self.key(agent, "chunks")).key(self.key(agent, "chunk-order"));
        let greatest = last.0.min(MOST_EXACT);
        call.arg(first.0.min(MOST_EXACT)).arg(greatest).arg(greatest + chunk::MAX_ENTRIES as u64);
        let place = self.at_oplog(agent);
        let told = self.link(agent).call(Effect::Reads, &call, &place).await?;
        let [epoch, executor, primary_from, listed @ ..] = told.as_slice() else { return Ok(None) };
        let listed = chunks(listed, &place)?.into_iter().map(|Chunk { first, last, content }| Listed {
            first,
            last,
            object: match content {
                Content::Blob(path) => Some(path),
                Content::Inline(_) => None,
            },
        });
        Ok(Some(Listing {
            writer: values::writer(epoch, executor, &place)?,
            primary_from: index(primary_from, &place)?,
            chunks: listed.collect(),
        }))
    }
}
