//! `AgentHost`: owns which agents run on this executor; one [`Agent`] each. Spawned by the executor process, one per process.
//!
//! It sends `Run`, [`Stop`] and `Leave` to agents and [`Fenced`] to the `LeaseHolder`. It never decides ownership: the fence
//! and the `LeaseHolder`'s `Sweep` and `Recover` do.
//!
//! *Limits*: [`HostLimits`]. When all places are taken the agent that was idle longest is suspended; when none is idle the
//! caller is refused with `OVERLOADED`. Who is idle for [`HostLimits::idle_after`] is suspended, too.
//! *Agent ends*: only when told, or by a panic. Both are heard as [`AgentStopped`]; what was sent to a panicked agent is answered
//! `Unknown`, and the next invocation starts a fresh one from the oplog.
//! *Stop or panic of the host*: agents are useless without it; the `LeaseHolder` notices the closed address and ends the
//! process part. It is never restarted.

use super::agent::{Agent, Obituary, Stop, Surroundings};
use super::agent_core::{AgentCore, AgentLimits, Identity, Reply, Work};
use super::agent_type::{AgentType, AgentTypes};
use super::ask::{Answered, Ask};
use super::message::{AgentFenced, AgentStopped, CurrentLife, Fenced, Recover, Sweep};
use super::recovery;
use crate::planted::{self, Bug};
use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Recipient, ResponseActFuture, ResponseFuture,
    WrapFuture,
};
use leasehold_model::fence::{Admitted, Closed};
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{AgentId, CallError, ExecutorName, Refusal, ShardEpoch, ShardId, Tick};
use leasehold_persistence::oplog::Writer;
use lifecycle::MAX_LEAVING;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

mod lifecycle;

pub use lifecycle::{Delete, ListAgents};

/// Messages that may wait for the host.
const MAILBOX: usize = 1024;

/// Bounds of one executor's agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// Agents in memory.
    pub agents: usize,
    /// Agents recovered at a time.
    pub recoveries: usize,
    /// Deadline of one call of the oplog store.
    pub store_timeout: Duration,
    /// After so long without work an agent is suspended; `None`: only when memory is short.
    pub idle_after: Option<Duration>,
    /// How often objects that nobody needs are looked for in the archive of the shards held.
    pub sweep_archive_every: Duration,
    /// Bounds of each agent.
    pub agent: AgentLimits,
}

impl Default for HostLimits {
    fn default() -> Self {
        let (store_timeout, agent) = (Duration::from_secs(5), AgentLimits::default());
        let sweep_archive_every = Duration::from_secs(3600);
        Self { agents: 10_000, recoveries: 64, store_timeout, idle_after: None, sweep_archive_every, agent }
    }
}

/// rpc to `AgentHost`: run this; the fence admitted it. Checked against the fence again when it is handled, so that what was
/// queued behind a lapse or a [`Sweep`] is refused.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<InvocationAnswer, CallError>")]
pub struct Invoke {
    /// What.
    pub invocation: Invocation,
    /// Under which admission.
    pub admitted: Admitted,
    /// The caller waits until then (holder's clock): later it is not begun.
    pub until: Tick,
}

/// `recovery` to `AgentHost`: have this agent open. Answered when it is, or why not.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<(), CallError>")]
pub struct Open {
    /// Which agent.
    pub agent: AgentId,
    /// Its shard and the epoch that the `Recover` named.
    pub held: Admitted,
}

/// Whether something was handed on; if not, it comes back with the reason.
type Handed = Result<(), Box<(Ask, Refusal)>>;

/// What a host is made of.
pub struct HostParts {
    /// Who this process is, for refusals and answers.
    pub name: ExecutorName,
    /// The executor life that writes.
    pub life: CurrentLife,
    /// Fence, clock, store, counters and pulse, as every agent sees them.
    pub around: Surroundings,
    /// The agent types hosted.
    pub types: AgentTypes,
    /// The `LeaseHolder`.
    pub fenced: Recipient<Fenced>,
    /// Bounds.
    pub limits: HostLimits,
}

/// Where an agent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Live,
    /// It marks itself as not running and ends.
    Leaving,
    /// It ends: swept, fenced or of an older epoch.
    Stopping,
}

struct Slot {
    addr: Addr<Agent>,
    instance: u64,
    admitted: Admitted,
    standing: Standing,
    /// Asked and not answered yet.
    outstanding: usize,
    /// When the present one of these began.
    began: Option<Tick>,
    /// Its place in the order of idleness, and since when, while idle.
    idle: Option<(u64, Tick)>,
    /// What waits for it to end, to be given to the next incarnation.
    parked: Vec<Ask>,
}

