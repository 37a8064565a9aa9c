//! `Persistence`: owns the committed state; all writes, one compare-and-swap at a time, grouped.
//!
//! Spawned by [`super::start`], one per leadership. While one write is in flight, commands collect; the next write
//! carries all of them in arrival order, and waits a moment for those that the last one's answers will bring. Everyone is answered after their write is known. A write whose outcome is
//! unknown is looked up by its tag, never guessed. Who is written together and who is told what is decided by
//! [`leasehold_model::commits`]. It does not limp on: when the store turns out to be somebody
//! else's, or an outcome cannot be learnt within the patience, it answers `Lost` to everybody from then on and the
//! leadership ends. Its queue is bounded by what the `Leader` sends: one batch per waiting request or pass.

use super::metrics::ManagerMetrics;
use crate::planted::{self, Bug};
use actix::prelude::*;
use leasehold_model::command::{Changes, Command};
use leasehold_model::commits::{Begun, Commits, Ended, Said, WriteEnd, looked_up};
use leasehold_model::leader::{BatchId, CommitFailure, Committed, Confirmation};
use leasehold_model::state::ClusterState;
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{Class, Error, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Write these as one unit; answered by [`CommitEnded`].
#[derive(Message)]
#[rtype(result = "()")]
pub struct Commit {
    /// Names the batch in the answer.
    pub batch: BatchId,
    /// In order.
    pub commands: Vec<Command>,
    /// Who is answered. Answers keep the order of the writes.
    pub to: Recipient<CommitEnded>,
}

/// A batch's end.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CommitEnded {
    /// Which.
    pub batch: BatchId,
    /// How.
    pub result: Result<Committed, CommitFailure>,
}

/// R7: check, from now on, that this process still owns the store.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ConfirmLeadership {
    /// Who is answered.
    pub to: Recipient<Confirmed>,
}

/// The answer to [`ConfirmLeadership`].
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Confirmed(pub Confirmation);

/// Forget history up to here; a failure is logged and delays nothing.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Compact(pub leasehold_model::Revision);

/// Answered when no write is in flight or waiting: the process may exit without leaving an outcome unknown.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Quiesce;

/// To itself, behind what has arrived by now.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Gathered;

/// To itself: company was waited for long enough.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct WaitedEnough;

/// The actor; see the module.
pub struct Persistence {
    store: Arc<dyn ClusterStore>,
    commits: Commits<Recipient<CommitEnded>>,
    patience: Duration,
    /// When the last write ended.
    ended: Instant,
    /// [`Gathered`] is under way.
    gathering: bool,
    /// [`WaitedEnough`] is under way.
    waits: bool,
    idle: tokio::sync::watch::Sender<bool>,
    metrics: ManagerMetrics,
}

impl Persistence {
    /// Writes to `store`, which is at `committed`. `patience` bounds a write with its look-ups, and a confirmation with its retries.
    #[must_use]
    pub fn new(
        store: Arc<dyn ClusterStore>,
        committed: Arc<ClusterState>,
        patience: Duration,
        metrics: ManagerMetrics,
    ) -> Self {
        let idle = tokio::sync::watch::Sender::new(true);
        Self {
            store,
            commits: Commits::new(committed),
            patience,
            ended: Instant::now(),
            gathering: false,
            waits: false,
            idle,
            metrics,
        }
    }

    /// Lets in what has arrived by now, and who is expected, before the next write begins: who asked together is written together.
    fn gather(&mut self, ctx: &mut Context<Self>) {
        self.tell_whether_idle();
        if self.commits.in_flight() || self.commits.waiting() == 0 || self.gathering {
            return;
        }
        let wait = self.commits.worth_waiting(self.ended.elapsed());
        if wait.is_zero() {
            self.gathering = true;
            ctx.notify(Gathered);
        } else if !self.waits {
            self.waits = true;
            ctx.notify_later(WaitedEnough, wait);
        }
    }

