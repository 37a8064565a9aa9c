//! How agents leave: deleted, or suspended to make room or after a time without work. And which there are.

use super::super::agent::{Leave, Surroundings};
use super::super::agent_core::Work;
use super::super::ask::Ask;
use super::super::oplog_health::StoreCall;
use super::{AgentHost, Standing, overloaded};
use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, ResponseFuture, WrapFuture};
use leasehold_model::agents::{AgentPage, AgentQuery, AgentStanding, DeletionAnswer, ListedAgent};
use leasehold_model::fence::Admitted;
use leasehold_model::{AgentId, CallError, Refusal, Tick};
use std::time::Duration;

/// Agents that may be on their way out while others have taken their places.
pub(super) const MAX_LEAVING: usize = 64;
/// How often idle agents are looked at: a quarter of [`HostLimits::idle_after`], within these bounds.
const LOOK_AT_IDLE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// rpc to `AgentHost`: delete this agent; the fence admitted it. It waits behind what was asked of the agent before.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<DeletionAnswer, CallError>")]
pub struct Delete {
    /// Which agent.
    pub agent: AgentId,
    /// Under which admission.
    pub admitted: Admitted,
    /// The caller waits until then (holder's clock): later it is not begun.
    pub until: Tick,
}

/// rpc to `AgentHost`: which agents are there?
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<AgentPage, CallError>")]
pub struct ListAgents(pub AgentQuery);

impl AgentHost {
    /// Makes sure that one more agent fits, suspending the one that was idle longest unless the newcomer is `patient`.
    pub(super) fn make_room(&mut self, patient: bool) -> Result<(), Refusal> {
        let limit = self.parts.limits.agents;
        let used = self.slots.len().saturating_sub(self.leaving);
        if used < limit {
            return Ok(());
        }
        let full = overloaded("agents in memory".to_owned(), used, limit);
        if patient || self.leaving >= MAX_LEAVING {
            return Err(full);
        }
        let Some(longest) = self.idle.first_key_value().map(|(_, agent)| agent.clone()) else { return Err(full) };
        self.parts.around.metrics.suspensions.inc();
        self.let_go(&longest);
        Ok(())
    }

    /// Lets an idle agent leave memory.
    pub(super) fn let_go(&mut self, agent: &AgentId) {
        let slot = self.slots.get_mut(agent).expect("an idle agent has a slot");
        slot.standing = Standing::Leaving;
        slot.addr.do_send(Leave);
        self.leaving += 1;
        self.settle(agent);
    }

    /// Suspends those that were idle for `after`, and comes back later.
    pub(super) fn look_at_idle(&mut self, after: Duration, ctx: &mut Context<Self>) {
        let now = self.parts.around.clock.now();
        while self.leaving < MAX_LEAVING
            && let Some(longest) = self.idle.first_key_value().map(|(_, agent)| agent.clone())
            && self.slots.get(&longest).and_then(|slot| slot.idle).is_some_and(|(_, since)| now.since(since) >= after)
        {
            self.parts.around.metrics.suspensions.inc();
            self.let_go(&longest);
        }
        let (least, most) = LOOK_AT_IDLE;
        ctx.run_later((after / 4).clamp(least, most), move |host, ctx| host.look_at_idle(after, ctx));
    }

    /// Sweeps the archive of the shards held after a while, and comes back when that is done.
    pub(super) fn sweep_archive_later(&mut self, ctx: &mut Context<Self>) {
        ctx.run_later(self.parts.limits.sweep_archive_every, |host, ctx| {
            let held = host.held.iter().map(|(shard, epoch)| Admitted { shard: *shard, epoch: *epoch }).collect();
            let around = host.parts.around.clone();
            let swept = async move { around.sweep_archive(held).await };
            ctx.spawn(swept.into_actor(host).map(|(), host, ctx| host.sweep_archive_later(ctx)));
        });
    }

    /// Where `agent` stands, which storage has marked as `running` or not.
    fn listed(&self, agent: AgentId, running: bool) -> ListedAgent {
        let standing = match self.slots.get(&agent) {
            Some(slot) if slot.outstanding > 0 => AgentStanding::Working,
            Some(_) => AgentStanding::Idle,
            None if running => AgentStanding::Unloaded,
            None => AgentStanding::Suspended,
        };
        ListedAgent { agent, standing }
    }
}

impl Handler<Delete> for AgentHost {
    type Result = ResponseFuture<Result<DeletionAnswer, CallError>>;

    fn handle(&mut self, Delete { agent, admitted, until }: Delete, ctx: &mut Self::Context) -> Self::Result {
        let (ask, pending) = Ask::new(admitted, Work::Delete, until);
        match self.admits(admitted) {
            Ok(()) => self.ask(&agent, ask, ctx),
            Err(refusal) => ask.refuse(refusal),
        }
        let (host, executor, metrics) = (ctx.address(), self.parts.name.clone(), self.parts.around.metrics.clone());
        Box::pin(async move {
            let answer = pending.answer(&agent, &host).await;
            metrics.count_deletion(answer.as_ref().map_or_else(CallError::reason, |_| "deleted"));
            let Admitted { shard, epoch } = admitted;
            answer.map(|_| {
                tracing::info!(%agent, %shard, %epoch, "agent deleted");
                DeletionAnswer { shard, epoch, executor }
            })
        })
    }
}

impl Handler<ListAgents> for AgentHost {
    type Result = ResponseActFuture<Self, Result<AgentPage, CallError>>;

    fn handle(&mut self, ListAgents(query): ListAgents, _: &mut Self::Context) -> Self::Result {
        let around = self.parts.around.clone();
        let stored = async move {
            let AgentQuery { shard, after, limit } = query;
            // One more tells whether that is all.
            let asked = around.store.agents(shard, after.as_ref(), limit + 1);
            let stored = Surroundings::timed(around.store_timeout, asked).await;
            around.note(StoreCall::Agents, (shard, None), stored.as_ref().map(drop));
            (stored, limit as usize)
        };
        Box::pin(stored.into_actor(self).map(|(stored, limit), host, _| {
            let mut stored = stored.map_err(|error| Refusal::StoreUnavailable { why: error.to_string() })?;
            let more = stored.len() > limit;
            stored.truncate(limit);
            let agents = stored.into_iter().map(|(agent, running)| host.listed(agent, running)).collect();
            Ok(AgentPage { agents, more })
        }))
    }
}
