//! The SQL, and how rows become values: every row is checked before it leaves this module.
//!
//! Each write is one statement, which is one transaction and one round trip, for any number of agents. It begins with the records: those
//! that another transaction has are left out (see [`Manner`]), and the others are updated under conditions that PostgreSQL asks
//! of the newest version of the row, even if that is newer than what the statement sees of other tables (isolation level "read
//! committed"). That is why the next index and the newest snapshot stand in the record: a statement that read them from the entries might
//! have missed those of a transaction that ended a moment ago. Whatever else a write does depends on the updated rows.

use super::error::{corrupt, of_driver};
use crate::oplog::call::Call;
use crate::oplog::layers::{Chunk, Content};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, EntryKind, NewEntry, Writer};
use crate::oplog::{Error, signed};
use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row, query};
use std::fmt::Write as _;

/// State of a record whose oplog was deleted.
const DELETED: i16 = 2;

/// State of a record whose agent is marked as running.
const RUNNING_STATE: i16 = 1;

/// Entries of deleted lives that one statement removes.
const PURGED_AT_ONCE: i64 = 4096;

/// Chunks of deleted lives that one statement removes.
const CHUNKS_PURGED_AT_ONCE: i64 = 64;

/// What a batch does: each is a statement of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Claim,
    Append,
    Delete,
    Suspend,
    MoveOut,
}

impl Kind {
    pub fn of(call: &Call) -> Self {
        match call {
            Call::Claim { .. } => Self::Claim,
            Call::Append(_) => Self::Append,
            Call::Delete { .. } => Self::Delete,
            Call::Suspend { .. } => Self::Suspend,
            Call::MoveOut { .. } => Self::MoveOut,
        }
    }
}

/// How appends go about records that another transaction has; other writes go around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Waiting for them, for as long as the session waits for any lock: the cheapest while there are none.
    Direct,
    /// Leaving them out.
    Around,
    /// Not looking at them at all.
    Unfenced,
}

/// The calls' agents and writers, numbered from 1, and the number of each agent's oplog, if there is one (which it never loses). The
/// subquery of its own, OFFSET and all, makes that one look into the index for each agent, whatever the planner thinks of the table. A
/// text of a parameter has another collation than the tables' columns.
macro_rules! wanted {
    ($more:literal, $columns:literal) => {
        concat!(
            "WITH wanted AS MATERIALIZED (SELECT r.id, w.agent COLLATE \"C\" AS agent, w.epoch, w.executor, ",
            $columns,
            " w.number FROM UNNEST($2::text[], $3::bigint[], $4::bytea[]",
            $more,
            ") WITH ORDINALITY AS w (agent, epoch, executor, ",
            $columns,
            " number) LEFT JOIN LATERAL (SELECT o.id FROM records o WHERE o.cluster = $1 AND o.agent = w.agent COLLATE \"C\" OFFSET 0) r \
             ON true), "
        )
    };
}

/// The records that a condition holds for, locked; those that another transaction has are left out.
macro_rules! free {
    ($condition:expr) => {
        concat!(
            "free AS MATERIALIZED (SELECT w.* FROM wanted w CROSS JOIN LATERAL \
             (SELECT r.id FROM records r WHERE r.id = w.id AND ",
            $condition,
            " FOR NO KEY UPDATE OF r SKIP LOCKED) r), "
        )
    };
}

/// Updates the records of `$those`, if the condition holds. (What is compared with ANY looks superfluous: it keeps the planner from
/// reading the whole table for the sake of a join, however small that was when it planned.)
macro_rules! update {
    ($set:expr, $those:literal, $condition:expr) => {
        concat!(
            "changed AS (UPDATE records r SET ",
            $set,
            " FROM ",
            $those,
            " w WHERE r.id = ANY (ARRAY (SELECT id FROM ",
            $those,
            ")) AND r.id = w.id AND ",
            $condition,
            " RETURNING w.number, r.id, r.base, r.next, r.snapshot, r.epoch, r.executor) "
        )
    };
}

/// The same around those that another transaction has.
macro_rules! changed {
    ($set:expr, $condition:expr) => {
        concat!(free!($condition), update!($set, "free", $condition))
    };
}

