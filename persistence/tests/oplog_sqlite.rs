//! What goes wrong with files and rows, and what grouping is worth.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use futures::future::join_all;
use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use leasehold_persistence::oplog::audit::{Layers, Options, Report, check};
use leasehold_persistence::oplog::sqlite::{Point, Settings, SqliteAudit};
use leasehold_persistence::oplog::{
    Append, EntryIndex, EntryKind, Error, Gate, NewEntry, OplogStore, SqliteOplogStore, Writer,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

const SHARD: ShardId = ShardId(1);
const PATIENCE: Duration = Duration::from_secs(60);

fn agent(key: impl std::fmt::Display) -> AgentId {
    AgentId::new(format!("counter/{key}")).unwrap()
}

fn writer(epoch: u64) -> Writer {
    Writer { epoch: ShardEpoch::owned(epoch).unwrap(), executor: ExecutorId::from_u128(u128::from(epoch)) }
}

fn append(agent: &AgentId, expected: u64, size: usize) -> Append {
    let entries = vec![NewEntry { kind: EntryKind::Invocation, key: None, body: vec![1; size] }];
    Append { agent: agent.clone(), writer: writer(5), expected: EntryIndex(expected), entries }
}

/// A store with one oplog of three entries.
async fn store(folder: &Path, settings: Settings) -> SqliteOplogStore {
    let store = SqliteOplogStore::open_with(folder, settings).await.unwrap();
    assert!(store.claim(&agent("a"), SHARD, writer(5)).await.is_ok());
    for index in 1..=3 {
        assert_eq!(store.append(append(&agent("a"), index, 10)).await, Ok(EntryIndex(index + 1)));
    }
    store
}

/// The generation that was read, and what was found in it.
async fn verify(folder: impl AsRef<Path>) -> Result<(u64, Report), Error> {
    let store = SqliteAudit::open(folder).await?;
    let report = check(Layers::indexed(&store), &Options::default(), &mut |_| ()).await?;
    Ok((store.generation().await, report))
}

/// A program of somebody else's on the database.
async fn foreign(folder: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(folder.join("gen-000001.db")).connect().await.unwrap()
}

async fn meddle(folder: &Path, sql: &'static str) {
    let mut connection = foreign(folder).await;
    sqlx::query("PRAGMA ignore_check_constraints = ON").execute(&mut connection).await.unwrap();
    sqlx::query(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Many claims, and many pages, are one call of SQLite: each answer belongs to its own agent, whatever those beside it are told.
#[tokio::test]
async fn agents_that_are_claimed_and_read_together_hear_each_their_own() {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open(folder.path()).await.unwrap();
    let agents: Vec<_> = (0..50).map(agent).collect();
    let taken = |number: usize| number.is_multiple_of(3);
    for number in (0..agents.len()).filter(|number| taken(*number)) {
        store.claim(&agents[number], SHARD, writer(9)).await.unwrap();
    }
    let fenced = Error::Fenced { recorded: Some(writer(9)), offered: writer(5) };
    let commits = store.commits();
    let claims = join_all(agents.iter().map(|agent| store.claim(agent, SHARD, writer(5)))).await;
    for (number, claimed) in claims.into_iter().enumerate() {
        let expected = if taken(number) { Err(fenced.clone()) } else { Ok(EntryIndex(1)) };
        assert_eq!(claimed.map(|claimed| claimed.next), expected, "agent {number}");
    }
    assert!(store.commits() - commits <= 2, "they were claimed together");
    for number in (0..agents.len()).filter(|number| !taken(*number)) {
        // So many bytes tell whose entry it is, and every other agent has a second one.
        for index in 1..=1 + number as u64 % 2 {
            store.append(append(&agents[number], index, number)).await.unwrap();
        }
    }
    let pages = join_all(agents.iter().map(|agent| store.read(agent, writer(5), EntryIndex(1), 10))).await;
    for (number, page) in pages.into_iter().enumerate() {
        let sizes = page.map(|entries| entries.iter().map(|it| it.entry.body.len()).collect::<Vec<_>>());
        let expected = if taken(number) { Err(fenced.clone()) } else { Ok(vec![number; 1 + number % 2]) };
        assert_eq!(sizes, expected, "agent {number}");
    }
    let again = join_all(agents.iter().map(|agent| store.claim(agent, SHARD, writer(6)))).await;
    for (number, claimed) in again.into_iter().enumerate().filter(|(number, _)| !taken(*number)) {
        assert_eq!(claimed.map(|claimed| claimed.next), Ok(EntryIndex(2 + number as u64 % 2)), "agent {number}");
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_reopening() {
    let folder = TempDir::new().unwrap();
    drop(store(folder.path(), Settings::default()).await);
    let again = SqliteOplogStore::open(folder.path()).await.unwrap();
    assert_eq!(again.read(&agent("a"), writer(5), EntryIndex(1), 10).await.unwrap().len(), 3);
    let (generation, report) = verify(folder.path()).await.unwrap();
    assert_eq!((generation, report.total.oplogs, report.total.entries, report.greatest_epoch), (1, 1, 3, 5));
    assert!(report.proven(), "{report:?}");
}

/// Case 26: a full disk refuses what does not fit, and nothing else.
#[tokio::test]
async fn a_full_disk_refuses_the_large_append_and_keeps_the_small_ones() {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(store(folder.path(), Settings { max_pages: Some(120), ..Settings::default() }).await);
    for number in 0..8 {
        assert!(store.claim(&agent(number), SHARD, writer(5)).await.is_ok());
    }
    let calls = (0..8).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let size = if number == 3 { 1 << 20 } else { 100 };
            store.append(append(&agent(number), 1, size)).await
        })
    });
    for (number, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        match call.await.unwrap() {
            Err(Error::Unavailable(what)) if number == 3 => {
                assert!(what.contains("gen-000001.db") && what.contains("full"), "{what}");
            }
            outcome => assert_eq!((number != 3, outcome), (true, Ok(EntryIndex(2)))),
        }
    }
    assert_eq!(store.append(append(&agent(3), 1, 100)).await, Ok(EntryIndex(2)), "nothing of it was written");
    assert!(verify(folder.path()).await.unwrap().1.proven());
}

/// Case 45: whoever holds the lock for longer than it is waited for is stepped around.
#[tokio::test]
async fn a_foreign_lock_is_waited_for_and_then_stepped_around() {
    let folder = TempDir::new().unwrap();
    let settings = Settings { step_around_after: Duration::from_millis(300), ..Settings::default() };
    let store = store(folder.path(), settings).await;
    let mut other = foreign(folder.path()).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let began = Instant::now();
    let outcome = timeout(PATIENCE, store.append(append(&agent("a"), 4, 10))).await.unwrap();
    assert_eq!(outcome, Ok(EntryIndex(5)));
    assert!(began.elapsed() >= Duration::from_millis(300), "it was not waited for");
    assert_eq!(verify(folder.path()).await.unwrap().0, 2);
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(store.read(&agent("a"), writer(5), EntryIndex(1), 10).await.unwrap().len(), 4);
}

/// Case 45.
#[tokio::test]
async fn a_lock_that_may_not_be_stepped_around_yet_is_unavailable_and_nothing_is_written() {
    let folder = TempDir::new().unwrap();
    let settings = Settings { give_up_after: Duration::from_millis(300), ..Settings::default() };
    let store = store(folder.path(), settings).await;
    let mut other = foreign(folder.path()).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let outcome = timeout(PATIENCE, store.append(append(&agent("a"), 4, 10))).await.unwrap();
    assert!(matches!(&outcome, Err(Error::Unavailable(what)) if what.contains("locked")), "{outcome:?}");
    assert!(store.read(&agent("a"), writer(5), EntryIndex(1), 10).await.is_ok(), "reads go on");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(store.append(append(&agent("a"), 4, 10)).await, Ok(EntryIndex(5)));
}

/// Nobody is taken for frozen while commits are seen, however busy the lock is.
#[tokio::test]
async fn a_busy_lock_under_which_commits_land_is_not_stepped_around() {
    let folder = TempDir::new().unwrap();
    let settings = || Settings { step_around_after: Duration::from_millis(400), ..Settings::default() };
    let ours = Arc::new(store(folder.path(), settings()).await);
    let mut other = foreign(folder.path()).await;
    sqlx::query("CREATE TABLE foreign_rows (n INTEGER)").execute(&mut other).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let waiting = tokio::spawn({
        let ours = Arc::clone(&ours);
        async move { ours.append(append(&agent("a"), 4, 10)).await }
    });
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        sqlx::query("INSERT INTO foreign_rows VALUES (1)").execute(&mut other).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // In one call, so that the lock is hardly ever free.
        sqlx::raw_sql("COMMIT; BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    }
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(timeout(PATIENCE, waiting).await.unwrap().unwrap(), Ok(EntryIndex(5)));
    assert_eq!(verify(folder.path()).await.unwrap().0, 1);
}

/// F7: the generation changes between a commit and its check; the copy has the entry, so it is acknowledged and not written twice.
#[tokio::test]
async fn a_commit_that_was_copied_before_it_was_checked_is_acknowledged() {
    let folder = TempDir::new().unwrap();
    let gate = Gate::default();
    let at_gate = gate.clone();
    let armed = Arc::new(AtomicBool::new(false));
    let arm = Arc::clone(&armed);
    let probe = move |point| {
        let (gate, stop) = (at_gate.clone(), point == Point::Committed && armed.load(Ordering::SeqCst));
        Box::pin(async move {
            if stop {
                gate.pass().await;
            }
        }) as futures::future::BoxFuture<'static, ()>
    };
    let slow = Arc::new(store(folder.path(), Settings { probe: Some(Arc::new(probe)), ..Settings::default() }).await);
    let settings = Settings { step_around_after: Duration::from_millis(200), ..Settings::default() };
    let other = SqliteOplogStore::open_with(folder.path(), settings).await.unwrap();
    arm.store(true, Ordering::SeqCst);
    let held = tokio::spawn({
        let slow = Arc::clone(&slow);
        async move { slow.append(append(&agent("a"), 4, 10)).await }
    });
    timeout(PATIENCE, gate.reached()).await.unwrap();
    let mut lock = foreign(folder.path()).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut lock).await.unwrap();
    assert!(other.claim(&agent("b"), SHARD, writer(5)).await.is_ok(), "steps around the lock");
    gate.release();
    assert_eq!(timeout(PATIENCE, held).await.unwrap().unwrap(), Ok(EntryIndex(5)));
    assert_eq!(other.read(&agent("a"), writer(5), EntryIndex(1), 10).await.unwrap().len(), 4);
    let (generation, report) = verify(folder.path()).await.unwrap();
    assert_eq!((generation, report.total.entries, report.found), (2, 4, 0));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("gen-000001.db"), "nonsense ".repeat(1000)).unwrap();
    let error = SqliteOplogStore::open(folder.path()).await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { place, .. } if place.ends_with("gen-000001.db")), "{error}");
    let error = verify(folder.path()).await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { place, .. } if place.ends_with("gen-000001.db")), "{error}");
}

