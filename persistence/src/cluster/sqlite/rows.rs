//! The state as rows, and rows as the state.

use super::error::unwritten;
use crate::cluster::{Error, Write, check_head};
use futures::TryStreamExt;
use leasehold_model::message::Weight;
use leasehold_model::state::{ClusterState, Executor, Head, Shard, ShardState, StateRows};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Revision, ShardCount, ShardEpoch, ShardId, Ttl,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Either, Executor as _, QueryBuilder, Row, Sqlite, query};
use std::fmt::Display;

/// Rows in one statement. At ten columns they stay below SQLite's 32,766 parameters.
const ROWS_PER_STATEMENT: usize = 2048;
/// Statements with at most so many rows are worth keeping prepared.
const KEPT_ROWS: usize = 8;

/// The bits of a number that was checked to fit, or is bounded by its type.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or_else(|_| panic!("{value} was not checked before it was written"))
}

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
        let (state, since) = match row.state {
            ShardState::Unassigned => ("unassigned", None),
            ShardState::Owned(_) => ("owned", None),
            ShardState::Releasing { since, .. } => ("releasing", Some(signed(since.0))),
        };
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

/// One stored row, which knows how to say where it is.
struct Stored<'a> {
    row: &'a SqliteRow,
    place: String,
}

impl Stored<'_> {
    fn corrupt(&self, column: &str, what: impl Display) -> Error {
        Error::Corrupt { place: format!("{}, column {column}", self.place), what: what.to_string() }
    }

    /// A column that may be NULL.
    fn optional<'r, T>(&'r self, name: &str) -> Result<Option<T>, Error>
    where
        T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
    {
        self.row.try_get(name).map_err(|error| self.corrupt(name, error))
    }

    /// A column that may not. Asked for as such, because sqlx would read NULL as 0 or as empty.
    fn column<'r, T>(&'r self, name: &str) -> Result<T, Error>
    where
        T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
    {
        self.optional(name)?.ok_or_else(|| self.corrupt(name, "NULL"))
    }

    /// A column's value, turned into `T` by `decode`.
    fn decode<'r, C, T, E: Display>(&'r self, name: &str, decode: impl FnOnce(C) -> Result<T, E>) -> Result<T, Error>
    where
        C: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
    {
        decode(self.column(name)?).map_err(|what| self.corrupt(name, what))
    }

    fn unsigned(&self, name: &str) -> Result<u64, Error> {
        self.decode(name, |value: i64| u64::try_from(value).map_err(|_| format!("{value} is negative")))
    }

    fn flag(&self, name: &str) -> Result<bool, Error> {
        self.decode(name, |value: i64| match value {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("{other} is neither 0 nor 1")),
        })
    }

    fn id(&self, name: &str) -> Result<ExecutorId, Error> {
        self.decode(name, |text: &str| text.parse::<ExecutorId>())
    }
}

fn decode_head(row: &Stored<'_>) -> Result<Head, Error> {
    Ok(Head {
        cluster: row.decode("cluster", |text: &str| ClusterName::new(text))?,
        shard_count: row.decode("shard_count", |count: i64| {
            u32::try_from(count)
                .map_err(|why| why.to_string())
                .and_then(|it| ShardCount::new(it).map_err(|e| e.to_string()))
        })?,
        revision: Revision(row.unsigned("revision")?),
    })
}

fn decode_shard(row: &Stored<'_>) -> Result<Shard, Error> {
    let epoch = ShardEpoch::new(row.unsigned("epoch")?).map_err(|what| row.corrupt("epoch", what))?;
    let state = match row.column::<&str>("state")? {
        "unassigned" => ShardState::Unassigned,
        "owned" => ShardState::Owned(row.id("executor")?),
        "releasing" => ShardState::Releasing { from: row.id("executor")?, since: Revision(row.unsigned("since")?) },
        other => return Err(row.corrupt("state", format!("{other:?} is no state of a shard"))),
    };
    Ok(Shard { epoch, state })
}

