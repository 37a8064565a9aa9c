//! A manager, executors, and what happens to them.

use crate::processes::{Place, Process, text, wait_for};
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn cluster(executors: usize) -> (Place, Process, String, Vec<Process>) {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let executors: Vec<_> = (1..=executors).map(|n| place.executor(&address, &format!("executor-{n}"), &[])).collect();
    place.served(&address, executors.len());
    (place, manager, address, executors)
}

/// L1, S3: a crash moves the shards within a lease and a second; the count stays right and the epoch rises.
#[test]
fn a_killed_executors_agents_go_on_elsewhere_under_a_higher_epoch() {
    let (place, _manager, address, mut executors) = cluster(2);
    let first = place.invoke(&address, "counter/a", "increment");
    let owner = first["executor"].as_str().unwrap().to_owned();
    let victim = if owner == "executor-1" { 0 } else { 1 };
    executors[victim].kill();
    let second = place.invoke(&address, "counter/a", "increment");
    assert_eq!(second["payload"]["value"], 2);
    assert_ne!(second["executor"], first["executor"]);
    assert!(second["epoch"].as_u64() > first["epoch"].as_u64());
    place.served(&address, 1);
}

/// L2, S7, case 2's kind: a manager killed and restarted within a lease moves nothing.
#[test]
fn a_manager_killed_and_restarted_moves_no_shard() {
    let (place, mut manager, address, _executors) = cluster(3);
    let before = place.owners(&address);
    manager.kill();
    let mut again = place.manager_at(&address, &[]);
    assert_eq!(again.address(), address);
    place.served(&address, 3);
    assert_eq!(place.owners(&address), before);
    let renewed = wait_for("everybody's renewal", || {
        let status = place.status(&address)?;
        status["troubles"].as_array()?.is_empty().then_some(status)
    });
    assert_eq!(renewed["executors"].as_array().unwrap().len(), 3);
}

/// Case 2's kind, L2, L3, R39: stopped for more than two leases and let go on, the manager reaps nobody and moves nothing; executors,
/// whose leases ended meanwhile, are back at once with the same shards at the same epochs, as the same lives.
#[test]
fn a_manager_stopped_for_more_than_two_leases_moves_no_shard_and_reaps_nobody() {
    const LEASE: Duration = Duration::from_secs(3);
    let (place, manager, address, mut executors) = cluster(3);
    let lives = || {
        let status = place.status(&address)?;
        Some(status["executors"].as_array()?.iter().map(|row| row["id"].clone()).collect::<Vec<_>>())
    };
    let first = place.invoke(&address, "counter/a", "increment");
    let (before, lives_before) = (place.owners(&address), lives().unwrap());
    let stopped = Instant::now();
    manager.signal(Signal::STOP);
    for executor in &mut executors {
        executor.logged("lease lapsed: nothing is admitted until a manager grants again", "executor");
    }
    // Not a wait for anything: it is the length of the standstill that is tested.
    std::thread::sleep((2 * LEASE + LEASE / 2).saturating_sub(stopped.elapsed()));
    manager.signal(Signal::CONT);
    let went_on = Instant::now();
    let second = place.invoke(&address, "counter/a", "increment");
    assert!(went_on.elapsed() < 2 * LEASE, "served again after {:?}", went_on.elapsed());
    assert_eq!((&second["executor"], &second["epoch"]), (&first["executor"], &first["epoch"]));
    assert_eq!(second["payload"]["value"], 2);
    std::thread::sleep(LEASE.saturating_sub(went_on.elapsed()));
    assert_eq!(place.owners(&address), before, "a lease later too: the same owners at the same epochs");
    assert_eq!(lives().unwrap(), lives_before, "nobody registered anew");
    let log = manager.log();
    assert!(log.contains("this manager stood still") && log.contains("\"stood_still_ms\":"), "{log}");
    assert!(!log.contains("a lease has ended"), "{log}");
}

/// An operator names several managers, of which one does not run and one does not answer; so do an executor and a caller.
#[test]
fn commands_executors_and_callers_find_the_manager_that_leads_among_several() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let list = format!("{gone},{},{}", silent.local_addr().unwrap(), manager.address());
    let _executor = place.executor(&list, "executor-1", &[]);
    place.served(&list, 1);
    assert_eq!(place.invoke(&list, "counter/a", "increment")["payload"]["value"], 1);
    let drained = place.manager(&["drain", "executor-1", "--manager", &list]);
    assert!(drained.status.success(), "{}", text(&drained.stderr));
    manager.kill();
    let failed = place.manager(&["status", "--manager", &list, "--timeout", "1s"]);
    assert!(text(&failed.stderr).contains(&format!("manager {}", list.replace(',', ", "))), "{}", text(&failed.stderr));
}

