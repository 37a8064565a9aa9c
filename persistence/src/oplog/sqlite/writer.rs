//! The one task of a process that writes: it collects calls of all agents and carries them in one transaction.
//!
//! A batch holds at most one call per agent, so its calls cannot depend on each other; an agent's calls keep their order.

use super::generation::{BUSY_TIMEOUT, Directory, Held, LONGEST_LOOK, classify, is_busy};
use super::rows::{Addressed, Claim, Rows};
use super::{Counters, Point};
use crate::oplog::call::Call;
use crate::oplog::layers::Chunk;
use crate::oplog::{Append, Claimed, EntryIndex, Error, Writer};
use leasehold_model::{AgentId, ExecutorId};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Calls in one transaction.
const MAX_BATCH_CALLS: usize = 512;

/// Bytes of entries in one transaction, once it has a call.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Agents whose oplog's number is remembered; then all are forgotten and looked up again.
const MAX_KNOWN: usize = 100_000;

/// A success: claims say all of it, appends the next index, the others nothing.
const DONE: Claimed = Claimed { next: EntryIndex(0), snapshot: None };

pub(super) struct Job {
    pub call: Call,
    pub answer: oneshot::Sender<Result<Claimed, Error>>,
}

/// A job in a batch, with what became of it in the last transaction.
struct Pending {
    job: Job,
    outcome: Option<Result<Claimed, Error>>,
    /// It was committed to a generation that then turned out not to be current: it may have been copied into the next.
    doubtful: bool,
}

/// An open generation, and numbers that were committed in it.
struct Link {
    held: Held,
    place: String,
    connection: SqliteConnection,
    writers: HashMap<ExecutorId, i64>,
    oplogs: HashMap<AgentId, i64>,
    /// Seen or made by the running transaction: kept only if it commits.
    fresh_writers: HashMap<ExecutorId, i64>,
    fresh_oplogs: Vec<(AgentId, i64)>,
}

enum Round {
    Committed(Vec<i64>),
    /// The generation changed, or has to: from the beginning.
    Again,
    /// The store could not be had: nothing of this round was written.
    Refused(Error),
    /// A statement failed: nothing of this round was written.
    Failed(Error),
    /// The commit itself failed.
    Ambiguous(String),
}

/// A batch of which nothing was written, and why.
struct Refusal {
    batch: Vec<Pending>,
    error: Error,
    /// Then it may lie with one of the calls (disk full under a large one).
    by_a_statement: bool,
}

enum Begun {
    Yes,
    Superseded,
    Frozen,
    No(Error),
}

pub(super) struct WriterTask {
    directory: Directory,
    counters: Arc<Counters>,
    link: Option<Link>,
    waiting: VecDeque<Job>,
}

impl WriterTask {
    pub(super) fn new(directory: Directory, counters: Arc<Counters>) -> Self {
        Self { directory, counters, link: None, waiting: VecDeque::new() }
    }

    /// Opens the current generation, so that an unusable store is noticed when it is opened.
    pub(super) async fn open(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + self.directory.settings.give_up_after;
        self.connect(deadline).await.map(|_| ())
    }

