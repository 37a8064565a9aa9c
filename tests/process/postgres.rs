//! A manager whose store is a PostgreSQL server.

use crate::processes::{Place, Process, manager_binary, text, wait_for};
use leasehold_harness::{Certificates, Pooler, Postgres, free_port};
use std::time::{Duration, Instant};

fn manager(place: &Place, server: &Postgres) -> Process {
    manager_on(place, &server.url())
}

fn manager_on(place: &Place, url: &str) -> Process {
    place.manager_with(&["--set", &format!("store.url={url}")])
}

/// A manager on `url` ends by itself with `code`, saying all of these.
fn ends(url: &str, code: i32, parts: &[&str]) {
    let place = Place::new();
    let mut manager = manager_on(&place, url);
    let (ended, said) = (manager.ended().code(), manager.log());
    assert_eq!(ended, Some(code), "{url}: {said}");
    assert!(
        said.contains("store.url = ") && parts.iter().all(|part| said.contains(part)),
        "{url}: {parts:?} in: {said}"
    );
    assert!(!said.contains("hunter"), "{said}");
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

#[test]
fn an_address_where_no_postgresql_answers_ends_the_start_with_75() {
    let port = free_port();
    let nobody = format!("postgres://leasehold:hunter2@127.0.0.1:{port}/leasehold");
    ends(&nobody, 75, &[&format!("PostgreSQL 127.0.0.1:{port}/leasehold"), "Connection refused", "leasehold:***@"]);
    ends(
        "postgres://leasehold@no-such-host.invalid/leasehold",
        75,
        &["PostgreSQL no-such-host.invalid:5432/leasehold"],
    );
}

#[test]
fn a_postgresql_url_that_cannot_be_right_ends_the_start_with_78() {
    let server = Postgres::start();
    let url = server.url();
    ends(
        &format!("{}nowhere", url.trim_end_matches("leasehold")),
        78,
        &["database \"nowhere\" does not exist", "3D000"],
    );
    ends(
        &format!("{url}?sslmod=verify-full"),
        78,
        &["the parameter \"sslmod\" is not known here; expected one of sslmode"],
    );
    ends(&format!("{url}?sslmode=verify-full&sslrootcert=no.pem"), 78, &["sslrootcert = no.pem: No such file"]);
    ends(&format!("{url}?sslmode=require"), 78, &["server does not support TLS (sslmode=require)"]);
    let mut with_file = std::process::Command::new(manager_binary());
    with_file.args(["serve", "--set", "listen.grpc=127.0.0.1:0", "--set", "listen.http=127.0.0.1:0"]);
    with_file.args(["--set", &format!("store.url={url}")]).env("PGPASSFILE", "/no/such/passfile");
    let output = with_file.output().unwrap();
    assert_eq!(output.status.code(), Some(78), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("PGPASSFILE = /no/such/passfile: No such file"), "{}", text(&output.stderr));
}

#[test]
fn a_postgresql_that_wants_tls_is_served_over_it_and_every_other_way_is_refused_with_what_to_do() {
    let certificates = Certificates::make("server");
    let server = Postgres::start_with_tls(&certificates.files(), "hostssl all leasehold all trust\n");
    let url = server.url();
    ends(
        &format!("{url}?sslmode=disable"),
        78,
        &["no encryption", "ask for them with sslmode=verify-full and sslrootcert=FILE"],
    );
    let stranger = Certificates::make("server");
    let ca = stranger.files().ca.display().to_string();
    ends(&format!("{url}?sslmode=verify-full&sslrootcert={ca}"), 78, &["invalid peer certificate", &ca]);
    let ca = certificates.files().ca.display().to_string();
    let place = Place::new();
    let mut manager = manager_on(&place, &format!("{url}?sslmode=verify-full&sslrootcert={ca}"));
    let address = manager.address();
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
}

#[test]
fn a_pooler_in_transaction_mode_before_postgresql_ends_the_start_with_78() {
    let server = Postgres::start();
    let pooler = Pooler::start(&server, "transaction");
    ends(&server.url_at(pooler.port()), 78, &["a pooler in transaction mode is between", "pool_mode = session"]);
    assert_eq!(server.sql("SELECT to_regnamespace('leasehold') IS NULL"), "t", "nothing was written");
}

/// The tables after a manager has ended in order, with 16 shards of one executor in them.
fn left_behind(server: &Postgres) {
    let place = Place::new();
    let mut manager = manager(&place, server);
    let address = manager.address();
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    manager.terminate();
    assert!(manager.ended().success(), "{}", manager.log());
}

#[test]
fn tables_of_a_newer_build_and_nonsense_in_a_row_are_refused_by_name_and_left_as_they_are() {
    let server = Postgres::start();
    left_behind(&server);
    let everything = "SELECT * FROM leasehold.shards ORDER BY shard";
    let before = server.sql(everything);
    server.sql("INSERT INTO leasehold._sqlx_migrations VALUES (4711, 'of the future', now(), TRUE, '', 0)");
    ends(&server.url(), 78, &["has schema version 4711, this build knows up to 1: use a newer build"]);
    server.sql("DELETE FROM leasehold._sqlx_migrations WHERE version = 4711");
    assert_eq!(server.sql(everything), before);
    server.sql("UPDATE leasehold.shards SET executor = 'nonsense' WHERE shard = 3");
    ends(&server.url(), 1, &["corrupt store at PostgreSQL", "table shards, row 3, column executor", "nonsense"]);
    server.sql("UPDATE leasehold.shards SET executor = (SELECT id FROM leasehold.executors) WHERE shard = 3");
    assert_eq!(server.sql(everything), before);
}

/// Case 26: who starts is told to try again; who runs goes on, and writes what waits once it can.
#[test]
fn a_read_only_postgresql_ends_a_start_with_75_and_no_manager_that_runs() {
    let (place, server) = (Place::new(), Postgres::start());
    let mut running = manager(&place, &server);
    let address = running.address();
    let _first = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    server.set("default_transaction_read_only", "on");
    wait_for("read-only", || (server.sql("SHOW transaction_read_only") == "on").then_some(()));
    let other = ["--set", "cluster.name=other", "--set", &format!("store.url={}", server.url())];
    let mut second = place.manager_with(&other);
    assert_eq!(second.ended().code(), Some(75), "{}", second.log());
    assert!(second.log().contains("read-only transaction"), "{}", second.log());
    let _second = place.executor(&address, "executor-2", &[]);
    // Longer than the lease of 3 s.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        let status = place.status(&address).expect("the manager answers");
        assert_eq!(status["executors"].as_array().unwrap().len(), 1, "{status}");
        std::thread::sleep(Duration::from_millis(200));
    }
    server.set("default_transaction_read_only", "off");
    place.served(&address, 2);
    assert!(running.is_running());
}

