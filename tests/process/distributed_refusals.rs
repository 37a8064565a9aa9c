//! What a manager on etcd refuses: docs/bad-input.md's rows for distributed mode. Each a clear message and its exit code; nothing is
//! written.

use crate::processes::{Place, Process, wait_for};
use crate::replicas::{LONG, REDIRECT, Replicas, list};
use std::fs;

/// Its end with this code, and what it said.
fn ended_with(process: &mut Process, code: i32, says: &[&str]) {
    let ended = process.ended();
    let said = process.log();
    assert_eq!(ended.code(), Some(code), "{said}");
    let last = said.lines().last().unwrap_or_default();
    for part in says {
        assert!(last.contains(part), "{part:?} is not in: {said}");
    }
}

/// Case 37
#[test]
fn a_standby_with_another_shard_count_ends_with_78_and_names_both() {
    let cluster = Replicas::new();
    let managers = cluster.managers(1, LONG);
    wait_for("the first write", || (!cluster.stored().is_empty()).then_some(()));
    let before = cluster.stored();
    let mut other = cluster.begin("127.0.0.1:0", &["--set", "cluster.shard_count=32"]);
    ended_with(&mut other, 78, &["has shard_count 16", "configured for 32"]);
    assert_eq!(cluster.queue().len(), 1, "it left the queue alone");
    assert_eq!(cluster.stored(), before);
    assert!(managers[0].leads());
}

/// A state that cannot be read is left to people: whoever is elected says which key it is, and writes nothing.
#[test]
fn a_state_that_cannot_be_read_ends_who_takes_over_and_names_the_key() {
    let cluster = Replicas::new();
    let newer = r#"{"schema":99}"#;
    for (part, value, code) in
        [("shards/", "no JSON", 1), ("executors/", "{}", 1), ("head", "no JSON", 1), ("head", newer, 78)]
    {
        let mut managers = cluster.managers(2, &[REDIRECT, LONG].concat());
        let mut executor = cluster.executor(&list(&managers), "executor-1");
        cluster.place.served(&list(&managers), 1);
        // So that nobody renews: the leader would look at the head.
        executor.kill();
        let prefix = format!("/leasehold/leasehold/{part}");
        let key = cluster.etcd.ctl(&["get", "--prefix", "--keys-only", "--limit=1", &prefix]);
        let key = key.trim();
        let kept = cluster.etcd.ctl(&["get", "--print-value-only", key]);
        cluster.etcd.ctl(&["put", key, value]);
        let before = cluster.stored();
        managers[0].process.terminate();
        ended_with(&mut managers[1].process, code, &[key]);
        assert_eq!(managers[0].process.ended().code(), Some(0));
        assert_eq!(cluster.stored(), before, "{key} = {value}");
        assert_eq!(cluster.queue(), Vec::<String>::new());
        cluster.etcd.ctl(&["put", key, kept.trim_end()]);
    }
}

/// `store.user` and `store.password_file`: refused ones end the process, also when etcd comes later, and good ones live through a
/// restart of etcd, which forgets whom it has let in.
#[test]
fn credentials_that_etcd_refuses_end_the_process_with_78() {
    let mut cluster = Replicas::new();
    for args in [
        &["role", "add", "managers"][..],
        &["role", "grant-permission", "managers", "--prefix=true", "readwrite", "/leasehold/leasehold/"],
        &["user", "add", "leasehold:right"],
        &["user", "grant-role", "leasehold", "managers"],
        &["user", "add", "stranger:right"],
        &["role", "add", "readers"],
        &["role", "grant-permission", "readers", "--prefix=true", "read", "/leasehold/leasehold/"],
        &["user", "add", "reader:right"],
        &["user", "grant-role", "reader", "readers"],
        &["user", "add", "root:root"],
        &["auth", "enable"],
    ] {
        cluster.etcd.ctl(args);
    }
    for word in ["right", "wrong"] {
        fs::write(cluster.place.path().join(word), format!("{word}\n")).unwrap();
    }
    let with = |user: &str, word: &str| {
        [format!("store.user={user}"), format!("store.password_file={word}")].map(|setting| ["--set".into(), setting])
    };
    let begin = |cluster: &Replicas, user: &str, word: &str| {
        let args: Vec<String> = with(user, word).concat();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        cluster.begin("127.0.0.1:0", &[REDIRECT, &args].concat())
    };
    ended_with(&mut begin(&cluster, "leasehold", "wrong"), 78, &["store.user"]);
    ended_with(&mut begin(&cluster, "stranger", "right"), 78, &["permission denied"]);
    ended_with(&mut begin(&cluster, "reader", "right"), 78, &["permission denied", "read and write"]);
    ended_with(&mut cluster.begin("127.0.0.1:0", REDIRECT), 78, &["store.user"]);

    cluster.etcd.kill();
    let mut late = begin(&cluster, "leasehold", "wrong");
    late.address();
    let mut right = begin(&cluster, "leasehold", "right");
    right.address();
    cluster.etcd.restart();
    ended_with(&mut late, 78, &["store.user"]);
    let leads = |right: &Process, times| right.every("this process leads", "candidacy").len() >= times;
    wait_for("its leadership", || leads(&right, 1).then_some(()));
    cluster.etcd.restart();
    let list = right.address();
    wait_for("an answer", || cluster.place.status(&list));
    assert!(right.is_running());
}

#[test]
fn a_password_file_that_is_not_there_is_named() {
    let place = Place::new();
    let etcd = ["--set", "store.url=etcd:http://127.0.0.1:1"];
    let user = ["--set", "store.user=leasehold", "--set", "store.password_file=nofile"];
    let mut manager = place.manager_with(&[&etcd[..], &user].concat());
    ended_with(&mut manager, 78, &["store.password_file = nofile: No such file"]);
}
