//! What is asked of an agent, on its way there and back.

use super::agent::Run;
use super::agent_core::{Reply, Work};
use super::agent_host::AgentHost;
use actix::{Addr, Message};
use leasehold_model::fence::Admitted;
use leasehold_model::{AgentId, CallError, Refusal, Tick};
use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// `AgentHost` to itself: something asked of an agent was answered.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(super) struct Answered {
    pub(super) agent: AgentId,
    pub(super) instance: u64,
    /// It was deleted: unless something waits for it, it need not stay in memory.
    pub(super) deleted: bool,
}

/// Something asked of an agent, on its way to it.
pub(super) struct Ask {
    pub(super) admitted: Admitted,
    pub(super) run: Run,
    /// The incarnation that it was given to in the end, or [`NOWHERE`].
    pub(super) home: Rc<Cell<u64>>,
}

impl Ask {
    pub(super) fn new(admitted: Admitted, work: Work, until: Tick) -> (Self, Pending) {
        let (reply, answer) = oneshot::channel();
        let home = Rc::new(Cell::new(NOWHERE));
        let deletion = work == Work::Delete;
        let run = Run { work, until, reply };
        (Self { admitted, run, home: home.clone() }, Pending { answer, home, deletion })
    }

    /// Answers it as done, without an agent.
    pub(super) fn done(self) {
        // A caller that went away is answered in vain.
        let _ = self.run.reply.send(Ok(Reply::default()));
    }

    pub(super) fn refuse(self, refusal: Refusal) {
        // A caller that went away is refused in vain.
        let _ = self.run.reply.send(Err(refusal.into()));
    }
}

/// The other end of an [`Ask`].
pub(super) struct Pending {
    answer: oneshot::Receiver<Result<Reply, CallError>>,
    home: Rc<Cell<u64>>,
    deletion: bool,
}

impl Pending {
    /// Waits for the answer and tells the host that it came.
    pub(super) async fn answer(self, agent: &AgentId, host: &Addr<AgentHost>) -> Result<Reply, CallError> {
        let lost = |_| Err(CallError::Unknown(format!("agent {agent} ended while it worked on this")));
        let answer = self.answer.await.unwrap_or_else(lost);
        if self.home.get() != NOWHERE {
            // Ignores the mailbox's capacity on purpose: a lost note would count the agent as busy for ever.
            let deleted = self.deletion && answer.is_ok();
            host.do_send(Answered { agent: agent.clone(), instance: self.home.get(), deleted });
        }
        answer
    }
}

/// No incarnation.
const NOWHERE: u64 = 0;
