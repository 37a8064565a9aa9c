//! One step of the world: a process is handed what happened, and what it wants done is done.

use crate::action::Action;
use crate::bug::Bug;
use crate::mark::Mark;
use crate::protocol::Protocol;
use crate::state::{Manager, Message, Oplog, Part, Process, Stage, State, Store, executor_id, instant};
use crate::truth::{Breach, Rule, Truth};
use leasehold_model::holder::Event as HolderEvent;
use leasehold_model::oplog::Writer;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, ShardCount, ShardId, Tick};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a step comes to: a broken invariant ends it.
pub(crate) type Stepped = Result<(), Breach>;

impl State {
    /// Every executor that runs at the beginning is registered, and every shard served.
    pub(crate) fn first(protocol: &Protocol) -> Self {
        let scenario = &protocol.scenario;
        let name = ClusterName::new("model").expect("a valid name");
        let count = ShardCount::new(scenario.shards).expect("a valid count");
        let empty = Arc::new(ClusterState::empty(name, count));
        let oplogs = vec![Oplog::default(); scenario.shards as usize];
        let mut state = Self {
            now: 0,
            until: 0,
            budget: crate::scenario::Budget::default(),
            executors: vec![None; scenario.executors.0],
            lives: vec![0; scenario.executors.0],
            managers: vec![None; scenario.managers],
            net: Vec::new(),
            store: Part::new(Store {
                state: empty,
                owner: None,
                last: (None, 0),
                floating: Vec::new(),
                managers: 0,
                previous: None,
            }),
            oplogs: Part::new(oplogs),
            truth: Part::new(Truth::default()),
            breach: None,
            healed: None,
            marks: Default::default(),
        };
        let sound = Protocol::new(*scenario, None);
        state.start_manager(&sound, 0).expect("nothing is broken yet");
        for at in 0..scenario.executors.1 {
            state.start_executor(&sound, at);
        }
        assert!(state.calm(&sound), "{}: the world does not come to rest: {:?}", scenario.name, state.breach);
        let mut late = Vec::new();
        for opening in scenario.opening {
            state.open(&sound, *opening, &mut late);
        }
        state.net.extend(late);
        state.net.sort_unstable_by_key(Part::order);
        state.budget = scenario.budget;
        state.until = state.now + scenario.horizon;
        state.marks = Default::default();
        state
    }

    /// This state after `action`.
    pub(crate) fn after(&self, protocol: &Protocol, action: Action) -> Self {
        let mut next = self.clone();
        next.marks = Default::default();
        if action == Action::Heal {
            next.budget.heals = 0;
            next.heal(protocol);
            // What healing does in time was not explored: it counts as nothing reached.
            next.marks = next.marks.only(Mark::Healed);
            return next;
        }
        next.go(protocol, action);
        next
    }

    /// Takes `action`, and looks at everything afterwards.
    pub(crate) fn go(&mut self, protocol: &Protocol, action: Action) {
        let stepped = self.step(protocol, action).and_then(|()| self.observe(protocol));
        if let Err(breach) = stepped {
            self.breach = Some(breach);
        }
        self.net.sort_unstable_by_key(Part::order);
    }

