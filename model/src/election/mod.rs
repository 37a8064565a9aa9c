//! The decisions of a candidacy: one manager process standing for leadership, leading, and standing again.
//!
//! The store keeps a queue of candidacies, each under a lease of its own; the first in the queue leads. A process joins (opens a lease),
//! enlists (takes its place), keeps the lease alive, and observes who is first. Whoever holds a leadership measures it on its own clock, from
//! before the keepalive was sent, by the ttl that the store granted, less the allowance (cases 14, 41): so it ends here before it
//! ends in the store.
//!
//! ```text
//!            joined              observed: first in the queue              ended here
//! Out ─▶ Joining ─▶ In: Candidate ───────────────────────▶ In: Leading ─▶ In: TakingDown ─▶ Leaving ─▶ Out
//!  ▲        │            │ lease gone, or its time over                                       │
//!  └────────┴────────────┴────────────────────────────────────────────────────────────────────┘ a pause between
//! ```
//!
//! A leadership is lost when its lease is gone, when its key is gone, or when a full lease period has passed without an acknowledged
//! keepalive. A call that failed is none of these: it is repeated (cases 23, 27).
//!
//! A leader that works for nobody must not be kept in office by whoever keeps its lease alive: with each keepalive it is asked whether it
//! works, and one that has not answered for `patience` is given up (R45).

mod event;

pub use event::{Call, CandidacyId, Effect, End, Event, Kept, Leading, Note};

use crate::ids::Address;
use crate::lease::{Allowance, HolderLease};
use crate::time::{Tick, Ttl};
use std::time::Duration;

/// What an operator can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The ttl that is asked for. The one that is granted counts.
    pub ttl: Ttl,
    /// By how much clocks may differ in rate (R9).
    pub allowance: Allowance,
    /// For how long a leader may answer nothing before it is given up.
    pub patience: Duration,
}

/// The pause after the first failed call; it doubles.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between calls that fail.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(LONGEST_PAUSE)
}

/// A call that is repeated: when next, or under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Repeat {
    Due(Tick),
    UnderWay,
    /// Nothing to do until something else happens.
    Idle,
}

impl Repeat {
    /// Whether it is due; it then counts as under way.
    fn take(&mut self, now: Tick) -> bool {
        let due = matches!(self, Self::Due(at) if *at <= now);
        if due {
            *self = Self::UnderWay;
        }
        due
    }

