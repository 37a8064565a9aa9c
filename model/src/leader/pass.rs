//! A pass (R30, R31): reap lapsed leases in a commit of their own; plan; commit; sets go to sessions as they are committed; compact.

use super::{Effect, Leader, Note, Purpose};
use crate::command::{Command, Draft};
use crate::ids::{ExecutorId, Revision, ShardEpoch, ShardId};
use crate::plan::{self, Limits};
use crate::state::ShardState;
use crate::time::{Tick, Ttl};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long after a failed commit a pass is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Where a pass is, and what waits for the next one.
#[derive(Debug, Clone, Hash, Default)]
pub(super) struct Pass {
    /// A commit of a pass is under way.
    running: bool,
    /// Something happened meanwhile that another pass must see.
    again: bool,
    /// Until when a cold cluster waits (R33).
    pub settle_until: Option<Tick>,
    /// Not before this, after a failure.
    not_before: Tick,
    /// Epochs recorded by storage, to be minted above (R40).
    floors: BTreeMap<ShardId, ShardEpoch>,
    /// What the store said when the last pass failed; `None` when it did not.
    pub trouble: Option<String>,
    /// What the store said when it last refused a write that somebody had asked for, and when; `None` once it took one.
    pub refused: Option<(Tick, String)>,
}

impl Pass {
    /// Notes a floor until the shard's epoch is above it.
    pub fn floor(&mut self, shard: ShardId, floor: ShardEpoch) {
        let greatest = self.floors.entry(shard).or_default();
        *greatest = floor.max(*greatest);
    }
}

impl Leader {
    /// Something happened that a pass should see.
    pub(super) fn want_pass(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.pass.running {
            self.pass.again = true;
        } else if now < self.pass.not_before {
            self.arm(self.pass.not_before, out);
        } else {
            self.begin_pass(now, out);
        }
    }

    /// R31: lapsed leases first, in a commit of their own.
    fn begin_pass(&mut self, now: Tick, out: &mut Vec<Effect>) {
        self.pass.again = false;
        let lapsed: Vec<ExecutorId> =
            self.standings.iter().filter(|(_, standing)| standing.deadline <= now).map(|(id, _)| *id).collect();
        if lapsed.is_empty() {
            return self.plan(now, out);
        }
        let mut news = Vec::new();
        for id in &lapsed {
            let Some(standing) = self.standings.get_mut(id) else { continue };
            standing.reaping = true;
            if standing.lapse_noted.replace(standing.deadline) != Some(standing.deadline) {
                news.push(*id);
            }
        }
        self.pass.running = true;
        if !news.is_empty() {
            out.push(Effect::Note(Note::Lapsed(news)));
        }
        self.commit(Purpose::Reap(lapsed.clone()), vec![Command::Reap(lapsed)], out);
    }

    /// The write that reaps failed: renewals that came meanwhile are decided now.
    pub(super) fn unpark(&mut self, ids: &[ExecutorId], out: &mut Vec<Effect>) {
        for id in ids {
            let Some(standing) = self.standings.get_mut(id) else { continue };
            standing.reaping = false;
            for request in std::mem::take(&mut standing.parked) {
                self.await_confirmation(request, *id, out);
            }
        }
    }

    pub(super) fn plan(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let mut commands = self.lease_lengths(now);
        commands.extend(self.floors());
        commands.extend(self.confirmed_releases());
        let (mut released, mut granted) = (0, 0);
        if self.settled(now, out) {
            let mut draft = Draft::on(&self.state);
            for command in &commands {
                // A refused command is refused again, and reported, when the batch is applied for good.
                let _ = draft.apply(command);
            }
            let plan = plan::plan(draft.state(), &self.limits(now));
            (released, granted) = (plan.releases.len(), plan.grants.len());
            if released + granted > 0 {
                commands.push(Command::Plan(plan));
            }
        }
        // R32: nothing is written for nothing, except the very first write of a store.
        if commands.is_empty() && self.state.revision != Revision(0) {
            self.pass.running = false;
            return self.pass_over(now, out);
        }
        self.pass.running = true;
        self.commit(Purpose::Pass { released, granted }, commands, out);
    }

