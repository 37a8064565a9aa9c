//! `Agent`: owns one running agent: its state, its queue, its open oplog. Spawned and stopped by the `AgentHost` alone.
//!
//! It decides nothing: [`AgentCore`] does. It calls the store, each call under a deadline, one at a time, and brings the
//! outcome back as an event.
//!
//! *Limits*: the queue of [`super::agent_core::AgentLimits`]; its mailbox holds as many.
//! *Stop*: only when told, so that nothing sent to it is lost unseen. *Panic* (in an agent type's code): in the binaries
//! the process aborts. In a library the actor is dropped: callers are answered `Unknown` because their replies are
//! dropped, the `AgentHost` hears [`AgentStopped`] from the drop, and a fresh `Agent` starts from the oplog: no half state is left.

use super::agent_core::{AgentCore, Effect, Event, Identity, Job, JobId, Moment, Reply, Work};
use super::agent_type::{Admission, Question, Undecided};
use super::archiver::Archiver;
use super::message::{AgentFenced, AgentStopped, Pulse};
use super::metrics::ExecutorMetrics;
use super::oplog_health::{Line, StoreCall};
use crate::clock::SharedClock;
use crate::planted::{self, Bug};
use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle, WrapFuture,
};
use leasehold_model::fence::{Admitted, Closed, Fence};
use leasehold_model::{AgentId, CallError, ShardEpoch, ShardId, Tick};
use leasehold_persistence::OplogStore;
use leasehold_persistence::oplog::Error;
use leasehold_persistence::oplog::layers::Upto;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Where an answer goes. Dropped unanswered it means that nobody knows.
pub type ReplyTo = oneshot::Sender<Result<Reply, CallError>>;

/// `AgentHost` to `Agent`: do this after what was asked before.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Run {
    /// What.
    pub work: Work,
    /// Not begun later than this.
    pub until: Tick,
    /// Where the answer goes.
    pub reply: ReplyTo,
}

/// `AgentHost` to `Agent`: end. Answered by [`AgentStopped`].
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop {
    /// How long the running invocation may take; zero ends it at once.
    pub grace: Duration,
}

/// `AgentHost` to an idle `Agent`: mark yourself as not running and end. Answered by [`AgentStopped`].
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Leave;

/// What every agent of an executor shares.
#[derive(Clone)]
pub struct Surroundings {
    /// Whether its admission still stands.
    pub fence: Fence,
    /// The holder's clock.
    pub clock: SharedClock,
    /// Where oplogs live.
    pub store: Arc<dyn OplogStore>,
    /// What moves entries of them to the archive layer, if that is wanted.
    pub archiver: Option<Archiver>,
    /// Deadline of one store call.
    pub store_timeout: Duration,
    /// What is counted.
    pub metrics: ExecutorMetrics,
    /// Where the executor shows how it is doing.
    pub pulse: Arc<Pulse>,
}

impl Surroundings {
    /// Takes note of how a call of the store ended: what fails, and that it works again, is counted, logged and shown in the
    /// pulse. `agent` is absent where a call is about a whole shard.
    pub(super) fn note(&self, call: StoreCall, (shard, agent): (ShardId, Option<&AgentId>), ended: Result<(), &Error>) {
        let (oplogs, now) = (&self.pulse.oplogs, self.clock.now());
        let error = match ended {
            Ok(()) => {
                if let Some(Line::Works { failing, failures }) = oplogs.worked(now, call) {
                    let failing_ms = u64::try_from(failing.as_millis()).unwrap_or(u64::MAX);
                    tracing::info!(failing_ms, failures, "the oplog store works again");
                }
                return;
            }
            Err(error @ (Error::Unavailable(_) | Error::Unknown(_))) => error,
            // The store works; what it says is of this oplog alone.
            Err(Error::Fenced { .. } | Error::IndexConflict { .. } | Error::Corrupt { .. } | Error::Invalid(_)) => {
                return;
            }
        };
        self.metrics.count_oplog_failure(call.name());
        if let Some(Line::Fails { suppressed }) = oplogs.failed(now, call) {
            let (call, agent) = (call.name(), agent.map(tracing::field::display));
            tracing::warn!(
                call, %shard, agent, %error, suppressed,
                "the oplog store fails: calls are refused or end unknown until it works; look at the store (full, read-only, away?)"
            );
        }
    }

    /// The outcome of a call of the store; past its deadline it is unknown.
    pub(super) async fn timed<T>(timeout: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let unknown = |_| Err(Error::Unknown(format!("no answer within {} ms", timeout.as_millis())));
        tokio::time::timeout(timeout, call).await.unwrap_or_else(unknown)
    }
}