    const fn at(self) -> Option<Tick> {
        match self {
            Self::Due(at) => Some(at),
            Self::UnderWay | Self::Idle => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Candidate,
    Leading,
    /// The leadership is over; its actors are ending.
    TakingDown,
}

/// A candidacy whose lease is held.
#[derive(Debug, Clone, Hash)]
struct Membership {
    id: CandidacyId,
    lease: HolderLease,
    /// As granted last.
    ttl: Ttl,
    keepalive: Repeat,
    /// Before the keepalive under way was sent.
    noted: Tick,
    enlist: Repeat,
    role: Role,
    /// Since when its leader has not answered whether it works.
    asked: Option<Tick>,
    /// The store said that the lease is gone: there is nothing to leave.
    gone: bool,
}

#[derive(Debug, Clone, Hash)]
enum Stage {
    Out { retry_at: Tick },
    Joining { noted: Tick },
    In(Membership),
    Leaving { id: CandidacyId, attempt: Repeat, give_up_at: Tick },
    Stopped,
}

/// The state machine; see the module.
#[derive(Debug, Clone, Hash)]
pub struct Election {
    settings: Settings,
    stage: Stage,
    stopping: bool,
    /// Calls that failed, and candidacies that were lost, since something was last acknowledged.
    failures: u32,
    observe: Repeat,
    observe_failures: u32,
    /// Since when nothing was observed, while observations fail.
    blind_since: Option<Tick>,
    leader: Option<Leading>,
    /// The newest candidacy of this process.
    own: Option<CandidacyId>,
    followed: Option<Address>,
    armed: Option<Tick>,
}

impl Election {
    /// Stands for leadership from `now` on. The first effects come with the first step, for which an [`Event::Timer`] will do.
    #[must_use]
    pub const fn new(settings: Settings, now: Tick) -> Self {
        Self {
            settings,
            stage: Stage::Out { retry_at: now },
            stopping: false,
            failures: 0,
            observe: Repeat::Due(now),
            observe_failures: 0,
            blind_since: None,
            leader: None,
            own: None,
            followed: None,
            armed: None,
        }
    }

    /// From this instant on this process does not lead, whatever it has heard; `None` while it does not lead anyway.
    #[must_use]
    pub const fn leads_until(&self) -> Option<Tick> {
        match &self.stage {
            Stage::In(Membership { role: Role::Leading, lease, .. }) => Some(lease.deadline()),
            Stage::In(_) | Stage::Out { .. } | Stage::Joining { .. } | Stage::Leaving { .. } | Stage::Stopped => None,
        }
    }

    /// Takes in what happened. A deadline that has passed counts before whatever is heard after it.
    pub fn step(&mut self, now: Tick, event: Event, out: &mut Vec<Effect>) {
        self.expire(now, out);
        match event {
            Event::Timer => self.armed = None,
            Event::Joined(result) => self.joined(now, result, out),
            Event::Enlisted(id, result) => self.enlisted(now, id, result, out),
            Event::KeptAlive(id, result) => self.kept_alive(now, id, result, out),
            Event::Observed(result) => self.observed(now, result, out),
            Event::LeaderAnswered(id) => self.leader_answered(id),
            Event::Ended(id, why) => self.ended(now, id, why, out),
            Event::Left(id, result) => self.left(now, id, result, out),
            Event::Stop => self.stop(now, out),
        }
        self.expire(now, out);
        self.forget_leader(now);
        self.begin_what_is_due(now, out);
        self.follow(out);
        self.arm(out);
    }

    fn member(&mut self, id: CandidacyId) -> Option<&mut Membership> {
        match &mut self.stage {
            Stage::In(member) if member.id == id => Some(member),
            Stage::In(_) | Stage::Out { .. } | Stage::Joining { .. } | Stage::Leaving { .. } | Stage::Stopped => None,
        }
    }

    fn expire(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let Stage::In(member) = &self.stage else { return };
        if member.role != Role::TakingDown && !member.lease.is_live(now) {
            let why = format!("no keepalive was acknowledged for a whole lease of {:?}", member.ttl.as_duration());
            return self.lose(now, why, out);
        }
        self.give_up_the_silent(now, out);
    }

    /// When a leader that was asked whether it works is given up.
    fn silent_at(&self) -> Option<Tick> {
        match &self.stage {
            Stage::In(Membership { role: Role::Leading, asked, .. }) => {
                asked.map(|asked| asked.plus(self.settings.patience))
            }
            Stage::In(_) | Stage::Out { .. } | Stage::Joining { .. } | Stage::Leaving { .. } | Stage::Stopped => None,
        }
    }

    fn give_up_the_silent(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.silent_at().is_none_or(|at| now < at) {
            return;
        }
        let why = format!("its leader has answered nothing for {:?}", self.settings.patience);
        let Stage::In(member) = &mut self.stage else { return };
        member.role = Role::TakingDown;
        member.keepalive = Repeat::Idle;
        out.push(Effect::TakeDown(End::Silent(why)));
    }

    fn leader_answered(&mut self, id: CandidacyId) {
        if let Some(member) = self.member(id) {
            member.asked = None;
        }
    }

    fn failed(&mut self, call: Call, why: String, out: &mut Vec<Effect>) -> Duration {
        self.failures = self.failures.saturating_add(1);
        out.push(Effect::Note(Note::Failed(call, why)));
        pause(self.failures)
    }

    fn joined(&mut self, now: Tick, result: Result<(CandidacyId, Ttl), String>, out: &mut Vec<Effect>) {
        // A lease that was granted to somebody who has stopped asking holds no place, and ends by itself.
        let Stage::Joining { noted } = self.stage else { return };
        match result {
            Ok((id, ttl)) => {
                let mut lease = HolderLease::default();
                lease.grant(noted, ttl, self.settings.allowance);
                self.own = Some(id);
                self.stage = Stage::In(Membership {
                    id,
                    lease,
                    ttl,
                    keepalive: Repeat::Due(noted.plus(ttl.as_duration() / 3)),
                    noted,
                    enlist: Repeat::Due(now),
                    role: Role::Candidate,
                    asked: None,
                    gone: false,
                });
            }
            Err(why) => {
                let pause = self.failed(Call::Join, why, out);
                self.stage = Stage::Out { retry_at: now.plus(pause) };
            }
        }
    }

    fn enlisted(&mut self, now: Tick, id: CandidacyId, result: Result<Kept<()>, String>, out: &mut Vec<Effect>) {
        if self.member(id).is_none() {
            return;
        }
        let enlist = match result {
            Ok(Kept::Held(())) => Repeat::Idle,
            Ok(Kept::Gone) => return self.lease_gone(now, id, out),
            Err(why) => Repeat::Due(now.plus(self.failed(Call::Enlist, why, out))),
        };
        if let Some(member) = self.member(id) {
            member.enlist = enlist;
        }
    }

    fn kept_alive(&mut self, now: Tick, id: CandidacyId, result: Result<Kept<Ttl>, String>, out: &mut Vec<Effect>) {
        if self.member(id).is_none_or(|member| member.keepalive != Repeat::UnderWay) {
            return;
        }
        let ttl = match result {
            Ok(Kept::Held(ttl)) => ttl,
            Ok(Kept::Gone) => return self.lease_gone(now, id, out),
            Err(why) => {
                let again = Repeat::Due(now.plus(self.failed(Call::KeepAlive, why, out)));
                if let Some(member) = self.member(id) {
                    member.keepalive = again;
                }
                return;
            }
        };
        self.failures = 0;
        let allowance = self.settings.allowance;
        let Some(member) = self.member(id) else { return };
        member.lease.grant(member.noted, ttl, allowance);
        member.ttl = ttl;
        member.keepalive = Repeat::Due(member.noted.plus(ttl.as_duration() / 3));
        match member.role {
            // Somebody may have deleted its place; enlisting twice does nothing.
            Role::Candidate if member.enlist == Repeat::Idle => member.enlist = Repeat::Due(now),
            Role::Candidate | Role::TakingDown => {}
            Role::Leading => out.push(Effect::Extend(member.lease.deadline())),
        }
    }

    fn lease_gone(&mut self, now: Tick, id: CandidacyId, out: &mut Vec<Effect>) {
        if let Some(member) = self.member(id) {
            member.gone = true;
            member.keepalive = Repeat::Idle;
            member.enlist = Repeat::Idle;
            self.lose(now, "its lease is gone from the store".to_owned(), out);
        }
    }

    fn observed(&mut self, now: Tick, result: Result<Option<Leading>, String>, out: &mut Vec<Effect>) {
        if self.stopping {
            return;
        }
        let leader = match result {
            Ok(leader) => leader,
            Err(why) => {
                self.observe_failures = self.observe_failures.saturating_add(1);
                self.blind_since.get_or_insert(now);
                self.observe = Repeat::Due(now.plus(pause(self.observe_failures)));
                out.push(Effect::Note(Note::Failed(Call::Observe, why)));
                return;
            }
        };
        self.observe_failures = 0;
        self.blind_since = None;
        self.observe = Repeat::Due(now);
        self.leader.clone_from(&leader);
        let Stage::In(member) = &mut self.stage else { return };
        let first = leader.filter(|leader| leader.candidacy == member.id);
        match (member.role, first) {
            (Role::Candidate, Some(leading)) => {
                member.role = Role::Leading;
                member.enlist = Repeat::Idle;
                out.push(Effect::Lead(leading, member.lease.deadline()));
            }
            (Role::Leading, None) => self.lose(now, "its key is gone from the store".to_owned(), out),
            (Role::Candidate, None) | (Role::Leading, Some(_)) | (Role::TakingDown, _) => {}
        }
    }

    /// When the leader that was observed last is known to be one no longer: a lease after the store was last heard, it either has the
    /// store's ear, which this process has not, or no lease.
    fn leader_known_until(&self) -> Option<Tick> {
        let granted = match &self.stage {
            Stage::In(member) => member.ttl,
            Stage::Out { .. } | Stage::Joining { .. } | Stage::Leaving { .. } | Stage::Stopped => self.settings.ttl,
        };
        let since = self.blind_since.filter(|_| self.leader.is_some())?;
        Some(since.plus(granted.as_duration()))
    }

    /// Nobody is sent for ever to a leader that nobody has seen for a lease.
    fn forget_leader(&mut self, now: Tick) {
        if self.leader_known_until().is_some_and(|until| until <= now) {
            self.leader = None;
        }
    }

    /// The candidacy is over. A leadership's actors end first; whoever only waited leaves at once.
    fn lose(&mut self, now: Tick, why: String, out: &mut Vec<Effect>) {
        let Stage::In(member) = &mut self.stage else { return };
        match member.role {
            Role::Candidate => {
                let (id, gone) = (member.id, member.gone);
                self.failures = self.failures.saturating_add(1);
                out.push(Effect::Note(Note::CandidacyLost(why)));
                self.depart(now, id, gone, out);
            }
            Role::Leading => {
                member.role = Role::TakingDown;
                member.keepalive = Repeat::Idle;
                out.push(Effect::TakeDown(End::Lost(why)));
            }
            Role::TakingDown => {}
        }
    }

    fn ended(&mut self, now: Tick, id: CandidacyId, why: String, out: &mut Vec<Effect>) {
        let Some(member) = self.member(id) else { return };
        if member.role == Role::Candidate {
            return;
        }
        let gone = member.gone;
        self.failures = self.failures.saturating_add(1);
        out.push(Effect::Note(Note::LeadershipEnded(why)));
        self.depart(now, id, gone, out);
    }

    /// Gives the place in the queue up, so that nobody waits for a lease that nobody keeps alive.
    fn depart(&mut self, now: Tick, id: CandidacyId, gone: bool, out: &mut Vec<Effect>) {
        if gone {
            return self.out(now, out);
        }
        let give_up_at = now.plus(self.settings.ttl.as_duration());
        self.stage = Stage::Leaving { id, attempt: Repeat::UnderWay, give_up_at };
        out.push(Effect::Leave(id));
    }

    fn left(&mut self, now: Tick, left: CandidacyId, result: Result<(), String>, out: &mut Vec<Effect>) {
        let Stage::Leaving { id, give_up_at, .. } = self.stage else { return };
        if id != left {
            return;
        }
        let Err(why) = result else { return self.out(now, out) };
        let pause = self.failed(Call::Leave, why, out);
        if self.stopping || now >= give_up_at {
            return self.out(now, out);
        }
        self.stage = Stage::Leaving { id, attempt: Repeat::Due(now.plus(pause)), give_up_at };
    }

    fn out(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.stopping {
            self.stage = Stage::Stopped;
            out.push(Effect::Exit);
        } else {
            self.stage = Stage::Out { retry_at: now.plus(pause(self.failures)) };
        }
    }

    fn stop(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.observe = Repeat::Idle;
        match &mut self.stage {
            Stage::Out { .. } | Stage::Joining { .. } => self.out(now, out),
            Stage::In(member) => match member.role {
                Role::Candidate => {
                    let (id, gone) = (member.id, member.gone);
                    self.depart(now, id, gone, out);
                }
                Role::Leading => {
                    member.role = Role::TakingDown;
                    out.push(Effect::TakeDown(End::Asked));
                }
                Role::TakingDown => {}
            },
            Stage::Leaving { attempt: Repeat::UnderWay, .. } | Stage::Stopped => {}
            Stage::Leaving { .. } => self.out(now, out),
        }
    }

    fn begin_what_is_due(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if !self.stopping && self.observe.take(now) {
            out.push(Effect::Observe(self.leader.clone()));
        }
        match &mut self.stage {
            Stage::Out { retry_at } if *retry_at <= now => {
                self.stage = Stage::Joining { noted: now };
                out.push(Effect::Join(self.settings.ttl));
            }
            Stage::In(member) => {
                // The last write of a leadership that was asked to end needs its lease as long as it takes.
                if member.keepalive.take(now) {
                    member.noted = now;
                    out.push(Effect::KeepAlive(member.id));
                    if member.role == Role::Leading && member.asked.is_none() {
                        member.asked = Some(now);
                        out.push(Effect::AskLeader(member.id));
                    }
                }
                if member.enlist.take(now) {
                    out.push(Effect::Enlist(member.id));
                }
            }
            Stage::Leaving { id, attempt, .. } => {
                if attempt.take(now) {
                    out.push(Effect::Leave(*id));
                }
            }
            Stage::Out { .. } | Stage::Joining { .. } | Stage::Stopped => {}
        }
    }

    /// Tells where callers should go; never to a candidacy of this process.
    fn follow(&mut self, out: &mut Vec<Effect>) {
        let own = |leading: &Leading| self.own == Some(leading.candidacy);
        let elsewhere = self.leader.as_ref().filter(|leading| !own(leading)).map(|leading| &leading.address);
        if elsewhere != self.followed.as_ref() {
            self.followed = elsewhere.cloned();
            out.push(Effect::Follow(self.followed.clone()));
        }
    }

    fn arm(&mut self, out: &mut Vec<Effect>) {
        let stage = match &self.stage {
            Stage::Out { retry_at } => [Some(*retry_at), None, None],
            Stage::In(member) => {
                let deadline = (member.role != Role::TakingDown).then(|| member.lease.deadline());
                [member.keepalive.at(), member.enlist.at(), deadline]
            }
            Stage::Leaving { attempt, .. } => [attempt.at(), None, None],
            Stage::Joining { .. } | Stage::Stopped => [None, None, None],
        };
        let known_until = self.leader_known_until().filter(|_| !self.stopping);
        let others = [self.observe.at(), known_until, self.silent_at()];
        let earliest = stage.into_iter().chain(others).flatten().min();
        if let Some(at) = earliest
            && self.armed != Some(at)
        {
            self.armed = Some(at);
            out.push(Effect::Arm(at));
        }
    }
}
