//! What can happen next.

use crate::scenario::Pace;
use crate::state::{Confirming, Flight, Manager, Message, Process, State, instant};
use leasehold_model::ShardId;
use leasehold_model::holder::{Purpose, Request, WorkId};
use std::fmt;

/// One thing that happens. Executors and managers are named by their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A timer of an executor fires, late by any time.
    HolderTimer(usize, Purpose),
    /// A timer of a manager fires, late by any time.
    LeaderTimer(usize),
    /// A message arrives; a call arrives at the manager in this slot.
    Deliver {
        /// Its place.
        message: usize,
        /// The manager, if it is a call.
        to: usize,
        /// A copy is still on its way.
        doubled: bool,
    },
    /// A call ends without an answer.
    CallFails(usize),
    /// An executor has stopped the agents of a sweep.
    Swept(usize, WorkId),
    /// An executor is asked to work, and writes if it admits that.
    Work(usize, ShardId),
    /// An executor dies.
    CrashExecutor(usize),
    /// An executor is started, as a new life.
    StartExecutor(usize),
    /// An executor is asked to stop.
    Shutdown(usize),
    /// An operator drains an executor.
    Drain(usize),
    /// A manager dies.
    CrashManager(usize),
    /// A manager becomes the leader, whether or not the one before knows.
    StartManager(usize),
    /// A manager's write reaches the store.
    Land(usize),
    /// The store's answer reaches the manager.
    Hear(usize),
    /// The store says that it did not take the write.
    RefuseWrite(usize),
    /// The store's answer is lost, or the request.
    Doubt(usize),
    /// A write in doubt is looked up.
    LookUp(usize),
    /// A write of a manager that has ended reaches the store.
    LandOrphan,
    /// A confirmation reaches the store.
    Check(usize),
    /// Its answer reaches the manager.
    Confirm(usize),
    /// The managers' store is emptied.
    Wipe,
    /// Faults stop: everything runs in time until every shard is served.
    Heal,
}

impl State {
    pub(crate) fn running_executors(&self) -> impl Iterator<Item = (usize, &Process)> {
        self.executors.iter().enumerate().filter_map(|(at, part)| Some((at, &**part.as_ref()?)))
    }

    pub(crate) fn running_managers(&self) -> impl Iterator<Item = (usize, &Manager)> {
        self.managers.iter().enumerate().filter_map(|(at, part)| Some((at, &**part.as_ref()?)))
    }

    pub(crate) fn actions(&self, pace: Pace, out: &mut Vec<Action>) {
        if self.breach.is_some() || self.healed.is_some() {
            return;
        }
        if self.now < self.until && (pace < Pace::Punctual || !self.is_due()) {
            out.push(Action::Tick);
        }
        self.executor_actions(out);
        self.manager_actions(out);
        self.message_actions(out);
        if !self.store.floating.is_empty() {
            out.push(Action::LandOrphan);
        }
        if self.budget.wipes > 0 {
            out.push(Action::Wipe);
        }
        if self.budget.heals > 0 && self.now == self.until {
            out.push(Action::Heal);
        }
    }

    /// Whether a manager, or a write of one, has something to do at this instant.
    fn is_due(&self) -> bool {
        let due = |part: &Manager| {
            let timer = part.armed.is_some_and(|due| due <= instant(self.now));
            timer || part.flight.is_some() || part.confirming != Confirming::Idle
        };
        !self.store.floating.is_empty() || self.running_managers().any(|(_, part)| due(part))
    }

    fn executor_actions(&self, out: &mut Vec<Action>) {
        let now = instant(self.now);
        let budget = self.budget;
        for (at, process) in self.running_executors() {
            let due = process.timers.iter().filter(|(_, due)| **due <= now);
            out.extend(due.map(|(purpose, _)| Action::HolderTimer(at, *purpose)));
            out.extend(process.sweeps.keys().map(|id| Action::Swept(at, *id)));
            if process.call.is_some_and(|call| call.noted < now) || (process.call.is_some() && budget.failures > 0) {
                out.push(Action::CallFails(at));
            }
            if budget.works > 0 {
                out.extend(self.store.state.shard_count.shards().map(|shard| Action::Work(at, shard)));
            }
            if budget.executor_crashes > 0 {
                out.push(Action::CrashExecutor(at));
            }
            if budget.shutdowns > 0 && !process.holder.is_leaving() {
                out.push(Action::Shutdown(at));
            }
        }
        if budget.executor_starts > 0 {
            let dead = (0..self.executors.len()).filter(|at| self.executors[*at].is_none());
            out.extend(dead.map(Action::StartExecutor));
        }
    }

    fn manager_actions(&self, out: &mut Vec<Action>) {
        let now = instant(self.now);
        let budget = self.budget;
        for (at, manager) in self.running_managers() {
            if manager.armed.is_some_and(|due| due <= now) {
                out.push(Action::LeaderTimer(at));
            }
            match &manager.flight {
                Some(Flight::Sent(_)) => {
                    out.push(Action::Land(at));
                    out.extend((budget.doubts > 0).then_some(Action::Doubt(at)));
                    out.extend((budget.refusals > 0).then_some(Action::RefuseWrite(at)));
                }
                Some(Flight::Landed(_)) => {
                    out.push(Action::Hear(at));
                    out.extend((budget.doubts > 0).then_some(Action::Doubt(at)));
                }
                Some(Flight::InDoubt(_, due)) => {
                    out.extend(due.is_some().then_some(Action::Land(at)));
                    out.push(Action::LookUp(at));
                }
                None => {}
            }
            match manager.confirming {
                Confirming::Idle => {}
                Confirming::Asked => out.push(Action::Check(at)),
                Confirming::Checked(_) => out.push(Action::Confirm(at)),
            }
            if budget.manager_crashes > 0 {
                out.push(Action::CrashManager(at));
            }
            if budget.drains > 0 {
                let running = self.running_executors().map(|(executor, _)| Action::Drain(executor));
                out.extend(running);
            }
        }
        if budget.manager_starts > 0 {
            let dead = (0..self.managers.len()).find(|at| self.managers[*at].is_none());
            out.extend(dead.map(Action::StartManager));
        }
    }