    fn tell_whether_idle(&self) {
        self.idle.send_replace(!self.commits.in_flight() && self.commits.waiting() == 0);
    }

    /// Writes everything that waits.
    fn write_next(&mut self, ctx: &mut Context<Self>) {
        self.tell_whether_idle();
        let began = Instant::now();
        match self.commits.begin() {
            Begun::Nothing => {}
            Begun::Unchanged(ended) => self.answer(ended, began, ctx),
            Begun::Write(due) => {
                let commands = self.commits.commands();
                let changes = Changes::clone(&due.changes);
                let write = Write { tag: rand::random(), expected: due.expected, next: due.next, changes };
                let end = write_and_learn(Arc::clone(&self.store), write, self.patience);
                ctx.spawn(end.into_actor(self).map(move |end, actor, ctx| {
                    actor.measure(&end, commands, began);
                    let ended = actor.commits.end(&end);
                    actor.answer(ended, began, ctx);
                }));
            }
        }
    }

    fn measure(&self, end: &WriteEnd, commands: usize, began: Instant) {
        match end {
            WriteEnd::Applied => self.metrics.committed(commands, began.elapsed()),
            WriteEnd::Refused(why) => {
                self.metrics.commit_failed();
                let revision = self.commits.committed().revision.0;
                tracing::warn!(why, commands, revision, "the store did not take a write");
            }
            WriteEnd::Lost(_) => {}
        }
    }

    fn answer(&mut self, ended: Vec<Ended<Recipient<CommitEnded>>>, began: Instant, ctx: &mut Context<Self>) {
        self.ended = Instant::now();
        self.commits.expect(ended.len(), began.elapsed());
        tell_all(ended);
        self.gather(ctx);
    }
}

fn tell_all(ended: Vec<Ended<Recipient<CommitEnded>>>) {
    for Ended { to, batch, result } in ended {
        tell(&to, CommitEnded { batch, result });
    }
}

/// Answers are bounded by the questions, and a `Leader` that is gone needs none: capacity and closing do not matter here.
fn tell<M>(to: &Recipient<M>, message: M)
where
    M: Message<Result = ()> + Send + 'static,
{
    to.do_send(message);
}

/// What the store said, without the kind of error: whoever is told says that in its own words, and an outcome may be known by then.
fn evidence(error: Error) -> String {
    match error {
        Error::Unavailable(why) | Error::Unknown(why) => why,
        other @ (Error::Conflict { .. } | Error::NotOwner(_) | Error::Corrupt { .. } | Error::Incompatible(_)) => {
            other.to_string()
        }
    }
}

/// Writes, and where the answer is unknown looks it up by the write's tag until it is known or `patience` is over.
async fn write_and_learn(store: Arc<dyn ClusterStore>, write: Write, patience: Duration) -> WriteEnd {
    if planted::is(Bug::ToldBeforeStored) {
        tokio::spawn(async move { store.commit(&write).await });
        return WriteEnd::Applied;
    }
    let mut until = Instant::now() + patience;
    let unknown = match answered(&mut until, patience, store.commit(&write)).await.map(said) {
        Some(said) => match said.end() {
            Ok(end) => return end,
            Err(unknown) => unknown,
        },
        None => return WriteEnd::Lost(format!("a write was not answered within {patience:?}")),
    };
    tracing::warn!(why = unknown, revision = write.next.0, "outcome of a write unknown: looking it up");
    let look_up = retry(until, patience, || store.outcome(write.tag));
    looked_up(&unknown, look_up.await)
}

fn said(answer: Result<(), Error>) -> Said {
    match answer {
        Ok(()) => Said::Stored,
        Err(error) => match error.class() {
            Class::Retry => Said::NotStored(evidence(error)),
            Class::Fatal => Said::NotOurs(error.to_string()),
            Class::Unknown if planted::is(Bug::UnknownWriteIsFailed) => Said::NotStored(evidence(error)),
            Class::Unknown if planted::is(Bug::UnknownWriteIsStored) => Said::Stored,
            Class::Unknown => Said::Unknown(evidence(error)),
        },
    }
}