#[tokio::test]
async fn a_path_that_is_no_directory_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = SqliteOplogStore::open(&file).await.unwrap_err();
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    let error = verify(folder.path().join("nowhere")).await.unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test]
async fn another_builds_schema_is_refused() {
    for (version, sql) in
        [(9999, "UPDATE _sqlx_migrations SET version = 9999"), (1, "UPDATE _sqlx_migrations SET version = 1")]
    {
        let folder = TempDir::new().unwrap();
        drop(store(folder.path(), Settings::default()).await);
        meddle(folder.path(), sql).await;
        let error = SqliteOplogStore::open(folder.path()).await.unwrap_err().to_string();
        assert!(error.contains(&format!("schema version {version}, this build reads 2: use the build")), "{error}");
    }
}

/// Case 33 and worse: whatever is in the rows, it is told with its place and never taken for a value.
#[tokio::test]
async fn a_row_with_nonsense_is_corrupt_with_its_place() {
    for (sql, read, what) in [
        ("UPDATE records SET epoch = -1", false, "epoch -1"),
        ("UPDATE records SET epoch = 0", false, "epoch"),
        ("UPDATE records SET writer = 77", false, "writer"),
        ("UPDATE writers SET executor = x'00'", false, "executor"),
        ("UPDATE writers SET executor = zeroblob(16)", false, "executor"),
        ("UPDATE records SET state = 9", true, "state 9"),
        ("UPDATE entries SET kind = 3 WHERE idx = 2", true, "kind 3"),
        ("UPDATE entries SET epoch = -9 WHERE idx = 2", true, "epoch -9"),
        ("UPDATE entries SET writer = 77 WHERE idx = 2", true, "writer"),
    ] {
        let folder = TempDir::new().unwrap();
        let store = store(folder.path(), Settings::default()).await;
        meddle(folder.path(), sql).await;
        let outcomes = [
            store.read(&agent("a"), writer(5), EntryIndex(1), 10).await.map(drop),
            if read { Ok(()) } else { store.recorded(&agent("a")).await.map(drop) },
        ];
        assert!(outcomes.iter().any(Result::is_err), "{sql}");
        for error in outcomes.into_iter().filter_map(Result::err) {
            let Error::Corrupt { place, what: told } = &error else { panic!("{sql}: {error}") };
            assert!(place.contains("\"counter/a\"") && told.contains(what), "{sql}: {error}");
        }
        let (_, report) = verify(folder.path()).await.unwrap();
        assert!(!report.proven(), "{sql}: {report:?}");
    }
}

