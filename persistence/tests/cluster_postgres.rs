//! What only a store on a PostgreSQL server can suffer: lost sessions, restarts, locks, limits, poolers, lost answers.

#![cfg(feature = "postgres")]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod writes;

use leasehold_harness::{Pooler, Postgres, Process, free_port, wait_until};
use leasehold_model::command::Command;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardEpoch, ShardId};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::postgres::Options;
use leasehold_persistence::cluster::{Error, PostgresClusterStore, Write};
use std::fs;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command as Program, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::time::timeout;
use writes::{SHARDS, cluster, count, first_write, raise};

const PATIENCE: Duration = Duration::from_secs(30);

fn options() -> Options {
    Options { address: Some("10.0.0.9:7470".into()), lock_timeout: Duration::from_millis(300), ..Options::default() }
}

async fn open(server: &Postgres) -> Result<PostgresClusterStore, Error> {
    PostgresClusterStore::open_with(&server.url(), &cluster(), options()).await
}

async fn load(store: &PostgresClusterStore) -> ClusterState {
    store.load(&cluster(), count(SHARDS)).await.unwrap()
}

/// A store with the first write in it.
async fn filled(server: &Postgres) -> (PostgresClusterStore, ClusterState) {
    filled_at(&server.url(), options()).await
}

async fn filled_at(url: &str, options: Options) -> (PostgresClusterStore, ClusterState) {
    let store = PostgresClusterStore::open_with(url, &cluster(), options).await.unwrap();
    let (write, state) = first_write();
    store.commit(&write).await.unwrap();
    (store, state)
}

/// The server's session that holds the ownership.
const HOLDER: &str = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted";

fn terminate_holder(server: &Postgres) {
    server.sql(&format!("SELECT pg_terminate_backend(pid) FROM ({HOLDER}) AS holder"));
    wait_until("the lock is free", PATIENCE, || server.sql(HOLDER).is_empty());
}

/// Ends the sessions that do not hold the ownership: the writer's.
fn terminate_writer(server: &Postgres) {
    let writers = format!("FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' AND pid NOT IN ({HOLDER})");
    server.sql(&format!("SELECT pg_terminate_backend(pid) {writers}"));
    wait_until("the writer's session has ended", PATIENCE, || server.sql(&format!("SELECT count(*) {writers}")) == "0");
}

/// Another session that has `table` to itself until it is killed.
fn lock_table(server: &Postgres, tables: &str) -> Process {
    let locker = server.session(&format!("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"));
    let locked =
        "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND locktype = 'relation'";
    wait_until("the table is locked", PATIENCE, || server.sql(locked) != "0");
    locker
}

/// psql's end does not end a `pg_sleep` under way.
fn unlock(server: &Postgres, mut locker: Process) {
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()");
    wait_until("the locker has ended", PATIENCE, || locker.ended().is_ok_and(|ended| ended.is_some()));
}

/// psql's end does not end a statement under way; of a full server, the processes are told.
fn terminate_sleepers(server: &Postgres, sleepers: Vec<Process>) {
    drop(sleepers);
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(line) = fs::read_to_string(entry.path().join("cmdline")) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let ours = status.lines().any(|line| line == format!("PPid:\t{}", server.postmaster()));
        if ours && line.contains("SELECT") {
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::TERM).unwrap();
        }
    }
}

fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_finds_the_store_taken_is_told_by_whom_and_the_first_is_not_disturbed() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    let error = open(&server).await.expect_err("the store is taken");
    assert!(matches!(error, Error::NotOwner(_)), "{error}");
    says(&error, &[&server.sql(HOLDER), "127.0.0.1", "since 20", "leasehold-manager", "gRPC 10.0.0.9:7470"]);
    assert_eq!(store.confirm_leadership().await, Ok(()));
    store.commit(&raise(&state).0).await.unwrap();
}

