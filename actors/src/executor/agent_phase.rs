//! Where one agent stands.

use super::agent_event::{Effect, Job, Work};
use super::agent_type::Question;
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
    /// An earlier attempt may have been written; what the store said of it.
    pub(super) doubt: Option<String>,
    /// Attempts made.
    pub(super) attempts: u32,
}

impl Running {
    /// The index after its entries.
    pub(super) fn append_end(&self) -> EntryIndex {
        EntryIndex(self.append.expected.0 + self.append.entries.len() as u64)
    }
}

/// A deletion on its way into the store.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Deletion {
    pub(super) job: Job,
    /// An earlier attempt may have been carried out; what the store said of it.
    pub(super) doubt: Option<String>,
}

/// An invocation that is decided outside.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Consulting {
    pub(super) job: Job,
    pub(super) question: Question,
    /// Attempts that came to nothing.
    pub(super) attempts: u32,
    /// Whether one is under way; between two it waits.
    pub(super) asked: bool,
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
    Deleting(Box<Deletion>),
    Consulting(Box<Consulting>),
    /// Latched: nothing is begun any more (F6).
    Fenced(ShardEpoch),
    Stopped,
}

impl Phase {
    /// The store call that the phase is about; `next` is the oplog's next index, a replay reads `page` entries at a time.
    pub(super) fn call(&self, next: EntryIndex, page: u32) -> Option<Effect> {
        Some(match self {
            Self::Claiming => Effect::Claim,
            Self::Replaying(_) => Effect::Read(next, page),
            Self::Finding(Job { work: Work::Invoke { key: Some(key), .. }, .. }) => Effect::Find(key.clone()),
            Self::Appending(running) => Effect::Append(running.append.clone()),
            Self::ReadingBack(running) => Effect::Read(running.append.expected, 1),
            Self::Suspending => Effect::Suspend,
            Self::Deleting(_) => Effect::Delete(next),
            // A consultation is no call of the store: it begins only where the fence is looked at.
            Self::Consulting(_) | Self::Finding(_) | Self::Dormant | Self::Idle | Self::Fenced(_) | Self::Stopped => {
                return None;
            }
        })
    }
}

/// Why the agent is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    Swept,
    Leaving,
}
