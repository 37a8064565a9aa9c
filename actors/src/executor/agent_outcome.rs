//! What the outcomes of store calls mean to an agent.

use leasehold_model::{InvalidValue, Refusal, ShardEpoch};
use leasehold_persistence::oplog::{Append, Entry, Error};
use serde_json::Value;
use std::time::Duration;

/// How often opening an oplog is tried for a recovery: about 7 s of waiting.
pub const OPEN_ATTEMPTS: u32 = 8;
/// How often an append, or opening for an invocation, is tried before the caller is refused (or told that nobody knows).
/// Callers can try again, and elsewhere; they cannot tell what is wrong while they wait.
pub const APPEND_ATTEMPTS: u32 = 3;
/// How often an unknown outcome is looked up before the caller is told that nobody knows: about 15 s of waiting.
pub const READ_BACK_ATTEMPTS: u32 = 12;
pub(super) const BACKOFF_BASE: Duration = Duration::from_millis(50);
pub(super) const BACKOFF_CAP: Duration = Duration::from_secs(2);

/// Whether `entries` begin with what `append` was to write. All or nothing: one of them there is all of them there.
pub(super) fn stored(append: &Append, entries: &[Entry]) -> bool {
    entries.first().zip(append.entries.first()).is_some_and(|(found, sent)| {
        found.index == append.expected && found.writer == append.writer && found.entry == *sent
    })
}

pub(super) fn parse(payload: &[u8]) -> Result<Value, InvalidValue> {
    if payload.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(payload)
        .map_err(|error| InvalidValue::new("payload", String::from_utf8_lossy(payload), format!("JSON ({error})")))
}

pub(super) const fn retryable(error: &Error) -> bool {
    match error {
        Error::Unavailable(_) | Error::Unknown(_) | Error::IndexConflict { .. } => true,
        Error::Fenced { .. } | Error::Corrupt { .. } | Error::Invalid(_) => false,
    }
}

/// The refusal for a call that did not work out and certainly wrote nothing.
pub(super) fn given_up(error: &Error) -> Refusal {
    match error {
        Error::Fenced { recorded, offered } => Refusal::EpochFenced {
            held: offered.epoch,
            recorded: recorded.map_or(ShardEpoch::NEVER_OWNED, |writer| writer.epoch),
        },
        Error::Unavailable(why) => Refusal::StoreUnavailable { why: why.clone() },
        Error::Unknown(_) | Error::IndexConflict { .. } => Refusal::StoreUnavailable { why: error.to_string() },
        // Waiting does not mend these, so they are not among the refusals that are retried.
        Error::Corrupt { .. } | Error::Invalid(_) => Refusal::InvocationRejected { why: error.to_string() },
    }
}

/// 50 ms, doubled with each attempt, at most 2 s.
pub(super) fn backoff(attempts: u32) -> Duration {
    BACKOFF_BASE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(BACKOFF_CAP)
}
