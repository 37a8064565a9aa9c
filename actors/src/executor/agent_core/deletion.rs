//! Deleting an agent (F5). Its one moment is the store's: before it the agent is whole, after it gone. So a deletion that is cut
//! short before has done nothing, whoever asks again is answered by the next owner, and one that is cut short after has happened.
//! It needs nothing of what a replay would read: an oplog that cannot be read can still be deleted.

use super::super::agent_outcome::given_up;
use super::super::agent_phase::{Deletion, Phase};
use super::{APPEND_ATTEMPTS, AgentCore, Effect, Job, Reply, Work};
use leasehold_model::{CallError, Refusal};
use leasehold_persistence::oplog::{EntryIndex, Error};

impl AgentCore {
    /// Deletes right after the claim, if that is what waits first. `next` is the index that the claim gave.
    pub(super) fn delete_unread(&mut self, next: EntryIndex, out: &mut Vec<Effect>) -> bool {
        while let Some(job) = self.queue.pop_front_if(|job| job.work == Work::Delete) {
            match self.gate(self.moment, &job) {
                Ok(()) => {
                    self.next = next;
                    self.delete(job, out);
                    return true;
                }
                Err(refusal) => out.push(Effect::Answer(job.id, Err(refusal.into()))),
            }
        }
        false
    }

    /// Does what is asked of a deleted agent and begins no new life: a recovery that found it running before, and another deletion.
    pub(super) fn stay_deleted(&mut self, out: &mut Vec<Effect>) {
        let begins_nothing = |job: &mut Job| matches!(job.work, Work::Open | Work::Delete);
        while self.gone
            && self.phase == Phase::Dormant
            && let Some(job) = self.queue.pop_front_if(begins_nothing)
        {
            match self.gate(self.moment, &job) {
                Ok(()) if job.work == Work::Delete => self.delete(job, out),
                Ok(()) => out.push(Effect::Answer(job.id, Ok(Reply::default()))),
                Err(refusal) => out.push(Effect::Answer(job.id, Err(refusal.into()))),
            }
        }
    }

    pub(super) fn delete(&mut self, job: Job, out: &mut Vec<Effect>) {
        self.enter(Phase::Deleting(Box::new(Deletion { job, doubt: None })), out);
    }

    pub(super) fn deleted(&mut self, mut deletion: Box<Deletion>, answer: Result<(), Error>, out: &mut Vec<Effect>) {
        let job = deletion.job.id;
        // Whatever became of it, what is known of the oplog is not to be trusted any more.
        self.phase = Phase::Dormant;
        self.gone = answer.is_ok();
        let refused = match answer {
            Ok(()) => return out.push(Effect::Answer(job, Ok(Reply::default()))),
            Err(Error::Fenced { recorded, .. }) => {
                return self.latch(recorded, Some((job, deletion.doubt.is_some())), out);
            }
            // An append of unknown outcome came in late: the deletion is of what is there now.
            Err(Error::IndexConflict { .. }) if self.conflicted != Some(job) => {
                self.conflicted = Some(job);
                return self.queue.push_front(deletion.job);
            }
            // The same deletion once more is harmless: it is of this life of the agent alone.
            Err(Error::Unknown(said)) => {
                deletion.doubt = Some(said.clone());
                if self.wait(APPEND_ATTEMPTS, out) {
                    self.phase = Phase::Deleting(deletion);
                    return;
                }
                Refusal::StoreUnavailable { why: said }
            }
            Err(Error::Unavailable(why)) => {
                if self.wait(APPEND_ATTEMPTS, out) {
                    self.phase = Phase::Deleting(deletion);
                    return;
                }
                Refusal::StoreUnavailable { why }
            }
            Err(error @ (Error::IndexConflict { .. } | Error::Corrupt { .. } | Error::Invalid(_))) => given_up(&error),
        };
        let answer = match deletion.doubt {
            Some(said) => CallError::Unknown(format!("{} may or may not be deleted: {said}", self.identity.agent)),
            None => refused.into(),
        };
        out.push(Effect::Answer(job, Err(answer)));
    }
}
