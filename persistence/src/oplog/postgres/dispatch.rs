//! The task that hands writes out: it collects calls of one kind and of different agents, and gives each batch to a session.
//!
//! An agent's calls keep their order: it has at most one in any batch that is under way. A call whose record another transaction has (a commit
//! that the server holds, a predecessor's last write) waits here and not in the server, so that it holds nobody else up.

use super::error::{Outcome, of_write, unwritten};
use super::rows::{self, Broken, Done, Kind, Manner, Standing, at_oplog};
use super::sessions::Sessions;
use super::{Counters, Settings};
use crate::cluster::postgres::error::Failed;
use crate::oplog::call::Call;
use crate::oplog::{Claimed, EntryIndex, Error, key_taken};
use leasehold_model::AgentId;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Calls in one statement.
const MAX_BATCH_CALLS: usize = 512;

/// Calls that another session is begun with while one could carry them all.
const WORTH_A_SESSION: usize = 64;

/// Bytes of entries in one statement, once it has a call.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Calls that the task has taken from the queue; the others wait in it.
const MAX_WAITING: usize = 4 * MAX_BATCH_CALLS;

/// How soon a call whose record was locked is tried again.
const TRY_LOCKED_AFTER: Duration = Duration::from_millis(25);

/// Rounds of removing a deleted life's entries: as many as 2^32 entries need.
const MAX_PURGES: usize = 1 << 20;

pub(super) struct Job {
    pub call: Call,
    pub answer: oneshot::Sender<Result<Claimed, Error>>,
    /// Since when its record is somebody else's.
    locked: Option<Instant>,
    not_before: Option<Instant>,
}

impl Job {
    pub fn new(call: Call, answer: oneshot::Sender<Result<Claimed, Error>>) -> Self {
        Self { call, answer, locked: None, not_before: None }
    }

    /// A caller that is gone took its interest along; what was written stays written.
    fn answer(self, outcome: Result<Claimed, Error>) {
        drop(self.answer.send(outcome));
    }
}

/// What the batches share.
pub(super) struct Carrier {
    pub sessions: Sessions,
    pub cluster: i32,
    pub counters: Arc<Counters>,
}

/// What a batch leaves: the agents that it no longer holds up, and calls to be tried again.
type Left = (Vec<AgentId>, Vec<Job>);

/// Serves until every handle is gone and what they sent is answered.
pub(super) async fn run(carrier: Arc<Carrier>, mut jobs: mpsc::Receiver<Job>) {
    let slots = carrier.settings().writers;
    let (mut waiting, mut busy) = (VecDeque::new(), HashSet::new());
    let mut under_way = JoinSet::<Left>::new();
    let mut open = true;
    while open || !waiting.is_empty() || !under_way.is_empty() {
        while under_way.len() < slots {
            let batch = next_batch(&mut waiting, &mut busy, slots - under_way.len());
            if batch.is_empty() {
                break;
            }
            under_way.spawn(Arc::clone(&carrier).carry(batch));
        }
        let later = waiting.iter().filter_map(|job: &Job| job.not_before).min();
        tokio::select! {
            job = jobs.recv(), if open && waiting.len() < MAX_WAITING => match job {
                Some(job) => {
                    waiting.push_back(job);
                    // Callers that were answered together come back together: let them all get in.
                    tokio::task::yield_now().await;
                    while let Some(job) = (waiting.len() < MAX_WAITING).then(|| jobs.try_recv().ok()).flatten() {
                        waiting.push_back(job);
                    }
                }
                None => open = false,
            },
            Some(left) = under_way.join_next(), if !under_way.is_empty() => {
                // A batch that panicked keeps its agents: nothing is known of it.
                let (agents, again) = left.unwrap_or_default();
                for agent in agents {
                    busy.remove(&agent);
                }
                again.into_iter().rev().for_each(|job| waiting.push_front(job));
            }
            () = sleep_until(later.unwrap_or_else(Instant::now)), if later.is_some() && under_way.len() < slots => {}
        }
    }
    carrier.sessions.close().await;
}

