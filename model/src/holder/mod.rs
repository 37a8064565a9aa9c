//! The executor's decisions: registering, renewing, receiving sets, leaving.
//!
//! [`Holder::step`] takes what happened and the present instant, and says what is to be done. It notes the instant of a
//! call as the instant of the step that asks for it, which is before the call is first polled (R2).
//!
//! ```text
//! New ─Started─▶ Active ⇄ (registration gone: asks for a new life) Unborn
//!                  │ Shutdown, or a refusal that is final
//!                  ▼
//!               Leaving ─all swept─▶ Deregistering ─▶ Gone
//! ```

mod calls;
mod event;
mod leaving;
mod receipt;
mod shards;

pub use event::{Attempt, Effect, Event, Exit, Identity, Ignored, Life, Loss, Note, Purpose, Request, Token, WorkId};
pub use leaving::{DEREGISTER_LIMIT, SWEEP_SLACK};

use crate::ids::{GrantSeq, ManagerId, Revision, ShardCount, ShardEpoch, ShardId};
use crate::lease::{Allowance, HolderLease, Jitter};
use crate::message::{Condition, Inspection};
use crate::set::Claim;
use crate::time::{Tick, Ttl};
use shards::Shards;
use std::collections::BTreeMap;
use std::time::Duration;

/// What an executor is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long running invocations may take when a shard is given up (R20); zero stops them at once.
    pub handoff_grace: Duration,
    /// The least time one call is given (R13).
    pub call_deadline_floor: Duration,
    /// How long a first registration is tried before the process gives up (R38).
    pub registration_patience: Duration,
    /// What clock rates may differ by (R9).
    pub allowance: Allowance,
    /// Which addresses are tried, as a sentence for people says it (R38).
    pub managers: String,
}

/// Whom this executor follows (R18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Following {
    manager: ManagerId,
    /// Of the last set applied from that manager.
    applied: Revision,
    /// The greatest grant heard from that manager (R46).
    heard: GrantSeq,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// Before [`Event::Started`].
    New,
    /// Registering or renewing.
    Active,
    /// The registration is gone, a new life was asked for.
    Unborn,
    /// Waiting for sweeps.
    Leaving(leaving::Leaving),
    /// Everything is swept, the last call is under way.
    Deregistering(Exit),
    /// Over.
    Gone,
}

/// The executor's side of the lease protocol.
#[derive(Debug, Clone, Hash)]
pub struct Holder {
    settings: Settings,
    identity: Identity,
    life: Life,
    phase: Phase,
    random: Random,
    /// Heard or configured; never changes once it is known (R23).
    shard_count: Option<ShardCount>,
    /// Whether the fence was told.
    sized: bool,
    /// `None` until this life's registration is answered.
    following: Option<Following>,
    lease: HolderLease,
    /// Length of the last lease that counted.
    ttl: Option<Ttl>,
    /// Whether the lease was live when it was last looked at.
    live: bool,
    shards: Shards,
    /// R40: epochs that storage recorded and that the ones held do not exceed.
    floors: BTreeMap<ShardId, ShardEpoch>,
    /// Shards whose fencing made it renew at once already, with the epoch: once per epoch, so that it does not spin (case 8).
    fenced: BTreeMap<ShardId, ShardEpoch>,
    /// The call in flight: at most one.
    call: Option<Attempt>,
    attempts: u64,
    /// Failed attempts in a row.
    failures: u32,
    last_failure: Option<String>,
    /// Something happened while a call was in flight that the manager should hear of at once.
    again: bool,
    next_call: Option<Tick>,
    /// Whether this life ever asked to be registered.
    asked: bool,
    /// Whether any grant was ever heard: then patience no longer matters.
    ever_granted: bool,
    /// When patience for the first grant ends (R38).
    patience_until: Tick,
    /// When a leaving process stops waiting.
    leave_until: Tick,
    recovering: BTreeMap<WorkId, usize>,
    works: u64,
}

impl Holder {
    /// A holder of nothing, which does nothing before [`Event::Started`].
    #[must_use]
    pub fn new(settings: Settings, identity: Identity, life: Life) -> Self {
        Self {
            shard_count: identity.shard_count,
            settings,
            identity,
            life,
            phase: Phase::New,
            random: Random(0),
            sized: false,
            following: None,
            lease: HolderLease::default(),
            ttl: None,
            live: false,
            shards: Shards::default(),
            floors: BTreeMap::new(),
            fenced: BTreeMap::new(),
            call: None,
            attempts: 0,
            failures: 0,
            last_failure: None,
            again: false,
            next_call: None,
            asked: false,
            ever_granted: false,
            patience_until: Tick::NEVER,
            leave_until: Tick::NEVER,
            recovering: BTreeMap::new(),
            works: 0,
        }
    }

