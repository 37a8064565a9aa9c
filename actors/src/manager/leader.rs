//! `Leader`: owns the rebalance timer, lease deadlines and passes; decides by `leasehold_model::leader`.
//!
//! Spawned by [`super::start`], one per leadership. Turns messages into events, calls `step`, performs the effects: commits
//! and confirmations go to `Persistence`, sets to one `ExecutorSession` per executor, answers to whoever waits.
//! It does no I/O of its own. It does not limp on: when its core ends the leadership, or when it stops for another
//! reason, `ended` says so and the process (local mode) exits. A panic here is fail-stop (docs/decisions/0002).

use super::executor_session::{Close, Deliver, Delivered, ExecutorSession, PushAnswered};
use super::handle::ExecutorLinks;
use super::metrics::ManagerMetrics;
use super::persistence::{Commit, CommitEnded, Compact, ConfirmLeadership, Confirmed, Persistence, Quiesce};
use super::{Settings, roomy};
use crate::clock::SharedClock;
use crate::lease_key::key_hash;
use actix::prelude::*;
use leasehold_model::command::{Changes, Move};
use leasehold_model::leader::{self, Effect, Event, Note, Published, RenewalFacts, Reply, RequestId};
use leasehold_model::message::{ClusterStatus, Deregistration, Push, Registration, Renewal, ShardExplanation};
use leasehold_model::state::ClusterState;
use leasehold_model::{
    Address, CallError, ExecutorId, ExecutorName, Grant, InvalidValue, ManagerId, Refusal, ShardId, Tick,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// How long the process at a registering address may take to say who it is (R35).
const PROBE_DEADLINE: Duration = Duration::from_secs(2);

/// Mailbox of an `ExecutorSession`: only the `Leader` sends to it, by `do_send`, and a newer set replaces an older one.
const SESSION_MAILBOX: usize = 64;

/// What is said of a standstill; `in_full` counts those heard since the last one.
const STOOD_STILL: &str = "this manager stood still for more than half a lease (stopped, paused or starved of memory or CPU): \
    no lease ended meanwhile, and those of executors it had heard are taken as running in full from now";

/// Where the answer to a registration or a renewal goes.
pub type GrantReply = oneshot::Sender<Result<Grant, CallError>>;
/// Where the answer to another request goes.
pub type DoneReply = oneshot::Sender<Result<(), CallError>>;

/// An executor introduces itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Register(pub Registration, pub GrantReply);

/// An executor renews.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Renew(pub Renewal, pub GrantReply);

/// An executor leaves.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Deregister(pub Deregistration, pub DoneReply);

/// An operator asks an executor to leave, or to stay.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SetDraining {
    /// Which executor.
    pub name: ExecutorName,
    /// To leave?
    pub draining: bool,
    /// Where the answer goes.
    pub reply: DoneReply,
}

/// A short account of the cluster.
#[derive(Debug, Message)]
#[rtype(result = "ClusterStatus")]
pub struct AskStatus;

/// Why a shard is as it is.
#[derive(Debug, Message)]
#[rtype(result = "Result<ShardExplanation, Refusal>")]
pub struct Explain(pub ShardId);

/// Answered, in its turn, by a leader that works.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct AreYouThere;

/// The process is going to exit: answered when no write is in flight. Nothing is granted from then on.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// The leadership is lost, or given up without waiting for anything: says why.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Abandon(pub String);

/// Why a leadership is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeadershipEnd {
    /// It was asked to stop.
    Stopped,
    /// The store belongs to somebody else, or nothing can be known about it.
    Lost(String),
}

enum ReplyTo {
    Register(GrantReply),
    Renew(GrantReply),
    Done(DoneReply),
}

/// The actor; see the module.
pub struct Leader {
    core: leader::Leader,
    takeover: Vec<Effect>,
    persistence: Addr<Persistence>,
    links: Arc<dyn ExecutorLinks>,
    clock: SharedClock,
    push_deadline: Duration,
    sessions: BTreeMap<ExecutorId, Addr<ExecutorSession>>,
    /// One for all of them: each recipient of its own would be three allocations.
    for_sessions: Option<Arc<Recipient<PushAnswered>>>,
    replies: HashMap<RequestId, ReplyTo>,
    next_request: u64,
    published: watch::Sender<Arc<Published>>,
    ended: watch::Sender<Option<LeadershipEnd>>,
    timer: Option<SpawnHandle>,
    metrics: ManagerMetrics,
}

