//! What only oplogs in a PostgreSQL server can suffer: held commits, locks, lost sessions, full disks, poolers, other builds' tables.

#![cfg(feature = "postgres")]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod oplogs;

use leasehold_harness::{Pooler, Postgres, Process, Proxy, Relay, free_port, wait_until};
use leasehold_model::ClusterName;
use leasehold_persistence::oplog::layers::{Chunk, ChunkStore, Content, chunk};
use leasehold_persistence::oplog::postgres::Settings;
use leasehold_persistence::oplog::{EntryIndex, Error, OplogStore, PostgresOplogStore, Warning};
use oplogs::{
    PATIENCE, SHARD, agent, appending, cluster, fenced, fill, keyed, keys, large, one, rivals_of_one_epoch, says,
    sixteen_appenders, writer,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

async fn open(server: &Postgres) -> Result<PostgresOplogStore, Error> {
    PostgresOplogStore::open(&server.url(), &cluster()).await
}

async fn with(url: &str, settings: Settings) -> Arc<PostgresOplogStore> {
    Arc::new(PostgresOplogStore::open_with(url, &cluster(), settings).await.unwrap())
}

/// Gives up soon.
fn hasty() -> Settings {
    Settings { silence: Duration::from_secs(2), statement_timeout: Duration::from_secs(1), ..Settings::default() }
}

async fn refused(server: &Postgres) -> Error {
    open(server).await.map(drop).expect_err("the server is refused")
}

/// Every insert of an entry with the body "held" waits, in the statement or in its commit, for [`let_go`].
fn hold_inserts(server: &Postgres, when: &str) {
    server.sql(&format!(
        "CREATE TABLE holding AS SELECT 1; CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN WHILE new.body = ''held'' AND EXISTS (SELECT 1 FROM public.holding) LOOP PERFORM pg_sleep(0.02); END LOOP; \
         RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON leasehold_oplogs.entries {when} FOR EACH ROW EXECUTE FUNCTION hold()"
    ));
}

fn is_held(server: &Postgres) {
    let held = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name = 'leasehold-executor'";
    wait_until("the append stands inside the server", PATIENCE, || server.sql(held) == "1");
}

fn let_go(server: &Postgres) {
    server.sql("DELETE FROM holding");
}

/// psql's end does not end a `pg_sleep` under way.
fn end(server: &Postgres, mut session: Process) {
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()");
    wait_until("the session has ended", PATIENCE, || session.ended().is_ok_and(|ended| ended.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_owners_at_one_epoch_never_both_write() {
    let server = Postgres::start();
    rivals_of_one_epoch(&open(&server).await.unwrap(), &open(&server).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_appenders_of_one_owner_on_two_handles_leave_no_gap() {
    let server = Postgres::start();
    let stores: [Arc<dyn OplogStore>; 2] =
        [Arc::new(open(&server).await.unwrap()), Arc::new(open(&server).await.unwrap())];
    sixteen_appenders(&stores).await;
}

/// Case 31: the server holds the old owner's commit, and the next one waits for what becomes of it. It comes through: then it is the
/// next owner's too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_server_holds_keeps_the_next_owner_waiting_and_is_never_lost() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let old = with(&server.url(), Settings::default()).await;
    let next = with(&server.url(), Settings { lock_timeout: Duration::from_millis(300), ..Settings::default() }).await;
    fill(&*old, &agent, writer(5), 2).await;
    // Where the statement timeout does not count any more.
    hold_inserts(&server, "DEFERRABLE INITIALLY DEFERRED");
    let slow = appending(&old, one(&agent, writer(5), 3, "held"));
    is_held(&server);
    let error = next.claim(&agent, SHARD, writer(6)).await.expect_err("nobody knows yet what is in the oplog");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    says(&error, &["counter/a", "another session has had its record"]);
    assert_eq!(next.recorded(&agent).await, Ok(Some(writer(5))));
    let_go(&server);
    assert_eq!(timeout(PATIENCE, slow).await.unwrap().unwrap(), Ok(EntryIndex(4)));
    assert_eq!(next.claim(&agent, SHARD, writer(6)).await.unwrap().next, EntryIndex(4));
    assert_eq!(keys(&*next, &agent, writer(6)).await, ["1", "2", "held"]);
    assert_eq!(old.append(one(&agent, writer(5), 4, "stale")).await, fenced(Some(writer(6)), writer(5)));
}

/// Case 31, when it is held for longer than the server works on a statement: it is rolled back, and the claim that waited goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_is_held_for_too_long_is_ended_and_the_waiting_claim_goes_through() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let old = with(&server.url(), Settings { statement_timeout: Duration::from_secs(2), ..Settings::default() }).await;
    let next = with(&server.url(), Settings { lock_timeout: Duration::from_secs(30), ..Settings::default() }).await;
    fill(&*old, &agent, writer(5), 2).await;
    hold_inserts(&server, "");
    let slow = appending(&old, one(&agent, writer(5), 3, "held"));
    is_held(&server);
    let claimed = timeout(PATIENCE, next.claim(&agent, SHARD, writer(6))).await.unwrap();
    assert_eq!(claimed.unwrap().next, EntryIndex(3));
    // A cancelled statement might have been committed before: the caller reads back, and finds that it is fenced.
    let told = timeout(PATIENCE, slow).await.unwrap().unwrap();
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    assert_eq!(old.read(&agent, writer(5), EntryIndex(3), 9).await, fenced(Some(writer(6)), writer(5)));
    assert_eq!(old.append(one(&agent, writer(5), 3, "again")).await, fenced(Some(writer(6)), writer(5)));
    assert_eq!(next.append(one(&agent, writer(6), 3, "next")).await, Ok(EntryIndex(4)));
    assert_eq!(keys(&*next, &agent, writer(6)).await, ["1", "2", "next"]);
}

/// Case 31: it is still on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_held_in_the_network_is_fenced_once_the_next_owner_took_over() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let old = with(&server.url_at(proxy.port()), Settings::default()).await;
    let next = open(&server).await.unwrap();
    fill(&*old, &agent, writer(5), 2).await;
    proxy.set(Relay::HoldRequests);
    let slow = appending(&old, one(&agent, writer(5), 3, "slow"));
    wait_until("it is held", PATIENCE, || proxy.held() > 0);
    assert_eq!(next.claim(&agent, SHARD, writer(6)).await.unwrap().next, EntryIndex(3));
    assert_eq!(next.append(one(&agent, writer(6), 3, "next")).await, Ok(EntryIndex(4)));
    proxy.set(Relay::Pass);
    assert_eq!(timeout(PATIENCE, slow).await.unwrap().unwrap(), fenced(Some(writer(6)), writer(5)));
    assert_eq!(keys(&next, &agent, writer(6)).await, ["1", "2", "next"]);
}

/// F7, case 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_whose_answer_is_lost_is_unknown_and_found_by_reading_back() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let store = with(&server.url_at(proxy.port()), hasty()).await;
    fill(&*store, &agent, writer(5), 2).await;
    proxy.set(Relay::LoseAnswers);
    let told = store.append(one(&agent, writer(5), 3, "lost")).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    proxy.set(Relay::Pass);
    assert_eq!(keys(&*store, &agent, writer(5)).await, ["1", "2", "lost"]);
    assert_eq!(store.append(one(&agent, writer(5), 4, "4")).await, Ok(EntryIndex(5)));
}

/// F7, case 28: once the caller is told that nobody knows, what it reads back stays so, however late the network delivers the append.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_was_given_up_and_read_back_as_absent_never_lands_later() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let store = with(&server.url_at(proxy.port()), hasty()).await;
    fill(&*store, &agent, writer(5), 2).await;
    proxy.set(Relay::HoldRequests);
    let told = store.append(one(&agent, writer(5), 3, "late")).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    // The readers' connection is one of those whose requests are held.
    let reading = open(&server).await.unwrap();
    assert_eq!(keys(&reading, &agent, writer(5)).await, ["1", "2"]);
    proxy.set(Relay::Pass);
    wait_until("what was held has arrived", PATIENCE, || proxy.let_go() == proxy.held());
    wait_until("nobody works on it", PATIENCE, || {
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()") == "0"
    });
    assert_eq!(keys(&reading, &agent, writer(5)).await, ["1", "2"]);
    assert_eq!(store.append(one(&agent, writer(5), 3, "3")).await, Ok(EntryIndex(4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_loses_nothing_and_is_used_again() {
    let (mut server, agent) = (Postgres::start(), agent("a"));
    let store = open(&server).await.unwrap();
    fill(&store, &agent, writer(5), 3).await;
    server.stop();
    let away = store.append(one(&agent, writer(5), 4, "4")).await;
    assert!(matches!(away, Err(Error::Unavailable(_) | Error::Unknown(_))), "{away:?}");
    assert!(matches!(store.append(one(&agent, writer(5), 4, "4")).await, Err(Error::Unavailable(_))), "nobody took it");
    assert!(matches!(store.read(&agent, writer(5), EntryIndex(1), 9).await, Err(Error::Unavailable(_))));
    server.start_again();
    assert_eq!(keys(&store, &agent, writer(5)).await, ["1", "2", "3"]);
    assert_eq!(store.append(one(&agent, writer(5), 4, "4")).await, Ok(EntryIndex(5)));
}

/// Case 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_the_append_whole_and_takes_it_when_there_is_room() {
    let (server, agent) = (Postgres::start_on_disk(160, &[("autovacuum", "off")]), agent("a"));
    let store = open(&server).await.unwrap();
    fill(&store, &agent, writer(5), 2).await;
    server.fill_disk();
    let (mut next, error) = (3, loop_until_refused(&store, &agent).await);
    assert!(matches!(error.1, Error::Unavailable(_)), "{}", error.1);
    says(&error.1, &["53100"]);
    next += error.0;
    assert_eq!(store.read(&agent, writer(5), EntryIndex(next), 9).await, Ok(vec![]), "nothing of it was written");
    server.clear_disk();
    assert_eq!(store.append(large(&agent, writer(5), next, 500_000)).await, Ok(EntryIndex(next + 1)));
}

/// How many large appends fitted, and why the next one did not.
async fn loop_until_refused(store: &PostgresOplogStore, agent: &leasehold_model::AgentId) -> (u64, Error) {
    for done in 0..100 {
        if let Err(error) = store.append(large(agent, writer(5), 3 + done, 500_000)).await {
            return (done, error);
        }
    }
    panic!("the disk never fills up");
}

/// Case 45: somebody has a record for himself. Only its agent waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_somebody_has_locked_holds_nobody_else_up() {
    let server = Postgres::start();
    let settings = Settings { writers: 1, lock_timeout: Duration::from_secs(60), ..Settings::default() };
    let store = with(&server.url(), settings).await;
    for name in ["locked", "free-0", "free-1"] {
        fill(&*store, &agent(name), writer(5), 1).await;
    }
    let locker = server.session("SELECT 1 FROM leasehold_oplogs.records WHERE agent = 'counter/locked' FOR UPDATE");
    let locked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FOR UPDATE%' AND wait_event = 'PgSleep'";
    wait_until("the record is locked", PATIENCE, || server.sql(locked) == "1");
    let (free, are_free) = tokio::sync::oneshot::channel();
    let waiting = tokio::spawn({
        let (store, locked) = (Arc::clone(&store), agent("locked"));
        let at = move |store: &Arc<PostgresOplogStore>, agent, index: u64| {
            let (store, append) = (Arc::clone(store), one(&agent, writer(5), index, &index.to_string()));
            async move { store.append(append).await }
        };
        let both = futures::future::join(at(&store, agent("free-0"), 2), at(&store, agent("free-1"), 2));
        // Asked in this order, and so all of them in one statement at first.
        async move { tokio::join!(at(&store, locked.clone(), 2), at(&store, locked, 3), async { free.send(both.await) }) }
    });
    let told = timeout(Duration::from_secs(20), are_free).await.expect("they do not wait for it").unwrap();
    assert_eq!(told, (Ok(EntryIndex(3)), Ok(EntryIndex(3))));
    for round in 3..12 {
        for name in ["free-0", "free-1"] {
            let append = store.append(one(&agent(name), writer(5), round, &round.to_string()));
            let told = timeout(Duration::from_secs(20), append).await.expect("it does not wait for the other one");
            assert_eq!(told, Ok(EntryIndex(round + 1)));
        }
    }
    assert!(!waiting.is_finished());
    end(&server, locker);
    let (first, second, _) = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!((first, second), (Ok(EntryIndex(3)), Ok(EntryIndex(4))), "they were waited for, in their order");
}

/// Case 45: writes that cannot go on leave reads alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_takes_no_writes_starves_no_reads() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let store = with(&server.url(), Settings { lock_timeout: Duration::from_millis(500), ..Settings::default() }).await;
    fill(&*store, &agent, writer(5), 2).await;
    let locker = server.session("LOCK TABLE leasehold_oplogs.records IN SHARE MODE");
    let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'ShareLock' AND granted AND locktype = 'relation'";
    wait_until("the table is locked", PATIENCE, || server.sql(locked) != "0");
    let writes: Vec<_> = (0..32)
        .map(|number| appending(&store, one(&oplogs::agent(number), writer(5), 1, "1")))
        .chain([appending(&store, one(&agent, writer(5), 3, "3"))])
        .collect();
    for _ in 0..20 {
        assert_eq!(timeout(Duration::from_secs(5), keys(&*store, &agent, writer(5))).await.unwrap(), ["1", "2"]);
    }
    for write in writes {
        let told = timeout(PATIENCE, write).await.unwrap().unwrap();
        assert!(matches!(told, Err(Error::Unavailable(_))), "{told:?}");
    }
    end(&server, locker);
    assert_eq!(store.append(one(&agent, writer(5), 3, "3")).await, Ok(EntryIndex(4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_many_agents_are_carried_in_few_transactions() {
    let server = Postgres::start();
    let store = with(&server.url(), Settings::default()).await;
    let claims = (0..128).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.claim(&agent(number), SHARD, writer(5)).await.unwrap() })
    });
    for claim in claims.collect::<Vec<_>>() {
        claim.await.unwrap();
    }
    let before = store.commits();
    for round in 1..=10 {
        let appends: Vec<_> = (0..128)
            .map(|number| appending(&store, one(&agent(number), writer(5), round, &round.to_string())))
            .collect();
        for append in appends {
            assert_eq!(append.await.unwrap(), Ok(EntryIndex(round + 1)));
        }
    }
    let commits = store.commits() - before;
    assert!(commits < 1280 / 8, "{commits} commits for 1280 appends");
}

/// Of a batch, a taken key or a record that is somebody else's is one call's own affair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_appends_in_one_statement_each_is_judged_by_itself() {
    let server = Postgres::start();
    let store = with(&server.url(), Settings { writers: 1, ..Settings::default() }).await;
    for number in 0..16 {
        fill(&*store, &agent(number), writer(5), 1).await;
    }
    store.claim(&agent(3), SHARD, writer(6)).await.unwrap();
    let appends: Vec<_> = (0..16)
        .map(|number| {
            let key = if number == 7 { "1" } else { "2" };
            let expected = if number == 11 { 9 } else { 2 };
            appending(&store, one(&agent(number), writer(5), expected, key))
        })
        .collect();
    for (number, append) in appends.into_iter().enumerate() {
        match (number, append.await.unwrap()) {
            (3, outcome) => assert_eq!(outcome, fenced(Some(writer(6)), writer(5))),
            (7, Err(Error::Invalid(what))) => assert!(what.contains("\"1\""), "{what}"),
            (11, outcome) => {
                assert_eq!(outcome, Err(Error::IndexConflict { expected: EntryIndex(9), found: EntryIndex(2) }));
            }
            (number, outcome) => assert_eq!(outcome, Ok(EntryIndex(3)), "{number}"),
        }
    }
}

/// Plans are made once and kept, so those made for a handful of agents must do for any number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_reads_the_records_of_its_own_agents_alone_however_many_there_are() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let store = with(&server.url(), Settings { writers: 1, ..Settings::default() }).await;
    fill(&*store, &agent, writer(5), 1).await;
    server.sql("ALTER TABLE leasehold_oplogs.records SET (autovacuum_enabled = off)");
    server.sql("ANALYZE leasehold_oplogs.records");
    let append = async |from: u64| {
        for index in from..from + 10 {
            store.append(one(&agent, writer(5), index, &index.to_string())).await.unwrap();
        }
    };
    append(2).await;
    server.sql(
        "INSERT INTO leasehold_oplogs.records (cluster, agent, shard, epoch, executor, state, base, next) \
         SELECT cluster, agent || number, shard, epoch, executor, state, 1, 1 FROM leasehold_oplogs.records, generate_series(1, 5000) number",
    );
    let before = rows_read(&server, "records");
    append(12).await;
    drop(store);
    sessions_ended(&server);
    let read = rows_read(&server, "records") - before;
    assert!(read <= 10 * 10, "{read} records were read for 10 appends");
}

