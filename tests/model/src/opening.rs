//! What has happened in time before anything is explored, and what of it is still on its way: messages may be late by any time.

use crate::action::Action;
use crate::protocol::Protocol;
use crate::scenario::Opening;
use crate::state::{Message, Part, Stage, State, instant, slot_and_life};
use leasehold_model::ShardId;
use leasehold_model::holder::Purpose;

impl State {
    /// Takes one step of an opening and lets the world come to rest. What it leaves on its way is put into `late`.
    pub(crate) fn open(&mut self, protocol: &Protocol, opening: Opening, late: &mut Vec<Part<Message>>) {
        match opening {
            Opening::Start(at) => self.start_executor(protocol, at),
            Opening::Drain(at) => self.set_draining(protocol, at, true).expect("nothing is broken yet"),
            Opening::Undrain(at) => self.set_draining(protocol, at, false).expect("nothing is broken yet"),
            Opening::LatePush(drained, to) => self.late_push(protocol, (drained, to), late),
            Opening::TakeOver(at) => self.be_followed(protocol, at),
            Opening::LateRenewal(at) => self.late_renewal(protocol, at, late),
            Opening::Work(at) => self.begin_work(protocol, at),
            Opening::LateAppend(at) => {
                self.begin_work(protocol, at);
                let append = self.write_on_its_way(Stage::Append).expect("its work is admitted");
                late.push(self.net.remove(append));
            }
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

    fn late_push(&mut self, protocol: &Protocol, (drained, to): (usize, usize), late: &mut Vec<Part<Message>>) {
        self.set_draining(protocol, drained, true).expect("nothing is broken yet");
        let gives = |part: &&Part<Message>| match &***part {
            Message::Push(push) => slot_and_life(push.executor).0 == to && !push.set.shards.is_empty(),
            Message::Call(..)
            | Message::Granted(..)
            | Message::Departed(..)
            | Message::Claimed(..)
            | Message::Write(..) => false,
        };
        loop {
            if let Some(push) = self.net.iter().find(gives) {
                return late.push(push.clone());
            }
            let action = self.next_in_time().expect("the shard moves at once");
            self.go(protocol, action);
        }
    }

    fn be_followed(&mut self, protocol: &Protocol, at: usize) {
        self.start_manager(protocol, at).expect("nothing is broken yet");
        let follows = |state: &Self| {
            let leader = state.store.owner;
            state.running_executors().all(|(_, process)| process.holder.claim().map(|claim| claim.manager) == leader)
        };
        while self.calm(protocol) && !follows(self) {
            self.go(protocol, Action::Tick);
        }
    }

    /// Work is admitted and claims the oplog if need be; its append is on its way.
    fn begin_work(&mut self, protocol: &Protocol, at: usize) {
        self.budget.works = 1;
        self.go(protocol, Action::Work(at, ShardId(0)));
        if let Some(message) = self.write_on_its_way(Stage::Claim) {
            self.go(protocol, Action::Deliver { message, to: 0, doubled: false });
        }
    }

    fn write_on_its_way(&self, wanted: Stage) -> Option<usize> {
        self.net.iter().position(|part| matches!(&**part, Message::Write(.., stage) if *stage == wanted))
    }
}