/// As after `kill -9`: the sockets close, and nobody says good-bye.
#[test]
fn a_process_that_died_holds_nothing() {
    let server = Postgres::start();
    let first = tokio::runtime::Runtime::new().unwrap();
    let (store, state) = first.block_on(filled(&server));
    first.shutdown_background();
    let next = tokio::runtime::Runtime::new().unwrap();
    let again = next.block_on(open(&server)).unwrap();
    assert_eq!(next.block_on(load(&again)), state);
    drop(store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_session_that_is_terminated_ends_the_ownership_with_an_explanation() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    terminate_holder(&server);
    let (write, _) = raise(&state);
    for told in [store.confirm_leadership().await, store.commit(&write).await, store.outcome(1).await.map(drop)] {
        let error = told.expect_err("the lock is lost");
        assert!(matches!(error, Error::NotOwner(_)), "{error}");
        says(&error, &["the session that held the lock has ended", "another manager may own the store"]);
    }
    let next = open(&server).await.expect("the lock is free");
    assert_eq!(load(&next).await, state, "nothing was written");
}

/// The lock is lost between the check before a write and the write itself, and another manager takes over: the write lands before
/// the other has read the state, or never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_way_when_the_lock_is_lost_lands_before_the_successor_reads_or_never() {
    let server = Postgres::start();
    let patient = Options { lock_timeout: Duration::from_secs(4), ..options() };
    let (store, state) = filled_at(&server.url(), patient.clone()).await;
    let store = Arc::new(store);
    let locker = lock_table(&server, "leasehold.head");
    let (write, after) = raise(&state);
    let committing = tokio::spawn({
        let (store, write) = (Arc::clone(&store), write.clone());
        async move { store.commit(&write).await }
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'";
    wait_until("the write waits", PATIENCE, || server.sql(waiting) == "1");
    terminate_holder(&server);
    let url = server.url();
    let opening = tokio::spawn(async move { PostgresClusterStore::open_with(&url, &cluster(), patient).await });
    wait_until("both wait", PATIENCE, || server.sql(waiting) == "2");
    unlock(&server, locker);
    let written = committing.await.unwrap();
    let next = opening.await.unwrap().unwrap();
    let read = load(&next).await;
    assert_eq!(read, if written.is_ok() { after } else { state });
    let (write, _) = raise(&read);
    assert!(matches!(store.commit(&write).await, Err(Error::NotOwner(_))));
    assert_eq!(load(&next).await, read);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_ends_the_ownership_and_loses_nothing() {
    let mut server = Postgres::start();
    let (store, state) = filled(&server).await;
    server.stop();
    let error = store.confirm_leadership().await.expect_err("the session is gone");
    assert!(matches!(error, Error::NotOwner(_)), "{error}");
    let error = open(&server).await.expect_err("there is no server");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    server.start_again();
    assert!(matches!(store.commit(&raise(&state).0).await, Err(Error::NotOwner(_))));
    assert_eq!(load(&open(&server).await.unwrap()).await, state);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_connections_taken_a_manager_leads_on_and_writes_when_there_is_room() {
    let server = Postgres::start_with(&[("max_connections", "4"), ("superuser_reserved_connections", "0")]);
    let (store, state) = filled(&server).await;
    // One is left for the test itself.
    let _one = server.session("SELECT 1");
    wait_until("it is there", PATIENCE, || {
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%sleep(600)%' AND pid <> pg_backend_pid()")
            == "1"
    });
    terminate_writer(&server);
    let full = |server: &Postgres| {
        let mut probe = Program::new("/usr/lib/postgresql/15/bin/psql");
        let probe = probe.args(["-X", "-c", "SELECT 1", &server.url()]).stdout(Stdio::null()).stderr(Stdio::null());
        !probe.status().unwrap().success()
    };
    let mut fill: Vec<Process> = Vec::new();
    wait_until("it is full", PATIENCE, || {
        // One that came while a probe had the last connection was refused.
        fill.retain_mut(|session| session.ended().is_ok_and(|ended| ended.is_none()));
        fill.resize_with(2, || server.session("SELECT 1"));
        full(&server)
    });
    let (write, after) = raise(&state);
    let mut refused = None;
    for _ in 0..3 {
        match store.commit(&write).await {
            // The first may only find that its connection is gone.
            Err(Error::Unknown(_)) => assert!(store.outcome(write.tag).await.is_err()),
            other => refused = Some(other),
        }
    }
    let error = refused.unwrap().expect_err("there is no connection left");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    says(&error, &["53300"]);
    let error = PostgresClusterStore::open(&server.url(), &ClusterName::new("d").unwrap()).await.expect_err("full");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(store.confirm_leadership().await, Ok(()), "its own session is not touched");
    terminate_sleepers(&server, fill);
    wait_until("a free connection", PATIENCE, || !full(&server));
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
}

/// Case 26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_unavailable_until_it_can_be_written_again() {
    let server = Postgres::start();
    let (store, mut state) = filled(&server).await;
    server.set("default_transaction_read_only", "on");
    // The session follows a moment after the reload.
    let mut error = None;
    for _ in 0..200 {
        let (write, after) = raise(&state);
        match store.commit(&write).await {
            Ok(()) => state = after,
            Err(refusal) => {
                error = Some(refusal);
                break;
            }
        }
    }
    let error = error.expect("it became read-only");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    says(&error, &["read-only"]);
    assert_eq!(load(&store).await, state);
    assert_eq!(store.confirm_leadership().await, Ok(()));
    let other = PostgresClusterStore::open(&server.url(), &ClusterName::new("d").unwrap()).await;
    assert!(matches!(other, Err(Error::Unavailable(_))), "{:?}", other.map(drop));
    server.set("default_transaction_read_only", "off");
    let (write, after) = raise(&state);
    for _ in 0..200 {
        if store.commit(&write).await.is_ok() {
            break;
        }
    }
    assert_eq!(load(&store).await, after);
}

/// Case 45: neither the confirmation of the leadership nor a second cluster is held up, and a write is answered in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_locked_by_somebody_are_unavailable_and_end_no_leadership() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    let locker = lock_table(&server, "leasehold.head, leasehold.shards, leasehold.executors");
    let (write, after) = raise(&state);
    for _ in 0..3 {
        let error = store.commit(&write).await.expect_err("the tables are locked");
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        says(&error, &["55P03"]);
        timeout(Duration::from_millis(250), store.confirm_leadership()).await.expect("no table is touched").unwrap();
    }
    unlock(&server, locker);
    assert_eq!(store.outcome(write.tag).await, Ok(false));
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
}

/// Case 26: what the server says when its disk is full, in the middle of a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_the_whole_write_and_takes_it_when_there_is_room() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    server.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''no space left'' USING ERRCODE = ''53100''; END'; \
         CREATE TRIGGER full_disk BEFORE UPDATE ON leasehold.shards EXECUTE FUNCTION full_disk()",
    );
    let (write, after) = raise(&state);
    let error = store.commit(&write).await.expect_err("full");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(store.outcome(write.tag).await, Ok(false));
    assert_eq!(load(&store).await, state);
    server.sql("DROP TRIGGER full_disk ON leasehold.shards");
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
}

