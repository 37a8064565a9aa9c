//! `LeaseHolder`: owns the lease and the admission fence. One per process, on a thread of its own in production
//! ([`spawn_on_own_thread`]), so that nothing that the executor works on delays a renewal (R45); in tests on any `LocalSet`.
//!
//! It calls the manager (register, renew, deregister; one call in flight, never retried below the core) and sends `Sweep` and
//! `Recover` to the `AgentHost`. Everything it decides is decided by [`leasehold_model::holder::Holder`].
//!
//! *Limits*: [`MAILBOX`] messages may wait; timers re-read the clock at least every [`LONGEST_NAP`], because the runtime's timers do
//! not count a machine's sleep and the lease does (R10).
//!
//! *Stop or panic*: the fence closes as its keeper is dropped, for good, and [`ExitWatch`] tells whoever waits; it is never
//! restarted. When the `AgentHost` is gone (a closed mailbox, looked for before every call and at every nap) the fence closes, what was
//! held is given back, and the process part ends.

use super::lease_metrics::LeaseMetrics;
use super::message::{Assign, CurrentLife, Fenced, Inspect, Pulse, Recover, Sweep};
use super::metrics::{Outcome, Reason};
use crate::clock::SharedClock;
use crate::lease_key::{key_hash, same_hash};
use crate::planted::{self, Bug};
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, MailboxError, Message, MessageResult,
    Recipient, SpawnHandle, WrapFuture,
};
use leasehold_model::fence::FenceKeeper;
use leasehold_model::holder::{
    Attempt, Effect, Event, Exit, Holder, Identity, Life, Note, Purpose, Request, Settings, Token, WorkId,
};
use leasehold_model::message::{Inspection, Push, PushAnswer};
use leasehold_model::{CallError, Grant, LeaseKeyHash, Refusal, Tick, Ttl};
use leasehold_rpc::api::ManagerApi;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Messages that may wait.
pub const MAILBOX: usize = 1024;
/// The longest a timer sleeps before it looks at the clock again.
pub const LONGEST_NAP: Duration = Duration::from_secs(1);
/// The shortest, so that two clocks that disagree a little do not make it spin.
const SHORTEST_NAP: Duration = Duration::from_millis(1);

/// Stop: drain, deregister, end (R37). Sent a second time, it ends at once.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Shutdown;

/// End at once, as a killed process does: nothing is swept, nothing given back; the fence closes as its keeper goes. For `dev`.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Crash;

/// How a process part ended; `None` while it has not.
#[derive(Debug, Clone)]
pub struct ExitWatch(watch::Receiver<Option<Exit>>);

impl ExitWatch {
    /// Waits for the end. A `LeaseHolder` that died without saying why is a failure.
    pub async fn ended(&mut self) -> Exit {
        let ended = self.0.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        ended.unwrap_or_else(|| Exit { code: 1, why: "the lease holder died; its fence is closed".to_owned() })
    }
}

/// What a `LeaseHolder` is made of, all of which may come from another thread.
pub struct HolderParts {
    /// Timing.
    pub settings: Settings,
    /// Who registers.
    pub identity: Identity,
    /// Makes a fresh life whenever one is needed: [`crate::lease_key::fresh`] in production.
    pub mint: Box<dyn FnMut() -> Life + Send>,
    /// From which all jitter is drawn; should differ between processes.
    pub seed: u64,
    /// The admission fence; closed for good when the `LeaseHolder` goes away.
    pub keeper: FenceKeeper,
    /// [`crate::clock::HolderClock`] in production.
    pub clock: SharedClock,
    /// Where the life in force is published.
    pub current: CurrentLife,
    /// The `AgentHost`.
    pub sweep: Recipient<Sweep>,
    /// The `AgentHost`.
    pub recover: Recipient<Recover>,
    /// The condition that renewals report.
    pub pulse: Arc<Pulse>,
    /// Counters.
    pub metrics: LeaseMetrics,
}

/// One armed timer.
struct Timer {
    at: Tick,
    handle: SpawnHandle,
}

/// The actor.
pub struct LeaseHolder {
    core: Holder,
    key_hash: LeaseKeyHash,
    manager: Arc<dyn ManagerApi>,
    mint: Box<dyn FnMut() -> Life + Send>,
    seed: u64,
    keeper: FenceKeeper,
    clock: SharedClock,
    current: CurrentLife,
    sweep: Recipient<Sweep>,
    recover: Recipient<Recover>,
    pulse: Arc<Pulse>,
    metrics: LeaseMetrics,
    exit: watch::Sender<Option<Exit>>,
    timers: BTreeMap<Purpose, Timer>,
    call: Option<SpawnHandle>,
    tokens: u64,
    /// The answer to the push being handled.
    answer: Option<Result<PushAnswer, Refusal>>,
}

