//! `Election`: one manager process's life as standby and leader, again and again, until it is told to stop.
//!
//! Spawned by the process (distributed mode), one per process, on a thread of its own ([`elect_on_own_thread`]): what the leader and the network
//! side work on delays no keepalive (R45). The actors of a leadership run where [`Stage`] says. Turns answers of the store into events of `leasehold_model::election` and
//! performs its effects: calls to [`Elections`], and the rise and fall of a leadership, whose actors are fresh each time
//! ([`super::start`], a new `ManagerId`). It touches no shard state. What it knows it publishes as [`Standing`]; its end as [`ElectionEnd`].
//!
//! Limits: one call of each kind under way, each bounded by `call_deadline`, but the observation of the leader, which waits. When it
//! stops for whatever reason, the [`Gate`] of its leadership is closed; if it merely stood still, the gate would close by the clock.

use super::election_metrics::ElectionMetrics;
use super::front::{Leadership, Standing};
use super::gate::{Gate, GatedLinks};
use super::handle::ManagerHandle;
use super::{LeadershipEnd, Running, Settings, Stage, Surroundings};
use crate::clock::SharedClock;
use crate::planted::{self, Bug};
use actix::prelude::*;
use leasehold_model::election::{self, CandidacyId, Effect, End, Event, Kept, Leading, Note};
use leasehold_model::{Address, Tick, Ttl};
use leasehold_persistence::Elections;
use leasehold_persistence::cluster::{Class, Error as StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The process is going to end: gives everything up. Its end is published as [`ElectionEnd`].
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopElection;

/// Why an `Election` is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionEnd {
    /// It was asked to stop.
    Stopped,
    /// This process can never lead this store, or the store refuses it for good.
    Failed(StoreError),
}

/// What an `Election` is made of.
pub struct ElectionParts {
    /// The store's side.
    pub elections: Arc<dyn Elections>,
    /// Times of the candidacy.
    pub election: election::Settings,
    /// How long one call may take.
    pub call_deadline: Duration,
    /// What is proclaimed: where this process is reached over gRPC while it leads.
    pub address: Address,
    /// The holder's clock: a leadership is held.
    pub clock: SharedClock,
    /// Of each leadership.
    pub manager: Settings,
    /// Of each leadership.
    pub with: Surroundings,
    /// Where its actors run.
    pub stage: Stage,
    /// Counters.
    pub metrics: ElectionMetrics,
}

/// A leadership, from the moment that it is won.
struct Reign {
    id: CandidacyId,
    gate: Gate,
    /// `None` while the state is being loaded.
    handle: Option<ManagerHandle>,
    /// The load.
    starting: SpawnHandle,
    /// It is being taken down.
    ending: bool,
}

/// The actor; see the module.
pub struct Election {
    core: election::Election,
    parts: ElectionParts,
    reign: Option<Reign>,
    leader: Option<Address>,
    timer: Option<SpawnHandle>,
    failure: Option<StoreError>,
    standing: watch::Sender<Standing>,
    ended: watch::Sender<Option<ElectionEnd>>,
}

/// What an [`Election`] comes with: itself, its standing, and its end.
pub type NewElection = (Election, watch::Receiver<Standing>, watch::Receiver<Option<ElectionEnd>>);

