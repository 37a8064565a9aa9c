//! What happens to a holder, and what it wants done.

use crate::ids::{
    Address, ClusterName, ExecutorId, ExecutorName, ManagerId, Revision, ShardCount, ShardEpoch, ShardId,
};
use crate::message::{Deregistration, LeaseKey, Push, PushAnswer, Registration, Renewal, Weight};
use crate::refusal::{CallError, Refusal};
use crate::set::Grant;
use crate::time::Tick;
use std::time::Duration;

/// What an executor is told to be, the same for all its lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster it joins.
    pub cluster: ClusterName,
    /// Stable across restarts.
    pub name: ExecutorName,
    /// Where managers and routers dial it.
    pub address: Address,
    /// Failure domain, if any.
    pub zone: Option<String>,
    /// Its share relative to others.
    pub weight: Weight,
    /// The shard count it was configured with; `None` takes the first that it hears.
    pub shard_count: Option<ShardCount>,
}

/// One life: an id and its secret, both fresh. A holder whose registration is gone asks for another (R16).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Life {
    /// The id.
    pub executor: ExecutorId,
    /// The secret (R36).
    pub lease_key: LeaseKey,
}

/// One call to the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Counts the calls of one holder.
    pub number: u64,
    /// The instant before the call was first polled (R2).
    pub noted: Tick,
    /// The life that asks.
    pub executor: ExecutorId,
}

/// Names a sweep or a recovery until it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// Names a push until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// One timer per purpose; arming one again replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// The next registration or renewal.
    Call,
    /// The end of the lease.
    Lapse,
    /// The end of `registration_patience` (R38).
    Patience,
    /// The longest wait for sweeps or for the deregistration on the way out (R37).
    Leave,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The process is up. Jitter is derived from `seed`, which should differ between processes.
    Started {
        /// Any number.
        seed: u64,
    },
    /// An armed instant may have come; the holder compares for itself.
    Timer(Purpose),
    /// A registration or renewal ended.
    Answered {
        /// Which call.
        attempt: Attempt,
        /// How.
        result: Result<Grant, CallError>,
    },
    /// A deregistration ended.
    Deregistered {
        /// Which call.
        attempt: Attempt,
        /// How.
        result: Result<(), CallError>,
    },
    /// A manager pushed a set.
    Pushed {
        /// To answer it by.
        token: Token,
        /// Whether it carries the hash of this life's secret (R36).
        proven: bool,
        /// The push.
        push: Push,
    },
    /// A sweep is over: no agent of its shards is left.
    Swept(WorkId),
    /// A recovery is over.
    Recovered(WorkId),
    /// Storage refused a write (F6).
    Fenced {
        /// Whose oplog.
        shard: ShardId,
        /// The epoch it was written under.
        held: ShardEpoch,
        /// The epoch that storage has recorded, if any.
        recorded: Option<ShardEpoch>,
    },
    /// The answer to [`Effect::AskIdentity`].
    NewIdentity(Life),
    /// The agents' host is gone: nothing can be swept or recovered any more.
    HostGone,
    /// The process was asked to stop (R37). Asked a second time, it stops at once.
    Shutdown,
}

/// A call to the manager.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Introduces this life.
    Register(Registration),
    /// Claims and asks for more time. The shell fills in the condition.
    Renew(Renewal),
    /// Gives everything back.
    Deregister(Deregistration),
}

/// How the process part ends, and why.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Exit {
    /// The exit code: 0 asked for, 1 failed, 69 nobody answered, 77 not permitted, 78 the configuration is at fault.
    pub code: u8,
    /// A sentence for people.
    pub why: String,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Call the manager, once, for at most `within`; never retried below this.
    Call {
        /// To answer it by.
        attempt: Attempt,
        /// What to ask.
        request: Request,
        /// Then the outcome is unknown.
        within: Duration,
    },
    /// Stop waiting for the call in flight (R17).
    CancelCall,
    /// Wake up at an instant.
    Arm {
        /// What for.
        purpose: Purpose,
        /// When.
        at: Tick,
    },
    /// The cluster has this many shards.
    SizeFence(ShardCount),
    /// Admit work for a shard while the lease is live.
    OpenShard(ShardId, ShardEpoch),
    /// Admit nothing for a shard.
    CloseShard(ShardId),
    /// The lease ends at this instant.
    ArmFence(Tick),
    /// Admit nothing at all.
    CloseFence,
    /// Stop the agents of these shards; running invocations may take `grace`.
    Sweep {
        /// To report by.
        id: WorkId,
        /// What was given up or lost.
        shards: Vec<(ShardId, ShardEpoch)>,
        /// Zero stops them at once.
        grace: Duration,
    },
    /// Start the agents of these shards.
    Recover {
        /// To report by.
        id: WorkId,
        /// What was gained.
        shards: Vec<(ShardId, ShardEpoch)>,
    },
    /// Answer a push.
    AnswerPush {
        /// Which.
        token: Token,
        /// With what.
        answer: Result<PushAnswer, Refusal>,
    },
    /// Make a fresh life and report it.
    AskIdentity,
    /// End the process part.
    Exit(Exit),
    /// Something worth a log line.
    Note(Note),
}

