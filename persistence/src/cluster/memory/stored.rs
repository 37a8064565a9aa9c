//! The rows of a store in memory.

use crate::cluster::{Error, Write};
use leasehold_model::state::{ClusterState, Executor, Head, Shard};
use leasehold_model::{ClusterName, ExecutorId, Revision, ShardCount, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A backup of a store in memory.
#[derive(Debug, Clone)]
pub struct Snapshot(pub(super) Stored);

/// Kept as rows, not as a state: so a write that forgets a changed row is noticed at the next load.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    head: Option<(Head, u128)>,
    shards: BTreeMap<ShardId, Shard>,
    executors: BTreeMap<ExecutorId, Arc<Executor>>,
}

/// The tag of writes by others: no writer of ours mints it.
const FOREIGN: u128 = u128::MAX;

impl Stored {
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref().map(|(head, _)| head)
    }

    pub fn tag(&self) -> Option<u128> {
        self.head.as_ref().map(|(_, tag)| *tag)
    }

    pub fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        let Some(head) = self.head() else { return Ok(ClusterState::empty(cluster.clone(), shard_count)) };
        let shards = self.shards.iter().map(|(shard, row)| (*shard, *row));
        let executors = self.executors.iter().map(|(id, row)| (*id, Executor::clone(row)));
        ClusterState::from_rows(head.clone(), shards, executors)
            .map_err(|broken| Error::Corrupt { place: "memory".into(), what: broken.to_string() })
    }

    /// Applies `write` if its condition holds; answers how many rows it changed.
    pub fn apply(&mut self, write: &Write) -> Result<u64, Error> {
        let found = self.head().map_or(Revision(0), |head| head.revision);
        if found != write.expected {
            return Err(Error::Conflict { expected: write.expected, found });
        }
        let changes = &write.changes;
        match &mut self.head {
            Some((head, tag)) => (head.revision, *tag) = (write.next, write.tag),
            None => self.head = changes.first.clone().map(|head| (head, write.tag)),
        }
        self.shards.extend(&changes.shards);
        self.executors.extend(changes.executors.iter().map(|(id, row)| (*id, Arc::clone(row))));
        changes.removed.iter().for_each(|id| {
            self.executors.remove(id);
        });
        Ok((1 + changes.shards.len() + changes.executors.len() + changes.removed.len()) as u64)
    }

    /// Somebody else commits, changing nothing but the revision; on an empty store there is nothing to change.
    pub fn write_foreign(&mut self) {
        if let Some((head, tag)) = &mut self.head {
            (head.revision, *tag) = (head.revision.next(), FOREIGN);
        }
    }
}