/// As many rows as need room of their own.
fn raise_all(state: &ClusterState) -> (Write, ClusterState) {
    let above = ShardEpoch::new(state.revision.next().0).unwrap();
    let commands: Vec<_> = (0..SHARDS).map(|shard| Command::RaiseEpoch { shard: ShardId(shard), above }).collect();
    writes::draft(state, u128::from(above.get()), &commands)
}

/// Case 26, on a disk that really is: a table cannot grow, the log still can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_finds_no_room_on_the_servers_disk_is_refused_whole_and_taken_when_there_is_room() {
    let server = Postgres::start_on_disk(160, &[("autovacuum", "off")]);
    let (store, mut state) = filled(&server).await;
    server.fill_disk();
    let mut refused = None;
    for _ in 0..20 {
        let (write, after) = raise_all(&state);
        match store.commit(&write).await {
            // It found room in pages that the tables had.
            Ok(()) => state = after,
            Err(error) => {
                refused = Some((error, write, after));
                break;
            }
        }
    }
    let (error, write, after) = refused.expect("the disk is full");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    says(&error, &["No space left on device", "53100"]);
    assert_eq!(store.outcome(write.tag).await, Ok(false));
    assert_eq!(load(&store).await, state, "nothing of it was written");
    assert_eq!(store.confirm_leadership().await, Ok(()));
    server.clear_disk();
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
}

