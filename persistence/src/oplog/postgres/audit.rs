//! The oplogs of a cluster, read without a fence.

use super::chunks::chunk_if_any;
use super::error::{corrupt, unusable, unwritten};
use super::server::{Purpose, Server, newest_known_version, newest_version};
use super::sessions::Sessions;
use super::{Settings, rows};
use crate::cluster::postgres::error::{Failed, refused};
use crate::oplog::audit::{ChunkPage, Damage, Depth, OplogAudit, Page, Read, Record, Standing, in_order};
use crate::oplog::{EntryIndex, Error, Writer, signed};
use async_trait::async_trait;
use leasehold_model::{ClusterName, ShardId};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row, query};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Sessions, and so calls at once.
const SESSIONS: usize = 4;
/// How long the server works on one statement: longer than an executor's, which somebody waits for.
const STATEMENT: Duration = Duration::from_secs(60);

const CLUSTERS: &str = "SELECT id, name FROM clusters ORDER BY name";
const COUNT: &str = "SELECT count(*) FROM records WHERE cluster = $1";
const STRAY: &str = "SELECT count(*) FROM entries e WHERE NOT EXISTS (SELECT 1 FROM records r WHERE r.id = e.oplog)";
const STRAY_CHUNKS: &str =
    "SELECT count(*) FROM chunks c WHERE NOT EXISTS (SELECT 1 FROM records r WHERE r.id = c.oplog)";
const NAMES: &str = "SELECT agent FROM records WHERE cluster = $1 AND agent > $2 ORDER BY agent LIMIT $3";

/// One statement sees one state.
macro_rules! page {
    ($body:literal) => {
        concat!(
            "SELECT r.agent, r.shard, r.epoch AS held_epoch, r.executor AS held_executor, r.state, r.base, \
             greatest(r.base, r.primary_from) AS primary_from, r.next, r.snapshot, \
             e.idx, e.epoch, e.executor, e.kind, e.key, octet_length(e.body)::bigint AS size, ",
            $body,
            " AS body FROM records r LEFT JOIN entries e ON e.oplog = r.id AND e.idx >= greatest($3::bigint, r.base, r.primary_from) \
             WHERE r.cluster = $1 AND r.agent = $2 ORDER BY e.idx LIMIT $4"
        )
    };
}
const HEADS: &str = page!("''::bytea");
const BODIES: &str = page!("e.body");

const CHUNKS: &str = "SELECT r.base, greatest(r.base, r.primary_from) AS primary_from, c.first, c.last, c.object, c.content \
    FROM records r LEFT JOIN chunks c ON c.oplog = r.id AND c.last >= greatest($3::bigint, r.base) \
    WHERE r.cluster = $1 AND r.agent = $2 ORDER BY c.last LIMIT $4";
const POSITIONS: &str = "SELECT e.key, e.idx FROM records r JOIN entries e ON e.oplog = r.id AND e.key = ANY ($3) AND e.idx >= r.base \
    WHERE r.cluster = $1 AND r.agent = $2";

const CLEAR: &str = "UPDATE records SET epoch = $3, executor = $4 \
    WHERE cluster = $1 AND agent = $2 AND epoch = $5 AND executor = $6 RETURNING id";

/// The oplogs of one cluster. Executors may be using them.
pub struct PostgresAudit {
    sessions: Sessions,
    cluster: i32,
}

impl fmt::Debug for PostgresAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresAudit").field("place", &self.place()).finish_non_exhaustive()
    }
}

type Asked = Query<'static, Postgres, PgArguments>;

