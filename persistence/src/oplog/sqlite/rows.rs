//! The SQL, and how rows become values: every row is checked before it leaves this module.

use super::generation::{classify, is_refusal};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, EntryKind, Error, NewEntry, Writer, key_taken, signed};
use futures::TryStreamExt;
use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Either, Executor, Row};
use std::sync::LazyLock;

/// State of a record whose oplog was deleted.
const DELETED: i64 = 2;

/// State of a record whose agent is marked as running.
const RUNNING_STATE: i64 = 1;

/// Entries per statement: one of a few lengths, so that each is prepared once and reused.
const BATCHES: [usize; 4] = [64, 16, 4, 1];

/// The place of 1 among the [`BATCHES`].
const ONE: usize = 3;

/// The fence (F3) stands before the insert, in one call and under one write lock, and fails unless *every* entry belongs to the record that
/// is there and continues its oplog: then nothing behind it is carried out. (The least integer has no absolute value. A
/// fence inside the insert would check each entry by a statement of its own.)
static FENCED: LazyLock<[String; 4]> = LazyLock::new(|| {
    BATCHES.map(|length| {
        let wanted = vec!["(?, ?, ?, ?)"; length].join(", ");
        let insert = insert(length);
        format!(
            "WITH wanted (oplog, epoch, writer, next) AS (VALUES {wanted}) \
            SELECT abs(iif(count(*) = {length}, 1, -9223372036854775807 - 1)) FROM wanted w CROSS JOIN records r ON r.id = w.oplog \
            WHERE r.epoch = w.epoch AND r.writer = w.writer AND r.state < 2 \
            AND w.next = ifnull((SELECT max(idx) + 1 FROM entries WHERE oplog = r.id), r.base); {insert}"
        )
    })
});

/// The other side of a benchmark's comparison: the same rows, unconditionally.
static UNFENCED: LazyLock<[String; 4]> = LazyLock::new(|| BATCHES.map(insert));

fn insert(length: usize) -> String {
    let rows = vec!["(?, ?, ?, ?, ?, ?, ?)"; length].join(", ");
    format!("INSERT OR IGNORE INTO entries (idx, kind, key, body, epoch, writer, oplog) VALUES {rows}")
}

/// F1, with where the oplog stands; see [`CLAIMS`].
const CLAIM: &str = "INSERT INTO records (agent, shard, epoch, writer, state, base) VALUES (?, ?, ?, ?, 1, 1) \
    ON CONFLICT (agent) DO UPDATE SET shard = excluded.shard, epoch = excluded.epoch, writer = excluded.writer, state = 1 \
    WHERE epoch < excluded.epoch OR (epoch = excluded.epoch AND writer = excluded.writer) \
    RETURNING @ AS asked, id, base, (SELECT max(idx) FROM entries WHERE oplog = id) AS newest, \
    (SELECT max(idx) FROM entries WHERE oplog = id AND kind = 2) AS snapshot";

/// Claims of one call of SQLite: one of a few counts, so that each is prepared once and reused.
const CLAIM_BATCHES: [usize; 3] = [32, 8, 1];

/// [`CLAIM`] as often, each with its number.
static CLAIMS: LazyLock<[String; 3]> = LazyLock::new(|| {
    CLAIM_BATCHES
        .map(|count| (0..count).map(|number| CLAIM.replace('@', &number.to_string())).collect::<Vec<_>>().join("; "))
});

const STANDING: &str = "SELECT r.id, r.epoch, w.executor, r.state, \
    ifnull((SELECT max(idx) + 1 FROM entries WHERE oplog = r.id), r.base) AS next \
    FROM records r LEFT JOIN writers w ON w.id = r.writer WHERE r.agent = ?";

/// The base moves past the last entry: that alone deletes them for every reader.
const DELETE: &str = "UPDATE records SET state = 2, \
    base = ifnull((SELECT max(idx) + 1 FROM entries WHERE oplog = records.id), base) \
    WHERE agent = ? AND epoch = ? AND writer = ? \
    AND (state = 2 OR ifnull((SELECT max(idx) + 1 FROM entries WHERE oplog = records.id), base) = ?) RETURNING id";

const SUSPEND: &str =
    "UPDATE records SET state = 0 WHERE agent = ? AND epoch = ? AND writer = ? AND state < 2 RETURNING id";