fn decode_executor(row: &Stored<'_>) -> Result<Executor, Error> {
    Ok(Executor {
        name: row.decode("name", |text: &str| ExecutorName::new(text))?,
        address: row.decode("address", |text: &str| Address::new(text))?,
        zone: row.optional("zone")?,
        weight: row.decode("weight", |weight: i64| Weight::new(u32::try_from(weight).unwrap_or(0)))?,
        lease_length: Ttl::from_ms(row.unsigned("lease_length_ms")?)
            .map_err(|what| row.corrupt("lease_length_ms", what))?,
        key_hash: row.decode("key_hash", |hash: &[u8]| {
            hash.try_into().map(LeaseKeyHash).map_err(|_| format!("{} bytes, not 32", hash.len()))
        })?,
        draining: row.flag("draining")?,
        superseded: row.flag("superseded")?,
        registered_at_ms: row.column("registered_at_ms")?,
    })
}

/// Reads the whole state. The caller has a transaction open, so that it is one state.
pub(super) async fn read_state(
    connection: &mut SqliteConnection,
    file: &str,
    cluster: &ClusterName,
    shard_count: ShardCount,
) -> Result<ClusterState, Error> {
    let heads = query("SELECT cluster, shard_count, revision FROM head").fetch_all(&mut *connection).await;
    let heads = heads.map_err(|error| unwritten(&format!("{file}, table head"), &error))?;
    let head = match heads.first() {
        Some(row) => Some(decode_head(&Stored { row, place: format!("{file}, table head") })?),
        None => None,
    };
    // Before the rest is read: another cluster's rows are none of our business.
    if let Some(head) = &head {
        check_head(head, cluster, shard_count)?;
    }
    let stored = head.is_some();
    let empty = || Head { cluster: cluster.clone(), shard_count, revision: Revision(0) };
    let mut rows = StateRows::new(head.unwrap_or_else(empty));
    let executors = read_executors(connection, file, &mut rows).await?;
    let shards = read_shards(connection, file, shard_count, &mut rows).await?;
    if !stored && executors + shards > 0 {
        return Err(Error::Corrupt {
            place: format!("{file}, table head"),
            what: format!("no row, beside {executors} executors and {shards} shards"),
        });
    }
    rows.finish().map_err(|broken| Error::Corrupt { place: file.to_owned(), what: broken.to_string() })
}

/// Answers how many there are.
async fn read_executors(connection: &mut SqliteConnection, file: &str, into: &mut StateRows) -> Result<usize, Error> {
    let unreadable = |error| unwritten(&format!("{file}, table executors"), &error);
    let mut rows = query("SELECT * FROM executors").fetch(connection);
    let mut count = 0;
    // One at a time: all rows at once take many times the memory of the state that is made of them.
    while let Some(row) = rows.try_next().await.map_err(unreadable)? {
        let mut row = Stored { row: &row, place: format!("{file}, table executors") };
        let id = row.id("id")?;
        row.place = format!("{file}, table executors, row {id}");
        into.executor(id, decode_executor(&row)?);
        count += 1;
    }
    Ok(count)
}

/// Answers how many there are.
async fn read_shards(
    connection: &mut SqliteConnection,
    file: &str,
    shard_count: ShardCount,
    into: &mut StateRows,
) -> Result<usize, Error> {
    let unreadable = |error| unwritten(&format!("{file}, table shards"), &error);
    let mut rows = query("SELECT shard, epoch, state, executor, since FROM shards ORDER BY shard").fetch(connection);
    let mut count = 0;
    while let Some(row) = rows.try_next().await.map_err(unreadable)? {
        let mut row = Stored { row: &row, place: format!("{file}, table shards") };
        let number: i64 = row.column("shard")?;
        row.place = format!("{file}, table shards, row {number}");
        let shard = u32::try_from(number).ok().and_then(|number| shard_count.shard(number).ok());
        let shard = shard.ok_or_else(|| row.corrupt("shard", format!("not below shard_count {shard_count}")))?;
        let decoded = decode_shard(&row)?;
        if let Some(executor) = decoded.state.executor().filter(|executor| !into.has_executor(*executor)) {
            return Err(row.corrupt("executor", format!("{executor} is not in table executors")));
        }
        into.shard(shard, decoded).map_err(|broken| row.corrupt("shard", broken))?;
        count += 1;
    }
    Ok(count)
}
