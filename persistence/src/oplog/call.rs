//! A write, as a store's queue holds it.

use super::layers::{Chunk, Content};
use super::{Append, EntryIndex, Writer};
use leasehold_model::{AgentId, ShardId};

/// What was asked.
#[derive(Debug)]
pub(super) enum Call {
    Claim { agent: AgentId, shard: ShardId, writer: Writer },
    Append(Append),
    Delete { agent: AgentId, writer: Writer, expected: EntryIndex },
    Suspend { agent: AgentId, writer: Writer },
    MoveOut { agent: AgentId, writer: Writer, chunk: Chunk },
}

impl Call {
    pub fn agent(&self) -> &AgentId {
        match self {
            Self::Claim { agent, .. }
            | Self::Delete { agent, .. }
            | Self::Suspend { agent, .. }
            | Self::MoveOut { agent, .. } => agent,
            Self::Append(append) => &append.agent,
        }
    }

    /// How much of it is entries' bodies, or a chunk.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Append(append) => append.entries.iter().map(|entry| entry.body.len()).sum(),
            Self::MoveOut { chunk: Chunk { content: Content::Inline(bytes), .. }, .. } => bytes.len(),
            Self::MoveOut { .. } | Self::Claim { .. } | Self::Delete { .. } | Self::Suspend { .. } => 0,
        }
    }
}
