//! A store that archives whatever is written.

use super::EVERYTHING;
use crate::conformance::oplog::SHARD;
use crate::oplog::layers::{Archive, Layered};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, Error, NewEntry, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::{AgentId, ShardId};

/// Archives after each append: the whole oplog is always in the archive layer, unless somebody else came between.
#[derive(Debug)]
pub struct Archiving(Layered);

impl Archiving {
    /// On top of `layered`.
    #[must_use]
    pub fn new(layered: Layered) -> Self {
        Self(layered)
    }

    /// F7, as an agent does it.
    async fn read_back(&self, append: &Append, what: String) -> Result<EntryIndex, Error> {
        let limit = u32::try_from(append.entries.len()).expect("an append is bounded");
        let stored = self.0.read(&append.agent, append.writer, append.expected, limit).await?;
        let ours = |stored: &Entry, given: &NewEntry| stored.writer == append.writer && stored.entry == *given;
        let whole = stored.len() == append.entries.len();
        let same = whole && stored.iter().zip(&append.entries).all(|(stored, given)| ours(stored, given));
        if same { Ok(append.end()) } else { Err(Error::Unknown(what)) }
    }
}

#[async_trait]
impl OplogStore for Archiving {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        self.0.claim(agent, shard, writer).await
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        let (agent, writer) = (append.agent.clone(), append.writer);
        let next = match self.0.append(append.clone()).await {
            Err(Error::Unknown(what)) => self.read_back(&append, what).await?,
            told => told?,
        };
        match self.0.archive(&agent, SHARD, writer, EVERYTHING).await {
            // Another owner, a deletion or another caller of this owner came between.
            Ok(_) | Err(Error::Fenced { .. } | Error::IndexConflict { .. }) => Ok(next),
            Err(error) => panic!("a move after an append: {error}"),
        }
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.0.read(agent, writer, from, limit).await
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        self.0.find(agent, writer, key).await
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        self.0.delete(agent, writer, expected).await
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        self.0.suspend(agent, writer).await
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        self.0.running(shard, after, limit).await
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        self.0.agents(shard, after, limit).await
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        self.0.recorded(agent).await
    }
}
