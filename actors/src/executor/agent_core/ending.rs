//! How an agent ends, and how a job that cannot be done does.

use super::super::agent_outcome::{given_up, retryable};
use super::super::agent_phase::{Closing, Phase, Running};
use super::{APPEND_ATTEMPTS, AgentCore, Effect, JobId, OPEN_ATTEMPTS, Work};
use leasehold_model::{CallError, Refusal, ShardEpoch};
use leasehold_persistence::oplog::{Error, Writer};

impl AgentCore {
    /// F6: stops, refuses what waits, tells. `running` is the job under way and whether its entries may be stored.
    pub(super) fn latch(&mut self, recorded: Option<Writer>, running: Option<(JobId, bool)>, out: &mut Vec<Effect>) {
        let recorded = recorded.map(|writer| writer.epoch);
        let shown = recorded.unwrap_or(ShardEpoch::NEVER_OWNED);
        let refusal = self.identity.fenced(shown);
        if let Some((job, doubt)) = running {
            let unknown = || CallError::Unknown(format!("{refusal}; an earlier attempt may have been written"));
            out.push(Effect::Answer(job, Err(if doubt { unknown() } else { refusal.clone().into() })));
        }
        self.refuse_queue(&refusal, out);
        self.phase = Phase::Fenced(shown);
        out.push(Effect::TellFenced(recorded));
        if self.closing.is_some() {
            self.end(out);
        }
    }

    pub(super) fn stop(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.closing = Some(Closing::Swept);
        self.refuse_queue(&self.identity.handoff(), out);
        match phase {
            Phase::Finding(_) | Phase::Appending(_) | Phase::ReadingBack(_) | Phase::Deleting(_) => self.phase = phase,
            Phase::Consulting(consulting) if consulting.asked => self.phase = Phase::Consulting(consulting),
            Phase::Consulting(consulting) => {
                out.push(Effect::Answer(consulting.job.id, Err(self.identity.handoff().into())));
                self.end(out);
            }
            Phase::Dormant
            | Phase::Claiming
            | Phase::Replaying(_)
            | Phase::Idle
            | Phase::Suspending
            | Phase::Fenced(_)
            | Phase::Stopped => self.end(out),
        }
    }

    /// Ends now. An append under way may or may not be written: never claimed either way.
    pub(super) fn stop_now(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.refuse_queue(&self.identity.handoff(), out);
        match phase {
            Phase::Finding(job) => out.push(Effect::Answer(job.id, Err(self.identity.handoff().into()))),
            Phase::Consulting(consulting) => {
                out.push(Effect::DropConsultation);
                out.push(Effect::Answer(consulting.job.id, Err(self.identity.handoff().into())));
            }
            Phase::Deleting(deletion) => {
                let why = format!("shard {} was handed off while the agent was being deleted", self.identity.shard);
                out.push(Effect::Answer(deletion.job.id, Err(CallError::Unknown(why))));
            }
            Phase::Appending(running) | Phase::ReadingBack(running) => {
                let why = format!("shard {} was handed off while its entry was being written", self.identity.shard);
                out.push(Effect::Answer(running.job.id, Err(CallError::Unknown(why))));
            }
            Phase::Dormant
            | Phase::Claiming
            | Phase::Replaying(_)
            | Phase::Idle
            | Phase::Suspending
            | Phase::Fenced(_)
            | Phase::Stopped => {}
        }
        self.end(out);
    }

    pub(super) fn end(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Stopped;
        out.push(Effect::Stop);
    }

    /// Nobody can say what became of the append: the caller is told so, and the state is read again from the oplog. Its
    /// record is ours still, so that nothing need be written for that: a full disk stops no reader.
    pub(super) fn lose(&mut self, running: &Running, why: &str, out: &mut Vec<Effect>) {
        let said = running.doubt.as_ref().map(|said| format!("; the store said: {said}")).unwrap_or_default();
        let why = format!("the entry of {} may or may not be stored: {why}{said}", self.identity.agent);
        out.push(Effect::Answer(running.job.id, Err(CallError::Unknown(why))));
        self.phase = Phase::Dormant;
        if self.closing.is_none() {
            self.replayed = 0;
            self.enter(Phase::Replaying(None), out);
        }
    }

    pub(super) fn retry_or_give_up(&mut self, phase: Phase, error: Error, out: &mut Vec<Effect>) {
        if let Error::Fenced { recorded, .. } = error {
            return self.latch(recorded, None, out);
        }
        self.turn_away(&error, out);
        if retryable(&error) && !self.queue.is_empty() && self.wait(OPEN_ATTEMPTS, out) {
            self.phase = phase;
        } else {
            self.give_up(&error, out);
        }
    }

    /// A caller hears what is wrong after a few attempts, instead of his own time-out. Recoveries are patient.
    pub(super) fn turn_away(&mut self, error: &Error, out: &mut Vec<Effect>) {
        if self.attempts + 1 >= APPEND_ATTEMPTS {
            let (opens, invocations) = self.queue.drain(..).partition(|job| job.work == Work::Open);
            self.queue = invocations;
            self.refuse_queue(&given_up(error), out);
            self.queue = opens;
        }
    }

    /// The oplog cannot be opened: whoever waits is refused; the next job tries again.
    pub(super) fn give_up(&mut self, error: &Error, out: &mut Vec<Effect>) {
        self.refuse_queue(&given_up(error), out);
        self.phase = Phase::Dormant;
    }

    /// As [`Self::give_up`], for an oplog that is open and cannot be read; deletions need not read it and go on.
    pub(super) fn give_up_reading(&mut self, error: &Error, out: &mut Vec<Effect>) {
        let (deletions, others) = self.queue.drain(..).partition(|job| job.work == Work::Delete);
        self.queue = others;
        self.give_up(error, out);
        self.queue = deletions;
    }

    fn refuse_queue(&mut self, refusal: &Refusal, out: &mut Vec<Effect>) {
        out.extend(self.queue.drain(..).map(|job| Effect::Answer(job.id, Err(refusal.clone().into()))));
    }
}
