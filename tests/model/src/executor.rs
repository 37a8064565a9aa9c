//! What an executor's shell does: tells its holder what happened, and does what the holder wants done.

use crate::bug::Bug;
use crate::mark::Mark;
use crate::protocol::Protocol;
use crate::state::{FenceImage, Message, Part, Process, State, UNIT, instant, key_of};
use leasehold_model::fence::FenceKeeper;
use leasehold_model::holder::{
    Attempt, Effect, Event, Holder, Identity, Ignored, Life, Note, Request, Settings, Token,
};
use leasehold_model::lease::Allowance;
use leasehold_model::message::{LeaseKey, Push, Weight};
use leasehold_model::{Address, CallError, ClusterName, ExecutorId, ExecutorName, Refusal, Revision, ShardSet, Tick};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn life(executor: ExecutorId) -> Life {
    Life { executor, lease_key: LeaseKey(key_of(executor)) }
}

/// What a holder is told, and what its shell needs to know to do what it answers.
struct Around {
    /// How long the grant was on its way.
    late: Duration,
    /// The manager whose push is being answered.
    pushed_by: Option<(leasehold_model::ManagerId, ExecutorId)>,
}

impl State {
    pub(crate) fn start_executor(&mut self, protocol: &Protocol, at: usize) {
        let name = if protocol.scenario.same_name { "executor".to_owned() } else { format!("executor-{at}") };
        let identity = Identity {
            cluster: ClusterName::new("model").expect("a valid name"),
            name: ExecutorName::new(name).expect("a valid name"),
            address: Address::new(format!("executor-{at}:1")).expect("a valid address"),
            zone: None,
            weight: Weight::default(),
            shard_count: None,
        };
        let settings = Settings {
            handoff_grace: UNIT,
            call_deadline_floor: UNIT,
            registration_patience: UNIT * 1000,
            allowance: Allowance::default(),
            managers: "managers".to_owned(),
        };
        let id = self.next_life(at);
        self.executors[at] = Some(Part::new(Process {
            holder: Holder::new(settings, identity, life(id)),
            fence: FenceImage::default(),
            timers: BTreeMap::new(),
            call: None,
            sweeps: BTreeMap::new(),
            void: BTreeSet::new(),
            greatest: Revision(0),
        }));
        self.tell(protocol, at, Event::Started { seed: 0 });
    }

    pub(crate) fn tell(&mut self, protocol: &Protocol, at: usize, event: Event) {
        self.tell_around(protocol, at, event, &Around { late: Duration::ZERO, pushed_by: None });
    }

    fn tell_around(&mut self, protocol: &Protocol, at: usize, event: Event, around: &Around) {
        let Some(part) = &self.executors[at] else { return };
        let mut process = Process::clone(part);
        if protocol.bug == Some(Bug::ComparesRevisionsAcrossManagers) {
            process.greatest = process.greatest.max(process.holder.applied());
        }
        let opens = protocol.bug != Some(Bug::RecoveryNotLatched) || process.is_news(&event);
        let mut events = vec![event];
        let now = instant(self.now);
        let mut ended = false;
        while let Some(event) = events.pop() {
            let mut effects = Vec::new();
            process.holder.step(now, event, &mut effects);
            for effect in effects {
                match effect {
                    Effect::AskIdentity => events.push(Event::NewIdentity(life(self.next_life(at)))),
                    Effect::Recover { id, .. } => events.push(Event::Recovered(id)),
                    Effect::Exit(_) => ended = true,
                    Effect::Call { attempt, request, .. } => {
                        process.call = Some(attempt);
                        let request = process.ask(protocol.bug, request);
                        self.send(Message::Call(at, attempt, request));
                    }
                    Effect::AnswerPush { answer, .. } => {
                        let claim = answer.ok().and_then(|answer| answer.claim);
                        if let (Some(claim), Some((manager, id))) = (claim, around.pushed_by) {
                            let claim = process.claim(protocol.bug, claim);
                            self.send(Message::Claimed(manager, id, claim));
                        }
                    }
                    Effect::Note(note) => self.note(&note),
                    Effect::OpenShard(..) if !opens => {}
                    Effect::CancelCall
                    | Effect::Arm { .. }
                    | Effect::SizeFence(_)
                    | Effect::OpenShard(..)
                    | Effect::CloseShard(_)
                    | Effect::ArmFence(_)
                    | Effect::CloseFence
                    | Effect::Sweep { .. } => process.perform(protocol.bug, effect, around.late),
                }
            }
        }
        self.executors[at] = (!ended).then(|| Part::new(process));
    }

