//! A store whose moves meet a fault, whatever the backend.

use crate::oplog::layers::{Chunk, ChunkStore, Found, Listing, Page};
use crate::oplog::memory::{Fault, carried_out};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, Error, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::{AgentId, ShardId};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module's documentation.
pub(super) struct Scripted {
    store: Arc<dyn ChunkStore>,
    fault: Mutex<Option<Fault>>,
}

impl Scripted {
    /// The first move meets `fault`, if there is one.
    pub fn over(store: Arc<dyn ChunkStore>, fault: Option<Fault>) -> Arc<dyn ChunkStore> {
        Arc::new(Self { store, fault: Mutex::new(fault) })
    }
}

#[async_trait]
impl ChunkStore for Scripted {
    async fn move_out(&self, agent: &AgentId, writer: Writer, chunk: Chunk) -> Result<(), Error> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        carried_out(fault, self.store.move_out(agent, writer, chunk)).await
    }

    async fn page(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Page, Error> {
        self.store.page(agent, writer, from, limit).await
    }

    async fn chunks(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Chunk>, Error> {
        self.store.chunks(agent, writer, from, limit).await
    }

    async fn look_up(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Found>, Error> {
        self.store.look_up(agent, writer, key).await
    }

    async fn listing(&self, agent: &AgentId, first: EntryIndex, last: EntryIndex) -> Result<Option<Listing>, Error> {
        self.store.listing(agent, first, last).await
    }
}

#[async_trait]
impl OplogStore for Scripted {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        self.store.claim(agent, shard, writer).await
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        self.store.append(append).await
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.store.read(agent, writer, from, limit).await
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        self.store.find(agent, writer, key).await
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
