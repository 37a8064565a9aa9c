//! A cluster store in one SQLite file, for a manager that runs alone on its machine.
//!
//! One process owns the file for its whole life (see `owner`); one thread does all work on it (see `worker`).
//! Everything that was acknowledged is on the disk: WAL with `synchronous = FULL`.

mod error;
mod owner;
mod rows;
mod worker;

use super::jobs::{self, Jobs};
use super::{ClusterStore, Counters, Error, Write};
use async_trait::async_trait;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use owner::Title;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long dropping the store waits until the file is let go of: long enough for a commit in flight on a healthy disk, short enough for a process
/// that wants to end on a hung one.
const MAX_CLOSING: Duration = Duration::from_secs(2);

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long to wait for a lock that another process has on the database. 2 s by default; above that the call is
    /// answered [`Error::Unavailable`].
    pub busy_timeout: Duration,
    /// Where this process is reached over gRPC, shown to whoever finds the store taken.
    pub address: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { busy_timeout: Duration::from_secs(2), address: None }
    }
}

/// The store. Dropping it lets go of the file, once what was asked of it is done.
#[derive(Debug)]
pub struct SqliteClusterStore {
    /// `None` only while it is being dropped.
    jobs: Option<Jobs>,
    title: Title,
    /// Disconnected when the thread has ended.
    ended: Mutex<blocking::Receiver<()>>,
}

impl SqliteClusterStore {
    /// Opens the file at `path`, creating it if there is none, and takes ownership of it.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when another process has it, naming whom; [`Error::Corrupt`] when it is damaged or no database;
    /// [`Error::Incompatible`] when another application or a newer build wrote it, or no file can be at `path` (there is no such
    /// folder, this user may not write there); [`Error::Unavailable`] when it cannot be opened otherwise or is locked. A file that is
    /// refused is not changed.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Options::default()).await
    }

    /// As [`SqliteClusterStore::open`].
    ///
    /// # Errors
    /// As [`SqliteClusterStore::open`].
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        // Absolute: the process may change its directory, and SQLite takes names that begin with "file:" for URIs.
        let path = std::path::absolute(path.as_ref())
            .map_err(|why| Error::Unavailable(format!("{}: {why}", path.as_ref().display())))?;
        if path.to_str().is_none() {
            return Err(Error::Incompatible(format!("{} is not UTF-8, which SQLite needs", path.display())));
        }
        let counters = Arc::<Counters>::default();
        let (jobs, received) = Jobs::new(&counters);
        let (opened, title) = oneshot::channel();
        let (alive, ended) = blocking::channel::<()>();
        thread::Builder::new()
            .name("cluster-store".into())
            .spawn(move || {
                worker::run(&path, &options, counters, opened, received);
                drop(alive);
            })
            .map_err(|why| Error::Unavailable(format!("cannot start the store's thread: {why}")))?;
        let title = title.await.unwrap_or_else(|_| Err(jobs::ended()))?;
        Ok(Self { jobs: Some(jobs), title, ended: Mutex::new(ended) })
    }

    /// How often the store was used since it was opened.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(self.jobs().counters())
    }

    /// Runs `sql` on the store's own connection, for tests of faults that only a pragma can bring about.
    ///
    /// # Errors
    /// What SQLite says.
    #[cfg(feature = "conformance")]
    pub async fn execute(&self, sql: &str) -> Result<(), Error> {
        self.jobs().execute(sql).await
    }

    fn jobs(&self) -> &Jobs {
        self.jobs.as_ref().expect("a store in use is not being dropped")
    }
}

impl Drop for SqliteClusterStore {
    fn drop(&mut self) {
        self.jobs = None;
        // Whoever opens the file next, in this process too, finds it free.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(MAX_CLOSING);
    }
}

#[async_trait]
impl ClusterStore for SqliteClusterStore {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        self.jobs().load(cluster, shard_count).await
    }

    async fn commit(&self, write: &Write) -> Result<(), Error> {
        self.jobs().commit(write).await
    }

    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        self.jobs().outcome(tag).await
    }

    /// The lock cannot be lost while the file is open; what can happen is that the name leads to another file by now.
    async fn confirm_leadership(&self) -> Result<(), Error> {
        let jobs = self.jobs();
        Counters::add(&jobs.counters().confirmations, 1);
        if jobs.is_closed() {
            return Err(Error::NotOwner("the store's thread has ended, and its lock with it".into()));
        }
        self.title.check()
    }

    /// Nothing to do: the rows are the present state, and SQLite checkpoints its log by itself.
    async fn compact(&self, _upto: Revision) -> Result<(), Error> {
        Ok(())
    }
}
