//! Granting: the renewal path. Nothing here waits for a write (R6); one confirmation serves everyone who waited when it began (R7).

use super::{Confirmation, Effect, Leader, Note, RenewalFacts, Reply, RequestId};
use crate::ids::{ExecutorId, GrantSeq, ShardEpoch, ShardId};
use crate::lease::granter_deadline;
use crate::planted;
use crate::refusal::Refusal;
use crate::set::{Claim, Grant};
use crate::state::Executor;
use crate::time::Tick;
use std::sync::Arc;

impl Leader {
    pub(super) fn on_renew(&mut self, now: Tick, request: RequestId, facts: RenewalFacts, out: &mut Vec<Effect>) {
        let id = facts.executor;
        if let Err(refusal) = self.authenticated(id, facts.key_hash) {
            return Self::refuse(request, refusal, out);
        }
        self.note_mismatch(now, id, &facts.claim, out);
        let released = self.hear_claim(now, id, &facts.claim, out);
        let Some(standing) = self.standings.get_mut(&id) else {
            return Self::refuse(request, Refusal::UnknownExecutor, out);
        };
        standing.condition = facts.condition;
        // A claim that names another manager has heard nothing of this one.
        let heard = if facts.claim.manager == self.manager { facts.heard } else { GrantSeq(0) };
        if standing.unheard.is_some_and(|(seq, _)| heard >= seq) {
            standing.unheard = None;
        }
        let woke = std::mem::take(&mut standing.kept_only);
        let floors = self.hear_floors(id, &facts.epoch_floors, out);
        self.await_confirmation(request, id, out);
        if released || woke || floors {
            self.want_pass(now, out);
        }
    }

    /// R15: pushes to it are not landing. It claims something other than its newest set, or has long not applied that.
    ///
    /// Two claims look like it and are not. A shard that it lost and was given anew while the last agents of its older epoch stop is claimed at
    /// that epoch (R29). And one that has answered a push applies nothing before it is granted a lease by who pushes (R18): until then
    /// its claim names the manager before.
    fn note_mismatch(&self, now: Tick, id: ExecutorId, claim: &Claim, out: &mut Vec<Effect>) {
        let Some(standing) = self.standings.get(&id) else { return };
        let fits = if claim.manager == self.manager && claim.applied >= standing.changed {
            let told = |shard| standing.set.contains(shard) || standing.releasing.contains_key(&shard);
            standing
                .set
                .iter()
                .all(|(shard, epoch)| claim.shards.epoch_of(shard).is_some_and(|claimed| claimed <= epoch))
                && claim.shards.iter().all(|(shard, _)| told(shard))
        } else {
            let follows_soon = claim.manager != self.manager && standing.follows_soon;
            follows_soon || !standing.lags(now, self.settings.lag_after())
        };
        if !fits {
            out.push(Effect::Note(Note::ClaimMismatch(id)));
        }
    }

    /// R40: floors count only from the executor that was told the shard's present epoch.
    fn hear_floors(&mut self, id: ExecutorId, floors: &[(ShardId, ShardEpoch)], out: &mut Vec<Effect>) -> bool {
        const GREATEST_FLOOR: u64 = ShardEpoch::MAX.get() - (1 << 32);
        let mut any = false;
        for (shard, floor) in floors {
            let Some(row) = self.state.shard(*shard) else { continue };
            if row.state.executor() != Some(id) || row.epoch > *floor {
                continue;
            }
            if floor.get() > GREATEST_FLOOR {
                out.push(Effect::Note(Note::FloorRefused(id, *shard, *floor)));
                continue;
            }
            self.pass.floor(*shard, *floor);
            any = true;
        }
        any
    }

    /// A grant waits for a confirmation that begins after its request arrived.
    pub(super) fn await_confirmation(&mut self, request: RequestId, id: ExecutorId, out: &mut Vec<Effect>) {
        self.waiting.push((request, id));
        self.confirm_if_idle(out);
    }

    /// Begins a confirmation for whoever waits, if anybody does, unless one is under way.
    pub(super) fn confirm_now(&mut self, out: &mut Vec<Effect>) {
        if self.confirming.is_none() {
            self.confirming = Some(std::mem::take(&mut self.waiting));
            out.push(Effect::Confirm);
        }
    }

    fn confirm_if_idle(&mut self, out: &mut Vec<Effect>) {
        if !self.waiting.is_empty() {
            self.confirm_now(out);
        }
    }

    pub(super) fn on_confirmed(&mut self, now: Tick, confirmation: Confirmation, out: &mut Vec<Effect>) {
        match confirmation {
            Confirmation::Leads => {
                for (request, id) in self.confirming.take().unwrap_or_default() {
                    self.grant(now, request, id, out);
                }
                self.confirm_if_idle(out);
            }
            Confirmation::Lost(why) => {
                for (request, _) in self.confirming.take().unwrap_or_default() {
                    Self::refuse(request, Refusal::LeadershipUnconfirmed { why: why.clone() }, out);
                }
                self.end(why, out);
            }
        }
    }

    /// R5: the deadline is moved, never back, before the answer leaves. R6: never longer than what is stored. R46: not to one that cannot hear.
    fn grant(&mut self, now: Tick, request: RequestId, id: ExecutorId, out: &mut Vec<Effect>) {
        let row: Option<Arc<Executor>> = self.state.executor(id).map(Arc::clone);
        let (Some(row), Some(standing)) = (row, self.standings.get_mut(&id)) else {
            return Self::refuse(request, Refusal::UnknownExecutor, out);
        };
        if row.superseded {
            return Self::refuse(request, Refusal::Superseded, out);
        }
        if standing.reaping && !planted::is(planted::Bug::GrantsWhileReaping) {
            return standing.parked.push(request);
        }
        let ttl = self.settings.lease.min(row.lease_length);
        if standing.unheard.is_some_and(|(_, given)| now.since(given) >= ttl.as_duration()) {
            out.push(Effect::Note(Note::Unheard(id)));
            return Self::refuse(request, Refusal::Unheard, out);
        }
        standing.heard_at = Some(now);
        let present = if planted::is(planted::Bug::NoMaxOnRenewal) { Tick::ZERO } else { standing.deadline };
        standing.deadline = granter_deadline(present, now, ttl);
        standing.granted = standing.granted.next();
        standing.unheard.get_or_insert((standing.granted, now));
        let seq = standing.granted;
        let deadline = standing.deadline;
        let grant = Grant { set: self.set_of(id), ttl, seq };
        out.push(Effect::Reply(request, Reply::Granted(grant)));
        self.arm(deadline, out);
    }
}