/// What a [`Leader`] comes with: itself, what it publishes, and its end.
pub type NewLeader = (Leader, watch::Receiver<Arc<Published>>, watch::Receiver<Option<LeadershipEnd>>);

impl Leader {
    /// Takes over `state` in the name of `manager`; effects are performed once it is started.
    pub fn new(
        settings: Settings,
        manager: ManagerId,
        state: Arc<ClusterState>,
        persistence: Addr<Persistence>,
        with: super::Surroundings,
    ) -> NewLeader {
        let mut takeover = Vec::new();
        let now = with.clock.now();
        let core = leader::Leader::take_over(settings.leader, manager, Arc::clone(&state), now, &mut takeover);
        let (published, publications) = watch::channel(Arc::new(Published::new(manager, state)));
        let (ended, end) = watch::channel(None);
        let leader = Self {
            core,
            takeover,
            persistence,
            links: with.links,
            clock: with.clock,
            push_deadline: settings.push_deadline,
            sessions: BTreeMap::new(),
            for_sessions: None,
            replies: HashMap::new(),
            next_request: 0,
            published,
            ended,
            timer: None,
            metrics: with.metrics,
        };
        (leader, publications, end)
    }

    fn request(&mut self, reply: ReplyTo) -> RequestId {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        self.replies.insert(request, reply);
        request
    }

