//! The newest complete generation, read without a fence. It makes no generation and steps around nobody.

use super::Settings;
use super::chunks::chunk_if_any;
use super::generation::{Directory, Held, classify, is_busy};
use super::rows::{self, arguments};
use crate::oplog::audit::{ChunkPage, Damage, Depth, OplogAudit, Page, Read, Record, Standing, in_order};
use crate::oplog::{Entry, EntryIndex, Error, Writer, signed};
use async_trait::async_trait;
use leasehold_model::ShardId;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Connection, Row};
use std::path::Path;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::sleep;

/// How often a statement is tried while others have the file, or replace it.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(20);

const NAMES: &str = "SELECT agent FROM records WHERE agent > ?1 ORDER BY agent LIMIT ?2";
const COUNT: &str = "SELECT count(*) FROM records";
const STRAY: &str = "SELECT count(*) FROM entries WHERE oplog NOT IN (SELECT id FROM records)";
const STRAY_CHUNKS: &str = "SELECT count(*) FROM chunks WHERE oplog NOT IN (SELECT id FROM records)";
const NEWEST_VERSION: &str = "SELECT max(version) FROM _sqlx_migrations";

/// One statement sees one state. The next index and the newest snapshot are what a claim would find.
macro_rules! page {
    ($body:literal) => {
        concat!(
            "SELECT r.agent, r.shard, r.epoch AS held_epoch, h.executor AS held_executor, r.state, r.base, \
             max(r.base, r.primary_from) AS primary_from, max(r.base, ifnull((SELECT max(idx) + 1 FROM entries WHERE oplog = r.id), r.base)) AS next, \
             (SELECT max(idx) FROM entries WHERE oplog = r.id AND kind = 2 AND idx >= r.base) AS snapshot, \
             e.idx, e.epoch, w.executor, e.kind, e.key, length(e.body) AS size, ",
            $body,
            " AS body FROM records r LEFT JOIN writers h ON h.id = r.writer \
             LEFT JOIN entries e ON e.oplog = r.id AND e.idx >= max(?2, r.base, r.primary_from) LEFT JOIN writers w ON w.id = e.writer \
             WHERE r.agent = ?1 ORDER BY e.idx LIMIT ?3"
        )
    };
}
const HEADS: &str = page!("x''");
const BODIES: &str = page!("e.body");

const CHUNKS: &str = "SELECT r.base, max(r.base, r.primary_from) AS primary_from, c.first, c.last, c.object, c.content \
    FROM records r LEFT JOIN chunks c ON c.oplog = r.id AND c.last >= max(?2, r.base) WHERE r.agent = ?1 ORDER BY c.last LIMIT ?3";
const POSITIONS: &str = "SELECT e.key, e.idx FROM records r JOIN json_each(?2) w JOIN entries e ON e.oplog = r.id AND e.key = w.value \
    WHERE r.agent = ?1 AND e.idx >= r.base";

const ENTER: &str = "INSERT OR IGNORE INTO writers (executor) VALUES (?1)";
const CLEAR: &str = "UPDATE records SET epoch = ?2, writer = (SELECT id FROM writers WHERE executor = ?3) \
    WHERE agent = ?1 AND epoch = ?4 AND writer = (SELECT id FROM writers WHERE executor = ?5) RETURNING id";

/// The store of a directory. Executors may be using it.
#[derive(Debug)]
pub struct SqliteAudit {
    directory: Directory,
    link: Mutex<Link>,
}

#[derive(Debug)]
struct Link {
    held: Held,
    connection: SqliteConnection,
}

