//! Registering and renewing: one call in flight, one place that retries (R11, R13).

use super::event::{Attempt, Effect, Exit, Life, Loss, Note, Purpose, Request};
use super::leaving::Manner;
use super::{Following, Holder, Phase};
use crate::ids::{GrantSeq, ManagerId, Revision};
use crate::lease::{attempt_deadline, retry_pause};
use crate::message::{Condition, Registration, Renewal};
use crate::refusal::{CallError, Refusal};
use crate::routing::HASH_SCHEME;
use crate::set::{Grant, Holdings};
use crate::time::Tick;
use std::time::Duration;

/// The least time from a grant to the next renewal: a lease that is always heard too late must not make it spin.
const LEAST_GAP: Duration = Duration::from_millis(20);

/// What a refused registration or renewal means.
enum Verdict {
    /// Try again.
    Again,
    /// The registration is gone.
    NewLife,
    /// Never try again.
    Leave { code: u8, deregister: bool },
}

/// R16 and the error contract. `registering`: a call that is wrong in itself cannot come right when it registers; a renewal's may (its claim changes).
const fn verdict(refusal: &Refusal, registering: bool) -> Verdict {
    match refusal {
        Refusal::UnknownExecutor | Refusal::Unheard => Verdict::NewLife,
        // Two processes of one name are a mistake of configuration: restarted by a supervisor they would displace each other for ever.
        Refusal::Superseded => Verdict::Leave { code: 78, deregister: true },
        Refusal::Mismatch { .. } => Verdict::Leave { code: 78, deregister: false },
        Refusal::BadCredential(_) => Verdict::Leave { code: 77, deregister: false },
        Refusal::InvalidField(_) | Refusal::UnknownMethod { .. } if registering => {
            Verdict::Leave { code: 78, deregister: false }
        }
        Refusal::InvalidField(_)
        | Refusal::UnknownMethod { .. }
        | Refusal::ShardingNotReady { .. }
        | Refusal::WrongOwner { .. }
        | Refusal::HandoffInProgress { .. }
        | Refusal::ShardUnassigned { .. }
        | Refusal::Draining { .. }
        | Refusal::NotLeader { .. }
        | Refusal::LeadershipUnconfirmed { .. }
        | Refusal::StoreUnavailable { .. }
        | Refusal::EpochFenced { .. }
        | Refusal::PlanStale { .. }
        | Refusal::Overloaded { .. }
        | Refusal::InvocationRejected { .. }
        | Refusal::AppUnavailable { .. }
        | Refusal::AppFault { .. } => Verdict::Again,
    }
}

impl Holder {
    /// Calls the manager now, unless a call is in flight or there is nothing to ask.
    pub(super) fn call(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.call.is_some() || !self.renews() {
            return;
        }
        let attempt = self.attempt(now);
        self.next_call = None;
        self.again = false;
        self.asked = true;
        let request = match self.following {
            None => Request::Register(self.registration()),
            Some(following) => Request::Renew(self.renewal(following)),
        };
        out.push(Effect::Call { attempt, request, within: self.within() });
    }

    pub(super) fn attempt(&mut self, now: Tick) -> Attempt {
        self.attempts += 1;
        let attempt = Attempt { number: self.attempts, noted: now, executor: self.life.executor };
        self.call = Some(attempt);
        attempt
    }

    fn registration(&self) -> Registration {
        let identity = &self.identity;
        Registration {
            cluster: identity.cluster.clone(),
            shard_count: self.shard_count,
            hash_scheme: HASH_SCHEME.to_owned(),
            executor: self.life.executor,
            name: identity.name.clone(),
            address: identity.address.clone(),
            zone: identity.zone.clone(),
            weight: identity.weight,
            lease_key: self.life.lease_key.clone(),
        }
    }

    fn renewal(&self, following: Following) -> Renewal {
        Renewal {
            executor: self.life.executor,
            lease_key: self.life.lease_key.clone(),
            claim: self.claim().expect("a manager is followed"),
            heard: following.heard,
            epoch_floors: self.floors.iter().map(|(shard, epoch)| (*shard, *epoch)).collect(),
            condition: Condition::default(),
        }
    }

    /// R13: how long one attempt may take.
    pub(super) fn within(&self) -> Duration {
        let floor = self.settings.call_deadline_floor;
        self.ttl.map_or(floor, |ttl| attempt_deadline(ttl, floor))
    }

    fn renews(&self) -> bool {
        match &self.phase {
            Phase::Active => true,
            Phase::Leaving(leaving) => leaving.renewing && self.following.is_some(),
            Phase::New | Phase::Unborn | Phase::Deregistering(_) | Phase::Gone => false,
        }
    }

    /// Calls at once, or as soon as the call in flight is answered: that one's claim was made before.
    pub(super) fn call_at_once(&mut self, now: Tick, out: &mut Vec<Effect>) {
        self.again = self.call.is_some();
        self.call(now, out);
    }

    /// Calls within `spread` from now, unless it would anyway: who is in charge is what any answer tells (R18).
    pub(super) fn call_soon(&mut self, now: Tick, spread: Duration, out: &mut Vec<Effect>) {
        let at = now.plus(self.random.jitter().of(spread));
        if self.call.is_none() && self.next_call.is_none_or(|next| at < next) {
            self.call_later(at, out);
        }
    }