/// F1, with the records of agents that have none.
const CLAIM: &str = concat!(
    wanted!(", $5::bigint[]", "shard,"),
    "made AS (INSERT INTO records (cluster, agent, shard, epoch, executor, state, base, next) \
     SELECT $1, w.agent, w.shard, w.epoch, w.executor, 1, 1, 1 FROM wanted w WHERE w.id IS NULL \
     ON CONFLICT DO NOTHING RETURNING agent, id, base, next, snapshot), ",
    changed!(
        "shard = w.shard, epoch = w.epoch, executor = w.executor, state = 1",
        "(r.epoch < w.epoch OR (r.epoch = w.epoch AND r.executor = w.executor))"
    ),
    "SELECT number, id, base, next, snapshot FROM changed \
     UNION ALL SELECT w.number, m.id, m.base, m.next, m.snapshot FROM made m JOIN wanted w ON w.agent = m.agent"
);

/// What an append changes of a record.
macro_rules! advance {
    () => {
        "next = w.past, snapshot = coalesce(w.newest, r.snapshot)"
    };
}

/// What it has to be for that.
macro_rules! ours {
    () => {
        "r.epoch = w.epoch AND r.executor = w.executor AND r.state <> 2 AND r.next = w.expected"
    };
}

/// The entries of those whose record was changed.
macro_rules! inserted {
    () => {
        ", written AS (INSERT INTO entries (oplog, idx, epoch, executor, kind, key, body) \
         SELECT c.id, e.idx, c.epoch, c.executor, e.kind, e.key, e.body \
         FROM UNNEST($8::bigint[], $9::bigint[], $10::smallint[], $11::text[], $12::bytea[]) AS e (number, idx, kind, key, body) \
         JOIN changed c USING (number)) \
         SELECT number, id, base, next, snapshot FROM changed"
    };
}

/// F3, for records that most probably nobody has: one that somebody has fails it, after a short wait.
const APPEND: &str = concat!(
    wanted!(", $5::bigint[], $6::bigint[], $7::bigint[]", "expected, past, newest,"),
    update!(advance!(), "wanted", ours!()),
    inserted!()
);

/// F3, around records that somebody has.
const APPEND_AROUND: &str = concat!(
    wanted!(", $5::bigint[], $6::bigint[], $7::bigint[]", "expected, past, newest,"),
    changed!(advance!(), ours!()),
    inserted!()
);

/// The other side of a benchmark's comparison: the same rows, unconditionally.
const UNFENCED: &str = concat!(
    wanted!(", $5::bigint[], $6::bigint[], $7::bigint[]", "expected, past, newest,"),
    "changed AS MATERIALIZED (SELECT number, id, 1::bigint AS base, past AS next, newest AS snapshot, epoch, executor \
     FROM wanted WHERE id IS NOT NULL)",
    inserted!()
);

/// F5: the base moves past the last entry; that alone deletes them for every reader.
const DELETE: &str = concat!(
    wanted!(", $5::bigint[]", "expected,"),
    changed!(
        "state = 2, base = r.next, snapshot = NULL",
        "r.epoch = w.epoch AND r.executor = w.executor AND (r.state = 2 OR r.next = w.expected)"
    ),
    "SELECT number, id, base, next, snapshot FROM changed"
);

const SUSPEND: &str = concat!(
    wanted!("", ""),
    changed!("state = 0", "r.epoch = w.epoch AND r.executor = w.executor AND r.state <> 2"),
    "SELECT number, id, base, next, snapshot FROM changed"
);

/// The entries that a chunk takes.
macro_rules! among_moved {
    () => {
        "e.oplog = ANY (ARRAY (SELECT id FROM moved)) \
         AND e.idx BETWEEN (SELECT min(first) FROM moved) AND (SELECT max(last) FROM moved) \
         AND e.oplog = m.id AND e.idx BETWEEN m.first AND m.last"
    };
}

/// Lists the chunks of records whose primary layer begins with them and has them. Whoever moves entries has read them, so that this statement
/// sees them too. (What bounds the entries twice looks superfluous: it makes the index lead to them, without a nested loop.)
const MOVE: &str = concat!(
    wanted!(", $5::bigint[], $6::bigint[], $7::text[], $8::bytea[]", "first, last, object, content,"),
    changed!(
        "primary_from = w.last + 1",
        "r.epoch = w.epoch AND r.executor = w.executor AND r.state <> 2 \
         AND greatest(r.base, r.primary_from) = w.first AND r.next > w.last"
    ),
    ", moved AS MATERIALIZED (SELECT c.id, w.first, w.last, w.object, w.content FROM changed c JOIN wanted w USING (number)), \
     listed AS (INSERT INTO chunks (oplog, first, last, object, content) SELECT id, first, last, object, content FROM moved), \
     removed AS (DELETE FROM entries e USING moved m WHERE ",
    among_moved!(),
    " AND e.key IS NULL), emptied AS (UPDATE entries e SET body = '' FROM moved m WHERE ",
    among_moved!(),
    " AND e.key IS NOT NULL) SELECT number, id, base, next, snapshot FROM changed"
);