/// Why a shard stopped being admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// A set came without it.
    Narrowed,
    /// A set came with another epoch for it.
    EpochChanged,
    /// The lease ended.
    Lapsed,
    /// The registration is gone.
    Unregistered,
    /// The executor leaves.
    Leaving,
}

impl Loss {
    /// One word for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Narrowed => "narrowed",
            Self::EpochChanged => "epoch_changed",
            Self::Lapsed => "lapsed",
            Self::Unregistered => "unregistered",
            Self::Leaving => "leaving",
        }
    }
}

/// Why a push was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ignored {
    /// No grant was heard yet (case 10).
    TooEarly,
    /// Another manager is followed (R18).
    Foreign,
    /// A newer set was applied (R19).
    Stale,
    /// The executor leaves.
    Leaving,
    /// It was not meant for this life.
    OtherLife,
    /// It did not prove itself (R36).
    Unproven,
    /// Its shard count differs (R23).
    ShardCount,
}

impl Ignored {
    /// One word for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooEarly => "too_early",
            Self::Foreign => "foreign",
            Self::Stale => "stale",
            Self::Leaving => "leaving",
            Self::OtherLife => "other_life",
            Self::Unproven => "unproven",
            Self::ShardCount => "shard_count",
        }
    }
}

/// A fact for the log; the message is fixed, the rest are fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A shard is admitted.
    ShardGained {
        /// Which.
        shard: ShardId,
        /// At which epoch.
        epoch: ShardEpoch,
        /// By which set.
        revision: Revision,
    },
    /// A shard is not admitted any more.
    ShardClosed {
        /// Which.
        shard: ShardId,
        /// At which epoch it was held.
        epoch: ShardEpoch,
        /// As of which set.
        revision: Revision,
        /// Why.
        cause: Loss,
    },
    /// No agent of a shard is left; it is not claimed any more at this epoch.
    ShardSwept {
        /// Which.
        shard: ShardId,
        /// At which epoch it was held.
        epoch: ShardEpoch,
    },
    /// A recovery ended.
    RecoveryDone {
        /// How many shards.
        shards: usize,
    },
    /// The lease is live after it was not.
    LeaseLive {
        /// Until when.
        deadline: Tick,
    },
    /// The lease ended.
    LeaseLapsed {
        /// When.
        deadline: Tick,
    },
    /// Another manager process answered than before.
    Following {
        /// Which.
        manager: ManagerId,
        /// Which before.
        before: Option<ManagerId>,
    },
    /// A grant's set was not applied: a newer one was (R19).
    SetStale {
        /// The grant's revision.
        revision: Revision,
        /// The applied one.
        applied: Revision,
    },
    /// A push was applied, or had been already.
    PushApplied {
        /// Its revision.
        revision: Revision,
    },
    /// A push was not applied.
    PushIgnored {
        /// From whom.
        manager: ManagerId,
        /// Its revision.
        revision: Revision,
        /// Why.
        why: Ignored,
    },
    /// A registration or renewal failed and will be repeated.
    AttemptFailed {
        /// How many failed in a row.
        failures: u32,
        /// When the next one starts.
        next: Tick,
        /// What was said.
        error: CallError,
    },
    /// The registration is gone; a new life begins (R16).
    Unregistered {
        /// What the manager said.
        refusal: Refusal,
    },
    /// Storage refused a write.
    WriteFenced {
        /// Whose oplog.
        shard: ShardId,
        /// The epoch it was written under.
        held: ShardEpoch,
        /// The recorded one.
        recorded: Option<ShardEpoch>,
    },
}
