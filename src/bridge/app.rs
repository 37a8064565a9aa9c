//! One application: a bounded, cancellable POST for each question.

use super::{ANSWER_MOST, BridgeSettings, answer};
use crate::agents::{Admission, Decider, Decision, Question, Undecided};
use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode, Uri, header};
use futures::StreamExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use leasehold_model::InvalidValue;
use serde_json::json;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The most characters of an application's own words that are passed on.
const WORDS_MOST: usize = 1000;
/// The most bytes read of an answer that is no 200.
const REFUSAL_MOST: usize = 64 * 1024;

/// Where questions go.
pub(super) struct App(Arc<Inner>);

struct Inner {
    /// Without a slash at its end.
    base: String,
    client: Client<HttpConnector, Body>,
    calls: Semaphore,
    settings: BridgeSettings,
}

impl App {
    pub(super) fn new(url: &str, settings: BridgeSettings) -> Result<Self, InvalidValue> {
        let refused = || InvalidValue::new("url", url, "http://HOST:PORT, with a path if need be");
        let uri: Uri = url.parse().map_err(|_| refused())?;
        if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(refused());
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.timeout));
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let base = url.trim_end_matches('/').to_owned();
        let calls = Semaphore::new(settings.calls.clamp(1, Semaphore::MAX_PERMITS));
        Ok(Self(Arc::new(Inner { base, client, calls, settings })))
    }
}

#[async_trait]
impl Decider for App {
    async fn decide(&self, question: Question, admission: Admission) -> Result<Decision, Undecided> {
        let inner = Arc::clone(&self.0);
        // On the runtime's workers, not on the thread of the actors. Dropping the set breaks the call off.
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            let within = inner.settings.timeout;
            let late = |_| Err(Undecided::Away(format!("no answer within {}", humantime::format_duration(within))));
            timeout(within, inner.ask(question, &admission)).await.unwrap_or_else(late)
        });
        match asking.join_next().await {
            Some(Ok(decided)) => decided,
            Some(Err(error)) => Err(Undecided::Away(format!("asking it broke off: {error}"))),
            None => Err(Undecided::Away("asking it broke off".to_owned())),
        }
    }
}

impl Inner {
    async fn ask(&self, question: Question, admission: &Admission) -> Result<Decision, Undecided> {
        let request = self.request(&question)?;
        let _place = self.calls.acquire().await.map_err(|_| Undecided::Away("the executor ends".to_owned()))?;
        // Waiting for a place may have taken longer than the lease, or the machine has slept.
        if !admission.stands() {
            return Err(Undecided::Away("its shard is not held any more".to_owned()));
        }
        let response = self.client.request(request).await.map_err(|error| Undecided::Away(chain(&error)))?;
        let response = response.map(Body::new);
        let status = response.status();
        if status == StatusCode::OK {
            let body = body(response, ANSWER_MOST).await.map_err(Undecided::Away)?;
            let body = body.ok_or_else(|| Undecided::Unusable(format!("the body is over {ANSWER_MOST} bytes")))?;
            return answer::decision(&body, question.state).map_err(Undecided::Unusable);
        }
        let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
        let said = words(response).await;
        if status.is_server_error() || later.contains(&status) {
            Err(Undecided::Away(format!("status {status}{}", quoted(&said?))))
        } else if status.is_client_error() {
            let said = said?;
            Ok(Decision::Reject(if said.is_empty() { format!("status {status}") } else { said }))
        } else {
            Err(Undecided::Unusable(format!("status {status}: expected 200, 4xx or 5xx")))
        }
    }

    fn request(&self, question: &Question) -> Result<Request<Body>, Undecided> {
        let Question { agent, method, payload, state, idempotency_key, epoch } = question;
        let path = [agent.kind(), agent.key(), method].map(segment).join("/");
        let body = json!({
            "state": state, "payload": payload, "idempotency_key": idempotency_key, "epoch": epoch.get(),
        });
        Request::builder()
            .method(Method::POST)
            .uri(format!("{}/agents/{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Body::from(body.to_string()))
            .map_err(|error| Undecided::Unusable(format!("its address cannot be called: {error}")))
    }
}

/// Percent-encoded, so that a `/` in an id moves no border; dots alone would be taken for a folder.
fn segment(text: &str) -> String {
    let dots = text.bytes().all(|byte| byte == b'.');
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) || (byte == b'.' && !dots) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The whole body; `None` if it is longer than `most`.
async fn body(response: Response<Body>, most: usize) -> Result<Option<Vec<u8>>, String> {
    let mut stream = response.into_body().into_data_stream();
    let mut body = Vec::new();
    while let Some(part) = stream.next().await {
        body.extend_from_slice(&part.map_err(|error| format!("its answer broke off: {}", chain(&error)))?);
        if body.len() > most {
            return Ok(None);
        }
    }
    Ok(Some(body))
}

/// The text of an answer, shortened.
async fn words(response: Response<Body>) -> Result<String, Undecided> {
    let body = body(response, REFUSAL_MOST).await.map_err(Undecided::Away)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&body).trim().chars().take(WORDS_MOST).collect())
}

fn quoted(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

/// An error and what lies beneath it: "client error (Connect)" alone does not say why.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    for _ in 0..8 {
        let Some(error) = source else { break };
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_a_path_are_encoded() {
        for (text, encoded) in [("a-b_c.d~1", "a-b_c.d~1"), ("a/b c", "a%2Fb%20c"), ("..", "%2E%2E"), ("ü", "%C3%BC")]
        {
            assert_eq!(segment(text), encoded);
        }
    }

    #[tokio::test]
    async fn an_url_that_cannot_be_called_is_refused() {
        for url in ["https://a:1", "a:1", "http://", "http://a:1?x=1", "ftp://a:1", "http://a b"] {
            assert!(App::new(url, BridgeSettings::default()).is_err_and(|error| error.field == "url"), "{url}");
        }
        assert!(App::new("http://127.0.0.1:9000/base/", BridgeSettings::default()).is_ok());
    }
}
