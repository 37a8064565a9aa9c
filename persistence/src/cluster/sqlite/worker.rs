//! The thread that owns the file and the connection, and does one job at a time.

use super::error::{at_commit, sync_failed, unwritten};
use super::owner::{Ownership, Title};
use super::{Options, rows};
use crate::cluster::jobs::{self, Job, Reply};
use crate::cluster::{Counters, Error, Write, schema};
use futures::executor::block_on;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row, query, raw_sql};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/cluster");

/// `PRAGMA application_id` of our files; `migrations/cluster` sets it.
const APPLICATION_ID: i64 = 0x4c53_4863;

/// Files of at most so many pages (4 KiB each) are checked whole when they are opened: a few milliseconds. Of larger ones
/// only what is loaded is, which is every row.
const CHECKED_PAGES: i64 = 512;

struct Worker {
    // Before the ownership, so that even a panic closes them in this order.
    connection: Option<SqliteConnection>,
    /// A sync of the log failed: what is in it is to be settled before anything is said or written.
    unsettled: bool,
    options: SqliteConnectOptions,
    file: String,
    ownership: Ownership,
}

/// The body of the thread: opens, says so, works until every sender of `jobs` is gone, closes.
pub(super) fn run(
    path: &Path,
    options: &Options,
    counters: Arc<Counters>,
    opened: Reply<Title>,
    mut jobs: mpsc::Receiver<Job>,
) {
    let mut worker = match Worker::open(path, options) {
        Ok(worker) => worker,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(worker.ownership.title().clone()));
    while let Some(job) = jobs.blocking_recv() {
        block_on(job.done_by(&mut worker, &counters));
    }
    worker.close();
}

impl Worker {
    fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        let ownership = Ownership::take(path, options.address.as_deref())?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(false)
            // In KiB: the state is in memory already, so that pages are read once, when the store is opened.
            .pragma("cache_size", "-256")
            .busy_timeout(options.busy_timeout)
            .disable_statement_logging();
        let file = path.display().to_string();
        let mut worker = Self { connection: None, unsettled: false, options, file, ownership };
        let prepared = block_on(worker.prepare());
        if let Err(error) = prepared {
            worker.close();
            return Err(error);
        }
        Ok(worker)
    }

    /// Opens the connection, and looks at the file before anything is written to it.
    async fn prepare(&mut self) -> Result<(), Error> {
        let file = self.file.clone();
        let connection = self.connection().await?;
        check_file(connection, &file).await?;
        // Only now: the switch to WAL, which the file remembers, is the first write.
        let mode = query("PRAGMA journal_mode = WAL").fetch_one(&mut *connection).await;
        let mode = mode.and_then(|row| row.try_get::<String, _>(0)).map_err(|error| unwritten(&file, &error))?;
        if mode != "wal" {
            return Err(Error::Unavailable(format!(
                "{file}: the file system allows no write-ahead log (got {mode:?})"
            )));
        }
        MIGRATIONS.run(connection).await.map_err(|error| schema::migration(&file, &error, unwritten))?;
        // SQLite has opened the file by its name: make sure that it was the locked one.
        self.ownership.title().check()
    }

    /// The connection, opened anew if it was given up.
    async fn connection(&mut self) -> Result<&mut SqliteConnection, Error> {
        if self.connection.is_none() {
            let opened = self.options.connect().await;
            self.connection = Some(opened.map_err(|error| unwritten(&self.file, &error))?);
        }
        if self.unsettled {
            self.settle().await?;
        }
        Ok(self.connection.as_mut().expect("opened above"))
    }

    /// After a sync that failed: what the recovery on opening found in the log goes into the database and is synced there, so that
    /// neither this process nor one after a crash sees anything else than what is said from now on.
    async fn settle(&mut self) -> Result<(), Error> {
        let connection = self.connection.as_mut().expect("called with one");
        let moved = query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(connection).await;
        let busy =
            moved.and_then(|row| row.try_get::<i64, _>("busy")).map_err(|error| unwritten(&self.file, &error))?;
        if busy != 0 {
            return Err(Error::Unavailable(format!("{}: another process keeps its log in use", self.file)));
        }
        self.unsettled = false;
        Ok(())
    }

    fn close(mut self) {
        // The ownership outlives the connection: closing the locked file first would drop SQLite's locks under it.
        if let Some(connection) = self.connection.take()
            && let Err(error) = block_on(connection.close())
        {
            tracing::warn!(path = self.file, %error, "closing the store failed");
        }
    }

    /// What the store holds instead of what `write` expected.
    async fn conflict(&mut self, write: &Write) -> Error {
        let place = format!("{}, table head", self.file);
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let row = query("SELECT revision FROM head WHERE id = 1").fetch_optional(connection).await;
        match row.and_then(|row| row.map_or(Ok(0), |row| row.try_get::<i64, _>("revision"))) {
            Ok(found) => {
                let found = Revision(u64::try_from(found).unwrap_or(0));
                Error::Conflict { expected: write.expected, found }
            }
            Err(error) => unwritten(&place, &error),
        }
    }

    /// Ends an open transaction, and makes sure that none is open; otherwise gives the connection up, which ends it too.
    /// Answers whether there was one to roll back.
    async fn roll_back(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let ended = raw_sql("ROLLBACK").execute(&mut *connection).await.is_ok();
        if !ended {
            // Either SQLite had rolled back by itself, or it is in trouble: only without a transaction can one begin.
            let probe = raw_sql("BEGIN").execute(&mut *connection).await.is_ok()
                && raw_sql("ROLLBACK").execute(&mut *connection).await.is_ok();
            if !probe && let Some(connection) = self.connection.take() {
                let _ = connection.close().await;
            }
        }
        ended
    }
}

