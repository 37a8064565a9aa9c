//! `shard-executor oplog check | dump | stats | clear-epochs` on every backend.

use crate::processes::{Place, text, wait_for};
use leasehold_harness::{Postgres, Redis};
use serde_json::Value;
use std::process::Output;

/// A cluster on `url` whose counters were incremented, and the commands on it.
struct Kit<'a> {
    place: Place,
    url: &'a str,
}

impl Kit<'_> {
    fn oplog(&self, words: &[&str]) -> Output {
        let fast = ["--set", "lease.profile=fast"];
        self.place.executor_command(&[&["oplog", "--url", self.url], words, &fast].concat())
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.oplog(words);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {}", text(&output.stderr)))
    }
}

/// The whole kit, while executors run and after they were stopped. `harm` breaks the epochs of a stored entry or record.
fn the_kit_on(url: &str, harm: impl FnOnce(&Place)) {
    let kit = Kit { place: Place::new(), url };
    let mut manager = kit.place.manager_with(&[]);
    let address = manager.address();
    let oplogs = format!("oplog.url={url}");
    let executor = kit.place.executor(&address, "executor-1", &["--set", &oplogs, "--set", "oplog.snapshot_every=2"]);
    kit.place.served(&address, 1);
    for round in 1..=3 {
        for agent in ["counter/a", "counter/b", "kv/c"] {
            if agent.starts_with("kv") {
                let pair = format!(r#"{{"key":"k{round}","value":{round}}}"#);
                let words = ["invoke", agent, "put", &pair, "--manager", &address];
                assert!(kit.place.executor_command(&words).status.success());
            } else {
                kit.place.invoke(&address, agent, "increment");
            }
        }
    }
    let report = kit.json(&["check", "--json"]);
    assert_eq!((&report["verdict"], &report["oplogs"]), (&"proven".into(), &3.into()), "{report}");
    let output = kit.oplog(&["dump", "counter/a"]);
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let values: Vec<_> =
        lines.iter().filter(|line| line["kind"] == "invocation").map(|line| &line["answer"]["value"]).collect();
    assert_eq!(values, [1, 2, 3], "{lines:?}");
    let nobody = kit.oplog(&["dump", "counter/nobody"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("has no oplog of counter/nobody"), "{}", text(&nobody.stderr));
    let stats = kit.json(&["stats", "--json"]);
    assert_eq!(
        (&stats["types"]["counter"]["oplogs"], &stats["types"]["kv"]["oplogs"]),
        (&2.into(), &1.into()),
        "{stats}"
    );

    let held = kit.oplog(&["clear-epochs", "--yes", "--manager", &address]);
    assert_eq!(held.status.code(), Some(1), "{}", text(&held.stderr));
    assert!(text(&held.stderr).contains("executor-1") && text(&held.stderr).contains("nothing was cleared"));
    executor.terminate();
    kit.place.served_by_nobody(&address);
    let cleared = wait_for("a manager that leads for a lease", || {
        let output = kit.oplog(&["clear-epochs", "--yes", "--manager", &address]);
        (output.status.code() != Some(75)).then_some(output)
    });
    assert_eq!(cleared.status.code(), Some(0), "{}", text(&cleared.stderr));
    assert_eq!(text(&cleared.stdout).lines().count(), 3);
    manager.kill();
    let away = kit.oplog(&["clear-epochs", "--yes", "--manager", &address]);
    assert_eq!(away.status.code(), Some(69), "{}", text(&away.stderr));
    assert!(text(&away.stderr).contains("--no-executor-runs"));
    let unasked = kit.oplog(&["clear-epochs", "--manager", &address, "--no-executor-runs"]);
    assert_eq!(unasked.status.code(), Some(64), "{}", text(&unasked.stderr));
    std::fs::write(kit.place.path().join("cleared"), &cleared.stdout).unwrap();
    assert_eq!(kit.oplog(&["check", "--cleared", "cleared"]).status.code(), Some(0));

    harm(&kit.place);
    let refuted = kit.oplog(&["check", "--json", "--cleared", "cleared"]);
    assert_eq!(refuted.status.code(), Some(1), "{}", text(&refuted.stderr));
    let report: Value = serde_json::from_slice(&refuted.stdout).unwrap();
    let finding = &report["findings"][0];
    assert_eq!(finding["agent"], "counter/a", "{report}");
    let people = text(&kit.oplog(&["check", "--cleared", "cleared"]).stdout);
    assert!(people.contains("counter/a") && people.contains("refuted"), "{people}");
}

#[test]
fn the_oplog_commands_prove_dump_count_and_refute_on_sqlite() {
    the_kit_on("sqlite:oplogs", |place| {
        let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
            c.execute(\"DELETE FROM entries WHERE idx = 2 AND oplog = (SELECT id FROM records WHERE agent = 'counter/a')\"); c.commit()";
        let file = place.path().join("oplogs/gen-000001.db");
        assert!(std::process::Command::new("python3").args(["-c", script]).arg(file).status().unwrap().success());
    });
}

#[test]
fn the_oplog_commands_prove_dump_count_and_refute_on_postgresql() {
    let server = Postgres::start();
    the_kit_on(&server.url(), |_| {
        server.sql(
            "DELETE FROM leasehold_oplogs.entries e USING leasehold_oplogs.records r \
             WHERE r.id = e.oplog AND r.agent = 'counter/a' AND e.idx = 2",
        );
    });
}

#[test]
fn the_oplog_commands_prove_dump_count_and_refute_on_redis() {
    let server = Redis::start();
    the_kit_on(&server.url(), |_| {
        server.command(&["HDEL", "leasehold:leasehold:{counter/a}:oplog", "2"]);
    });
}

/// What cannot be read is named with what to do, and the exit code says whose matter it is.
#[test]
fn a_store_that_cannot_be_read_is_refused_by_name() {
    let place = Place::new();
    let run = |url: &str| {
        let output = place.executor_command(&["oplog", "check", "--url", url]);
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = run("memory:");
    assert!(code == Some(78) && said.contains("name sqlite:, postgres: or redis:"), "{said}");
    let (code, said) = run("sqlite:nowhere");
    assert!(code == Some(78) && said.contains("nowhere: there is no such folder"), "{said}");
    assert!(!place.path().join("nowhere").exists(), "nothing is made");
    let (code, said) = run("redis://127.0.0.1:1");
    assert!(code == Some(75) && said.contains("oplog.url = redis://127.0.0.1:1"), "{said}");
}
