//! Removing objects that no list names: what is left of moves that were cut short, of fenced writers, and of deleted agents.
//!
//! An object is deleted when it is in no list and none can ever name it (see [`ObjectPath::is_garbage`]); no clock has a say. Objects are
//! seen first and the list is read then: so one that is listed meanwhile is found there. An agent without a record keeps its objects: of a
//! store that was wiped or restored nothing can be said.

use super::names::ObjectPath;
use super::{Layered, blobs::Blobs};
use crate::oplog::Error;
use futures::StreamExt;
use leasehold_model::AgentId;
use std::collections::BTreeMap;

/// Objects that are judged at a time.
const BATCH: usize = 512;

/// Objects that one sweep looks at, which are those whose paths come first: what is beyond is never looked at, and that is told.
const MAX_OBJECTS: u64 = 100_000;

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Objects that it saw.
    pub seen: u64,
    /// Those that it deleted.
    pub deleted: u64,
}

impl Layered {
    pub(super) async fn sweep(&self, folder: &str) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let Some(blobs) = &self.blobs else { return Ok(swept) };
        let mut objects = blobs.list(folder).chunks(BATCH);
        while let Some(batch) = objects.next().await {
            let mut by_agent = BTreeMap::<AgentId, Vec<ObjectPath>>::new();
            for text in batch {
                swept.seen += 1;
                // What is none of ours stays.
                if let Some(path) = ObjectPath::parse(&text?) {
                    by_agent.entry(path.agent.clone()).or_default().push(path);
                }
            }
            for (agent, paths) in by_agent {
                swept.deleted += self.judge(&**blobs, &agent, &paths).await?;
            }
            if swept.seen >= MAX_OBJECTS {
                tracing::warn!(
                    folder,
                    seen = swept.seen,
                    "the archive has more objects than a sweep looks at: leftovers beyond stay"
                );
                break;
            }
        }
        Ok(swept)
    }

    /// Deletes what is garbage among an agent's objects.
    async fn judge(&self, blobs: &dyn Blobs, agent: &AgentId, paths: &[ObjectPath]) -> Result<u64, Error> {
        let firsts = || paths.iter().map(|path| path.name.first);
        let Some((least, greatest)) = firsts().min().zip(firsts().max()) else { return Ok(0) };
        let Some(listing) = self.store.listing(agent, least, greatest).await? else { return Ok(0) };
        let mut deleted = 0;
        for path in paths.iter().filter(|path| path.is_garbage(&listing)) {
            blobs.delete(&path.to_string()).await?;
            tracing::debug!(%agent, object = %path, "an object that no list names is deleted");
            deleted += 1;
        }
        Ok(deleted)
    }
}
