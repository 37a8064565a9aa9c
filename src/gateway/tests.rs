//! The HTTP side, request by request, in front of one scripted executor.

use super::http::{BODY_MOST, routes};
use crate::router::{Router, RouterSettings};
use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold_model::agents::DeletionAnswer;
use leasehold_model::message::{
    ClusterStatus, Deregistration, Invocation, InvocationAnswer, Owner, Registration, Renewal, Route, RoutingTable,
    ShardExplanation,
};
use leasehold_model::{
    Address, AgentId, CallError, ExecutorId, ExecutorName, Grant, ManagerId, Refusal, Revision, ShardEpoch, ShardId,
};
use leasehold_rpc::api::{InvokeApi, ManagerApi};
use leasehold_rpc::managers::Managers;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::ServiceExt;

/// One shard and one owner, or silence.
struct Manager {
    answers: bool,
}

fn owner() -> Owner {
    Owner {
        executor: ExecutorId::from_u128(7),
        name: ExecutorName::new("executor-1").unwrap(),
        address: Address::new("host:1").unwrap(),
    }
}

#[async_trait]
impl ManagerApi for Manager {
    async fn register(&self, _: Registration) -> Result<Grant, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn renew(&self, _: Renewal) -> Result<Grant, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn deregister(&self, _: Deregistration) -> Result<(), CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        if !self.answers {
            return Err(CallError::Unreachable("away".into()));
        }
        let routes = vec![Route::Owned(0, ShardEpoch::new(4).unwrap())];
        let (manager, revision) = (ManagerId::from_u128(1), Revision(1));
        Ok(Arc::new(RoutingTable { manager, revision, owners: vec![owner()], routes }))
    }
    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        Ok(futures::stream::pending().boxed())
    }
    async fn status(&self) -> Result<ClusterStatus, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn explain(&self, _: ShardId) -> Result<ShardExplanation, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn set_draining(&self, _: ExecutorName, _: bool) -> Result<(), CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
}

/// Echoes the payload, or fails as scripted; remembers the last call.
#[derive(Default)]
struct Executor {
    fails: Mutex<Option<CallError>>,
    last: Mutex<Option<Invocation>>,
    deleted: Mutex<Vec<String>>,
}

#[async_trait]
impl InvokeApi for Executor {
    async fn invoke(&self, invocation: Invocation, _: Duration) -> Result<InvocationAnswer, CallError> {
        *self.last.lock().unwrap() = Some(invocation.clone());
        if let Some(error) = self.fails.lock().unwrap().clone() {
            return Err(error);
        }
        let payload = if invocation.payload.is_empty() { b"null".to_vec() } else { invocation.payload };
        let (shard, epoch, executor) = (ShardId(0), ShardEpoch::new(4).unwrap(), owner().name);
        Ok(InvocationAnswer { payload, shard, epoch, executor, replayed: true })
    }

    async fn delete(&self, agent: AgentId, _: Duration) -> Result<DeletionAnswer, CallError> {
        self.deleted.lock().unwrap().push(agent.to_string());
        if let Some(error) = self.fails.lock().unwrap().clone() {
            return Err(error);
        }
        Ok(DeletionAnswer { shard: ShardId(0), epoch: ShardEpoch::new(4).unwrap(), executor: owner().name })
    }
}

struct Scene {
    routes: axum::Router,
    executor: Arc<Executor>,
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    fn problem(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }
}

fn only(manager: Arc<Manager>) -> Managers {
    Managers::with(&[Address::new("manager:1").unwrap()], move |_| Arc::clone(&manager) as Arc<dyn ManagerApi>)
}