/// A sweep under way.
struct SweepUnderWay {
    left: BTreeSet<u64>,
    done: oneshot::Sender<()>,
}

/// The host.
pub struct AgentHost {
    parts: HostParts,
    slots: HashMap<AgentId, Slot>,
    /// What the `LeaseHolder` said is held, by `Recover` and `Sweep`.
    held: BTreeMap<ShardId, ShardEpoch>,
    /// Agents that storage refused at this admission: not tried again under it (no hot error loop, case 8).
    latched: BTreeMap<AgentId, (Admitted, ShardEpoch)>,
    sweeps: Vec<SweepUnderWay>,
    /// Recoveries under way.
    recoveries: usize,
    /// Agents that were deleted during one, which may have found them running before: it is not to begin them anew.
    deleted: BTreeMap<AgentId, Admitted>,
    /// Agents at work, by when they began.
    busy: BTreeSet<(Tick, u64)>,
    /// Idle agents, the longest idle first.
    idle: BTreeMap<u64, AgentId>,
    leaving: usize,
    last_instance: u64,
    last_idle: u64,
}

impl AgentHost {
    /// A host without agents.
    #[must_use]
    pub fn new(parts: HostParts) -> Self {
        Self {
            parts,
            slots: HashMap::new(),
            held: BTreeMap::new(),
            latched: BTreeMap::new(),
            sweeps: Vec::new(),
            recoveries: 0,
            deleted: BTreeMap::new(),
            busy: BTreeSet::new(),
            idle: BTreeMap::new(),
            leaving: 0,
            last_instance: 0,
            last_idle: 0,
        }
    }

    /// Whether work may begin under `admitted`.
    fn admits(&self, admitted: Admitted) -> Result<(), Refusal> {
        if planted::is(Bug::FenceCheckedOnce) {
            return Ok(());
        }
        match self.parts.around.fence.admit(self.parts.around.clock.now(), admitted.shard) {
            Ok(present) if present == admitted => Ok(()),
            Err(Closed::NotReady) => Err(Refusal::ShardingNotReady { executor: self.parts.name.to_string() }),
            Ok(_) | Err(Closed::NotHeld) => Err(self.handoff(admitted.shard)),
        }
    }

    /// Whether the `LeaseHolder` said that `held` is to be served. It need not have opened the fence yet.
    fn holds(&self, held: Admitted) -> Result<(), Refusal> {
        if self.held.get(&held.shard) == Some(&held.epoch) { Ok(()) } else { Err(self.handoff(held.shard)) }
    }

    fn handoff(&self, shard: ShardId) -> Refusal {
        Refusal::HandoffInProgress { shard, why: format!("it leaves executor {}", self.parts.name) }
    }

    // --- Asking ---

    /// Hands `ask` to the agent, starting it if need be, or answers it with a refusal.
    fn ask(&mut self, agent: &AgentId, ask: Ask, ctx: &mut Context<Self>) {
        if let Err(turned_away) = self.try_ask(agent, ask, ctx) {
            let (ask, refusal) = *turned_away;
            ask.refuse(refusal);
        }
    }

    fn try_ask(&mut self, agent: &AgentId, ask: Ask, ctx: &mut Context<Self>) -> Handed {
        if let Some((admitted, recorded)) = self.latched.get(agent) {
            if *admitted == ask.admitted {
                let refusal = Refusal::EpochFenced { held: admitted.epoch, recorded: *recorded };
                return Err(Box::new((ask, refusal)));
            }
            self.latched.remove(agent);
        }
        if self.deleted.get(agent) == Some(&ask.admitted) {
            match ask.run.work {
                Work::Open => {
                    ask.done();
                    return Ok(());
                }
                Work::Invoke { .. } => drop(self.deleted.remove(agent)),
                Work::Delete => {}
            }
        }
        // A panic left it dead and its obituary is still on the way.
        if self.slots.get(agent).is_some_and(|slot| !slot.addr.connected()) {
            self.bury(agent, ctx);
        }
        match self.slots.get(agent) {
            None => self.start(agent, ask, ctx),
            Some(slot) if slot.standing == Standing::Live && slot.admitted == ask.admitted => self.give(agent, ask),
            Some(_) => self.park(agent, ask),
        }
    }