impl Election {
    /// Stands for leadership once it is started.
    #[must_use]
    pub fn new(parts: ElectionParts) -> NewElection {
        let core = election::Election::new(parts.election, parts.clock.now());
        let (standing, standings) = watch::channel(Standing::Standby(None));
        let (ended, end) = watch::channel(None);
        let (reign, leader, timer, failure) = (None, None, None, None);
        (Self { core, parts, reign, leader, timer, failure, standing, ended }, standings, end)
    }

    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        let mut out = Vec::new();
        self.core.step(self.parts.clock.now(), event, &mut out);
        for effect in out {
            self.perform(effect, ctx);
        }
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        let elections = Arc::clone(&self.parts.elections);
        let noted = self.parts.clock.now();
        match effect {
            Effect::Join(ttl) => {
                let (cluster, count) = (self.parts.manager.cluster.clone(), self.parts.manager.shard_count);
                let deadline = self.parts.call_deadline;
                let join = async move {
                    bounded(deadline, elections.check(&cluster, count)).await?;
                    bounded(deadline, elections.join(ttl)).await
                };
                self.ask(join, move |joined| (joined.is_ok().then_some(noted), Event::Joined(joined)), ctx);
            }
            Effect::Enlist(id) => {
                let (address, deadline) = (self.parts.address.clone(), self.parts.call_deadline);
                let enlist = async move { bounded(deadline, elections.enlist(id, &address)).await };
                self.ask(enlist, move |kept| (None, Event::Enlisted(id, kept)), ctx);
            }
            Effect::KeepAlive(id) => {
                let deadline = self.parts.call_deadline;
                let keep_alive = async move { bounded(deadline, elections.keep_alive(id)).await };
                let clock = Arc::clone(&self.parts.clock);
                let answered = move |kept: Result<Kept<_>, String>| {
                    let kept = kept.map(|kept| anchored(kept, clock.now().since(noted)));
                    (matches!(kept, Ok(Kept::Held(_))).then_some(noted), Event::KeptAlive(id, kept))
                };
                self.ask(keep_alive, answered, ctx);
            }
            Effect::Observe(known) => {
                let observe = async move { elections.observe(known.as_ref()).await };
                self.ask(observe, |leading| (None, Event::Observed(leading)), ctx);
            }
            Effect::Leave(id) => {
                let deadline = self.parts.call_deadline;
                let leave = async move { bounded(deadline, elections.leave(id)).await };
                self.ask(leave, move |left| (None, Event::Left(id, left)), ctx);
            }
            Effect::Lead(leading, until) => self.lead(&leading, until, ctx),
            Effect::AskLeader(id) => self.ask_leader(id, ctx),
            Effect::Extend(until) => {
                if let Some(reign) = &self.reign {
                    reign.gate.extend(until);
                }
            }
            Effect::TakeDown(end) => self.take_down(end, ctx),
            Effect::Follow(leader) => {
                tracing::info!(leader = leader.as_ref().map(Address::as_str), "another leader is followed");
                self.leader = leader;
                self.publish();
            }
            Effect::Arm(at) => self.arm(at, ctx),
            Effect::Note(note) => self.note(&note),
            Effect::Exit => {
                let end = self.failure.take().map_or(ElectionEnd::Stopped, ElectionEnd::Failed);
                self.ended.send_replace(Some(end));
                ctx.stop();
            }
        }
    }

    /// Makes a call, and takes a step with its answer. One that says that this process can never serve the store ends everything.
    fn ask<T: 'static>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + 'static,
        event: impl FnOnce(Result<T, String>) -> (Option<Tick>, Event) + 'static,
        ctx: &mut Context<Self>,
    ) {
        ctx.spawn(call.into_actor(self).map(move |answer, actor, ctx| {
            let fatal = answer.as_ref().err().filter(|error| error.class() == Class::Fatal).cloned();
            let (acknowledged, event) = event(answer.map_err(|error| error.to_string()));
            if acknowledged.is_some() {
                actor.parts.metrics.acknowledged(acknowledged);
            }
            actor.step(event, ctx);
            if let Some(fatal) = fatal {
                actor.fail(fatal, ctx);
            }
        }));
    }

    fn fail(&mut self, failure: StoreError, ctx: &mut Context<Self>) {
        tracing::error!(%failure, "this process cannot lead");
        self.failure.get_or_insert(failure);
        self.step(Event::Stop, ctx);
    }

    /// Loads the state and starts the actors of a leadership.
    fn lead(&mut self, leading: &Leading, until: Tick, ctx: &mut Context<Self>) {
        let gate = Gate::new(Arc::clone(&self.parts.clock), until);
        let id = leading.candidacy;
        let store = self.parts.elections.store(leading);
        let mut with = self.parts.with.clone();
        with.links = Arc::new(GatedLinks { links: with.links, gate: gate.clone() });
        let (settings, ttl) = (self.parts.manager.clone(), self.parts.election.ttl.as_duration());
        let stage = self.parts.stage.clone();
        // Longer than its lease nobody needs to try.
        let started = async move {
            let late = |_| Err(StoreError::Unavailable(format!("the state was not loaded within {ttl:?}")));
            timeout(ttl, stage.start(settings, store, with)).await.unwrap_or_else(late)
        };
        let starting = ctx.spawn(started.into_actor(self).map(move |started, actor, ctx| match started {
            Ok(running) => actor.reigns(running, ctx),
            Err(error) => {
                let hopeless = matches!(error, StoreError::Incompatible(_) | StoreError::Corrupt { .. });
                actor.reign_ended(id, format!("could not take over: {error}"), ctx);
                if hopeless {
                    actor.fail(error, ctx);
                }
            }
        }));
        self.reign = Some(Reign { id, gate, handle: None, starting, ending: false });
    }

    fn reigns(&mut self, Running { handle, mut ended }: Running, ctx: &mut Context<Self>) {
        // A load that nobody waits for was cancelled.
        let Some(reign) = &mut self.reign else { return };
        reign.handle = Some(handle);
        let id = reign.id;
        let end = async move {
            match ended.wait_for(Option::is_some).await {
                Ok(end) => end.clone().unwrap_or(LeadershipEnd::Stopped),
                Err(_) => LeadershipEnd::Lost("the leader is gone".to_owned()),
            }
        };
        ctx.spawn(end.into_actor(self).map(move |end, actor, ctx| {
            let why = match end {
                LeadershipEnd::Stopped => "it was given up".to_owned(),
                LeadershipEnd::Lost(why) => why,
            };
            actor.reign_ended(id, why, ctx);
        }));
        self.parts.metrics.changed("gained");
        tracing::info!(candidacy = %id, "this process leads");
        self.publish();
    }

    /// A leader that is only starting is bounded by the time that its start may take.
    fn ask_leader(&mut self, id: CandidacyId, ctx: &mut Context<Self>) {
        let handle = self.reign.as_ref().filter(|reign| reign.id == id).and_then(|reign| reign.handle.clone());
        let patience = self.parts.election.patience;
        let asked = async move {
            match handle {
                // Longer than that nobody waits for the answer.
                Some(handle) => timeout(patience, handle.is_there()).await.is_ok(),
                None => true,
            }
        };
        ctx.spawn(asked.into_actor(self).map(move |answered, actor, ctx| {
            if answered {
                actor.step(Event::LeaderAnswered(id), ctx);
            }
        }));
    }

    /// From here on nothing of the leadership answers or pushes; then its actors end.
    fn take_down(&mut self, end: End, ctx: &mut Context<Self>) {
        let Some(reign) = &mut self.reign else { return };
        reign.gate.close();
        reign.ending = true;
        let (id, handle, starting) = (reign.id, reign.handle.clone(), reign.starting);
        self.publish();
        match (handle, end) {
            (None, end) => {
                ctx.cancel_future(starting);
                let why = match end {
                    End::Asked => "asked to stop".to_owned(),
                    End::Lost(why) | End::Silent(why) => why,
                };
                self.end_after_this_step(id, why, ctx);
            }
            (Some(handle), End::Lost(why)) => handle.abandon(why),
            (Some(handle), End::Silent(why)) => {
                handle.abandon(why.clone());
                self.end_after_this_step(id, why, ctx);
            }
            (Some(handle), End::Asked) => {
                let patience = self.parts.call_deadline;
                let stop = async move {
                    if timeout(patience, handle.stop()).await.is_err() {
                        tracing::warn!(waited = ?patience, "a write is still in flight; the next leader will read its outcome");
                        handle.abandon("it was asked to stop".to_owned());
                    }
                };
                ctx.spawn(stop.into_actor(self));
            }
        }
    }

    fn end_after_this_step(&self, id: CandidacyId, why: String, ctx: &mut Context<Self>) {
        ctx.spawn(async {}.into_actor(self).map(move |(), actor, ctx| actor.reign_ended(id, why, ctx)));
    }

    fn reign_ended(&mut self, id: CandidacyId, why: String, ctx: &mut Context<Self>) {
        let Some(reign) = self.reign.take_if(|reign| reign.id == id) else { return };
        reign.gate.close();
        if reign.handle.is_some() {
            self.parts.metrics.changed("lost");
        }
        self.publish();
        self.step(Event::Ended(id, why), ctx);
    }

    fn publish(&self) {
        let leading = self.reign.as_ref().filter(|reign| !reign.ending).and_then(|reign| {
            let handle = reign.handle.clone()?;
            Some(Standing::Leading(Arc::new(Leadership { handle, gate: reign.gate.clone() })))
        });
        self.standing.send_replace(leading.unwrap_or_else(|| Standing::Standby(self.leader.clone())));
    }

    fn arm(&mut self, at: Tick, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let after = at.since(self.parts.clock.now());
        self.timer = Some(ctx.run_later(after, |actor, ctx| {
            actor.timer = None;
            actor.step(Event::Timer, ctx);
        }));
    }

    fn note(&self, note: &Note) {
        match note {
            Note::Failed(call, why) => {
                self.parts.metrics.failed(*call);
                tracing::warn!(call = call.as_str(), why, "a call of the election failed; it will be repeated");
            }
            Note::CandidacyLost(why) => {
                self.parts.metrics.acknowledged(None);
                tracing::warn!(why, "the place in the queue was lost");
            }
            Note::LeadershipEnded(why) => {
                self.parts.metrics.acknowledged(None);
                tracing::warn!(why, "a standby again");
            }
        }
    }
}