impl LeaseHolder {
    /// A holder that begins when it is started. `manager` must belong to the thread that it will run on.
    #[must_use]
    pub fn new(parts: HolderParts, manager: Arc<dyn ManagerApi>) -> (Self, ExitWatch) {
        let HolderParts { settings, identity, mut mint, seed, keeper, clock, current, sweep, recover, pulse, metrics } =
            parts;
        let life = mint();
        current.begin(life.executor);
        let (exit, watch) = watch::channel(None);
        let key_hash = key_hash(&life.lease_key);
        let core = Holder::new(settings, identity, life);
        let (timers, call, tokens, answer) = (BTreeMap::new(), None, 0, None);
        let holder = Self {
            core,
            key_hash,
            manager,
            mint,
            seed,
            keeper,
            clock,
            current,
            sweep,
            recover,
            pulse,
            metrics,
            exit,
            timers,
            call,
            tokens,
            answer,
        };
        (holder, ExitWatch(watch))
    }

    /// Starts it on the current `LocalSet`. Its mailbox has its capacity from the first message on.
    pub fn launch(self) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            self
        })
    }
}

impl Actor for LeaseHolder {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.step(Event::Started { seed: self.seed }, ctx);
    }
}

impl Handler<Assign> for LeaseHolder {
    type Result = Result<PushAnswer, CallError>;

    fn handle(&mut self, Assign(push): Assign, ctx: &mut Context<Self>) -> Self::Result {
        self.tokens += 1;
        let proven = self.is_proven(&push);
        self.step(Event::Pushed { token: Token(self.tokens), proven, push }, ctx);
        let answer = self.answer.take().expect("a push is answered in the step that takes it");
        answer.map_err(CallError::Refused)
    }
}

impl Handler<Inspect> for LeaseHolder {
    type Result = MessageResult<Inspect>;

    fn handle(&mut self, _: Inspect, _: &mut Context<Self>) -> Self::Result {
        let now = self.clock.now();
        let inspection: Inspection = self.core.inspection(now, self.pulse.condition(now));
        MessageResult(inspection)
    }
}

impl Handler<Fenced> for LeaseHolder {
    type Result = ();

    fn handle(&mut self, Fenced { shard, held, recorded }: Fenced, ctx: &mut Context<Self>) {
        self.step(Event::Fenced { shard, held, recorded }, ctx);
    }
}

impl Handler<Shutdown> for LeaseHolder {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        self.step(Event::Shutdown, ctx);
    }
}

impl Handler<Crash> for LeaseHolder {
    type Result = ();

    fn handle(&mut self, _: Crash, ctx: &mut Context<Self>) {
        tracing::info!(executor = %self.core.life().executor, "the executor is ended as if it had crashed");
        self.exit.send_replace(Some(Exit { code: 1, why: "ended as if it had crashed".to_owned() }));
        ctx.stop();
    }
}

impl LeaseHolder {
    /// R36, in a time that does not depend on where the hashes differ.
    fn is_proven(&self, push: &Push) -> bool {
        same_hash(&self.key_hash, &push.key_hash)
    }