    /// Takes what happened at `now` and appends what is to be done, in order.
    ///
    /// # Panics
    /// When an invariant is broken: a bug, and safer than going on (S1).
    pub fn step(&mut self, now: Tick, event: Event, out: &mut Vec<Effect>) {
        self.notice_lapse(now, out);
        match event {
            Event::Started { seed } => self.start(now, seed, out),
            Event::Timer(purpose) => self.timer(now, purpose, out),
            Event::Answered { attempt, result } => self.answered(now, attempt, result, out),
            Event::Deregistered { attempt, result } => self.deregistered(attempt, result, out),
            Event::Pushed { token, proven, push } => {
                let answer = self.pushed(now, proven, &push, out);
                out.push(Effect::AnswerPush { token, answer });
            }
            Event::Swept(id) => self.swept(now, id, out),
            Event::Recovered(id) => {
                if let Some(shards) = self.recovering.remove(&id) {
                    out.push(Effect::Note(Note::RecoveryDone { shards }));
                }
            }
            Event::Fenced { shard, held, recorded } => self.fenced(now, shard, (held, recorded), out),
            Event::NewIdentity(life) => self.reborn(now, life, out),
            Event::HostGone => self.host_gone(now, out),
            Event::Shutdown => self.shutdown(now, out),
        }
        self.shards.check();
    }

    fn start(&mut self, now: Tick, seed: u64, out: &mut Vec<Effect>) {
        if self.phase != Phase::New {
            return;
        }
        self.phase = Phase::Active;
        self.random = Random(seed);
        self.patience_until = now.plus(self.settings.registration_patience);
        out.push(Effect::Arm { purpose: Purpose::Patience, at: self.patience_until });
        self.call(now, out);
    }

    fn timer(&mut self, now: Tick, purpose: Purpose, out: &mut Vec<Effect>) {
        match purpose {
            Purpose::Call => {
                if self.next_call.is_some_and(|at| now >= at) {
                    self.call(now, out);
                }
            }
            // Every step begins by noticing it.
            Purpose::Lapse => {}
            Purpose::Patience => self.lose_patience(now, out),
            Purpose::Leave => self.stop_waiting(now, out),
        }
    }

    /// What this executor holds, as it tells managers. `None` before the first grant of this life.
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        let Following { manager, applied, .. } = self.following?;
        Some(Claim { manager, applied, shards: self.shards.claimed() })
    }

    /// Revision of the last set applied; 0 before the first grant of this life.
    #[must_use]
    pub fn applied(&self) -> Revision {
        self.following.map_or(Revision(0), |following| following.applied)
    }

    /// What this executor says of itself to whoever asks.
    #[must_use]
    pub fn inspection(&self, now: Tick, condition: Condition) -> Inspection {
        let left = self.lease.deadline().since(now).as_millis();
        Inspection {
            executor: self.life.executor,
            name: self.identity.name.clone(),
            manager: self.following.map(|following| following.manager),
            applied: self.applied(),
            lease_remaining_ms: u64::try_from(left).unwrap_or(u64::MAX),
            held: self.shards.open(),
            draining: self.shards.draining(),
            condition,
        }
    }

    /// The life in force.
    #[must_use]
    pub const fn life(&self) -> &Life {
        &self.life
    }

    /// When the lease ends; [`Tick::ZERO`] without one.
    #[must_use]
    pub const fn deadline(&self) -> Tick {
        self.lease.deadline()
    }

    /// Whether it was told to go, or has gone.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        match self.phase {
            Phase::New | Phase::Active | Phase::Unborn => false,
            Phase::Leaving(_) | Phase::Deregistering(_) | Phase::Gone => true,
        }
    }

    fn work(&mut self) -> WorkId {
        self.works += 1;
        WorkId(self.works)
    }
}

/// A small generator of jitter (splitmix64), so that one seed explains a whole run.
#[derive(Debug, Clone, Hash)]
struct Random(u64);

impl Random {
    fn jitter(&mut self) -> Jitter {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The last step, `mixed ^= mixed >> 31`, leaves the bits taken here as they are.
        Jitter::new(u16::try_from(mixed >> 48).expect("16 bits are left"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Jitter, Random};

    /// Jitter comes from a seed alone, so a run that is repeated on another build must draw the same. The vector is the published
    /// one of splitmix64 for the seed 1234567, of which a jitter is the upper 16 bits.
    #[test]
    fn one_seed_draws_the_same_jitter_on_every_build() {
        let published: [u64; 5] = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut random = Random(1_234_567);
        for number in published {
            assert_eq!(random.jitter(), Jitter::new(u16::try_from(number >> 48).unwrap()));
        }
    }
}
