//! What the executor's actors say to each other.

use actix::Message;
use leasehold_model::message::Condition;
use leasehold_model::{ShardEpoch, ShardId};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// `LeaseHolder` to `AgentHost`: these shards are not held any more at these epochs. Admission for them is closed already.
/// Running invocations may finish for at most `grace`; answered when no agent of them is left.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Sweep {
    /// What was lost or given up.
    pub shards: Vec<(ShardId, ShardEpoch)>,
    /// How long running invocations may take; zero stops them at once.
    pub grace: Duration,
}

/// `LeaseHolder` to `AgentHost`: these shards are held now. Answered when their running agents are recovered (or were given up on, each with a log line).
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Recover {
    /// What was gained.
    pub shards: Vec<(ShardId, ShardEpoch)>,
}

/// `AgentHost` to `LeaseHolder`: storage refused a write (F6). It renews at once and reports the recorded epoch as a floor (R40).
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Fenced {
    /// Whose oplog.
    pub shard: ShardId,
    /// The epoch this executor was told.
    pub held: ShardEpoch,
    /// The epoch that storage has recorded, if a record exists.
    pub recorded: Option<ShardEpoch>,
}

/// How the `AgentHost` is doing, written by it and read by the `LeaseHolder` without asking: a wedged host cannot delay a renewal (R45).
#[derive(Debug, Default)]
pub struct Pulse {
    /// Agents in memory.
    pub agents: AtomicU32,
    /// Invocations running.
    pub running: AtomicU32,
    /// When the oldest running invocation began, in nanoseconds of the holder's clock; 0 when none runs.
    pub oldest_began: AtomicU64,
}

impl Pulse {
    /// The condition to report at `now`.
    #[must_use]
    pub fn condition(&self, now: leasehold_model::Tick) -> Condition {
        let began = self.oldest_began.load(Ordering::Relaxed);
        let oldest = if began == 0 { Duration::ZERO } else { now.since(leasehold_model::Tick(began)) };
        Condition {
            agents: self.agents.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            oldest_running_ms: u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
