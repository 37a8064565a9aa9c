//! Oplogs in SQLite, shared by all executors of one machine.
//!
//! The store is a directory on a local file system (never a network share: it needs working locks and shared memory).
//! Any number of executor processes open it; each has one task that writes, with calls of all its agents grouped into one
//! transaction (WAL, `synchronous=FULL`, `BEGIN IMMEDIATE`), and one that reads, with the pages of all its agents found together.
//!
//! # The frozen writer
//!
//! A process that is stopped (SIGSTOP, a paused VM) in the middle of a commit holds SQLite's write lock until it wakes: its
//! successor could not write, however high its epoch. So the directory holds *generations*, `gen-000001.db` and on. The
//! current one is the highest that is complete, provided that no higher one is in the making. A writer that has
//! waited for the lock for `step_around_after` without seeing a commit by anybody *steps around*:
//!
//! 1. it creates the marker `gen-N.pending` (O_EXCL; N is above every database and marker) and locks it (flock);
//! 2. *then* it looks for the highest complete generation and copies what is committed there, through a read
//!    transaction, which the WAL lets no writer block, into `gen-N.copy`, durably;
//! 3. it renames the copy to `gen-N.db`, makes the name durable, and removes the marker.
//!
//! And every process, after each COMMIT and before it acknowledges, looks for a marker or a database above its own
//! generation. If there is one it acknowledges nothing: it waits for the new generation and looks there whether its entries
//! are in. If not, they never will be, and the call is carried out anew, where the fence judges it. Reads do the same.
//!
//! **Why no acknowledged write is lost.** Let a write be committed in generation g at time c, and checked at t > c. Let the
//! step that replaces g create its marker at m and read its snapshot at r, so m < r. If c < r the copy has the write. If
//! c > r then t > c > r > m: the check finds the marker or, the rename coming before the marker's removal, the database.
//!
//! **Why no two generations are current.** Take the complete generation g as the highest without a marker above it. Every
//! later step creates its marker first and chooses its source after, so its source is g or above: what is not in g's line is in no later one,
//! which makes "not found there" final. A stepper frozen between its steps holds its marker's lock and is stepped
//! around by a higher number (it is known from a dead one by the lock, and from a slow one by a heartbeat in the marker).
//! If it wakes and completes its generation, that is below a complete one, or below a marker, and so never current by itself;
//! in the second case all its commits come after that marker and are acknowledged by nobody. A dead stepper's marker
//! is removed by whoever gets its lock, and its copy is never put in place: only the holder of a locked, linked marker renames,
//! and, as it looks again once it has the marker, never over a generation that exists.
//!
//! Old generations are deleted when nobody holds the shared lock on their `gen-N.inuse`, so no file goes under an open
//! connection. What remains: a process frozen at the wrong instant, while it holds an *exclusive* lock (the recovery of a WAL
//! after a crash, the closing of a store's last connection) or between the two copies of the WAL index's header blocks readers too; calls are then
//! answered `Unavailable` until it wakes or is killed. The instants are short and a freeze that is aimed at commits meets one now and then: twice in about 54
//! (`make zombie`, which counts it). A copy takes as long as the data is large; meanwhile writes wait. A transaction of a *foreign* program that is
//! stepped around is lost: nothing else may write to these files.

mod audit;
mod chunks;
mod generation;
mod reader;
mod rows;
mod writer;

pub use audit::SqliteAudit;

use super::call::Call;
use super::layers::ChunkStore;
use super::{Append, Claimed, Entry, EntryIndex, Error, OplogStore, Writer, check_writer};
use async_trait::async_trait;
use futures::future::BoxFuture;
use generation::Directory;
use leasehold_model::{AgentId, ShardId};
use reader::{Ask, Question, ReaderTask};
use rows::arguments;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use writer::{Job, WriterTask};

/// Calls waiting for the writer, and for the reader; beyond it callers wait before they are queued.
const QUEUE: usize = 1024;

/// Moments at which a test may stop a process.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The transaction is written, not committed.
    Written,
    /// It is committed, not checked.
    Committed,
    /// A marker is in place.
    Marked,
    /// The copy is complete, not in place.
    Copied,
    /// The copy is in place, its marker too.
    Renamed,
}

/// Called at every [`Point`].
#[doc(hidden)]
pub type Probe = Arc<dyn Fn(Point) -> BoxFuture<'static, ()> + Send + Sync>;

