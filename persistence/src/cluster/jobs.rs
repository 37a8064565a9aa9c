//! The way to the one worker of a store with tables: jobs, done one at a time in the order in which they were asked for, so that the
//! outcome of a write is only told after it.
//!
//! A job once begun is done to its end, whether or not anybody still waits for its answer: a caller that gives up leaves no
//! transaction open.

use super::{Counters, Error, Write};
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, ShardCount};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Jobs that wait for the worker; further callers wait to ask.
const MAX_JOBS: usize = 64;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

#[derive(Debug)]
pub(super) enum Job {
    Load {
        cluster: ClusterName,
        shard_count: ShardCount,
        reply: Reply<ClusterState>,
    },
    Commit {
        write: Box<Write>,
        reply: Reply<()>,
    },
    Outcome {
        tag: u128,
        reply: Reply<bool>,
    },
    #[cfg(feature = "conformance")]
    Sql {
        sql: String,
        reply: Reply<()>,
    },
}

/// Whoever has the connection.
pub(super) trait Worker {
    async fn load(&mut self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error>;

    /// Answers how many rows were written.
    async fn commit(&mut self, write: &Write) -> Result<u64, Error>;

    async fn outcome(&mut self, tag: u128) -> Result<bool, Error>;

    /// Runs `sql` on the connection, for tests.
    #[cfg(feature = "conformance")]
    async fn execute(&mut self, sql: String) -> Result<(), Error>;
}

impl Job {
    pub async fn done_by(self, worker: &mut impl Worker, counters: &Counters) {
        // An answer that nobody waits for any more is no error: the asker looks the outcome up.
        match self {
            Self::Load { cluster, shard_count, reply } => {
                let _ = reply.send(worker.load(&cluster, shard_count).await);
            }
            Self::Commit { write, reply } => {
                let written = worker.commit(&write).await;
                match &written {
                    Ok(rows) => counters.committed(*rows, write.bytes()),
                    Err(_) => Counters::add(&counters.refused, 1),
                }
                let _ = reply.send(written.map(drop));
            }
            Self::Outcome { tag, reply } => {
                let _ = reply.send(worker.outcome(tag).await);
            }
            #[cfg(feature = "conformance")]
            Self::Sql { sql, reply } => {
                let _ = reply.send(worker.execute(sql).await);
            }
        }
    }
}

/// The callers' side. The worker ends when it is dropped, once what was asked for is done.
#[derive(Debug)]
pub(super) struct Jobs {
    sender: mpsc::Sender<Job>,
    counters: Arc<Counters>,
}

impl Jobs {
    pub fn new(counters: &Arc<Counters>) -> (Self, mpsc::Receiver<Job>) {
        let (sender, received) = mpsc::channel(MAX_JOBS);
        (Self { sender, counters: Arc::clone(counters) }, received)
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        Counters::add(&self.counters.loads, 1);
        let cluster = cluster.clone();
        self.ask(|reply| Job::Load { cluster, shard_count, reply }, ended()).await
    }

    pub async fn commit(&self, write: &Write) -> Result<(), Error> {
        write.check()?;
        let write = Box::new(write.clone());
        let lost = Error::Unknown("the store's worker ended during the write".into());
        self.ask(|reply| Job::Commit { write, reply }, lost).await
    }

    pub async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        Counters::add(&self.counters.outcomes, 1);
        self.ask(|reply| Job::Outcome { tag, reply }, ended()).await
    }

    #[cfg(feature = "conformance")]
    pub async fn execute(&self, sql: &str) -> Result<(), Error> {
        self.ask(|reply| Job::Sql { sql: sql.to_owned(), reply }, ended()).await
    }

    /// Asks the worker for `job`; `lost` is the answer if it ends without one.
    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job, lost: Error) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        if self.sender.send(job(reply)).await.is_err() {
            // Never begun.
            return Err(ended());
        }
        answer.await.unwrap_or(Err(lost))
    }
}

/// What whoever opens a store is told when its worker ended before it said anything, and everybody after its end.
pub(super) fn ended() -> Error {
    Error::Unavailable("the store's worker has ended".into())
}