/// Takes the first call that may be carried out, and those that may go with it: not all, if there are many and other sessions are free.
fn next_batch(waiting: &mut VecDeque<Job>, busy: &mut HashSet<AgentId>, free_sessions: usize) -> Vec<Job> {
    let most = (waiting.len() / free_sessions.max(1)).clamp(WORTH_A_SESSION, MAX_BATCH_CALLS);
    let (mut batch, mut later) = (Vec::new(), VecDeque::new());
    let mut blocked = HashSet::new();
    let (mut kind, mut bytes) = (None, 0);
    let now = Instant::now();
    for mut job in std::mem::take(waiting) {
        let size = job.call.bytes();
        let free = !busy.contains(job.call.agent()) && !blocked.contains(job.call.agent());
        let due = job.not_before.is_none_or(|at| at <= now);
        let fits = batch.is_empty() || (batch.len() < most && bytes + size <= MAX_BATCH_BYTES);
        if free && due && fits && *kind.get_or_insert(Kind::of(&job.call)) == Kind::of(&job.call) {
            bytes += size;
            blocked.insert(job.call.agent().clone());
            job.not_before = None;
            batch.push(job);
        } else {
            // A call left for later still blocks those of its agent behind it.
            blocked.insert(job.call.agent().clone());
            later.push_back(job);
        }
    }
    *waiting = later;
    // In one order everywhere, so that two processes that make records do not wait for each other in a circle.
    batch.sort_by(|one, other| one.call.agent().cmp(other.call.agent()));
    busy.extend(batch.iter().map(|job| job.call.agent().clone()));
    batch
}

/// How a round on one session ended for the calls that are not answered yet.
enum Round {
    /// Their records are somebody else's.
    Locked(Vec<Job>),
    /// Nothing was written; each by itself says whose fault it is.
    Apart(Vec<Job>),
    /// Nothing was written, because somebody has one of the records.
    Around(Vec<Job>),
}

impl Carrier {
    pub fn settings(&self) -> &Settings {
        &self.sessions.server.settings
    }

    fn place(&self) -> &str {
        &self.sessions.server.place
    }

    async fn carry(self: Arc<Self>, batch: Vec<Job>) -> Left {
        let agents = batch.iter().map(|job| job.call.agent().clone()).collect();
        let direct = if self.settings().unfenced { Manner::Unfenced } else { Manner::Direct };
        let mut locked = Vec::new();
        let mut round = self.round(batch, direct).await;
        if let Round::Around(batch) = round {
            round = self.round(batch, Manner::Around).await;
        }
        match round {
            Round::Locked(jobs) | Round::Around(jobs) => locked.extend(jobs),
            Round::Apart(jobs) => {
                for job in jobs {
                    let round = self.round(vec![job], Manner::Around).await;
                    let (Round::Locked(jobs) | Round::Apart(jobs) | Round::Around(jobs)) = round;
                    locked.extend(jobs);
                }
            }
        }
        (agents, locked.into_iter().filter_map(|job| self.again(job)).collect())
    }

    /// Tries a locked call again after a while, unless that was long enough.
    fn again(&self, mut job: Job) -> Option<Job> {
        let now = Instant::now();
        let patience = self.settings().lock_timeout;
        if now.duration_since(*job.locked.get_or_insert(now)) < patience {
            job.not_before = Some(now + TRY_LOCKED_AFTER);
            return Some(job);
        }
        let place = at_oplog(self.place(), job.call.agent());
        let what = format!(
            "{place}: another session has had its record, or the table, locked for {patience:?}; its transaction has not ended"
        );
        job.answer(Err(Error::Unavailable(what)));
        None
    }

