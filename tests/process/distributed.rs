//! Several managers on etcd: who leads, who follows, and what a caller notices. Cuts of the network: tests/namespaces.

use crate::processes::{Place, Process, text, wait_for};
use crate::replicas::{LONG, REDIRECT, Replica, Replicas, SLACK, TTL, list, within};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Three managers in this order in the queue, two executors, and the owners of all shards.
fn cluster(more: &[&str]) -> (Replicas, Vec<Replica>, Vec<Process>, serde_json::Value) {
    let cluster = Replicas::new();
    let managers = cluster.managers(3, more);
    let all = list(&managers);
    let executors = ["executor-1", "executor-2"].map(|name| cluster.executor(&all, name));
    cluster.place.served(&all, 2);
    let owners = cluster.place.owners(&all);
    (cluster, managers, executors.into(), owners)
}

const GRANTED: &str = "leasehold_renewals_total{outcome=\"granted\"}";

/// L2, S7, R39: the successor grants within the dead leader's lease; no shard moves and no epoch rises.
#[test]
fn a_killed_leader_is_replaced_within_its_ttl_and_no_shard_moves() {
    let (cluster, mut managers, mut executors, owners) = cluster(REDIRECT);
    managers[0].process.kill();
    within("the successor's first grant", TTL + SLACK, || managers[1].metric(GRANTED) > 0.0);
    let all = list(&managers);
    cluster.place.served(&all, 2);
    assert_eq!(cluster.place.owners(&all), owners);
    assert_eq!(managers[1].metric("leasehold_reaped_leases_total"), 0.0);
    assert!(executors.iter_mut().all(Process::is_running));
}

/// A leader that is told to stop resigns: its successor does not wait for the lease.
#[test]
fn a_terminated_leader_ends_with_0_and_is_replaced_at_once() {
    let (cluster, mut managers, _executors, owners) = cluster(&[REDIRECT, LONG].concat());
    managers[0].process.terminate();
    within("the successor's leadership", 2 * SLACK, || managers[1].leads());
    assert_eq!(managers[0].process.ended().code(), Some(0));
    assert_eq!(cluster.queue().len(), 2);
    let all = list(&managers);
    cluster.place.served(&all, 2);
    assert_eq!(cluster.place.owners(&all), owners);
}

/// `standby_grpc = closed`: a standby's port is closed, opens when it leads, and closes when it does not any more, at once, whoever is
/// still connected.
#[test]
fn of_closed_ports_the_open_one_is_the_leaders() {
    let cluster = Replicas::new();
    let managers = cluster.managers(2, LONG);
    let (a, b) = (&managers[0], &managers[1]);
    wait_for("the leader's port", || a.is_open().then_some(()));
    assert!(!b.is_open());
    wait_for("the leader to be ready", || (a.get("/readyz").0 == 200).then_some(()));
    wait_for("the standby's leader", || b.get("/readyz").1.contains(&a.grpc).then_some(()));
    assert_eq!(b.get("/readyz").0, 503);
    let _executor = cluster.executor(&list(&managers), "executor-1");
    cluster.place.served(&list(&managers), 1);
    let owners = cluster.place.owners(&a.grpc);

    let mut silent = TcpStream::connect(&a.grpc).unwrap();
    cluster.revoke();
    within("the port of the next", 2 * SLACK, || b.is_open());
    within("the former leader's port to be closed", SLACK, || !a.is_open());
    drop(TcpListener::bind(&a.grpc).expect("the port is free although somebody is still connected"));
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The end of the stream, or a reset: not a timeout.
    let ended = silent.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
    assert!(!matches!(ended, Err(std::io::ErrorKind::WouldBlock)), "a former leader's connection stays open");
    assert_eq!((a.get("/readyz").0, b.get("/readyz").0), (503, 200));

    wait_for("the former leader's new place", || (cluster.queue().len() == 2).then_some(()));
    cluster.revoke();
    within("the same port again", 2 * SLACK, || a.is_open() && !b.is_open());
    cluster.place.served(&list(&managers), 1);
    assert_eq!(cluster.place.owners(&a.grpc), owners);
}

