//! Where things are stored.

use crate::etcd::prefix;
use leasehold_model::state::CHUNK;
use leasehold_model::{ClusterName, ExecutorId};

/// The keys of one cluster.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub fn of(cluster: &ClusterName) -> Self {
        Self { prefix: prefix(cluster) }
    }

    pub fn head(&self) -> String {
        format!("{}head", self.prefix)
    }

    /// The beginning of every chunk's key.
    pub fn chunks(&self) -> String {
        format!("{}shards/", self.prefix)
    }

    /// The beginning of every executor's key.
    pub fn executors(&self) -> String {
        format!("{}executors/", self.prefix)
    }

    /// Two digits, so that they stand in order.
    pub fn chunk(&self, chunk: usize) -> String {
        format!("{}{chunk:02}", self.chunks())
    }

    pub fn executor(&self, id: ExecutorId) -> String {
        format!("{}{id}", self.executors())
    }

    /// The number of the chunk whose key this is.
    pub fn chunk_of(&self, key: &str) -> Option<usize> {
        let chunk = key.strip_prefix(&self.chunks())?.parse().ok()?;
        (self.chunk(chunk) == key).then_some(chunk)
    }

    /// The executor whose key this is.
    pub fn executor_of(&self, key: &str) -> Option<ExecutorId> {
        let id = key.strip_prefix(&self.executors())?.parse().ok()?;
        (self.executor(id) == key).then_some(id)
    }

    /// The first shard of a chunk.
    pub fn first_shard(chunk: usize) -> u32 {
        u32::try_from(chunk * CHUNK).expect("chunks are bounded by shard_count")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_it_is_and_nobody_elses() {
        let keys = Keys::of(&ClusterName::new("a").unwrap());
        assert_eq!(keys.chunk(7), "/leasehold/a/shards/07");
        assert_eq!(keys.chunk_of("/leasehold/a/shards/07"), Some(7));
        let id = ExecutorId::from_u128(1);
        assert_eq!(keys.executor_of(&keys.executor(id)), Some(id));
        for foreign in
            ["/leasehold/a/shards/7", "/leasehold/a/shards/007", "/leasehold/b/shards/07", "/leasehold/a/shards/x"]
        {
            assert_eq!(keys.chunk_of(foreign), None, "{foreign}");
        }
        let upper = keys.executor(id).to_uppercase();
        assert_eq!((keys.executor_of(&upper), keys.executor_of("/leasehold/a/executors/exec-1")), (None, None));
    }
}