    /// This state after shipped code has panicked.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().cloned();
        let evidence = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let breach = Breach { rule: Rule::Panic, evidence: evidence.unwrap_or_else(|| "a panic".to_owned()) };
        Self { breach: Some(breach), ..self.clone() }
    }

    fn step(&mut self, protocol: &Protocol, action: Action) -> Stepped {
        match action {
            Action::Tick => self.now += 1,
            Action::HolderTimer(at, purpose) => {
                self.edit(at, |process| process.timers.remove(&purpose));
                self.tell(protocol, at, HolderEvent::Timer(purpose));
            }
            Action::Deliver { message, to, doubled } => return self.deliver(protocol, message, to, doubled),
            Action::CallFails(at) => self.call_fails(protocol, at),
            Action::Swept(at, id) => {
                self.edit(at, |process| (process.sweeps.remove(&id), process.void.remove(&id)));
                self.tell(protocol, at, HolderEvent::Swept(id));
            }
            Action::Work(at, shard) => self.work(protocol, at, shard),
            Action::CrashExecutor(at) => {
                self.budget.executor_crashes -= 1;
                self.executors[at] = None;
            }
            Action::StartExecutor(at) => {
                self.budget.executor_starts -= 1;
                self.start_executor(protocol, at);
            }
            Action::Shutdown(at) => {
                self.budget.shutdowns -= 1;
                self.tell(protocol, at, HolderEvent::Shutdown);
            }
            Action::Wipe => self.wipe(),
            Action::Heal => {}
            Action::LeaderTimer(_)
            | Action::Drain(_)
            | Action::CrashManager(_)
            | Action::StartManager(_)
            | Action::Land(_)
            | Action::Hear(_)
            | Action::RefuseWrite(_)
            | Action::Doubt(_)
            | Action::LookUp(_)
            | Action::LandOrphan
            | Action::Check(_)
            | Action::Confirm(_) => return self.step_manager(protocol, action),
        }
        Ok(())
    }

    fn deliver(&mut self, protocol: &Protocol, message: usize, to: usize, doubled: bool) -> Stepped {
        let part = self.net[message].clone();
        if doubled {
            self.budget.doubles -= 1;
        } else {
            self.net.remove(message);
        }
        match &*part {
            Message::Call(from, attempt, request) => self.called(protocol, to, (*from, *attempt), request),
            Message::Claimed(manager, id, claim) => self.claimed(protocol, *manager, *id, claim),
            Message::Write(from, shard, writer, stage) => self.write(protocol, (*from, *shard), *writer, *stage),
            Message::Granted(..) | Message::Departed(..) | Message::Push(_) => {
                self.hear(protocol, &part);
                Ok(())
            }
        }
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.net.push(Part::new(message));
    }

    pub(crate) fn edit<T>(&mut self, at: usize, change: impl FnOnce(&mut Process) -> T) -> Option<T> {
        let mut process = Process::clone(self.executors[at].as_ref()?);
        let result = change(&mut process);
        self.executors[at] = Some(Part::new(process));
        Some(result)
    }

    pub(crate) fn edit_manager<T>(&mut self, at: usize, change: impl FnOnce(&mut Manager) -> T) -> Option<T> {
        let mut manager = Manager::clone(self.managers[at].as_ref()?);
        let result = change(&mut manager);
        self.managers[at] = Some(Part::new(manager));
        Some(result)
    }

    pub(crate) fn edit_store(&mut self, change: impl FnOnce(&mut Store)) {
        let mut store = Store::clone(&self.store);
        change(&mut store);
        self.store = Part::new(store);
    }

    pub(crate) fn learn(&mut self, change: impl FnOnce(&mut Truth) -> Stepped) -> Stepped {
        let mut truth = Truth::clone(&self.truth);
        change(&mut truth)?;
        self.truth = Part::new(truth);
        Ok(())
    }

    /// Work that is admitted writes to the shard's oplog, as late as may be.
    fn work(&mut self, protocol: &Protocol, at: usize, shard: ShardId) {
        self.budget.works -= 1;
        let Some(process) = &self.executors[at] else { return };
        let Some(epoch) = process.admits(self.now_tick(protocol.bug), shard) else { return };
        let writer = Writer { epoch, executor: process.holder.life().executor };
        let recorded = self.oplogs[shard.index()].record;
        let stage = if recorded == Some(writer) { Stage::Append } else { Stage::Claim };
        self.send(Message::Write(at, shard, writer, stage));
    }

    /// A write reaches the oplog store (F1 to F4), which applies the shipped rule in one step with the write.
    fn write(&mut self, protocol: &Protocol, (from, shard): (usize, ShardId), by: Writer, stage: Stage) -> Stepped {
        let mut oplogs = Vec::clone(&self.oplogs);
        let oplog = &mut oplogs[shard.index()];
        let recorded = oplog.record;
        let equal = protocol.bug == Some(Bug::EqualEpochClaims) && recorded.is_some_and(|old| old.epoch == by.epoch);
        let unfenced = protocol.bug == Some(Bug::AppendsUnfenced);
        let taken = match stage {
            Stage::Claim => by.may_claim(recorded) || equal,
            Stage::Append => by.may_write(recorded) || unfenced,
        };
        if !taken {
            self.marks.add(Mark::Fenced);
            let recorded = recorded.map(|writer| writer.epoch);
            // Whoever wrote may be dead, and another life in its place.
            if self.slot_of(by.executor) == Some(from) {
                self.tell(protocol, from, HolderEvent::Fenced { shard, held: by.epoch, recorded });
            }
            return Ok(());
        }
        match stage {
            Stage::Claim => {
                oplog.record = Some(by);
                self.learn(|truth| truth.claimed(shard, by))?;
                self.send(Message::Write(from, shard, by, Stage::Append));
            }
            Stage::Append => {
                self.truth.appended(shard, &oplog.entries, by)?;
                oplog.entries.push(by);
                self.marks.add(Mark::Appended);
            }
        }
        self.oplogs = Part::new(oplogs);
        Ok(())
    }

    /// The instant by which admission is asked.
    pub(crate) fn now_tick(&self, bug: Option<Bug>) -> Tick {
        let now = instant(self.now);
        if bug == Some(Bug::FenceOpenPastDeadline) { now.minus(crate::state::UNIT) } else { now }
    }

    fn wipe(&mut self) {
        self.budget.wipes -= 1;
        self.edit_store(|store| {
            let empty = ClusterState::empty(store.state.cluster.clone(), store.state.shard_count);
            store.state = Arc::new(empty);
            store.owner = None;
            store.last = (None, 0);
            store.floating.clear();
        });
        let _always: Stepped = self.learn(|truth| {
            truth.wipe();
            Ok(())
        });
    }

    /// S1, S5 and the hand-off, after every step: what the fences admit, against each other and against the store.
    fn observe(&self, protocol: &Protocol) -> Stepped {
        if self.truth.wiped {
            return Ok(());
        }
        let now = self.now_tick(protocol.bug);
        let mut admitting: BTreeMap<ShardId, usize> = BTreeMap::new();
        for (at, process) in self.running_executors() {
            let life = process.holder.life().executor;
            for shard in self.store.state.shard_count.shards() {
                let Some(epoch) = process.admits(now, shard) else { continue };
                let fail = |rule, evidence| Err(Breach { rule, evidence });
                if let Some(other) = admitting.insert(shard, at) {
                    return fail(Rule::S1, format!("executors {other} and {at} admit shard {shard}"));
                }
                if let Some(row) = self.store.state.shard(shard)
                    && (row.state.executor() != Some(life) || row.epoch != epoch)
                {
                    return fail(Rule::S5, format!("{life} admits shard {shard} at epoch {epoch}, stored is {row:?}"));
                }
                if let Some(other) = self.sweeps_elsewhere(at, shard) {
                    let evidence = format!("executor {at} admits shard {shard}, {other} still stops its agents");
                    return fail(Rule::HandOff, evidence);
                }
            }
        }
        Ok(())
    }

    /// Whose agents of `shard` still run, although its lease never ended and nobody but itself says that they have stopped.
    fn sweeps_elsewhere(&self, admits: usize, shard: ShardId) -> Option<usize> {
        let now = instant(self.now);
        let sweeps = |process: &Process| {
            process.fence.deadline > now
                && process
                    .sweeps
                    .iter()
                    .any(|(id, shards)| !process.void.contains(id) && shards.iter().any(|(swept, _)| *swept == shard))
        };
        self.running_executors().find(|(at, process)| *at != admits && sweeps(process)).map(|(at, _)| at)
    }

    /// The slot where this life runs.
    pub(crate) fn slot_of(&self, id: leasehold_model::ExecutorId) -> Option<usize> {
        self.running_executors().find(|(_, process)| process.holder.life().executor == id).map(|(at, _)| at)
    }

    pub(crate) fn next_life(&mut self, at: usize) -> leasehold_model::ExecutorId {
        self.lives[at] += 1;
        executor_id(at, self.lives[at])
    }
}