impl jobs::Worker for Worker {
    async fn load(&mut self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        self.ownership.title().check()?;
        let file = self.file.clone();
        let connection = self.connection().await?;
        raw_sql("BEGIN").execute(&mut *connection).await.map_err(|error| unwritten(&file, &error))?;
        let state = rows::read_state(connection, &file, cluster, shard_count).await;
        self.roll_back().await;
        state
    }

    async fn outcome(&mut self, tag: u128) -> Result<bool, Error> {
        self.ownership.title().check()?;
        let place = format!("{}, table head", self.file);
        let row = query("SELECT tag FROM head WHERE id = 1").fetch_optional(self.connection().await?).await;
        let Some(row) = row.map_err(|error| unwritten(&place, &error))? else { return Ok(false) };
        let stored: &[u8] = row.try_get("tag").map_err(|error| unwritten(&place, &error))?;
        Ok(stored == tag.to_be_bytes())
    }

    async fn commit(&mut self, write: &Write) -> Result<u64, Error> {
        // A file that was deleted would take the write and lose it.
        self.ownership.title().check()?;
        let file = self.file.clone();
        let connection = self.connection().await?;
        let failed = match rows::write(connection, write).await {
            Ok(rows) => return Ok(rows),
            Err(failed) => failed,
        };
        let rolled_back = self.roll_back().await;
        if let rows::Failed::Commit(error) = &failed
            && sync_failed(error)
        {
            self.unsettled = true;
            // Rolling back may have given it up already.
            if let Some(connection) = self.connection.take() {
                // Closing may fail at the same disk again; then the log stays, for the next opening.
                let _ = connection.close().await;
            }
        }
        Err(match failed {
            rows::Failed::Conflict => self.conflict(write).await,
            rows::Failed::At(table, error) => unwritten(&format!("{file}, {table}"), &error),
            rows::Failed::Commit(error) => at_commit(&file, &error, rolled_back),
        })
    }

    #[cfg(feature = "conformance")]
    async fn execute(&mut self, sql: String) -> Result<(), Error> {
        let file = self.file.clone();
        let done = raw_sql(sqlx::AssertSqlSafe(sql)).execute(self.connection().await?).await;
        done.map(drop).map_err(|error| unwritten(&file, &error))
    }
}

/// Refuses, without writing, a file that is not ours, is damaged, or was written by a newer build.
async fn check_file(connection: &mut SqliteConnection, file: &str) -> Result<(), Error> {
    let wrong = |error: sqlx::Error| unwritten(file, &error);
    // What sqlx lays down before the first migration does not make the file somebody else's.
    const FACTS: &str = "SELECT \
        (SELECT application_id FROM pragma_application_id) AS application, \
        (SELECT page_count FROM pragma_page_count) AS pages, \
        (SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' AND name <> '_sqlx_migrations') AS objects, \
        (SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations') AS migrated";
    let facts = query(FACTS).fetch_one(&mut *connection).await.map_err(wrong)?;
    let fact = |name: &str| facts.try_get::<i64, _>(name).map_err(wrong);
    if fact("application")? != APPLICATION_ID && (fact("application")? != 0 || fact("objects")? > 0) {
        return Err(Error::Incompatible(format!("{file} is a SQLite database, but no store of a shard-manager")));
    }
    if fact("pages")? <= CHECKED_PAGES {
        // The structure only: a value that breaks a constraint is found by loading it, which names the row.
        raw_sql("PRAGMA ignore_check_constraints = ON").execute(&mut *connection).await.map_err(wrong)?;
        let verdict = query("PRAGMA quick_check(1)").fetch_one(&mut *connection).await.map_err(wrong)?;
        raw_sql("PRAGMA ignore_check_constraints = OFF").execute(&mut *connection).await.map_err(wrong)?;
        let verdict: String = verdict.try_get(0).map_err(wrong)?;
        if verdict != "ok" {
            return Err(Error::Corrupt { place: file.to_owned(), what: verdict });
        }
    }
    if fact("migrated")? > 0 {
        let newest = query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations").fetch_one(connection).await;
        let newest: i64 = newest.map_err(wrong)?.try_get(0).map_err(wrong)?;
        schema::refuse_newer(file, newest, &MIGRATIONS)?;
    }
    Ok(())
}
