//! What a manager's shell does: one write at a time, one confirmation at a time, answers to whoever waits; and the store they share.

use crate::action::Action;
use crate::bug::Bug;
use crate::mark::Mark;
use crate::protocol::Protocol;
use crate::scenario::Pace;
use crate::state::{Confirming, Flight, Manager, Message, Part, State, Store, UNIT, Waits, instant, key_hash};
use crate::step::Stepped;
use leasehold_model::command::{Cause, Command};
use leasehold_model::commits::{Begun, Commits, Due, Ended, Said, WriteEnd, looked_up};
use leasehold_model::holder::{Attempt, Request};
use leasehold_model::leader::{
    CommitFailure, Committed, Confirmation, Effect, Event, Leader, Note, RenewalFacts, Reply, RequestId, Settings,
};
use leasehold_model::message::Push;
use leasehold_model::state::{ClusterState, Executor, Head};
use leasehold_model::{CallError, Claim, ExecutorId, ExecutorName, ManagerId, Refusal, ShardId, Ttl};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// What the leader is to be told next.
type Queue = VecDeque<Event>;

impl Store {
    /// The shipped compare and swap: all of a write or nothing, and only from the owner, on the state that it was made of.
    fn take(&mut self, bug: Option<Bug>, (manager, number): (ManagerId, u8), due: &Due) -> Said {
        let fits = self.owner == Some(manager) && due.expected == self.state.revision;
        if !fits && bug != Some(Bug::NoCompare) {
            return Said::NotOurs("another process owns the store".to_owned());
        }
        let changes = &due.changes;
        let (state, next) = (&self.state, due.next);
        let revision = next.max(state.revision);
        let head = Head { cluster: state.cluster.clone(), shard_count: state.shard_count, revision };
        let mut shards: BTreeMap<ShardId, _> = state.shards().map(|(shard, row)| (shard, *row)).collect();
        shards.extend(changes.shards.iter().map(|(shard, row)| (*shard, *row)));
        let mut rows: BTreeMap<ExecutorId, Executor> =
            state.executors().map(|(id, row)| (id, Executor::clone(row))).collect();
        rows.extend(changes.executors.iter().map(|(id, row)| (*id, Executor::clone(row))));
        rows.retain(|id, _| !changes.removed.contains(id));
        let state = ClusterState::from_rows(head, shards, rows).expect("a stored state keeps its invariants");
        if bug == Some(Bug::StaleLoad) {
            self.previous = Some(Arc::clone(&self.state));
        }
        self.state = Arc::new(state);
        self.last = (Some(manager), number);
        Said::Stored
    }
}

impl State {
    pub(crate) fn start_manager(&mut self, protocol: &Protocol, at: usize) -> Stepped {
        let runs = self.running_managers().next().is_some();
        let number = self.store.managers + 1;
        let id = ManagerId::from_u128(number.into());
        let units = if number == 1 { protocol.scenario.leases.0 } else { protocol.scenario.leases.1 };
        let lease = Ttl::from_duration(UNIT * units.into()).expect("a valid lease");
        let settings = Settings { lease, settle: Duration::ZERO, max_moves: 2 };
        self.edit_store(|store| (store.managers, store.owner) = (number, Some(id)));
        let state = self.loaded(protocol.bug, lease);
        let mut effects = Vec::new();
        let leader = Leader::take_over(settings, id, Arc::clone(&state), instant(self.now), &mut effects);
        if number > 1 {
            self.marks.add(Mark::TookOver);
            if runs {
                self.marks.add(Mark::TwoManagers);
            }
        }
        self.managers[at] = Some(Part::new(Manager {
            leader,
            commits: Commits::new(state),
            flight: None,
            writes: 0,
            confirming: Confirming::Idle,
            checked_before: None,
            armed: None,
            waits: BTreeMap::new(),
            requests: 0,
        }));
        self.perform_all(protocol, at, effects, Queue::new())
    }