impl Process {
    /// The epoch under which work for `shard` may start.
    fn admits(&self, now: Tick, shard: ShardId) -> Option<leasehold_model::ShardEpoch> {
        self.fence.admits(now, shard)
    }
}

#[cfg(test)]
mod tests {
    use super::{Rule, State};
    use crate::protocol::Protocol;
    use crate::scenario;
    use leasehold_model::ShardId;

    /// S1: each planted bug is seen sooner, when the store names another owner than who admits.
    #[test]
    fn two_open_fences_for_one_shard_are_seen() {
        let protocol = Protocol::new(*scenario::named("renew").expect("it is there"), None);
        let mut state = State::first(&protocol);
        assert!(state.observe(&protocol).is_ok());
        let open = state.executors.iter().flatten().find(|part| !part.fence.epochs.is_empty()).expect("one serves");
        let fence = open.fence.clone();
        for at in 0..state.executors.len() {
            state.edit(at, |process| process.fence = fence.clone());
        }
        let breach = state.observe(&protocol).expect_err("both admit");
        // Whichever comes first in the walk: the wrong one against the store, or the second against the first.
        assert!([Rule::S1, Rule::S5].contains(&breach.rule), "{breach:?}");
        let owner = state.store.state.shard(ShardId(0)).and_then(|row| row.state.owner()).expect("it is owned");
        let slot = state.slot_of(owner).expect("it runs");
        state.executors.swap(0, slot);
        let breach = state.observe(&protocol).expect_err("both admit");
        assert_eq!(breach.rule, Rule::S1, "{breach:?}");
    }

    #[test]
    fn a_panic_of_shipped_code_is_a_breach_with_its_text() {
        let protocol = Protocol::new(*scenario::named("lone").expect("it is there"), None);
        let breach = State::first(&protocol).panicked(&"shard 3 is open twice").breach.expect("it is one");
        assert_eq!((breach.rule, breach.evidence.as_str()), (Rule::Panic, "shard 3 is open twice"));
    }
}