/// A leader that takes its port back while a connection of its former leadership drains does not wait for that one.
#[test]
fn a_leader_that_leads_again_at_once_is_open_at_once() {
    let cluster = Replicas::new();
    let managers = cluster.managers(1, LONG);
    wait_for("the port", || managers[0].is_open().then_some(()));
    // A client that never says a word is waited for as long as calls under way may take: 2 s.
    let _silent = TcpStream::connect(&managers[0].grpc).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    cluster.revoke();
    wait_for("another leadership", || (managers[0].leaderships().len() == 2).then_some(()));
    within("the port", Duration::from_millis(1500), || {
        cluster.place.manager(&["status", "--json", "--manager", &managers[0].grpc]).status.code() == Some(1)
    });
}

/// `standby_grpc = closed`: a leader whose port somebody else has taken is of no use to anybody.
#[test]
fn a_leader_whose_port_is_taken_gives_the_leadership_up_and_ends_with_1() {
    let cluster = Replicas::new();
    let mut managers = cluster.managers(3, LONG);
    let port = managers[1].grpc.clone();
    let _taken = TcpListener::bind(&port).expect("a standby's port is closed");
    managers[0].process.terminate();
    within("its end", 3 * SLACK, || !managers[1].process.is_running());
    assert_eq!(managers[1].process.ended().code(), Some(1));
    let said = managers[1].process.log();
    assert!(said.contains(&format!("cannot listen on {port} (listen.grpc)")), "{said}");
    assert!(said.contains("another process listens there"), "{said}");
    assert_eq!(managers[1].leaderships().len(), 1, "it led, and gave up");
    // Long before the lease of the one that gave up would have ended.
    within("the next leader's port", 2 * SLACK, || managers[2].is_open());
    assert!(managers[2].leads());
    // What a supervisor starts anew does not even stand for leadership.
    let mut again = cluster.begin(&port, LONG);
    assert_eq!(again.ended().code(), Some(1));
    assert!(managers[2].leads() && cluster.queue().len() == 1);
}

/// `standby_grpc = redirect`: whoever knows any manager finds the one that leads.
#[test]
fn callers_and_executors_at_a_standby_are_sent_to_the_leader() {
    let cluster = Replicas::new();
    let managers = cluster.managers(2, REDIRECT);
    let standby = &managers[1].grpc;
    let _executor = cluster.executor(standby, "executor-1");
    cluster.place.served(standby, 1);
    let status = cluster.place.manager(&["status", "--manager", standby]);
    assert_eq!(status.status.code(), Some(0), "{}{}", text(&status.stdout), text(&status.stderr));
    assert_eq!(cluster.place.invoke(standby, "counter/a", "increment")["payload"]["value"], 1);
    assert_eq!((managers[0].get("/readyz").0, managers[1].get("/readyz").0), (200, 200));
    assert_eq!(managers[1].get("/leaderz"), (503, format!("{} leads\n", managers[0].grpc)));
    assert_eq!(managers[1].leaderships(), Vec::<String>::new());
}

/// Case 22: a process outlives its leadership, and the next one is another's as far as anybody can tell.
#[test]
fn a_leader_whose_lease_is_revoked_leads_again_in_the_same_process_as_another_manager() {
    let cluster = Replicas::new();
    let mut managers = cluster.managers(1, &[REDIRECT, LONG].concat());
    let _executor = cluster.executor(&managers[0].grpc, "executor-1");
    cluster.place.served(&managers[0].grpc, 1);
    let (owners, pid) = (cluster.place.owners(&managers[0].grpc), managers[0].process.pid());
    let place = cluster.queue();
    cluster.revoke();
    let leaderships = wait_for("another leadership", || {
        let leaderships = managers[0].leaderships();
        (leaderships.len() == 2).then_some(leaderships)
    });
    assert_ne!(leaderships[0], leaderships[1]);
    assert_eq!(managers[0].process.every("a standby again", "why").len(), 1);
    assert_ne!(cluster.queue(), place);
    within("renewals", 2 * SLACK, || managers[0].metric("leasehold_is_leader") == 1.0);
    cluster.place.served(&managers[0].grpc, 1);
    assert_eq!(cluster.place.owners(&managers[0].grpc), owners);
    assert!(managers[0].process.is_running());
    assert_eq!(managers[0].process.pid(), pid);
}