impl SqliteAudit {
    /// Opens the store in `folder`, which must exist.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such folder, or another build's store in it; [`Error::Unavailable`] when there is none in it;
    /// [`Error::Corrupt`] when the file is no database.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = Directory { path: folder.as_ref().to_path_buf(), settings: Settings::default() };
        if !directory.path.exists() {
            let folder = directory.path.display();
            return Err(Error::Invalid(format!(
                "{folder}: there is no such folder; name the one of the executors' oplog.url"
            )));
        }
        let link = connect(&directory).await?;
        let place = directory.database(link.held.number).display().to_string();
        let audit = Self { directory, link: Mutex::new(link) };
        let (rows, _) = audit.rows(NEWEST_VERSION, SqliteArguments::default()).await?;
        let found: Option<i64> = match rows.first() {
            Some(row) => row.try_get(0).map_err(|error| classify(&place, &error))?,
            None => None,
        };
        let known = Directory::newest_schema();
        if found != Some(known) {
            let found = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
            let why = format!("schema version {found}, this build reads {known}: use the build that the executors run");
            return Err(Error::Invalid(format!("{place}: {why}")));
        }
        Ok(audit)
    }

    /// The generation that was read last.
    pub async fn generation(&self) -> u64 {
        self.link.lock().await.held.number
    }

    /// The rows of one statement, from what was the newest complete generation after it ran, and that generation's number.
    async fn rows(&self, sql: &'static str, arguments: SqliteArguments) -> Result<(Vec<SqliteRow>, u64), Error> {
        let mut link = self.link.lock().await;
        for _ in 0..ATTEMPTS {
            let number = link.held.number;
            let rows = sqlx::query_with(sql, arguments.clone()).fetch_all(&mut link.connection).await;
            let newest = self.directory.list()?.databases.last().copied();
            match rows {
                Ok(rows) if newest == Some(number) => return Ok((rows, number)),
                Err(error) if newest == Some(number) && !is_busy(&error) => {
                    return Err(classify(&self.directory.database(number).display().to_string(), &error));
                }
                Ok(_) | Err(_) => sleep(PAUSE).await,
            }
            if newest != Some(number) {
                *link = connect(&self.directory).await?;
            }
        }
        Err(Error::Unavailable(format!("{}: not readable in time", self.directory.path.display())))
    }

    async fn number(&self, sql: &'static str) -> Result<u64, Error> {
        let (rows, number) = self.rows(sql, SqliteArguments::default()).await?;
        let place = self.directory.database(number).display().to_string();
        let value = rows.first().map_or(Ok(0), |row| row.try_get::<i64, _>(0));
        value.map(i64::unsigned_abs).map_err(|error| classify(&place, &error))
    }

    /// # Errors
    /// With whether the transaction may have been committed.
    async fn write(
        &self,
        link: &mut Link,
        steps: [(&'static str, SqliteArguments); 2],
    ) -> Result<bool, (bool, sqlx::Error)> {
        let before = |error| (false, error);
        let mut transaction = link.connection.begin_with("BEGIN IMMEDIATE").await.map_err(before)?;
        let mut changed = false;
        for (sql, arguments) in steps {
            let row = sqlx::query_with(sql, arguments).fetch_optional(&mut *transaction).await.map_err(before)?;
            changed = row.is_some();
        }
        transaction.commit().await.map_err(|error| (true, error))?;
        Ok(changed)
    }
}

async fn connect(directory: &Directory) -> Result<Link, Error> {
    let Some(held) = directory.newest()? else {
        return Err(Error::Unavailable(format!("{}: no oplog store is here", directory.path.display())));
    };
    let connection = directory.connect(held.number).await?;
    Ok(Link { held, connection })
}

#[async_trait]
impl OplogAudit for SqliteAudit {
    fn place(&self) -> String {
        self.directory.path.display().to_string()
    }

    async fn faults(&self) -> Result<Vec<String>, Error> {
        let (rows, number) = self.rows("PRAGMA integrity_check(1)", SqliteArguments::default()).await?;
        let place = self.directory.database(number).display().to_string();
        let told: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get::<String, _>(0)).collect();
        let told = told.map_err(|error| classify(&place, &error))?;
        let mut faults: Vec<_> = told.into_iter().filter(|told| told != "ok").collect();
        for (what, asked) in [("entries", STRAY), ("chunks", STRAY_CHUNKS)] {
            let strays = self.number(asked).await?;
            if strays > 0 {
                faults.push(format!("{strays} {what} without a record"));
            }
        }
        Ok(faults)
    }

    async fn count(&self) -> Result<u64, Error> {
        self.number(COUNT).await
    }

    async fn names(&self, after: Option<&str>, limit: u32) -> Result<Vec<String>, Error> {
        let (rows, number) = self.rows(NAMES, arguments!(after.unwrap_or(""), i64::from(limit))).await?;
        let place = self.directory.database(number).display().to_string();
        rows.iter().map(|row| row.try_get(0).map_err(|error| classify(&place, &error))).collect()
    }

    async fn page(&self, name: &str, from: EntryIndex, depth: Depth, limit: u32) -> Result<Option<Page>, Error> {
        let sql = match depth {
            Depth::Heads => HEADS,
            Depth::Bodies => BODIES,
        };
        let (rows, source) = self.rows(sql, arguments!(name, signed(from.0), i64::from(limit))).await?;
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
        Ok(Some(Page { record, entries, more, source }))
    }

    async fn chunks(&self, name: &str, from: EntryIndex, limit: u32) -> Result<Option<ChunkPage>, Error> {
        let (rows, source) = self.rows(CHUNKS, arguments!(name, signed(from.0), i64::from(limit))).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let place = self.place();
        let at = |column| rows::index(rows::integer(first, column, &place)?, &place);
        let (base, primary_from) = (at("base")?, at("primary_from")?);
        let last = |row: &SqliteRow| row.try_get::<Option<i64>, _>("last").ok().flatten().unwrap_or(0).unsigned_abs();
        let chunks = rows.iter().filter_map(|row| {
            let chunk = chunk_if_any(row, &place).transpose()?;
            Some(chunk.map_err(|error| Damage::entry(last(row), &error)))
        });
        Ok(Some(ChunkPage { base, primary_from, chunks: chunks.collect(), source }))
    }

    async fn positions(&self, name: &str, keys: &[&str]) -> Result<Vec<Option<EntryIndex>>, Error> {
        let wanted = serde_json::json!(keys).to_string();
        let (rows, _) = self.rows(POSITIONS, arguments!(name, wanted)).await?;
        let place = self.place();
        let found = rows.iter().map(|row| {
            let key: String = row.try_get("key").map_err(|error| classify(&place, &error))?;
            Ok((key, rows::index(rows::integer(row, "idx", &place)?, &place)?))
        });
        in_order(keys, found)
    }

    async fn clear(&self, name: &str, found: Writer, to: Writer) -> Result<bool, Error> {
        let mut link = self.link.lock().await;
        let place = self.directory.database(link.held.number).display().to_string();
        let bytes = |writer: Writer| writer.executor.as_bytes().to_vec();
        let steps = || {
            let (held, new) = (signed(found.epoch.get()), signed(to.epoch.get()));
            [(ENTER, arguments!(bytes(to))), (CLEAR, arguments!(name, new, bytes(to), held, bytes(found)))]
        };
        for _ in 0..ATTEMPTS {
            let written = self.write(&mut link, steps()).await;
            if self.directory.superseded(link.held.number)? {
                let what = format!("{}: somebody else is using the store: a newer generation was made", self.place());
                return Err(Error::Unknown(what));
            }
            match written {
                Ok(changed) => return Ok(changed),
                Err((false, error)) if is_busy(&error) => sleep(PAUSE).await,
                Err((false, error)) => return Err(classify(&place, &error)),
                Err((true, error)) => return Err(Error::Unknown(format!("{place}: {error}"))),
            }
        }
        Err(Error::Unavailable(format!("{place}: somebody else has it locked")))
    }
}