impl PostgresAudit {
    /// Opens the oplogs of `cluster` at `url`; makes nothing there.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the URL, the credentials or the tables are not right, or the cluster has no oplogs there;
    /// [`Error::Unavailable`] when the server is away.
    pub async fn open(url: &str, cluster: &ClusterName) -> Result<Self, Error> {
        let settings = Settings { statement_timeout: STATEMENT, silence: STATEMENT * 2, ..Settings::default() };
        let server = Arc::new(Server::new(url, cluster, settings)?);
        let mut first = server.connect().await.map_err(|failed| server.refused(&failed))?;
        let process = server.set_up(&mut first, Purpose::Reads).await;
        let process = process.map_err(|failed| unwritten(&server.place, &failed))?;
        let newest = server.bounded(newest_version(&mut first)).await.map_err(|failed| server.refused(&failed))?;
        let known = newest_known_version();
        if newest == 0 {
            return Err(unusable(&server.place, "no oplogs are here: the schema leasehold_oplogs is missing"));
        }
        if newest != known {
            let why =
                format!("schema version {newest}, this build reads {known}: use the build that the executors run");
            return Err(unusable(&server.place, why));
        }
        let place = format!("{}, table clusters", server.place);
        let listed = server.bounded(query(CLUSTERS).fetch_all(&mut first)).await;
        let listed = listed.map_err(|failed| unwritten(&place, &failed))?;
        let mut names = Vec::new();
        let mut number = None;
        for row in &listed {
            let read = || Ok((row.try_get::<i32, _>(0)?, row.try_get::<String, _>(1)?));
            let (id, name) = read().map_err(|error: sqlx::Error| corrupt(&place, error))?;
            if name == cluster.as_str() {
                number = Some(id);
            }
            names.push(name);
        }
        let Some(cluster) = number else {
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(unusable(
                &server.place,
                format!("this cluster has no oplogs here; clusters that have: {there}"),
            ));
        };
        let sessions = Sessions::new(server, SESSIONS, Purpose::Reads);
        sessions.add(first, process);
        Ok(Self { sessions, cluster })
    }

    async fn rows(&self, asked: Asked) -> Result<Vec<PgRow>, Error> {
        let mut lent = self.sessions.lend().await?;
        let answer = self.sessions.server.bounded(asked.fetch_all(&mut lent.session.connection)).await;
        // A lost session that read leaves nothing behind.
        let _ = self.sessions.give_back(lent, &answer);
        answer.map_err(|failed| unwritten(&self.sessions.server.place, &failed))
    }

    async fn number(&self, asked: Asked) -> Result<u64, Error> {
        let rows = self.rows(asked).await?;
        let value = rows.first().map_or(Ok(0), |row| row.try_get::<i64, _>(0));
        value.map(i64::unsigned_abs).map_err(|error| unwritten(&self.place(), &Failed::Sql(error)))
    }
}

#[async_trait]
impl OplogAudit for PostgresAudit {
    fn place(&self) -> String {
        self.sessions.server.place.clone()
    }

    fn width(&self) -> usize {
        SESSIONS
    }

    /// Of all clusters in the database: an entry without a record is nobody's.
    async fn faults(&self) -> Result<Vec<String>, Error> {
        let mut faults = Vec::new();
        for (what, asked) in [("entries", STRAY), ("chunks", STRAY_CHUNKS)] {
            let strays = self.number(query(asked)).await?;
            if strays > 0 {
                faults.push(format!("{strays} {what} without a record"));
            }
        }
        Ok(faults)
    }

    async fn count(&self) -> Result<u64, Error> {
        self.number(query(COUNT).bind(self.cluster)).await
    }

    async fn names(&self, after: Option<&str>, limit: u32) -> Result<Vec<String>, Error> {
        let after = after.unwrap_or_default().to_owned();
        let rows = self.rows(query(NAMES).bind(self.cluster).bind(after).bind(i64::from(limit))).await?;
        rows.iter().map(|row| row.try_get(0).map_err(|error| corrupt(&self.place(), error))).collect()
    }

    async fn page(&self, name: &str, from: EntryIndex, depth: Depth, limit: u32) -> Result<Option<Page>, Error> {
        let sql = match depth {
            Depth::Heads => HEADS,
            Depth::Bodies => BODIES,
        };
        let asked = query(sql).bind(self.cluster).bind(name.to_owned()).bind(signed(from.0)).bind(i64::from(limit));
        let rows = self.rows(asked).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let place = self.place();
        let record = record(first, &place).map_err(|error| Damage::record(&error));
        let mut entries = Vec::with_capacity(rows.len());
        let mut last = None;
        for row in &rows {
            let Some(index) = row.try_get::<Option<i64>, _>("idx").unwrap_or(Some(0)) else { continue };
            let index = index.unsigned_abs();
            last = Some(index);
            entries.push(read(row, &place).map_err(|error| Damage::entry(index, &error)));
        }
        let full = rows.len() >= limit as usize;
        let more = last.filter(|_| full).map(|last| EntryIndex(last.saturating_add(1)));
        Ok(Some(Page { record, entries, more, source: 0 }))
    }