    /// Takes one step, and those that its effects bring about at once.
    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        let mut events = VecDeque::from([event]);
        let mut effects = Vec::new();
        while let Some(event) = events.pop_front() {
            self.core.step(self.clock.now(), event, &mut effects);
            // Before the effects: whoever finds a shard closed finds the revision that closed it.
            self.keeper.know(self.core.applied());
            for effect in effects.drain(..) {
                events.extend(self.perform(effect, ctx));
            }
        }
    }

    /// A timer's nap is over.
    fn wake(&mut self, purpose: Purpose, ctx: &mut Context<Self>) {
        let Some(at) = self.timers.remove(&purpose).map(|timer| timer.at) else { return };
        if !self.sweep.connected() {
            self.step(Event::HostGone, ctx);
        }
        if self.clock.now() >= at {
            self.step(Event::Timer(purpose), ctx);
        } else {
            self.arm(purpose, at, ctx);
        }
    }

    fn arm(&mut self, purpose: Purpose, at: Tick, ctx: &mut Context<Self>) {
        let nap = at.since(self.clock.now()).clamp(SHORTEST_NAP, LONGEST_NAP);
        let handle = ctx.run_later(nap, move |holder, ctx| holder.wake(purpose, ctx));
        if let Some(before) = self.timers.insert(purpose, Timer { at, handle }) {
            ctx.cancel_future(before.handle);
        }
    }

    // --- Effects ---

    /// Does what the core wants. Returns what that brings about at once.
    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) -> Option<Event> {
        match effect {
            Effect::Call { attempt, request, within } => return self.call(attempt, request, within, ctx),
            Effect::CancelCall => {
                if let Some(call) = self.call.take() {
                    ctx.cancel_future(call);
                }
            }
            Effect::Arm { purpose, at } => self.arm(purpose, at, ctx),
            Effect::SizeFence(count) => {
                assert!(self.keeper.size(count), "the fence was sized for another count than {count}");
            }
            Effect::OpenShard(shard, epoch) => self.keeper.open(shard, epoch),
            Effect::CloseShard(_) if planted::is(Bug::ShardNotClosed) => {}
            Effect::CloseShard(shard) => self.keeper.close(shard),
            Effect::ArmFence(deadline) => self.keeper.arm(deadline),
            Effect::CloseFence => self.keeper.close_all(),
            Effect::Sweep { id, shards, grace } => {
                self.metrics.sweeps.inc();
                // A clone of its own each time: it queues at once, also when the mailbox is full, so a sweep is never overtaken.
                let done = self.sweep.clone().send(Sweep { shards, grace });
                if planted::is(Bug::DrainAcknowledgedEarly) {
                    ctx.spawn(actix::fut::wrap_future::<_, Self>(done).map(|_, _, _| ()));
                    return Some(Event::Swept(id));
                }
                Self::report(done, id, Event::Swept, ctx);
            }
            Effect::Recover { id, shards } => {
                self.metrics.recoveries.inc();
                let done = self.recover.clone().send(Recover { shards });
                Self::report(done, id, Event::Recovered, ctx);
            }
            Effect::AnswerPush { answer, .. } => self.answer = Some(answer),
            Effect::AskIdentity => {
                let life = (self.mint)();
                self.key_hash = key_hash(&life.lease_key);
                if !planted::is(Bug::LifeNotRenewed) {
                    self.current.begin(life.executor);
                }
                return Some(Event::NewIdentity(life));
            }
            Effect::Exit(exit) => self.end(exit, ctx),
            Effect::Note(note) => self.note(&note),
        }
        None
    }

    /// Calls the manager. The core noted the instant before this, so before the call is first polled (R2).
    fn call(&mut self, attempt: Attempt, request: Request, within: Duration, ctx: &mut Context<Self>) -> Option<Event> {
        let manager = Arc::clone(&self.manager);
        let gone = !self.sweep.connected();
        let handle = match request {
            Request::Register(registration) => {
                let answer = timed(within, async move { manager.register(registration).await });
                ctx.spawn(answer.into_actor(self).map(move |result, holder, ctx| {
                    count(&holder.metrics.registrations, "granted", &result);
                    holder.step(Event::Answered { attempt, result }, ctx);
                }))
            }
            Request::Renew(mut renewal) => {
                renewal.condition = self.pulse.condition(attempt.noted);
                let answer = timed(within, async move { manager.renew(renewal).await });
                ctx.spawn(answer.into_actor(self).map(move |result, holder, ctx| {
                    count(&holder.metrics.renewals, "granted", &result);
                    let result = result.map(|grant| anchored(grant, holder.clock.now().since(attempt.noted)));
                    holder.step(Event::Answered { attempt, result }, ctx);
                }))
            }
            Request::Deregister(deregistration) => {
                let answer = timed(within, async move { manager.deregister(deregistration).await });
                let handle = ctx.spawn(answer.into_actor(self).map(move |result, holder, ctx| {
                    count(&holder.metrics.deregistrations, "done", &result);
                    holder.step(Event::Deregistered { attempt, result }, ctx);
                }));
                self.call = Some(handle);
                return None;
            }
        };
        self.call = Some(handle);
        // Never renew with a dead host behind: the core cancels what has not been polled yet.
        gone.then_some(Event::HostGone)
    }

    /// When the `AgentHost` has answered, it is done; when it cannot answer, it is gone.
    fn report(
        done: impl Future<Output = Result<(), MailboxError>> + 'static,
        id: WorkId,
        event: fn(WorkId) -> Event,
        ctx: &mut Context<Self>,
    ) {
        ctx.spawn(actix::fut::wrap_future::<_, Self>(done).map(move |answer, holder, ctx| {
            holder.step(if answer.is_ok() { event(id) } else { Event::HostGone }, ctx);
        }));
    }

    fn end(&mut self, exit: Exit, ctx: &mut Context<Self>) {
        if exit.code == 0 {
            tracing::info!(why = exit.why, "the executor leaves");
        } else {
            tracing::error!(why = exit.why, code = exit.code, "the executor ends");
        }
        self.exit.send_replace(Some(exit));
        ctx.stop();
    }

    // --- Logs and counters ---

    fn note(&self, note: &Note) {
        let executor = self.core.life().executor;
        match note {
            Note::ShardGained { shard, epoch, revision } => {
                self.metrics.shards_gained.inc();
                tracing::info!(%shard, %epoch, %executor, %revision, "shard gained");
            }
            Note::ShardClosed { shard, epoch, revision, cause } => {
                let cause = cause.as_str();
                self.metrics.shards_closed.get_or_create(&Reason { reason: cause }).inc();
                tracing::info!(%shard, %epoch, %executor, %revision, cause, "shard not admitted any more");
            }
            Note::ShardSwept { shard, epoch } => tracing::info!(%shard, %epoch, %executor, "shard let go of"),
            Note::RecoveryDone { shards } => tracing::debug!(shards, %executor, "recovery done"),
            Note::LeaseLive { deadline } => {
                let left_ms = self.left_ms(*deadline);
                tracing::info!(%executor, left_ms, "lease live");
            }
            Note::LeaseLapsed { deadline } => {
                self.metrics.lapses.inc();
                let late_ms = u64::try_from(self.clock.now().since(*deadline).as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(%executor, late_ms, "lease lapsed: nothing is admitted until a manager grants again");
            }
            Note::Following { manager, before } => {
                let before = before.map(|before| before.to_string());
                tracing::info!(%executor, %manager, before, "a manager is followed");
            }
            Note::SetStale { revision, applied } => {
                tracing::debug!(%executor, %revision, %applied, "a granted set was overtaken by a newer one");
            }
            Note::PushApplied { revision } => {
                self.metrics.pushes.get_or_create(&Outcome { outcome: "applied" }).inc();
                tracing::debug!(%executor, %revision, "push applied");
            }
            Note::PushIgnored { manager, revision, why } => {
                let why = why.as_str();
                self.metrics.pushes.get_or_create(&Outcome { outcome: why }).inc();
                tracing::info!(%executor, %manager, %revision, why, "push not applied");
            }
            Note::AttemptFailed { failures, next, error } => {
                let (left_ms, pause_ms) = (self.left_ms(self.core.deadline()), self.left_ms(*next));
                tracing::warn!(%executor, failures, left_ms, pause_ms, %error, "a call to the manager failed");
            }
            Note::Unregistered { refusal } => {
                tracing::warn!(%executor, %refusal, "the registration is gone: everything is swept, a new life registers");
            }
            Note::WriteFenced { shard, held, recorded } => {
                self.metrics.fenced_writes.inc();
                let recorded = recorded.map(|epoch| epoch.get());
                tracing::warn!(%shard, %held, recorded, %executor, "storage fenced a write");
            }
        }
    }

    fn left_ms(&self, until: Tick) -> u64 {
        u64::try_from(until.since(self.clock.now()).as_millis()).unwrap_or(u64::MAX)
    }
}

