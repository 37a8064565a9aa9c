//! What is asked about agents besides calling them: deleting one, and which there are.

use crate::ids::{AgentId, ExecutorName, ShardEpoch, ShardId};

/// What became of a deletion (`Delete`): the agent is gone, now or since an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionAnswer {
    /// The agent's shard.
    pub shard: ShardId,
    /// The epoch under which it was deleted.
    pub epoch: ShardEpoch,
    /// Name of the executor that did it.
    pub executor: ExecutorName,
}

/// The most agents in one page of a list.
pub const MAX_PAGE: u32 = 1000;

/// Which agents are asked for (`ListAgents`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentQuery {
    /// Those of this shard.
    pub shard: ShardId,
    /// Those whose ids come after this one.
    pub after: Option<AgentId>,
    /// So many: 1 to [`MAX_PAGE`].
    pub limit: u32,
}

/// A page of the agents of one shard, by ascending id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentPage {
    /// The agents.
    pub agents: Vec<ListedAgent>,
    /// Whether there may be more after the last one.
    pub more: bool,
}

/// One agent of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedAgent {
    /// Which.
    pub agent: AgentId,
    /// Where it stands.
    pub standing: AgentStanding,
}

/// Where an agent stands at its shard's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentStanding {
    /// In memory, at work.
    Working,
    /// In memory, with nothing to do.
    Idle,
    /// Marked as running in storage and not in memory: it is yet to be recovered, or this executor does not know its type.
    Unloaded,
    /// In storage alone: its next call brings it back.
    Suspended,
}

impl AgentStanding {
    /// In one lower-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Idle => "idle",
            Self::Unloaded => "unloaded",
            Self::Suspended => "suspended",
        }
    }
}