const STANDING: &str = "SELECT w.number, r.id, r.epoch, r.executor, r.state, r.next, greatest(r.base, r.primary_from) AS primary_from \
     FROM UNNEST($2::text[]) WITH ORDINALITY AS w (agent, number) CROSS JOIN LATERAL \
     (SELECT * FROM records o WHERE o.cluster = $1 AND o.agent = w.agent COLLATE \"C\" OFFSET 0) r";

/// Only what no reader sees goes, so this needs no fence.
const PURGE: &str = "DELETE FROM entries WHERE oplog = $1 AND idx < (SELECT base FROM records WHERE id = $1) \
     AND idx <= (SELECT max(idx) FROM (SELECT idx FROM entries WHERE oplog = $1 ORDER BY idx LIMIT $2) oldest)";

const PURGE_CHUNKS: &str = "DELETE FROM chunks WHERE oplog = $1 AND last < (SELECT base FROM records WHERE id = $1) \
     AND last <= (SELECT max(last) FROM (SELECT last FROM chunks WHERE oplog = $1 ORDER BY last LIMIT $2) oldest)";

/// The first of these keys that the oplog has.
const TAKEN: &str = "SELECT e.key FROM entries e JOIN records r ON r.id = e.oplog WHERE e.oplog = $1 AND e.key = ANY ($2) AND e.idx >= r.base LIMIT 1";

/// One statement sees one state: the record and the entries belong together.
pub(super) const READ: &str = "SELECT r.epoch AS held_epoch, r.executor AS held_executor, r.state, \
     r.base, greatest(r.base, r.primary_from) AS primary_from, \
     e.idx, e.epoch, e.executor, e.kind, e.key, e.body \
     FROM records r LEFT JOIN entries e ON e.oplog = r.id AND e.idx >= greatest($3::bigint, r.base, r.primary_from) \
     WHERE r.cluster = $1 AND r.agent = $2 ORDER BY e.idx LIMIT $4";

pub(super) const FIND: &str = "SELECT r.epoch AS held_epoch, r.executor AS held_executor, r.state, \
     greatest(r.base, r.primary_from) AS primary_from, \
     e.idx, e.epoch, e.executor, e.kind, e.key, e.body \
     FROM records r LEFT JOIN entries e ON e.oplog = r.id AND e.key = $3 AND e.idx >= r.base \
     WHERE r.cluster = $1 AND r.agent = $2";

pub(super) const RUNNING: &str = "SELECT agent FROM records \
     WHERE cluster = $1 AND shard = $2 AND state = 1 AND agent > $3 ORDER BY agent LIMIT $4";

pub(super) const AGENTS: &str = "SELECT agent, state FROM (\
     (SELECT agent, state FROM records WHERE cluster = $1 AND shard = $2 AND state = 0 AND agent > $3 ORDER BY agent LIMIT $4) \
     UNION ALL \
     (SELECT agent, state FROM records WHERE cluster = $1 AND shard = $2 AND state = 1 AND agent > $3 ORDER BY agent LIMIT $4)\
     ) AS both_states ORDER BY agent LIMIT $4";

pub(super) const RECORDED: &str = "SELECT epoch, executor FROM records WHERE cluster = $1 AND agent = $2";

/// What a call that was carried out came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub claimed: Claimed,
    /// The oplog's number, when entries of a deleted life may be left in it.
    pub leftovers: Option<i64>,
}

/// A record as it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub oplog: i64,
    pub writer: Writer,
    pub deleted: bool,
    pub next: EntryIndex,
    pub primary_from: EntryIndex,
}

/// Why a write, or its answer, is not one.
pub(super) enum Broken {
    /// What the driver says.
    Sql(sqlx::Error),
    /// The answer cannot be.
    Corrupt(Error),
}

