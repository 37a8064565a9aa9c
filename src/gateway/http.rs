//! The gateway's HTTP side: `POST /v1/agents/{type}/{id}/{method}` with a JSON body, `DELETE /v1/agents/{type}/{id}`.
//!
//! | request | means |
//! | --- | --- |
//! | body | the argument as JSON, at most 1 MiB; empty is `null` |
//! | `Idempotency-Key` | the call runs at most once under this key (1 to 128 bytes); one is made up if there is none |
//! | `Leasehold-Timeout: 5s` | how long to try, `1ms` to `1h` |
//!
//! The answer's body is the agent's JSON; `Leasehold-Shard`, `-Epoch`, `-Executor` and `-Replayed` say where it came from. Path
//! segments are percent-decoded, so an id may contain `/` as `%2F`. Errors: see [`super::problem`].

use super::problem::{EPOCH, EXECUTOR, Problem, REPLAYED, SHARD, Whereabouts};
use crate::http::{Operations, operations};
use crate::router::{Router, RouterError, WITHIN_MOST};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{AgentId, InvalidValue};
use prometheus_client::registry::Registry;
use serde::de::IgnoredAny;
use std::time::Duration;

/// The largest body that is read: 1 MiB.
pub(super) const BODY_MOST: usize = 1024 * 1024;

#[derive(Clone)]
struct Gateway {
    router: Router,
    call_deadline: Duration,
}

/// All routes of the gateway. A call whose caller gives no time gets `call_deadline`.
pub(super) fn routes(router: Router, call_deadline: Duration) -> axum::Router {
    let mut registry = Registry::with_prefix("leasehold");
    router.metrics().register(&mut registry);
    let tables = router.subscribe();
    let not_ready =
        move || tables.borrow().is_none().then(|| "no manager has answered with a routing table yet".to_owned());
    axum::Router::new()
        .route("/v1/agents/{type}/{id}/{method}", post(invoke))
        .route("/v1/agents/{type}/{id}", delete(remove))
        .layer(DefaultBodyLimit::max(BODY_MOST))
        .with_state(Gateway { router, call_deadline })
        .merge(operations(Operations { not_ready: Box::new(not_ready), registry }))
        .fallback(|uri: Uri| async move {
            let detail = format!(
                "{} is not served here; invoke with POST /v1/agents/{{type}}/{{id}}/{{method}}, delete with DELETE \
                     /v1/agents/{{type}}/{{id}}",
                uri.path()
            );
            Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_PATH", detail)
        })
        .method_not_allowed_fallback(|uri: Uri| async move {
            let detail =
                format!("{} does not take this HTTP method; invocations are POST, deletions DELETE", uri.path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail)
        })
}

async fn invoke(
    State(gateway): State<Gateway>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let path = path.map_err(|rejection| unreadable(&uri, &rejection))?;
    let invocation = invocation(path, &headers, body)?;
    let within = within(&headers)?.unwrap_or(gateway.call_deadline);
    let agent = invocation.agent.clone();
    let answer = gateway.router.call(invocation, within).await;
    Ok(answered(answer.map_err(|error| failed(&gateway, &agent, &error))?))
}

async fn remove(
    State(gateway): State<Gateway>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path((kind, id)) = path.map_err(|rejection| unreadable(&uri, &rejection))?;
    let agent = agent(kind, &id)?;
    let within = within(&headers)?.unwrap_or(gateway.call_deadline);
    let answer = gateway.router.delete(agent.clone(), within).await;
    let answer = answer.map_err(|error| failed(&gateway, &agent, &error))?;
    let headers =
        [(SHARD, answer.shard.to_string()), (EPOCH, answer.epoch.to_string()), (EXECUTOR, answer.executor.to_string())];
    Ok((StatusCode::NO_CONTENT, headers).into_response())
}

fn failed(gateway: &Gateway, agent: &AgentId, error: &RouterError) -> Problem {
    tracing::debug!(%agent, %error, "a call failed");
    let located = gateway.router.route(agent);
    Problem::routed(error, located.map(|located| Whereabouts { shard: located.shard, owner: located.owner }))
}

fn unreadable(uri: &Uri, rejection: &PathRejection) -> Problem {
    let accepted = format!("percent-encoded UTF-8 ({})", rejection.body_text());
    Problem::invalid(InvalidValue::new("path", uri.path(), accepted))
}

fn agent(kind: String, id: &str) -> Result<AgentId, Problem> {
    if kind.contains('/') {
        // `a%2Fb` would otherwise move the border between type and id.
        return Err(Problem::invalid(InvalidValue::new("type", kind, "1 to 128 of letters, digits, '.', '_', '-'")));
    }
    AgentId::new(format!("{kind}/{id}")).map_err(Problem::invalid)
}

fn answered(answer: InvocationAnswer) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (SHARD, answer.shard.to_string()),
        (EPOCH, answer.epoch.to_string()),
        (EXECUTOR, answer.executor.to_string()),
        (REPLAYED, answer.replayed.to_string()),
    ];
    (headers, answer.payload).into_response()
}

fn invocation(
    Path((kind, id, method)): Path<(String, String, String)>,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Invocation, Problem> {
    let agent = agent(kind, &id)?;
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", format!("the body is over {BODY_MOST} bytes"))
        }
        _ => {
            let accepted = format!("a whole body ({})", rejection.body_text());
            Problem::invalid(InvalidValue::new("body", "incomplete", accepted))
        }
    })?;
    if !body.is_empty() {
        serde_json::from_slice::<IgnoredAny>(&body).map_err(|error| {
            let given = String::from_utf8_lossy(&body);
            Problem::invalid(InvalidValue::new("payload", given, format!("one JSON value, or nothing ({error})")))
        })?;
    }
    let idempotency_key = text(headers, "idempotency-key", "1 to 128 visible ASCII characters", |key| {
        (1..=128).contains(&key.len()).then(|| key.to_owned())
    })?;
    Ok(Invocation { agent, method, payload: body.to_vec(), idempotency_key })
}

fn within(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let range = Duration::from_millis(1)..=WITHIN_MOST;
    text(headers, "leasehold-timeout", "a duration such as 5s or 250ms, 1ms to 1h", |text| {
        humantime::parse_duration(text).ok().filter(|within| range.contains(within))
    })
}

/// The header `name`, if it is there, as `parse` reads it.
fn text<T>(
    headers: &HeaderMap,
    name: &str,
    accepted: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str().ok().and_then(parse) {
        Some(parsed) => Ok(Some(parsed)),
        None => {
            let given = String::from_utf8_lossy(value.as_bytes());
            Err(Problem::invalid(InvalidValue::new(name, given, accepted)))
        }
    }
}
