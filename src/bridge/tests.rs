//! Questions against an application over real HTTP.

use super::*;
use crate::agents::{Admission, Question, Undecided};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::routing::{any, post};
use leasehold_model::{AgentId, ShardEpoch};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::Notify;

async fn served(routes: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

fn question(id: &str) -> Question {
    Question {
        agent: AgentId::new(format!("cart/{id}")).unwrap(),
        method: "add".into(),
        payload: json!({"item": "tea"}),
        state: json!({"items": []}),
        idempotency_key: Some("k".into()),
        epoch: ShardEpoch::new(7).unwrap(),
    }
}

async fn asked(url: &str, settings: BridgeSettings) -> Result<Decision, Undecided> {
    let bridge = Bridge::new("cart", url, settings).unwrap();
    bridge.decider().unwrap().decide(question("a"), Admission::new(|| true)).await
}

/// What an application that always answers this comes to.
async fn answered(status: u16, body: &'static str) -> Result<Decision, Undecided> {
    let status = StatusCode::from_u16(status).unwrap();
    let routes = Router::new().fallback(any(move || async move { (status, [(header::LOCATION, "/x")], body) }));
    asked(&served(routes).await, BridgeSettings::default()).await
}

#[tokio::test]
async fn a_question_arrives_whole_and_its_answer_is_the_decision() {
    let seen = Arc::new(Mutex::new(None));
    let (kept, method) = (Arc::clone(&seen), "/base/agents/{type}/{id}/{method}");
    let handler = move |Path(path): Path<(String, String, String)>, body: Bytes| async move {
        *kept.lock().unwrap() = Some((path, serde_json::from_slice::<Value>(&body).unwrap()));
        r#"{"answer": {"count": 1}, "entries": [{"items": ["tea"]}]}"#
    };
    let url = served(Router::new().route(method, post(handler))).await;
    let bridge = Bridge::new("cart", &format!("{url}/base/"), BridgeSettings::default()).unwrap();
    let decided = bridge.decider().unwrap().decide(question("a/b ü"), Admission::new(|| true)).await;
    let events = vec![json!({"merge": {"items": ["tea"]}})];
    assert_eq!(decided, Ok(Decision::Append { events, answer: json!({"count": 1}) }));
    let (path, body) = seen.lock().unwrap().take().unwrap();
    assert_eq!(path, ("cart".into(), "a/b ü".into(), "add".into()));
    let expected = json!({"state": {"items": []}, "payload": {"item": "tea"}, "idempotency_key": "k", "epoch": 7});
    assert_eq!(body, expected);
}

#[tokio::test]
async fn each_status_is_what_docs_agents_says_of_it() {
    assert_eq!(answered(422, " out of stock\n").await, Ok(Decision::Reject("out of stock".into())));
    assert_eq!(answered(404, "").await, Ok(Decision::Reject("status 404 Not Found".into())));
    for status in [500, 503, 408, 425, 429] {
        let Err(Undecided::Away(why)) = answered(status, "later").await else { panic!("{status}") };
        assert!(why.contains(&status.to_string()) && why.ends_with(": later"), "{why}");
    }
    for (status, body, named) in
        [(302, "", "302"), (204, "", "204"), (200, "{}", "field answer"), (200, "x", "no JSON")]
    {
        let Err(Undecided::Unusable(why)) = answered(status, body).await else { panic!("{status} {body}") };
        assert!(why.contains(named), "{why}");
    }
}

#[tokio::test]
async fn an_answer_is_read_to_its_bound_and_no_further() {
    let routes = Router::new().fallback(any(|| async { vec![b' '; ANSWER_MOST + 1] }));
    let Err(Undecided::Unusable(why)) = asked(&served(routes).await, BridgeSettings::default()).await else { panic!() };
    assert!(why.contains("1048576 bytes"), "{why}");
}

#[tokio::test]
async fn an_application_that_is_down_or_silent_is_away() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let Err(Undecided::Away(why)) = asked(&format!("http://{gone}"), BridgeSettings::default()).await else { panic!() };
    assert!(why.contains("refused"), "{why}");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = BridgeSettings { timeout: Duration::from_millis(50), ..BridgeSettings::default() };
    let answer = asked(&format!("http://{}", silent.local_addr().unwrap()), settings).await;
    assert_eq!(answer, Err(Undecided::Away("no answer within 50ms".into())));
}