/// A keepalive's answer that took `late`.
fn anchored(kept: Kept<Ttl>, late: Duration) -> Kept<Ttl> {
    match kept {
        Kept::Held(ttl) if planted::is(Bug::KeepaliveAnchoredAtReceipt) => {
            Kept::Held(Ttl::from_duration(ttl.as_duration() + late).unwrap_or(ttl))
        }
        kept @ (Kept::Held(_) | Kept::Gone) => kept,
    }
}

async fn bounded<T>(deadline: Duration, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::Unavailable(format!("no answer within {deadline:?}")));
    timeout(deadline, call).await.unwrap_or_else(late)
}

impl Actor for Election {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.step(Event::Timer, ctx);
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        if let Some(reign) = &self.reign {
            reign.gate.close();
        }
        let unexplained =
            || ElectionEnd::Failed(StoreError::Unavailable("the election ended without a reason".to_owned()));
        self.ended.send_if_modified(|known| known.is_none().then(|| *known = Some(unexplained())).is_some());
    }
}

impl Handler<StopElection> for Election {
    type Result = ();
    fn handle(&mut self, _: StopElection, ctx: &mut Self::Context) {
        self.step(Event::Stop, ctx);
    }
}

/// A running [`Election`], where it stands, and its end.
pub type Elected = (Addr<Election>, watch::Receiver<Standing>, watch::Receiver<Option<ElectionEnd>>);

/// Runs an [`Election`] on a thread and a runtime of its own, so that nothing that this process works on delays its keepalive (R45).
///
/// # Errors
/// The system gives no thread.
pub fn elect_on_own_thread(parts: ElectionParts) -> std::io::Result<Elected> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (started, begun) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name("election".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let (election, standing, end) = Election::new(parts);
            let mut ended = end.clone();
            // Nobody waits only if the caller was torn down meanwhile.
            let _ = started.send((election.start(), standing, end));
            // An error means that it is gone without a word, which those who watch it are told.
            let _ = ended.wait_for(Option::is_some).await;
        });
    })?;
    begun.recv().map_err(|_| std::io::Error::other("the election's thread ended before it began"))
}
