//! The ways out: asked to (R37), refused for good (R16, R23), nobody answers (R38), nobody left to serve.

use super::event::{Attempt, Effect, Exit, Loss, Purpose, Request};
use super::{Holder, Phase};
use crate::message::Deregistration;
use crate::refusal::CallError;
use crate::set::Holdings;
use crate::time::Tick;
use std::time::Duration;

/// How much longer than its grace a sweep may take before a leaving process stops waiting for it. It then leaves without
/// deregistering: what it has not let go of is not given back, the lease runs out instead.
pub const SWEEP_SLACK: Duration = Duration::from_secs(5);

/// The longest that the one attempt to deregister may take.
pub const DEREGISTER_LIMIT: Duration = Duration::from_secs(5);

/// How to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// How long running invocations may take.
    grace: Duration,
    /// Whether to give back what was held.
    deregister: bool,
    /// Whether the lease is kept until everything is swept.
    renewing: bool,
}

impl Manner {
    /// The shards are lost, or about to be: nothing more is admitted, or renewed.
    pub(super) const fn at_once(deregister: bool) -> Self {
        Self { grace: Duration::ZERO, deregister, renewing: false }
    }
}

/// On the way out, while sweeps run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Leaving {
    exit: Exit,
    pub(super) deregister: bool,
    pub(super) renewing: bool,
}

impl Holder {
    /// R37. The lease is renewed while running invocations finish: their grace may be longer than it.
    pub(super) fn shutdown(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.is_leaving() {
            return self.exit(Exit { code: 1, why: "asked a second time to stop".to_owned() }, out);
        }
        let manner = Manner { grace: self.settings.handoff_grace, deregister: true, renewing: true };
        self.leave(now, Exit { code: 0, why: "asked to stop".to_owned() }, manner, out);
    }

    pub(super) fn leave(&mut self, now: Tick, exit: Exit, manner: Manner, out: &mut Vec<Effect>) {
        let Manner { grace, deregister, renewing } = manner;
        if let Phase::Leaving(leaving) = &mut self.phase {
            // Refused while it left anyway: the asked-for end stays, the rest is given up.
            leaving.deregister &= deregister;
            leaving.renewing = false;
        } else {
            self.phase = Phase::Leaving(Leaving { exit, deregister, renewing });
        }
        if !renewing {
            self.end_lease(out);
        }
        self.lose(grace, |_, _| Some(Loss::Leaving), out);
        self.shards.assign(&Holdings::default());
        self.wait_until(now.plus(grace).plus(SWEEP_SLACK), out);
        self.finish(now, out);
    }

    /// Goes on once everything is swept. Whatever call is in flight is not waited for (R17).
    pub(super) fn finish(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let Phase::Leaving(leaving) = &self.phase else { return };
        if self.shards.is_draining() {
            return;
        }
        let Leaving { exit, deregister, .. } = leaving.clone();
        self.end_lease(out);
        if self.call.take().is_some() {
            out.push(Effect::CancelCall);
        }
        if !deregister || !self.asked {
            return self.exit(exit, out);
        }
        self.phase = Phase::Deregistering(exit);
        let attempt = self.attempt(now);
        let within = self.within().min(DEREGISTER_LIMIT);
        let Self { life, .. } = self;
        let request =
            Request::Deregister(Deregistration { executor: life.executor, lease_key: life.lease_key.clone() });
        out.push(Effect::Call { attempt, request, within });
        self.wait_until(now.plus(within).plus(SWEEP_SLACK), out);
    }

    fn wait_until(&mut self, at: Tick, out: &mut Vec<Effect>) {
        self.leave_until = at;
        out.push(Effect::Arm { purpose: Purpose::Leave, at });
    }

    /// One attempt was all there is: however it ended, the process ends.
    pub(super) fn deregistered(&mut self, attempt: Attempt, _: Result<(), CallError>, out: &mut Vec<Effect>) {
        if let Phase::Deregistering(exit) = &self.phase
            && self.call == Some(attempt)
        {
            self.call = None;
            self.exit(exit.clone(), out);
        }
    }

    /// The longest wait is over.
    pub(super) fn stop_waiting(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if now < self.leave_until {
            return;
        }
        match &self.phase {
            Phase::Leaving(Leaving { exit, .. }) => {
                let left = self.shards.draining().len();
                let why = format!("{}; {left} shards were not let go of in time and are not given back", exit.why);
                let code = exit.code.max(1);
                self.exit(Exit { code, why }, out);
            }
            Phase::Deregistering(exit) => self.exit(exit.clone(), out),
            Phase::New | Phase::Active | Phase::Unborn | Phase::Gone => {}
        }
    }

    /// R38: only a process that was never granted anything gives up.
    pub(super) fn lose_patience(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.ever_granted || self.is_leaving() || now < self.patience_until {
            return;
        }
        let patience = self.settings.registration_patience;
        let last = self.last_failure.as_deref().unwrap_or("the first attempt is still unanswered");
        let why = format!(
            "no manager took the registration within {patience:?}: {} attempts at {}; the last one: {last}",
            self.attempts, self.settings.managers
        );
        self.leave(now, Exit { code: 69, why }, Manner::at_once(true), out);
    }

    /// Nothing can be swept or recovered any more: the fence closes and stays closed, and what was held is given back,
    /// for storage to fence what still runs (S6).
    pub(super) fn host_gone(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Deregistering(_) | Phase::Gone) {
            return;
        }
        self.end_lease(out);
        self.shards.abandon();
        let deregister = match &self.phase {
            Phase::Leaving(leaving) => leaving.deregister,
            Phase::New | Phase::Active | Phase::Unborn | Phase::Deregistering(_) | Phase::Gone => true,
        };
        let exit = Exit { code: 1, why: "the agents' host is gone".to_owned() };
        self.phase = Phase::Leaving(Leaving { exit, deregister, renewing: false });
        self.finish(now, out);
    }

    fn exit(&mut self, exit: Exit, out: &mut Vec<Effect>) {
        if self.phase == Phase::Gone {
            return;
        }
        self.phase = Phase::Gone;
        self.end_lease(out);
        if self.call.take().is_some() {
            out.push(Effect::CancelCall);
        }
        out.push(Effect::Exit(exit));
    }
}