    /// What a successor reads.
    fn loaded(&self, bug: Option<Bug>, lease: Ttl) -> Arc<ClusterState> {
        let state = match bug {
            Some(Bug::StaleLoad) => self.store.previous.as_ref().unwrap_or(&self.store.state),
            Some(_) | None => &self.store.state,
        };
        let shortest = match bug {
            Some(Bug::NoWaitAtTakeOver) => Ttl::from_ms(1).expect("a valid lease"),
            Some(Bug::CountsItsOwnLength) => lease,
            Some(_) | None => return Arc::clone(state),
        };
        let head = Head { cluster: state.cluster.clone(), shard_count: state.shard_count, revision: state.revision };
        let rows = state.executors().map(|(id, row)| {
            let row = Executor { lease_length: row.lease_length.min(shortest), ..Executor::clone(row) };
            (id, row)
        });
        let shards = state.shards().map(|(shard, row)| (shard, *row));
        Arc::new(ClusterState::from_rows(head, shards, rows).expect("it was whole"))
    }

    pub(crate) fn step_manager(&mut self, protocol: &Protocol, action: Action) -> Stepped {
        match action {
            Action::LeaderTimer(at) => {
                self.edit_manager(at, |manager| manager.armed = None);
                self.inform(protocol, at, Event::Timer)
            }
            Action::Drain(executor) => {
                self.budget.drains -= 1;
                self.set_draining(protocol, executor, true)
            }
            Action::CrashManager(at) => {
                self.budget.manager_crashes -= 1;
                self.end_manager(at);
                Ok(())
            }
            Action::StartManager(at) => {
                self.budget.manager_starts -= 1;
                self.start_manager(protocol, at)
            }
            Action::Check(at) => {
                let owner = self.store.owner;
                self.edit_manager(at, |manager| {
                    let leads = owner == Some(manager.leader.manager());
                    manager.confirming = Confirming::Checked(leads);
                    manager.checked_before = (protocol.bug == Some(Bug::ConfirmsBeforehand)).then_some(leads);
                });
                if protocol.scenario.pace > Pace::Free { self.confirm(protocol, at) } else { Ok(()) }
            }
            Action::Confirm(at) => self.confirm(protocol, at),
            Action::LandOrphan => self.land_orphan(protocol),
            Action::Land(at) => {
                self.land(protocol, at)?;
                let landed = |part: &Part<Manager>| matches!(part.flight, Some(Flight::Landed(_)));
                let prompt = protocol.scenario.pace > Pace::Free && self.managers[at].as_ref().is_some_and(landed);
                if prompt { self.learn_outcome(protocol, at, Action::Hear(at)) } else { Ok(()) }
            }
            Action::Hear(at) | Action::RefuseWrite(at) | Action::Doubt(at) | Action::LookUp(at) => {
                self.learn_outcome(protocol, at, action)
            }
            Action::Tick
            | Action::HolderTimer(..)
            | Action::Deliver { .. }
            | Action::CallFails(_)
            | Action::Swept(..)
            | Action::Work(..)
            | Action::CrashExecutor(_)
            | Action::StartExecutor(_)
            | Action::Shutdown(_)
            | Action::Wipe
            | Action::Heal => Ok(()),
        }
    }

    pub(crate) fn set_draining(&mut self, protocol: &Protocol, executor: usize, draining: bool) -> Stepped {
        let Some(process) = &self.executors[executor] else { return Ok(()) };
        let id = process.holder.life().executor;
        let Some(name) = self.store.state.executor(id).map(|row| row.name.clone()) else { return Ok(()) };
        self.tell_drain(protocol, name, draining)
    }

    fn tell_drain(&mut self, protocol: &Protocol, name: ExecutorName, draining: bool) -> Stepped {
        let leads = |(_, part): &(usize, &Manager)| Some(part.leader.manager()) == self.store.owner;
        let leader = self.running_managers().find(leads).or_else(|| self.running_managers().last());
        let Some((at, _)) = leader else { return Ok(()) };
        let request = self.wait(at, Waits::Operator);
        self.inform(protocol, at, Event::SetDraining { request, name, draining })
    }

    pub(crate) fn end_drains(&mut self, protocol: &Protocol) -> Stepped {
        let drained = self.store.state.executors().find(|(_, row)| row.draining).map(|(_, row)| row.name.clone());
        drained.map_or(Ok(()), |name| self.tell_drain(protocol, name, false))
    }

    pub(crate) fn end_manager(&mut self, at: usize) {
        let Some(manager) = self.managers[at].take() else { return };
        if let Some(Flight::Sent(due) | Flight::InDoubt(_, Some(due))) = &manager.flight {
            let write = (manager.leader.manager(), manager.writes, due.clone());
            self.edit_store(|store| store.floating.push(write));
        }
    }