    /// Serves until every handle is gone and what they sent is answered.
    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            if self.waiting.is_empty() {
                let Some(job) = jobs.recv().await else { break };
                self.waiting.push_back(job);
                // Callers that were answered together come back together: let them all get in.
                tokio::task::yield_now().await;
            }
            while self.waiting.len() < 2 * MAX_BATCH_CALLS {
                let Ok(job) = jobs.try_recv() else { break };
                self.waiting.push_back(job);
            }
            let batch = self.next_batch();
            self.carry(batch).await;
        }
        if let Some(link) = self.link.take() {
            drop(link.connection.close().await);
        }
    }

    fn next_batch(&mut self) -> Vec<Pending> {
        let (mut batch, mut agents, mut bytes) = (Vec::new(), HashSet::new(), 0);
        let mut later = VecDeque::new();
        while let Some(job) = self.waiting.pop_front() {
            let size = job.call.bytes();
            let fits = batch.is_empty() || (batch.len() < MAX_BATCH_CALLS && bytes + size <= MAX_BATCH_BYTES);
            // A call left for later still blocks those of its agent behind it.
            if agents.insert(job.call.agent().clone()) && fits {
                bytes += size;
                batch.push(Pending { job, outcome: None, doubtful: false });
            } else {
                later.push_back(job);
            }
        }
        self.waiting = later;
        batch
    }

    /// One transaction for all; if that fails for a reason that may lie with one of them, one for each.
    async fn carry(&mut self, batch: Vec<Pending>) {
        let Err(Refusal { batch, error, by_a_statement }) = self.commit(batch).await else { return };
        if batch.len() == 1 || !by_a_statement {
            return batch.into_iter().for_each(|pending| refuse(pending, &error));
        }
        for pending in batch {
            if let Err(Refusal { batch, error, .. }) = self.commit(vec![pending]).await {
                batch.into_iter().for_each(|pending| refuse(pending, &error));
            }
        }
    }

    /// Answers everybody, or returns them with why nothing was written.
    async fn commit(&mut self, mut batch: Vec<Pending>) -> Result<(), Refusal> {
        let deadline = Instant::now() + self.directory.settings.give_up_after;
        loop {
            match self.round(&mut batch, deadline).await {
                Round::Committed(deleted) => {
                    self.purge(deleted).await;
                    batch.into_iter().for_each(answer);
                    return Ok(());
                }
                Round::Again => {}
                Round::Refused(error) => return Err(Refusal { batch, error, by_a_statement: false }),
                Round::Failed(error) => return Err(Refusal { batch, error, by_a_statement: true }),
                Round::Ambiguous(what) => {
                    for pending in batch {
                        drop(pending.job.answer.send(Err(Error::Unknown(what.clone()))));
                    }
                    return Ok(());
                }
            }
            if Instant::now() >= deadline {
                let what = format!("{}: generations did not settle in time", self.directory.path.display());
                return Err(Refusal { batch, error: Error::Unavailable(what), by_a_statement: false });
            }
        }
    }

    async fn round(&mut self, batch: &mut [Pending], deadline: Instant) -> Round {
        if let Err(error) = self.connect(deadline).await {
            return Round::Refused(error);
        }
        match self.begin(deadline).await {
            Begun::Yes => {}
            Begun::Superseded => {
                self.leave().await;
                return Round::Again;
            }
            Begun::Frozen => {
                tracing::warn!(path = %self.directory.path.display(), "the holder of the oplog store's lock is frozen, it is stepped around");
                let stepped = self.directory.step().await;
                self.leave().await;
                return stepped.map_or_else(Round::Refused, |()| Round::Again);
            }
            Begun::No(error) => {
                self.leave().await;
                return Round::Refused(error);
            }
        }
        let deleted = match self.apply(batch).await {
            Ok(deleted) => deleted,
            Err(error) => {
                self.roll_back().await;
                return Round::Failed(error);
            }
        };
        self.directory.settings.at(Point::Written).await;
        self.finish(batch, deleted).await
    }

    /// Commits, and finds out whether that counts.
    async fn finish(&mut self, batch: &mut [Pending], deleted: Vec<i64>) -> Round {
        let Some(link) = self.link.as_mut() else { return Round::Again };
        let number = link.held.number;
        if let Err(e) = sqlx::query("COMMIT").execute(&mut link.connection).await {
            let what = format!("{}: commit: {e}", link.place);
            self.leave().await;
            return Round::Ambiguous(what);
        }
        link.keep();
        self.directory.settings.at(Point::Committed).await;
        match self.directory.superseded(number) {
            Ok(false) => {
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                Round::Committed(deleted)
            }
            Ok(true) => {
                for pending in batch {
                    pending.doubtful |= matches!(pending.outcome, Some(Ok(_)));
                }
                self.leave().await;
                Round::Again
            }
            Err(error) => Round::Ambiguous(error.to_string()),
        }
    }

    async fn connect(&mut self, deadline: Instant) -> Result<(), Error> {
        if self.link.is_some() {
            return Ok(());
        }
        let held = self.directory.settled(deadline).await?;
        let number = held.number;
        let mut connection = self.directory.connect(number).await?;
        self.directory.migrate(number, &mut connection).await?;
        self.directory.settle()?;
        let place = self.directory.database(number).display().to_string();
        self.link = Some(Link {
            held,
            place,
            connection,
            writers: HashMap::new(),
            oplogs: HashMap::new(),
            fresh_writers: HashMap::new(),
            fresh_oplogs: Vec::new(),
        });
        self.directory.clean(number);
        Ok(())
    }

    async fn leave(&mut self) {
        if let Some(link) = self.link.take() {
            // An open transaction is rolled back by closing.
            drop(link.connection.close().await);
        }
    }

    async fn roll_back(&mut self) {
        let Some(link) = self.link.as_mut() else { return };
        link.fresh_writers.clear();
        link.fresh_oplogs.clear();
        // SQLite may have rolled back by itself (disk full); then the connection is not worth trusting.
        if sqlx::query("ROLLBACK").execute(&mut link.connection).await.is_err() {
            self.leave().await;
            let deadline = Instant::now() + self.directory.settings.give_up_after;
            drop(self.connect(deadline).await);
        }
    }

    /// Takes the write lock. Frozen: it was held, and no commit by anybody was seen, for `step_around_after`.
    async fn begin(&mut self, deadline: Instant) -> Begun {
        let Some(link) = self.link.as_mut() else { return Begun::Superseded };
        let mut seen = None;
        let mut stuck = Duration::ZERO;
        let mut looked = Instant::now();
        loop {
            match sqlx::query("BEGIN IMMEDIATE").execute(&mut link.connection).await {
                Ok(_) => return Begun::Yes,
                Err(e) if is_busy(&e) => {}
                Err(e) => return Begun::No(classify(&link.place, &e)),
            }
            match self.directory.superseded(link.held.number) {
                Ok(false) => {}
                Ok(true) => return Begun::Superseded,
                Err(error) => return Begun::No(error),
            }
            let version = sqlx::query("PRAGMA data_version").fetch_one(&mut link.connection).await;
            let version = version.ok().and_then(|row| row.try_get::<i64, _>(0).ok());
            stuck += looked.elapsed().min(LONGEST_LOOK);
            looked = Instant::now();
            if seen != version {
                seen = version;
                stuck = Duration::ZERO;
            }
            if stuck >= self.directory.settings.step_around_after {
                return Begun::Frozen;
            }
            if Instant::now() >= deadline {
                return Begun::No(Error::Unavailable(format!("{}: locked by another process", link.place)));
            }
            // SQLite has waited inside the call already; a shorter pause lets others of this process run.
            tokio::time::sleep(BUSY_TIMEOUT / 20).await;
        }
    }

    /// Every call's outcome under the running transaction; returns the oplogs that were deleted.
    async fn apply(&mut self, batch: &mut [Pending]) -> Result<Vec<i64>, Error> {
        let fenced = !self.directory.settings.unfenced;
        let Some(link) = self.link.as_mut() else { return Ok(Vec::new()) };
        let mut deleted = Vec::new();
        let (mut claims, mut appends) = (Vec::new(), Vec::new());
        for (at, pending) in batch.iter_mut().enumerate() {
            let outcome = match &pending.job.call {
                Call::Append(append) => {
                    pending.outcome = if pending.doubtful { link.copied(append).await? } else { None };
                    if pending.outcome.is_none() {
                        pending.doubtful = false;
                        appends.push((
                            at,
                            link.oplog(&append.agent).await?,
                            link.writer(append.writer.executor).await?,
                        ));
                    }
                    continue;
                }
                Call::Claim { writer, .. } => {
                    claims.push((at, link.claimant(writer.executor).await?));
                    continue;
                }
                Call::Delete { agent, writer, expected } => {
                    let outcome = link.delete(agent, *writer, *expected).await;
                    outcome.map(|oplog| {
                        deleted.push(oplog);
                        DONE
                    })
                }
                Call::Suspend { agent, writer } => link.suspend(agent, *writer).await,
                Call::MoveOut { agent, writer, chunk } => link.move_out(agent, *writer, chunk).await,
            };
            pending.outcome = Some(individual(outcome)?);
        }
        let claimed: Vec<_> = claims
            .iter()
            .filter_map(|(at, id)| match &batch.get(*at)?.job.call {
                Call::Claim { agent, shard, writer } => {
                    Some(Claim { agent, shard: *shard, offered: *writer, writer: *id })
                }
                Call::Append(_) | Call::Delete { .. } | Call::Suspend { .. } | Call::MoveOut { .. } => None,
            })
            .collect();
        let outcomes = link.claim(&claimed).await?;
        for ((at, _), outcome) in claims.into_iter().zip(outcomes) {
            if let Some(pending) = batch.get_mut(at) {
                pending.outcome = Some(individual(outcome)?);
            }
        }
        let addressed: Vec<_> = appends
            .iter()
            .filter_map(|(at, oplog, writer)| match &batch.get(*at)?.job.call {
                Call::Append(append) => Some(Addressed { append, oplog: *oplog, writer: *writer }),
                Call::Claim { .. } | Call::Delete { .. } | Call::Suspend { .. } | Call::MoveOut { .. } => None,
            })
            .collect();
        let outcomes = link.rows().append(&addressed, fenced).await?;
        for ((at, ..), outcome) in appends.into_iter().zip(outcomes) {
            if let Some(pending) = batch.get_mut(at) {
                pending.outcome = Some(outcome.map(|next| Claimed { next, snapshot: None }));
            }
        }
        Ok(deleted)
    }

    /// Best effort, after the deletion is durable: what stays is invisible, and removed by the next claim or deletion.
    async fn purge(&mut self, deleted: Vec<i64>) {
        let deadline = Instant::now() + self.directory.settings.give_up_after;
        for oplog in deleted {
            // At most as many rounds as 2^32 entries need.
            for _ in 0..1 << 20 {
                match self.purge_some(oplog, deadline).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        tracing::warn!(oplog, %error, "entries of a deleted oplog stay for now");
                        return;
                    }
                }
            }
        }
    }

    async fn purge_some(&mut self, oplog: i64, deadline: Instant) -> Result<bool, Error> {
        match self.begin(deadline).await {
            Begun::Yes => {}
            Begun::Superseded | Begun::Frozen => return Ok(false),
            Begun::No(error) => return Err(error),
        }
        let Some(link) = self.link.as_mut() else { return Ok(false) };
        let purged = link.rows().purge(oplog).await;
        let end = if purged.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = sqlx::query(end).execute(&mut link.connection).await;
        if let Err(e) = ended {
            let error = classify(&link.place, &e);
            self.leave().await;
            return Err(error);
        }
        purged
    }
}

