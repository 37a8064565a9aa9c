//! The statements on the tables of a cluster.

use super::error::{Failed, unwritten};
use super::lock::Title;
use crate::cluster::rows::{Columns, StateReader, signed, state_columns};
use crate::cluster::{Error, Write};
use futures::TryStreamExt;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, ShardCount};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Row, query, raw_sql};

/// Makes the connection numbered $3 the one that may write, and so ends every earlier one's right to. Waits for what an earlier
/// one has under way, up to the lock timeout.
pub(super) const REJOIN: &str = "UPDATE head SET writer = $3 WHERE id = $1 AND owner = $2 AND writer < $3";

/// A whole write in one statement, which is one transaction and one round trip. Everything else depends on the row of the
/// condition: without it nothing is changed. A row that another transaction is changing is waited for, and the
/// condition is then asked of what that one has left (isolation level "read committed").
const WRITE: &str = "\
WITH condition AS ( \
    UPDATE head SET revision = $5, tag = $6, shard_count = coalesce($7, shard_count) \
    WHERE id = $1 AND owner = $2 AND writer = $3 AND revision = $4 RETURNING id \
), removed AS ( \
    DELETE FROM executors USING condition WHERE executors.cluster = condition.id AND executors.id = ANY($8) RETURNING 1 \
), executor AS ( \
    INSERT INTO executors (cluster, id, name, address, zone, weight, lease_length_ms, key_hash, draining, superseded, \
        registered_at_ms) \
    SELECT condition.id, row.* FROM condition, UNNEST($9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], \
        $14::bigint[], $15::bytea[], $16::boolean[], $17::boolean[], $18::bigint[]) AS row \
    ON CONFLICT (cluster, id) DO UPDATE SET name = excluded.name, address = excluded.address, zone = excluded.zone, \
        weight = excluded.weight, lease_length_ms = excluded.lease_length_ms, key_hash = excluded.key_hash, \
        draining = excluded.draining, superseded = excluded.superseded, registered_at_ms = excluded.registered_at_ms \
    RETURNING 1 \
), shard AS ( \
    INSERT INTO shards (cluster, shard, epoch, state, executor, since) \
    SELECT condition.id, row.* FROM condition, UNNEST($19::bigint[], $20::bigint[], $21::text[], $22::text[], \
        $23::bigint[]) AS row \
    ON CONFLICT (cluster, shard) DO UPDATE SET epoch = excluded.epoch, state = excluded.state, \
        executor = excluded.executor, since = excluded.since \
    RETURNING 1 \
) SELECT (SELECT count(*) FROM condition) + (SELECT count(*) FROM removed) + (SELECT count(*) FROM executor) \
    + (SELECT count(*) FROM shard)";

