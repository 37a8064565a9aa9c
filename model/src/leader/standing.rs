//! What the leader remembers of one executor, and of those that left.

use super::{Effect, Leader, RequestId};
use crate::ids::{ExecutorId, GrantSeq, Revision, ShardId};
use crate::message::{Condition, Push};
use crate::set::{Claim, Holdings};
use crate::state::ShardState;
use crate::time::Tick;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// One executor as this leadership knows it. Gone with the leadership.
#[derive(Debug, Clone, Hash)]
pub(super) struct Standing {
    /// When its lease ends, on the manager's clock (R5).
    pub deadline: Tick,
    /// The last grant given to it; 0 if none by this leadership.
    pub granted: GrantSeq,
    /// The oldest grant that it has not been seen to hear, and when it was given (R46).
    pub unheard: Option<(GrantSeq, Tick)>,
    /// When it last said anything; `None` until it did under this leadership.
    pub heard_at: Option<Tick>,
    /// Whether its last answer to a push said that it follows another manager: it is going to renew, and follow this one.
    pub follows_soon: bool,
    /// What it owns, as committed.
    pub set: Holdings,
    /// The revision at which `set` last changed.
    pub changed: Revision,
    /// Since when it has not been seen to have applied `changed`.
    pub lagging_since: Option<Tick>,
    /// What it is releasing, with the revision of the releasing commit.
    pub releasing: BTreeMap<ShardId, Revision>,
    /// What of that it has proven to have let go, and the revision its claim named; the next pass commits it.
    pub let_go: BTreeMap<ShardId, Revision>,
    /// Whether a commit that removes it is under way.
    pub reaping: bool,
    /// The deadline whose passing was noted: once, however often the store refuses the write that removes it.
    pub lapse_noted: Option<Tick>,
    /// Renewals that wait for that commit.
    pub parked: Vec<RequestId>,
    /// How it said it is doing.
    pub condition: Condition,
    /// Whether the last pass had reason to give it nothing.
    pub kept_only: bool,
}

impl Standing {
    fn new(deadline: Tick) -> Self {
        Self {
            deadline,
            granted: GrantSeq(0),
            unheard: None,
            heard_at: None,
            follows_soon: false,
            set: Holdings::default(),
            changed: Revision(0),
            lagging_since: None,
            releasing: BTreeMap::new(),
            let_go: BTreeMap::new(),
            reaping: false,
            lapse_noted: None,
            parked: Vec::new(),
            condition: Condition::default(),
            kept_only: false,
        }
    }

    /// For `span`, up to `now`, nobody listened: it was not silent, deaf or lagging for that time.
    pub fn excuse(&mut self, now: Tick, span: Duration) {
        self.deadline = self.deadline.plus(span);
        self.unheard = self.unheard.map(|(seq, given)| (seq, given.plus(span)));
        self.lagging_since = self.lagging_since.map(|_| now);
    }

    /// Whether it said anything within `span`.
    pub fn talks(&self, now: Tick, span: Duration) -> bool {
        self.heard_at.is_some_and(|at| now.since(at) <= span)
    }

    /// Whether it has gone for longer than `span` without being seen to have applied its newest set.
    pub fn lags(&self, now: Tick, span: Duration) -> bool {
        self.lagging_since.is_some_and(|since| now.since(since) > span)
    }
}

/// Lives that left under this leadership: a late copy of their registration must not bring them back.
#[derive(Debug, Clone, Hash, Default)]
pub(super) struct Departed {
    order: VecDeque<ExecutorId>,
    ids: BTreeSet<ExecutorId>,
}

impl Departed {
    /// How many are remembered; a copy of a registration older than that many departures is not expected.
    const LIMIT: usize = 4096;

    pub fn add(&mut self, id: ExecutorId) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > Self::LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub fn contains(&self, id: ExecutorId) -> bool {
        self.ids.contains(&id)
    }
}

impl Leader {
    /// New executors: each has its stored lease in full from now (R6, R39), and a session.
    pub(super) fn enter(&mut self, ids: &BTreeSet<ExecutorId>, now: Tick, out: &mut Vec<Effect>) {
        for id in ids {
            let row = self.state.executor(*id).expect("an executor enters with its row");
            let deadline = now.plus(row.lease_length.as_duration());
            out.push(Effect::OpenSession(*id, row.address.clone()));
            self.standings.insert(*id, Box::new(Standing::new(deadline)));
            self.arm(deadline, out);
        }
    }

    /// Reads the committed sets of `ids` and pushes them; rereads who is releasing what.
    pub(super) fn refresh_sets(&mut self, ids: &BTreeSet<ExecutorId>, now: Tick, out: &mut Vec<Effect>) {
        let sets = self.state.holdings(ids.iter().copied());
        for standing in self.standings.values_mut() {
            standing.releasing.clear();
        }
        for (shard, row) in self.state.shards() {
            if let ShardState::Releasing { from, since } = row.state
                && let Some(standing) = self.standings.get_mut(&from)
            {
                standing.releasing.insert(shard, since);
            }
        }
        for standing in self.standings.values_mut() {
            standing.let_go.retain(|shard, _| standing.releasing.contains_key(shard));
        }
        let revision = self.state.revision;
        for (id, set) in sets {
            let Some(standing) = self.standings.get_mut(&id) else { continue };
            standing.set = set;
            standing.changed = revision;
            standing.lagging_since.get_or_insert(now);
            let key_hash = self.state.executor(id).expect("a standing has a row").key_hash;
            out.push(Effect::Push(Push { executor: id, key_hash, set: self.set_of(id) }));
        }
    }

    /// Takes in what an executor says it holds: proof of release (R26), delivery, life. Returns whether a pass has something to do.
    pub(super) fn hear_claim(&mut self, now: Tick, id: ExecutorId, claim: &Claim, out: &mut Vec<Effect>) -> bool {
        let manager = self.manager;
        let Some(standing) = self.standings.get_mut(&id) else { return false };
        standing.heard_at = Some(now);
        // An older or foreign claim proves nothing: a delivery still in flight could be adopted after it.
        if claim.manager != manager {
            return false;
        }
        if claim.applied >= standing.changed && standing.lagging_since.take().is_some() {
            out.push(Effect::Delivered(id, claim.applied));
        }
        let mut proven = false;
        for (shard, since) in &standing.releasing {
            if *since <= claim.applied && !claim.shards.contains(*shard) {
                proven |= standing.let_go.insert(*shard, claim.applied).is_none();
            }
        }
        proven
    }

    pub(super) fn on_push_answered(
        &mut self,
        now: Tick,
        executor: ExecutorId,
        claim: Option<&Claim>,
        out: &mut Vec<Effect>,
    ) {
        let manager = self.manager;
        if let Some(standing) = self.standings.get_mut(&executor) {
            standing.follows_soon = claim.is_some_and(|claim| claim.manager != manager);
        }
        if claim.is_some_and(|claim| self.hear_claim(now, executor, claim, out)) {
            self.want_pass(now, out);
        }
    }

    /// The earliest deadline after `now`; a pass has seen those before it.
    pub(super) fn next_deadline(&self, now: Tick) -> Tick {
        let deadlines = self.standings.values().map(|standing| standing.deadline);
        deadlines.filter(|deadline| *deadline > now).min().unwrap_or(Tick::NEVER)
    }
}
