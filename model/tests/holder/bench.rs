//! One holder with a clock that tests turn, and short ways to write sets, grants and pushes.

use leasehold_model::holder::{
    Attempt, Effect, Event, Exit, Holder, Identity, Life, Purpose, Request, Settings, Token, WorkId,
};
use leasehold_model::lease::Allowance;
use leasehold_model::message::{LeaseKey, Push, PushAnswer, Registration, Renewal, Weight};
use leasehold_model::set::Holdings;
use leasehold_model::{
    Address, CallError, Claim, ClusterName, ExecutorId, ExecutorName, Grant, GrantSeq, LeaseKeyHash, ManagerId,
    Refusal, Revision, ShardCount, ShardEpoch, ShardId, ShardSet, Tick, Ttl,
};
use std::time::Duration;

pub const TTL_MS: u64 = 60_000;
pub const GRACE: Duration = Duration::from_secs(10);
pub const FLOOR: Duration = Duration::from_secs(10);
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const M1: ManagerId = ManagerId::from_u128(101);
pub const M2: ManagerId = ManagerId::from_u128(102);

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn shards(pairs: &[(u32, u64)]) -> Vec<(ShardId, ShardEpoch)> {
    pairs.iter().map(|(shard, epoch)| (ShardId(*shard), ShardEpoch::new(*epoch).unwrap())).collect()
}

pub fn set(manager: ManagerId, revision: u64, pairs: &[(u32, u64)]) -> ShardSet {
    ShardSet {
        manager,
        revision: Revision(revision),
        shard_count: ShardCount::new(64).unwrap(),
        shards: Holdings::new(shards(pairs)).unwrap(),
    }
}

pub fn claim(manager: ManagerId, applied: u64, pairs: &[(u32, u64)]) -> Claim {
    Claim { manager, applied: Revision(applied), shards: Holdings::new(shards(pairs)).unwrap() }
}

pub fn grant(seq: u64, set: ShardSet) -> Grant {
    Grant { set, ttl: Ttl::from_ms(TTL_MS).unwrap(), seq: GrantSeq(seq) }
}

pub fn life(number: u128) -> Life {
    Life { executor: ExecutorId::from_u128(number), lease_key: LeaseKey([u8::try_from(number).unwrap(); 32]) }
}

pub fn identity() -> Identity {
    Identity {
        cluster: ClusterName::new("test").unwrap(),
        name: ExecutorName::new("a").unwrap(),
        address: Address::new("127.0.0.1:7001").unwrap(),
        zone: None,
        weight: Weight::default(),
        shard_count: None,
    }
}

pub fn settings() -> Settings {
    Settings {
        handoff_grace: GRACE,
        call_deadline_floor: FLOOR,
        registration_patience: PATIENCE,
        allowance: Allowance::default(),
        managers: "127.0.0.1:7000".to_owned(),
    }
}

/// When a lease noted at `noted` ends for the holder, with the default allowance of 0.1 %.
pub fn ends(noted: Tick) -> Tick {
    noted.plus(ms(TTL_MS - TTL_MS / 1000))
}

pub struct Bench {
    pub holder: Holder,
    pub now: Tick,
    /// The call that was asked for last.
    pub call: Option<(Attempt, Request, Duration)>,
    /// Sweeps that were asked for, oldest first.
    pub sweeps: Vec<WorkId>,
    /// Instants armed last, by purpose.
    armed: Vec<(Purpose, Tick)>,
    token: u64,
}

impl Bench {
    /// A holder that was started and has asked to be registered.
    pub fn started() -> Self {
        let mut bench = Self::new(identity());
        bench.step(Event::Started { seed: 7 });
        bench
    }

    pub fn new(identity: Identity) -> Self {
        let holder = Holder::new(settings(), identity, life(1));
        Self { holder, now: Tick(1_000_000_000_000), call: None, sweeps: Vec::new(), armed: Vec::new(), token: 0 }
    }

    /// A holder registered with `M1`, holding `pairs` since revision 10, ten milliseconds after it asked.
    pub fn holding(pairs: &[(u32, u64)]) -> Self {
        let mut bench = Self::started();
        bench.wait(ms(10));
        bench.answer(Ok(grant(1, set(M1, 10, pairs))));
        bench
    }

    pub fn wait(&mut self, span: Duration) {
        self.now = self.now.plus(span);
    }