    /// A grant, an answer or a push reaches an executor.
    pub(crate) fn hear(&mut self, protocol: &Protocol, message: &Message) {
        let now = instant(self.now);
        match message {
            Message::Granted(at, attempt, result) => {
                let (at, attempt) = (*at, *attempt);
                if !self.is_of(at, attempt.executor) {
                    return;
                }
                let mut result = result.clone();
                if protocol.bug == Some(Bug::IgnoresUnknown)
                    && matches!(result, Err(CallError::Refused(Refusal::UnknownExecutor)))
                {
                    result = Err(CallError::Unknown("ignored".to_owned()));
                }
                if let Ok(grant) = &mut result {
                    self.anew(protocol.bug, at, &mut grant.set);
                }
                let late = self.edit(at, |process| {
                    if process.call == Some(attempt) {
                        process.call = None;
                        return false;
                    }
                    true
                });
                if late == Some(true) && result.is_ok() {
                    self.marks.add(Mark::LateGrant);
                }
                let around = Around { late: now.since(attempt.noted), pushed_by: None };
                self.tell_around(protocol, at, Event::Answered { attempt, result }, &around);
            }
            Message::Departed(at, attempt, result) => {
                if self.is_of(*at, attempt.executor) {
                    self.edit(*at, |process| process.call = None);
                    self.tell(protocol, *at, Event::Deregistered { attempt: *attempt, result: result.clone() });
                }
            }
            Message::Push(push) => self.pushed(protocol, push),
            Message::Call(..) | Message::Claimed(..) | Message::Write(..) => {}
        }
    }

    fn pushed(&mut self, protocol: &Protocol, push: &Push) {
        let Some(at) = self.slot_of(push.executor) else { return };
        let mut push = push.clone();
        let around = Around { late: Duration::ZERO, pushed_by: Some((push.set.manager, push.executor)) };
        if protocol.bug == Some(Bug::AppliesForeignPushes)
            && let Some(claim) = self.executors[at].as_ref().and_then(|process| process.holder.claim())
            && claim.manager != push.set.manager
        {
            push.set.manager = claim.manager;
            push.set.revision = push.set.revision.max(claim.applied);
        }
        self.anew(protocol.bug, at, &mut push.set);
        if protocol.bug == Some(Bug::PushExtends) {
            let deadline = instant(self.now).plus(Allowance::default().shorten(UNIT * 3));
            self.edit(at, |process| {
                if process.fence.deadline > Tick::ZERO {
                    process.fence.deadline = deadline;
                }
            });
        }
        self.tell_around(protocol, at, Event::Pushed { token: Token(0), proven: true, push }, &around);
    }

    /// What bugs make of the revision of a set that is heard.
    fn anew(&mut self, bug: Option<Bug>, at: usize, set: &mut ShardSet) {
        self.edit(at, |process| {
            let claim = process.holder.claim();
            if bug == Some(Bug::AppliesOlderSets)
                && let Some(claim) = &claim
                && claim.manager == set.manager
            {
                set.revision = set.revision.max(claim.applied);
            }
            if bug == Some(Bug::ComparesRevisionsAcrossManagers) {
                process.greatest = process.greatest.max(process.holder.applied());
                if set.revision < process.greatest {
                    set.shards = claim.map(|claim| claim.shards).unwrap_or_default();
                }
            }
        });
    }

    fn is_of(&self, at: usize, life: ExecutorId) -> bool {
        self.executors[at].is_some() && crate::state::slot_and_life(life).0 == at && {
            let process = self.executors[at].as_ref();
            process.is_some_and(|process| process.holder.life().executor == life)
        }
    }

    pub(crate) fn call_fails(&mut self, protocol: &Protocol, at: usize) {
        let now = instant(self.now);
        let Some(Some(attempt)) = self.edit(at, |process| process.call.take()) else { return };
        if attempt.noted == now {
            self.budget.failures = self.budget.failures.saturating_sub(1);
        }
        self.marks.add(Mark::CallFailed);
        let error = CallError::Unknown("no answer".to_owned());
        self.give_up(protocol, at, attempt, error);
    }

    fn give_up(&mut self, protocol: &Protocol, at: usize, attempt: Attempt, error: CallError) {
        let leaves = |part: &Part<Process>| part.holder.is_leaving();
        if self.executors[at].as_ref().is_some_and(leaves) {
            self.tell(protocol, at, Event::Deregistered { attempt, result: Err(error.clone()) });
        }
        self.tell(protocol, at, Event::Answered { attempt, result: Err(error) });
    }