    fn confirm(&mut self, protocol: &Protocol, at: usize) -> Stepped {
        let leads = self.edit_manager(at, |manager| std::mem::replace(&mut manager.confirming, Confirming::Idle));
        let confirmation = match leads {
            Some(Confirming::Checked(true)) => Confirmation::Leads,
            Some(Confirming::Checked(false) | Confirming::Idle | Confirming::Asked) | None => {
                self.marks.add(Mark::Deposed);
                Confirmation::Lost("another process leads".to_owned())
            }
        };
        self.inform(protocol, at, Event::Confirmed(confirmation))
    }

    fn stored(&mut self, write: (ManagerId, u8), said: &Said, due: &Due) -> Stepped {
        if *said != Said::Stored {
            self.marks.add(Mark::Conflict);
            return Ok(());
        }
        for change in &due.changes.moves {
            match change.cause {
                Cause::Assign if change.to.epoch.get() > 1 => self.marks.add(Mark::SecondOwner),
                Cause::Released => self.marks.add(Mark::LetGo),
                Cause::Replaced => self.marks.add(Mark::Replaced),
                Cause::EpochFloor => self.marks.add(Mark::Floor),
                Cause::Assign | Cause::Rebalance | Cause::Deregistered | Cause::Reaped => {}
            }
        }
        let state = Arc::clone(&self.store.state);
        self.learn(|truth| {
            truth.landed(write)?;
            truth.stored(&state, due.changes.removed.iter().copied())
        })
    }

    fn land_orphan(&mut self, protocol: &Protocol) -> Stepped {
        let (manager, number, due) = self.store.floating[0].clone();
        self.marks.add(Mark::Orphan);
        let mut said = Said::Stored;
        self.edit_store(|store| {
            store.floating.remove(0);
            said = store.take(protocol.bug, (manager, number), &due);
        });
        self.stored((manager, number), &said, &due)
    }

    fn land(&mut self, protocol: &Protocol, at: usize) -> Stepped {
        let Some(manager) = self.managers[at].clone() else { return Ok(()) };
        let (Some(Flight::Sent(due)) | Some(Flight::InDoubt(_, Some(due)))) = &manager.flight else { return Ok(()) };
        let mut said = Said::Stored;
        let write = (manager.leader.manager(), manager.writes);
        self.edit_store(|store| said = store.take(protocol.bug, write, due));
        let flight = match &manager.flight {
            Some(Flight::InDoubt(why, _)) => Flight::InDoubt(why.clone(), None),
            Some(Flight::Sent(_) | Flight::Landed(_)) | None => Flight::Landed(said.clone()),
        };
        self.edit_manager(at, |manager| manager.flight = Some(flight));
        self.stored(write, &said, due)
    }

    /// The manager hears of its write, or hears nothing and looks it up.
    fn learn_outcome(&mut self, protocol: &Protocol, at: usize, action: Action) -> Stepped {
        let Some(manager) = self.managers[at].clone() else { return Ok(()) };
        let Some(flight) = manager.flight.clone() else { return Ok(()) };
        let end = match (action, flight) {
            (Action::RefuseWrite(_), _) => {
                self.budget.refusals -= 1;
                self.marks.add(Mark::StoreRefused);
                Said::NotStored("full".to_owned()).end()
            }
            (Action::Doubt(_), flight) => {
                self.budget.doubts -= 1;
                return self.doubt(protocol, at, flight);
            }
            (Action::LookUp(_), Flight::InDoubt(why, due)) => Ok(self.look_up(protocol, at, &why, due)),
            (_, Flight::Landed(said)) => said.end(),
            (_, Flight::Sent(_) | Flight::InDoubt(..)) => return Ok(()),
        };
        let Ok(end) = end else { return Ok(()) };
        self.finish_write(protocol, at, &end)
    }

    fn doubt(&mut self, protocol: &Protocol, at: usize, flight: Flight) -> Stepped {
        let said = Said::Unknown("timeout".to_owned());
        let Err(why) = said.end() else { return Ok(()) };
        let due = match flight {
            Flight::Sent(due) => Some(due),
            Flight::Landed(_) | Flight::InDoubt(..) => None,
        };
        let assumed = match protocol.bug {
            Some(Bug::DoubtIsFailure) => {
                self.leave_behind(at, due);
                WriteEnd::Refused(why)
            }
            Some(Bug::DoubtIsSuccess) => WriteEnd::Applied,
            Some(_) | None => {
                self.edit_manager(at, |manager| manager.flight = Some(Flight::InDoubt(why, due)));
                return Ok(());
            }
        };
        self.finish_write(protocol, at, &assumed)
    }

