//! The error contract: every refusal with the evidence for it. `rpc` maps each to a gRPC status; `docs/errors.md` has a section for each.

use crate::ids::{Address, InvalidValue, Revision, ShardEpoch, ShardId};
use crate::message::Owner;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a call was refused: nothing of it was done.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// `SHARDING_NOT_READY`: this executor holds no live lease.
    #[error("executor {executor} holds no live lease; refresh the routing table and retry")]
    ShardingNotReady {
        /// Its name.
        executor: String,
    },
    /// `WRONG_OWNER`: the shard belongs elsewhere.
    #[error("shard {shard} is not held by this executor (its knowledge is of revision {revision})")]
    WrongOwner {
        /// The shard asked for.
        shard: ShardId,
        /// The owner, where known.
        owner: Option<Owner>,
        /// The revision of the refuser's knowledge.
        revision: Revision,
    },
    /// `HANDOFF_IN_PROGRESS`: the shard is between two owners.
    #[error("shard {shard} is being handed off: {why}")]
    HandoffInProgress {
        /// The shard.
        shard: ShardId,
        /// What it waits for.
        why: String,
    },
    /// `SHARD_UNASSIGNED`: no executor owns the shard.
    #[error("shard {shard} has no owner: {why}")]
    ShardUnassigned {
        /// The shard.
        shard: ShardId,
        /// What it waits for.
        why: String,
    },
    /// `DRAINING`: this executor is leaving and admits nothing new.
    #[error("executor {executor} is draining")]
    Draining {
        /// Its name.
        executor: String,
    },
    /// `NOT_LEADER`: this manager does not lead.
    #[error("this manager does not lead")]
    NotLeader {
        /// Who does, where known.
        leader: Option<Address>,
    },
    /// `LEADERSHIP_UNCONFIRMED`: whether this manager still leads could not be confirmed in time (R7).
    #[error("leadership could not be confirmed: {why}")]
    LeadershipUnconfirmed {
        /// What the store said.
        why: String,
    },
    /// `STORE_UNAVAILABLE`: the store did not take the write; nothing was done.
    #[error("the store is unavailable: {why}")]
    StoreUnavailable {
        /// What it said.
        why: String,
    },
    /// `EPOCH_FENCED`: storage has recorded another owner for the oplog.
    #[error("fenced: storage has recorded epoch {recorded} (another writer), this executor holds {held}")]
    EpochFenced {
        /// The epoch held here.
        held: ShardEpoch,
        /// The epoch recorded there.
        recorded: ShardEpoch,
    },
    /// `UNKNOWN_EXECUTOR`: lapsed, deregistered or never seen.
    #[error("this executor is not registered (its lease lapsed, it deregistered, or it was never seen)")]
    UnknownExecutor,
    /// `SUPERSEDED`: a newer process has this executor's name.
    #[error("a newer process registered under the same name")]
    Superseded,
    /// `UNHEARD`: grants to this executor went unheard for a whole lease (R46).
    #[error("grants to this executor went unheard for a whole lease")]
    Unheard,
    /// `PLAN_STALE`: the state moved since the plan was made.
    #[error("the plan was made at revision {expected}, the state is at {actual}")]
    PlanStale {
        /// The plan's revision.
        expected: Revision,
        /// The state's revision.
        actual: Revision,
    },
    /// `SHARD_COUNT_MISMATCH`, `CLUSTER_ID_MISMATCH`, `HASH_SCHEME_MISMATCH`: two clusters or builds were about to mix.
    #[error("{what} differs: this cluster has {expected}, the caller {actual}")]
    Mismatch {
        /// Which of them.
        what: Mismatch,
        /// The cluster's.
        expected: String,
        /// The caller's.
        actual: String,
    },
    /// `OVERLOADED`: a bound was reached.
    #[error("overloaded: {resource} at {used} of {limit}")]
    Overloaded {
        /// Which bound.
        resource: String,
        /// How much is used.
        used: u64,
        /// The bound.
        limit: u64,
    },
    /// `INVALID_FIELD`: the call itself is wrong.
    #[error("{0}")]
    InvalidField(InvalidValue),
    /// `UNKNOWN_METHOD`: no such agent type or method on this executor.
    #[error("no such agent type or method: {what}")]
    UnknownMethod {
        /// What was asked for.
        what: String,
    },
    /// `INVOCATION_REJECTED`: the agent itself said no; its state is unchanged.
    #[error("the agent refused: {why}")]
    InvocationRejected {
        /// Its words.
        why: String,
    },
    /// `APP_UNAVAILABLE`: the application behind a bridged agent type could not be asked, or answered that it cannot now.
    /// Nothing was stored; the application may have been asked.
    #[error("the application of agent type {kind} did not answer usably: {why}")]
    AppUnavailable {
        /// The agent type.
        kind: String,
        /// How asking it ended.
        why: String,
    },
    /// `APP_FAULT`: the application behind a bridged agent type answered what cannot be used. Nothing was stored.
    #[error("the application of agent type {kind} answered what cannot be used: {why}")]
    AppFault {
        /// The agent type.
        kind: String,
        /// What is wrong with its answer.
        why: String,
    },
    /// `BAD_JOIN_TOKEN`, `BAD_LEASE_KEY`, `BAD_ADMIN_TOKEN`.
    #[error("the {0} is not accepted")]
    BadCredential(Credential),
}

/// What differed between a caller and the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mismatch {
    /// The number of shards.
    ShardCount,
    /// The cluster's name.
    Cluster,
    /// How keys map to shards.
    HashScheme,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ShardCount => "shard count",
            Self::Cluster => "cluster name",
            Self::HashScheme => "hash scheme",
        })
    }
}