    /// R6: stored before the first longer grant; lowered only when no longer lease can be outstanding.
    fn lease_lengths(&self, now: Tick) -> Vec<Command> {
        let length = self.settings.lease;
        let ends_by = |id, tick| self.standings.get(&id).is_some_and(|standing| standing.deadline <= tick);
        let due = |id, stored: Ttl| match stored.cmp(&length) {
            Ordering::Less => true,
            Ordering::Equal => false,
            Ordering::Greater => ends_by(id, now.plus(length.as_duration())),
        };
        let rows = self.state.executors().filter(|(id, row)| due(*id, row.lease_length));
        rows.map(|(id, _)| Command::SetLeaseLength(id, length)).collect()
    }

    fn floors(&mut self) -> Vec<Command> {
        let state = &self.state;
        self.pass.floors.retain(|shard, floor| state.shard(*shard).is_some_and(|row| row.epoch <= *floor));
        let raise = |(shard, above): (&ShardId, &ShardEpoch)| Command::RaiseEpoch { shard: *shard, above: *above };
        self.pass.floors.iter().map(raise).collect()
    }

    /// R26: what executors have proven to have let go, by the revision their claims named.
    fn confirmed_releases(&self) -> Vec<Command> {
        let mut commands = Vec::new();
        for (id, standing) in &self.standings {
            let mut by_claim: BTreeMap<Revision, Vec<ShardId>> = BTreeMap::new();
            for (shard, applied) in &standing.let_go {
                by_claim.entry(*applied).or_default().push(*shard);
            }
            let confirm = |(applied, shards)| Command::ConfirmRelease { executor: *id, applied, shards };
            commands.extend(by_claim.into_iter().map(confirm));
        }
        commands
    }

    /// R33: a cold cluster waits, so that the first executor is not given everything.
    pub(super) fn settle_if_cold(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if self.pass.settle_until.is_some() || self.settings.settle.is_zero() {
            return;
        }
        if self.state.shards().all(|(_, row)| row.state == ShardState::Unassigned) {
            let until = now.plus(self.settings.settle);
            self.pass.settle_until = Some(until);
            out.push(Effect::Note(Note::Settling));
            self.arm(until, out);
        }
    }

    fn settled(&mut self, now: Tick, out: &mut Vec<Effect>) -> bool {
        match self.pass.settle_until {
            Some(until) if now < until => {
                self.arm(until, out);
                false
            }
            Some(_) | None => {
                self.pass.settle_until = None;
                true
            }
        }
    }

    /// Executors that may keep what they have and are given nothing: silent, lagging or unheard (case 9).
    fn limits(&mut self, now: Tick) -> Limits {
        let lag_after = self.settings.lag_after();
        let half = self.settings.lease.as_duration() / 2;
        let mut keep_only = BTreeSet::new();
        for (id, standing) in &mut self.standings {
            let silent = !standing.talks(now, half);
            let lagging = standing.lags(now, lag_after);
            let unheard = standing.unheard.is_some_and(|(_, given)| now.since(given) > half);
            standing.kept_only = silent || lagging || unheard;
            if standing.kept_only {
                keep_only.insert(*id);
            }
        }
        Limits { max_moves: self.settings.max_moves, keep_only }
    }

    pub(super) fn passed(&mut self, now: Tick, released: usize, granted: usize, out: &mut Vec<Effect>) {
        self.pass.running = false;
        out.push(Effect::Note(Note::Passed { released, granted }));
        out.push(Effect::Compact(self.state.revision));
        self.pass_over(now, out);
    }

    fn pass_over(&mut self, now: Tick, out: &mut Vec<Effect>) {
        self.pass.trouble = None;
        if self.pass.again {
            self.want_pass(now, out);
        }
    }

    pub(super) fn retry_pass(&mut self, now: Tick, why: String, out: &mut Vec<Effect>) {
        self.pass.running = false;
        self.pass.trouble = Some(why.clone());
        self.pass.not_before = now.plus(RETRY_AFTER);
        out.push(Effect::Note(Note::PassFailed(why)));
        self.arm(self.pass.not_before, out);
    }
}
