//! The archive layer of oplogs in PostgreSQL.

use super::PostgresOplogStore;
use super::rows::{self, get, index};
use crate::oplog::call::Call;
use crate::oplog::layers::{
    Chunk, ChunkStore, Content, Found, Listed, Listing, MAX_CHUNKS_PER_READ, Page, check_move, chunk, moved_before,
};
use crate::oplog::{EntryIndex, Error, Writer, signed};
use async_trait::async_trait;
use leasehold_model::AgentId;
use sqlx::postgres::PgRow;

const CHUNKS: &str = "SELECT r.epoch AS held_epoch, r.executor AS held_executor, r.state, c.first, c.last, c.object, c.content \
     FROM records r LEFT JOIN chunks c ON c.oplog = r.id AND c.last >= greatest($3::bigint, r.base) \
     WHERE r.cluster = $1 AND r.agent = $2 ORDER BY c.last LIMIT $4";

const LISTING: &str = "SELECT r.epoch AS held_epoch, r.executor AS held_executor, greatest(r.base, r.primary_from) AS primary_from, \
     c.first, c.last, c.object FROM records r LEFT JOIN chunks c ON c.oplog = r.id \
     AND c.last BETWEEN greatest($3::bigint, r.base) AND $5 AND c.first BETWEEN $3 AND $4 \
     WHERE r.cluster = $1 AND r.agent = $2 ORDER BY c.last";

/// The chunk's indexes and its object, unless the record stands alone.
fn listed(row: &PgRow, place: &str) -> Result<Option<Listed>, Error> {
    let Some(first) = get::<Option<i64>>(row, "first", place)? else { return Ok(None) };
    let (first, last) = (index(first, place)?, index(get(row, "last", place)?, place)?);
    Ok(Some(Listed { first, last, object: get(row, "object", place)? }))
}

/// The chunk of a row; `None` when the record stands alone.
pub(super) fn chunk_if_any(row: &PgRow, place: &str) -> Result<Option<Chunk>, Error> {
    let Some(Listed { first, last, object }) = listed(row, place)? else { return Ok(None) };
    let content = match object {
        Some(path) => Content::Blob(path),
        None => Content::Inline(get(row, "content", place)?),
    };
    Ok(Some(Chunk { first, last, content }))
}

#[async_trait]
impl ChunkStore for PostgresOplogStore {
    async fn move_out(&self, agent: &AgentId, writer: Writer, chunk: Chunk) -> Result<(), Error> {
        check_move(&chunk)?;
        let moved = self.call(Call::MoveOut { agent: agent.clone(), writer, chunk: chunk.clone() }).await.map(drop);
        moved_before(self, (agent, writer), &chunk, moved).await
    }

    async fn page(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Page, Error> {
        let asked = sqlx::query(rows::READ).bind(self.cluster).bind(agent.as_str().to_owned());
        // A limit of 0 would hide the record too.
        let rows = self.rows(asked.bind(signed(from.0)).bind(i64::from(limit.max(1)))).await?;
        let place = rows::at_oplog(self.place(), agent);
        self.counted(rows::admitted(&rows, writer, &place))?;
        let at = |name| rows.first().map_or(Ok(1), |row| get(row, name, &place));
        let (first, primary_from) = (index(at("base")?, &place)?, index(at("primary_from")?, &place)?);
        let entries = rows.iter().take(limit as usize).filter_map(|row| rows::entry_if_any(row, &place).transpose());
        Ok(Page { first, primary_from, entries: entries.collect::<Result<_, _>>()? })
    }

    async fn chunks(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Chunk>, Error> {
        let limit = limit.min(MAX_CHUNKS_PER_READ);
        let asked = sqlx::query(CHUNKS).bind(self.cluster).bind(agent.as_str().to_owned());
        let rows = self.rows(asked.bind(signed(from.0)).bind(i64::from(limit.max(1)))).await?;
        let place = rows::at_oplog(self.place(), agent);
        self.counted(rows::admitted(&rows, writer, &place))?;
        rows.iter().take(limit as usize).filter_map(|row| chunk_if_any(row, &place).transpose()).collect()
    }

    async fn look_up(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Found>, Error> {
        let asked = sqlx::query(rows::FIND).bind(self.cluster).bind(agent.as_str().to_owned()).bind(key.to_owned());
        let rows = self.rows(asked).await?;
        let place = rows::at_oplog(self.place(), agent);
        self.counted(rows::admitted(&rows, writer, &place))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(entry) = rows::entry_if_any(row, &place)? else { return Ok(None) };
        let archived = entry.index < index(get(row, "primary_from", &place)?, &place)?;
        Ok(Some(if archived { Found::Archived(entry.index) } else { Found::Entry(entry) }))
    }

    async fn listing(&self, agent: &AgentId, first: EntryIndex, last: EntryIndex) -> Result<Option<Listing>, Error> {
        let greatest = signed(last.0.saturating_add(chunk::MAX_ENTRIES as u64));
        let asked = sqlx::query(LISTING).bind(self.cluster).bind(agent.as_str().to_owned());
        let rows = self.rows(asked.bind(signed(first.0)).bind(signed(last.0)).bind(greatest)).await?;
        let place = rows::at_oplog(self.place(), agent);
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Listing {
            writer: rows::writer(row, ("held_epoch", "held_executor"), &place)?,
            primary_from: index(get(row, "primary_from", &place)?, &place)?,
            chunks: rows.iter().filter_map(|row| listed(row, &place).transpose()).collect::<Result<_, _>>()?,
        }))
    }
}