    /// Keeps `ask` for the incarnation after the present one.
    fn park(&mut self, agent: &AgentId, ask: Ask) -> Handed {
        let limit = self.parts.limits.agent.queue;
        let slot = self.slots.get_mut(agent).expect("the caller has just seen the slot");
        // The shard came back under another epoch before this incarnation was told to go.
        if slot.standing == Standing::Live {
            slot.addr.do_send(Stop { grace: Duration::ZERO });
            slot.standing = Standing::Stopping;
        }
        if slot.parked.len() >= limit {
            return Err(Box::new((ask, overloaded(format!("agent {agent}, which is ending"), limit, limit))));
        }
        slot.parked.push(ask);
        self.settle(agent);
        Ok(())
    }

    fn start(&mut self, agent: &AgentId, ask: Ask, ctx: &mut Context<Self>) -> Handed {
        let Some(kind) = self.parts.types.find(agent.kind()).cloned() else {
            return Err(Box::new((ask, Refusal::UnknownMethod { what: format!("agent type {}", agent.kind()) })));
        };
        if let Err(full) = self.make_room(ask.run.work == Work::Open) {
            return Err(Box::new((ask, full)));
        }
        let slot = self.spawn(agent, kind, ask.admitted, ctx);
        self.slots.insert(agent.clone(), slot);
        self.give(agent, ask)
    }

    fn spawn(
        &mut self,
        agent: &AgentId,
        kind: Arc<dyn AgentType>,
        admitted: Admitted,
        ctx: &mut Context<Self>,
    ) -> Slot {
        self.last_instance += 1;
        let instance = self.last_instance;
        let executor = self.parts.life.read();
        let (high, low) = executor.0.as_u64_pair();
        let identity = Identity {
            agent: agent.clone(),
            shard: admitted.shard,
            writer: Writer { epoch: admitted.epoch, executor },
            executor: self.parts.name.clone(),
            life: (high ^ low).wrapping_add(instance),
        };
        let core = AgentCore::new(identity.clone(), kind, self.parts.limits.agent);
        let stopped = AgentStopped { agent: agent.clone(), instance, panicked: false };
        let obituary = Obituary { host: ctx.address().recipient(), stopped };
        let around = self.parts.around.clone();
        let addr = Agent::new(core, identity, around, ctx.address().recipient(), obituary).start();
        Slot {
            addr,
            instance,
            admitted,
            standing: Standing::Live,
            outstanding: 0,
            began: None,
            idle: None,
            parked: Vec::new(),
        }
    }

    /// Hands `ask` to the live agent.
    fn give(&mut self, agent: &AgentId, ask: Ask) -> Handed {
        let slot = self.slots.get_mut(agent).expect("the caller has just seen or made the slot");
        let limit = self.parts.limits.agent.queue;
        // One runs, `limit` wait.
        if slot.outstanding > limit {
            let used = slot.outstanding;
            return Err(Box::new((ask, overloaded(format!("queue of agent {agent}"), used, limit))));
        }
        ask.home.set(slot.instance);
        // Bounded by the line above; the agent's mailbox is never the narrower bound.
        slot.addr.do_send(ask.run);
        slot.outstanding += 1;
        self.settle(agent);
        Ok(())
    }

    /// One thing asked of `instance` was answered.
    fn answered(&mut self, Answered { agent, instance, deleted }: &Answered) {
        let (agent, instance) = (agent, *instance);
        let Some(slot) = self.slots.get_mut(agent).filter(|slot| slot.instance == instance) else { return };
        slot.outstanding = slot.outstanding.saturating_sub(1);
        if let Some(began) = slot.began.take() {
            self.busy.remove(&(began, instance));
        }
        self.settle(agent);
        let Some(slot) = self.slots.get(agent).filter(|_| *deleted) else { return };
        let idle = slot.idle.is_some();
        // What was asked of it behind the deletion may have begun it anew already.
        if idle && self.recoveries > 0 && self.deleted.len() < self.parts.limits.agents {
            self.deleted.insert(agent.clone(), slot.admitted);
        }
        if idle && self.leaving < MAX_LEAVING {
            self.let_go(agent);
        }
    }