    /// Once it is looked up, a write that was not found is never stored: the look-up settles it.
    fn look_up(&mut self, protocol: &Protocol, at: usize, why: &str, due: Option<Due>) -> WriteEnd {
        let Some(manager) = self.managers[at].clone() else { return looked_up(why, Ok(false)) };
        let id = manager.leader.manager();
        let found = self.store.last == (Some(id), manager.writes);
        let known = found || self.store.owner == Some(id);
        let found = if known { Ok(found) } else { Err("another process owns the store".to_owned()) };
        if let Ok(found) = &found {
            self.marks.add(if *found { Mark::DoubtApplied } else { Mark::DoubtRefused });
        }
        let end = looked_up(why, found);
        if protocol.bug == Some(Bug::LookUpDoesNotSettle) {
            self.leave_behind(at, due);
        }
        end
    }

    /// A write stays on its way, and its manager knows nothing of it any more.
    fn leave_behind(&mut self, at: usize, due: Option<Due>) {
        let Some(manager) = self.managers[at].clone() else { return };
        if let Some(due) = due {
            self.edit_store(|store| store.floating.push((manager.leader.manager(), manager.writes, due)));
        }
    }

    fn finish_write(&mut self, protocol: &Protocol, at: usize, end: &WriteEnd) -> Stepped {
        if let Some(manager) = self.managers[at].clone() {
            let write = (manager.leader.manager(), manager.writes);
            let stored = self.store.last == (Some(write.0), write.1);
            self.learn(|truth| truth.judged(write, end, stored))?;
        }
        let ended = self.edit_manager(at, |manager| {
            manager.flight = None;
            manager.commits.end(end)
        });
        let events = commit_events(ended.unwrap_or_default());
        self.perform_all(protocol, at, Vec::new(), events)
    }

    fn wait(&mut self, at: usize, waits: Waits) -> RequestId {
        let request = self.edit_manager(at, |manager| {
            manager.requests += 1;
            manager.waits.insert(RequestId(manager.requests), waits);
            RequestId(manager.requests)
        });
        request.unwrap_or(RequestId(0))
    }

    /// A call arrives at the manager in slot `to`.
    pub(crate) fn called(
        &mut self,
        protocol: &Protocol,
        to: usize,
        (from, attempt): (usize, Attempt),
        request: &Request,
    ) -> Stepped {
        let Some(manager) = self.managers[to].clone() else { return Ok(()) };
        let event = match request {
            Request::Register(registration) => {
                let mut registration = registration.clone();
                if protocol.bug == Some(Bug::AssumesPredecessorGone)
                    && let Some((_, earlier)) = self.store.state.named(&registration.name)
                {
                    registration.address = earlier.address.clone();
                }
                let request = self.wait(to, Waits::Registration(from, attempt));
                let key_hash = key_hash(registration.executor);
                Event::Register { request, registration, key_hash, at_ms: 0 }
            }
            Request::Renew(renewal) => {
                let facts = RenewalFacts {
                    executor: renewal.executor,
                    key_hash: key_hash(renewal.executor),
                    claim: taken(protocol.bug, &manager, renewal.claim.clone()),
                    heard: renewal.heard,
                    epoch_floors: renewal.epoch_floors.clone(),
                    condition: renewal.condition,
                };
                Event::Renew { request: self.wait(to, Waits::Renewal(from, attempt)), facts }
            }
            Request::Deregister(call) => {
                let request = self.wait(to, Waits::Departure(from, attempt));
                Event::Deregister { request, id: call.executor, key_hash: key_hash(call.executor) }
            }
        };
        self.inform(protocol, to, event)
    }

    /// The answer to a push reaches the manager that pushed.
    pub(crate) fn claimed(
        &mut self,
        protocol: &Protocol,
        manager: ManagerId,
        executor: ExecutorId,
        claim: &Claim,
    ) -> Stepped {
        let found = self.running_managers().find(|(_, part)| part.leader.manager() == manager);
        let Some((at, part)) = found else { return Ok(()) };
        let claim = Some(taken(protocol.bug, part, claim.clone()));
        self.inform(protocol, at, Event::PushAnswered { executor, claim })
    }