/// Rows of a table that all sessions have read that have ended.
fn rows_read(server: &Postgres, table: &str) -> u64 {
    let read = server.sql(&format!(
        "SELECT pg_stat_force_next_flush(); \
         SELECT sum(idx_tup_read) + sum(s.seq_tup_read) FROM pg_stat_all_indexes i JOIN pg_stat_all_tables s USING (relid) \
         WHERE i.schemaname = 'leasehold_oplogs' AND i.relname = '{table}'"
    ));
    read.trim().parse().unwrap()
}

fn sessions_ended(server: &Postgres) {
    wait_until("the sessions have ended, and told what they read", PATIENCE, || {
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold-executor'") == "0"
    });
}

/// The same for moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_reads_the_entries_that_it_takes_alone_however_many_there_are() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let store = with(&server.url(), Settings { writers: 1, ..Settings::default() }).await;
    fill(&*store, &agent, writer(5), 40).await;
    server.sql("ALTER TABLE leasehold_oplogs.entries SET (autovacuum_enabled = off); ANALYZE leasehold_oplogs.entries");
    let moves = async |from: u64| {
        for index in from..from + 10 {
            let entry = keyed(&index.to_string());
            let bytes = chunk::encode(&agent, EntryIndex(index), [(writer(5), &entry)]);
            let (first, content) = (EntryIndex(index), Content::Inline(bytes));
            assert_eq!(store.move_out(&agent, writer(5), Chunk { first, last: first, content }).await, Ok(()));
        }
    };
    moves(1).await;
    server.sql(
        "INSERT INTO leasehold_oplogs.entries (oplog, idx, epoch, executor, kind, body) \
         SELECT oplog + (number % 2) * number, 1000 + number, epoch, executor, 1, '' \
         FROM (SELECT * FROM leasehold_oplogs.entries LIMIT 1) one, generate_series(1, 10000) number",
    );
    let before = rows_read(&server, "entries");
    moves(11).await;
    drop(store);
    sessions_ended(&server);
    let read = rows_read(&server, "entries") - before;
    assert!(read <= 10 * 10, "{read} entries were read for 10 moves of one each");
}