/// Only what no reader sees goes, so this needs no fence.
const PURGE: &str = "DELETE FROM entries WHERE oplog = ?1 AND idx IN (SELECT e.idx FROM entries e JOIN records r ON r.id = e.oplog \
    WHERE e.oplog = ?1 AND e.idx < r.base ORDER BY e.idx LIMIT 4096)";

const PURGE_CHUNKS: &str = "DELETE FROM chunks WHERE oplog = ?1 AND last IN (SELECT c.last FROM chunks c \
    JOIN records r ON r.id = c.oplog WHERE c.oplog = ?1 AND c.last < r.base ORDER BY c.last LIMIT 64)";

/// A page of the primary layer from an index on, of an agent, with so many rows at most. One statement sees one state: the record and the
/// entries belong together.
pub(super) const READ: &str = "SELECT r.epoch AS held_epoch, h.executor AS held_executor, r.state, \
    r.base, max(r.base, r.primary_from) AS primary_from, e.idx, e.epoch, w.executor, e.kind, e.key, e.body FROM records r LEFT JOIN writers h ON h.id = r.writer \
    LEFT JOIN entries e ON e.oplog = r.id AND e.idx >= max(?, r.base, r.primary_from) \
    LEFT JOIN writers w ON w.id = e.writer WHERE r.agent = ? ORDER BY e.idx LIMIT ?";

pub(super) const FIND: &str = "SELECT r.epoch AS held_epoch, h.executor AS held_executor, r.state, \
    r.base, max(r.base, r.primary_from) AS primary_from, e.idx, e.epoch, w.executor, e.kind, e.key, e.body FROM records r LEFT JOIN writers h ON h.id = r.writer \
    LEFT JOIN entries e ON e.oplog = r.id AND e.key = ?2 AND e.idx >= r.base LEFT JOIN writers w ON w.id = e.writer \
    WHERE r.agent = ?1";

pub(super) const RUNNING: &str =
    "SELECT agent FROM records WHERE shard = ?1 AND state = 1 AND agent > ?2 ORDER BY agent LIMIT ?3";

pub(super) const AGENTS: &str =
    "SELECT agent, state FROM records WHERE shard = ?1 AND state < 2 AND agent > ?2 ORDER BY agent LIMIT ?3";

pub(super) const RECORDED: &str =
    "SELECT r.epoch, w.executor FROM records r LEFT JOIN writers w ON w.id = r.writer WHERE r.agent = ?";

/// Where a refused call stands.
pub(super) enum Standing {
    /// The record is the writer's and its oplog lives.
    Open {
        next: EntryIndex,
    },
    Fenced(Error),
}

/// A claim with what the statements need to know of it.
pub(super) struct Claim<'a> {
    pub agent: &'a AgentId,
    pub shard: ShardId,
    pub offered: Writer,
    pub writer: i64,
}

/// An append with what the statements need to know of it.
pub(super) struct Addressed<'a> {
    pub append: &'a Append,
    pub oplog: i64,
    pub writer: i64,
}

/// One of its entries, and where it belongs.
struct Placed<'a> {
    addressed: &'a Addressed<'a>,
    entry: &'a NewEntry,
    at: u64,
}

/// A connection inside a transaction, and where its file is.
pub(super) struct Rows<'a> {
    pub link: &'a mut SqliteConnection,
    pub place: &'a str,
}

/// Binds, where a value that SQLite cannot encode is a broken invariant: only integers, texts and bytes are bound.
macro_rules! bind {
    ($arguments:ident, $($value:expr),* $(,)?) => {
        $(sqlx::Arguments::add(&mut $arguments, $value).expect("integers, texts and bytes can be encoded");)*
    };
}
pub(super) use bind;

/// The same from the beginning.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {{
        let mut arguments = sqlx::sqlite::SqliteArguments::default();
        $crate::oplog::sqlite::rows::bind!(arguments, $($value),*);
        arguments
    }};
}
pub(super) use arguments;

