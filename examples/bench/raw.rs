//! What a backend does by itself: the rows of 256 appends in one batch, after each other, with nothing asked.

use crate::figure::Result;
use leasehold_harness::{Postgres, Redis};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection, query, raw_sql};
use std::path::Path;
use std::time::Instant;

/// Rows of a batch: an entry of each agent.
pub const ROWS: usize = 256;

/// The columns of a batch's rows, as the stores keep them.
struct Batch {
    oplogs: Vec<i64>,
    index: i64,
    key: String,
}

/// Makes the batches of a round: every oplog's next entry.
struct Batches {
    next: i64,
}

const WRITER: [u8; 16] = [7; 16];
const BODY: [u8; 100] = [7; 100];

impl Batches {
    fn next(&mut self) -> Batch {
        self.next += 1;
        Batch { oplogs: (1..=ROWS as i64).collect(), index: self.next, key: format!("key-{}", self.next) }
    }
}

/// Rows per second.
fn rate(batches: usize, began: Instant) -> f64 {
    (batches * ROWS) as f64 / began.elapsed().as_secs_f64()
}

/// A table like the store's own in the same file, on a connection with the same durability.
pub struct RawSqlite {
    connection: SqliteConnection,
    batches: Batches,
}

impl RawSqlite {
    /// Beside the store's files, in `folder`.
    pub async fn open(folder: &Path) -> Result<Self> {
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.join("raw.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let table = "CREATE TABLE entries (oplog INTEGER NOT NULL, idx INTEGER NOT NULL, epoch INTEGER NOT NULL, writer INTEGER NOT NULL, \
                     kind INTEGER NOT NULL, key TEXT, body BLOB NOT NULL, PRIMARY KEY (oplog, idx)) STRICT, WITHOUT ROWID; \
                     CREATE UNIQUE INDEX entries_key ON entries (oplog, key) WHERE key IS NOT NULL; \
                     CREATE INDEX entries_snapshot ON entries (oplog, idx) WHERE kind = 2";
        raw_sql(table).execute(&mut connection).await?;
        Ok(Self { connection, batches: Batches { next: 0 } })
    }

    /// Rows per second: one statement, and so one transaction, per batch.
    pub async fn rate(&mut self, batches: usize) -> Result<f64> {
        let rows = vec!["(?, ?, 5, 1, 1, ?, ?)"; ROWS].join(", ");
        let insert = format!("INSERT INTO entries (oplog, idx, epoch, writer, kind, key, body) VALUES {rows}");
        let began = Instant::now();
        for _ in 0..batches {
            let Batch { oplogs, index, key } = self.batches.next();
            let mut ask = query(AssertSqlSafe(insert.clone()));
            for oplog in oplogs {
                ask = ask.bind(oplog).bind(index).bind(&key).bind(BODY.as_slice());
            }
            ask.execute(&mut self.connection).await?;
        }
        Ok(rate(batches, began))
    }
}

/// A table like the store's own in the same database.
pub struct RawPostgres {
    connection: PgConnection,
    batches: Batches,
}

impl RawPostgres {
    /// In the store's own schema, with its settings of a session that matter.
    pub async fn open(server: &Postgres) -> Result<Self> {
        let mut connection = PgConnection::connect(&server.url()).await?;
        let table =
            "CREATE SCHEMA raw; CREATE TABLE raw.entries (LIKE leasehold_oplogs.entries INCLUDING ALL); SET jit = off";
        raw_sql(table).execute(&mut connection).await?;
        Ok(Self { connection, batches: Batches { next: 0 } })
    }

    /// Rows per second: one statement, and so one transaction, per batch.
    pub async fn rate(&mut self, batches: usize) -> Result<f64> {
        const INSERT: &str = "INSERT INTO raw.entries (oplog, idx, epoch, executor, kind, key, body) \
                              SELECT oplog, $2, 5, $3, 1, $4, body FROM UNNEST($1::bigint[], $5::bytea[]) AS e (oplog, body)";
        let began = Instant::now();
        for _ in 0..batches {
            let Batch { oplogs, index, key } = self.batches.next();
            let bodies = vec![BODY.as_slice(); oplogs.len()];
            let ask = query(INSERT).bind(oplogs).bind(index).bind(WRITER.as_slice()).bind(key).bind(bodies);
            ask.execute(&mut self.connection).await?;
        }
        Ok(rate(batches, began))
    }
}

/// Hashes like the store's own on the same server.
pub struct RawRedis {
    connection: redis::aio::MultiplexedConnection,
    batches: Batches,
}

impl RawRedis {
    /// On a connection of its own.
    pub async fn open(server: &Redis) -> Result<Self> {
        let connection = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
        Ok(Self { connection, batches: Batches { next: 0 } })
    }

    /// Entries per second: per batch one pipeline, which sets an entry and its key for each oplog.
    pub async fn rate(&mut self, batches: usize) -> Result<f64> {
        let began = Instant::now();
        for _ in 0..batches {
            let Batch { oplogs, index, key } = self.batches.next();
            let mut pipeline = redis::pipe();
            for oplog in oplogs {
                let (entries, keys) = (
                    format!("leasehold:raw:{{counter/{oplog}}}:entries"),
                    format!("leasehold:raw:{{counter/{oplog}}}:keys"),
                );
                let entry = [&1_u64.to_be_bytes()[..], &WRITER, key.as_bytes(), &BODY].concat();
                pipeline.cmd("HSET").arg(entries).arg(index).arg(entry).ignore();
                pipeline.cmd("HSET").arg(keys).arg(&key).arg(index).ignore();
            }
            pipeline.query_async::<()>(&mut self.connection).await?;
        }
        Ok(rate(batches, began))
    }
}