/// F5: what a deletion that was cut short left behind is invisible, in nobody's way, and removed by the next claim.
#[tokio::test]
async fn what_a_deletion_left_behind_is_removed_by_the_next_claim() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let store = open(&server).await.unwrap();
    fill(&store, &agent, writer(5), 3).await;
    let cut_short = "UPDATE leasehold_oplogs.records SET state = 2, base = next, snapshot = NULL";
    server.sql(cut_short);
    let entries = "SELECT count(*) FROM leasehold_oplogs.entries";
    assert_eq!(
        (store.claim(&agent, SHARD, writer(6)).await.unwrap().next, server.sql(entries)),
        (EntryIndex(4), "0".into())
    );
    assert_eq!(store.append(one(&agent, writer(6), 4, "1")).await, Ok(EntryIndex(5)), "its keys are free");
    // Put back by a transaction that ended after the claim had looked.
    server.sql("INSERT INTO leasehold_oplogs.entries SELECT oplog, 2, epoch, executor, 1, 'k', '' FROM leasehold_oplogs.entries");
    assert_eq!(store.append(one(&agent, writer(6), 5, "k")).await, Ok(EntryIndex(6)));
    assert_eq!(store.delete(&agent, writer(6), EntryIndex(6)).await, Ok(()));
    assert_eq!(server.sql(entries), "0");
}