    fn inform(&mut self, protocol: &Protocol, at: usize, event: Event) -> Stepped {
        self.perform_all(protocol, at, Vec::new(), Queue::from([event]))
    }

    /// Tells the leader everything in `queue` and does what it wants done, until both are empty.
    fn perform_all(&mut self, protocol: &Protocol, at: usize, effects: Vec<Effect>, mut queue: Queue) -> Stepped {
        let mut effects = effects;
        loop {
            for effect in std::mem::take(&mut effects) {
                self.perform(protocol, at, effect, &mut queue)?;
            }
            if queue.is_empty() {
                self.begin_write(protocol, at, &mut queue);
            }
            let Some(event) = queue.pop_front() else { return Ok(()) };
            let early = protocol.bug == Some(Bug::ReapsEarly) && event == Event::Timer;
            let now = instant(self.now).plus(if early { UNIT } else { Duration::ZERO });
            let mut out = Vec::new();
            if self.edit_manager(at, |manager| manager.leader.step(now, event, &mut out)).is_none() {
                return Ok(());
            }
            effects = out;
        }
    }

    fn begin_write(&mut self, protocol: &Protocol, at: usize, queue: &mut Queue) {
        if self.managers[at].as_ref().is_none_or(|part| part.flight.is_some() || part.commits.waiting() == 0) {
            return;
        }
        let tells = protocol.bug == Some(Bug::TellsBeforeStored);
        let ended = self.edit_manager(at, |manager| match manager.commits.begin() {
            Begun::Nothing => Vec::new(),
            Begun::Unchanged(ended) => ended,
            Begun::Write(due) => {
                manager.writes += 1;
                manager.flight = Some(Flight::Sent(due));
                if tells { manager.commits.end(&WriteEnd::Applied) } else { Vec::new() }
            }
        });
        queue.extend(commit_events(ended.unwrap_or_default()));
    }

    fn perform(&mut self, protocol: &Protocol, at: usize, effect: Effect, queue: &mut Queue) -> Stepped {
        match effect {
            Effect::Commit { batch, commands } => {
                self.mark_commands(&commands);
                let ended = self.edit_manager(at, |manager| manager.commits.add(batch, commands, ()));
                queue.extend(commit_events(ended.unwrap_or_default()));
            }
            Effect::Confirm => {
                let bug = protocol.bug;
                self.edit_manager(at, |manager| match (bug, manager.checked_before) {
                    (Some(Bug::ConfirmedByNobody), _) => queue.push_back(Event::Confirmed(Confirmation::Leads)),
                    (Some(Bug::ConfirmsBeforehand), Some(leads)) => manager.confirming = Confirming::Checked(leads),
                    (Some(_) | None, _) => manager.confirming = Confirming::Asked,
                });
            }
            Effect::Reply(request, reply) => return self.reply(protocol, at, request, reply),
            Effect::Probe { request, address } => queue.push_back(self.probe(protocol, at, request, &address)),
            Effect::Push(push) => return self.push(protocol, at, push, queue),
            Effect::Arm(tick) => {
                self.edit_manager(at, |manager| manager.armed = Some(tick));
            }
            Effect::Note(Note::StoodStill { .. }) => self.marks.add(Mark::StoodStill),
            Effect::EndLeadership(_) => self.end_manager(at),
            Effect::OpenSession(..)
            | Effect::CloseSession(_)
            | Effect::Delivered(..)
            | Effect::Publish(..)
            | Effect::Compact(_)
            | Effect::Note(_) => {}
        }
        Ok(())
    }

    fn mark_commands(&mut self, commands: &[Command]) {
        for command in commands {
            match command {
                Command::Reap(_) => self.marks.add(Mark::Reaped),
                Command::SetLeaseLength(..) => self.marks.add(Mark::Lengthened),
                Command::Register { .. }
                | Command::Deregister(_)
                | Command::Plan(_)
                | Command::ConfirmRelease { .. }
                | Command::SetDraining(..)
                | Command::RaiseEpoch { .. } => {}
            }
        }
    }