    /// Carries a batch out with one statement, and answers whom it can.
    async fn round(&self, batch: Vec<Job>, manner: Manner) -> Round {
        let mut lent = match self.sessions.lend().await {
            Ok(lent) => lent,
            Err(error) => {
                batch.into_iter().for_each(|job| job.answer(Err(error.clone())));
                return Round::Locked(Vec::new());
            }
        };
        let Some(kind) = batch.first().map(|job| Kind::of(&job.call)) else { return Round::Locked(batch) };
        if let (Kind::Append, Some(gate)) = (kind, &self.settings().hold) {
            gate.pass().await;
        }
        let calls: Vec<_> = batch.iter().map(|job| &job.call).collect();
        let write = rows::write(&mut lent.session.connection, self.cluster, (kind, manner), &calls);
        let written = self.sessions.server.bounded(write).await;
        let failed = match written {
            Ok(done) => {
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                let mut refused = Vec::new();
                for (job, done) in batch.into_iter().zip(done) {
                    match done {
                        Some(done) => self.done(&mut lent, job, done).await,
                        None => refused.push(job),
                    }
                }
                return Round::Locked(self.judge(lent, refused).await);
            }
            Err(failed) => failed,
        };
        match of_write(self.place(), &failed) {
            Outcome::KeyTaken | Outcome::OneOfThem(_) if batch.len() > 1 => {
                let _ = self.sessions.give_back(lent, &Err::<(), _>(failed));
                Round::Apart(batch)
            }
            Outcome::KeyTaken => Round::Locked(self.find_taken(lent, batch).await),
            Outcome::Locked => {
                let _ = self.sessions.give_back(lent, &Err::<(), _>(failed));
                if kind == Kind::Append && manner == Manner::Direct {
                    Round::Around(batch)
                } else {
                    Round::Locked(batch)
                }
            }
            Outcome::OneOfThem(error) => {
                let _ = self.sessions.give_back(lent, &Err::<(), _>(failed));
                batch.into_iter().for_each(|job| job.answer(Err(error.clone())));
                Round::Locked(Vec::new())
            }
            Outcome::Unknown(error) => {
                if let Some(lost) = self.sessions.give_back(lent, &Err::<(), _>(failed)) {
                    self.sessions.bury(&lost).await;
                }
                batch.into_iter().for_each(|job| job.answer(Err(error.clone())));
                Round::Locked(Vec::new())
            }
        }
    }