/// Case 26, on a disk that really is full: a registration waits for room, the manager goes on.
#[test]
fn a_full_disk_under_postgresql_keeps_a_registration_waiting_and_ends_nobody() {
    let (place, server) = (Place::new(), Postgres::start_on_disk(160, &[]));
    let mut running = manager(&place, &server);
    let address = running.address();
    server.fill_disk();
    // The first row of a table takes the first page of its file.
    let mut executor = place.executor(&address, "executor-1", &[]);
    wait_for("the refusal", || running.log().contains("No space left on device").then_some(()));
    let status = place.status(&address).expect("the manager answers");
    assert_eq!(status["executors"].as_array().unwrap().len(), 0, "nothing was stored: {status}");
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.executors"), "0");
    server.clear_disk();
    place.served(&address, 1);
    assert!(running.is_running() && executor.is_running());
}

/// docs/operations.md, "Backup and restore", with its very commands.
#[test]
fn a_dump_that_was_made_while_the_manager_ran_is_restored_and_led_on_from() {
    let (place, server) = (Place::new(), Postgres::start());
    let mut first = manager(&place, &server);
    let address = first.address();
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    let before = place.owners(&address);
    let dump = place.path().join("manager.dump");
    let run = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program}: {}", text(&output.stderr));
    };
    let url = server.url();
    let file = format!("--file={}", dump.display());
    run("pg_dump", &["--schema=leasehold", "--format=custom", &file, &url]);
    first.terminate();
    assert!(first.ended().success(), "{}", first.log());
    server.sql("UPDATE leasehold.shards SET epoch = epoch + 5");
    run("pg_restore", &["--clean", "--if-exists", &format!("--dbname={url}"), &dump.display().to_string()]);
    let mut next = place.manager_at(&address, &["--set", &format!("store.url={url}")]);
    assert_eq!(next.address(), address);
    place.served(&address, 1);
    assert_eq!(place.owners(&address), before);
}