/// Writes, if the store is at the expected revision and `title` with this connection owns it; answers how many rows, 0 if not.
pub(super) async fn write(
    connection: &mut PgConnection,
    (title, writer): (Title, i64),
    write: &Write,
) -> Result<u64, sqlx::Error> {
    let changes = &write.changes;
    let executors: Vec<_> = changes.executors.iter().collect();
    let shards: Vec<_> = changes.shards.iter().collect();
    let states: Vec<_> = shards.iter().map(|(_, row)| state_columns(&row.state)).collect();
    let column = |of: fn(&leasehold_model::state::Executor) -> String| -> Vec<String> {
        executors.iter().map(|(_, row)| of(row)).collect()
    };
    let number = |of: fn(&leasehold_model::state::Executor) -> i64| -> Vec<i64> {
        executors.iter().map(|(_, row)| of(row)).collect()
    };
    let flag = |of: fn(&leasehold_model::state::Executor) -> bool| -> Vec<bool> {
        executors.iter().map(|(_, row)| of(row)).collect()
    };
    let rows = query(WRITE)
        .bind(title.id)
        .bind(title.owner)
        .bind(writer)
        .bind(signed(write.expected.0))
        .bind(signed(write.next.0))
        .bind(write.tag.to_be_bytes())
        .bind(changes.first.as_ref().map(|head| i64::from(head.shard_count.get())))
        .bind(changes.removed.iter().map(ToString::to_string).collect::<Vec<_>>())
        .bind(executors.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>())
        .bind(column(|row| row.name.as_str().to_owned()))
        .bind(column(|row| row.address.as_str().to_owned()))
        .bind(executors.iter().map(|(_, row)| row.zone.clone()).collect::<Vec<_>>())
        .bind(number(|row| i64::from(row.weight.get())))
        .bind(number(|row| signed(row.lease_length.as_ms())))
        .bind(executors.iter().map(|(_, row)| row.key_hash.0.to_vec()).collect::<Vec<_>>())
        .bind(flag(|row| row.draining))
        .bind(flag(|row| row.superseded))
        .bind(number(|row| row.registered_at_ms))
        .bind(shards.iter().map(|(shard, _)| i64::from(shard.0)).collect::<Vec<_>>())
        .bind(shards.iter().map(|(_, row)| signed(row.epoch.get())).collect::<Vec<_>>())
        .bind(states.iter().map(|(state, _)| *state).collect::<Vec<_>>())
        .bind(shards.iter().map(|(_, row)| row.state.executor().map(|it| it.to_string())).collect::<Vec<_>>())
        .bind(states.iter().map(|(_, since)| *since).collect::<Vec<_>>())
        // To the end of the answer, which comes after the commit; the row alone comes before it.
        .fetch_all(connection)
        .await?;
    let rows: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(u64::try_from(rows).unwrap_or(0))
}

impl Columns for PgRow {
    fn integer(&self, name: &str) -> Result<Option<i64>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }

    fn text(&self, name: &str) -> Result<Option<&str>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }

    fn bytes(&self, name: &str) -> Result<Option<&[u8]>, String> {
        self.try_get(name).map_err(|error| error.to_string())
    }
}

/// Reads the whole state, as it is at one moment.
pub(super) async fn read_state(
    connection: &mut PgConnection,
    place: &str,
    (title, cluster): (Title, &ClusterName),
    shard_count: ShardCount,
) -> Result<ClusterState, Error> {
    let unreadable = |table: &'static str| {
        move |error: sqlx::Error| unwritten(&format!("{place}, table {table}"), &Failed::Sql(error))
    };
    let begin = raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").execute(&mut *connection).await;
    begin.map_err(unreadable("head"))?;
    let heads = query("SELECT cluster, shard_count, revision, owner = $2 AS ours FROM head WHERE id = $1")
        .bind(title.id)
        .bind(title.owner)
        .fetch_all(&mut *connection)
        .await
        .map_err(unreadable("head"))?;
    let ours = heads.first().map_or(Ok(false), |row| row.try_get::<bool, _>("ours")).map_err(unreadable("head"))?;
    if !ours {
        return Err(Error::NotOwner(format!("{place}: its row in table head is gone, or another manager's")));
    }
    // Before the first write there is a row, for the ownership, but no head in the model's sense.
    let head = heads.first().filter(|row| row.integer("revision") != Ok(Some(0))).map(|row| row as &dyn Columns);
    let mut state = StateReader::new(place, head, cluster, shard_count)?;
    // One row at a time: all at once take many times the memory of the state that is made of them.
    let mut rows = query("SELECT * FROM executors WHERE cluster = $1").bind(title.id).fetch(&mut *connection);
    while let Some(row) = rows.try_next().await.map_err(unreadable("executors"))? {
        state.executor(&row)?;
    }
    drop(rows);
    let shards = "SELECT shard, epoch, state, executor, since FROM shards WHERE cluster = $1 ORDER BY shard";
    let mut rows = query(shards).bind(title.id).fetch(&mut *connection);
    while let Some(row) = rows.try_next().await.map_err(unreadable("shards"))? {
        state.shard(&row)?;
    }
    drop(rows);
    raw_sql("COMMIT").execute(connection).await.map_err(unreadable("head"))?;
    state.finish()
}

/// Ends the transaction of a reading that was given up; whether it did.
pub(super) async fn end(connection: &mut PgConnection) -> bool {
    raw_sql("ROLLBACK").execute(connection).await.is_ok()
}
