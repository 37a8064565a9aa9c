//! Oplogs in a PostgreSQL database, shared by all executors of a cluster; many clusters share one database.
//!
//! # The fence
//! Every write is one statement that begins by updating the oplog's record, under the condition that it is the writer's and expects this very
//! index (see `rows`). PostgreSQL lets one transaction at a time change a row, and asks the condition again of the row that it finds once it
//! has the lock. So of an append and a claim one comes first: either the claim finds the appended entries, or the append finds the claim.
//!
//! **A commit that the server holds** (case 31: a full disk's retry, a replica that does not answer, a trigger) keeps its row locked; what
//! it wrote is seen by nobody. The next owner's claim skips the row and is tried again, for at most `lock_timeout`; it is answered
//! `Unavailable` after that, and goes through as soon as the transaction ends, one way or the other. The server ends a
//! statement that takes longer than `statement_timeout` by itself, also if the executor that sent it is frozen or gone.
//!
//! # Unknown outcomes
//! A statement whose session was lost, or that was cancelled, may have been committed. Before the caller is told so, the session
//! is ended at the server, so that what a reader finds after that stays so.
//!
//! # Sessions
//! Writes and reads have sessions of their own (`writers`, `readers`). Writes of different agents are grouped: one statement, one
//! commit. A pooler in transaction mode is refused at the opening.

mod audit;
mod chunks;
mod dispatch;
mod error;
mod rows;
mod server;
mod sessions;

pub use audit::PostgresAudit;

use super::call::Call;
use super::layers::ChunkStore;
use super::{Append, Claimed, Entry, EntryIndex, Error, Gate, OplogStore, Warning, Writer, check_writer};
use crate::cluster::postgres::error::Failed;
use async_trait::async_trait;
use dispatch::{Carrier, Job};
use error::unwritten;
use leasehold_model::{AgentId, ClusterName, ShardId};
use server::{Purpose, Server};
use sessions::Sessions;
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Calls waiting for the writers; beyond it callers wait before they are queued.
const QUEUE: usize = 1024;

/// What the store may take.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Sessions that write: as many statements at a time. Default 2, at least 1.
    pub writers: usize,
    /// Sessions that read. Default 3, at least 1.
    pub readers: usize,
    /// How long making a connection may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a call waits for a lock that another session has on its record or on a table. Default 2 s.
    pub lock_timeout: Duration,
    /// How long the server works on one statement. Default 5 s.
    pub statement_timeout: Duration,
    /// After how long without an answer a session is given up. Default 10 s; above the statement timeout.
    pub silence: Duration,
    /// Appends without the fence: the other side of a benchmark's comparison.
    #[doc(hidden)]
    pub unfenced: bool,
    /// Where tests hold appends.
    #[doc(hidden)]
    pub hold: Option<Gate>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            writers: 2,
            readers: 3,
            connect_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            unfenced: false,
            hold: None,
        }
    }
}

/// What a handle did since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Statements that were committed.
    commits: AtomicU64,
    /// Calls that were fenced.
    fenced: AtomicU64,
}

/// A process's handle on the store. Dropping it answers what was sent, then ends.
pub struct PostgresOplogStore {
    jobs: mpsc::Sender<Job>,
    readers: Sessions,
    cluster: i32,
    counters: Arc<Counters>,
    warnings: Vec<Warning>,
}

impl fmt::Debug for PostgresOplogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOplogStore").field("place", &self.place()).finish_non_exhaustive()
    }
}

type Asked = Query<'static, Postgres, PgArguments>;

impl PostgresOplogStore {
    /// Opens the oplogs of `cluster` at `url` (`postgres://USER@HOST:PORT/DATABASE?sslmode=…`), with default settings.
    ///
    /// # Errors
    /// As [`PostgresOplogStore::open_with`].
    pub async fn open(url: &str, cluster: &ClusterName) -> Result<Self, Error> {
        Self::open_with(url, cluster, Settings::default()).await
    }

