//! The state as rows, and rows as the state.

use super::error::unwritten;
use crate::cluster::rows::{Columns, StateReader, signed, state_columns};
use crate::cluster::{Error, Write};
use futures::TryStreamExt;
use leasehold_model::state::{ClusterState, Executor, Shard};
use leasehold_model::{ClusterName, ExecutorId, ShardCount, ShardId};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Either, Executor as _, QueryBuilder, Row, Sqlite, query};

/// Rows in one statement. At ten columns they stay below SQLite's 32,766 parameters.
const ROWS_PER_STATEMENT: usize = 2048;
/// Statements with at most so many rows are worth keeping prepared.
const KEPT_ROWS: usize = 8;

/// Where in a write something failed.
pub(super) enum Failed {
    /// The store is not at the expected revision.
    Conflict,
    /// A statement before COMMIT, and the table that it is about.
    At(&'static str, sqlx::Error),
    /// COMMIT itself.
    Commit(sqlx::Error),
}

/// Fails where the statement before it changed no row: nothing behind it is carried out then. (The least integer has no absolute value.)
const OR_FAIL: &str = "SELECT abs(iif(changes() = 1, 1, -9223372036854775807 - 1))";

/// The statements of one write.
struct Script {
    sql: QueryBuilder<Sqlite>,
    /// What each is about.
    about: Vec<&'static str>,
}

impl Script {
    /// The builder, where the next statement belongs.
    fn next(&mut self, about: &'static str) -> &mut QueryBuilder<Sqlite> {
        if !self.about.is_empty() {
            self.sql.push("; ");
        }
        self.about.push(about);
        &mut self.sql
    }
}

const HEAD: &str = "table head";
const EXECUTORS: &str = "table executors";
const SHARDS: &str = "table shards";
const COMMIT: &str = "commit";

/// A whole write in one call, since each call goes to another thread and back. Immediate: a transaction that read first would be refused
/// at once when it wants to write beside another writer.
fn script(write: &Write) -> Script {
    let changes = &write.changes;
    let mut script = Script { sql: QueryBuilder::new(""), about: Vec::new() };
    script.next(HEAD).push("BEGIN IMMEDIATE");
    let (sql, tag) = (script.next(HEAD), write.tag.to_be_bytes().to_vec());
    if let Some(head) = &changes.first {
        sql.push("INSERT INTO head (id, cluster, shard_count, revision, tag) VALUES (1, ");
        sql.push_bind(head.cluster.as_str().to_owned()).push(", ").push_bind(i64::from(head.shard_count.get()));
        sql.push(", ").push_bind(signed(write.next.0)).push(", ").push_bind(tag).push(") ON CONFLICT DO NOTHING");
    } else {
        sql.push("UPDATE head SET revision = ").push_bind(signed(write.next.0)).push(", tag = ").push_bind(tag);
        sql.push(" WHERE id = 1 AND revision = ").push_bind(signed(write.expected.0));
    }
    script.next(HEAD).push(OR_FAIL);
    let removed: Vec<_> = changes.removed.iter().collect();
    for ids in removed.chunks(ROWS_PER_STATEMENT) {
        let sql = script.next(EXECUTORS);
        sql.push("DELETE FROM executors WHERE id IN (");
        let mut list = sql.separated(", ");
        for id in ids {
            list.push_bind(id.to_string());
        }
        list.push_unseparated(")");
    }
    let executors: Vec<_> = changes.executors.iter().collect();
    for chunk in executors.chunks(ROWS_PER_STATEMENT) {
        upsert_executors(script.next(EXECUTORS), chunk.iter().map(|(id, row)| (**id, &***row)));
    }
    let shards: Vec<_> = changes.shards.iter().collect();
    for chunk in shards.chunks(ROWS_PER_STATEMENT) {
        upsert_shards(script.next(SHARDS), chunk);
    }
    script.next(COMMIT).push("COMMIT");
    script
}

/// Writes everything, the condition first, and commits; answers how many rows. Whoever gets an error rolls back.
pub(super) async fn write(connection: &mut SqliteConnection, write: &Write) -> Result<u64, Failed> {
    let Script { mut sql, about } = script(write);
    let changes = &write.changes;
    let kept = changes.removed.len() + changes.executors.len() + changes.shards.len() <= KEPT_ROWS;
    // One result for each statement that was carried out.
    let mut results = connection.fetch_many(sql.build().persistent(kept));
    let (mut done, mut head, mut rows) = (0, 0, 0);
    loop {
        match results.try_next().await {
            Ok(None) => return Ok(rows),
            Ok(Some(Either::Right(_))) => {}
            Ok(Some(Either::Left(result))) => {
                // What a statement that changes nothing by its kind is said to have affected is the statement's before it.
                match about.get(done) {
                    Some(&HEAD) if done == 1 => (head, rows) = (result.rows_affected(), result.rows_affected()),
                    Some(&(EXECUTORS | SHARDS)) => rows += result.rows_affected(),
                    Some(_) | None => {}
                }
                done += 1;
            }
            Err(_) if done == 2 && head == 0 => return Err(Failed::Conflict),
            Err(error) => {
                return Err(match about.get(done) {
                    Some(&COMMIT) | None => Failed::Commit(error),
                    Some(table) => Failed::At(table, error),
                });
            }
        }
    }
}

fn upsert_executors<'a>(sql: &mut QueryBuilder<Sqlite>, rows: impl Iterator<Item = (ExecutorId, &'a Executor)>) {
    sql.push(
        "INSERT INTO executors (id, name, address, zone, weight, lease_length_ms, key_hash, draining, superseded, \
         registered_at_ms) ",
    );
    sql.push_values(rows, |mut tuple, (id, row)| {
        tuple
            .push_bind(id.to_string())
            .push_bind(row.name.as_str().to_owned())
            .push_bind(row.address.as_str().to_owned())
            .push_bind(row.zone.clone())
            .push_bind(i64::from(row.weight.get()))
            .push_bind(signed(row.lease_length.as_ms()))
            .push_bind(row.key_hash.0.to_vec())
            .push_bind(i64::from(row.draining))
            .push_bind(i64::from(row.superseded))
            .push_bind(row.registered_at_ms);
    });
    sql.push(
        " ON CONFLICT (id) DO UPDATE SET name = excluded.name, address = excluded.address, zone = excluded.zone, \
         weight = excluded.weight, lease_length_ms = excluded.lease_length_ms, key_hash = excluded.key_hash, \
         draining = excluded.draining, superseded = excluded.superseded, registered_at_ms = excluded.registered_at_ms",
    );
}