/// Tells the host that an agent ended, however it ended.
pub struct Obituary {
    /// Whom to tell.
    pub host: Recipient<AgentStopped>,
    /// What to say.
    pub stopped: AgentStopped,
}

impl Drop for Obituary {
    fn drop(&mut self) {
        self.stopped.panicked = std::thread::panicking();
        // Ignores the mailbox's capacity on purpose: a lost obituary would leave a sweep waiting.
        self.host.do_send(self.stopped.clone());
    }
}

/// One running agent.
pub struct Agent {
    core: AgentCore,
    identity: Identity,
    admitted: Admitted,
    around: Surroundings,
    fenced: Recipient<AgentFenced>,
    replies: HashMap<JobId, ReplyTo>,
    last_job: JobId,
    /// What is being asked outside.
    consultation: Option<SpawnHandle>,
    mailbox: usize,
    obituary: Obituary,
}

impl Agent {
    /// An agent that is yet to start.
    #[must_use]
    pub fn new(
        core: AgentCore,
        identity: Identity,
        around: Surroundings,
        fenced: Recipient<AgentFenced>,
        obituary: Obituary,
    ) -> Self {
        let admitted = Admitted { shard: identity.shard, epoch: identity.writer.epoch };
        let mailbox = core.queue_limit() + 8;
        let (replies, last_job, consultation) = (HashMap::new(), 0, None);
        Self { core, identity, admitted, around, fenced, replies, last_job, consultation, mailbox, obituary }
    }

    fn moment(&self) -> Moment {
        let now = self.around.clock.now();
        let gate = match self.around.fence.admit(now, self.admitted.shard) {
            _ if planted::is(Bug::FenceCheckedOnce) => Ok(()),
            Ok(admitted) if admitted == self.admitted => Ok(()),
            Ok(_) => Err(Closed::NotHeld),
            Err(closed) => Err(closed),
        };
        Moment { now, gate }
    }

    fn happen(&mut self, event: Event, ctx: &mut Context<Self>) {
        let mut effects = Vec::new();
        self.core.step(self.moment(), event, &mut effects);
        for effect in effects {
            self.perform(effect, ctx);
        }
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        let store = self.around.store.clone();
        let Identity { agent, shard, writer, .. } = self.identity.clone();
        match effect {
            Effect::Claim => {
                self.call(
                    StoreCall::Claim,
                    async move { store.claim(&agent, shard, writer).await },
                    Event::Claimed,
                    ctx,
                );
            }
            Effect::Read(from, limit) => {
                self.call(
                    StoreCall::Read,
                    async move { store.read(&agent, writer, from, limit).await },
                    Event::Page,
                    ctx,
                );
            }
            Effect::Find(_) if planted::is(Bug::KeysNotLookedUp) => {
                self.call(StoreCall::Find, async { Ok(None) }, Event::Found, ctx);
            }
            Effect::Find(key) => {
                self.call(StoreCall::Find, async move { store.find(&agent, writer, &key).await }, Event::Found, ctx);
            }
            Effect::Append(append) if planted::is(Bug::AnsweredBeforeStored) => {
                let end = append.end();
                tokio::spawn(async move { store.append(append).await });
                self.call(StoreCall::Append, async move { Ok(end) }, Event::Appended, ctx);
            }
            Effect::Append(append) => {
                self.call(StoreCall::Append, async move { store.append(append).await }, Event::Appended, ctx);
            }
            Effect::Suspend => {
                self.call(
                    StoreCall::Suspend,
                    async move { store.suspend(&agent, writer).await },
                    Event::Suspended,
                    ctx,
                );
            }
            Effect::Delete(expected) => {
                self.call(
                    StoreCall::Delete,
                    async move { store.delete(&agent, writer, expected).await },
                    Event::Deleted,
                    ctx,
                );
            }
            Effect::Archive(upto) => self.archive(upto, ctx),
            Effect::ArchiveLater(span) => Self::later(span, Event::ArchiveDue, ctx),
            Effect::Consult(question) => self.consult(question, ctx),
            Effect::DropConsultation => {
                if let Some(consultation) = self.consultation.take() {
                    ctx.cancel_future(consultation);
                }
            }
            Effect::Wait(span) => Self::later(span, Event::Woke, ctx),
            Effect::Answer(job, answer) => self.answer(job, answer),
            Effect::TellFenced(recorded) => self.tell_fenced(recorded),
            Effect::Replayed(entries) => {
                self.around.metrics.replays.inc();
                self.around.metrics.replayed_entries.inc_by(entries);
            }
            Effect::SnapshotTooBig(bytes) => {
                tracing::warn!(%agent, bytes, "the agent's state is too big for a snapshot; recovery replays more");
            }
            Effect::Stop => ctx.stop(),
        }
    }