    /// Brings the orders of busy and idle agents, and the pulse, in line with `agent`'s slot.
    fn settle(&mut self, agent: &AgentId) {
        if let Some(slot) = self.slots.get_mut(agent) {
            if slot.outstanding > 0 && slot.began.is_none() {
                let began = self.parts.around.clock.now();
                slot.began = Some(began);
                self.busy.insert((began, slot.instance));
            }
            let idle = slot.outstanding == 0 && slot.standing == Standing::Live;
            if idle && slot.idle.is_none() {
                self.last_idle += 1;
                slot.idle = Some((self.last_idle, self.parts.around.clock.now()));
                self.idle.insert(self.last_idle, agent.clone());
            } else if !idle && let Some((at, _)) = slot.idle.take() {
                self.idle.remove(&at);
            }
        }
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let pulse = &self.parts.around.pulse;
        pulse.agents.store(count(self.slots.len()), Ordering::Relaxed);
        pulse.running.store(count(self.busy.len()), Ordering::Relaxed);
        pulse.oldest_began.store(self.busy.first().map_or(0, |(began, _)| began.0), Ordering::Relaxed);
        self.parts.around.metrics.agents.set(i64::try_from(self.slots.len()).unwrap_or(i64::MAX));
    }

    // --- Ending ---

    /// Forgets the ended incarnation in `agent`'s slot, and starts the next one if something waits for it.
    fn bury(&mut self, agent: &AgentId, ctx: &mut Context<Self>) {
        let Some(slot) = self.slots.remove(agent) else { return };
        if slot.standing == Standing::Leaving {
            self.leaving -= 1;
        }
        if let Some(began) = slot.began {
            self.busy.remove(&(began, slot.instance));
        }
        if let Some((at, _)) = slot.idle {
            self.idle.remove(&at);
        }
        self.gone(slot.instance);
        self.settle(agent);
        for ask in slot.parked {
            match self.still(&ask) {
                Ok(()) => self.ask(agent, ask, ctx),
                Err(refusal) => ask.refuse(refusal),
            }
        }
    }

    /// Whether what was parked may still be handed on.
    fn still(&self, ask: &Ask) -> Result<(), Refusal> {
        match ask.run.work {
            Work::Open => self.holds(ask.admitted),
            Work::Invoke { .. } | Work::Delete => self.admits(ask.admitted),
        }
    }

    /// Tells every agent of what was lost to end. The receiver hears when none is left.
    fn sweep(&mut self, sweep: &Sweep) -> oneshot::Receiver<()> {
        let lost: BTreeMap<ShardId, ShardEpoch> = sweep.shards.iter().copied().collect();
        let covers = |admitted: Admitted| lost.get(&admitted.shard).is_some_and(|epoch| admitted.epoch <= *epoch);
        self.held.retain(|shard, epoch| !covers(Admitted { shard: *shard, epoch: *epoch }));
        self.latched.retain(|_, (admitted, _)| !covers(*admitted));
        let (mut left, mut refused) = (BTreeSet::new(), Vec::new());
        let mut touched = Vec::new();
        for (agent, slot) in &mut self.slots {
            refused.extend(slot.parked.extract_if(.., |ask| covers(ask.admitted)));
            if covers(slot.admitted) {
                if slot.standing == Standing::Leaving {
                    self.leaving -= 1;
                }
                slot.standing = Standing::Stopping;
                // Again for one that is ending already: this grace may be shorter.
                slot.addr.do_send(Stop { grace: sweep.grace });
                left.insert(slot.instance);
                touched.push(agent.clone());
            }
        }
        touched.iter().for_each(|agent| self.settle(agent));
        for ask in refused {
            let refusal = self.handoff(ask.admitted.shard);
            ask.refuse(refusal);
        }
        tracing::info!(shards = sweep.shards.len(), agents = left.len(), "sweeping");
        let (done, swept) = oneshot::channel();
        if left.is_empty() {
            // Nobody listens only if the LeaseHolder went away.
            let _ = done.send(());
        } else {
            self.sweeps.push(SweepUnderWay { left, done });
        }
        swept
    }

    /// `instance` is no more: sweeps that waited for it go on.
    fn gone(&mut self, instance: u64) {
        for sweep in &mut self.sweeps {
            sweep.left.remove(&instance);
        }
        for over in self.sweeps.extract_if(.., |sweep| sweep.left.is_empty()) {
            // The LeaseHolder may have gone away meanwhile.
            let _ = over.done.send(());
        }
    }
}

fn overloaded(resource: String, used: usize, limit: usize) -> Refusal {
    Refusal::Overloaded { resource, used: used as u64, limit: limit as u64 }
}

impl Actor for AgentHost {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        if let Some(after) = self.parts.limits.idle_after {
            self.look_at_idle(after, ctx);
        }
        if self.parts.around.archiver.is_some() {
            self.sweep_archive_later(ctx);
        }
    }
}

impl Handler<Invoke> for AgentHost {
    type Result = ResponseFuture<Result<InvocationAnswer, CallError>>;

