//! `ExecutorSession`: the order of pushes to one executor.
//!
//! Spawned by the `Leader`, one per registered executor. Only the newest set is ever pending; one push is in flight.
//! A push that fails or is not applied is repeated with backoff (R27) until it is applied, a newer set replaces it, or the executor's
//! renewals show that it has the set. Sends [`PushAnswered`] to the `Leader`. It changes no state. When it stops,
//! nothing is lost: the executor's next renewal carries the same set; a new session begins with the newest set.

use super::metrics::ManagerMetrics;
use crate::backoff::Backoff;
use actix::prelude::*;
use leasehold_model::message::{Push, PushAnswer};
use leasehold_model::{CallError, Claim, ExecutorId, Revision};
use leasehold_rpc::api::ExecutorApi;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Deliver this set, whatever was to be delivered before.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Deliver(pub Push);

/// The executor has applied this revision: nothing up to it need be repeated.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Delivered(pub Revision);

/// The executor is gone.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Close;

/// To the `Leader`: an executor answered a push with its claim (R22).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PushAnswered {
    /// Who.
    pub executor: ExecutorId,
    /// What it holds.
    pub claim: Option<Claim>,
}

/// The actor; see the module.
pub struct ExecutorSession {
    executor: ExecutorId,
    link: Arc<dyn ExecutorApi>,
    deadline: Duration,
    leader: Arc<Recipient<PushAnswered>>,
    newest: Option<Push>,
    in_flight: bool,
    backoff: Backoff,
    timer: Option<SpawnHandle>,
    metrics: ManagerMetrics,
}

impl ExecutorSession {
    /// The first pause after a failed push.
    const FIRST_PAUSE: Duration = Duration::from_millis(50);

    /// Pushes to `executor` through `link`; each attempt may take `deadline`, pauses grow up to it.
    #[must_use]
    pub fn new(
        executor: ExecutorId,
        link: Arc<dyn ExecutorApi>,
        deadline: Duration,
        leader: Arc<Recipient<PushAnswered>>,
        metrics: ManagerMetrics,
    ) -> Self {
        let backoff = Backoff::new(Self::FIRST_PAUSE, deadline);
        Self { executor, link, deadline, leader, newest: None, in_flight: false, backoff, timer: None, metrics }
    }

    fn push(&mut self, ctx: &mut Context<Self>) {
        self.disarm(ctx);
        let Some(push) = self.newest.clone() else { return };
        if self.in_flight {
            return;
        }
        self.in_flight = true;
        let (link, deadline, revision) = (Arc::clone(&self.link), self.deadline, push.set.revision);
        let answer = async move {
            let late = |_| Err(CallError::Unknown(format!("no answer within {deadline:?}")));
            timeout(deadline, link.assign(push)).await.unwrap_or_else(late)
        };
        ctx.spawn(answer.into_actor(self).map(move |answer, actor, ctx| actor.answered(revision, answer, ctx)));
    }

    fn answered(&mut self, revision: Revision, answer: Result<PushAnswer, CallError>, ctx: &mut Context<Self>) {
        self.in_flight = false;
        let applied = match answer {
            Ok(PushAnswer { applied, claim }) => {
                // The Leader's own mailbox holds at most one of these per executor.
                self.leader.do_send(PushAnswered { executor: self.executor, claim });
                self.metrics.pushed(if applied { "applied" } else { "not_applied" });
                applied
            }
            Err(error) => {
                self.metrics.pushed("failed");
                let (executor, revision) = (self.executor, revision.0);
                tracing::warn!(%executor, revision, %error, "a push failed; it will be repeated");
                false
            }
        };
        if applied {
            self.done_up_to(revision);
        }
        match &self.newest {
            // A newer set has come meanwhile: it has waited long enough.
            Some(newest) if newest.set.revision > revision => self.push(ctx),
            Some(_) => {
                self.metrics.repaired();
                let pause = self.backoff.next(rand::random());
                self.timer = Some(ctx.run_later(pause, |actor, ctx| actor.push(ctx)));
            }
            None => {}
        }
    }

    fn done_up_to(&mut self, revision: Revision) {
        if self.newest.as_ref().is_some_and(|newest| newest.set.revision <= revision) {
            self.newest = None;
        }
        self.backoff.reset();
    }

    fn disarm(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
    }
}

impl Actor for ExecutorSession {
    type Context = Context<Self>;
}

impl Handler<Deliver> for ExecutorSession {
    type Result = ();
    fn handle(&mut self, Deliver(push): Deliver, ctx: &mut Self::Context) {
        if self.newest.as_ref().is_none_or(|newest| newest.set.revision < push.set.revision) {
            self.newest = Some(push);
        }
        self.push(ctx);
    }
}

impl Handler<Delivered> for ExecutorSession {
    type Result = ();
    fn handle(&mut self, Delivered(revision): Delivered, ctx: &mut Self::Context) {
        self.done_up_to(revision);
        if self.newest.is_none() {
            self.disarm(ctx);
        }
    }
}

impl Handler<Close> for ExecutorSession {
    type Result = ();
    fn handle(&mut self, _: Close, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