/// The three promises, each refuted.
#[tokio::test]
async fn a_check_finds_gaps_falling_epochs_second_writers_and_entries_above_the_record() {
    for (sql, what) in [
        ("DELETE FROM entries WHERE idx = 2", "index 3 where 2 belongs"),
        ("DELETE FROM entries WHERE idx = 1", "index 2 where 1 belongs"),
        ("UPDATE entries SET epoch = 4 WHERE idx = 2", "epoch 4 after 5"),
        ("UPDATE entries SET epoch = 6 WHERE idx = 3", "above its record"),
        ("DELETE FROM records", "without a record"),
        ("INSERT INTO writers VALUES (9, x'00000000000000000000000000000009') RETURNING id", ""),
        ("UPDATE records SET base = 3", "ok"),
    ] {
        let folder = TempDir::new().unwrap();
        drop(store(folder.path(), Settings::default()).await);
        meddle(folder.path(), sql).await;
        if what.is_empty() {
            meddle(folder.path(), "UPDATE entries SET writer = 9 WHERE idx = 2").await;
        }
        let (_, report) = verify(folder.path()).await.unwrap();
        match what {
            "ok" => assert!(report.proven(), "entries of a deleted life are no one's: {report:?}"),
            "" => assert!(report.findings.iter().any(|f| f.what.contains("written by")), "{report:?}"),
            what => assert!(report.findings.iter().any(|f| f.what.contains(what)), "{sql}: {report:?}"),
        }
    }
}