    fn handle(&mut self, invoke: Invoke, ctx: &mut Self::Context) -> Self::Result {
        let Invoke { invocation: Invocation { agent, method, payload, idempotency_key: key }, admitted, until } =
            invoke;
        let (ask, pending) = Ask::new(admitted, Work::Invoke { method, payload, key }, until);
        match self.admits(admitted) {
            Ok(()) => self.ask(&agent, ask, ctx),
            Err(refusal) => ask.refuse(refusal),
        }
        let (host, executor, metrics) = (ctx.address(), self.parts.name.clone(), self.parts.around.metrics.clone());
        Box::pin(async move {
            let answer = pending.answer(&agent, &host).await;
            metrics.count_invocation(outcome(&answer));
            let Admitted { shard, epoch } = admitted;
            answer.map(|Reply { payload, replayed }| InvocationAnswer { payload, shard, epoch, executor, replayed })
        })
    }
}

fn outcome(answer: &Result<Reply, CallError>) -> &'static str {
    match answer {
        Ok(Reply { replayed: false, .. }) => "answered",
        Ok(Reply { replayed: true, .. }) => "replayed",
        Err(error) => error.reason(),
    }
}

impl Handler<Open> for AgentHost {
    type Result = ResponseFuture<Result<(), CallError>>;

    fn handle(&mut self, Open { agent, held }: Open, ctx: &mut Self::Context) -> Self::Result {
        let (ask, pending) = Ask::new(held, Work::Open, Tick::NEVER);
        match self.holds(held) {
            Ok(()) => self.ask(&agent, ask, ctx),
            Err(refusal) => ask.refuse(refusal),
        }
        let host = ctx.address();
        Box::pin(async move { pending.answer(&agent, &host).await.map(|_| ()) })
    }
}

impl Handler<Answered> for AgentHost {
    type Result = ();

    fn handle(&mut self, answered: Answered, _: &mut Self::Context) {
        self.answered(&answered);
    }
}

impl Handler<Sweep> for AgentHost {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, sweep: Sweep, _: &mut Self::Context) -> Self::Result {
        let swept = self.sweep(&sweep);
        Box::pin(async move {
            // Closed without a word only when the host itself ends, and its agents with it.
            let _ = swept.await;
        })
    }
}

impl Handler<Recover> for AgentHost {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, recover: Recover, ctx: &mut Self::Context) -> Self::Result {
        self.recoveries += 1;
        self.held.extend(recover.shards.iter().copied());
        let limits = self.parts.limits;
        let recovery = recovery::recover(ctx.address(), self.parts.around.clone(), limits.recoveries, recover.shards);
        Box::pin(recovery.into_actor(self).map(|(), host, _| {
            host.recoveries -= 1;
            if host.recoveries == 0 {
                host.deleted.clear();
            }
        }))
    }
}

impl Handler<AgentStopped> for AgentHost {
    type Result = ();

    fn handle(&mut self, AgentStopped { agent, instance, panicked }: AgentStopped, ctx: &mut Self::Context) {
        if panicked {
            self.parts.around.metrics.agent_panics.inc();
            tracing::error!(%agent, "the agent's code panicked; its callers were answered unknown");
        }
        if self.slots.get(&agent).is_some_and(|slot| slot.instance == instance) {
            self.bury(&agent, ctx);
        } else {
            self.gone(instance);
        }
    }
}

impl Handler<AgentFenced> for AgentHost {
    type Result = ();

    fn handle(&mut self, AgentFenced { agent, instance, recorded }: AgentFenced, _: &mut Self::Context) {
        let Some(slot) = self.slots.get_mut(&agent).filter(|slot| slot.instance == instance) else { return };
        let admitted = slot.admitted;
        if slot.standing == Standing::Leaving {
            self.leaving -= 1;
        }
        slot.standing = Standing::Stopping;
        slot.addr.do_send(Stop { grace: Duration::ZERO });
        // Without a record F1 lets the same writer claim anew, so only a recorded owner latches.
        if let Some(recorded) = recorded {
            if self.latched.len() >= self.parts.limits.agents {
                self.latched.pop_first();
            }
            self.latched.insert(agent.clone(), (admitted, recorded));
        }
        let Admitted { shard, epoch: held } = admitted;
        tracing::warn!(%agent, %shard, %held, ?recorded, "storage fenced the agent");
        // Lost only if the LeaseHolder is gone, and then the fence is closed.
        self.parts.fenced.do_send(Fenced { shard, held, recorded });
        self.settle(&agent);
    }
}

#[cfg(test)]
#[path = "agent_host_tests.rs"]
mod tests;