/// S1, S6, case 30: a frozen executor's shards are served elsewhere; awake, it is refused and takes part again as a new life.
#[test]
fn a_frozen_executor_is_replaced_and_comes_back_as_a_new_life() {
    let (place, _manager, address, executors) = cluster(2);
    let first = place.invoke(&address, "counter/a", "increment");
    let victim = if first["executor"] == "executor-1" { &executors[0] } else { &executors[1] };
    let id = |name: &str| {
        let status = place.status(&address).unwrap();
        let row = status["executors"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
        row.map(|row| row["id"].clone())
    };
    let name = first["executor"].as_str().unwrap();
    let before = id(name).unwrap();
    victim.signal(Signal::STOP);
    let second = place.invoke(&address, "counter/a", "increment");
    assert_eq!(second["payload"]["value"], 2);
    victim.signal(Signal::CONT);
    wait_for("the frozen one's return", || id(name).filter(|now| *now != before));
    place.served(&address, 2);
    assert_eq!(place.invoke(&address, "counter/a", "increment")["payload"]["value"], 3);
}

/// R35: a process restarted under its name and address takes over at once, without waiting for the old lease.
#[test]
fn a_process_restarted_at_its_address_is_served_at_once() {
    let place = Place::new();
    let mut manager = place.manager_with(&["--set", "lease.profile=lan"]);
    let address = manager.address();
    let lan = ["--set", "lease.profile=lan"];
    let mut executor = place.executor(&address, "executor-1", &lan);
    let port = format!("listen.grpc={}", executor.address());
    place.served(&address, 1);
    executor.kill();
    let began = Instant::now();
    let _again = place.executor(&address, "executor-1", &[&lan[..], &["--set", &port]].concat());
    wait_for("the new life", || (place.owners(&address)[0]["epoch"] == 2).then_some(()));
    assert!(began.elapsed().as_secs() < 11, "sooner than the lease of 12 s: {:?}", began.elapsed());
}

/// Case 36: a second process of the same name elsewhere wins; the first is told and stops.
#[test]
fn of_two_processes_with_one_name_the_older_stops() {
    let (place, _manager, address, mut executors) = cluster(1);
    let _newer = place.executor(&address, "executor-1", &[]);
    assert_eq!(executors[0].ended().code(), Some(78));
    assert!(executors[0].log().contains("newer process"), "{}", executors[0].log());
    place.served(&address, 1);
}

/// An operator's drain hands everything off; undrain lets it come back.
#[test]
fn a_drained_executor_hands_off_and_returns_on_undrain() {
    let (place, _manager, address, _executors) = cluster(2);
    let owned = |name: &str| {
        let status = place.status(&address)?;
        status["executors"].as_array()?.iter().find(|row| row["name"] == name)?["owned"].as_u64()
    };
    let output = place.manager(&["drain", "executor-1", "--manager", &address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    wait_for("the drain", || (owned("executor-1") == Some(0) && owned("executor-2") == Some(16)).then_some(()));
    let output = place.manager(&["undrain", "executor-1", "--manager", &address]);
    assert!(output.status.success());
    wait_for("the return", || (owned("executor-1") == Some(8)).then_some(()));
    let unknown = place.manager(&["drain", "executor-9", "--manager", &address]);
    assert_eq!(unknown.status.code(), Some(1), "{}", text(&unknown.stderr));
}

/// Status is for scripts too: 1 while something is wrong, 0 when it is not; never "unassigned" without a reason.
#[test]
fn status_says_why_shards_have_no_owner() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let output = place.manager(&["status", "--manager", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("no executor is registered"));
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    let output = place.manager(&["status", "--manager", &address]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let explained = place.manager(&["explain", "counter/a", "--manager", &address]);
    assert!(text(&explained.stdout).contains("owned by executor-1"), "{}", text(&explained.stdout));
}

/// Case 45: another process holds the store's lock for 8 s: nobody lapses, a registration waits or is tried again, nothing aborts.
#[test]
fn a_store_locked_by_another_process_for_eight_seconds_costs_nobody_anything() {
    let (place, mut manager, address, mut executors) = cluster(2);
    let before = place.owners(&address);
    let held = place.path().join("held");
    let script = "import sqlite3, sys, time\n\
        c = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
        c.execute('BEGIN IMMEDIATE')\n\
        open(sys.argv[2], 'w').close()\n\
        time.sleep(8)\n";
    let mut holder = std::process::Command::new("python3")
        .args(["-c", script])
        .args([place.path().join("manager.db"), held.clone()])
        .spawn()
        .unwrap();
    wait_for("the lock", || held.exists().then_some(()));
    let _third = place.executor(&address, "executor-3", &[]);
    let mut lapsed = false;
    while holder.try_wait().unwrap().is_none() {
        lapsed |= place.status(&address).is_none_or(|status| status["executors"].as_array().unwrap().len() < 2);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(!lapsed, "the lease is 3 s: renewals went on without the store's writes");
    let registered = place.served(&address, 3);
    assert_eq!(registered["executors"].as_array().unwrap().len(), 3);
    assert!(manager.is_running() && executors.iter_mut().all(Process::is_running));
    let kept = before.as_array().unwrap().iter().zip(place.owners(&address).as_array().unwrap().clone());
    assert!(
        kept.filter(|(before, now)| before["epoch"] == now["epoch"]).count() >= 8,
        "only the newcomer's share moved"
    );
}