/// F5: what a killed process left of a deleted oplog goes with the next claim, and is seen by nobody before.
#[tokio::test]
async fn a_deletion_cut_short_is_finished_by_the_next_owner() {
    let folder = TempDir::new().unwrap();
    let store = store(folder.path(), Settings::default()).await;
    meddle(folder.path(), "UPDATE records SET state = 2, base = 4").await;
    assert_eq!(store.running(SHARD, None, 10).await, Ok(vec![]));
    let next = store.claim(&agent("a"), SHARD, writer(6)).await.unwrap();
    assert_eq!((next.next, next.snapshot), (EntryIndex(4), None));
    assert_eq!(store.read(&agent("a"), writer(6), EntryIndex(1), 10).await, Ok(vec![]));
    let mut connection = foreign(folder.path()).await;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(&mut connection).await.unwrap();
    assert_eq!(left, 0);
}

/// A long oplog goes in parts, and all of it.
#[tokio::test]
async fn a_long_oplog_is_deleted_to_its_last_entry() {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open(folder.path()).await.unwrap();
    assert!(store.claim(&agent("a"), SHARD, writer(5)).await.is_ok());
    let mut next = 1;
    while next < 9000 {
        let entries = vec![append(&agent("a"), 1, 1).entries.remove(0); 256];
        next = store.append(Append { entries, ..append(&agent("a"), next, 1) }).await.unwrap().0;
    }
    assert_eq!(store.delete(&agent("a"), writer(5), EntryIndex(next)).await, Ok(()));
    let mut connection = foreign(folder.path()).await;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(&mut connection).await.unwrap();
    assert_eq!(left, 0);
    assert_eq!(store.claim(&agent("a"), SHARD, writer(5)).await.unwrap().next, EntryIndex(next));
}