    fn note(&mut self, note: &Note) {
        let mark = match note {
            Note::LeaseLapsed { .. } => Mark::Lapsed,
            Note::LeaseLive { .. } => Mark::Revived,
            Note::SetStale { .. } => Mark::StaleGrant,
            Note::Following { before: Some(_), .. } => Mark::Refollowed,
            Note::PushIgnored { why: Ignored::Foreign, .. } => Mark::ForeignPush,
            Note::PushIgnored { why: Ignored::Stale, .. } => Mark::StalePush,
            Note::Unregistered { .. } => Mark::Unregistered,
            Note::ShardGained { .. }
            | Note::ShardClosed { .. }
            | Note::ShardSwept { .. }
            | Note::RecoveryDone { .. }
            | Note::Following { .. }
            | Note::PushApplied { .. }
            | Note::PushIgnored { .. }
            | Note::AttemptFailed { .. }
            | Note::WriteFenced { .. } => return,
        };
        self.marks.add(mark);
    }
}

impl Process {
    /// Whether `event` is anything but a grant with the set that is applied already.
    fn is_news(&self, event: &Event) -> bool {
        match event {
            Event::Answered { result: Ok(grant), .. } => self
                .holder
                .claim()
                .is_none_or(|claim| (claim.manager, claim.applied) != (grant.set.manager, grant.set.revision)),
            Event::Started { .. }
            | Event::Timer(_)
            | Event::Answered { .. }
            | Event::Deregistered { .. }
            | Event::Pushed { .. }
            | Event::Swept(_)
            | Event::Recovered(_)
            | Event::Fenced { .. }
            | Event::NewIdentity(_)
            | Event::HostGone
            | Event::Shutdown => true,
        }
    }

    fn claim(&self, bug: Option<Bug>, mut claim: leasehold_model::Claim) -> leasehold_model::Claim {
        let sweeps = |shard| self.sweeps.values().flatten().any(|(swept, _)| *swept == shard);
        if bug == Some(Bug::AcknowledgesDrainEarly) {
            let kept = claim.shards.iter().filter(|(shard, _)| !sweeps(*shard)).collect();
            claim.shards = leasehold_model::set::Holdings::new(kept).unwrap_or_default();
        }
        claim
    }

    fn ask(&self, bug: Option<Bug>, request: Request) -> Request {
        match request {
            Request::Renew(mut renewal) => {
                renewal.claim = self.claim(bug, renewal.claim);
                Request::Renew(renewal)
            }
            Request::Register(_) | Request::Deregister(_) => request,
        }
    }

    fn perform(&mut self, bug: Option<Bug>, effect: Effect, late: Duration) {
        let stays_open = bug == Some(Bug::LeavesWithOpenFence) && self.holder.is_leaving();
        match effect {
            Effect::CancelCall => self.call = None,
            Effect::Arm { purpose, at } => {
                self.timers.insert(purpose, at);
            }
            Effect::SizeFence(count) => {
                assert!(FenceKeeper::new().size(count), "a fence is sized once");
                self.fence.count = Some(count);
            }
            Effect::OpenShard(shard, epoch) => {
                self.fence.epochs.insert(shard, epoch);
            }
            Effect::CloseShard(shard) => {
                if !stays_open && bug != Some(Bug::ShardNotClosed) {
                    self.fence.epochs.remove(&shard);
                }
            }
            Effect::ArmFence(deadline) => {
                self.fence.deadline = match bug {
                    Some(Bug::AnchorsAtReceipt) => deadline.plus(late),
                    Some(Bug::LapseKeepsTheFenceOpen) => Tick::NEVER,
                    Some(_) | None => deadline,
                };
            }
            Effect::CloseFence => {
                self.void.extend(self.sweeps.keys());
                if !stays_open && bug != Some(Bug::LapseKeepsTheFenceOpen) {
                    self.fence.deadline = Tick::ZERO;
                }
            }
            Effect::Sweep { id, shards, .. } => {
                if self.fence.deadline == Tick::ZERO {
                    self.void.insert(id);
                }
                self.sweeps.insert(id, shards);
            }
            Effect::Call { .. }
            | Effect::Recover { .. }
            | Effect::AnswerPush { .. }
            | Effect::AskIdentity
            | Effect::Exit(_)
            | Effect::Note(_) => {}
        }
    }
}