#[tokio::test]
async fn clusters_in_one_database_do_not_see_each_other() {
    let (server, agent) = (Postgres::start(), agent("a"));
    let store = open(&server).await.unwrap();
    let other = PostgresOplogStore::open(&server.url(), &ClusterName::new("c2").unwrap()).await.unwrap();
    fill(&store, &agent, writer(5), 2).await;
    assert_eq!(other.recorded(&agent).await, Ok(None));
    assert_eq!(other.running(SHARD, None, 10).await, Ok(vec![]));
    fill(&other, &agent, writer(4), 1).await;
    assert_eq!(other.delete(&agent, writer(4), EntryIndex(2)).await, Ok(()));
    assert_eq!(keys(&store, &agent, writer(5)).await, ["1", "2"]);
}

#[tokio::test]
async fn settings_that_lose_what_was_acknowledged_are_warned_about() {
    // The harness turns both off.
    let server = Postgres::start_with(&[("fsync", "on"), ("full_page_writes", "on")]);
    assert_eq!(open(&server).await.unwrap().warnings(), []);
    server.sql("ALTER ROLE leasehold SET synchronous_commit = off");
    let store = open(&server).await.unwrap();
    assert_eq!(store.warnings(), [Warning::PostgresAsynchronous]);
    let unsafe_server = Postgres::start();
    let store = open(&unsafe_server).await.unwrap();
    assert_eq!(store.warnings(), [Warning::PostgresUnsafe("fsync"), Warning::PostgresUnsafe("full_page_writes")]);
    assert!(store.warnings()[0].to_string().contains("set fsync = on"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_or_statement_mode_is_refused_and_one_in_session_mode_serves() {
    let server = Postgres::start();
    for mode in ["transaction", "statement"] {
        let pooler = Pooler::start(&server, mode);
        let error = PostgresOplogStore::open(&server.url_at(pooler.port()), &cluster()).await;
        let error = error.map(drop).expect_err("it would give the settings away");
        assert!(matches!(error, Error::Invalid(_)), "{mode}: {error}");
        says(&error, &["pooler in transaction mode", "pool_mode = session"]);
    }
    assert_eq!(server.sql("SELECT to_regnamespace('leasehold_oplogs') IS NULL"), "t", "nothing was written");
    let pooler = Pooler::start(&server, "session");
    let store = PostgresOplogStore::open(&server.url_at(pooler.port()), &cluster()).await.unwrap();
    fill(&store, &agent("a"), writer(5), 3).await;
    assert_eq!(keys(&store, &agent("a"), writer(5)).await, ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_that_start_at_once_on_an_empty_database_all_open_it() {
    let server = Postgres::start();
    let (one, other, third) = tokio::join!(open(&server), open(&server), open(&server));
    fill(&one.unwrap(), &agent("a"), writer(5), 1).await;
    assert_eq!(other.unwrap().recorded(&agent("a")).await, Ok(Some(writer(5))));
    assert_eq!(third.unwrap().recorded(&agent("a")).await, Ok(Some(writer(5))));
}

#[tokio::test]
async fn tables_of_another_build_are_refused() {
    let server = Postgres::start();
    drop(open(&server).await.unwrap());
    for (version, told) in [(4711, ["up to 2", "newer build"]), (1, ["this build reads 2", "use the older build"])] {
        server.sql(&format!("UPDATE leasehold_oplogs._sqlx_migrations SET version = {version}"));
        let error = refused(&server).await;
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        says(&error, &[&format!("schema version {version}"), told[0], told[1]]);
    }
}

#[tokio::test]
async fn a_url_that_leads_nowhere_says_so_without_its_password() {
    let server = Postgres::start();
    let at = format!("127.0.0.1:{}", server.port());
    for (url, part) in [
        (format!("postgres://leasehold:secret@{at}/no_such"), "no_such"),
        (format!("postgres://leasehold:secret@{at}/leasehold?sslmode=require"), "TLS"),
        (format!("postgres://nobody:secret@{at}/leasehold"), "nobody"),
        (format!("postgres://leasehold:secret@{at}/leasehold?sslmod=require"), "sslmod"),
    ] {
        let error = PostgresOplogStore::open(&url, &cluster()).await.map(drop).expect_err("a wrong URL");
        assert!(matches!(error, Error::Invalid(_)), "{url}: {error}");
        says(&error, &[part]);
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let nobody = format!("postgres://leasehold:secret@127.0.0.1:{}/leasehold", free_port());
    let error = PostgresOplogStore::open(&nobody, &cluster()).await.map(drop).expect_err("nobody is there");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

/// A privilege can be given back; a table that is not ours cannot.
#[tokio::test]
async fn what_cannot_be_right_is_told_with_its_place() {
    let server = Postgres::start();
    let store = open(&server).await.unwrap();
    for name in ["entry", "writer", "record"] {
        fill(&store, &agent(name), writer(5), 2).await;
    }
    let damage = |table: &str, constraint: &str, set: &str, name: &str| {
        server.sql(&format!(
            "SET search_path TO leasehold_oplogs; ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {constraint}; \
             UPDATE {table} SET {set} WHERE {} = (SELECT id FROM records WHERE agent = 'counter/{name}')",
            if table == "entries" { "oplog" } else { "id" },
        ));
    };
    damage("entries", "entries_kind_check", "kind = 9", "entry");
    damage("entries", "entries_executor_check", "executor = 'x'", "writer");
    damage("records", "records_epoch_check", "epoch = -1", "record");
    for (name, part) in [("entry", "entry 1: kind 9"), ("writer", "entry 1"), ("record", "epoch -1")] {
        let error = store.read(&agent(name), writer(5), EntryIndex(1), 10).await.expect_err("damage");
        assert!(matches!(error, Error::Corrupt { .. }), "{name}: {error}");
        says(&error, &[name, part]);
    }
    server.sql("DROP TABLE leasehold_oplogs.entries");
    let error = store.append(one(&agent("entry"), writer(5), 3, "3")).await.expect_err("the table is gone");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