    /// Answers a call that was carried out, and finishes a deletion (F5). What stays of it is invisible, and removed by the next claim.
    async fn done(&self, lent: &mut super::sessions::Lent, job: Job, done: Done) {
        if let (Some(oplog), Call::Claim { .. } | Call::Delete { .. }) = (done.leftovers, &job.call) {
            for _ in 0..MAX_PURGES {
                match self.sessions.server.bounded(rows::purge(&mut lent.session.connection, oplog)).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(failed) => {
                        tracing::warn!(oplog, %failed, "entries of a deleted oplog stay for now");
                        break;
                    }
                }
            }
        }
        job.answer(Ok(done.claimed));
    }

    /// Says of calls that were not carried out why; returns those that only somebody's lock can have stopped.
    async fn judge(&self, mut lent: super::sessions::Lent, refused: Vec<Job>) -> Vec<Job> {
        if refused.is_empty() {
            let _ = self.sessions.give_back(lent, &Ok(()));
            return refused;
        }
        let agents: Vec<_> = refused.iter().map(|job| job.call.agent()).collect();
        let asked = self.sessions.server.bounded(async {
            match rows::standing(&mut lent.session.connection, (self.cluster, self.place()), &agents).await {
                Ok(found) => Ok(Ok(found)),
                Err(Broken::Corrupt(error)) => Ok(Err(error)),
                Err(Broken::Sql(error)) => Err(error),
            }
        });
        let asked = asked.await;
        let _ = self.sessions.give_back(lent, &asked);
        let found = asked.map_err(|failed| unwritten(self.place(), &failed)).and_then(|found| found);
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                refused.into_iter().for_each(|job| job.answer(Err(error.clone())));
                return Vec::new();
            }
        };
        let mut locked = Vec::new();
        for (job, standing) in refused.into_iter().zip(found) {
            match verdict(&job.call, standing) {
                Some(error) => job.answer(Err(error)),
                None => locked.push(job),
            }
        }
        locked
    }

    /// A unique value was there already: says which key, or removes what a deleted life left in its way.
    async fn find_taken(&self, mut lent: super::sessions::Lent, batch: Vec<Job>) -> Vec<Job> {
        let mut locked = Vec::new();
        for job in batch {
            let Call::Append(append) = &job.call else {
                locked.push(job);
                continue;
            };
            let asked = self.sessions.server.bounded(async {
                let agents = [&append.agent];
                let connection = &mut lent.session.connection;
                let standing = match rows::standing(connection, (self.cluster, self.place()), &agents).await {
                    Ok(found) => found.first().copied().flatten(),
                    Err(Broken::Corrupt(_)) => None,
                    Err(Broken::Sql(error)) => return Err(error),
                };
                let Some(Standing { oplog, .. }) = standing else { return Ok(None) };
                let taken = rows::taken_key(connection, oplog, append).await?;
                if taken.is_none() {
                    rows::purge(connection, oplog).await?;
                }
                Ok(taken)
            });
            match asked.await {
                Ok(Some(key)) => job.answer(Err(key_taken(&key))),
                Ok(None) => locked.push(job),
                Err(failed) => {
                    let error = unwritten(self.place(), &failed);
                    job.answer(Err(error));
                    let _ = self.sessions.give_back(lent, &Err::<(), Failed>(failed));
                    return locked;
                }
            }
        }
        let _ = self.sessions.give_back(lent, &Ok(()));
        locked
    }
}

/// Why the call was not carried out, as its record stands; `None` when it would be now.
fn verdict(call: &Call, standing: Option<Standing>) -> Option<Error> {
    let (offered, fenced) = match call {
        Call::Claim { writer, .. } => {
            let higher = |recorded: &Standing| recorded.writer.epoch > writer.epoch;
            let other = |recorded: &Standing| recorded.writer.epoch == writer.epoch && recorded.writer != *writer;
            let stands = standing.filter(|recorded| higher(recorded) || other(recorded))?;
            return Some(Error::Fenced { recorded: Some(stands.writer), offered: *writer });
        }
        Call::Append(append) => (append.writer, true),
        Call::Suspend { writer, .. } => (*writer, true),
        Call::MoveOut { writer, .. } => (*writer, true),
        Call::Delete { writer, .. } => (*writer, false),
    };
    let Some(standing) = standing else { return Some(Error::Fenced { recorded: None, offered }) };
    if standing.writer != offered {
        return Some(Error::Fenced { recorded: Some(standing.writer), offered });
    }
    if standing.deleted && fenced {
        return Some(Error::Fenced { recorded: None, offered });
    }
    match call {
        Call::Append(append) if append.expected != standing.next => {
            Some(Error::IndexConflict { expected: append.expected, found: standing.next })
        }
        Call::Delete { expected, .. } if !standing.deleted && *expected != standing.next => {
            Some(Error::IndexConflict { expected: *expected, found: standing.next })
        }
        Call::MoveOut { chunk, .. } if chunk.first != standing.primary_from => {
            Some(Error::IndexConflict { expected: chunk.first, found: standing.primary_from })
        }
        Call::MoveOut { chunk, .. } if chunk.last >= standing.next => {
            Some(Error::IndexConflict { expected: EntryIndex(chunk.last.0.saturating_add(1)), found: standing.next })
        }
        Call::Append(_) | Call::Claim { .. } | Call::Delete { .. } | Call::Suspend { .. } | Call::MoveOut { .. } => {
            None
        }
    }
}
