//! The task that owns the working connection and does one job at a time.
//!
//! A job once begun is done to its end, whether or not anybody still waits for its answer. A connection that is lost is made
//! anew, and the cluster's row is told so before anything else is asked on it (see [`rows::REJOIN`]): what may still be under way on
//! the old one has landed by then, or never will.

use super::error::{Failed, of_commit, refused, unwritten};
use super::lock::{LockHandle, Title};
use super::rows;
use super::server::Server;
use crate::cluster::jobs::{Job, Worker};
use crate::cluster::{Counters, Error, Write};
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row, query};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Reading the whole state is several answers; each batch of rows would be too fine a measure.
const LOADING: u32 = 3;

struct Writer {
    server: Server,
    lock: LockHandle,
    title: Title,
    /// Counts connections: which of them may write.
    writer: i64,
    connection: Option<PgConnection>,
    /// Whether the cluster's row knows the connection.
    joined: bool,
}

/// Gives the connection to a task, which ends when every sender of jobs is gone.
pub(super) fn spawn(
    server: Server,
    connection: PgConnection,
    title: Title,
    (lock, counters): (LockHandle, Arc<Counters>),
    mut jobs: mpsc::Receiver<Job>,
) {
    let mut writer = Writer { server, lock, title, writer: 0, connection: Some(connection), joined: false };
    tokio::spawn(async move {
        while let Some(job) = jobs.recv().await {
            job.done_by(&mut writer, &counters).await;
        }
        // The lock goes after this connection: its handle is dropped with the writer.
        if let Some(connection) = writer.connection.take() {
            let _ = timeout(writer.server.options.connect_timeout, connection.close()).await;
        }
    });
}

impl Writer {
    /// Takes the connection out, made anew if it was given up, and known to the cluster's row.
    async fn connection(&mut self) -> Result<PgConnection, Error> {
        self.lock.confirm().await?;
        let place = format!("{}, table head", self.server.place);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.joined = false;
                let mut fresh = self.server.connect().await.map_err(|failed| unwritten(&self.server.place, &failed))?;
                self.server.set_up(&mut fresh).await?;
                fresh
            }
        };
        if !self.joined {
            // Counted up before it is tried: a rejoining whose answer was lost must not be taken for this one.
            self.writer += 1;
            let join = query(rows::REJOIN).bind(self.title.id).bind(self.title.owner).bind(self.writer);
            let joined = self.server.bounded(join.execute(&mut connection)).await;
            let joined = joined.map_err(|failed| unwritten(&place, &failed))?;
            if joined.rows_affected() == 0 {
                return Err(self.displaced());
            }
            self.joined = true;
        }
        Ok(connection)
    }

    fn displaced(&self) -> Error {
        Error::NotOwner(format!(
            "{}: its row in table head is gone, or says that another manager took over",
            self.server.place
        ))
    }

    /// Keeps the connection after an answer, or after an error that left it as it was.
    fn keep<T>(&mut self, connection: PgConnection, answer: Result<T, Failed>) -> Result<T, Failed> {
        if answer.as_ref().err().is_none_or(refused) {
            self.connection = Some(connection);
        }
        answer
    }

    /// Why the condition of `write` did not hold. Nothing was written.
    async fn refusal(&mut self, write: &Write) -> Error {
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let asked = query("SELECT revision FROM head WHERE id = $1 AND owner = $2 AND writer = $3")
            .bind(self.title.id)
            .bind(self.title.owner)
            .bind(self.writer);
        let answer = self.server.bounded(asked.fetch_all(&mut connection)).await;
        let place = format!("{}, table head", self.server.place);
        let found = self
            .keep(connection, answer)
            .and_then(|rows| rows.first().map(|row| row.try_get::<i64, _>(0)).transpose().map_err(Failed::Sql));
        match found {
            Ok(Some(found)) => {
                Error::Conflict { expected: write.expected, found: Revision(u64::try_from(found).unwrap_or(0)) }
            }
            Ok(None) => self.displaced(),
            Err(failed) => unwritten(&place, &failed),
        }
    }
}

impl Worker for Writer {
    async fn load(&mut self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        let mut connection = self.connection().await?;
        let patience: Duration = self.server.options.silence * LOADING;
        let place = &self.server.place;
        let state =
            timeout(patience, rows::read_state(&mut connection, place, (self.title, cluster), shard_count)).await;
        let state = state.unwrap_or_else(|_| Err(unwritten(place, &Failed::Silent(patience))));
        // After an error a transaction may be open: the next job takes a fresh connection.
        if state.is_ok() || matches!(state, Err(Error::Incompatible(_))) && rows::end(&mut connection).await {
            self.connection = Some(connection);
        }
        state
    }

    async fn outcome(&mut self, tag: u128) -> Result<bool, Error> {
        let mut connection = self.connection().await?;
        let place = format!("{}, table head", self.server.place);
        let asked =
            query("SELECT tag FROM head WHERE id = $1 AND owner = $2").bind(self.title.id).bind(self.title.owner);
        let answer = self.server.bounded(asked.fetch_all(&mut connection)).await;
        let found = self.keep(connection, answer).map_err(|failed| unwritten(&place, &failed))?;
        let Some(row) = found.first() else { return Err(self.displaced()) };
        let stored: Option<&[u8]> = row.try_get("tag").map_err(|error| unwritten(&place, &Failed::Sql(error)))?;
        Ok(stored.is_some_and(|stored| stored == tag.to_be_bytes()))
    }

    async fn commit(&mut self, write: &Write) -> Result<u64, Error> {
        if let Some(first) = write.changes.first.as_ref().filter(|head| head.cluster != self.server.cluster) {
            return Err(Error::Incompatible(format!("a head of cluster {} for {}", first.cluster, self.server.place)));
        }
        let mut connection = self.connection().await?;
        let written = self.server.bounded(rows::write(&mut connection, (self.title, self.writer), write)).await;
        let rows = self.keep(connection, written).map_err(|failed| of_commit(&self.server.place, &failed))?;
        if rows == 0 {
            return Err(self.refusal(write).await);
        }
        Ok(rows)
    }

    #[cfg(feature = "conformance")]
    async fn execute(&mut self, sql: String) -> Result<(), Error> {
        let mut connection = self.connection().await?;
        let done = self.server.bounded(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection)).await;
        self.keep(connection, done).map(drop).map_err(|failed| unwritten(&self.server.place, &failed))
    }
}