impl Rows<'_> {
    pub(super) async fn optional(
        &mut self,
        sql: &'static str,
        arguments: SqliteArguments,
    ) -> Result<Option<SqliteRow>, Error> {
        let row = sqlx::query_with(sql, arguments).fetch_optional(&mut *self.link).await;
        row.map_err(|e| classify(self.place, &e))
    }

    /// The number of an executor's identity, which is made if `create`.
    pub(super) async fn writer(&mut self, executor: ExecutorId, create: bool) -> Result<Option<i64>, Error> {
        const FIND: &str = "SELECT id FROM writers WHERE executor = ?";
        let bytes = executor.as_bytes().as_slice();
        if let Some(row) = self.optional(FIND, arguments!(bytes)).await? {
            return integer(&row, "id", self.place).map(Some);
        }
        if !create {
            return Ok(None);
        }
        let row = self.optional("INSERT INTO writers (executor) VALUES (?) RETURNING id", arguments!(bytes)).await?;
        row.map(|row| integer(&row, "id", self.place)).transpose()
    }

    /// The number of an agent's oplog.
    pub(super) async fn oplog(&mut self, agent: &AgentId) -> Result<Option<i64>, Error> {
        let row = self.optional("SELECT id FROM records WHERE agent = ?", arguments!(agent.as_str())).await?;
        row.map(|row| integer(&row, "id", self.place)).transpose()
    }

    /// F1, for many claims of different agents, and finishes deletions that were cut short (F5). One outcome each, with the oplog's number.
    pub(super) async fn claim(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Result<(Claimed, i64), Error>>, Error> {
        let mut outcomes = Vec::with_capacity(claims.len());
        let mut rest = claims;
        while let Some(which) = CLAIM_BATCHES.iter().position(|count| *count <= rest.len()) {
            let (batch, others) = rest.split_at(CLAIM_BATCHES[which]);
            rest = others;
            let found = self.claim_batch(which, batch).await?;
            for (claim, row) in batch.iter().zip(found) {
                outcomes.push(match row {
                    Some(row) => self.claimed(claim, &row).await,
                    None => Err(match self.standing(claim.agent, claim.offered).await? {
                        Standing::Fenced(error) => error,
                        Standing::Open { .. } => self.senseless(claim.agent),
                    }),
                });
            }
        }
        Ok(outcomes)
    }

    /// The records of those that were claimed.
    async fn claim_batch(&mut self, which: usize, batch: &[Claim<'_>]) -> Result<Vec<Option<SqliteRow>>, Error> {
        let mut values = SqliteArguments::default();
        values.reserve(batch.len() * 4, 0);
        for Claim { agent, shard, offered, writer } in batch {
            bind!(values, agent.as_str(), i64::from(shard.0), signed(offered.epoch.get()), *writer);
        }
        let ask = sqlx::query_with(AssertSqlSafe(CLAIMS[which].as_str()), values);
        let rows = ask.fetch_all(&mut *self.link).await.map_err(|e| classify(self.place, &e))?;
        let mut found: Vec<_> = batch.iter().map(|_| None).collect();
        for row in rows {
            let asked = usize::try_from(integer(&row, "asked", self.place)?).unwrap_or(usize::MAX);
            if let Some(place) = found.get_mut(asked) {
                *place = Some(row);
            }
        }
        Ok(found)
    }

    async fn claimed(&mut self, claim: &Claim<'_>, row: &SqliteRow) -> Result<(Claimed, i64), Error> {
        let place = at_oplog(self.place, claim.agent);
        let (oplog, base) = (integer(row, "id", &place)?, integer(row, "base", &place)?);
        let newest: Option<i64> = row.try_get("newest").map_err(|e| classify(&place, &e))?;
        let snapshot: Option<i64> = row.try_get("snapshot").map_err(|e| classify(&place, &e))?;
        if base > 1 {
            for leftovers in
                ["DELETE FROM entries WHERE oplog = ? AND idx < ?", "DELETE FROM chunks WHERE oplog = ? AND last < ?"]
            {
                let removed = sqlx::query(leftovers).bind(oplog).bind(base).execute(&mut *self.link).await;
                removed.map_err(|e| classify(&place, &e))?;
            }
        }
        // What a deleted life left does not count.
        let next = newest.map_or(base, |newest| newest.saturating_add(1).max(base));
        let snapshot = snapshot.filter(|at| *at >= base).map(|at| index(at, &place)).transpose()?;
        Ok((Claimed { next: index(next, &place)?, snapshot }, oplog))
    }

    /// F3, for many appends of different agents. One outcome each; none disturbs another.
    pub(super) async fn append(
        &mut self,
        appends: &[Addressed<'_>],
        fenced: bool,
    ) -> Result<Vec<Result<EntryIndex, Error>>, Error> {
        let mut entries = Vec::with_capacity(appends.len());
        for addressed in appends {
            let placed = addressed.append.entries.iter().zip(addressed.append.expected.0..);
            entries.extend(placed.map(|(entry, at)| Placed { addressed, entry, at }));
        }
        let mut written = Vec::with_capacity(entries.len());
        let mut rest = entries.as_slice();
        while let Some(which) = BATCHES.iter().position(|length| *length <= rest.len()) {
            let (batch, others) = rest.split_at(BATCHES[which]);
            rest = others;
            self.insert(which, batch, fenced, &mut written).await?;
        }
        let mut outcomes = Vec::with_capacity(appends.len());
        let mut at = 0;
        for addressed in appends {
            let count = addressed.append.entries.len();
            let taken = written.get(at..at + count).unwrap_or_default().to_vec();
            at += count;
            let all = taken.len() == count && taken.iter().all(|taken| *taken);
            outcomes.push(if all { Ok(addressed.append.end()) } else { Err(self.refused(addressed, &taken).await?) });
        }
        Ok(outcomes)
    }

    /// Adds to `written`, for each entry of the batch, whether it was.
    async fn insert(
        &mut self,
        which: usize,
        batch: &[Placed<'_>],
        fenced: bool,
        written: &mut Vec<bool>,
    ) -> Result<(), Error> {
        let inserted = self.insert_all(which, batch, fenced).await?;
        if inserted == batch.len() as u64 {
            written.resize(written.len() + batch.len(), true);
            return Ok(());
        }
        if which == ONE {
            written.push(false);
            return Ok(());
        }
        // One of them is fenced, or a key is taken, which is rare: each by itself says which. What was inserted stood at free indices.
        if inserted > 0 {
            for Placed { addressed, at, .. } in batch {
                self.take_back(addressed.oplog, *at).await?;
            }
        }
        for entry in batch {
            Box::pin(self.insert(ONE, std::slice::from_ref(entry), fenced, written)).await?;
        }
        Ok(())
    }

    /// How many of the batch were inserted: none if any of them is fenced, not all if a key is taken.
    async fn insert_all(&mut self, which: usize, batch: &[Placed<'_>], fenced: bool) -> Result<u64, Error> {
        let mut values = SqliteArguments::default();
        values.reserve(batch.len() * 11, 0);
        if fenced {
            // An append's further entries in this batch continue from where its first one does.
            let (mut oplog, mut next) = (0, 0);
            for Placed { addressed, at, .. } in batch {
                if addressed.oplog != oplog {
                    (oplog, next) = (addressed.oplog, *at);
                }
                let epoch = signed(addressed.append.writer.epoch.get());
                bind!(values, addressed.oplog, epoch, addressed.writer, signed(next));
            }
        }
        for Placed { addressed, entry, at } in batch {
            let epoch = signed(addressed.append.writer.epoch.get());
            let kind = match entry.kind {
                EntryKind::Invocation => 1_i64,
                EntryKind::Snapshot => 2,
            };
            bind!(values, signed(*at), kind, entry.key.as_deref(), entry.body.as_slice());
            bind!(values, epoch, addressed.writer, addressed.oplog);
        }
        let sql = if fenced { FENCED[which].as_str() } else { UNFENCED[which].as_str() };
        let mut results = self.link.fetch_many(sqlx::query_with(sql, values));
        let (mut ended, mut inserted) = (0, 0);
        loop {
            match results.try_next().await {
                Ok(Some(Either::Left(done))) => (ended, inserted) = (ended + 1, done.rows_affected()),
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => return Ok(inserted),
                Err(error) if fenced && ended == 0 && is_refusal(&error) => return Ok(0),
                Err(error) => return Err(classify(self.place, &error)),
            }
        }
    }

    async fn take_back(&mut self, oplog: i64, at: u64) -> Result<(), Error> {
        let undo = "DELETE FROM entries WHERE oplog = ? AND idx = ?";
        let undone = sqlx::query(undo).bind(oplog).bind(signed(at)).execute(&mut *self.link).await;
        undone.map(drop).map_err(|e| classify(self.place, &e))
    }

    /// Takes back what a refused append wrote of itself, and says why it was refused.
    async fn refused(&mut self, addressed: &Addressed<'_>, taken: &[bool]) -> Result<Error, Error> {
        let append = addressed.append;
        for (at, _) in (append.expected.0..).zip(taken).filter(|(_, taken)| **taken) {
            self.take_back(addressed.oplog, at).await?;
        }
        let next = match self.standing(&append.agent, append.writer).await? {
            Standing::Fenced(error) => return Ok(error),
            Standing::Open { next } => next,
        };
        if next != append.expected {
            return Ok(Error::IndexConflict { expected: append.expected, found: next });
        }
        for key in append.entries.iter().filter_map(|entry| entry.key.as_deref()) {
            const TAKEN: &str = "SELECT 1 FROM entries WHERE oplog = ? AND key = ?";
            if self.optional(TAKEN, arguments!(addressed.oplog, key)).await?.is_some() {
                return Ok(key_taken(key));
            }
        }
        Ok(self.senseless(&append.agent))
    }

    /// F7, after a change of generation: whether exactly this append is in the oplog.
    pub(super) async fn holds(&mut self, append: &Append) -> Result<bool, Error> {
        const STORED: &str = "SELECT e.idx, e.epoch, w.executor, e.kind, e.key, e.body FROM records r \
            JOIN entries e ON e.oplog = r.id AND e.idx >= max(?2, r.base) AND e.idx < ?3 \
            LEFT JOIN writers w ON w.id = e.writer WHERE r.agent = ?1 ORDER BY e.idx";
        let values = arguments!(append.agent.as_str(), signed(append.expected.0), signed(append.end().0));
        let rows = sqlx::query_with(STORED, values).fetch_all(&mut *self.link).await;
        let rows = rows.map_err(|e| classify(self.place, &e))?;
        let place = at_oplog(self.place, &append.agent);
        let stored: Vec<_> = rows.iter().map(|row| entry(row, &place)).collect::<Result<_, _>>()?;
        let ours = |stored: &Entry, given: &NewEntry| stored.writer == append.writer && stored.entry == *given;
        Ok(stored.len() == append.entries.len() && stored.iter().zip(&append.entries).all(|(s, g)| ours(s, g)))
    }

    /// Whether somebody has archived entries where this append was to stand: whose they are is told by reading through the layers.
    pub(super) async fn archived(&mut self, append: &Append) -> Result<bool, Error> {
        const ARCHIVED: &str = "SELECT 1 FROM records WHERE agent = ?1 AND base <= ?2 AND primary_from > ?2";
        let values = arguments!(append.agent.as_str(), signed(append.expected.0));
        Ok(self.optional(ARCHIVED, values).await?.is_some())
    }

    /// F5: returns the oplog's number, for the purge.
    pub(super) async fn delete(
        &mut self,
        agent: &AgentId,
        (offered, writer): (Writer, i64),
        expected: EntryIndex,
    ) -> Result<i64, Error> {
        let values = arguments!(agent.as_str(), signed(offered.epoch.get()), writer, signed(expected.0));
        match self.optional(DELETE, values).await? {
            Some(row) => integer(&row, "id", &at_oplog(self.place, agent)),
            None => Err(match self.standing(agent, offered).await? {
                Standing::Fenced(error) => error,
                Standing::Open { next } if next != expected => Error::IndexConflict { expected, found: next },
                Standing::Open { .. } => self.senseless(agent),
            }),
        }
    }

    pub(super) async fn suspend(&mut self, agent: &AgentId, offered: Writer, writer: i64) -> Result<(), Error> {
        let values = arguments!(agent.as_str(), signed(offered.epoch.get()), writer);
        match self.optional(SUSPEND, values).await? {
            Some(_) => Ok(()),
            None => Err(match self.standing(agent, offered).await? {
                Standing::Fenced(error) => error,
                Standing::Open { .. } => self.senseless(agent),
            }),
        }
    }

    /// Removes some entries of deleted lives; whether there may be more.
    pub(super) async fn purge(&mut self, oplog: i64) -> Result<bool, Error> {
        let done = sqlx::query(PURGE).bind(oplog).execute(&mut *self.link).await;
        let more = done.map_err(|e| classify(self.place, &e))?.rows_affected() == 4096;
        let done = sqlx::query(PURGE_CHUNKS).bind(oplog).execute(&mut *self.link).await;
        Ok(more || done.map_err(|e| classify(self.place, &e))?.rows_affected() == 64)
    }

    pub(super) async fn standing(&mut self, agent: &AgentId, offered: Writer) -> Result<Standing, Error> {
        let Some(row) = self.optional(STANDING, arguments!(agent.as_str())).await? else {
            return Ok(Standing::Fenced(Error::Fenced { recorded: None, offered }));
        };
        let place = at_oplog(self.place, agent);
        let recorded = writer(&row, ("epoch", "executor"), &place)?;
        if recorded != offered {
            return Ok(Standing::Fenced(Error::Fenced { recorded: Some(recorded), offered }));
        }
        if state(&row, &place)? == DELETED {
            return Ok(Standing::Fenced(Error::Fenced { recorded: None, offered }));
        }
        Ok(Standing::Open { next: index(integer(&row, "next", &place)?, &place)? })
    }

    /// The store refused what its own rows allow: somebody changed the schema or the rows under us.
    pub(super) fn senseless(&self, agent: &AgentId) -> Error {
        let what = "refused a write that its record, index and keys allow".into();
        Error::Corrupt { place: at_oplog(self.place, agent), what }
    }
}

pub(super) fn at_oplog(place: &str, agent: &AgentId) -> String {
    format!("{place}: oplog {:?}", agent.as_str())
}

pub(super) fn corrupt(place: &str, what: impl std::fmt::Display) -> Error {
    Error::Corrupt { place: place.into(), what: what.to_string() }
}

pub(super) fn integer(row: &SqliteRow, column: &str, place: &str) -> Result<i64, Error> {
    row.try_get(column).map_err(|e| corrupt(place, e))
}

fn state(row: &SqliteRow, place: &str) -> Result<i64, Error> {
    match integer(row, "state", place)? {
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
pub(super) fn writer(row: &SqliteRow, (epoch, executor): (&str, &str), place: &str) -> Result<Writer, Error> {
    let number = integer(row, epoch, place)?;
    let epoch = u64::try_from(number).map_err(|_| corrupt(place, format!("epoch {number}: 1 and more make sense")))?;
    let epoch = ShardEpoch::owned(epoch).map_err(|e| corrupt(place, e))?;
    let bytes: Option<Vec<u8>> = row.try_get(executor).map_err(|e| corrupt(place, e))?;
    let bytes = bytes.ok_or_else(|| corrupt(place, "its writer is not among the writers"))?;
    let executor = ExecutorId::from_slice("executor", &bytes).map_err(|e| corrupt(place, e))?;
    Ok(Writer { epoch, executor })
}

/// Checks the record of a fenced read. The rows are those of [`READ`] or [`FIND`].
pub(super) fn admitted(rows: &[SqliteRow], offered: Writer, place: &str) -> Result<(), Error> {
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
pub(super) fn entry_if_any(row: &SqliteRow, place: &str) -> Result<Option<Entry>, Error> {
    let at: Option<i64> = row.try_get("idx").map_err(|e| corrupt(place, e))?;
    at.map(|_| entry(row, place)).transpose()
}

fn entry(row: &SqliteRow, place: &str) -> Result<Entry, Error> {
    let index = index(integer(row, "idx", place)?, place)?;
    let place = format!("{place}, entry {}", index.0);
    let kind = match integer(row, "kind", &place)? {
        1 => EntryKind::Invocation,
        2 => EntryKind::Snapshot,
        other => return Err(corrupt(&place, format!("kind {other}: 1 or 2 make sense"))),
    };
    let key = row.try_get("key").map_err(|e| corrupt(&place, e))?;
    let body = row.try_get("body").map_err(|e| corrupt(&place, e))?;
    let writer = writer(row, ("epoch", "executor"), &place)?;
    Ok(Entry { index, writer, entry: NewEntry { kind, key, body } })
}

/// The agent of a row, and whether it is marked as running.
pub(super) fn listed(row: &SqliteRow, place: &str) -> Result<(AgentId, bool), Error> {
    Ok((agent(row, place)?, state(row, place)? == RUNNING_STATE))
}

/// The agent of a row.
pub(super) fn agent(row: &SqliteRow, place: &str) -> Result<AgentId, Error> {
    let text: String = row.try_get("agent").map_err(|e| corrupt(place, e))?;
    AgentId::new(text).map_err(|e| corrupt(place, e))
}
