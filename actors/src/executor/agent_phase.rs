//! Where one agent stands.

use super::agent_event::Job;
use leasehold_model::ShardEpoch;
use leasehold_persistence::oplog::{Append, EntryIndex};
use serde_json::Value;

/// An invocation whose entries are on their way into the oplog.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Running {
    pub(super) job: Job,
    pub(super) append: Append,
    pub(super) events: Vec<Value>,
    pub(super) answer: Vec<u8>,
    /// An earlier attempt may have been written.
    pub(super) doubt: bool,
    /// Attempts made.
    pub(super) attempts: u32,
}

impl Running {
    /// The index after its entries.
    pub(super) fn append_end(&self) -> EntryIndex {
        EntryIndex(self.append.expected.0 + self.append.entries.len() as u64)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    /// Nothing is known of the oplog.
    Dormant,
    Claiming,
    /// Until this index is next; `None`: until the end.
    Replaying(Option<EntryIndex>),
    Idle,
    Finding(Job),
    Appending(Box<Running>),
    ReadingBack(Box<Running>),
    Suspending,
    /// Latched: nothing is begun any more (F6).
    Fenced(ShardEpoch),
    Stopped,
}

/// Why the agent is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    Swept,
    Leaving,
}
