//! The election: the shipped `Election` of each manager process, over a queue of candidacies under leases that a store keeps.
//!
//! A world of its own, because it shares nothing with the shards' leases but time: who leads there is who answers there.

use crate::bug::Bug;
use crate::mark::{Mark, Marks};
use crate::run::World;
use crate::state::{Part, UNIT, instant};
use crate::truth::{Breach, Rule};
use leasehold_model::election::{CandidacyId, Effect, Election, Event, Kept, Leading, Settings};
use leasehold_model::lease::Allowance;
use leasehold_model::{Address, Tick, Ttl};
use stateright::{Model, Property};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ANCHORED: Bug = Bug::KeepaliveAnchoredAtReceipt;
/// A leader's own lease, in units of time.
const TTL: u8 = 3;
/// How many messages are on their way at a time, at most.
const MESSAGES: usize = 4;
/// Two stand for leadership.
const PROCESSES: usize = 2;

/// One world of elections.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub text: &'static str,
    /// How many messages are lost, at most.
    pub losses: u8,
    /// How many units of time pass.
    pub horizon: u8,
    /// Whether whoever does not lead does everything in time.
    pub second_in_time: bool,
    /// What must be reached.
    pub reach: &'static [Mark],
}

/// Every world of elections.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "election",
        text: "two processes stand for leadership; calls late and lost, leases end",
        losses: 1,
        horizon: 6,
        second_in_time: false,
        reach: &[Mark::LedNext, Mark::Unled, Mark::KeptAlive, Mark::CallFailed],
    },
    Scenario {
        name: "late leader",
        text: "the leader's calls are late or lost, and its successor does everything in time",
        losses: 1,
        horizon: 8,
        second_in_time: true,
        reach: &[Mark::LedNext, Mark::Unled, Mark::KeptAlive, Mark::CallFailed],
    },
];

/// A call to the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    /// Open a lease.
    Join,
    /// Take a place.
    Enlist(CandidacyId),
    /// Keep the lease alive.
    KeepAlive(CandidacyId),
    /// Say who leads, once it is somebody else than this.
    Observe(Option<CandidacyId>),
    /// Give the place up.
    Leave(CandidacyId),
}

/// A message on its way: whose, when the call was sent, and what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the store.
    Call(usize, u8, Call),
    /// From the store.
    Answer(usize, u8, Event),
}

/// One manager process.
#[derive(Debug, Clone, Hash)]
struct Process {
    election: Election,
    /// The candidacy under which it leads, and until when its gate lets answers out.
    gate: Option<(CandidacyId, Tick)>,
    armed: Option<Tick>,
}

/// Everything.
#[derive(Debug, Clone)]
pub struct State {
    now: u8,
    losses: u8,
    processes: Vec<Part<Process>>,
    net: Vec<Part<Message>>,
    /// Until when the store keeps each lease.
    leases: BTreeMap<CandidacyId, u8>,
    queue: Vec<CandidacyId>,
    opened: i64,
    /// The last candidacy that led.
    ever: Option<CandidacyId>,
    breach: Option<Breach>,
    marks: Marks,
}

impl State {
    fn identity(&self) -> impl Hash + PartialEq {
        let parts = (self.processes.clone(), self.net.clone(), self.leases.clone(), self.queue.clone());
        (self.now, self.losses, parts, self.opened, self.ever, self.breach.is_some())
    }
}

/// Of the last step only, marks are no part of what a state is.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity().hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

/// What can happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A process wakes up, late by any time.
    Timer(usize),
    /// A message arrives.
    Deliver(usize),
    /// A message is lost, and its caller hears that the call failed.
    Lose(usize),
    /// The store ends a lease, late by any time.
    Expire(CandidacyId),
}

/// The world of elections, with at most one bug.
#[derive(Debug, Clone)]
pub struct Elections {
    scenario: Scenario,
    bug: Option<Bug>,
    reached: Arc<AtomicU64>,
}

