//! A world without faults: what is sent arrives, what is due happens, time passes.

use crate::action::Action;
use crate::mark::Mark;
use crate::protocol::Protocol;
use crate::state::{Confirming, Flight, Message, Process, State, instant};
use crate::truth::{Breach, Rule};

/// More steps than any instant needs.
const STEPS_AT_ONCE: usize = 400;
/// Processes that are started while the cluster heals, at most: one that ends itself again and again is not healed by that.
const RESTARTS: usize = 3;

/// What may still be done from outside while the cluster heals.
struct Hands {
    restarts: usize,
}

impl Hands {
    fn take(&mut self) -> bool {
        let some = self.restarts > 0;
        self.restarts = self.restarts.saturating_sub(1);
        some
    }
}

impl State {
    /// Faults stop here: L1.
    pub(crate) fn heal(&mut self, protocol: &Protocol) {
        let healing = Some(Hands { restarts: RESTARTS });
        let served = self.run_in_time(protocol, healing);
        self.healed = Some(served);
        if served {
            self.marks.add(Mark::Healed);
        } else if self.breach.is_none() {
            let unserved = self.unserved();
            let evidence = format!("shards {unserved:?} are not served {} units after faults stopped", limit(protocol));
            self.breach = Some(Breach { rule: Rule::L1, evidence });
        }
    }

    /// Lets everything run in time until every shard is served and nothing is under way. Answers whether that came to be.
    pub(crate) fn calm(&mut self, protocol: &Protocol) -> bool {
        self.run_in_time(protocol, None)
    }

    fn run_in_time(&mut self, protocol: &Protocol, mut healing: Option<Hands>) -> bool {
        for _ in 0..limit(protocol) {
            if let Some(hands) = &mut healing {
                self.bring_back(protocol, hands);
            }
            for _ in 0..STEPS_AT_ONCE {
                let Some(action) = self.next_in_time() else { break };
                self.go(protocol, action);
                if self.breach.is_some() {
                    return false;
                }
            }
            if self.unserved().is_empty() && self.net.is_empty() {
                return true;
            }
            self.go(protocol, Action::Tick);
            if self.breach.is_some() {
                return false;
            }
        }
        false
    }

    /// What is done for the cluster from outside: a supervisor starts an executor again if none is left that serves, somebody stands for
    /// leadership if nobody leads, and operators end their drains.
    fn bring_back(&mut self, protocol: &Protocol, hands: &mut Hands) {
        let mut well = Ok(());
        let leads = self.running_managers().any(|(_, part)| Some(part.leader.manager()) == self.store.owner);
        if !leads && hands.take() {
            let free = self.managers.iter().position(Option::is_none).unwrap_or(0);
            self.end_manager(free);
            well = self.start_manager(protocol, free);
        }
        let leaves = self.running_executors().all(|(_, process)| process.holder.is_leaving());
        if leaves && hands.take() {
            let free = self.executors.iter().position(Option::is_none).unwrap_or(0);
            self.start_executor(protocol, free);
        }
        if let Err(breach) = well.and_then(|()| self.end_drains(protocol)) {
            self.breach = Some(breach);
        }
    }

    /// Shards whose stored owner does not admit work at the stored epoch.
    fn unserved(&self) -> Vec<u32> {
        let now = instant(self.now);
        let served = |shard| {
            let row = self.store.state.shard(shard);
            let serves = |process: &Process| {
                row.is_some_and(|row| {
                    row.state.owner() == Some(process.holder.life().executor)
                        && process.fence.admits(now, shard) == Some(row.epoch)
                })
            };
            self.running_executors().any(|(_, process)| serves(process))
        };
        self.store.state.shard_count.shards().filter(|shard| !served(*shard)).map(|shard| shard.0).collect()
    }

    /// What happens next when nothing is late.
    pub(crate) fn next_in_time(&self) -> Option<Action> {
        let now = instant(self.now);
        if !self.store.floating.is_empty() {
            return Some(Action::LandOrphan);
        }
        for (at, manager) in self.running_managers() {
            match &manager.flight {
                Some(Flight::Sent(_)) => return Some(Action::Land(at)),
                Some(Flight::Landed(_)) => return Some(Action::Hear(at)),
                Some(Flight::InDoubt(..)) => return Some(Action::LookUp(at)),
                None => {}
            }
            match manager.confirming {
                Confirming::Asked => return Some(Action::Check(at)),
                Confirming::Checked(_) => return Some(Action::Confirm(at)),
                Confirming::Idle => {}
            }
        }
        if let Some(message) = self.net.first() {
            let leader = self.running_managers().find(|(_, part)| Some(part.leader.manager()) == self.store.owner);
            let to = match &**message {
                Message::Call(..) => leader.map_or(0, |(at, _)| at),
                Message::Granted(..)
                | Message::Departed(..)
                | Message::Push(_)
                | Message::Claimed(..)
                | Message::Write(..) => 0,
            };
            return Some(Action::Deliver { message: 0, to, doubled: false });
        }
        for (at, process) in self.running_executors() {
            if let Some(id) = process.sweeps.keys().next() {
                return Some(Action::Swept(at, *id));
            }
            if process.call.is_some_and(|call| call.noted < now) {
                return Some(Action::CallFails(at));
            }
            if let Some((purpose, _)) = process.timers.iter().find(|(_, due)| **due <= now) {
                return Some(Action::HolderTimer(at, *purpose));
            }
        }
        let due = |at: &usize| self.managers[*at].as_ref().is_some_and(|part| part.armed.is_some_and(|due| due <= now));
        (0..self.managers.len()).find(due).map(Action::LeaderTimer)
    }
}

/// Within this many units every shard is served again: three of the longest leases and a few passes.
fn limit(protocol: &Protocol) -> usize {
    let (first, later) = protocol.scenario.leases;
    usize::from(first.max(later)) * 3 + 6
}
