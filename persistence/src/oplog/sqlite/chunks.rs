//! The archive layer of oplogs in SQLite.

use super::SqliteOplogStore;
use super::generation::classify;
use super::reader::Question;
use super::rows::{self, Rows, Standing, arguments, corrupt, index, integer};
use crate::oplog::call::Call;
use crate::oplog::layers::{
    Chunk, ChunkStore, Content, Found, Listed, Listing, MAX_CHUNKS_PER_READ, Page, check_move, chunk, moved_before,
};
use crate::oplog::{EntryIndex, Error, Writer, signed};
use async_trait::async_trait;
use leasehold_model::AgentId;
use sqlx::Row;
use sqlx::sqlite::{SqliteArguments, SqliteRow};

/// The fence of a move, and that it takes what the primary layer begins with and has.
const MOVE: &str = "UPDATE records SET primary_from = ?5 + 1 WHERE agent = ?1 AND epoch = ?2 AND writer = ?3 AND state < 2 \
    AND max(base, primary_from) = ?4 AND (SELECT max(idx) FROM entries WHERE oplog = records.id) >= ?5 RETURNING id";

const LIST: &str = "INSERT INTO chunks (oplog, first, last, object, content) VALUES (?1, ?2, ?3, ?4, ?5)";

/// What needs no stub, and the stub that the last entry of the chunk before was while it was the oplog's last one.
const REMOVE: &str = "DELETE FROM entries WHERE oplog = ?1 AND idx BETWEEN ?2 - 1 AND ?3 AND key IS NULL \
    AND idx < (SELECT max(idx) FROM entries WHERE oplog = ?1) \
    AND idx <> ifnull((SELECT max(idx) FROM entries WHERE oplog = ?1 AND kind = 2), 0)";

/// Stubs of snapshots that were the newest.
const REMOVE_SNAPSHOTS: &str = "DELETE FROM entries INDEXED BY entries_snapshot WHERE oplog = ?1 AND kind = 2 AND idx < ?2 AND key IS NULL \
    AND idx < (SELECT max(idx) FROM entries WHERE oplog = ?1 AND kind = 2)";

const EMPTY: &str = "UPDATE entries SET body = x'' WHERE oplog = ?1 AND idx BETWEEN ?2 AND ?3";

const PRIMARY_FROM: &str = "SELECT max(base, primary_from) AS primary_from FROM records WHERE agent = ?";

const CHUNKS: &str = "SELECT r.epoch AS held_epoch, h.executor AS held_executor, r.state, c.first, c.last, c.object, c.content \
    FROM records r LEFT JOIN writers h ON h.id = r.writer LEFT JOIN chunks c ON c.oplog = r.id AND c.last >= max(?2, r.base) \
    WHERE r.agent = ?1 ORDER BY c.last LIMIT ?3";

const LISTING: &str = "SELECT r.epoch AS held_epoch, h.executor AS held_executor, max(r.base, r.primary_from) AS primary_from, \
    c.first, c.last, c.object FROM records r LEFT JOIN writers h ON h.id = r.writer \
    LEFT JOIN chunks c ON c.oplog = r.id AND c.last BETWEEN max(?2, r.base) AND ?4 AND c.first BETWEEN ?2 AND ?3 \
    WHERE r.agent = ?1 ORDER BY c.last";

impl Rows<'_> {
    async fn execute(&mut self, sql: &'static str, arguments: SqliteArguments) -> Result<(), Error> {
        let done = sqlx::query_with(sql, arguments).execute(&mut *self.link).await;
        done.map(drop).map_err(|error| classify(self.place, &error))
    }

    /// See [`ChunkStore::move_out`], without what was moved before.
    pub(super) async fn move_out(
        &mut self,
        agent: &AgentId,
        (offered, writer): (Writer, i64),
        Chunk { first, last, content }: &Chunk,
    ) -> Result<(), Error> {
        let (from, to) = (signed(first.0), signed(last.0));
        let values = arguments!(agent.as_str(), signed(offered.epoch.get()), writer, from, to);
        let Some(row) = self.optional(MOVE, values).await? else {
            return Err(match self.standing(agent, offered).await? {
                Standing::Fenced(error) => error,
                Standing::Open { next } => self.unmovable(agent, (*first, *last), next).await?,
            });
        };
        let oplog = integer(&row, "id", &rows::at_oplog(self.place, agent))?;
        let (object, bytes) = match content {
            Content::Inline(bytes) => (None, Some(bytes.as_slice())),
            Content::Blob(path) => (Some(path.as_str()), None),
        };
        self.execute(LIST, arguments!(oplog, from, to, object, bytes)).await?;
        self.execute(REMOVE, arguments!(oplog, from, to)).await?;
        self.execute(REMOVE_SNAPSHOTS, arguments!(oplog, from)).await?;
        self.execute(EMPTY, arguments!(oplog, from, to)).await
    }

    async fn unmovable(
        &mut self,
        agent: &AgentId,
        (first, last): (EntryIndex, EntryIndex),
        next: EntryIndex,
    ) -> Result<Error, Error> {
        let place = rows::at_oplog(self.place, agent);
        let Some(row) = self.optional(PRIMARY_FROM, arguments!(agent.as_str())).await? else {
            return Ok(self.senseless(agent));
        };
        let begins = index(integer(&row, "primary_from", &place)?, &place)?;
        Ok(if begins != first {
            Error::IndexConflict { expected: first, found: begins }
        } else if last >= next {
            Error::IndexConflict { expected: EntryIndex(last.0 + 1), found: next }
        } else {
            self.senseless(agent)
        })
    }
}