/// A grant whose answer took `late`.
fn anchored(grant: Grant, late: Duration) -> Grant {
    if planted::is(Bug::LeaseAnchoredAtReceipt) {
        let ttl = Ttl::from_duration(grant.ttl.as_duration() + late).unwrap_or(grant.ttl);
        return Grant { ttl, ..grant };
    }
    grant
}

/// Waits for `call` for at most `within`: after that its outcome is unknown.
async fn timed<T>(within: Duration, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let late = |_| Err(CallError::Unknown(format!("no answer within {within:?}")));
    tokio::time::timeout(within, call).await.unwrap_or_else(late)
}

fn count<T>(
    family: &prometheus_client::metrics::family::Family<Outcome, prometheus_client::metrics::counter::Counter>,
    success: &'static str,
    result: &Result<T, CallError>,
) {
    let outcome = match result {
        Ok(_) => success,
        Err(error) => error.reason(),
    };
    family.get_or_create(&Outcome { outcome }).inc();
}

// --- Spawning ---

/// Starts a `LeaseHolder` on a thread and a runtime of its own (R45). `connect` is called there, because a client belongs to the
/// runtime that it was made in. The thread ends with the actor.
///
/// `LeaseHolder` and `AgentHost` need each other's address: take the host's from its context before it runs
/// (`Context::new`, `address`, and, once this has returned, `run`). What is sent to it meanwhile waits in its mailbox.
///
/// # Errors
/// When the thread or its runtime cannot be made.
pub fn spawn_on_own_thread(
    parts: HolderParts,
    connect: impl FnOnce() -> Arc<dyn ManagerApi> + Send + 'static,
) -> std::io::Result<(Addr<LeaseHolder>, ExitWatch)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (started, address) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name("lease-holder".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let (holder, exit) = LeaseHolder::new(parts, connect());
            let mut ended = exit.clone();
            // Nobody waits only if the caller was torn down meanwhile.
            let _ = started.send((holder.launch(), exit));
            ended.ended().await;
        });
    })?;
    address.recv().map_err(|_| std::io::Error::other("the lease holder's thread ended before it began"))
}