    /// Takes one step. Returns the effects without notes.
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.holder.step(self.now, event, &mut out);
        for effect in &out {
            match effect {
                Effect::Call { attempt, request, within } => self.call = Some((*attempt, request.clone(), *within)),
                Effect::Sweep { id, .. } => self.sweeps.push(*id),
                Effect::Arm { purpose, at } => {
                    self.armed.retain(|(armed, _)| armed != purpose);
                    self.armed.push((*purpose, *at));
                }
                Effect::CancelCall
                | Effect::SizeFence(_)
                | Effect::OpenShard(..)
                | Effect::CloseShard(_)
                | Effect::ArmFence(_)
                | Effect::CloseFence
                | Effect::Recover { .. }
                | Effect::AnswerPush { .. }
                | Effect::AskIdentity
                | Effect::Exit(_)
                | Effect::Note(_) => {}
            }
        }
        out.retain(|effect| !matches!(effect, Effect::Note(_)));
        out
    }

    /// When the timer for `purpose` was last armed to fire.
    pub fn armed(&self, purpose: Purpose) -> Tick {
        self.armed.iter().find(|(armed, _)| *armed == purpose).unwrap().1
    }

    /// Turns the clock to the armed instant and lets the timer fire.
    pub fn fire(&mut self, purpose: Purpose) -> Vec<Effect> {
        self.now = self.now.max(self.armed(purpose));
        self.step(Event::Timer(purpose))
    }

    /// Answers the call asked for last.
    pub fn answer(&mut self, result: Result<Grant, CallError>) -> Vec<Effect> {
        let (attempt, _, _) = self.call.clone().unwrap();
        self.step(Event::Answered { attempt, result })
    }

    pub fn refuse(&mut self, refusal: Refusal) -> Vec<Effect> {
        self.answer(Err(CallError::Refused(refusal)))
    }

    pub fn push(&mut self, set: ShardSet) -> (Result<PushAnswer, Refusal>, Vec<Effect>) {
        let executor = self.holder.life().executor;
        self.push_as(true, Push { executor, key_hash: LeaseKeyHash([0; 32]), set })
    }

    pub fn push_as(&mut self, proven: bool, push: Push) -> (Result<PushAnswer, Refusal>, Vec<Effect>) {
        self.token += 1;
        let token = Token(self.token);
        let mut effects = self.step(Event::Pushed { token, proven, push });
        let answers: Vec<_> = effects.extract_if(.., |effect| matches!(effect, Effect::AnswerPush { .. })).collect();
        let [Effect::AnswerPush { token: answered, answer }] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(*answered, token);
        (answer.clone(), effects)
    }

    /// The oldest sweep is over.
    pub fn swept(&mut self) -> Vec<Effect> {
        let id = self.sweeps.remove(0);
        self.step(Event::Swept(id))
    }

    pub fn renewal(&self) -> &Renewal {
        match &self.call {
            Some((_, Request::Renew(renewal), _)) => renewal,
            other => panic!("not a renewal: {other:?}"),
        }
    }

    pub fn registration(&self) -> &Registration {
        match &self.call {
            Some((_, Request::Register(registration), _)) => registration,
            other => panic!("not a registration: {other:?}"),
        }
    }
}

pub fn is_call(effect: &Effect) -> bool {
    matches!(effect, Effect::Call { .. })
}

pub fn calls(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| is_call(effect)).count()
}

pub fn exits(effects: &[Effect]) -> Option<&Exit> {
    effects.iter().find_map(|effect| if let Effect::Exit(exit) = effect { Some(exit) } else { None })
}

/// Only what admission sees.
pub fn admission(effects: &[Effect]) -> Vec<Effect> {
    let seen = |effect: &&Effect| {
        matches!(
            effect,
            Effect::OpenShard(..)
                | Effect::CloseShard(_)
                | Effect::ArmFence(_)
                | Effect::CloseFence
                | Effect::SizeFence(_)
        )
    };
    effects.iter().filter(seen).cloned().collect()
}

impl Bench {
    /// Lets the deregistration among `effects`, if there is one, be answered.
    pub fn finish_deregistering(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        match &self.call {
            Some((attempt, Request::Deregister(_), _)) => {
                let attempt = *attempt;
                self.step(Event::Deregistered { attempt, result: Err(CallError::Unreachable("gone".to_owned())) })
            }
            Some((_, Request::Register(_) | Request::Renew(_), _)) | None => effects,
        }
    }
}
