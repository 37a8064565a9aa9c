//! Executors whose oplogs are on a server that they share.

use crate::processes::{Place, Process, text};
use leasehold_harness::{Postgres, Redis};

const AGENTS: usize = 8;

/// Two executors on `url`; the one that has answered most is killed, and the other one goes on with its counters.
fn a_killed_executors_counters_go_on_at_the_other_one(url: &str) {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let url = format!("oplog.url={url}");
    let start = |name: &str| place.executor(&address, name, &["--set", &url]);
    let mut executors = [start("executor-1"), start("executor-2")];
    place.served(&address, 2);
    let count = |expected: u64| {
        for number in 0..AGENTS {
            let answer = place.invoke(&address, &format!("counter/{number}"), "increment");
            assert_eq!(answer["payload"]["value"], expected, "counter/{number}: {answer}");
        }
    };
    (1..=3).for_each(count);
    executors[0].kill();
    count(4);
    place.served(&address, 1);
    executors[0] = start("executor-1");
    place.served(&address, 2);
    count(5);
    assert!(executors.iter_mut().all(Process::is_running));
}

#[test]
fn a_killed_executors_counters_go_on_at_the_other_one_on_postgresql() {
    let server = Postgres::start();
    a_killed_executors_counters_go_on_at_the_other_one(&server.url());
    assert_eq!(server.sql("SELECT sum(next - 1) FROM leasehold_oplogs.records"), (AGENTS * 5).to_string());
}

#[test]
fn a_killed_executors_counters_go_on_at_the_other_one_on_redis() {
    a_killed_executors_counters_go_on_at_the_other_one(&Redis::start().url());
}

/// What the operator should know of the server stands in the log.
#[test]
fn a_server_that_may_lose_what_it_acknowledged_is_warned_about_in_the_log() {
    let (place, server) = (Place::new(), Redis::start_with(&[("appendfsync", "everysec")]));
    let mut manager = place.manager_with(&[]);
    let url = format!("oplog.url={}", server.url());
    let mut executor = place.executor(&manager.address(), "executor-1", &["--set", &url]);
    assert!(executor.logged("oplog.url", "warning").contains("set appendfsync always"));
}

/// 78 tells a supervisor that starting again will not help.
#[test]
fn a_server_that_cannot_keep_oplogs_is_refused_with_78_and_one_that_is_away_with_75() {
    let place = Place::new();
    let cluster = Redis::start_with(&[("cluster-enabled", "yes")]);
    let mut away = Redis::start();
    let serve = |url: &str| {
        let url = format!("oplog.url={url}");
        let listen = ["--set", "listen.grpc=127.0.0.1:0", "--set", "listen.http=127.0.0.1:0"];
        let output = place.executor_command(&[&["serve", "--set", &url], &listen[..]].concat());
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = serve(&cluster.url());
    assert!(said.contains(&format!("oplog.url = {}", cluster.url())) && said.contains("Cluster mode"), "{said}");
    assert_eq!(code, Some(78), "{said}");
    let url = away.url();
    away.kill();
    let (code, said) = serve(&url);
    assert_eq!(code, Some(75), "{said}");
    let (code, said) = serve("postgres://nobody:secret@127.0.0.1:1/x");
    assert_eq!(code, Some(75), "{said}");
    assert!(!said.contains("secret"), "{said}");
}