impl Elections {
    /// A world in which nothing was tried yet.
    #[must_use]
    pub fn new(scenario: Scenario, bug: Option<Bug>) -> Self {
        Self { scenario, bug, reached: Arc::default() }
    }
}

fn ttl() -> Ttl {
    Ttl::from_duration(UNIT * u32::from(TTL)).expect("a valid lease")
}

fn failure(call: &Call) -> Event {
    let why = || "no answer".to_owned();
    match call {
        Call::Join => Event::Joined(Err(why())),
        Call::Enlist(id) => Event::Enlisted(*id, Err(why())),
        Call::KeepAlive(id) => Event::KeptAlive(*id, Err(why())),
        Call::Observe(_) => Event::Observed(Err(why())),
        Call::Leave(id) => Event::Left(*id, Err(why())),
    }
}

/// What its caller hears instead of an answer that is lost.
fn lost(answer: &Event) -> Event {
    match answer {
        Event::Joined(_) => failure(&Call::Join),
        Event::Enlisted(id, _) => failure(&Call::Enlist(*id)),
        Event::KeptAlive(id, _) => failure(&Call::KeepAlive(*id)),
        Event::Left(id, _) => failure(&Call::Leave(*id)),
        Event::Observed(_) | Event::Timer | Event::LeaderAnswered(_) | Event::Ended(..) | Event::Stop => {
            failure(&Call::Observe(None))
        }
    }
}

impl State {
    fn first(Elections { scenario, bug, .. }: &Elections) -> Self {
        let bug = *bug;
        let settings = Settings { ttl: ttl(), allowance: Allowance::default(), patience: ttl().as_duration() };
        let process = || Process { election: Election::new(settings, instant(0)), gate: None, armed: None };
        let mut state = Self {
            now: 0,
            losses: scenario.losses,
            processes: (0..PROCESSES).map(|_| Part::new(process())).collect(),
            net: Vec::new(),
            leases: BTreeMap::new(),
            queue: Vec::new(),
            opened: 0,
            ever: None,
            breach: None,
            marks: Marks::default(),
        };
        for at in 0..PROCESSES {
            state.tell(bug, at, (0, Event::Timer));
            // In time, until only the question who leads next is unanswered.
            while let Some(message) = state.net.iter().position(|message| state.has_answer(message)) {
                state.deliver(bug, message);
            }
        }
        state.net.sort_unstable_by_key(Part::order);
        state.marks = Marks::default();
        state
    }

    /// Who asks who leads is answered once there is something to say.
    fn has_answer(&self, message: &Message) -> bool {
        let leads = self.queue.first().copied();
        !matches!(message, Message::Call(_, _, Call::Observe(known)) if *known == leads)
    }

    /// The place of whoever is first in the queue.
    fn leading(&self) -> Option<Leading> {
        let candidacy = *self.queue.first()?;
        Some(Leading { candidacy, since: candidacy.0, address: Address::new("manager:1").expect("a valid address") })
    }

