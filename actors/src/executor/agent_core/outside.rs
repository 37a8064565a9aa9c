//! Deciding outside: the agent's type asks an application what a method comes to. No call leaves for an agent that is fenced, or whose
//! shard is lost or being handed off (F6); each attempt is a call of its own (at least once), what it comes to is stored once.

use super::super::agent_outcome::backoff;
use super::super::agent_phase::{Closing, Consulting, Phase};
use super::super::agent_type::{Decision, Question, Undecided};
use super::{AgentCore, Effect, Job, Work};
use leasehold_model::Refusal;
use leasehold_model::fence::Closed;
use serde_json::Value;

impl AgentCore {
    /// What is to be asked for `job`; `state` is what the type wants said of the agent's state.
    pub(super) fn question(&self, job: &Job, payload: Value, state: Value) -> Question {
        let Work::Invoke { method, key, .. } = &job.work else {
            unreachable!("only invocations are decided, this is {job:?}")
        };
        Question {
            agent: self.identity.agent.clone(),
            method: method.clone(),
            payload,
            state,
            idempotency_key: key.clone(),
            epoch: self.identity.writer.epoch,
        }
    }

    /// Asks, if the agent may begin anything now.
    pub(super) fn consult(&mut self, mut consulting: Box<Consulting>, out: &mut Vec<Effect>) {
        let admitted = match self.closing {
            Some(Closing::Swept) => Err(self.identity.handoff()),
            Some(Closing::Leaving) | None => self.gate(self.moment, &consulting.job),
        };
        match admitted {
            Ok(()) => {
                consulting.asked = true;
                out.push(Effect::Consult(consulting.question.clone()));
                self.phase = Phase::Consulting(consulting);
            }
            Err(refusal) => self.refuse(&consulting.job, refusal, out),
        }
    }

    /// The application answered, or could not be asked.
    pub(super) fn decided(
        &mut self,
        mut consulting: Box<Consulting>,
        answer: Result<Decision, Undecided>,
        out: &mut Vec<Effect>,
    ) {
        let kind = self.identity.agent.kind().to_owned();
        // What was decided for an owner whose lease is over is not stored: its successor may be at work.
        if self.moment.gate == Err(Closed::NotReady) {
            let executor = self.identity.executor.to_string();
            return self.refuse(&consulting.job, Refusal::ShardingNotReady { executor }, out);
        }
        match answer {
            Ok(Decision::Outside(_)) => {
                let why = "it cannot ask in its turn".to_owned();
                self.refuse(&consulting.job, Refusal::AppFault { kind, why }, out);
            }
            Ok(decision) => self.settle(consulting.job, decision, out),
            Err(Undecided::Unusable(why)) => self.refuse(&consulting.job, Refusal::AppFault { kind, why }, out),
            Err(Undecided::Away(why)) => {
                consulting.attempts += 1;
                consulting.asked = false;
                let pause = backoff(consulting.attempts);
                if self.closing == Some(Closing::Swept) {
                    let refusal = self.identity.handoff();
                    self.refuse(&consulting.job, refusal, out);
                } else if self.moment.now.plus(pause) >= consulting.job.until {
                    self.refuse(&consulting.job, Refusal::AppUnavailable { kind, why }, out);
                } else {
                    out.push(Effect::Wait(pause));
                    self.phase = Phase::Consulting(consulting);
                }
            }
        }
    }

    fn refuse(&mut self, job: &Job, refusal: Refusal, out: &mut Vec<Effect>) {
        self.phase = Phase::Idle;
        out.push(Effect::Answer(job.id, Err(refusal.into())));
    }
}