    /// Opens the oplogs of `cluster` at `url`, and makes the tables if there are none. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the URL, the credentials or the database are wrong, when a newer build made the tables, or when a
    /// pooler in transaction mode is between; [`Error::Corrupt`] when the tables are not as we made them; [`Error::Unavailable`] otherwise.
    pub async fn open_with(url: &str, cluster: &ClusterName, settings: Settings) -> Result<Self, Error> {
        let sizes = (settings.writers.max(1), settings.readers.max(1));
        let settings = Settings { writers: sizes.0, readers: sizes.1, ..settings };
        let server = Arc::new(Server::new(url, cluster, settings)?);
        let mut first = server.connect().await.map_err(|failed| server.refused(&failed))?;
        let mut second = server.connect().await.map_err(|failed| server.refused(&failed))?;
        // Before any setting is made: a pooler would give it to others.
        server.refuse_pooler(&mut first, &mut second).await?;
        let warnings = server.warnings(&mut first).await?;
        let unset = |failed: Failed| unwritten(&server.place, &failed);
        let processes = (
            server.set_up(&mut first, Purpose::Reads).await.map_err(unset)?,
            server.set_up(&mut second, Purpose::Reads).await.map_err(unset)?,
        );
        // Others may be making the tables: that is waited for with a reader's patience.
        let number = server.prepare(&mut first, cluster).await?;
        server.set_up(&mut first, Purpose::Writes).await.map_err(unset)?;
        let (writers, readers) = (
            Sessions::new(Arc::clone(&server), sizes.0, Purpose::Writes),
            Sessions::new(Arc::clone(&server), sizes.1, Purpose::Reads),
        );
        writers.add(first, processes.0);
        readers.add(second, processes.1);
        let counters = Arc::new(Counters::default());
        let (jobs, queue) = mpsc::channel(QUEUE);
        let carrier = Carrier { sessions: writers, cluster: number, counters: Arc::clone(&counters) };
        tokio::spawn(dispatch::run(Arc::new(carrier), queue));
        Ok(Self { jobs, readers, cluster: number, counters, warnings })
    }

    /// What an operator should know of the server's settings, as they were when the store was opened.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Statements that this handle has committed.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.counters.commits.load(Ordering::Relaxed)
    }

    /// Calls through this handle that were fenced.
    #[must_use]
    pub fn fenced(&self) -> u64 {
        self.counters.fenced.load(Ordering::Relaxed)
    }

    fn place(&self) -> &str {
        &self.readers.server.place
    }

    fn counted<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if matches!(outcome, Err(Error::Fenced { .. })) {
            self.counters.fenced.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn call(&self, call: Call) -> Result<Claimed, Error> {
        let (answer, answered) = oneshot::channel();
        let stopped = || format!("{}: the writer of this process has stopped", self.place());
        self.jobs.send(Job::new(call, answer)).await.map_err(|_| Error::Unavailable(stopped()))?;
        let outcome = answered.await.unwrap_or_else(|_| Err(Error::Unknown(stopped())));
        self.counted(outcome)
    }

    /// The rows of one statement, which writes nothing.
    async fn rows(&self, asked: Asked) -> Result<Vec<PgRow>, Error> {
        let mut lent = self.readers.lend().await?;
        let answer = self.readers.server.bounded(asked.fetch_all(&mut lent.session.connection)).await;
        // A lost session that read leaves nothing behind.
        let _ = self.readers.give_back(lent, &answer);
        answer.map_err(|failed| unwritten(self.place(), &failed))
    }
}

#[async_trait]
impl OplogStore for PostgresOplogStore {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        check_writer(writer)?;
        self.call(Call::Claim { agent: agent.clone(), shard, writer }).await
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        append.check()?;
        self.call(Call::Append(append)).await.map(|done| done.next)
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.page(agent, writer, from, limit).await?.primary_only(agent, from)
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        let found = self.look_up(agent, writer, key).await?;
        found.map(|found| found.primary_only(agent)).transpose()
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        self.call(Call::Delete { agent: agent.clone(), writer, expected }).await.map(drop)
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        self.call(Call::Suspend { agent: agent.clone(), writer }).await.map(drop)
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        let after = after.map_or_else(String::new, |agent| agent.as_str().to_owned());
        let asked = sqlx::query(rows::RUNNING).bind(self.cluster).bind(i64::from(shard.0));
        let place = format!("{}: shard {shard}", self.place());
        let rows = self.rows(asked.bind(after).bind(i64::from(limit))).await?;
        rows.iter().map(|row| rows::agent(row, &place)).collect()
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        let after = after.map_or_else(String::new, |agent| agent.as_str().to_owned());
        let asked = sqlx::query(rows::AGENTS).bind(self.cluster).bind(i64::from(shard.0));
        let place = format!("{}: shard {shard}", self.place());
        let rows = self.rows(asked.bind(after).bind(i64::from(limit))).await?;
        rows.iter().map(|row| rows::listed(row, &place)).collect()
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        let asked = sqlx::query(rows::RECORDED).bind(self.cluster).bind(agent.as_str().to_owned());
        let rows = self.rows(asked).await?;
        let place = rows::at_oplog(self.place(), agent);
        rows.first().map(|row| rows::writer(row, ("epoch", "executor"), &place)).transpose()
    }
}
