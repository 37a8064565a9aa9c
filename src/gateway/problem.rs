//! Errors over HTTP: `application/problem+json` (RFC 9457) with the fields of the error contract.

use crate::router::{Attempts, RouterError};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_model::message::Owner;
use leasehold_model::{InvalidValue, Refusal, ShardEpoch, ShardId};
use leasehold_rpc::status::{details, http_status};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The agent's shard.
pub(super) const SHARD: HeaderName = HeaderName::from_static("leasehold-shard");
/// The epoch under which the shard is owned.
pub(super) const EPOCH: HeaderName = HeaderName::from_static("leasehold-epoch");
/// The executor that answered.
pub(super) const EXECUTOR: HeaderName = HeaderName::from_static("leasehold-executor");
/// The owner by the routing table, or by the refusal.
pub(super) const OWNER: HeaderName = HeaderName::from_static("leasehold-owner");
/// Whether the answer was read from the oplog instead of running the call again.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("leasehold-replayed");

/// Where the reasons are explained; the fragment is the reason in lower case.
const EXPLAINED_AT: &str = "https://github.com/leasehold/leasehold/blob/main/docs/errors.md#";

/// What the table says of the shard that a failed call was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whereabouts {
    pub(super) shard: ShardId,
    pub(super) owner: Option<(Owner, ShardEpoch)>,
}

/// An error as the caller gets it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem {
    status: StatusCode,
    reason: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    details: Map<String, Value>,
    /// Boxed: an error travels through many hands.
    headers: Box<HeaderMap>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, reason: &'static str, detail: impl Into<String>) -> Self {
        let (detail, headers) = (detail.into(), Box::default());
        Self { status, reason, detail, retry_after: None, details: Map::new(), headers }
    }

    /// The call itself is wrong.
    pub(super) fn invalid(error: InvalidValue) -> Self {
        Self::refused(&Refusal::InvalidField(error))
    }

    pub(super) fn refused(refusal: &Refusal) -> Self {
        let status = StatusCode::from_u16(http_status(refusal)).expect("the contract names HTTP statuses");
        let mut problem = Self::new(status, refusal.reason(), refusal.to_string());
        problem.details = details(refusal).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        problem.retry_after = refusal.retry_after();
        if let Refusal::WrongOwner { shard, owner, .. } = refusal {
            problem.locate(*shard, owner.as_ref(), None);
        }
        problem
    }

    /// A routed call that failed; `whereabouts` is what the table says meanwhile.
    pub(super) fn routed(error: &RouterError, whereabouts: Option<Whereabouts>) -> Self {
        let mut problem = match error {
            RouterError::Refused { refusal, .. } => Self::refused(refusal),
            RouterError::DeadlineExceeded { attempts, .. } => Self::late(error, attempts),
        };
        if let Some(Whereabouts { shard, owner }) = whereabouts {
            let epoch = owner.as_ref().map(|(_, epoch)| *epoch);
            problem.locate(shard, owner.as_ref().map(|(owner, _)| owner), epoch);
        }
        problem.details.insert("tried".into(), json!(error.attempts().tried));
        problem
    }

    /// 504, unless overload alone was in the way: 429. Says whether the call may have run.
    fn late(error: &RouterError, attempts: &Attempts) -> Self {
        let overloaded = match &attempts.last_refusal {
            Some(refusal @ Refusal::Overloaded { .. }) if !attempts.may_have_run => Some(refusal),
            Some(_) | None => None,
        };
        let mut problem = Self::new(StatusCode::GATEWAY_TIMEOUT, error.reason(), error.to_string());
        if let Some(refusal) = overloaded {
            problem = Self::refused(refusal);
            problem.detail = error.to_string();
        }
        problem.retry_after = Some(Duration::from_secs(1));
        problem.details.insert("may_have_run".into(), attempts.may_have_run.into());
        let last = attempts.last_refusal.as_ref().map(Refusal::reason);
        problem.details.insert("last_refusal".into(), last.into());
        problem
    }

    /// Puts shard, owner and epoch into the headers; what is known already stays.
    fn locate(&mut self, shard: ShardId, owner: Option<&Owner>, epoch: Option<ShardEpoch>) {
        let mut put = |name: HeaderName, value: String| {
            if let (false, Ok(value)) = (self.headers.contains_key(&name), HeaderValue::from_str(&value)) {
                self.headers.insert(name, value);
            }
        };
        put(SHARD, shard.to_string());
        if let Some(owner) = owner {
            put(OWNER, format!("{} {}", owner.name, owner.address));
        }
        if let Some(epoch) = epoch {
            put(EPOCH, epoch.to_string());
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = self.details;
        body.insert("type".into(), format!("{EXPLAINED_AT}{}", self.reason.to_lowercase()).into());
        body.insert("title".into(), self.reason.replace('_', " ").to_lowercase().into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("detail".into(), self.detail.into());
        body.insert("reason".into(), self.reason.into());
        if let Some(wait) = self.retry_after {
            body.insert("retry_after_ms".into(), u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into());
        }
        let mut response = (self.status, *self.headers, Value::Object(body).to_string()).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        let waits = matches!(self.status.as_u16(), 429 | 503 | 504);
        if let (true, Some(wait)) = (waits, self.retry_after) {
            // The header counts whole seconds; zero would mean "at once".
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
        }
        response
    }
}