    async fn chunks(&self, name: &str, from: EntryIndex, limit: u32) -> Result<Option<ChunkPage>, Error> {
        let asked = query(CHUNKS).bind(self.cluster).bind(name.to_owned()).bind(signed(from.0)).bind(i64::from(limit));
        let rows = self.rows(asked).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let place = self.place();
        let at = |column| rows::index(rows::get(first, column, &place)?, &place);
        let (base, primary_from) = (at("base")?, at("primary_from")?);
        let last = |row: &PgRow| row.try_get::<Option<i64>, _>("last").ok().flatten().unwrap_or(0).unsigned_abs();
        let chunks = rows.iter().filter_map(|row| {
            let chunk = chunk_if_any(row, &place).transpose()?;
            Some(chunk.map_err(|error| Damage::entry(last(row), &error)))
        });
        Ok(Some(ChunkPage { base, primary_from, chunks: chunks.collect(), source: 0 }))
    }

    async fn positions(&self, name: &str, keys: &[&str]) -> Result<Vec<Option<EntryIndex>>, Error> {
        let wanted: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
        let rows = self.rows(query(POSITIONS).bind(self.cluster).bind(name.to_owned()).bind(wanted)).await?;
        let place = self.place();
        let found = rows.iter().map(|row| {
            let key: String = rows::get(row, "key", &place)?;
            Ok((key, rows::index(rows::get(row, "idx", &place)?, &place)?))
        });
        in_order(keys, found)
    }

    async fn clear(&self, name: &str, found: Writer, to: Writer) -> Result<bool, Error> {
        let mut lent = self.sessions.lend().await?;
        let bytes = |writer: Writer| writer.executor.as_bytes().to_vec();
        let asked = query(CLEAR).bind(self.cluster).bind(name).bind(signed(to.epoch.get())).bind(bytes(to));
        let asked = asked.bind(signed(found.epoch.get())).bind(bytes(found));
        let answer = self.sessions.server.bounded(asked.fetch_optional(&mut lent.session.connection)).await;
        if let Some(lost) = self.sessions.give_back(lent, &answer) {
            self.sessions.bury(&lost).await;
        }
        answer.map(|row| row.is_some()).map_err(|failed| {
            let unwritten = unwritten(&self.place(), &failed);
            if refused(&failed) { unwritten } else { Error::Unknown(unwritten.to_string()) }
        })
    }
}

fn record(row: &PgRow, place: &str) -> Result<Record, Error> {
    let agent = rows::agent(row, place)?;
    let integer = |column| row.try_get::<i64, _>(column).map_err(|error| corrupt(place, error));
    let index = |column| {
        let value = integer(column)?;
        let index = u64::try_from(value).ok().filter(|index| *index > 0);
        index.map(EntryIndex).ok_or_else(|| corrupt(place, format!("{column} {value}: 1 and more make sense")))
    };
    let shard = integer("shard")?;
    let shard = u32::try_from(shard);
    let state = row.try_get::<i16, _>("state").map_err(|error| corrupt(place, error))?;
    let standing = Standing::numbered(i64::from(state)).map_err(|what| corrupt(place, what))?;
    let snapshot: Option<i64> = row.try_get("snapshot").map_err(|error| corrupt(place, error))?;
    Ok(Record {
        agent,
        shard: ShardId(shard.map_err(|_| corrupt(place, "its shard: 0 to 4294967295 make sense"))?),
        writer: rows::writer(row, ("held_epoch", "held_executor"), place)?,
        standing,
        base: index("base")?,
        primary_from: index("primary_from")?,
        next: index("next")?,
        snapshot: snapshot.map(|at| EntryIndex(at.unsigned_abs())),
        faults: Vec::new(),
    })
}

fn read(row: &PgRow, place: &str) -> Result<Read, Error> {
    let entry = rows::entry_if_any(row, place)?.ok_or_else(|| corrupt(place, "no index"))?;
    let size: i64 = row.try_get("size").map_err(|error| corrupt(place, error))?;
    Ok(Read { entry, size: size.unsigned_abs() })
}
