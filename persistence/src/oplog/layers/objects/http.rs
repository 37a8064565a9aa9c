//! The HTTP client under S3: hyper over rustls with ring, as everywhere in this workspace. `object_store` signs, repeats and reads; here is one
//! attempt with its deadline, and what S3 refuses becomes a typed error.

use super::MAX_CALLS;
use super::told::{NoCredentials, Refusal, Slow};
use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::http::response::Parts;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A connection that nobody used for so long is closed: servers close theirs after a minute or so.
const IDLE: Duration = Duration::from_secs(20);

/// The most of a refusal that is read.
const MAX_REFUSAL: usize = 64 << 10;

/// Makes clients.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    tls: ClientConfig,
    attempt: Duration,
    /// S3's own host; others are asked for credentials.
    host: String,
}

impl Connector {
    /// For S3 at `host`. Certificates are read only if they are needed.
    ///
    /// # Errors
    /// What is wrong with the certificates.
    pub fn new(host: String, encrypted: bool, ca_file: Option<&Path>, attempt: Duration) -> Result<Self, String> {
        let roots = if encrypted { roots(ca_file)? } else { RootCertStore::empty() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls, attempt, host })
    }
}

/// The system's certificates, and those of the file.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let refused = |why: String| format!("the certificates in {} cannot be used: {why}", path.display());
        let read = rustls_native_certs::load_certs_from_paths(Some(path), None);
        if let Some(error) = read.errors.first() {
            return Err(refused(error.to_string()));
        }
        if read.certs.is_empty() {
            return Err(refused("there are none, in PEM".to_owned()));
        }
        for certificate in read.certs {
            roots.add(certificate).map_err(|error| refused(error.to_string()))?;
        }
    }
    if roots.is_empty() {
        return Err(
            "this system has no certificates to trust: install ca-certificates, or name a file with them".into()
        );
    }
    Ok(roots)
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut tcp = Tcp::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.attempt));
        let tls = HttpsConnectorBuilder::new().with_tls_config(self.tls.clone());
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(MAX_CALLS);
        let (attempt, host) = (self.attempt, self.host.clone());
        Ok(HttpClient::new(Service { client: client.build(connector), attempt, host }))
    }
}

#[derive(Debug)]
struct Service {
    client: Client<HttpsConnector<Tcp>, HttpRequestBody>,
    attempt: Duration,
    host: String,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().host().unwrap_or_default().trim_matches(|c| "[]".contains(c)).to_owned();
        let attempt = timeout(self.attempt, self.exchange(request)).await;
        let outcome = attempt.unwrap_or_else(|_| Err(HttpError::new(HttpErrorKind::Timeout, Slow(self.attempt))));
        match outcome {
            Err(error) if host != self.host => {
                let told = format!("{host} was asked for some: {}", deepest(&error));
                Err(HttpError::new(error.kind(), NoCredentials(told)))
            }
            outcome => outcome,
        }
    }
}

fn deepest(error: &HttpError) -> String {
    let first: &(dyn std::error::Error + 'static) = error;
    let last = std::iter::successors(Some(first), |error| (**error).source()).take(16).last();
    last.map(ToString::to_string).unwrap_or_default()
}

impl Service {
    /// Up to the answer's head, and all of a refusal.
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.client.request(request).await.map_err(|error| {
            // Whatever was sent may be sent again: objects' paths are used once.
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, error)
        })?;
        let (parts, body) = response.into_parts();
        if !may_be_refusal(parts.status) {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(interrupted))));
        }
        let body = Limited::new(body, MAX_REFUSAL).collect().await;
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error))?.to_bytes();
        refusal(&parts, &String::from_utf8_lossy(&body))?;
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

fn interrupted(error: hyper::Error) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}

/// Statuses that `object_store` repeats, or has a meaning for that does not depend on S3's code, are left to it.
fn may_be_refusal(status: StatusCode) -> bool {
    let left = [
        StatusCode::NOT_MODIFIED,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    let judged = status.is_redirection() || status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED;
    judged && !left.contains(&status)
}

/// # Errors
/// What S3 refuses with. That an object is not there is no refusal, if S3 says so: a wrong bucket has the same status, and so has whatever
/// else speaks HTTP there.
fn refusal(parts: &Parts, body: &str) -> Result<(), HttpError> {
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
    if parts.status == StatusCode::NOT_FOUND && code == "NoSuchKey" {
        return Ok(());
    }
    let code = code.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    Err(HttpError::new(HttpErrorKind::Unknown, Refusal { status: parts.status.as_u16(), code }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    fn refused(status: u16, body: &str) -> Option<Refusal> {
        let status = StatusCode::from_u16(status).unwrap();
        if !may_be_refusal(status) {
            return None;
        }
        let (parts, ()) = hyper::Response::builder().status(status).body(()).unwrap().into_parts();
        let error = refusal(&parts, body).err()?;
        error.source().unwrap().downcast_ref::<Refusal>().cloned()
    }

    #[test]
    fn only_what_s3_itself_calls_an_absent_object_is_one() {
        let error =
            |code: &str| format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>x</Message></Error>");
        let refusal = |status, code: &str| Some(Refusal { status, code: code.into() });
        for (status, body, expected) in [
            (404, error("NoSuchKey"), None),
            (404, error("NoSuchBucket"), refusal(404, "NoSuchBucket")),
            (404, "<html>not here</html>".into(), refusal(404, "")),
            (403, error("Access\nDenied<"), refusal(403, "AccessDenied")),
            (301, String::new(), refusal(301, "")),
            (501, error("NotImplemented"), refusal(501, "NotImplemented")),
            (503, error("SlowDown"), None),
            (412, error("PreconditionFailed"), None),
            (200, String::new(), None),
        ] {
            assert_eq!(refused(status, &body), expected, "{status} {body}");
        }
    }
}