impl Scene {
    async fn new() -> Self {
        let executor = Arc::new(Executor::default());
        let dialled = Arc::clone(&executor);
        let dial = move |_: &Address| Ok(Arc::clone(&dialled) as Arc<dyn InvokeApi>);
        let manager = Arc::new(Manager { answers: true });
        let router = Router::new(only(manager), Arc::new(dial), RouterSettings::default());
        router.subscribe().wait_for(Option::is_some).await.unwrap();
        Self { routes: routes(router, Duration::from_secs(30)), executor }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let headers = response.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        let body = to_bytes(response.into_body(), 4 << 20).await.unwrap();
        Answer { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    fn fail(&self, error: impl Into<CallError>) {
        *self.executor.fails.lock().unwrap() = Some(error.into());
    }

    fn last(&self) -> Invocation {
        self.executor.last.lock().unwrap().clone().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_routed_and_answered_without_a_body() {
    let scene = Scene::new().await;
    for _ in 0..2 {
        let answer = scene.send(Request::delete("/v1/agents/counter/a%2Fb").body(Body::empty()).unwrap()).await;
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::NO_CONTENT, ""));
        for (name, value) in [("leasehold-shard", "0"), ("leasehold-epoch", "4"), ("leasehold-executor", "executor-1")]
        {
            assert_eq!(answer.header(name), Some(value), "{name}");
        }
    }
    assert_eq!(*scene.executor.deleted.lock().unwrap(), ["counter/a/b", "counter/a/b"]);
    scene.fail(Refusal::UnknownMethod { what: "agent type counter".into() });
    let answer = scene.send(Request::delete("/v1/agents/counter/a").body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status, &answer.problem()["reason"]), (StatusCode::NOT_FOUND, &json!("UNKNOWN_METHOD")));
    let answer = scene.send(Request::delete("/v1/agents/a%2Fb/c").body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status, &answer.problem()["field"]), (StatusCode::BAD_REQUEST, &json!("type")));
    let answer = scene.send(Request::get("/v1/agents/counter/a").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
}

const ADD: &str = "/v1/agents/counter/a/add";

#[tokio::test(start_paused = true)]
async fn an_answer_is_the_agents_json_and_says_where_it_came_from() {
    let scene = Scene::new().await;
    let answer = scene.post(ADD, &[("Idempotency-Key", "k-1")], r#"{"by":1}"#).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, r#"{"by":1}"#));
    let expected = [
        ("content-type", "application/json"),
        ("leasehold-shard", "0"),
        ("leasehold-epoch", "4"),
        ("leasehold-executor", "executor-1"),
        ("leasehold-replayed", "true"),
    ];
    for (name, value) in expected {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    let called = scene.last();
    assert_eq!((called.agent.as_str(), called.method.as_str()), ("counter/a", "add"));
    assert_eq!(called.idempotency_key.as_deref(), Some("k-1"));
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_is_null_and_a_missing_key_is_made_up() {
    let scene = Scene::new().await;
    let answer = scene.post(ADD, &[], Body::empty()).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "null"));
    assert!(scene.last().payload.is_empty());
    assert!(scene.last().idempotency_key.is_some_and(|key| key.len() == 36));
}

#[tokio::test(start_paused = true)]
async fn ids_are_percent_decoded() {
    let scene = Scene::new().await;
    scene.post("/v1/agents/counter/a%2Fb%20%C3%A4/add", &[], Body::empty()).await;
    assert_eq!(scene.last().agent.as_str(), "counter/a/b ä");
}

#[tokio::test(start_paused = true)]
async fn bad_input_names_the_field_and_what_is_accepted() {
    let scene = Scene::new().await;
    let long = "k".repeat(129);
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let rows: [(&str, Headers<'_>, &str, &str); 9] = [
        ("/v1/agents/cou%20nter/a/add", &[], "", "agent"),
        ("/v1/agents/a%2Fb/c/add", &[], "", "type"),
        ("/v1/agents/counter/%00/add", &[], "", "agent"),
        ("/v1/agents/counter/%FF/add", &[], "", "path"),
        (ADD, &[("Idempotency-Key", "")], "", "idempotency-key"),
        (ADD, &[("Idempotency-Key", &long)], "", "idempotency-key"),
        (ADD, &[("Leasehold-Timeout", "5 parsecs")], "", "leasehold-timeout"),
        (ADD, &[("Leasehold-Timeout", "0s")], "", "leasehold-timeout"),
        (ADD, &[], "{not json", "payload"),
    ];
    for (path, headers, body, field) in rows {
        let answer = scene.post(path, headers, body).await;
        let problem = answer.problem();
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {headers:?}");
        assert_eq!(problem["reason"], "INVALID_FIELD");
        assert_eq!(problem["field"], field, "{path} {headers:?}");
        assert!(problem["accepted"].as_str().is_some_and(|accepted| !accepted.is_empty()));
    }
    assert!(scene.executor.last.lock().unwrap().is_none(), "nothing of it reached an executor");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_shown_as_it_was_given_and_what_the_parser_said_apart() {
    let scene = Scene::new().await;
    let rows = [
        (ADD, "{bad", "{bad", "one JSON value, or nothing (key must be a string at line 1 column 2)"),
        ("/v1/agents/counter/%FF/add", "", "/v1/agents/counter/%FF/add", "percent-encoded UTF-8 ("),
    ];
    for (path, body, value, accepted) in rows {
        let problem = scene.post(path, &[], body).await.problem();
        assert_eq!(problem["value"], value);
        assert!(problem["accepted"].as_str().unwrap().starts_with(accepted), "{problem}");
    }
    let long = format!("[{}", "1,".repeat(1000));
    let problem = scene.post(ADD, &[], long).await.problem();
    assert_eq!(problem["value"].as_str().unwrap().len(), 80, "shortened");
}

#[tokio::test(start_paused = true)]
async fn a_body_over_a_mebibyte_is_refused_and_one_of_a_mebibyte_is_not() {
    let scene = Scene::new().await;
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    assert_eq!(scene.post(ADD, &[], text(BODY_MOST)).await.status, StatusCode::OK);
    let answer = scene.post(ADD, &[], text(BODY_MOST + 1)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.problem()["reason"], "BODY_TOO_LARGE");
}

#[tokio::test(start_paused = true)]
async fn every_final_refusal_is_a_problem_with_its_status_and_reason() {
    let scene = Scene::new().await;
    let rows = [
        (Refusal::UnknownMethod { what: "counter/jump".into() }, 404, "UNKNOWN_METHOD", "what"),
        (Refusal::InvocationRejected { why: "below zero".into() }, 422, "INVOCATION_REJECTED", "why"),
    ];
    for (refusal, status, reason, detail) in rows {
        scene.fail(refusal.clone());
        let answer = scene.post(ADD, &[], "1").await;
        let problem = answer.problem();
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!((problem["status"].as_u64(), problem["reason"].as_str()), (Some(status.into()), Some(reason)));
        assert_eq!(problem["detail"], refusal.to_string());
        assert!(problem["type"].as_str().unwrap().ends_with(&format!("errors.md#{}", reason.to_lowercase())));
        assert!(problem[detail].is_string(), "{problem}");
        assert_eq!(problem["tried"][0]["executor"], "executor-1");
        assert_eq!(answer.header("retry-after"), None);
        assert_eq!(answer.header("leasehold-shard"), Some("0"));
        assert_eq!(answer.header("leasehold-epoch"), Some("4"));
        assert_eq!(answer.header("leasehold-owner"), Some("executor-1 host:1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_504_and_says_what_was_tried_and_whether_it_may_have_run() {
    let scene = Scene::new().await;
    let rows = [
        (CallError::from(Refusal::ShardingNotReady { executor: "executor-1".into() }), false),
        (CallError::Unknown("reset".into()), true),
    ];
    for (error, may_have_run) in rows {
        scene.fail(error);
        let began = tokio::time::Instant::now();
        let answer = scene.post(ADD, &[("Leasehold-Timeout", "2s")], "1").await;
        assert!(began.elapsed() <= Duration::from_secs(2));
        let problem = answer.problem();
        assert_eq!((answer.status.as_u16(), problem["reason"].as_str()), (504, Some("DEADLINE_EXCEEDED")));
        assert_eq!(problem["may_have_run"], may_have_run);
        assert!(problem["tried"][0]["times"].as_u64().unwrap() > 1, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("executor-1 at host:1"), "{problem}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
}

#[tokio::test(start_paused = true)]
async fn overload_until_the_deadline_is_429_with_retry_after() {
    let scene = Scene::new().await;
    scene.fail(Refusal::Overloaded { resource: "agents".into(), used: 9, limit: 9 });
    let answer = scene.post(ADD, &[("Leasehold-Timeout", "1s")], "1").await;
    assert_eq!((answer.status.as_u16(), answer.problem()["reason"].as_str()), (429, Some("OVERLOADED")));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.problem()["limit"], "9");
}

#[test]
fn a_wrong_owner_is_421_and_names_the_owner_in_body_and_headers() {
    use axum::response::IntoResponse;
    let refusal = Refusal::WrongOwner { shard: ShardId(3), owner: Some(owner()), revision: Revision(8) };
    let response = super::problem::Problem::refused(&refusal).into_response();
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(response.headers()["leasehold-owner"], "executor-1 host:1");
    assert_eq!(response.headers()["leasehold-shard"], "3");
}

#[tokio::test(start_paused = true)]
async fn unknown_paths_and_methods_are_problems_too() {
    let scene = Scene::new().await;
    let answer = scene.post("/v1/agents/counter", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.problem()["reason"].as_str()), (404, Some("NO_SUCH_PATH")));
    let answer = scene.send(Request::get(ADD).body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.problem()["reason"].as_str()), (405, Some("METHOD_NOT_ALLOWED")));
}

/// The sections of `docs/errors.md` that are the gateway's own: reason, status, `Retry-After`, details.
fn documented() -> Vec<(String, String)> {
    let page = include_str!("../../docs/errors.md");
    let sections = page.split("\n## `").skip(1).filter_map(|section| section.split_once("`\n\n"));
    let ours = sections.filter(|(_, text)| text.starts_with("HTTP "));
    ours.map(|(reason, text)| (reason.to_owned(), text.lines().next().unwrap_or_default().to_owned())).collect()
}

fn facts(answer: &Answer) -> (String, String) {
    let problem = answer.problem();
    let plain = ["type", "title", "status", "detail", "reason", "retry_after_ms"];
    let details = problem.as_object().unwrap().keys().filter(|name| !plain.contains(&name.as_str()));
    let details: Vec<_> = details.map(|name| format!("`{name}`")).collect();
    let details = if details.is_empty() { "none".to_owned() } else { details.join(", ") };
    let wait = answer.header("retry-after").map_or_else(|| "none".to_owned(), |wait| format!("{wait} s"));
    let line = format!("HTTP {} | Retry-After {wait} | details: {details}", answer.status.as_u16());
    (problem["reason"].as_str().unwrap().to_owned(), line)
}

#[tokio::test(start_paused = true)]
async fn every_reason_that_only_http_knows_has_a_section_in_docs_errors() {
    let scene = Scene::new().await;
    scene.fail(CallError::Unknown("reset".into()));
    let answers = [
        scene.post(ADD, &[("Leasehold-Timeout", "1s")], "1").await,
        scene.post(ADD, &[], vec![b'1'; BODY_MOST + 1]).await,
        scene.post("/v1/agents/counter", &[], "").await,
        scene.send(Request::get(ADD).body(Body::empty()).unwrap()).await,
    ];
    assert_eq!(answers.iter().map(facts).collect::<Vec<_>>(), documented());
}

#[tokio::test(start_paused = true)]
async fn health_tells_ready_from_alive_and_metrics_count_calls() {
    let scene = Scene::new().await;
    let get = async |scene: &Scene, path: &str| scene.send(Request::get(path).body(Body::empty()).unwrap()).await;
    scene.post(ADD, &[], "1").await;
    assert_eq!(get(&scene, "/livez").await.status, StatusCode::OK);
    assert_eq!(get(&scene, "/readyz").await.status, StatusCode::OK);
    let metrics = get(&scene, "/metrics").await;
    assert!(metrics.body.contains("leasehold_router_calls_total{outcome=\"replayed\"} 1"), "{}", metrics.body);

    let dial = |_: &Address| Err(CallError::Unreachable("nobody".into()));
    let manager = Arc::new(Manager { answers: false });
    let router = Router::new(only(manager), Arc::new(dial), RouterSettings::default());
    let alone = Scene { routes: routes(router, Duration::from_secs(30)), executor: Arc::default() };
    assert_eq!(get(&alone, "/livez").await.status, StatusCode::OK);
    let not_ready = get(&alone, "/readyz").await;
    assert_eq!(not_ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(not_ready.body.contains("routing table"), "{}", not_ready.body);
    let answer = alone.post(ADD, &[("Leasehold-Timeout", "1s")], "1").await;
    assert_eq!(answer.problem()["tried"][0]["answers"], json!({ "NO_TABLE": answer.problem()["tried"][0]["times"] }));
}