/// F3: one transaction carries them all, and only who is fenced, at a wrong index or with a taken key is refused.
#[tokio::test]
async fn of_many_appends_in_one_transaction_each_is_judged_by_itself() {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open(folder.path()).await.unwrap();
    let keyed = |key: &str| NewEntry { kind: EntryKind::Invocation, key: Some(key.into()), body: vec![2] };
    for number in 0..90 {
        let agent = agent(number);
        assert!(store.claim(&agent, SHARD, writer(5)).await.is_ok());
        let first = Append { entries: vec![keyed("k")], ..append(&agent, 1, 0) };
        assert_eq!(store.append(first).await, Ok(EntryIndex(2)));
        if number % 10 == 3 {
            assert!(store.claim(&agent, SHARD, writer(6)).await.is_ok());
        }
    }
    let before = store.commits();
    let append = |number: u64| {
        let entries = match number % 10 {
            7 => vec![keyed("l"), keyed("k"), keyed("m")],
            8 => vec![keyed("l"), keyed("m"), keyed("n")],
            _ => vec![keyed("l")],
        };
        let expected = EntryIndex(if number % 10 == 5 { 3 } else { 2 });
        store.append(Append { agent: agent(number), writer: writer(5), expected, entries })
    };
    let outcomes = futures::future::join_all((0..90).map(append)).await;
    assert!(store.commits() - before <= 2, "they were grouped");
    for (number, outcome) in (0_u64..).zip(outcomes) {
        let owner = writer(if number % 10 == 3 { 6 } else { 5 });
        let expected = match number % 10 {
            3 => Err(Error::Fenced { recorded: Some(owner), offered: writer(5) }),
            5 => Err(Error::IndexConflict { expected: EntryIndex(3), found: EntryIndex(2) }),
            7 => Err(Error::Invalid("idempotency key \"k\" is in the oplog already".into())),
            8 => Ok(EntryIndex(5)),
            _ => Ok(EntryIndex(3)),
        };
        assert_eq!(outcome, expected, "agent {number}");
        let entries = store.read(&agent(number), owner, EntryIndex(1), 10).await.unwrap();
        let indexes: Vec<u64> = entries.iter().map(|entry| entry.index.0).collect();
        let end = outcome.map_or(2, |next| next.0);
        assert_eq!(indexes, (1..end).collect::<Vec<_>>(), "agent {number}: nothing stays of what was refused");
    }
}

/// Group commit, counted and not timed.
#[tokio::test]
async fn appends_of_many_agents_share_commits() {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(SqliteOplogStore::open(folder.path()).await.unwrap());
    let agents: Vec<AgentId> = (0..256).map(agent).collect();
    futures::future::join_all(agents.iter().map(|agent| store.claim(agent, SHARD, writer(5)))).await;
    let before = store.commits();
    for index in 1..=10 {
        let appends = agents.iter().map(|agent| store.append(append(agent, index, 100)));
        let outcomes = futures::future::join_all(appends).await;
        assert!(outcomes.into_iter().all(|outcome| outcome == Ok(EntryIndex(index + 1))));
    }
    let commits = store.commits() - before;
    assert!(commits <= 40, "{commits} commits for 2,560 appends");
}

/// Everybody shares one store: handles of several processes' worth, at once.
#[tokio::test]
async fn handles_that_write_at_once_all_get_on() {
    let folder = TempDir::new().unwrap();
    let mut tasks = Vec::new();
    for who in 0..4 {
        let store = SqliteOplogStore::open(folder.path()).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let agent = agent(who);
            let mut next = store.claim(&agent, SHARD, writer(5)).await.unwrap().next.0;
            while next <= 100 {
                next = store.append(append(&agent, next, 100)).await.unwrap().0;
            }
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    let (generation, report) = verify(folder.path()).await.unwrap();
    assert_eq!((generation, report.total.entries, report.found), (1, 400, 0));
}