fn record(row: &SqliteRow, place: &str) -> Result<Record, Error> {
    let agent = rows::agent(row, place)?;
    let corrupt = |what: String| Error::Corrupt { place: place.to_owned(), what };
    let integer = |column| row.try_get::<i64, _>(column).map_err(|error| corrupt(error.to_string()));
    let index = |column| {
        let value = integer(column)?;
        let index = u64::try_from(value).ok().filter(|index| *index > 0);
        index.map(EntryIndex).ok_or_else(|| corrupt(format!("{column} {value}: 1 and more make sense")))
    };
    let shard = integer("shard")?;
    let shard = u32::try_from(shard).map_err(|_| corrupt(format!("shard {shard}: 0 to 4294967295 make sense")))?;
    let standing = Standing::numbered(integer("state")?).map_err(corrupt)?;
    let snapshot: Option<i64> = row.try_get("snapshot").map_err(|error| corrupt(error.to_string()))?;
    Ok(Record {
        agent,
        shard: ShardId(shard),
        writer: rows::writer(row, ("held_epoch", "held_executor"), place)?,
        standing,
        base: index("base")?,
        primary_from: index("primary_from")?,
        next: index("next")?,
        snapshot: snapshot.map(|at| EntryIndex(at.unsigned_abs())),
        faults: Vec::new(),
    })
}

fn read(row: &SqliteRow, place: &str) -> Result<Read, Error> {
    let corrupt = |what: String| Error::Corrupt { place: place.to_owned(), what };
    let entry: Option<Entry> = rows::entry_if_any(row, place)?;
    let entry = entry.ok_or_else(|| corrupt("no index".into()))?;
    let size: i64 = row.try_get("size").map_err(|error| corrupt(error.to_string()))?;
    Ok(Read { entry, size: size.unsigned_abs() })
}