impl From<sqlx::Error> for Broken {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// The columns that every write has.
struct Callers<'a> {
    agents: Vec<&'a str>,
    epochs: Vec<i64>,
    executors: Vec<&'a [u8]>,
}

impl<'a> Callers<'a> {
    fn of(calls: impl Iterator<Item = &'a Call>) -> Self {
        let mut callers = Self { agents: Vec::new(), epochs: Vec::new(), executors: Vec::new() };
        for call in calls {
            let (agent, writer) = match call {
                Call::Claim { agent, writer, .. }
                | Call::Delete { agent, writer, .. }
                | Call::Suspend { agent, writer }
                | Call::MoveOut { agent, writer, .. } => (agent, writer),
                Call::Append(append) => (&append.agent, &append.writer),
            };
            callers.agents.push(agent.as_str());
            callers.epochs.push(signed(writer.epoch.get()));
            callers.executors.push(writer.executor.as_bytes().as_slice());
        }
        callers
    }
}

/// Carries out `calls`, all of `kind` and of different agents, for `cluster`: of each, what it came to, if its condition held and nobody
/// else had its record.
pub(super) async fn write(
    connection: &mut PgConnection,
    cluster: i32,
    (kind, manner): (Kind, Manner),
    calls: &[&Call],
) -> Result<Vec<Option<Done>>, sqlx::Error> {
    let Callers { agents, epochs, executors } = Callers::of(calls.iter().copied());
    let sql = match kind {
        Kind::Claim => CLAIM,
        Kind::Append => match manner {
            Manner::Direct => APPEND,
            Manner::Around => APPEND_AROUND,
            Manner::Unfenced => UNFENCED,
        },
        Kind::Delete => DELETE,
        Kind::Suspend => SUSPEND,
        Kind::MoveOut => MOVE,
    };
    let ask = query(sql).bind(cluster).bind(agents).bind(epochs).bind(executors);
    let ask = match kind {
        Kind::Claim => ask.bind(calls.iter().map(|call| shard(call)).collect::<Vec<i64>>()),
        Kind::Append => bind_appends(ask, &calls.iter().filter_map(|call| append(call)).collect::<Vec<_>>()),
        Kind::Delete => ask.bind(calls.iter().map(|call| expected(call)).collect::<Vec<i64>>()),
        Kind::Suspend => ask,
        Kind::MoveOut => bind_moves(ask, &calls.iter().filter_map(|call| moved(call)).collect::<Vec<_>>()),
    };
    let mut done = vec![None; calls.len()];
    // To the end of the answer, which comes after the commit; the rows alone come before it.
    for row in ask.fetch_all(connection).await? {
        let number: i64 = row.try_get("number")?;
        if let Some(place) = usize::try_from(number).ok().and_then(|number| done.get_mut(number.wrapping_sub(1))) {
            *place = Some(carried_out(&row)?);
        }
    }
    Ok(done)
}

type Asked<'a> = Query<'a, Postgres, PgArguments>;

fn bind_appends<'a>(ask: Asked<'a>, appends: &[&'a Append]) -> Asked<'a> {
    let newest = |append: &&Append| {
        let snapshots = append.entries.iter().rposition(|entry| entry.kind == EntryKind::Snapshot);
        snapshots.map(|at| signed(append.expected.0.saturating_add(at as u64)))
    };
    let (mut entries, mut indexes, mut numbers): (Vec<&NewEntry>, Vec<i64>, Vec<i64>) = Default::default();
    for (append, number) in appends.iter().zip(1_i64..) {
        entries.extend(&append.entries);
        indexes.extend((append.expected.0..append.end().0).map(signed));
        numbers.extend(append.entries.iter().map(|_| number));
    }
    ask.bind(appends.iter().map(|append| signed(append.expected.0)).collect::<Vec<_>>())
        .bind(appends.iter().map(|append| signed(append.end().0)).collect::<Vec<_>>())
        .bind(appends.iter().map(newest).collect::<Vec<Option<i64>>>())
        .bind(numbers)
        .bind(indexes)
        .bind(entries.iter().map(|entry| number_of(entry.kind)).collect::<Vec<_>>())
        .bind(entries.iter().map(|entry| entry.key.as_deref()).collect::<Vec<_>>())
        .bind(entries.iter().map(|entry| entry.body.as_slice()).collect::<Vec<_>>())
}

fn bind_moves<'a>(ask: Asked<'a>, chunks: &[&'a Chunk]) -> Asked<'a> {
    let object = |chunk: &&'a Chunk| match &chunk.content {
        Content::Blob(path) => Some(path.as_str()),
        Content::Inline(_) => None,
    };
    let content = |chunk: &&'a Chunk| match &chunk.content {
        Content::Inline(bytes) => Some(bytes.as_slice()),
        Content::Blob(_) => None,
    };
    ask.bind(chunks.iter().map(|chunk| signed(chunk.first.0)).collect::<Vec<_>>())
        .bind(chunks.iter().map(|chunk| signed(chunk.last.0)).collect::<Vec<_>>())
        .bind(chunks.iter().map(object).collect::<Vec<Option<&str>>>())
        .bind(chunks.iter().map(content).collect::<Vec<Option<&[u8]>>>())
}