/// F6: what is dropped is closed, and the application can see it.
#[tokio::test]
async fn dropping_a_question_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asking = tokio::spawn(async move { asked(&url, BridgeSettings::default()).await });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut byte = [0];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut byte).await.unwrap();
    asking.abort();
    let mut rest = Vec::new();
    let closed = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    drop(tokio::time::timeout(Duration::from_secs(20), closed).await.expect("it is closed"));
}

#[tokio::test]
async fn no_more_calls_are_under_way_at_once_than_are_allowed() {
    let (now, most, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, greatest, gate) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&go));
    let handler = move || async move {
        greatest.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        gate.notified().await;
        counted.fetch_sub(1, Ordering::SeqCst);
        r#"{"answer": 1}"#
    };
    let url = served(Router::new().fallback(any(handler))).await;
    let settings = BridgeSettings { calls: 2, timeout: Duration::from_secs(20) };
    let decider = Bridge::new("cart", &url, settings).unwrap().decider().unwrap();
    let asking = (0..6).map(|_| {
        let decider = Arc::clone(&decider);
        tokio::spawn(async move { decider.decide(question("a"), Admission::new(|| true)).await })
    });
    let asking: Vec<_> = asking.collect();
    let all = async {
        for one in asking {
            assert_eq!(one.await.unwrap(), Ok(Decision::Answer(json!(1))));
        }
    };
    tokio::pin!(all);
    // Let go of them one by one; a permit that nobody waits for yet is kept.
    while tokio::time::timeout(Duration::from_millis(20), &mut all).await.is_err() {
        go.notify_one();
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

/// F6: it waited for a place, and the lease ended meanwhile.
#[tokio::test]
async fn a_question_that_had_to_wait_is_not_sent_once_its_shard_is_lost() {
    let (arrived, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, gate) = (Arc::clone(&arrived), Arc::clone(&go));
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        gate.notified().await;
        r#"{"answer": 1}"#
    };
    let url = served(Router::new().fallback(any(handler))).await;
    let settings = BridgeSettings { calls: 1, timeout: Duration::from_secs(20) };
    let decider = Bridge::new("cart", &url, settings).unwrap().decider().unwrap();
    let held = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let ask = || {
        let (decider, held) = (Arc::clone(&decider), Arc::clone(&held));
        let admission = Admission::new(move || held.load(Ordering::SeqCst));
        tokio::spawn(async move { decider.decide(question("a"), admission).await })
    };
    let first = ask();
    while arrived.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = ask();
    tokio::time::sleep(Duration::from_millis(20)).await;
    held.store(false, Ordering::SeqCst);
    go.notify_one();
    assert_eq!(first.await.unwrap(), Ok(Decision::Answer(json!(1))));
    assert_eq!(second.await.unwrap(), Err(Undecided::Away("its shard is not held any more".into())));
    assert_eq!(arrived.load(Ordering::SeqCst), 1);
}

#[test]
fn a_bridged_state_is_the_same_replayed_and_restored() {
    let bridge = State(Value::Null);
    assert_eq!(bridge.decide("any", &Value::Null), Decision::Outside(Value::Null));
    let events = [json!({"merge": {"a": 1}}), json!({"set": {"b": [null]}}), json!({"merge": {"c": {"d": 2}}})];
    let mut state = State(Value::Null);
    events.iter().for_each(|event| state.apply(event).unwrap());
    assert_eq!(state.0, json!({"b": [null], "c": {"d": 2}}));
    let mut restored = State(Value::Null);
    restored.restore(&state.snapshot()).unwrap();
    assert_eq!(restored.0, state.0);
    for event in [json!({}), json!({"set": 1, "merge": 2}), json!({"other": 1}), json!(3), Value::Null] {
        assert!(state.apply(&event).is_err(), "{event}");
    }
    assert!(state.restore(b"{").is_err());
}
