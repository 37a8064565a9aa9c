//! The same contract over HTTP, for the gateway.

use leasehold_model::refusal::Credential;
use leasehold_model::{CallError, Refusal};
use std::time::Duration;

/// The HTTP status of a refusal: 421 for a wrong owner, 503 and 429 (with `Retry-After`, [`retry_after_secs`]) where
/// waiting helps.
#[must_use]
pub const fn http_status(refusal: &Refusal) -> u16 {
    match refusal {
        Refusal::WrongOwner { .. } => 421,
        Refusal::ShardingNotReady { .. }
        | Refusal::HandoffInProgress { .. }
        | Refusal::ShardUnassigned { .. }
        | Refusal::Draining { .. }
        | Refusal::NotLeader { .. }
        | Refusal::LeadershipUnconfirmed { .. }
        | Refusal::AppUnavailable { .. }
        | Refusal::StoreUnavailable { .. } => 503,
        Refusal::AppFault { .. } => 502,
        Refusal::Overloaded { .. } => 429,
        Refusal::EpochFenced { .. } | Refusal::PlanStale { .. } | Refusal::Mismatch { .. } => 409,
        Refusal::UnknownExecutor | Refusal::Superseded | Refusal::Unheard | Refusal::UnknownMethod { .. } => 404,
        Refusal::InvalidField(_) => 400,
        Refusal::InvocationRejected { .. } => 422,
        Refusal::BadCredential(Credential::JoinToken | Credential::AdminToken) => 401,
        Refusal::BadCredential(Credential::LeaseKey) => 403,
    }
}

/// The HTTP status of any failed call: 503 when nothing was done for want of a way, 504 when the outcome is unknown.
#[must_use]
pub const fn http_status_of(error: &CallError) -> u16 {
    match error {
        CallError::Refused(refusal) => http_status(refusal),
        CallError::Unreachable(_) => 503,
        CallError::Unknown(_) => 504,
    }
}

/// The value of `Retry-After`, in whole seconds and at least 1: present with each 503 and 429 and with nothing else.
#[must_use]
pub fn retry_after_secs(error: &CallError) -> Option<u64> {
    if !matches!(http_status_of(error), 429 | 503) {
        return None;
    }
    let wait = match error {
        CallError::Refused(refusal) => refusal.retry_after(),
        CallError::Unreachable(_) | CallError::Unknown(_) => None,
    };
    Some(wait.unwrap_or(Duration::ZERO).as_millis().div_ceil(1000).clamp(1, 3600))
        .and_then(|secs| u64::try_from(secs).ok())
}
