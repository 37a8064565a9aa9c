//! The only home of refusal to gRPC status (and HTTP status) and back. `docs/errors.md` has a section per reason.
//!
//! A status carries `google.rpc.ErrorInfo` (domain [`DOMAIN`], the reason, every detail as metadata) and, where waiting
//! helps, `google.rpc.RetryInfo`. A client gets the exact [`Refusal`] back.

mod details;
mod http;

pub use details::details;
pub use http::{http_status, http_status_of, retry_after_secs};

use leasehold_model::refusal::Credential;
pub use leasehold_model::refusal::{OUTCOME_UNKNOWN, UNREACHABLE};
use leasehold_model::{CallError, InvalidValue, Refusal};
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of every `ErrorInfo` of this package.
pub const DOMAIN: &str = "leasehold";

/// Waiting helps after [`CallError::Unreachable`]: the route is corrected meanwhile.
const RETRY_UNREACHABLE: Duration = Duration::from_millis(50);
/// Bytes of a status message: it repeats the details for people, percent-encoded.
const MAX_TEXT: usize = 256;

/// The gRPC code of a refusal.
#[must_use]
pub const fn code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::ShardingNotReady { .. }
        | Refusal::HandoffInProgress { .. }
        | Refusal::ShardUnassigned { .. }
        | Refusal::Draining { .. }
        | Refusal::NotLeader { .. }
        | Refusal::LeadershipUnconfirmed { .. }
        | Refusal::AppUnavailable { .. }
        | Refusal::StoreUnavailable { .. } => Code::Unavailable,
        Refusal::AppFault { .. } => Code::Internal,
        Refusal::WrongOwner { .. }
        | Refusal::PlanStale { .. }
        | Refusal::Mismatch { .. }
        | Refusal::InvocationRejected { .. } => Code::FailedPrecondition,
        Refusal::EpochFenced { .. } => Code::Aborted,
        Refusal::UnknownExecutor | Refusal::Superseded | Refusal::Unheard => Code::NotFound,
        Refusal::Overloaded { .. } => Code::ResourceExhausted,
        Refusal::InvalidField(_) => Code::InvalidArgument,
        // Not NOT_FOUND, which tells an executor that it is unknown: a method this build lacks is UNIMPLEMENTED, as
        // gRPC itself answers for a service it lacks.
        Refusal::UnknownMethod { .. } => Code::Unimplemented,
        // Who has no token is nobody yet; who has the wrong key is somebody else.
        Refusal::BadCredential(Credential::JoinToken | Credential::AdminToken) => Code::Unauthenticated,
        Refusal::BadCredential(Credential::LeaseKey) => Code::PermissionDenied,
    }
}

/// The status that says `error`.
#[must_use]
pub fn status(error: &CallError) -> Status {
    match error {
        CallError::Refused(refusal) => refused(refusal),
        CallError::Unreachable(why) => plain(Code::Unavailable, UNREACHABLE, why, Some(RETRY_UNREACHABLE)),
        CallError::Unknown(why) => plain(Code::Unknown, OUTCOME_UNKNOWN, why, None),
    }
}

pub(crate) fn refused(refusal: &Refusal) -> Status {
    let mut info = ErrorDetails::with_error_info(
        refusal.reason(),
        DOMAIN,
        details(refusal)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<std::collections::HashMap<_, _>>(),
    );
    if let Some(after) = refusal.retry_after() {
        info.set_retry_info(Some(after));
    }
    let text = refusal.to_string();
    Status::with_error_details(code(refusal), details::cut(&text, MAX_TEXT), info)
}

pub(crate) fn invalid(invalid: InvalidValue) -> Status {
    refused(&Refusal::InvalidField(invalid))
}

fn plain(code: Code, reason: &str, why: &str, after: Option<Duration>) -> Status {
    let why = details::cut(why, crate::bounds::MAX_DETAIL);
    let metadata = std::collections::HashMap::from([("why".to_owned(), why.to_owned())]);
    let mut info = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
    if after.is_some() {
        info.set_retry_info(after);
    }
    Status::with_error_details(code, details::cut(why, MAX_TEXT), info)
}

/// What a status means to the caller who got it. `sent` says whether any byte of the request can have left this process.
///
/// A status without our details is never a refusal: a proxy, a peer's runtime or a broken connection made it, and none
/// of them knows what was done.
#[must_use]
pub fn call_error(status: &Status, sent: bool) -> CallError {
    if let Some(info) = status.get_details_error_info().filter(|info| info.domain == DOMAIN) {
        let why = || info.metadata.get("why").cloned().unwrap_or_default();
        return match info.reason.as_str() {
            OUTCOME_UNKNOWN => CallError::Unknown(why()),
            UNREACHABLE => CallError::Unreachable(why()),
            reason => details::refusal(reason, &info.metadata).map_or_else(
                || CallError::Unknown(format!("refused with {reason}, which this build does not understand")),
                CallError::Refused,
            ),
        };
    }
    if !sent {
        return CallError::Unreachable(chain(status));
    }
    // A proxy's answer in HTTP becomes this code, too, so it is no refusal: asked elsewhere or later, the call may be known.
    if status.code() == Code::Unimplemented {
        let what =
            "the other end does not know this call: a proxy, another service's port, or another version of Leasehold";
        return CallError::Unknown(format!("{what} ({})", chain(status)));
    }
    CallError::Unknown(chain(status))
}

/// The status's text and what lies beneath it: "tcp connect error" alone does not say why.
fn chain(status: &Status) -> String {
    let mut text = if status.message().is_empty() { status.code().to_string() } else { status.message().to_owned() };
    let mut source = std::error::Error::source(status);
    for _ in 0..8 {
        let Some(error) = source else { break };
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    details::cut(&text, crate::bounds::MAX_DETAIL).to_owned()
}

#[cfg(test)]
mod tests;