/// Which credential was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Credential {
    /// Presented to register.
    JoinToken,
    /// Presented with every call of an executor.
    LeaseKey,
    /// Presented with changing calls of an operator.
    AdminToken,
}

impl std::fmt::Display for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::JoinToken => "join token",
            Self::LeaseKey => "lease key",
            Self::AdminToken => "admin token",
        })
    }
}

/// What a caller should do with an error. Decided by matches without wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Waiting or asking elsewhere helps.
    Retry,
    /// The call is wrong, or its outcome is final.
    Rejected,
    /// Whoever called must stop.
    Fatal,
}

impl Refusal {
    /// What a caller should do.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::ShardingNotReady { .. }
            | Self::WrongOwner { .. }
            | Self::HandoffInProgress { .. }
            | Self::ShardUnassigned { .. }
            | Self::Draining { .. }
            | Self::NotLeader { .. }
            | Self::LeadershipUnconfirmed { .. }
            | Self::StoreUnavailable { .. }
            | Self::EpochFenced { .. }
            | Self::AppUnavailable { .. }
            | Self::Overloaded { .. } => Class::Retry,
            Self::PlanStale { .. }
            | Self::InvalidField(_)
            | Self::UnknownMethod { .. }
            | Self::AppFault { .. }
            | Self::InvocationRejected { .. } => Class::Rejected,
            Self::UnknownExecutor
            | Self::Superseded
            | Self::Unheard
            | Self::Mismatch { .. }
            | Self::BadCredential(_) => Class::Fatal,
        }
    }

    /// The machine-readable reason, as it stands in `google.rpc.ErrorInfo`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::ShardingNotReady { .. } => "SHARDING_NOT_READY",
            Self::WrongOwner { .. } => "WRONG_OWNER",
            Self::HandoffInProgress { .. } => "HANDOFF_IN_PROGRESS",
            Self::ShardUnassigned { .. } => "SHARD_UNASSIGNED",
            Self::Draining { .. } => "DRAINING",
            Self::NotLeader { .. } => "NOT_LEADER",
            Self::LeadershipUnconfirmed { .. } => "LEADERSHIP_UNCONFIRMED",
            Self::StoreUnavailable { .. } => "STORE_UNAVAILABLE",
            Self::EpochFenced { .. } => "EPOCH_FENCED",
            Self::UnknownExecutor => "UNKNOWN_EXECUTOR",
            Self::Superseded => "SUPERSEDED",
            Self::Unheard => "UNHEARD",
            Self::PlanStale { .. } => "PLAN_STALE",
            Self::Mismatch { what: Mismatch::ShardCount, .. } => "SHARD_COUNT_MISMATCH",
            Self::Mismatch { what: Mismatch::Cluster, .. } => "CLUSTER_ID_MISMATCH",
            Self::Mismatch { what: Mismatch::HashScheme, .. } => "HASH_SCHEME_MISMATCH",
            Self::Overloaded { .. } => "OVERLOADED",
            Self::InvalidField(_) => "INVALID_FIELD",
            Self::UnknownMethod { .. } => "UNKNOWN_METHOD",
            Self::InvocationRejected { .. } => "INVOCATION_REJECTED",
            Self::AppUnavailable { .. } => "APP_UNAVAILABLE",
            Self::AppFault { .. } => "APP_FAULT",
            Self::BadCredential(Credential::JoinToken) => "BAD_JOIN_TOKEN",
            Self::BadCredential(Credential::LeaseKey) => "BAD_LEASE_KEY",
            Self::BadCredential(Credential::AdminToken) => "BAD_ADMIN_TOKEN",
        }
    }

    /// How long a caller should wait before it tries again, where waiting helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::ShardingNotReady { .. } | Self::HandoffInProgress { .. } | Self::ShardUnassigned { .. } => {
                Some(Duration::from_millis(50))
            }
            Self::LeadershipUnconfirmed { .. }
            | Self::StoreUnavailable { .. }
            | Self::AppUnavailable { .. }
            | Self::Overloaded { .. } => Some(Duration::from_millis(200)),
            Self::WrongOwner { .. }
            | Self::Draining { .. }
            | Self::NotLeader { .. }
            | Self::EpochFenced { .. }
            | Self::UnknownExecutor
            | Self::Superseded
            | Self::Unheard
            | Self::PlanStale { .. }
            | Self::Mismatch { .. }
            | Self::InvalidField(_)
            | Self::UnknownMethod { .. }
            | Self::InvocationRejected { .. }
            | Self::AppFault { .. }
            | Self::BadCredential(_) => None,
        }
    }
}

/// Why a call did not end well: three outcomes, never two.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CallError {
    /// The other side answered: nothing was done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The call never left this process: nothing was done.
    #[error("not reached: {0}")]
    Unreachable(String),
    /// It may or may not have been done. To be looked up, never assumed.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// The reason of [`CallError::Unknown`]: it may or may not have been done.
pub const OUTCOME_UNKNOWN: &str = "OUTCOME_UNKNOWN";
/// The reason of [`CallError::Unreachable`]: who had to do it was not reached, nothing was done.
pub const UNREACHABLE: &str = "UNREACHABLE";

impl CallError {
    /// The machine-readable reason, spelled the same on the wire, in metrics and in `docs/errors.md`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::Unreachable(_) => UNREACHABLE,
            Self::Unknown(_) => OUTCOME_UNKNOWN,
        }
    }
}