    fn later(span: Duration, event: Event, ctx: &mut Context<Self>) {
        ctx.run_later(span, move |agent, ctx| agent.happen(event, ctx));
    }

    fn answer(&mut self, job: JobId, answer: Result<Reply, CallError>) {
        if let Some(reply) = self.replies.remove(&job) {
            // A caller that went away is answered in vain.
            let _ = reply.send(answer);
        }
    }

    fn tell_fenced(&self, recorded: Option<ShardEpoch>) {
        self.around.metrics.fenced.inc();
        let (agent, instance) = (self.identity.agent.clone(), self.obituary.stopped.instance);
        self.fenced.do_send(AgentFenced { agent, instance, recorded });
    }

    /// Asks outside. Dropping what is spawned here breaks the call off.
    fn consult(&mut self, question: Question, ctx: &mut Context<Self>) {
        let (decider, admitted) = (self.core.decider(), self.admitted);
        let (fence, clock) = (self.around.fence.clone(), self.around.clock.clone());
        let admission = Admission::new(move || fence.admit(clock.now(), admitted.shard) == Ok(admitted));
        let asked = async move {
            match decider {
                Some(decider) => decider.decide(question, admission).await,
                None => Err(Undecided::Unusable("it decides outside and names nobody to ask".to_owned())),
            }
        };
        let handle = ctx.spawn(asked.into_actor(self).map(|answer, agent, ctx| {
            agent.consultation = None;
            agent.around.metrics.count_consultation(&answer);
            agent.happen(Event::Decided(answer), ctx);
        }));
        self.consultation = Some(handle);
    }

    /// Moves entries beside all else. Dropping what is spawned here leaves each entry in one of the layers.
    fn archive(&self, upto: Upto, ctx: &mut Context<Self>) {
        let Some(archiver) = self.around.archiver.clone() else { return };
        let Identity { agent, shard, writer, .. } = self.identity.clone();
        let moved = async move { archiver.archive((&agent, shard, writer), upto).await };
        ctx.spawn(moved.into_actor(self).map(|moved, agent, ctx| {
            agent.around.count_move((agent.identity.shard, &agent.identity.agent), &moved);
            agent.happen(Event::Archived(moved), ctx);
        }));
    }

    /// Every store call has a deadline.
    fn call<T: 'static>(
        &self,
        kind: StoreCall,
        call: impl Future<Output = Result<T, Error>> + 'static,
        event: fn(Result<T, Error>) -> Event,
        ctx: &mut Context<Self>,
    ) {
        let bounded = Surroundings::timed(self.around.store_timeout, call);
        ctx.spawn(bounded.into_actor(self).map(move |outcome, agent, ctx| {
            let outcome = match outcome {
                Err(Error::Unknown(why)) if kind == StoreCall::Append && planted::is(Bug::DoubtIsRefused) => {
                    Err(Error::Invalid(why))
                }
                outcome => outcome,
            };
            let Identity { agent: whose, shard, .. } = &agent.identity;
            agent.around.note(kind, (*shard, Some(whose)), outcome.as_ref().map(drop));
            agent.happen(event(outcome), ctx);
        }));
    }
}

impl Actor for Agent {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.mailbox);
    }
}

impl Handler<Run> for Agent {
    type Result = ();

    fn handle(&mut self, run: Run, ctx: &mut Self::Context) {
        self.last_job += 1;
        self.replies.insert(self.last_job, run.reply);
        self.happen(Event::Asked(Job { id: self.last_job, work: run.work, until: run.until }), ctx);
    }
}

impl Handler<Stop> for Agent {
    type Result = ();

    fn handle(&mut self, stop: Stop, ctx: &mut Self::Context) {
        self.happen(Event::Stop, ctx);
        if stop.grace.is_zero() {
            self.happen(Event::StopNow, ctx);
        } else {
            ctx.run_later(stop.grace, |agent, ctx| agent.happen(Event::StopNow, ctx));
        }
    }
}

impl Handler<Leave> for Agent {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Self::Context) {
        self.happen(Event::Leave, ctx);
    }
}