fn upsert_shards(sql: &mut QueryBuilder<Sqlite>, rows: &[(&ShardId, &Shard)]) {
    sql.push("INSERT INTO shards (shard, epoch, state, executor, since) ");
    sql.push_values(rows, |mut tuple, (shard, row)| {
        let (state, since) = state_columns(&row.state);
        tuple
            .push_bind(i64::from(shard.0))
            .push_bind(signed(row.epoch.get()))
            .push_bind(state)
            .push_bind(row.state.executor().map(|executor| executor.to_string()))
            .push_bind(since);
    });
    sql.push(
        " ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch, state = excluded.state, \
         executor = excluded.executor, since = excluded.since",
    );
}

impl Columns for SqliteRow {
    // As options, because sqlx would read NULL as 0 or as empty.
    fn integer(&self, name: &str) -> Result<Option<i64>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.integer(name)? {
            None => Ok(None),
            Some(0) => Ok(Some(false)),
            Some(1) => Ok(Some(true)),
            Some(other) => Err(format!("{other} is neither 0 nor 1")),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }

    fn bytes(&self, name: &str) -> Result<Option<&[u8]>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }
}

/// Reads the whole state. The caller has a transaction open, so that it is one state.
pub(super) async fn read_state(
    connection: &mut SqliteConnection,
    file: &str,
    cluster: &ClusterName,
    shard_count: ShardCount,
) -> Result<ClusterState, Error> {
    let unreadable = |table: &'static str| move |error| unwritten(&format!("{file}, {table}"), &error);
    let heads = query("SELECT cluster, shard_count, revision FROM head").fetch_all(&mut *connection).await;
    let heads = heads.map_err(unreadable(HEAD))?;
    let head = heads.first().map(|row| row as &dyn Columns);
    let mut state = StateReader::new(file, head, cluster, shard_count)?;
    // One row at a time: all at once take many times the memory of the state that is made of them.
    let mut rows = query("SELECT * FROM executors").fetch(&mut *connection);
    while let Some(row) = rows.try_next().await.map_err(unreadable(EXECUTORS))? {
        state.executor(&row)?;
    }
    drop(rows);
    let mut rows = query("SELECT shard, epoch, state, executor, since FROM shards ORDER BY shard").fetch(connection);
    while let Some(row) = rows.try_next().await.map_err(unreadable(SHARDS))? {
        state.shard(&row)?;
    }
    state.finish()
}
