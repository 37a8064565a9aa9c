//! What has happened in time before anything is explored, and what of it is still on its way: messages may be late by any time.

use crate::action::Action;
use crate::protocol::Protocol;
use crate::scenario::Opening;
use crate::state::{Message, Part, Stage, State, instant};
use leasehold_model::ShardId;
use leasehold_model::holder::Purpose;

impl State {
    /// Takes one step of an opening and lets the world come to rest. What it leaves on its way is put into `late`.
    pub(crate) fn open(&mut self, protocol: &Protocol, opening: Opening, late: &mut Vec<Part<Message>>) {
        match opening {
            Opening::Start(at) => self.start_executor(protocol, at),
            Opening::Drain(at) => self.set_draining(protocol, at, true).expect("nothing is broken yet"),
            Opening::Undrain(at) => self.set_draining(protocol, at, false).expect("nothing is broken yet"),
            Opening::LateRenewal(at) => self.late_renewal(protocol, at, late),
            Opening::LateAppend(at) => self.late_append(protocol, at, late),
        }
        assert!(self.calm(protocol), "{}: no rest after {opening:?}: {:?}", protocol.scenario.name, self.breach);
    }

    fn late_renewal(&mut self, protocol: &Protocol, at: usize, late: &mut Vec<Part<Message>>) {
        let due = |state: &Self| {
            let process = state.executors[at].as_ref();
            process.and_then(|process| process.timers.get(&Purpose::Call)).is_some_and(|due| *due <= instant(state.now))
        };
        while !due(self) {
            self.go(protocol, Action::Tick);
        }
        self.go(protocol, Action::HolderTimer(at, Purpose::Call));
        let renewal = self.net.iter().find(|part| matches!(&***part, Message::Call(from, ..) if *from == at));
        late.push(renewal.expect("it renews").clone());
    }

    fn late_append(&mut self, protocol: &Protocol, at: usize, late: &mut Vec<Part<Message>>) {
        self.budget.works = 1;
        self.go(protocol, Action::Work(at, ShardId(0)));
        let write = |state: &Self, wanted: Stage| {
            let is = |part: &Part<Message>| matches!(&**part, Message::Write(.., stage) if *stage == wanted);
            state.net.iter().position(is)
        };
        if let Some(message) = write(self, Stage::Claim) {
            self.go(protocol, Action::Deliver { message, to: 0, doubled: false });
        }
        let message = write(self, Stage::Append).expect("its work is admitted");
        late.push(self.net.remove(message));
    }
}