fn moved(call: &Call) -> Option<&Chunk> {
    match call {
        Call::MoveOut { chunk, .. } => Some(chunk),
        Call::Append(_) | Call::Claim { .. } | Call::Delete { .. } | Call::Suspend { .. } => None,
    }
}

fn append(call: &Call) -> Option<&Append> {
    match call {
        Call::Append(append) => Some(append),
        Call::Claim { .. } | Call::Delete { .. } | Call::Suspend { .. } | Call::MoveOut { .. } => None,
    }
}

fn shard(call: &Call) -> i64 {
    match call {
        Call::Claim { shard: ShardId(shard), .. } => i64::from(*shard),
        Call::Append(_) | Call::Delete { .. } | Call::Suspend { .. } | Call::MoveOut { .. } => 0,
    }
}

fn expected(call: &Call) -> i64 {
    match call {
        Call::Append(Append { expected, .. }) | Call::Delete { expected, .. } => signed(expected.0),
        Call::Claim { .. } | Call::Suspend { .. } | Call::MoveOut { .. } => 0,
    }
}

const fn number_of(kind: EntryKind) -> i16 {
    match kind {
        EntryKind::Invocation => 1,
        EntryKind::Snapshot => 2,
    }
}

fn carried_out(row: &PgRow) -> Result<Done, sqlx::Error> {
    let (base, next): (i64, i64) = (row.try_get("base")?, row.try_get("next")?);
    let snapshot: Option<i64> = row.try_get("snapshot")?;
    let index = |value: i64| EntryIndex(value.unsigned_abs());
    let claimed = Claimed { next: index(next), snapshot: snapshot.map(index) };
    let oplog: Option<i64> = row.try_get("id")?;
    Ok(Done { claimed, leftovers: oplog.filter(|_| base > 1) })
}

/// Of each agent the record, if it has one.
pub(super) async fn standing(
    connection: &mut PgConnection,
    (cluster, place): (i32, &str),
    agents: &[&AgentId],
) -> Result<Vec<Option<Standing>>, Broken> {
    let names: Vec<_> = agents.iter().map(|agent| agent.as_str()).collect();
    let rows = query(STANDING).bind(cluster).bind(names).fetch_all(connection).await?;
    let mut found = vec![None; agents.len()];
    for row in rows {
        let at = usize::try_from(row.try_get::<i64, _>("number")?).unwrap_or(0).wrapping_sub(1);
        let (Some(agent), Some(into)) = (agents.get(at), found.get_mut(at)) else { continue };
        let place = at_oplog(place, agent);
        let read = || {
            Ok(Standing {
                oplog: get(&row, "id", &place)?,
                writer: writer(&row, ("epoch", "executor"), &place)?,
                deleted: state(&row, &place)? == DELETED,
                next: index(get(&row, "next", &place)?, &place)?,
                primary_from: index(get(&row, "primary_from", &place)?, &place)?,
            })
        };
        *into = Some(read().map_err(Broken::Corrupt)?);
    }
    Ok(found)
}

/// The first of the append's keys that oplog number `oplog` has.
pub(super) async fn taken_key(
    connection: &mut PgConnection,
    oplog: i64,
    append: &Append,
) -> Result<Option<String>, sqlx::Error> {
    let keys: Vec<_> = append.entries.iter().filter_map(|entry| entry.key.as_deref()).collect();
    let row = query(TAKEN).bind(oplog).bind(keys).fetch_optional(connection).await?;
    row.map(|row| row.try_get(0)).transpose()
}

