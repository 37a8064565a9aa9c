//! A cluster store in a PostgreSQL database, for a manager that runs alone on a shared server. Many clusters share one database.
//!
//! Ownership is a session advisory lock on a connection of its own (see `lock`), and a token in the cluster's row that
//! every write compares (see `writer`): docs/decisions/0007. What is acknowledged is on the server's disk.

pub(crate) mod address;
pub(crate) mod error;
mod lock;
mod passfile;
pub(crate) mod pooler;
mod rows;
mod server;
mod writer;

use super::jobs::Jobs;
use super::{ClusterStore, Counters, Error, Write};
use async_trait::async_trait;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use lock::LockHandle;
use server::Server;
use std::sync::Arc;
use std::time::Duration;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where this process is reached over gRPC, shown to whoever finds the store taken.
    pub address: Option<String>,
    /// How long making a connection may take. 5 s by default.
    pub connect_timeout: Duration,
    /// How long a statement waits for a lock that somebody has on a row or a table, and an opening for the ownership. 2 s by default.
    pub lock_timeout: Duration,
    /// How long the server works on one statement. 5 s by default.
    pub statement_timeout: Duration,
    /// After how long without an answer a connection is given up. 10 s by default; above the statement timeout.
    pub silence: Duration,
    /// The same for the connection that holds the lock: giving it up ends the ownership. 30 s by default.
    pub lock_silence: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: None,
            connect_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            lock_silence: Duration::from_secs(30),
        }
    }
}

/// The store. Dropping it lets go of the ownership, once what was asked of it is done.
#[derive(Debug)]
pub struct PostgresClusterStore {
    cluster: ClusterName,
    jobs: Jobs,
    lock: LockHandle,
}

impl PostgresClusterStore {
    /// Opens the store of `cluster` at `url` (`postgres://USER@HOST:PORT/DATABASE?sslmode=verify-full&sslrootcert=FILE`; the password
    /// also from PGPASSWORD or a passfile), makes its tables if there are none, and takes ownership of it. Works inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when another process has it, naming whom; [`Error::Incompatible`] when the URL, the
    /// credentials, a certificate or the database are wrong, when a newer build wrote the tables, or when a pooler in transaction mode is
    /// between; [`Error::Corrupt`] when the tables are not as we made them; [`Error::Unavailable`] otherwise.
    pub async fn open(url: &str, cluster: &ClusterName) -> Result<Self, Error> {
        Self::open_with(url, cluster, Options::default()).await
    }

    /// As [`PostgresClusterStore::open`].
    ///
    /// # Errors
    /// As [`PostgresClusterStore::open`].
    pub async fn open_with(url: &str, cluster: &ClusterName, options: Options) -> Result<Self, Error> {
        let counters = Arc::<Counters>::default();
        let server = Server::new(url, cluster, options)?;
        let mut holder = server.connect().await.map_err(|error| server.refused(&error))?;
        let mut second = server.connect().await.map_err(|error| server.refused(&error))?;
        // Before any setting is made: a pooler would give it to others.
        pooler::refuse(&server, &mut holder, &mut second).await?;
        server.set_up(&mut holder).await?;
        server.set_up(&mut second).await?;
        let (holder, key) = lock::take(&server, holder).await?;
        let (holder, title) = lock::take_over(&server, holder).await?;
        let lock = lock::spawn(&server, holder, key);
        let (jobs, received) = Jobs::new(&counters);
        writer::spawn(server, second, title, (lock.clone(), counters), received);
        Ok(Self { cluster: cluster.clone(), jobs, lock })
    }

    /// How often the store was used since it was opened.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(self.jobs.counters())
    }
}

#[async_trait]
impl ClusterStore for PostgresClusterStore {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        if *cluster != self.cluster {
            return Err(Error::Incompatible(format!(
                "the store was opened for cluster {:?}, not for cluster {:?}",
                self.cluster.as_str(),
                cluster.as_str()
            )));
        }
        self.jobs.load(cluster, shard_count).await
    }

    async fn commit(&self, write: &Write) -> Result<(), Error> {
        self.jobs.commit(write).await
    }

    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        self.jobs.outcome(tag).await
    }

    /// On the connection that holds the lock, one query for everybody who waits; no table is touched, so that a table
    /// that somebody has locked ends no lease.
    async fn confirm_leadership(&self) -> Result<(), Error> {
        Counters::add(&self.jobs.counters().confirmations, 1);
        self.lock.confirm().await
    }

    /// Nothing to do: the rows are the present state, and PostgreSQL's own autovacuum clears what was replaced.
    async fn compact(&self, _upto: Revision) -> Result<(), Error> {
        Ok(())
    }
}
