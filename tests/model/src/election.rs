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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A leader's own lease, in units of time.
const TTL: u8 = 3;
/// How many units of time pass.
const HORIZON: u8 = 6;
/// How many messages are on their way at a time, at most.
const MESSAGES: usize = 4;
/// Two stand for leadership.
const PROCESSES: usize = 2;
/// What must be reached.
const REACH: &[Mark] = &[Mark::Led, Mark::LedNext, Mark::Unled, Mark::KeptAlive, Mark::CallFailed];

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
    /// Until when its gate lets answers out.
    gate: Option<Tick>,
    armed: Option<Tick>,
}

/// Everything.
#[derive(Debug, Clone, Hash, PartialEq)]
pub struct State {
    now: u8,
    losses: u8,
    processes: Vec<Part<Process>>,
    net: Vec<Part<Message>>,
    /// Until when the store keeps each lease.
    leases: BTreeMap<CandidacyId, u8>,
    queue: Vec<CandidacyId>,
    opened: i64,
    breach: Option<Breach>,
    marks: Marks,
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
    bug: Option<Bug>,
    reached: Arc<AtomicU64>,
}

impl Elections {
    /// A world in which nothing was tried yet.
    #[must_use]
    pub fn new(bug: Option<Bug>) -> Self {
        Self { bug, reached: Arc::default() }
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

/// The same call as failed, for whoever waits for this answer.
fn lost(answer: &Event) -> Option<Event> {
    let why = || "no answer".to_owned();
    match answer {
        Event::Joined(_) => Some(Event::Joined(Err(why()))),
        Event::Enlisted(id, _) => Some(Event::Enlisted(*id, Err(why()))),
        Event::KeptAlive(id, _) => Some(Event::KeptAlive(*id, Err(why()))),
        Event::Observed(_) => Some(Event::Observed(Err(why()))),
        Event::Left(id, _) => Some(Event::Left(*id, Err(why()))),
        Event::Timer | Event::Ended(..) | Event::Stop => None,
    }
}

impl State {
    fn first(bug: Option<Bug>) -> Self {
        let settings = Settings { ttl: ttl(), allowance: Allowance::default() };
        let process = || Process { election: Election::new(settings, instant(0)), gate: None, armed: None };
        let mut state = Self {
            now: 0,
            losses: 1,
            processes: (0..PROCESSES).map(|_| Part::new(process())).collect(),
            net: Vec::new(),
            leases: BTreeMap::new(),
            queue: Vec::new(),
            opened: 0,
            breach: None,
            marks: Marks::default(),
        };
        (0..PROCESSES).for_each(|at| state.tell(bug, at, (0, Event::Timer)));
        state
    }

    /// The place of whoever is first in the queue.
    fn leading(&self) -> Option<Leading> {
        let candidacy = *self.queue.first()?;
        Some(Leading { candidacy, since: candidacy.0, address: Address::new("manager:1").expect("a valid address") })
    }

    fn tell(&mut self, bug: Option<Bug>, at: usize, (sent, event): (u8, Event)) {
        let mut process = Process::clone(&self.processes[at]);
        let mut events = vec![event];
        let late = UNIT * u32::from(self.now - sent);
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
                    Effect::Lead(_, until) => {
                        let again = self.opened > i64::try_from(PROCESSES).unwrap_or(0) || self.queue.len() == 1;
                        self.marks.add(if again && self.leases.len() < PROCESSES { Mark::LedNext } else { Mark::Led });
                        process.gate = Some(until);
                        continue;
                    }
                    Effect::Extend(until) => {
                        let anchored = bug == Some(Bug::KeepaliveAnchoredAtReceipt);
                        self.marks.add(Mark::KeptAlive);
                        process.gate = Some(if anchored { until.plus(late) } else { until });
                        continue;
                    }
                    Effect::TakeDown(_) => {
                        self.marks.add(Mark::Unled);
                        process.gate = None;
                        let own = process.election.candidacy();
                        events.extend(own.map(|id| Event::Ended(id, "taken down".to_owned())));
                        continue;
                    }
                    Effect::Arm(tick) => {
                        process.armed = Some(tick);
                        continue;
                    }
                    Effect::Follow(_) | Effect::Note(_) | Effect::Exit => continue,
                };
                self.net.push(Part::new(Message::Call(at, self.now, call)));
            }
        }
        self.processes[at] = Part::new(process);
    }
}