/// Removes some entries of deleted lives; whether there may be more.
pub(super) async fn purge(connection: &mut PgConnection, oplog: i64) -> Result<bool, sqlx::Error> {
    let full = |rows: u64, limit: i64| i64::try_from(rows).is_ok_and(|count| count == limit);
    let entries = query(PURGE).bind(oplog).bind(PURGED_AT_ONCE).execute(&mut *connection).await?.rows_affected();
    let chunks = query(PURGE_CHUNKS).bind(oplog).bind(CHUNKS_PURGED_AT_ONCE).execute(connection).await?.rows_affected();
    Ok(full(entries, PURGED_AT_ONCE) || full(chunks, CHUNKS_PURGED_AT_ONCE))
}

pub(super) fn at_oplog(place: &str, agent: &AgentId) -> String {
    format!("{place}: oplog {:?}", agent.as_str())
}

pub(super) fn get<'r, T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>>(
    row: &'r PgRow,
    column: &str,
    place: &str,
) -> Result<T, Error> {
    row.try_get(column).map_err(|error| corrupt(place, of_driver(&error)))
}

fn state(row: &PgRow, place: &str) -> Result<i16, Error> {
    match get(row, "state", place)? {
        state @ 0..=DELETED => Ok(state),
        other => Err(corrupt(place, format!("state {other}: 0..=2 make sense"))),
    }
}

pub(super) fn index(value: i64, place: &str) -> Result<EntryIndex, Error> {
    match u64::try_from(value) {
        Ok(index) if index > 0 => Ok(EntryIndex(index)),
        Ok(_) | Err(_) => Err(corrupt(place, format!("index {value}: 1 and more make sense"))),
    }
}

/// The epoch and identity in two columns of a row.
pub(super) fn writer(row: &PgRow, (epoch, executor): (&str, &str), place: &str) -> Result<Writer, Error> {
    let number: i64 = get(row, epoch, place)?;
    let epoch = u64::try_from(number).map_err(|_| corrupt(place, format!("epoch {number}: 1 and more make sense")))?;
    let epoch = ShardEpoch::owned(epoch).map_err(|error| corrupt(place, error))?;
    let bytes: &[u8] = get(row, executor, place)?;
    let executor = ExecutorId::from_slice("executor", bytes).map_err(|error| corrupt(place, error))?;
    Ok(Writer { epoch, executor })
}

/// Checks the record of a fenced read. The rows are those of [`READ`] or [`FIND`].
pub(super) fn admitted(rows: &[PgRow], offered: Writer, place: &str) -> Result<(), Error> {
    let Some(row) = rows.first() else { return Err(Error::Fenced { recorded: None, offered }) };
    let recorded = writer(row, ("held_epoch", "held_executor"), place)?;
    if recorded != offered {
        return Err(Error::Fenced { recorded: Some(recorded), offered });
    }
    if state(row, place)? == DELETED {
        return Err(Error::Fenced { recorded: None, offered });
    }
    Ok(())
}

/// The entry of a row of [`READ`] or [`FIND`]; `None` when the record stands alone.
pub(super) fn entry_if_any(row: &PgRow, place: &str) -> Result<Option<Entry>, Error> {
    let Some(at) = get::<Option<i64>>(row, "idx", place)? else { return Ok(None) };
    let index = index(at, place)?;
    let mut place = place.to_owned();
    // Writing to a String cannot fail.
    let _ = write!(place, ", entry {}", index.0);
    let kind = match get::<i16>(row, "kind", &place)? {
        1 => EntryKind::Invocation,
        2 => EntryKind::Snapshot,
        other => return Err(corrupt(&place, format!("kind {other}: 1 or 2 make sense"))),
    };
    let (key, body) = (get(row, "key", &place)?, get(row, "body", &place)?);
    Ok(Some(Entry { index, writer: writer(row, ("epoch", "executor"), &place)?, entry: NewEntry { kind, key, body } }))
}

/// The agent of a row, and whether it is marked as running.
pub(super) fn listed(row: &PgRow, place: &str) -> Result<(AgentId, bool), Error> {
    Ok((agent(row, place)?, state(row, place)? == RUNNING_STATE))
}

/// The agent of a row.
pub(super) fn agent(row: &PgRow, place: &str) -> Result<AgentId, Error> {
    let text: String = get(row, "agent", place)?;
    AgentId::new(text).map_err(|error| corrupt(place, error))
}
