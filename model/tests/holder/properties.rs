//! What holds whatever happens, in whatever order.

use crate::bench::*;
use leasehold_model::holder::{Attempt, Effect, Event, Holder, Purpose, Request, Token, WorkId};
use leasehold_model::message::Push;
use leasehold_model::refusal::Credential;
use leasehold_model::{CallError, Grant, LeaseKeyHash, Refusal, ShardEpoch, ShardId, Tick, Ttl};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that the world does.
#[derive(Debug, Clone)]
enum Happening {
    Wait(u32),
    Fire(u8),
    Grant { late: bool, second: bool, revision: u8, ttl_ms: u16, held: Vec<(u8, u8)> },
    Fail(u8),
    Push { second: bool, proven: bool, revision: u8, held: Vec<(u8, u8)> },
    Sweep(u8),
    Recover,
    Fenced(u8, u8, u8),
    Seldom(u8),
}

impl Arbitrary for Happening {
    fn arbitrary(g: &mut Gen) -> Self {
        let held =
            |g: &mut Gen| (0..u8::arbitrary(g) % 5).map(|_| (u8::arbitrary(g) % 6, u8::arbitrary(g) % 4)).collect();
        match u8::arbitrary(g) % 16 {
            0 | 1 => Self::Wait(u32::arbitrary(g) % 20_000),
            2 | 3 => Self::Fire(u8::arbitrary(g)),
            4..=7 => Self::Grant {
                late: u8::arbitrary(g) % 8 == 0,
                second: u8::arbitrary(g) % 6 == 0,
                revision: u8::arbitrary(g) % 40,
                ttl_ms: u16::arbitrary(g),
                held: held(g),
            },
            8 => Self::Fail(u8::arbitrary(g)),
            9..=11 => Self::Push {
                second: u8::arbitrary(g) % 6 == 0,
                proven: u8::arbitrary(g) % 8 != 0,
                revision: u8::arbitrary(g) % 40,
                held: held(g),
            },
            12 | 13 => Self::Sweep(u8::arbitrary(g)),
            14 if u8::arbitrary(g) % 4 == 0 => Self::Seldom(u8::arbitrary(g)),
            14 => Self::Recover,
            _ => Self::Fenced(u8::arbitrary(g) % 6, u8::arbitrary(g) % 4, u8::arbitrary(g) % 8),
        }
    }
}