/// Case 26, when the log cannot grow either: the server gives up. The ownership ends with it, and whoever opens the store once there is room
/// finds what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gives_up_for_want_of_room_ends_the_ownership_and_loses_nothing() {
    // One segment of the log is on the disk; the next one finds no room.
    let mut server = Postgres::start_on_disk(160, &[("autovacuum", "off"), ("restart_after_crash", "off")]);
    let (store, mut state) = filled(&server).await;
    let segments = "SELECT count(*) FROM pg_ls_waldir()";
    assert_eq!(server.sql(segments), "1");
    // Room for the tables, none for a segment of 16 MiB.
    server.fill_disk_but(8);
    let mut doubtful = None;
    for _ in 0..400 {
        let (write, after) = raise_all(&state);
        match store.commit(&write).await {
            Ok(()) => state = after,
            Err(error) => {
                doubtful = Some((error, after));
                break;
            }
        }
    }
    let (error, after) = doubtful.expect("the log is full");
    assert!(matches!(error, Error::Unknown(_) | Error::Unavailable(_)), "{error}");
    let until = std::time::Instant::now() + PATIENCE;
    let ended = loop {
        match store.confirm_leadership().await {
            Err(ended @ Error::NotOwner(_)) => break ended,
            _ => assert!(std::time::Instant::now() < until, "the server lives"),
        }
    };
    says(&ended, &["the session that held the lock has ended"]);
    assert!(matches!(open(&server).await, Err(Error::Unavailable(_))));
    server.clear_disk();
    server.start_after_its_end();
    let stored = load(&open(&server).await.unwrap()).await;
    assert!(stored == state || stored == after, "the acknowledged ones, and perhaps the last one");
}

/// Case 28: callers give up after a millisecond while the store takes longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_a_slow_store_whose_callers_gave_up_land_once_or_never() {
    let server = Postgres::start();
    let (store, mut state) = filled(&server).await;
    server.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(0.03); RETURN NEW; END'; \
         CREATE TRIGGER slow BEFORE UPDATE ON leasehold.head FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    let mut landed = 0;
    for _ in 0..10 {
        let (write, after) = raise(&state);
        assert!(timeout(Duration::from_millis(1), store.commit(&write)).await.is_err(), "it takes 30 ms");
        if store.outcome(write.tag).await.unwrap() {
            state = after;
            landed += 1;
        }
        assert_eq!(load(&store).await, state);
    }
    assert!(landed > 0, "a job that was begun is done");
}

/// Case 3: somebody who does not respect the lock wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_write_ends_in_a_conflict_and_a_row_that_is_gone_ends_the_ownership() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    server.sql("UPDATE leasehold.head SET revision = 41");
    let (write, _) = raise(&state);
    let conflict = Error::Conflict { expected: Revision(1), found: Revision(41) };
    assert_eq!(store.commit(&write).await, Err(conflict));
    server.sql("DELETE FROM leasehold.head");
    assert!(matches!(store.commit(&write).await, Err(Error::NotOwner(_))));
    assert!(matches!(store.outcome(1).await, Err(Error::NotOwner(_))));
}