/// A timer that is this late was late because the process stood still.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Awaits `answer` until `until`. Time in which this process stood still was none in which to answer: then `until` moves, once.
async fn answered<F: Future>(until: &mut Instant, patience: Duration, answer: F) -> Option<F::Output> {
    let mut answer = std::pin::pin!(answer);
    if let Ok(answer) = timeout_at(*until, answer.as_mut()).await {
        return Some(answer);
    }
    if Instant::now().saturating_duration_since(*until) < STOOD_STILL {
        return None;
    }
    *until = Instant::now() + patience;
    timeout_at(*until, answer).await.ok()
}

/// Asks until there is an answer; a fatal error or the end of the time is the reason returned.
async fn retry<T, F>(mut until: Instant, patience: Duration, mut ask: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut pause = Duration::from_millis(20);
    loop {
        let why = match answered(&mut until, patience, ask()).await {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(error)) if error.class() == Class::Fatal => return Err(error.to_string()),
            Some(Err(error)) => error.to_string(),
            None => "no answer in time".to_owned(),
        };
        if Instant::now() + pause >= until {
            return Err(why);
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

impl Actor for Persistence {
    type Context = Context<Self>;
}

impl Handler<Commit> for Persistence {
    type Result = ();
    fn handle(&mut self, Commit { batch, commands, to }: Commit, ctx: &mut Self::Context) {
        tell_all(self.commits.add(batch, commands, to));
        self.gather(ctx);
    }
}

impl Handler<Gathered> for Persistence {
    type Result = ();
    fn handle(&mut self, _: Gathered, ctx: &mut Self::Context) {
        self.gathering = false;
        self.write_next(ctx);
    }
}

impl Handler<WaitedEnough> for Persistence {
    type Result = ();
    fn handle(&mut self, _: WaitedEnough, ctx: &mut Self::Context) {
        self.waits = false;
        self.gather(ctx);
    }
}

impl Handler<ConfirmLeadership> for Persistence {
    type Result = ();
    fn handle(&mut self, ConfirmLeadership { to }: ConfirmLeadership, ctx: &mut Self::Context) {
        if let Some(why) = self.commits.lost() {
            return tell(&to, Confirmed(Confirmation::Lost(why.to_owned())));
        }
        let store = Arc::clone(&self.store);
        let until = Instant::now() + self.patience;
        let patience = self.patience;
        let confirmed = async move { retry(until, patience, || store.confirm_leadership()).await };
        ctx.spawn(confirmed.into_actor(self).map(move |confirmed, actor, _| {
            actor.metrics.confirmed();
            let confirmation = match confirmed {
                Ok(()) => Confirmation::Leads,
                Err(why) => Confirmation::Lost(format!("leadership could not be confirmed: {why}")),
            };
            tell(&to, Confirmed(confirmation));
        }));
    }
}

impl Handler<Compact> for Persistence {
    type Result = ();
    fn handle(&mut self, Compact(upto): Compact, ctx: &mut Self::Context) {
        let store = Arc::clone(&self.store);
        let compacted = async move { store.compact(upto).await };
        ctx.spawn(compacted.into_actor(self).map(move |result, _, _| {
            if let Err(error) = result {
                tracing::warn!(%error, upto = upto.0, "compaction failed");
            }
        }));
    }
}

impl Handler<Quiesce> for Persistence {
    type Result = ResponseFuture<()>;
    fn handle(&mut self, _: Quiesce, _: &mut Self::Context) -> Self::Result {
        let mut idle = self.idle.subscribe();
        Box::pin(async move {
            // The sender lives in the actor: an error means that it is gone, and its writes with it.
            let _ = idle.wait_for(|idle| *idle).await;
        })
    }
}