/// Performs effects, and watches them.
struct World {
    holder: Holder,
    now: Tick,
    open: BTreeMap<ShardId, ShardEpoch>,
    fence: Tick,
    sweeps: BTreeMap<WorkId, Vec<(ShardId, ShardEpoch)>>,
    recoveries: BTreeSet<WorkId>,
    call: Option<(Attempt, Request)>,
    given_up: Vec<(Attempt, Request)>,
    lives: u128,
    /// The latest noted attempt that was granted, and when such a lease ends.
    granted: Option<(Tick, Tick)>,
    gone: bool,
    token: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            holder: Holder::new(settings(), identity(), life(1)),
            now: Tick(3_600_000_000_000),
            open: BTreeMap::new(),
            fence: Tick::ZERO,
            sweeps: BTreeMap::new(),
            recoveries: BTreeSet::new(),
            call: None,
            given_up: Vec::new(),
            lives: 1,
            granted: None,
            gone: false,
            token: 0,
        };
        world.step(Event::Started { seed: 3 });
        world
    }

    fn step(&mut self, event: Event) {
        let before = self.claimed();
        let was_life = self.holder.life().clone();
        let swept = if let Event::Swept(id) = &event { self.sweeps.remove(id).unwrap_or_default() } else { vec![] };
        let host_gone = event == Event::HostGone;
        let mut out = Vec::new();
        self.holder.step(self.now, event, &mut out);
        if host_gone {
            self.open.clear();
            self.sweeps.clear();
        }
        let mut asked = false;
        for effect in out {
            asked |= effect == Effect::AskIdentity;
            self.perform(effect);
        }
        self.check(before, &swept, was_life == *self.holder.life() && !host_gone);
        if asked {
            self.lives += 1;
            self.granted = None;
            self.step(Event::NewIdentity(life(self.lives % 200 + 1)));
        }
    }

    fn perform(&mut self, effect: Effect) {
        let passive = matches!(effect, Effect::AnswerPush { .. } | Effect::Note(_));
        assert!(!self.gone || passive || effect == Effect::CloseFence, "after the end: {effect:?}");
        match effect {
            Effect::Call { attempt, request, .. } => {
                assert!(self.call.is_none(), "R11: two calls in flight");
                self.call = Some((attempt, request));
            }
            Effect::CancelCall => {
                let call = self.call.take().expect("there is something to cancel");
                self.given_up.push(call);
            }
            Effect::OpenShard(shard, epoch) => {
                let draining = self.sweeps.values().flatten().any(|(other, _)| *other == shard);
                assert!(!draining, "R29: {shard} opened at {epoch} while it drains");
                assert!(self.now < self.fence, "R21: {shard} opened without a lease");
                self.open.insert(shard, epoch);
            }
            Effect::CloseShard(shard) => {
                self.open.remove(&shard).expect("only what is open is closed");
            }
            Effect::ArmFence(deadline) => self.fence = deadline,
            Effect::CloseFence => self.fence = Tick::ZERO,
            Effect::Sweep { id, shards, .. } => {
                for (shard, _) in &shards {
                    assert!(!self.open.contains_key(shard), "R20: {shard} is swept while it is admitted");
                }
                self.sweeps.insert(id, shards);
            }
            Effect::Recover { id, .. } => {
                self.recoveries.insert(id);
            }
            Effect::Exit(_) => self.gone = true,
            Effect::Arm { .. }
            | Effect::SizeFence(_)
            | Effect::AnswerPush { .. }
            | Effect::AskIdentity
            | Effect::Note(_) => {}
        }
    }

    fn claimed(&self) -> BTreeMap<ShardId, ShardEpoch> {
        self.holder.claim().map(|claim| claim.shards.iter().collect()).unwrap_or_default()
    }

    fn check(&self, before: BTreeMap<ShardId, ShardEpoch>, swept: &[(ShardId, ShardEpoch)], same_life: bool) {
        let admitting = self.now < self.fence;
        if let Some((_, ends)) = self.granted {
            assert!(self.fence <= ends, "S5: admits until {:?}, granted until {ends:?}", self.fence);
        } else {
            assert!(!admitting, "admits without a grant");
        }
        if !admitting {
            assert!(self.open.is_empty(), "R21: {:?} is open without a lease", self.open);
        }
        let claimed = self.claimed();
        if self.holder.claim().is_some() {
            let mut held = self.open.clone();
            held.extend(self.sweeps.values().flatten().copied());
            for (shard, epoch) in &held {
                assert_eq!(claimed.get(shard), Some(epoch), "held, not claimed");
            }
            if admitting {
                assert_eq!(claimed, held, "the claim is what is admitted and what drains");
            }
        }
        // R26 rests on this: a shard that was admitted leaves the claim only by the end of its sweep.
        for (shard, epoch) in before {
            let gone = !claimed.contains_key(&shard);
            let was_swept = swept.contains(&(shard, epoch));
            let still_there = self.sweeps.values().flatten().any(|held| *held == (shard, epoch));
            if same_life && gone && self.holder.claim().is_some() && !was_swept {
                assert!(!still_there, "{shard} left the claim before it was swept");
            }
        }
    }

    fn answer(&mut self, late: bool, grant: Grant) {
        let call = if late { self.given_up.pop() } else { self.call.take() };
        let Some((attempt, request)) = call else { return };
        match request {
            Request::Register(_) | Request::Renew(_) => {
                let current = attempt.executor == self.holder.life().executor;
                if current && self.granted.is_none_or(|(noted, _)| attempt.noted >= noted) {
                    let span = grant.ttl.as_duration();
                    self.granted = Some((attempt.noted, attempt.noted.plus(span - span / 1000)));
                }
                self.step(Event::Answered { attempt, result: Ok(grant) });
            }
            Request::Deregister(_) => self.step(Event::Deregistered { attempt, result: Ok(()) }),
        }
    }

    fn fail(&mut self, which: u8) {
        let Some((attempt, request)) = self.call.take() else { return };
        let error = match which % 16 {
            0 | 1 => CallError::Refused(Refusal::UnknownExecutor),
            2 => CallError::Refused(Refusal::Unheard),
            3 if which > 200 => CallError::Refused(Refusal::Superseded),
            4 if which > 200 => CallError::Refused(Refusal::BadCredential(Credential::LeaseKey)),
            5..=9 => CallError::Refused(Refusal::NotLeader { leader: None }),
            _ => CallError::Unknown("deadline".to_owned()),
        };
        match request {
            Request::Register(_) | Request::Renew(_) => {
                if !matches!(error, CallError::Refused(_)) {
                    self.given_up.push((attempt, request));
                }
                self.step(Event::Answered { attempt, result: Err(error) });
            }
            Request::Deregister(_) => self.step(Event::Deregistered { attempt, result: Err(error) }),
        }
    }

    fn happen(&mut self, happening: &Happening) {
        let manager = |second: bool| if second { M2 } else { M1 };
        match happening {
            Happening::Wait(ms_) => {
                self.now = self.now.plus(ms((*ms_).into()));
                self.step(Event::Timer(Purpose::Lapse));
            }
            Happening::Fire(which) => {
                let purposes = [Purpose::Call, Purpose::Lapse, Purpose::Patience, Purpose::Leave];
                self.step(Event::Timer(purposes[usize::from(*which) % 4]));
            }
            Happening::Grant { late, second, revision, ttl_ms, held } => {
                let mut grant = grant(1, set(manager(*second), (*revision).into(), &distinct(held)));
                grant.ttl = Ttl::from_ms(u64::from(*ttl_ms) + 1).unwrap();
                self.answer(*late, grant);
            }
            Happening::Fail(which) => self.fail(*which),
            Happening::Push { second, proven, revision, held } => {
                self.token += 1;
                let set = set(manager(*second), (*revision).into(), &distinct(held));
                let executor = self.holder.life().executor;
                let push = Push { executor, key_hash: LeaseKeyHash([0; 32]), set };
                self.step(Event::Pushed { token: Token(self.token), proven: *proven, push });
            }
            Happening::Sweep(which) => {
                if let Some(id) = self.sweeps.keys().nth(usize::from(*which) % self.sweeps.len().max(1)).copied() {
                    self.step(Event::Swept(id));
                }
            }
            Happening::Recover => {
                if let Some(id) = self.recoveries.pop_first() {
                    self.step(Event::Recovered(id));
                }
            }
            Happening::Fenced(shard, held, recorded) => {
                let epoch = |number: u8| ShardEpoch::new(number.into()).unwrap();
                let recorded = Some(epoch(*recorded));
                self.step(Event::Fenced { shard: ShardId((*shard).into()), held: epoch(*held), recorded });
            }
            Happening::Seldom(which) => self.step(if *which % 4 == 0 { Event::HostGone } else { Event::Shutdown }),
        }
    }
}

/// Each shard once, at epochs of 1 and above.
fn distinct(held: &[(u8, u8)]) -> Vec<(u32, u64)> {
    let held: BTreeMap<u32, u64> = held.iter().map(|(shard, epoch)| ((*shard).into(), u64::from(*epoch) + 1)).collect();
    held.into_iter().collect()
}

/// S1 and S5 on the executor's side, R11, R20, R21, R26's premise, R29.
#[test]
fn whatever_happens_it_admits_only_what_it_holds_and_claims_all_of_that() {
    fn property(story: Vec<Happening>) -> bool {
        let mut world = World::new();
        for happening in &story {
            world.happen(happening);
        }
        true
    }
    QuickCheck::new().rng(Gen::new(120)).tests(3_000).quickcheck(property as fn(Vec<Happening>) -> bool);
}