/// Case 24: a standby that is told to stop leaves the queue.
#[test]
fn a_terminated_standby_ends_with_0_within_seconds_and_leaves_no_place_behind() {
    let cluster = Replicas::new();
    let mut managers = cluster.managers(2, LONG);
    let leader = cluster.queue()[0].clone();
    managers[1].process.terminate();
    within("its end", SLACK, || !managers[1].process.is_running());
    assert_eq!(managers[1].process.ended().code(), Some(0));
    assert_eq!(cluster.queue(), [leader]);
    assert!(managers[0].leads());
}

/// Case 27: etcd may come after the managers, and go. Liveness never depends on it; readiness with `redirect` does once, at the start: replicas that
/// turned unready together would leave a balancer with none.
#[test]
fn a_manager_waits_for_etcd_and_once_let_in_stays_ready_while_nobody_leads() {
    let mut cluster = Replicas::new();
    cluster.etcd.kill();
    let mut early = cluster.manager(REDIRECT);
    assert!(early.process.log().contains("etcd does not answer; trying on"), "{}", early.process.log());
    assert_eq!(early.get("/livez").0, 200);
    assert_eq!(early.get("/readyz"), (503, "not ready: etcd has not said yet who leads\n".to_owned()));
    assert_eq!(early.get("/leaderz"), (503, "no leader is known\n".to_owned()));
    cluster.etcd.restart();
    within("its leadership", 3 * SLACK, || early.leads());
    assert_eq!(early.get("/readyz").0, 200);
    cluster.etcd.kill();
    within("the end of the leadership", TTL + SLACK, || !early.leads());
    assert_eq!((early.get("/livez").0, early.get("/readyz").0), (200, 200));
    cluster.etcd.restart();
    within("its next leadership", TTL + 3 * SLACK, || early.leads());
    assert!(early.process.is_running());
    early.process.terminate();
    assert_eq!(early.process.ended().code(), Some(0));
}

/// Clusters whose names begin alike share an etcd and nothing else.
#[test]
fn a_manager_answers_its_probes_while_etcd_takes_its_calls_and_says_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::new();
    let url = format!("store.url=etcd:http://{}", silent.local_addr().unwrap());
    // Longer than any test: whatever is answered did not wait for the call's end.
    let long = ["--set", "store.request_timeout=30m", "--set", "leadership.leader_lease_ttl=1h"];
    let mut process = place.manager_at("127.0.0.1:0", &[&["--set", &url], &long[..]].concat());
    let (grpc, http) = (process.address(), process.logged("serving", "http"));
    let replica = Replica { process, grpc, http };
    assert_eq!(replica.get("/livez").0, 200);
    assert_eq!(replica.get("/readyz").0, 503);
}

#[test]
fn two_clusters_in_one_etcd_do_not_see_each_other() {
    let cluster = Replicas::new();
    let members: Vec<_> = ["a", "a1"]
        .into_iter()
        .map(|name| {
            let name_set = format!("cluster.name={name}");
            let of = ["--set", name_set.as_str()];
            let manager = cluster.manager(&[REDIRECT, LONG, &of].concat());
            manager.wait_to_lead();
            let executor = cluster.place.executor(&manager.grpc, &format!("of-{name}"), &of);
            (manager, executor)
        })
        .collect();
    for ((manager, _), name) in members.iter().zip(["of-a", "of-a1"]) {
        let status = cluster.place.served(&manager.grpc, 1);
        assert_eq!(status["executors"][0]["name"], name);
        assert!(manager.leads(), "both lead, each its own");
    }
    let owners = cluster.place.owners(&members[1].0.grpc);
    let drained = cluster.place.manager(&["drain", "of-a", "--manager", &members[0].0.grpc]);
    assert!(drained.status.success(), "{}", text(&drained.stderr));
    assert_eq!(cluster.place.owners(&members[1].0.grpc), owners);
    for name in ["a", "a1"] {
        let keys = cluster.etcd.ctl(&["get", "--prefix", "--keys-only", &format!("/leasehold/{name}/executors/")]);
        assert_eq!(keys.lines().filter(|line| !line.is_empty()).count(), 1, "{keys}");
    }
}
