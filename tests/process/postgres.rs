//! A manager whose store is a PostgreSQL server.

use crate::processes::{Place, Process, wait_for};
use leasehold_harness::Postgres;
use std::time::{Duration, Instant};

fn manager(place: &Place, server: &Postgres) -> Process {
    let url = format!("store.url={}", server.url());
    place.manager_with(&["--set", &url])
}

/// `make demo`'s promise on another store: a killed manager's successor knows everything, at once.
#[test]
fn a_manager_on_postgresql_is_killed_and_its_successor_knows_everything() {
    let (place, server) = (Place::new(), Postgres::start());
    let mut first = manager(&place, &server);
    let address = first.address();
    let executors: Vec<_> = (1..=2).map(|n| place.executor(&address, &format!("executor-{n}"), &[])).collect();
    place.served(&address, 2);
    let before = place.owners(&address);

    let mut second = manager(&place, &server);
    assert_eq!(second.ended().code(), Some(75), "{}", second.log());
    let said = second.log();
    assert!(said.contains(&address) && said.contains("is held by session"), "{said}");

    first.kill();
    let url = format!("store.url={}", server.url());
    let mut next = place.manager_at(&address, &["--set", &url]);
    assert_eq!(next.address(), address);
    place.served(&address, 2);
    assert_eq!(place.owners(&address), before, "nothing moved, nothing was lost");
    drop(executors);
}

/// The lock is lost: the process says so and ends, for a supervisor to start it again; executors serve on meanwhile.
#[test]
fn a_manager_whose_lock_is_lost_explains_itself_and_ends_with_1() {
    let (place, server) = (Place::new(), Postgres::start());
    let mut first = manager(&place, &server);
    let address = first.address();
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted");
    assert_eq!(first.ended().code(), Some(1));
    let said = first.log();
    assert!(said.contains("the session that held the lock has ended"), "{said}");
    assert!(said.contains("another manager may own the store"), "{said}");
    let url = format!("store.url={}", server.url());
    let _again = place.manager_at(&address, &["--set", &url]);
    let status = place.served(&address, 1);
    assert_eq!(status["executors"][0]["name"], "executor-1");
}

/// Case 45: another session has the tables to itself for 8 s, which is longer than the lease of 3 s.
#[test]
fn tables_locked_by_another_session_for_eight_seconds_cost_nobody_anything() {
    let (place, server) = (Place::new(), Postgres::start());
    let mut first = manager(&place, &server);
    let address = first.address();
    let mut executors: Vec<_> = (1..=2).map(|n| place.executor(&address, &format!("executor-{n}"), &[])).collect();
    place.served(&address, 2);
    let _locker = server
        .session("LOCK TABLE leasehold.head, leasehold.shards, leasehold.executors; SELECT pg_sleep(8); ROLLBACK");
    let locked =
        "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND locktype = 'relation'";
    wait_for("the lock", || (server.sql(locked) != "0").then_some(()));
    let began = Instant::now();
    let _third = place.executor(&address, "executor-3", &[]);
    while server.sql(locked) != "0" {
        let status = place.status(&address).expect("the manager answers");
        assert!(status["executors"].as_array().unwrap().len() >= 2, "nobody lapses: {status}");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(began.elapsed() > Duration::from_secs(6), "it was locked for long: {:?}", began.elapsed());
    place.served(&address, 3);
    assert!(first.is_running() && executors.iter_mut().all(Process::is_running));
}
