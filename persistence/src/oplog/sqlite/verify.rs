//! Reads a whole store and proves or refutes what the fence promises.

use super::generation::{Directory, classify};
use super::{Settings, rows};
use crate::oplog::{Error, Writer};
use futures::TryStreamExt;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, Row};
use std::collections::HashMap;
use std::path::Path;

/// Findings that are told in full; the others are counted.
const MAX_FINDINGS: usize = 100;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which oplog, which entry.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

/// What a store holds, and whether it is as the fence promises.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation that was read.
    pub generation: u64,
    /// Oplogs, deleted ones included.
    pub oplogs: u64,
    /// Deleted ones among them.
    pub deleted: u64,
    /// Entries of the others.
    pub entries: u64,
    /// The greatest epoch anywhere: a manager's must be above.
    pub greatest_epoch: u64,
    /// The first hundred findings.
    pub findings: Vec<Finding>,
    /// All findings.
    pub found: u64,
}

impl Report {
    /// Indexes are contiguous, epochs never fall along an oplog, each epoch has one writer per oplog, no record is below its entries.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.found == 0
    }

    fn add(&mut self, place: String, what: impl Into<String>) {
        self.found += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { place, what: what.into() });
        }
    }
}

/// The oplog that is being walked through.
struct Walk {
    oplog: i64,
    place: String,
    record: Option<Writer>,
    next: i64,
    last: Option<Writer>,
    writers: HashMap<u64, Writer>,
}

const ORDERED: &str = "SELECT r.id AS oplog, r.agent, r.epoch AS held_epoch, h.executor AS held_executor, r.state, r.base, \
    e.idx, e.epoch, w.executor, e.kind, e.key, e.body FROM records r LEFT JOIN writers h ON h.id = r.writer \
    LEFT JOIN entries e ON e.oplog = r.id AND e.idx >= r.base LEFT JOIN writers w ON w.id = e.writer ORDER BY r.id, e.idx";

const STRAY: &str = "SELECT count(*) FROM entries WHERE oplog NOT IN (SELECT id FROM records)";

/// Checks the store in `folder`, which must exist. Executors may be using it; the current generation is read as of one moment.
///
/// # Errors
/// [`Error::Unavailable`] when there is no store, [`Error::Corrupt`] when the file is no database; whatever is wrong with rows is in
/// the report.
pub async fn verify(folder: impl AsRef<Path>) -> Result<Report, Error> {
    let path = folder.as_ref().to_path_buf();
    let directory = Directory { path, settings: Settings::default() };
    let Some(held) = directory.newest()? else {
        return Err(Error::Unavailable(format!("{}: no oplog store is here", directory.path.display())));
    };
    let place = directory.database(held.number).display().to_string();
    let mut connection = directory.connect(held.number).await?;
    let mut report = Report { generation: held.number, ..Report::default() };
    let checked = read(&mut connection, &place, &mut report).await;
    drop(connection.close().await);
    checked.map(|()| report)
}

async fn read(connection: &mut SqliteConnection, place: &str, report: &mut Report) -> Result<(), Error> {
    let fail = |e: sqlx::Error| classify(place, &e);
    let mut transaction = connection.begin().await.map_err(fail)?;
    let sound: String =
        sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(&mut *transaction).await.map_err(fail)?;
    if sound != "ok" {
        report.add(place.into(), sound);
    }
    let strays: i64 = sqlx::query_scalar(STRAY).fetch_one(&mut *transaction).await.map_err(fail)?;
    if strays > 0 {
        report.add(place.into(), format!("{strays} entries without a record"));
    }
    let mut walk = None;
    {
        let mut rows = sqlx::query(ORDERED).fetch(&mut *transaction);
        while let Some(row) = rows.try_next().await.map_err(fail)? {
            let oplog: i64 = row.try_get("oplog").map_err(fail)?;
            if walk.as_ref().is_none_or(|walk: &Walk| walk.oplog != oplog) {
                walk = Some(enter(&row, oplog, place, report).map_err(fail)?);
            }
            if let Some(walk) = walk.as_mut() {
                visit(walk, &row, report).map_err(fail)?;
            }
        }
    }
    transaction.rollback().await.map_err(fail)
}

fn enter(row: &SqliteRow, oplog: i64, place: &str, report: &mut Report) -> Result<Walk, sqlx::Error> {
    let agent: String = row.try_get("agent")?;
    let place = format!("{place}: oplog {agent:?}");
    report.oplogs += 1;
    if row.try_get::<i64, _>("state")? == 2 {
        report.deleted += 1;
    }
    if let Err(error) = rows::agent(row, &place) {
        report.add(place.clone(), error.to_string());
    }
    let record = match rows::writer(row, ("held_epoch", "held_executor"), &place) {
        Ok(record) => Some(record),
        Err(error) => {
            report.add(place.clone(), error.to_string());
            None
        }
    };
    report.greatest_epoch = report.greatest_epoch.max(record.map_or(0, |record| record.epoch.get()));
    let next = row.try_get("base")?;
    Ok(Walk { oplog, place, record, next, last: None, writers: HashMap::new() })
}

fn visit(walk: &mut Walk, row: &SqliteRow, report: &mut Report) -> Result<(), sqlx::Error> {
    let Some(index) = row.try_get::<Option<i64>, _>("idx")? else { return Ok(()) };
    report.entries += 1;
    let place = format!("{}, entry {index}", walk.place);
    if index != walk.next {
        report.add(place.clone(), format!("index {index} where {} belongs", walk.next));
    }
    walk.next = index.saturating_add(1);
    let writer = match rows::entry_if_any(row, &walk.place) {
        Ok(Some(entry)) => entry.writer,
        Ok(None) => return Ok(()),
        Err(error) => {
            report.add(place, error.to_string());
            return Ok(());
        }
    };
    let epoch = writer.epoch.get();
    report.greatest_epoch = report.greatest_epoch.max(epoch);
    if let Some(last) = walk.last.filter(|last| last.epoch > writer.epoch) {
        report.add(place.clone(), format!("epoch {epoch} after {}", last.epoch));
    }
    let first = *walk.writers.entry(epoch).or_insert(writer);
    if first != writer {
        report.add(place.clone(), format!("epoch {epoch} written by {} and by {}", first.executor, writer.executor));
    }
    if let Some(record) = walk.record {
        let theirs = record.epoch == writer.epoch && record.executor != writer.executor;
        if record.epoch < writer.epoch || theirs {
            report.add(place, format!("written by {writer:?}, the record is {record:?}"));
        }
    }
    walk.last = Some(writer);
    Ok(())
}