    fn message_actions(&self, out: &mut Vec<Action>) {
        for (message, part) in self.net.iter().enumerate() {
            // Equal messages are one choice.
            if message > 0 && self.net[message - 1] == *part {
                continue;
            }
            let both = |to, out: &mut Vec<Action>| {
                out.push(Action::Deliver { message, to, doubled: false });
                if self.budget.doubles > 0 {
                    out.push(Action::Deliver { message, to, doubled: true });
                }
            };
            match &**part {
                Message::Call(..) => self.running_managers().for_each(|(to, _)| both(to, out)),
                // A write has one sender, which waits for it; a repeated one finds its index taken.
                Message::Write(..) => out.push(Action::Deliver { message, to: 0, doubled: false }),
                Message::Granted(..) | Message::Departed(..) | Message::Push(_) | Message::Claimed(..) => both(0, out),
            }
        }
    }

    /// `action` in words.
    #[must_use]
    pub fn describe(&self, action: &Action) -> String {
        let name = |at: &usize| char::from(b'A' + u8::try_from(*at).unwrap_or(25));
        match action {
            Action::Tick => format!("time passes: now {}", self.now + 1),
            Action::HolderTimer(at, purpose) => format!("{}: timer {purpose:?}", name(at)),
            Action::LeaderTimer(at) => format!("manager {at}: timer"),
            Action::Deliver { message, to, doubled } => {
                let text = self.net.get(*message).map(|message| message.to_string()).unwrap_or_default();
                let at = if text.contains("calls") { format!(" at manager {to}") } else { String::new() };
                format!("arrives{at}: {text}{}", if *doubled { " (a copy stays on its way)" } else { "" })
            }
            Action::CallFails(at) => format!("{}: its call ends without an answer", name(at)),
            Action::Swept(at, id) => format!("{}: sweep {} is over", name(at), id.0),
            Action::Work(at, shard) => format!("{}: asked to work on shard {shard}", name(at)),
            Action::CrashExecutor(at) => format!("{} dies", name(at)),
            Action::StartExecutor(at) => format!("{} is started as a new life", name(at)),
            Action::Shutdown(at) => format!("{} is asked to stop", name(at)),
            Action::Drain(at) => format!("an operator drains {}", name(at)),
            Action::CrashManager(at) => format!("manager {at} dies"),
            Action::StartManager(at) => format!("manager {at} takes over"),
            Action::Land(at) => format!("manager {at}: its write reaches the store"),
            Action::Hear(at) => format!("manager {at}: hears the store's answer"),
            Action::RefuseWrite(at) => format!("manager {at}: the store refuses its write"),
            Action::Doubt(at) => format!("manager {at}: the outcome of its write is unknown"),
            Action::LookUp(at) => format!("manager {at}: looks its write up"),
            Action::LandOrphan => "a write of a manager that has ended reaches the store".to_owned(),
            Action::Check(at) => format!("manager {at}: its confirmation reaches the store"),
            Action::Confirm(at) => format!("manager {at}: hears the store's confirmation"),
            Action::Wipe => "the store is wiped".to_owned(),
            Action::Heal => "faults stop".to_owned(),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = |holdings: &leasehold_model::set::Holdings| {
            let each = holdings.iter().map(|(shard, epoch)| format!("{shard}@{epoch}"));
            format!("{{{}}}", each.collect::<Vec<_>>().join(" "))
        };
        let name = |at: &usize| char::from(b'A' + u8::try_from(*at).unwrap_or(25));
        match self {
            Self::Call(from, attempt, request) => {
                let what = match request {
                    Request::Register(_) => "registers".to_owned(),
                    Request::Renew(renewal) => {
                        let claim = &renewal.claim;
                        format!("renews, claiming {} at revision {}", shards(&claim.shards), claim.applied)
                    }
                    Request::Deregister(_) => "deregisters".to_owned(),
                };
                write!(f, "{} calls ({}): {what}", name(from), attempt.number)
            }
            Self::Granted(to, attempt, Ok(grant)) => {
                write!(
                    f,
                    "grant to {} ({}): {} at revision {}",
                    name(to),
                    attempt.number,
                    shards(&grant.set.shards),
                    grant.set.revision
                )
            }
            Self::Granted(to, attempt, Err(error)) => {
                write!(f, "refusal to {} ({}): {error}", name(to), attempt.number)
            }
            Self::Departed(to, attempt, result) => write!(f, "answer to {} ({}): {result:?}", name(to), attempt.number),
            Self::Push(push) => {
                let (slot, life) = crate::state::slot_and_life(push.executor);
                let set = &push.set;
                write!(f, "push to {} (life {life}): {} at revision {}", name(&slot), shards(&set.shards), set.revision)
            }
            Self::Claimed(_, id, claim) => {
                let (slot, _) = crate::state::slot_and_life(*id);
                write!(
                    f,
                    "{} answers a push, claiming {} at revision {}",
                    name(&slot),
                    shards(&claim.shards),
                    claim.applied
                )
            }
            Self::Write(from, shard, writer, stage) => {
                write!(f, "{}'s {stage:?} of shard {shard} at epoch {}", name(from), writer.epoch)
            }
        }
    }
}
