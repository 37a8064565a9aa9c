//! A write, as a store's queue holds it.

use super::{Append, EntryIndex, Writer};
use leasehold_model::{AgentId, ShardId};

/// What was asked.
#[derive(Debug)]
pub(super) enum Call {
    Claim { agent: AgentId, shard: ShardId, writer: Writer },
    Append(Append),
    Delete { agent: AgentId, writer: Writer, expected: EntryIndex },
    Suspend { agent: AgentId, writer: Writer },
}

impl Call {
    pub fn agent(&self) -> &AgentId {
        match self {
            Self::Claim { agent, .. } | Self::Delete { agent, .. } | Self::Suspend { agent, .. } => agent,
            Self::Append(append) => &append.agent,
        }
    }

    /// How much of it is entries' bodies.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Append(append) => append.entries.iter().map(|entry| entry.body.len()).sum(),
            Self::Claim { .. } | Self::Delete { .. } | Self::Suspend { .. } => 0,
        }
    }
}