/// What the store may take.
#[derive(Clone)]
pub struct Settings {
    /// A lock under which nothing was committed for this long is stepped around. Default 1 s; lease profile `fast` 500 ms.
    pub step_around_after: Duration,
    /// A call not carried out by then is answered `Unavailable` (or `Unknown`, if it may have been). Default 10 s.
    pub give_up_after: Duration,
    /// The most pages of 2 KiB in the database; calls beyond are `Unavailable`. Default: what the disk holds.
    pub max_pages: Option<u32>,
    /// Appends without the fence: the other side of a benchmark's comparison.
    #[doc(hidden)]
    pub unfenced: bool,
    #[doc(hidden)]
    pub probe: Option<Probe>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            step_around_after: Duration::from_secs(1),
            give_up_after: Duration::from_secs(10),
            max_pages: None,
            unfenced: false,
            probe: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("step_around_after", &self.step_around_after)
            .field("give_up_after", &self.give_up_after)
            .field("max_pages", &self.max_pages)
            .field("unfenced", &self.unfenced)
            .finish_non_exhaustive()
    }
}

impl Settings {
    async fn at(&self, point: Point) {
        if let Some(probe) = &self.probe {
            probe(point).await;
        }
    }
}

/// What a handle did since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Transactions acknowledged.
    commits: AtomicU64,
    /// Calls that were fenced.
    fenced: AtomicU64,
}

/// A process's handle on the store. Dropping it answers what was sent, then ends.
#[derive(Debug)]
pub struct SqliteOplogStore {
    directory: Directory,
    jobs: mpsc::Sender<Job>,
    asks: mpsc::Sender<Ask>,
    counters: Arc<Counters>,
}

impl SqliteOplogStore {
    /// Opens the store in `folder`, which is created if it is not there, with default settings. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`SqliteOplogStore::open_with`].
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(folder, Settings::default()).await
    }

    /// Opens the store in `folder`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] naming the path when it is no directory, cannot be written, or has a newer build's schema;
    /// [`Error::Corrupt`] when the database is none.
    pub async fn open_with(folder: impl AsRef<Path>, settings: Settings) -> Result<Self, Error> {
        let path = folder.as_ref().to_path_buf();
        std::fs::create_dir_all(&path).map_err(|e| generation::io(&path, "is no usable directory", &e))?;
        let directory = Directory { path, settings };
        let counters = Arc::new(Counters::default());
        let mut writer = WriterTask::new(directory.clone(), Arc::clone(&counters));
        writer.open().await?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        tokio::spawn(writer.run(queue));
        let (asks, questions) = mpsc::channel(QUEUE);
        tokio::spawn(ReaderTask::new(directory.clone()).run(questions));
        Ok(Self { directory, jobs, asks, counters })
    }

    /// Transactions that this handle has committed and acknowledged.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.counters.commits.load(Ordering::Relaxed)
    }

    /// Calls through this handle that were fenced.
    #[must_use]
    pub fn fenced(&self) -> u64 {
        self.counters.fenced.load(Ordering::Relaxed)
    }

    fn counted<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if matches!(outcome, Err(Error::Fenced { .. })) {
            self.counters.fenced.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn call(&self, call: Call) -> Result<Claimed, Error> {
        let (answer, answered) = oneshot::channel();
        let stopped = || format!("{}: the writer of this process has stopped", self.directory.path.display());
        self.jobs.send(Job { call, answer }).await.map_err(|_| Error::Unavailable(stopped()))?;
        let outcome = answered.await.unwrap_or_else(|_| Err(Error::Unknown(stopped())));
        self.counted(outcome)
    }

    /// The rows of an answer, from what is the current generation after it was found.
    async fn ask(&self, question: Question) -> Result<Vec<SqliteRow>, Error> {
        let (answer, answered) = oneshot::channel();
        let stopped =
            || Error::Unavailable(format!("{}: the reader of this process has stopped", self.directory.path.display()));
        let until = Instant::now() + self.directory.settings.give_up_after;
        self.asks.send(Ask { question, until, answer }).await.map_err(|_| stopped())?;
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    async fn rows(&self, sql: &'static str, arguments: SqliteArguments) -> Result<Vec<SqliteRow>, Error> {
        self.ask(Question::Statement(sql, arguments)).await
    }

    fn place(&self) -> String {
        self.directory.path.display().to_string()
    }
}

#[async_trait]
impl OplogStore for SqliteOplogStore {
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
        let after = after.map_or("", AgentId::as_str);
        let values = arguments!(i64::from(shard.0), after, i64::from(limit));
        let place = format!("{}: shard {shard}", self.place());
        self.rows(rows::RUNNING, values).await?.iter().map(|row| rows::agent(row, &place)).collect()
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        let after = after.map_or("", AgentId::as_str);
        let values = arguments!(i64::from(shard.0), after, i64::from(limit));
        let place = format!("{}: shard {shard}", self.place());
        self.rows(rows::AGENTS, values).await?.iter().map(|row| rows::listed(row, &place)).collect()
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        let rows = self.rows(rows::RECORDED, arguments!(agent.as_str())).await?;
        let place = rows::at_oplog(&self.place(), agent);
        rows.first().map(|row| rows::writer(row, ("epoch", "executor"), &place)).transpose()
    }
}