/// Refusals belong to one call; anything else ends the transaction.
fn individual(outcome: Result<Claimed, Error>) -> Result<Result<Claimed, Error>, Error> {
    match outcome {
        Ok(_) | Err(Error::Fenced { .. } | Error::IndexConflict { .. } | Error::Invalid(_) | Error::Corrupt { .. }) => {
            Ok(outcome)
        }
        Err(error @ (Error::Unavailable(_) | Error::Unknown(_))) => Err(error),
    }
}

/// A caller that is gone took its interest along; what was written stays written.
fn answer(pending: Pending) {
    let outcome = pending.outcome.unwrap_or_else(|| Err(Error::Unknown("the call was not carried out".into())));
    drop(pending.job.answer.send(outcome));
}

fn refuse(pending: Pending, error: &Error) {
    let error = match (error, pending.doubtful) {
        (Error::Unavailable(what), true) => {
            Error::Unknown(format!("written while the generation changed, and not found out since: {what}"))
        }
        (error, _) => error.clone(),
    };
    drop(pending.job.answer.send(Err(error)));
}

impl Link {
    fn rows(&mut self) -> Rows<'_> {
        Rows { link: &mut self.connection, place: &self.place }
    }

    /// What the transaction learnt is committed now.
    fn keep(&mut self) {
        if self.oplogs.len() >= MAX_KNOWN {
            self.oplogs.clear();
        }
        self.writers.extend(self.fresh_writers.drain());
        self.oplogs.extend(self.fresh_oplogs.drain(..));
    }

    /// The number of `executor`; -1, which no row has, if it never claimed anything.
    async fn writer(&mut self, executor: ExecutorId) -> Result<i64, Error> {
        let known = self.writers.get(&executor).or_else(|| self.fresh_writers.get(&executor));
        if let Some(id) = known {
            return Ok(*id);
        }
        let Some(id) = self.rows().writer(executor, false).await? else { return Ok(-1) };
        self.fresh_writers.insert(executor, id);
        Ok(id)
    }

    /// The number of `agent`'s oplog; -1 if it has none.
    async fn oplog(&mut self, agent: &AgentId) -> Result<i64, Error> {
        if let Some(id) = self.oplogs.get(agent) {
            return Ok(*id);
        }
        let Some(id) = self.rows().oplog(agent).await? else { return Ok(-1) };
        self.fresh_oplogs.push((agent.clone(), id));
        Ok(id)
    }

    /// The number of `executor`, which has one from now on.
    async fn claimant(&mut self, executor: ExecutorId) -> Result<i64, Error> {
        let mut id = self.writer(executor).await?;
        if id < 0 {
            id = self.rows().writer(executor, true).await?.unwrap_or(-1);
            self.fresh_writers.insert(executor, id);
        }
        Ok(id)
    }

    async fn claim(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Result<Claimed, Error>>, Error> {
        let outcomes = self.rows().claim(claims).await?;
        let kept = outcomes.into_iter().zip(claims).map(|(outcome, claim)| {
            outcome.map(|(claimed, oplog)| {
                self.fresh_oplogs.push((claim.agent.clone(), oplog));
                claimed
            })
        });
        Ok(kept.collect())
    }

    /// Returns the oplog's number, for the purge.
    async fn delete(&mut self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<i64, Error> {
        let id = self.writer(writer.executor).await?;
        self.rows().delete(agent, (writer, id), expected).await
    }

    /// What became of an append that was committed to a generation that was not current any more; `None`: it is not in this one.
    async fn copied(&mut self, append: &Append) -> Result<Option<Result<Claimed, Error>>, Error> {
        if self.rows().archived(append).await? {
            let agent = append.agent.as_str();
            let what = format!("entries of {agent} were archived while the generation changed: read them back");
            return Ok(Some(Err(Error::Unknown(format!("{}: {what}", self.place)))));
        }
        let held = self.rows().holds(append).await?;
        Ok(held.then(|| Ok(Claimed { next: append.end(), snapshot: None })))
    }

    async fn suspend(&mut self, agent: &AgentId, writer: Writer) -> Result<Claimed, Error> {
        let id = self.writer(writer.executor).await?;
        self.rows().suspend(agent, writer, id).await?;
        Ok(DONE)
    }

    async fn move_out(&mut self, agent: &AgentId, writer: Writer, chunk: &Chunk) -> Result<Claimed, Error> {
        let id = self.writer(writer.executor).await?;
        self.rows().move_out(agent, (writer, id), chunk).await?;
        Ok(DONE)
    }
}