    fn tell(&mut self, bug: Option<Bug>, at: usize, (sent, event): (u8, Event)) {
        let mut process = Process::clone(&self.processes[at]);
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut effects = Vec::new();
            process.election.step(instant(self.now), event, &mut effects);
            for effect in effects {
                let call = match effect {
                    Effect::Join(_) => Call::Join,
                    Effect::Enlist(id) => Call::Enlist(id),
                    Effect::KeepAlive(id) => Call::KeepAlive(id),
                    Effect::Observe(known) => Call::Observe(known.map(|leading| leading.candidacy)),
                    Effect::Leave(id) => Call::Leave(id),
                    Effect::Lead(..) | Effect::Extend(_) | Effect::TakeDown(_) | Effect::Arm(_) => {
                        let late = UNIT * u32::from(if bug == Some(ANCHORED) { self.now - sent } else { 0 });
                        events.extend(self.led(&mut process, effect, late));
                        continue;
                    }
                    Effect::AskLeader(id) => {
                        events.push(Event::LeaderAnswered(id));
                        continue;
                    }
                    Effect::Follow(_) | Effect::Note(_) | Effect::Exit => continue,
                };
                self.net.push(Part::new(Message::Call(at, self.now, call)));
            }
        }
        self.processes[at] = Part::new(process);
    }

    fn led(&mut self, process: &mut Process, effect: Effect, late: Duration) -> Option<Event> {
        match effect {
            Effect::Lead(leading, until) => {
                if self.ever.replace(leading.candidacy).is_some() {
                    self.marks.add(Mark::LedNext);
                }
                process.gate = Some((leading.candidacy, until));
            }
            Effect::Extend(until) => {
                self.marks.add(Mark::KeptAlive);
                process.gate = process.gate.map(|(id, _)| (id, until.plus(late)));
            }
            Effect::TakeDown(_) => {
                self.marks.add(Mark::Unled);
                return process.gate.take().map(|(id, _)| Event::Ended(id, "taken down".to_owned()));
            }
            Effect::Arm(tick) => process.armed = Some(tick),
            Effect::Join(_)
            | Effect::Enlist(_)
            | Effect::KeepAlive(_)
            | Effect::Observe(_)
            | Effect::Leave(_)
            | Effect::AskLeader(_)
            | Effect::Follow(_)
            | Effect::Note(_)
            | Effect::Exit => {}
        }
        None
    }

    /// The store answers a call; to whoever asks who leads, only once that is somebody else.
    fn serve(&mut self, call: &Call) -> Event {
        let until = self.now + TTL;
        match call {
            Call::Join => {
                self.opened += 1;
                self.leases.insert(CandidacyId(self.opened), until);
                Event::Joined(Ok((CandidacyId(self.opened), ttl())))
            }
            Call::Enlist(id) if self.leases.contains_key(id) => {
                if !self.queue.contains(id) {
                    self.queue.push(*id);
                }
                Event::Enlisted(*id, Ok(Kept::Held(())))
            }
            Call::Enlist(id) => Event::Enlisted(*id, Ok(Kept::Gone)),
            Call::KeepAlive(id) if self.leases.contains_key(id) => {
                self.leases.insert(*id, until);
                Event::KeptAlive(*id, Ok(Kept::Held(ttl())))
            }
            Call::KeepAlive(id) => Event::KeptAlive(*id, Ok(Kept::Gone)),
            Call::Observe(_) => Event::Observed(Ok(self.leading())),
            Call::Leave(id) => {
                self.expire(*id);
                Event::Left(*id, Ok(()))
            }
        }
    }

    fn expire(&mut self, id: CandidacyId) {
        self.leases.remove(&id);
        self.queue.retain(|place| *place != id);
    }

    /// What a message comes to: the store's answer, or what its caller hears.
    fn deliver(&mut self, bug: Option<Bug>, message: usize) {
        match &*self.net.remove(message) {
            Message::Call(at, sent, call) => {
                let answer = self.serve(call);
                self.net.push(Part::new(Message::Answer(*at, *sent, answer)));
            }
            Message::Answer(at, sent, event) => self.tell(bug, *at, (*sent, event.clone())),
        }
    }

    fn lose(&mut self, bug: Option<Bug>, message: usize) {
        self.losses -= 1;
        self.marks.add(Mark::CallFailed);
        let (at, sent, event) = match &*self.net.remove(message) {
            Message::Call(at, sent, call) => (*at, *sent, failure(call)),
            Message::Answer(at, sent, event) => (*at, *sent, lost(event)),
        };
        self.tell(bug, at, (sent, event));
    }

    fn after(&self, Elections { scenario, bug, .. }: &Elections, action: Action) -> Self {
        let bug = *bug;
        let mut next = Self { marks: Marks::default(), ..self.clone() };
        match action {
            Action::Tick => next.now += 1,
            Action::Timer(at) => next.wake(bug, at),
            Action::Deliver(message) => next.deliver(bug, message),
            Action::Lose(message) => next.lose(bug, message),
            Action::Expire(id) => next.expire(id),
        }
        if scenario.second_in_time {
            next.catch_up(bug, 1);
        }
        next.net.sort_unstable_by_key(Part::order);
        next.observe(bug);
        next
    }

    fn wake(&mut self, bug: Option<Bug>, at: usize) {
        let mut process = Process::clone(&self.processes[at]);
        process.armed = None;
        self.processes[at] = Part::new(process);
        self.tell(bug, at, (self.now, Event::Timer));
    }

    /// A process does what is due, and is answered, at once.
    fn catch_up(&mut self, bug: Option<Bug>, at: usize) {
        let its = |message: &Message| match message {
            Message::Call(from, ..) => *from == at,
            Message::Answer(to, ..) => *to == at,
        };
        loop {
            if let Some(message) = self.net.iter().position(|message| its(message) && self.has_answer(message)) {
                self.deliver(bug, message);
            } else if self.is_due(at) {
                self.wake(bug, at);
            } else {
                return;
            }
        }
    }

    fn is_due(&self, at: usize) -> bool {
        self.processes[at].armed.is_some_and(|due| due <= instant(self.now))
    }

    /// Whose gate is open leads: one at most, and of that one the store still keeps the lease.
    fn observe(&mut self, bug: Option<Bug>) {
        let now = instant(self.now);
        let open = |gate: &Option<(CandidacyId, Tick)>| match gate {
            Some((id, until)) if *until > now || bug == Some(Bug::GateStaysOpen) => Some(*id),
            Some(_) | None => None,
        };
        let leaders: Vec<CandidacyId> = self.processes.iter().filter_map(|process| open(&process.gate)).collect();
        if let [one, other, ..] = leaders.as_slice() {
            self.breach =
                Some(Breach { rule: Rule::OneLeader, evidence: format!("candidacies {one} and {other} both lead") });
        }
    }

    fn actions(&self, scenario: &Scenario, out: &mut Vec<Action>) {
        if self.breach.is_some() {
            return;
        }
        if self.now < scenario.horizon {
            out.push(Action::Tick);
        }
        out.extend((0..PROCESSES).filter(|at| self.is_due(*at)).map(Action::Timer));
        for (at, message) in self.net.iter().enumerate() {
            if self.has_answer(message) {
                out.push(Action::Deliver(at));
            }
            if self.losses > 0 {
                out.push(Action::Lose(at));
            }
        }
        let ended = self.leases.iter().filter(|(_, until)| **until <= self.now);
        out.extend(ended.map(|(id, _)| Action::Expire(*id)));
    }
}

impl Model for Elections {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(&self.scenario, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = last.after(self, action);
        self.reached.fetch_or(next.marks.0, Ordering::Relaxed);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(Rule::OneLeader.text(), |_, state: &State| state.breach.is_none())]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.net.len() <= MESSAGES
    }
}

impl World for Elections {
    fn name(&self) -> &'static str {
        self.scenario.name
    }

    fn text(&self) -> &'static str {
        self.scenario.text
    }

    fn reach(&self) -> &'static [Mark] {
        self.scenario.reach
    }

    fn reached(&self) -> Marks {
        Marks(self.reached.load(Ordering::Relaxed))
    }

    fn breach(state: &State) -> Option<&Breach> {
        state.breach.as_ref()
    }

    fn describe(state: &State, action: &Action) -> String {
        match action {
            Action::Tick => format!("time passes: now {}", state.now + 1),
            Action::Timer(at) => format!("manager {at}: timer"),
            Action::Deliver(at) => format!("arrives: {:?}", &*state.net[*at]),
            Action::Lose(at) => format!("is lost: {:?}", &*state.net[*at]),
            Action::Expire(id) => format!("the store ends lease {id}"),
        }
    }
}