/// The token in the row, and not only the lock, keeps an owner out that was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_with_another_owners_token_is_refused() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    server.sql("UPDATE leasehold.head SET owner = decode(repeat('ab', 16), 'hex')");
    let told = store.commit(&raise(&state).0).await;
    assert!(matches!(told, Err(Error::NotOwner(_))), "{told:?}");
    assert_eq!(server.sql("SELECT revision FROM leasehold.head"), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clusters_share_a_database_and_know_nothing_of_each_other() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    for name in ["c-1", "c1", "c.", "C"] {
        let name = ClusterName::new(name).unwrap();
        let other = PostgresClusterStore::open_with(&server.url(), &name, options()).await.unwrap();
        let empty = other.load(&name, count(7)).await.unwrap();
        assert_eq!(empty, ClusterState::empty(name.clone(), count(7)));
        let (mut write, _) = first_write();
        write.changes.shards.clear();
        write.changes.executors.clear();
        write.changes.first.as_mut().unwrap().cluster = name.clone();
        other.commit(&write).await.unwrap();
        assert!(other.load(&name, count(SHARDS)).await.is_ok());
    }
    assert_eq!(load(&store).await, state);
    store.commit(&raise(&state).0).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_decodes_to_nonsense_is_named() {
    const NONSENSE: [(&str, &[&str]); 9] = [
        ("UPDATE shards SET epoch = -1 WHERE shard = 17", &["table shards, row 17, column epoch"]),
        ("UPDATE shards SET state = 'own' WHERE shard = 17", &["table shards, row 17, column state"]),
        ("UPDATE shards SET executor = NULL WHERE shard = 17", &["table shards, row 17, column executor"]),
        ("UPDATE shards SET executor = 'x' WHERE shard = 17", &["table shards, row 17, column executor"]),
        ("DELETE FROM executors WHERE name = 'executor-18'", &["table shards, row 17", "is not in table executors"]),
        ("UPDATE shards SET shard = 1024 WHERE shard = 17", &["table shards, row 1024, column shard"]),
        ("UPDATE executors SET weight = 0 WHERE name = 'executor-5'", &["table executors, row", "column weight"]),
        ("UPDATE executors SET key_hash = '' WHERE name = 'executor-5'", &["table executors, row", "column key_hash"]),
        ("UPDATE head SET shard_count = 0", &["table head, column shard_count"]),
    ];
    let server = Postgres::start();
    let (store, _) = filled(&server).await;
    drop(store);
    server.sql("CREATE TABLE keep_s AS TABLE leasehold.shards; CREATE TABLE keep_e AS TABLE leasehold.executors");
    server.sql(
        "DO 'DECLARE c record; BEGIN FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = ''c'' \
         AND connamespace = ''leasehold''::regnamespace LOOP EXECUTE format(''ALTER TABLE %s DROP CONSTRAINT %I'', c.t, \
         c.conname); END LOOP; END'",
    );
    for (sql, parts) in NONSENSE {
        server.sql(&format!("SET search_path TO leasehold; {sql}"));
        let store = open(&server).await.unwrap();
        let error = store.load(&cluster(), count(SHARDS)).await.map(drop).expect_err("the damage was not found");
        assert!(matches!(error, Error::Corrupt { .. }), "{sql}: {error}");
        says(&error, parts);
        server.sql("TRUNCATE leasehold.shards, leasehold.executors; INSERT INTO leasehold.shards TABLE keep_s; INSERT INTO leasehold.executors TABLE keep_e");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_not_ours_or_of_a_newer_build_are_refused() {
    let server = Postgres::start();
    let (store, state) = filled(&server).await;
    drop(store);
    server.sql("INSERT INTO leasehold._sqlx_migrations VALUES (4711, 'of the future', now(), TRUE, '', 0)");
    let error = open(&server).await.expect_err("a newer schema");
    assert!(matches!(error, Error::Incompatible(_)), "{error}");
    says(&error, &["4711", "up to 1"]);
    server.sql("DELETE FROM leasehold._sqlx_migrations WHERE version = 4711");
    let store = open(&server).await.unwrap();
    assert_eq!(load(&store).await, state);
    server.sql("DROP TABLE leasehold.shards");
    let error = store.load(&cluster(), count(SHARDS)).await.map(drop).expect_err("a table is gone");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    says(&error, &["table shards"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_leads_nowhere_says_so_without_its_password() {
    let server = Postgres::start();
    let at = format!("127.0.0.1:{}", server.port());
    for (url, part) in [
        (format!("postgres://leasehold:secret@{at}/no_such"), "no_such"),
        (format!("postgres://leasehold:secret@{at}/leasehold?sslmode=require"), "TLS"),
        (format!("postgres://nobody:secret@{at}/leasehold"), "nobody"),
        (format!("postgres://leasehold:secret@{at}x/leasehold"), "port"),
    ] {
        let error = PostgresClusterStore::open(&url, &cluster()).await.expect_err("a wrong URL");
        assert!(matches!(error, Error::Incompatible(_)), "{url}: {error}");
        says(&error, &[part]);
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let nobody = format!("postgres://leasehold:secret@127.0.0.1:{}/leasehold", free_port());
    assert!(matches!(PostgresClusterStore::open(&nobody, &cluster()).await, Err(Error::Unavailable(_))));
}

const PASS: u8 = 0;
/// What the server says is taken and thrown away, and the connection cut with it.
const LOSE_ANSWER: u8 = 1;
/// What the client says is held.
const HOLD_REQUEST: u8 = 2;

/// Stands between a store and the server. Connection 0 is the lock's, 1 the writer's first.
struct Proxy {
    port: u16,
    modes: Arc<Mutex<Vec<Arc<AtomicU8>>>>,
}

impl Proxy {
    fn before(server: &Postgres) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), server.port());
        let modes = Arc::<Mutex<Vec<Arc<AtomicU8>>>>::default();
        let known = Arc::clone(&modes);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
                let mode = Arc::<AtomicU8>::default();
                known.lock().unwrap().push(Arc::clone(&mode));
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let (back, forth) = ((server.try_clone().unwrap(), client.try_clone().unwrap()), (client, server));
                let answers = Arc::clone(&mode);
                thread::spawn(move || relay(back, &answers, LOSE_ANSWER));
                thread::spawn(move || relay(forth, &mode, HOLD_REQUEST));
            }
        });
        Self { port, modes }
    }

    fn set(&self, connection: usize, mode: u8) {
        self.modes.lock().unwrap()[connection].store(mode, Ordering::SeqCst);
    }

    fn connections(&self) -> usize {
        self.modes.lock().unwrap().len()
    }
}

fn relay((mut from, mut to): (TcpStream, TcpStream), mode: &AtomicU8, special: u8) {
    let mut buffer = [0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if special == LOSE_ANSWER && mode.load(Ordering::SeqCst) == LOSE_ANSWER {
            let _ = to.shutdown(std::net::Shutdown::Both);
            return;
        }
        while special == HOLD_REQUEST && mode.load(Ordering::SeqCst) == HOLD_REQUEST {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
    // What was held arrives although its sender has gone: so the server's side stays open until the server closes it.
    if special == LOSE_ANSWER {
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

/// Case 3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_answer_is_lost_is_found_by_its_tag() {
    let server = Postgres::start();
    let proxy = Proxy::before(&server);
    let (store, state) = filled_at(&server.url_at(proxy.port), options()).await;
    let (write, after) = raise(&state);
    proxy.set(1, LOSE_ANSWER);
    let told = store.commit(&write).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    assert_eq!(store.outcome(write.tag).await, Ok(true));
    assert_eq!(proxy.connections(), 3, "on a fresh connection");
    assert_eq!(load(&store).await, after);
    store.commit(&raise(&after).0).await.unwrap();
}

/// Cases 3 and 28: "it has not landed" must stay true, however late the network delivers the write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_found_not_to_have_landed_never_lands_later() {
    let server = Postgres::start();
    let proxy = Proxy::before(&server);
    let hasty = Options { silence: Duration::from_secs(2), statement_timeout: Duration::from_secs(1), ..options() };
    let (store, state) = filled_at(&server.url_at(proxy.port), hasty).await;
    // The statement is prepared already: it is one message.
    let (write, state) = raise(&state);
    store.commit(&write).await.unwrap();
    let (write, _) = raise(&state);
    proxy.set(1, HOLD_REQUEST);
    let told = store.commit(&write).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    assert_eq!(store.outcome(write.tag).await, Ok(false));
    let before = server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'");
    assert_eq!(before, "3", "the old connection waits for what is held");
    proxy.set(1, PASS);
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' AND query LIKE 'WITH condition%' \
                AND state = 'idle'";
    let arrived = "SELECT max(state_change) > now() - interval '10 seconds' FROM pg_stat_activity WHERE query LIKE 'WITH condition%' \
                AND state = 'idle' AND pid <> pg_backend_pid()";
    wait_until("the held write was carried out", PATIENCE, || server.sql(idle) == "0" || server.sql(arrived) == "t");
    assert_eq!(load(&store).await, state);
    store.commit(&write).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_or_statement_mode_is_refused_and_one_in_session_mode_serves() {
    let server = Postgres::start();
    for mode in ["transaction", "statement"] {
        let pooler = Pooler::start(&server, mode);
        let error = PostgresClusterStore::open_with(&server.url_at(pooler.port()), &cluster(), options()).await;
        let error = error.expect_err("it would give the lock away");
        assert!(matches!(error, Error::Incompatible(_)), "{mode}: {error}");
        says(&error, &["pooler in transaction mode", "pool_mode = session"]);
        drop(pooler);
    }
    assert_eq!(server.sql("SELECT to_regnamespace('leasehold') IS NULL"), "t", "nothing was written");
    let pooler = Pooler::start(&server, "session");
    let (store, state) = filled_at(&server.url_at(pooler.port()), options()).await;
    assert_eq!(store.confirm_leadership().await, Ok(()));
    assert_eq!(load(&store).await, state);
}
