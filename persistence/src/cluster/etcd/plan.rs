//! The rows as they are stored, and how a change of them becomes transactions.
//!
//! A change that is too large for one transaction is split so that what is stored after *each* part is a sound state that a successor
//! can lead from, with nothing half-owned and no epoch lost:
//! 1. new and changed executors, superseded ones first (one life per name);
//! 2. chunks of shards, each in its final form: whoever owns something in them is stored by now, and whoever leaves still is;
//! 3. removed executors: nothing refers to them any more.
//!
//! A name that passes from a removed executor to a new one would need 3 before 1. Its old life is stored as superseded first, which
//! is what it is: it gets nothing any more, and is removed at the end.

use super::keys::Keys;
use super::values::{HeadValue, encode, encode_chunk, encode_executor};
use crate::cluster::Write;
use crate::etcd::Limit;
use leasehold_model::state::{CHUNK, ClusterState, Executor, Head, Shard};
use leasehold_model::{ClusterName, ExecutorId, Revision, ShardCount};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The most that a transaction holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// The head's operation is one of them.
    pub operations: usize,
    /// Of keys and values.
    pub bytes: usize,
}

impl Default for Limits {
    /// etcd allows 128 operations, and 1.5 MiB in a request, unless its flags say otherwise.
    fn default() -> Self {
        Self { operations: 120, bytes: 1 << 20 }
    }
}

impl Limits {
    /// Half of what was refused for being above `limit`; nothing when it holds one key beside the head, which cannot be split.
    pub fn tightened(self, limit: Limit, refused: &Part) -> Option<Self> {
        let operations = refused.ops.len() + 1;
        let bytes: usize = refused.ops.iter().map(Op::bytes).sum();
        (operations > 2).then(|| match limit {
            Limit::Operations => Self { operations: operations.div_ceil(2), ..self },
            Limit::Bytes => Self { bytes: (HEAD_BYTES + bytes) / 2, ..self },
        })
    }
}

/// What an operation takes beside its key and value, and what the head with the conditions takes; generously.
const OPERATION_BYTES: usize = 24;
const HEAD_BYTES: usize = 2048;

/// The rows of one revision.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub cluster: ClusterName,
    pub shard_count: ShardCount,
    pub revision: Revision,
    chunks: Vec<Arc<Vec<Shard>>>,
    executors: BTreeMap<ExecutorId, Arc<Executor>>,
}

/// Puts `value` under `key`, or deletes the key.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub key: String,
    pub value: Option<Vec<u8>>,
}

impl Op {
    pub fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len) + OPERATION_BYTES
    }
}

/// One transaction: all of it, with the head.
#[derive(Debug)]
pub(super) struct Part {
    pub ops: Vec<Op>,
    pub head: HeadValue,
}

/// A write as transactions.
#[derive(Debug)]
pub(super) struct Planned {
    /// At least one.
    pub parts: Vec<Part>,
    /// What is stored after the last.
    pub after: Rows,
}

impl Rows {
    pub fn of(state: &ClusterState) -> Self {
        let all: Vec<Shard> = state.shards().map(|(_, row)| *row).collect();
        Self {
            cluster: state.cluster.clone(),
            shard_count: state.shard_count,
            revision: state.revision,
            chunks: all.chunks(CHUNK).map(|chunk| Arc::new(chunk.to_vec())).collect(),
            executors: state.executors().map(|(id, row)| (id, Arc::clone(row))).collect(),
        }
    }