    /// Who is at the address: a port is bound once.
    fn probe(&self, protocol: &Protocol, at: usize, request: RequestId, address: &leasehold_model::Address) -> Event {
        let found = self.running_executors().find(|(slot, _)| address.as_str() == format!("executor-{slot}:1"));
        let mut answered_by = found.map(|(_, process)| process.holder.life().executor);
        if protocol.bug == Some(Bug::AssumesPredecessorGone) {
            let waits = self.managers[at].as_ref().and_then(|manager| manager.waits.get(&request).copied());
            if let Some(Waits::Registration(_, attempt)) = waits {
                answered_by = Some(attempt.executor);
            }
        }
        Event::Probed { request, answered_by }
    }

    fn push(&mut self, protocol: &Protocol, at: usize, push: Push, queue: &mut Queue) -> Stepped {
        self.learn(|truth| truth.told(push.executor, &push.set))?;
        if protocol.bug == Some(Bug::MovesInOneCommit) {
            let (applied, shards) = (push.set.revision, push.set.shards.clone());
            let claim =
                self.managers[at].as_ref().map(|part| Claim { manager: part.leader.manager(), applied, shards });
            queue.push_back(Event::PushAnswered { executor: push.executor, claim });
        }
        self.send(Message::Push(push));
        Ok(())
    }

    fn reply(&mut self, protocol: &Protocol, at: usize, request: RequestId, reply: Reply) -> Stepped {
        let Some(Some(waits)) = self.edit_manager(at, |manager| manager.waits.remove(&request)) else {
            return Ok(());
        };
        let (to, attempt) = match waits {
            Waits::Registration(to, attempt) | Waits::Renewal(to, attempt) => (to, attempt),
            Waits::Departure(to, attempt) => {
                let result = match reply {
                    Reply::Granted(_) | Reply::Done => Ok(()),
                    Reply::Refused(refusal) => Err(CallError::Refused(refusal)),
                    Reply::Unknown(why) => Err(CallError::Unknown(why)),
                };
                if result.is_ok() {
                    self.marks.add(Mark::Deregistered);
                }
                self.send(Message::Departed(to, attempt, result));
                return Ok(());
            }
            Waits::Operator => return Ok(()),
        };
        let result = match reply {
            Reply::Granted(mut grant) => {
                self.learn(|truth| truth.told(attempt.executor, &grant.set))?;
                if matches!(waits, Waits::Registration(..)) {
                    let state = Arc::clone(&self.store.state);
                    self.learn(|truth| truth.acknowledge(attempt.executor, &state))?;
                }
                let longer = match protocol.bug {
                    Some(Bug::TtlLongerThanKept) => grant.ttl.as_duration() + UNIT,
                    Some(Bug::GrantsLongerThanStored) => UNIT * u32::from(protocol.scenario.leases.1),
                    Some(_) | None => grant.ttl.as_duration(),
                };
                grant.ttl = Ttl::from_duration(longer).expect("a valid lease");
                Ok(grant)
            }
            Reply::Refused(refusal) => {
                if refusal == Refusal::Superseded {
                    self.marks.add(Mark::Superseded);
                }
                let leads = self.managers[at].as_ref().map(|part| part.leader.manager()) == self.store.owner;
                if refusal == Refusal::UnknownExecutor && leads {
                    self.learn(|truth| truth.unknown(attempt.executor))?;
                }
                Err(CallError::Refused(refusal))
            }
            Reply::Unknown(why) => Err(CallError::Unknown(why)),
            Reply::Done => return Ok(()),
        };
        self.send(Message::Granted(to, attempt, result));
        Ok(())
    }
}

/// A claim as a manager takes it.
fn taken(bug: Option<Bug>, manager: &Manager, mut claim: Claim) -> Claim {
    let revision = manager.commits.committed().revision;
    match bug {
        Some(Bug::OldClaimProves) if claim.manager == manager.leader.manager() => claim.applied = revision,
        Some(Bug::ForgetsLateReleases) => claim.applied = leasehold_model::Revision(0),
        Some(_) | None => {}
    }
    claim
}

fn commit_events(ended: Vec<Ended<()>>) -> Queue {
    let event = |Ended { batch, result, .. }: Ended<()>| {
        let result: Result<Committed, CommitFailure> = result;
        Event::CommitEnded { batch, result }
    };
    ended.into_iter().map(event).collect()
}
