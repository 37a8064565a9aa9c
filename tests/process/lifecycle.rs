//! Deleting and listing agents of real processes, and agents whose behaviour is a real Python program.

use crate::processes::{Place, Process, executor_binary, text, wait_for};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn invoke(place: &Place, manager: &str, args: &[&str]) -> std::process::Output {
    place.executor_command(&[&["invoke", "--manager", manager], args].concat())
}

/// What a call that must end well answered.
fn answered(place: &Place, manager: &str, args: &[&str]) -> Value {
    let output = invoke(place, manager, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn listed(place: &Place, manager: &str) -> Vec<(String, String)> {
    let output = place.executor_command(&["agents", "--manager", manager, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["more"], json!(false));
    let field = |agent: &Value, name: &str| agent[name].as_str().unwrap().to_owned();
    list["agents"].as_array().unwrap().iter().map(|agent| (field(agent, "agent"), field(agent, "standing"))).collect()
}

/// F5 from a terminal: gone, gone again, and anew.
#[test]
fn an_agent_is_deleted_listed_no_more_and_begins_anew() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    answered(&place, &address, &["counter/a", "increment", r#"{"by": 5}"#]);
    answered(&place, &address, &["counter/b", "increment"]);
    let idle = |names: &[&str]| {
        let mut all: Vec<_> = names.iter().map(|name| ((*name).to_owned(), "idle".to_owned())).collect();
        all.sort();
        all
    };
    let sorted = || {
        let mut all = listed(&place, &address);
        all.sort();
        all
    };
    assert_eq!(sorted(), idle(&["counter/a", "counter/b"]));
    for _ in 0..2 {
        let output = place.executor_command(&["delete", "counter/a", "--manager", &address]);
        assert_eq!(text(&output.stdout).trim(), "deleted counter/a", "{}", text(&output.stderr));
    }
    assert_eq!(sorted(), idle(&["counter/b"]));
    assert_eq!(answered(&place, &address, &["counter/a", "increment"]), json!({"value": 1}));
    let output = place.executor_command(&["agents", "--manager", &address, "--shard", "99"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("shards 0 to 15"), "{}", text(&output.stderr));
}

/// F5, case 30: the owner freezes with the deletion in its hands; the next one finishes it, and the first, awake again, brings nothing back.
#[test]
fn a_deletion_at_a_frozen_owner_is_finished_by_the_next_and_stays_done_when_it_wakes() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let first = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    answered(&place, &address, &["counter/a", "increment", r#"{"by": 5}"#]);
    first.signal(rustix::process::Signal::STOP);
    let deleting = Command::new(executor_binary())
        .args(["delete", "counter/a", "--manager", &address, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _second = place.executor(&address, "executor-2", &[]);
    let output = deleting.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let deleted: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(deleted["executor"], json!("executor-2"));
    first.signal(rustix::process::Signal::CONT);
    wait_for("the first executor's return", || {
        let status = place.status(&address)?;
        status.to_string().contains("executor-1").then_some(())
    });
    assert_eq!(listed(&place, &address), []);
    assert_eq!(answered(&place, &address, &["counter/a", "increment"]), json!({"value": 1}));
}

/// The example application, on a port of its own choice or on one that it had before.
struct App {
    child: Child,
    url: String,
}

impl App {
    fn start(port: &str) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bridge/cart.py");
        let mut child = Command::new("python3")
            .arg(program)
            .arg(port)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 is needed for this test");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "{url:?}");
        Self { child, url: url.trim().to_owned() }
    }

    fn port(&self) -> &str {
        self.url.rsplit_once(':').unwrap().1
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // It may have been killed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn bridging(place: &Place, manager: &str, name: &str, app: &App) -> Process {
    place.executor(manager, name, &["--set", &format!("bridge.apps=cart={}", app.url)])
}

#[test]
fn a_cart_in_python_survives_its_executor_and_itself_and_no_entry_is_doubled() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let mut app = App::start("0");
    let mut first = bridging(&place, &address, "executor-1", &app);
    place.served(&address, 1);
    let add = ["cart/al ice", "add", r#"{"item": "tea", "count": 2}"#, "--idempotency-key", "k-1"];
    assert_eq!(answered(&place, &address, &add), json!({"item": "tea", "count": 2}));
    assert_eq!(answered(&place, &address, &add), json!({"item": "tea", "count": 2}), "the same key adds nothing");
    let rejected = invoke(&place, &address, &["cart/al ice", "remove", r#"{"item": "milk"}"#]);
    assert_eq!(rejected.status.code(), Some(1));
    assert!(text(&rejected.stderr).contains("there is no milk in the cart"), "{}", text(&rejected.stderr));

    first.kill();
    let port = app.port().to_owned();
    app.kill();
    let _second = bridging(&place, &address, "executor-2", &app);
    wait_for("the shards at the second executor", || {
        let owners = place.owners(&address).to_string();
        (!owners.contains("executor-1") && owners.contains("executor-2")).then_some(())
    });
    // The application is down: what is known needs it not, what is new waits for it.
    assert_eq!(answered(&place, &address, &add), json!({"item": "tea", "count": 2}), "from the oplog");
    let down = invoke(&place, &address, &["cart/al ice", "show", "--timeout", "2s"]);
    assert_eq!(down.status.code(), Some(75), "{}", text(&down.stderr));
    assert!(text(&down.stderr).contains("APP_UNAVAILABLE"), "{}", text(&down.stderr));
    let waiting = Command::new(executor_binary())
        .args(["invoke", "--manager", &address, "cart/al ice", "add", r#"{"item": "tea"}"#])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _app = App::start(&port);
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), json!({"item": "tea", "count": 3}));
    assert_eq!(answered(&place, &address, &["cart/al ice", "show"]), json!({"items": {"tea": 3}}));
    assert_eq!(answered(&place, &address, &["cart/al ice", "clear"]), json!({"removed": 1}));
    assert_eq!(answered(&place, &address, &["cart/al ice", "show"]), json!({"items": {}}));
}

#[test]
fn a_bridged_type_that_the_executor_has_itself_is_refused_at_start() {
    let place = Place::new();
    let output = place.executor_command(&["serve", "--set", "bridge.apps=counter=http://127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(78));
    let said = text(&output.stderr);
    assert!(
        said.contains("bridge.apps: counter=http://127.0.0.1:9") && said.contains("call yours something else"),
        "{said}"
    );
}

#[test]
fn agents_of_a_type_that_an_executor_does_not_know_wait_untouched_for_one_that_does() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let app = App::start("0");
    let mut knows = bridging(&place, &address, "executor-1", &app);
    place.served(&address, 1);
    for id in ["cart/a", "cart/b"] {
        answered(&place, &address, &[id, "add", r#"{"item": "tea"}"#]);
    }
    knows.kill();
    let mut ignorant = place.executor(&address, "executor-2", &[]);
    let warned = |log: String| {
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let about = |line: &Value| line["level"] == "WARN" && line["kind"] == "cart";
        lines.filter(about).map(|line| line["agents"].as_u64().unwrap()).sum::<u64>()
    };
    wait_for("the warning", || (warned(ignorant.log()) == 2).then_some(()));
    let refused = invoke(&place, &address, &["cart/a", "show"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("agent type cart"), "{}", text(&refused.stderr));
    let unloaded = ["cart/a", "cart/b"].map(|id| (id.to_owned(), "unloaded".to_owned()));
    let mut all = listed(&place, &address);
    all.sort();
    assert_eq!(all, unloaded);
    ignorant.terminate();
    assert_eq!(ignorant.ended().code(), Some(0));
    let _again = bridging(&place, &address, "executor-3", &app);
    wait_for("the shards at the third executor", || {
        place.owners(&address).to_string().contains("executor-3").then_some(())
    });
    assert_eq!(
        answered(&place, &address, &["cart/a", "add", r#"{"item": "tea"}"#]),
        json!({"item": "tea", "count": 2})
    );
}