    /// Takes one step. Without `Persistence` nothing can be decided any more: half a manager is worse than none.
    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        if !self.persistence.connected() {
            return self.end(LeadershipEnd::Lost("the actor that writes to the store is gone".to_owned()), ctx);
        }
        let mut out = Vec::new();
        self.core.step(self.clock.now(), event, &mut out);
        self.perform(out, ctx);
    }

    fn perform(&mut self, effects: Vec<Effect>, ctx: &mut Context<Self>) {
        for effect in effects {
            match effect {
                Effect::Commit { batch, commands } => {
                    self.persistence.do_send(Commit { batch, commands, to: ctx.address().recipient() });
                }
                Effect::Confirm => self.persistence.do_send(ConfirmLeadership { to: ctx.address().recipient() }),
                Effect::Compact(upto) => self.persistence.do_send(Compact(upto)),
                Effect::Reply(request, reply) => self.reply(request, reply),
                Effect::Probe { request, address } => self.probe(request, &address, ctx),
                Effect::OpenSession(executor, address) => self.open_session(executor, &address, ctx),
                Effect::CloseSession(executor) => {
                    if let Some(session) = self.sessions.remove(&executor) {
                        session.do_send(Close);
                    }
                }
                Effect::Push(push) => self.deliver(push, ctx),
                Effect::Delivered(executor, revision) => {
                    if let Some(session) = self.sessions.get(&executor) {
                        session.do_send(Delivered(revision));
                    }
                }
                Effect::Arm(at) => self.arm(at, ctx),
                Effect::Publish(state, changes) => self.publish(state, &changes),
                Effect::Note(note) => self.note(&note),
                Effect::EndLeadership(why) => self.end(LeadershipEnd::Lost(why), ctx),
            }
        }
    }

    fn reply(&mut self, request: RequestId, reply: Reply) {
        // Whoever asked may have given up: then nobody is there to be told, which is harmless by R12 and R34.
        match (self.replies.remove(&request), reply) {
            (Some(ReplyTo::Register(to)), reply) => {
                let answer = granted(reply);
                self.metrics.registered(outcome(&answer));
                let _ = to.send(answer);
            }
            (Some(ReplyTo::Renew(to)), reply) => {
                let answer = granted(reply);
                self.metrics.renewed(outcome(&answer));
                let _ = to.send(answer);
            }
            (Some(ReplyTo::Done(to)), reply) => {
                let _ = to.send(match reply {
                    Reply::Done | Reply::Granted(_) => Ok(()),
                    Reply::Refused(refusal) => Err(refusal.into()),
                    Reply::Unknown(why) => Err(CallError::Unknown(why)),
                });
            }
            (None, _) => {}
        }
    }

    fn probe(&self, request: RequestId, address: &Address, ctx: &mut Context<Self>) {
        let link = self.links.link(address);
        let answer = async move { timeout(PROBE_DEADLINE, link.inspect()).await };
        ctx.spawn(answer.into_actor(self).map(move |answer, actor, ctx| {
            let answered_by = answer.ok().and_then(Result::ok).map(|inspection| inspection.executor);
            actor.step(Event::Probed { request, answered_by }, ctx);
        }));
    }

    fn open_session(&mut self, executor: ExecutorId, address: &Address, ctx: &mut Context<Self>) {
        let link = self.links.link(address);
        let leader = self.for_sessions.get_or_insert_with(|| Arc::new(ctx.address().recipient()));
        let leader = Arc::clone(leader);
        let session = ExecutorSession::new(executor, link, self.push_deadline, leader, self.metrics.clone());
        self.sessions.insert(executor, roomy(SESSION_MAILBOX, session));
    }

    /// A session that died is replaced by a fresh one, which begins with the newest set.
    fn deliver(&mut self, push: Push, ctx: &mut Context<Self>) {
        let executor = push.executor;
        if self.sessions.get(&executor).is_some_and(|session| !session.connected()) {
            let address = self.core.state().executor(executor).map(|row| row.address.clone());
            tracing::error!(%executor, "the session with this executor died; it is begun anew");
            if let Some(address) = address {
                self.open_session(executor, &address, ctx);
            }
        }
        if let Some(session) = self.sessions.get(&executor) {
            session.do_send(Deliver(push));
        }
    }

    fn arm(&mut self, at: Tick, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let after = at.since(self.clock.now());
        self.timer = Some(ctx.run_later(after, |actor, ctx| {
            actor.timer = None;
            actor.step(Event::Timer, ctx);
        }));
    }

    /// One line per ownership change.
    fn publish(&self, state: Arc<ClusterState>, changes: &Changes) {
        self.metrics.published(&state, changes);
        for Move { shard, from, to, cause } in &changes.moves {
            let name = |end: &leasehold_model::state::Shard| {
                let executor = end.state.executor()?;
                let known = state.executor(executor).map(|row| row.name.to_string());
                Some(known.unwrap_or_else(|| executor.to_string()))
            };
            tracing::info!(
                shard = shard.0,
                epoch = to.epoch.get(),
                from = name(from),
                to = name(to),
                cause = cause.as_str(),
                revision = state.revision.0,
                "ownership changed"
            );
        }
        self.published.send_replace(Arc::new(Published::new(self.core.manager(), state)));
    }

    fn note(&self, note: &Note) {
        match note {
            Note::ClaimMismatch(executor) => {
                self.metrics.mismatch();
                tracing::warn!(%executor, "a claim had to be corrected: pushes to this executor are not landing");
            }
            Note::Lapsed(executors) => {
                self.metrics.lapsed(executors.len());
                for executor in executors {
                    let name = self.core.state().executor(*executor).map(|row| row.name.to_string());
                    tracing::warn!(%executor, name, "a lease has ended; its shards go to others");
                }
            }
            Note::Passed { released, granted } => {
                self.metrics.passed("committed");
                tracing::debug!(released, granted, "a pass ended");
            }
            Note::PassFailed(why) => {
                self.metrics.passed("failed");
                tracing::warn!(why, "a pass could not be committed; it will be tried again");
            }
            Note::FloorRefused(executor, shard, floor) => {
                let (shard, floor) = (shard.0, floor.get());
                tracing::error!(%executor, shard, floor, "an epoch floor is out of range; check the oplog store");
            }
            Note::Unheard(executor) => {
                tracing::warn!(%executor, "grants to this executor go unheard; it is granted no more");
            }
            Note::StoodStill { span, in_full } => {
                self.metrics.stood_still();
                let stood_still_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
                let executors = self.core.state().executors().len();
                tracing::warn!(stood_still_ms, executors, in_full, "{STOOD_STILL}");
            }
            Note::Settling => tracing::info!("the first executor registered; waiting for others before assigning"),
        }
    }

    fn end(&mut self, end: LeadershipEnd, ctx: &mut Context<Self>) {
        match &end {
            LeadershipEnd::Stopped => tracing::info!("the leadership was given up"),
            LeadershipEnd::Lost(why) => tracing::error!(why, "the leadership is over"),
        }
        self.metrics.leads(false);
        self.ended.send_if_modified(|known| known.is_none().then(|| *known = Some(end)).is_some());
        ctx.stop();
    }
}

fn granted(reply: Reply) -> Result<Grant, CallError> {
    match reply {
        Reply::Granted(grant) => Ok(grant),
        Reply::Refused(refusal) => Err(refusal.into()),
        Reply::Unknown(why) => Err(CallError::Unknown(why)),
        Reply::Done => unreachable!("the core answers a registration or a renewal with a grant or a refusal"),
    }
}