    fn call_later(&mut self, at: Tick, out: &mut Vec<Effect>) {
        self.next_call = Some(at);
        out.push(Effect::Arm { purpose: Purpose::Call, at });
    }

    /// A registration or renewal ended. An answer to a call that was given up on still counts if it is a grant (R3).
    pub(super) fn answered(
        &mut self,
        now: Tick,
        attempt: Attempt,
        result: Result<Grant, CallError>,
        out: &mut Vec<Effect>,
    ) {
        let expected = self.call == Some(attempt);
        if expected {
            self.call = None;
        }
        if attempt.executor != self.life.executor || !self.renews() {
            return;
        }
        match result {
            Ok(grant) => self.granted(now, attempt, &grant, out),
            Err(error) if expected => self.failed(now, error, out),
            Err(_) => {}
        }
    }

    fn granted(&mut self, now: Tick, attempt: Attempt, grant: &Grant, out: &mut Vec<Effect>) {
        let set = &grant.set;
        if self.is_other_count(set.shard_count) {
            return self.refuse_count(now, set.shard_count, out);
        }
        let before = self.following.map(|following| following.manager);
        let counts = self.lease.grant(attempt.noted, grant.ttl, self.settings.allowance);
        if !counts && before != Some(set.manager) {
            // An answer that was overtaken by a later one from another manager: it says nothing any more (R18).
            return;
        }
        self.follow(grant, before, out);
        self.size_fence(set.shard_count, out);
        // Admission of what is lost closes before the lease is made longer (R20).
        self.apply(set, out);
        if counts {
            self.failures = 0;
            self.ttl = Some(grant.ttl);
            self.ever_granted = true;
            self.arm(now, out);
        }
        self.open_waiting(out);
        if self.again {
            self.call(now, out);
        } else if self.call.is_none() && (counts || self.next_call.is_none()) {
            let jitter = self.random.jitter();
            let at = self.lease.renew_at(now, jitter).unwrap_or(Tick::NEVER);
            self.call_later(at.max(now.plus(LEAST_GAP)), out);
        }
    }

    /// R18: whoever answers is followed; another process's revisions start over.
    fn follow(&mut self, grant: &Grant, before: Option<ManagerId>, out: &mut Vec<Effect>) {
        let manager = grant.set.manager;
        if before != Some(manager) {
            self.following = Some(Following { manager, applied: Revision(0), heard: GrantSeq(0) });
            out.push(Effect::Note(Note::Following { manager, before }));
        }
        if let Some(following) = &mut self.following {
            following.heard = following.heard.max(grant.seq);
        }
    }

    fn failed(&mut self, now: Tick, error: CallError, out: &mut Vec<Effect>) {
        if let CallError::Refused(refusal) = &error {
            match verdict(refusal, self.following.is_none()) {
                Verdict::Again => {}
                Verdict::NewLife => return self.unregistered(now, refusal, out),
                Verdict::Leave { code, deregister } => {
                    let exit = Exit { code, why: format!("the manager refused for good: {refusal}") };
                    return self.leave(now, exit, Manner::at_once(deregister), out);
                }
            }
        }
        self.failures = self.failures.saturating_add(1);
        self.last_failure = Some(error.to_string());
        self.again = false;
        let next = now.plus(self.pause(now));
        out.push(Effect::Note(Note::AttemptFailed { failures: self.failures, next, error }));
        self.call_later(next, out);
    }

    /// R13. Also never longer than one attempt, so that an executor without a lease does not sleep through a short one.
    fn pause(&mut self, now: Tick) -> Duration {
        let left = self.lease.deadline().since(now);
        retry_pause(self.failures, left, self.random.jitter()).min(self.within())
    }

    /// R16, R46: the fence closes, everything is swept, and another life registers.
    fn unregistered(&mut self, now: Tick, refusal: &Refusal, out: &mut Vec<Effect>) {
        out.push(Effect::Note(Note::Unregistered { refusal: refusal.clone() }));
        self.failures = if self.following.is_none() { self.failures.saturating_add(1) } else { 0 };
        self.end_lease(out);
        self.lose(Duration::ZERO, |_, _| Some(Loss::Unregistered), out);
        self.following = None;
        self.again = false;
        self.next_call = None;
        self.fenced.clear();
        self.floors.clear();
        self.shards.assign(&Holdings::default());
        if let Phase::Leaving(leaving) = &mut self.phase {
            leaving.deregister = false;
            return self.finish(now, out);
        }
        self.phase = Phase::Unborn;
        out.push(Effect::AskIdentity);
    }

    /// A new life is here. One that was not asked for is ignored: a life ends only by a refusal.
    pub(super) fn reborn(&mut self, now: Tick, life: Life, out: &mut Vec<Effect>) {
        if self.phase != Phase::Unborn {
            return;
        }
        self.phase = Phase::Active;
        self.life = life;
        self.asked = false;
        if self.failures == 0 {
            self.call(now, out);
        } else {
            let next = now.plus(self.pause(now));
            self.call_later(next, out);
        }
    }
}