fn column<'r, T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
    row: &'r SqliteRow,
    name: &str,
    place: &str,
) -> Result<T, Error> {
    row.try_get(name).map_err(|error| corrupt(place, error))
}

/// The chunk's indexes and its object, unless the record stands alone.
fn listed(row: &SqliteRow, place: &str) -> Result<Option<Listed>, Error> {
    let Some(first) = column::<Option<i64>>(row, "first", place)? else { return Ok(None) };
    let (first, last) = (index(first, place)?, index(integer(row, "last", place)?, place)?);
    Ok(Some(Listed { first, last, object: column(row, "object", place)? }))
}

/// The chunk of a row; `None` when the record stands alone.
pub(super) fn chunk_if_any(row: &SqliteRow, place: &str) -> Result<Option<Chunk>, Error> {
    let Some(Listed { first, last, object }) = listed(row, place)? else { return Ok(None) };
    let content = match object {
        Some(path) => Content::Blob(path),
        None => Content::Inline(column(row, "content", place)?),
    };
    Ok(Some(Chunk { first, last, content }))
}

#[async_trait]
impl ChunkStore for SqliteOplogStore {
    async fn move_out(&self, agent: &AgentId, writer: Writer, chunk: Chunk) -> Result<(), Error> {
        check_move(&chunk)?;
        let moved = self.call(Call::MoveOut { agent: agent.clone(), writer, chunk: chunk.clone() }).await.map(drop);
        moved_before(self, (agent, writer), &chunk, moved).await
    }

    async fn page(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Page, Error> {
        // A limit of 0 would hide the record too.
        let question =
            Question::Page { agent: agent.as_str().to_owned(), from: signed(from.0), limit: i64::from(limit.max(1)) };
        let rows = self.ask(question).await?;
        let place = rows::at_oplog(&self.place(), agent);
        self.counted(rows::admitted(&rows, writer, &place))?;
        let at = |name| rows.first().map_or(Ok(1), |row| integer(row, name, &place));
        let (first, primary_from) = (index(at("base")?, &place)?, index(at("primary_from")?, &place)?);
        let entries = rows.iter().take(limit as usize).filter_map(|row| rows::entry_if_any(row, &place).transpose());
        Ok(Page { first, primary_from, entries: entries.collect::<Result<_, _>>()? })
    }

    async fn chunks(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Chunk>, Error> {
        let limit = limit.min(MAX_CHUNKS_PER_READ);
        let values = arguments!(agent.as_str(), signed(from.0), i64::from(limit.max(1)));
        let rows = self.rows(CHUNKS, values).await?;
        let place = rows::at_oplog(&self.place(), agent);
        self.counted(rows::admitted(&rows, writer, &place))?;
        rows.iter().take(limit as usize).filter_map(|row| chunk_if_any(row, &place).transpose()).collect()
    }

    async fn look_up(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Found>, Error> {
        let rows = self.rows(rows::FIND, arguments!(agent.as_str(), key)).await?;
        let place = rows::at_oplog(&self.place(), agent);
        self.counted(rows::admitted(&rows, writer, &place))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(entry) = rows::entry_if_any(row, &place)? else { return Ok(None) };
        let archived = entry.index < index(integer(row, "primary_from", &place)?, &place)?;
        Ok(Some(if archived { Found::Archived(entry.index) } else { Found::Entry(entry) }))
    }

    async fn listing(&self, agent: &AgentId, first: EntryIndex, last: EntryIndex) -> Result<Option<Listing>, Error> {
        let greatest = signed(last.0.saturating_add(chunk::MAX_ENTRIES as u64));
        let values = arguments!(agent.as_str(), signed(first.0), signed(last.0), greatest);
        let rows = self.rows(LISTING, values).await?;
        let place = rows::at_oplog(&self.place(), agent);
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Listing {
            writer: rows::writer(row, ("held_epoch", "held_executor"), &place)?,
            primary_from: index(integer(row, "primary_from", &place)?, &place)?,
            chunks: rows.iter().filter_map(|row| listed(row, &place).transpose()).collect::<Result<_, _>>()?,
        }))
    }
}