fn outcome(answer: &Result<Grant, CallError>) -> &'static str {
    match answer {
        Ok(_) => "granted",
        Err(error) => error.reason(),
    }
}

impl Actor for Leader {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.metrics.leads(true);
        let takeover = std::mem::take(&mut self.takeover);
        self.perform(takeover, ctx);
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        for session in std::mem::take(&mut self.sessions).into_values() {
            session.do_send(Close);
        }
        let unexplained = || LeadershipEnd::Lost("the leader stopped without a reason".to_owned());
        self.ended.send_if_modified(|known| known.is_none().then(|| *known = Some(unexplained())).is_some());
    }
}

impl Handler<Register> for Leader {
    type Result = ();
    fn handle(&mut self, Register(registration, reply): Register, ctx: &mut Self::Context) {
        let request = self.request(ReplyTo::Register(reply));
        let key_hash = key_hash(&registration.lease_key);
        let at_ms = self.clock.wall_ms();
        self.step(Event::Register { request, registration, key_hash, at_ms }, ctx);
    }
}

impl Handler<Renew> for Leader {
    type Result = ();
    fn handle(&mut self, Renew(renewal, reply): Renew, ctx: &mut Self::Context) {
        let request = self.request(ReplyTo::Renew(reply));
        let Renewal { executor, lease_key, claim, heard, epoch_floors, condition } = renewal;
        let key_hash = key_hash(&lease_key);
        let facts = RenewalFacts { executor, key_hash, claim, heard, epoch_floors, condition };
        self.step(Event::Renew { request, facts }, ctx);
    }
}

impl Handler<Deregister> for Leader {
    type Result = ();
    fn handle(&mut self, Deregister(deregistration, reply): Deregister, ctx: &mut Self::Context) {
        let request = self.request(ReplyTo::Done(reply));
        let key_hash = key_hash(&deregistration.lease_key);
        self.step(Event::Deregister { request, id: deregistration.executor, key_hash }, ctx);
    }
}

impl Handler<SetDraining> for Leader {
    type Result = ();
    fn handle(&mut self, SetDraining { name, draining, reply }: SetDraining, ctx: &mut Self::Context) {
        let request = self.request(ReplyTo::Done(reply));
        self.step(Event::SetDraining { request, name, draining }, ctx);
    }
}

impl Handler<AskStatus> for Leader {
    type Result = MessageResult<AskStatus>;
    fn handle(&mut self, _: AskStatus, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.core.status(self.clock.now()))
    }
}

impl Handler<Explain> for Leader {
    type Result = Result<ShardExplanation, Refusal>;
    fn handle(&mut self, Explain(shard): Explain, _: &mut Self::Context) -> Self::Result {
        let accepted = format!("0..{}", self.core.state().shard_count);
        let unknown = || Refusal::InvalidField(InvalidValue::new("shard", shard, accepted));
        self.core.explain(self.clock.now(), shard).ok_or_else(unknown)
    }
}

impl Handler<CommitEnded> for Leader {
    type Result = ();
    fn handle(&mut self, CommitEnded { batch, result }: CommitEnded, ctx: &mut Self::Context) {
        self.step(Event::CommitEnded { batch, result }, ctx);
    }
}

impl Handler<Confirmed> for Leader {
    type Result = ();
    fn handle(&mut self, Confirmed(confirmation): Confirmed, ctx: &mut Self::Context) {
        self.step(Event::Confirmed(confirmation), ctx);
    }
}

impl Handler<PushAnswered> for Leader {
    type Result = ();
    fn handle(&mut self, PushAnswered { executor, claim }: PushAnswered, ctx: &mut Self::Context) {
        self.step(Event::PushAnswered { executor, claim }, ctx);
    }
}

impl Handler<AreYouThere> for Leader {
    type Result = ();
    fn handle(&mut self, _: AreYouThere, _: &mut Self::Context) {}
}

impl Handler<Stop> for Leader {
    type Result = ResponseActFuture<Self, ()>;
    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        let quiet = self.persistence.send(Quiesce);
        Box::pin(quiet.into_actor(self).map(|_, actor, ctx| actor.end(LeadershipEnd::Stopped, ctx)))
    }
}

impl Handler<Abandon> for Leader {
    type Result = ();
    fn handle(&mut self, Abandon(why): Abandon, ctx: &mut Self::Context) {
        self.end(LeadershipEnd::Lost(why), ctx);
    }
}
