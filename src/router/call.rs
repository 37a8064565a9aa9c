//! One call on its way: attempt, decide, pause, until it is answered, refused for good, or out of time.

use super::error::{Attempts, RouterError};
use super::policy::{self, Facts, Next, Outcome};
use super::request::Request;
use super::table::{Hold, Located};
use super::{RouterSettings, Shared};
use leasehold_model::message::{InvocationAnswer, Owner};
use leasehold_model::{CallError, ExecutorId, ShardId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Whether a call may have run, for who stops waiting for it: an attempt is under way, or one ended without an answer that says no.
#[derive(Debug, Default)]
pub struct Doubt(AtomicBool);

impl Doubt {
    /// Whether the call may have run.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Notes whether it may have.
    pub(crate) fn set(&self, may_have_run: bool) {
        self.0.store(may_have_run, Ordering::Release);
    }
}

pub(super) struct Call<'r> {
    router: &'r Shared,
    request: Request,
    within: Duration,
    deadline: Instant,
    doubt: &'r Doubt,
    attempts: Attempts,
    shard: Option<ShardId>,
    /// Whom the last refusal named.
    hint: Option<Owner>,
    hints: u32,
    tries: u32,
    /// Who timed out last, and how often in a row.
    slow: Option<(ExecutorId, u32)>,
}

/// Whom one attempt asks, and what the table said when it was chosen.
struct Target {
    owner: Owner,
    by_table: Option<Hold>,
}

impl<'r> Call<'r> {
    pub(super) fn new(router: &'r Shared, request: Request, within: Duration, doubt: &'r Doubt) -> Self {
        let deadline = Instant::now() + within;
        let attempts = Attempts::default();
        let (hint, hints, tries, slow) = (None, 0, 0, None);
        Self { router, request, within, deadline, doubt, attempts, shard: None, hint, hints, tries, slow }
    }

    pub(super) async fn run(mut self) -> Result<InvocationAnswer, RouterError> {
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                return Err(self.out_of_time());
            }
            let located = self.router.tables.locate(self.request.agent());
            self.shard = located.as_ref().map(|located| located.shard).or(self.shard);
            let by_table = located.as_ref().and_then(Located::hold);
            let (asked, outcome) = match self.target(located, by_table) {
                Err(outcome) => (None, outcome),
                Ok(target) => match self.attempt(&target, remaining).await {
                    Ok(answer) => return Ok(answer),
                    Err(outcome) => (Some(target.owner), outcome),
                },
            };
            self.attempts.note(asked.as_ref(), &outcome);
            self.doubt.set(self.attempts.may_have_run);
            let asked = asked.map(|owner| owner.executor);
            let step = policy::decide(&outcome, Facts { keyed: true, asked, hints: self.hints });
            if step.refresh {
                self.router.tables.refresh();
            }
            match step.next {
                Next::GiveUp => return Err(self.given_up(outcome)),
                Next::FollowHint => self.follow(&outcome),
                Next::Wait(least) => self.pause(least, by_table).await?,
            }
            self.router.metrics.retried(&outcome);
        }
    }

    fn settings(&self) -> &'r RouterSettings {
        &self.router.settings
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn target(&mut self, located: Option<Located>, by_table: Option<Hold>) -> Result<Target, Outcome> {
        if let Some(owner) = self.hint.take() {
            return Ok(Target { owner, by_table });
        }
        let owner = located.ok_or(Outcome::NoTable)?.owner;
        owner.map(|(owner, _)| Target { owner, by_table }).ok_or(Outcome::NoOwner)
    }

    async fn attempt(&mut self, target: &Target, remaining: Duration) -> Result<InvocationAnswer, Outcome> {
        let asked = target.owner.executor;
        let timeouts = self.slow.filter(|(executor, _)| *executor == asked).map_or(0, |(_, times)| times);
        let bound = policy::attempt_bound(remaining, self.settings().attempt_timeout, timeouts);
        let began = Instant::now();
        self.router.metrics.attempted();
        self.doubt.set(true);
        let call = self.router.connections.send(&target.owner.address, self.request.clone(), bound);
        // An owner that went silent is left as soon as the table names another: its shard was taken from it.
        let moved_away =
            self.router.tables.owner(self.request.agent(), |hold| Some(hold) != target.by_table && hold.0 != asked);
        let ended = tokio::select! {
            biased;
            ended = timeout(bound, call) => ended,
            () = moved_away => return Err(Outcome::Moved),
        };
        let outcome = match ended {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(CallError::Refused(refusal))) => Outcome::Refused(refusal),
            Ok(Err(CallError::Unreachable(why))) => Outcome::Unreachable(why),
            // The client under us keeps the same time: whether it or we noticed first is no difference.
            Ok(Err(CallError::Unknown(_))) if began.elapsed() >= bound - bound / 10 => Outcome::TimedOut,
            Ok(Err(CallError::Unknown(why))) => Outcome::Unknown(why),
            Err(_) => Outcome::TimedOut,
        };
        self.slow = (outcome == Outcome::TimedOut).then(|| (asked, timeouts.saturating_add(1)));
        Err(outcome)
    }

    fn follow(&mut self, outcome: &Outcome) {
        if let Outcome::Refused(leasehold_model::Refusal::WrongOwner { owner, .. }) = outcome {
            self.hint.clone_from(owner);
            self.hints += 1;
        }
    }

    /// Backs off, cut short when the table names an owner that it did not name before. After that hints count anew.
    async fn pause(&mut self, least: Duration, by_table: Option<Hold>) -> Result<(), RouterError> {
        self.hints = 0;
        let settings = self.settings();
        let wish = policy::back_off(self.tries, settings.back_off_first, settings.back_off_most, rand::random());
        self.tries = self.tries.saturating_add(1);
        let Some(wait) = policy::pause(wish.max(least), self.remaining(), settings.back_off_first) else {
            return Err(self.out_of_time());
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = self.router.tables.owner(self.request.agent(), |hold| Some(hold) != by_table) => {}
        }
        Ok(())
    }

    fn given_up(&mut self, outcome: Outcome) -> RouterError {
        match outcome {
            Outcome::Refused(refusal) => RouterError::Refused { refusal, attempts: std::mem::take(&mut self.attempts) },
            Outcome::Unreachable(_)
            | Outcome::Unknown(_)
            | Outcome::TimedOut
            | Outcome::Moved
            | Outcome::NoOwner
            | Outcome::NoTable => self.out_of_time(),
        }
    }

    fn out_of_time(&mut self) -> RouterError {
        RouterError::DeadlineExceeded {
            agent: self.request.agent().clone(),
            shard: self.shard,
            within: self.within,
            attempts: std::mem::take(&mut self.attempts),
        }
    }
}