    /// What `write` makes of these rows, and the operations for it in an order of which every beginning is sound.
    fn apply(&self, keys: &Keys, write: &Write) -> (Self, Vec<Op>) {
        let mut after = self.clone();
        after.revision = write.next;
        let changes = &write.changes;
        let mut ops = Vec::new();

        let new_names: HashSet<_> =
            changes.executors.values().filter(|row| !row.superseded).map(|row| &row.name).collect();
        let leaves_its_name = |id: &ExecutorId| {
            let row = self.executors.get(id)?;
            (!row.superseded && new_names.contains(&row.name)).then(|| Executor { superseded: true, ..(**row).clone() })
        };
        for id in &changes.removed {
            if let Some(row) = leaves_its_name(id) {
                ops.push(Op { key: keys.executor(*id), value: Some(encode_executor(&row)) });
            }
        }
        for superseded in [true, false] {
            for (id, row) in changes.executors.iter().filter(|(_, row)| row.superseded == superseded) {
                ops.push(Op { key: keys.executor(*id), value: Some(encode_executor(row)) });
                after.executors.insert(*id, Arc::clone(row));
            }
        }
        let mut shards = changes.shards.iter().peekable();
        while let Some((first, _)) = shards.peek() {
            let chunk = first.index() / CHUNK;
            let rows = Arc::make_mut(&mut after.chunks[chunk]);
            while let Some((shard, row)) = shards.next_if(|(shard, _)| shard.index() / CHUNK == chunk) {
                rows[shard.index() % CHUNK] = *row;
            }
            ops.push(Op { key: keys.chunk(chunk), value: Some(encode_chunk(Keys::first_shard(chunk), rows)) });
        }
        for id in &changes.removed {
            ops.push(Op { key: keys.executor(*id), value: None });
            after.executors.remove(id);
        }
        (after, ops)
    }

    /// `write` as transactions. Every part's head has the revision after the write: nothing is told of it before the last part is stored,
    /// and a successor, which has revisions of its own, may find releases of that revision in an earlier part.
    ///
    /// # Panics
    /// When the write changes a shard that does not exist.
    pub fn plan(&self, keys: &Keys, write: &Write, limits: Limits) -> Planned {
        let (mut after, ops) = self.apply(keys, write);
        if let Some(first) = &write.changes.first {
            (after.cluster, after.shard_count) = (first.cluster.clone(), first.shard_count);
        }
        let head = Head { cluster: after.cluster.clone(), shard_count: after.shard_count, revision: after.revision };
        let parts = parts_of(ops, limits, 0, &HeadValue::new(&head, write.tag, 0, 0));
        Planned { parts, after }
    }
}

/// `ops` in their order, as many to a part as the limits allow; the parts are numbered as those behind the first `landed`.
fn parts_of(ops: Vec<Op>, limits: Limits, landed: usize, head: &HeadValue) -> Vec<Part> {
    let mut groups = vec![Vec::new()];
    let mut bytes = HEAD_BYTES;
    for op in ops {
        let group = groups.last_mut().expect("there is one at least");
        // One operation is the head's.
        if !group.is_empty() && (group.len() + 1 >= limits.operations || bytes + op.bytes() > limits.bytes) {
            groups.push(Vec::new());
            bytes = HEAD_BYTES;
        }
        bytes += op.bytes();
        groups.last_mut().expect("there is one at least").push(op);
    }
    let parts = landed + groups.len();
    let part = |(at, ops)| Part { ops, head: head.at_part(landed + at + 1, parts) };
    groups.into_iter().enumerate().map(part).collect()
}

impl Planned {
    /// Splits what is behind the first `landed` parts into smaller ones. What is stored of it keeps its numbers.
    pub fn split_smaller(&mut self, landed: usize, limits: Limits) {
        let left = self.parts.split_off(landed);
        let Some(first) = left.first() else { return };
        let head = first.head.clone();
        let ops = left.into_iter().flat_map(|part| part.ops).collect();
        self.parts.extend(parts_of(ops, limits, landed, &head));
    }
}

/// etcd refuses a transaction that names a key twice: an old life that is superseded and removed in one is only removed.
fn without_what_is_deleted_at_once(ops: &[Op]) -> impl Iterator<Item = &Op> {
    let deleted: HashSet<&str> = ops.iter().filter(|op| op.value.is_none()).map(|op| op.key.as_str()).collect();
    ops.iter().filter(move |op| op.value.is_none() || !deleted.contains(op.key.as_str()))
}

impl Part {
    /// The operations, the head's last, as this leadership writes them.
    pub fn with_head(&self, keys: &Keys, leadership: i64) -> impl Iterator<Item = Op> {
        let mut head = self.head.clone();
        head.leadership = leadership;
        let head = Op { key: keys.head(), value: Some(encode(&head)) };
        without_what_is_deleted_at_once(&self.ops).cloned().chain([head])
    }
}
