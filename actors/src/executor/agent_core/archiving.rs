//! Moves to the archive layer, which go on beside the agent's jobs.

use super::super::agent_phase::Phase;
use super::{AgentCore, Effect};
use leasehold_persistence::oplog::Error;
use leasehold_persistence::oplog::layers::Moved;

impl AgentCore {
    /// Begins a move if one is due, wherever the oplog is open and the agent is not about to end.
    pub(super) fn look_at_layers(&mut self, out: &mut Vec<Effect>) {
        let open = matches!(
            self.phase,
            Phase::Idle | Phase::Finding(_) | Phase::Appending(_) | Phase::ReadingBack(_) | Phase::Consulting(_)
        );
        if open && self.closing.is_none() {
            self.archiving.look(self.moment.now, self.next, out);
        }
    }

    /// A move ended, whatever the agent does meanwhile. Being fenced latches here as on every path (F6); a call of the store that is under way
    /// hears the same, and says what became of its job.
    pub(super) fn archived(&mut self, phase: Phase, answer: Result<Moved, Error>, out: &mut Vec<Effect>) {
        self.archiving.ended(answer.as_ref().ok().copied(), self.moment.now);
        // Without a record it may be that this agent was deleted meanwhile; its own next call tells.
        let Err(Error::Fenced { recorded: recorded @ Some(_), .. }) = answer else {
            self.phase = phase;
            return;
        };
        match phase {
            Phase::Idle | Phase::Dormant => self.latch(recorded, None, out),
            Phase::Consulting(consulting) => {
                out.push(Effect::DropConsultation);
                self.latch(recorded, Some((consulting.job.id, false)), out);
            }
            Phase::Claiming
            | Phase::Replaying(_)
            | Phase::Finding(_)
            | Phase::Appending(_)
            | Phase::ReadingBack(_)
            | Phase::Suspending
            | Phase::Deleting(_)
            | Phase::Fenced(_)
            | Phase::Stopped => self.phase = phase,
        }
    }
}
