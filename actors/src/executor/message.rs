//! What the executor's actors say to each other.

use super::oplog_health::OplogHealth;
use actix::Message;
use leasehold_model::message::{Condition, Inspection, Push, PushAnswer};
use leasehold_model::{AgentId, CallError, ExecutorId, ShardEpoch, ShardId};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
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
    /// Agents at work: running an invocation or being recovered.
    pub running: AtomicU32,
    /// When the oldest of them began, in nanoseconds of the holder's clock; 0 when none runs.
    pub oldest_began: AtomicU64,
    /// Whether the agents' oplog store works.
    pub oplogs: OplogHealth,
}

impl Pulse {
    /// The condition to report at `now`.
    #[must_use]
    pub fn condition(&self, now: leasehold_model::Tick) -> Condition {
        let began = self.oldest_began.load(Ordering::Relaxed);
        let oldest = if began == 0 { Duration::ZERO } else { now.since(leasehold_model::Tick(began)) };
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Condition {
            agents: self.agents.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            oldest_running_ms: millis(oldest),
            oplog_failing_ms: millis(self.oplogs.failing(now)),
        }
    }
}

/// rpc to `LeaseHolder`: a set was pushed (`AssignShards`). Answered with the claim as it stands (R22).
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<PushAnswer, CallError>")]
pub struct Assign(pub Push);

/// rpc to `LeaseHolder`: what does this process hold?
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Inspection")]
pub struct Inspect;

/// The executor life in force (R16: a process that registers anew is a new one). Written by the `LeaseHolder` before it
/// opens the fence for that life, read by the `AgentHost` when it starts an agent: it is the writer's identity in storage.
#[derive(Debug, Clone)]
pub struct CurrentLife(Arc<RwLock<ExecutorId>>);

impl CurrentLife {
    /// Begins with `life`.
    #[must_use]
    pub fn new(life: ExecutorId) -> Self {
        Self(Arc::new(RwLock::new(life)))
    }

    /// Who this process is now.
    #[must_use]
    pub fn read(&self) -> ExecutorId {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process is `life` from now on.
    pub fn begin(&self, life: ExecutorId) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = life;
    }
}

/// `Agent` to `AgentHost`: it ended. Sent when the actor is dropped, so after a panic too.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct AgentStopped {
    /// Which agent.
    pub agent: AgentId,
    /// Which of its incarnations in this process.
    pub instance: u64,
    /// Whether a panic ended it.
    pub panicked: bool,
}

/// `Agent` to `AgentHost`: storage refused its writer; it latched and begins nothing more (F6).
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct AgentFenced {
    /// Which agent.
    pub agent: AgentId,
    /// Which of its incarnations in this process.
    pub instance: u64,
    /// The epoch that storage has recorded, if a record exists.
    pub recorded: Option<ShardEpoch>,
}
