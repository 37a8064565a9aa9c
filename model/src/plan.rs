//! Who should own what: exact least movement.
//!
//! Each executor that takes shards has a *quota*: the shard count divided in proportion to the weights, rounded down or
//! up, in all exactly the shard count. Who is rounded up is where the freedom lies, and it is spent in this order: an
//! executor that would otherwise get nothing; one that owns more than the rounded-down share, since each of those saves a
//! move; the greatest fraction; the smallest id. With the quotas fixed, the moves are what stands above them, and no
//! choice of quotas needs fewer.
//!
//! A shard being released is in nobody's count, yet room is kept for it: the quotas add up to all shards, so its next
//! owner stays below quota until it is free. That, and the preference for those who own more, makes plans converge:
//! carried out and planned again, they move what the first one said and nothing else.
//!
//! What comes later has its place here: pins and reservations (R42, R43) settle shards before the quotas are
//! divided, as `Place::Settled` does for shards that cannot move; zones (R43) come between the weights and the
//! rounding, dividing the quota first among zones, then within each.

use crate::ids::{ExecutorId, Revision, ShardEpoch, ShardId};
use crate::state::{ClusterState, ShardState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What placement wants done. Data: printable, comparable, and checked again against the state when it is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Plan {
    /// The revision of the state it was made from.
    pub revision: Revision,
    /// Shards to take out of an owner's set (R25, first commit), ascending by shard.
    pub releases: Vec<(ShardId, ExecutorId)>,
    /// Unassigned shards to give away (R28), ascending by shard.
    pub grants: Vec<(ShardId, ExecutorId)>,
}

impl Plan {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.releases.is_empty() && self.grants.is_empty()
    }
}

/// What limits a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How many shards may be released by this plan (R28); shards already being released count against it.
    pub max_moves: u32,
    /// Executors that may keep what they have, up to their share, but are given nothing now: unreachable, lagging or
    /// unheard. The others share the rest.
    pub keep_only: BTreeSet<ExecutorId>,
}

impl Limits {
    /// No limit at all.
    #[must_use]
    pub const fn none() -> Self {
        Self { max_moves: u32::MAX, keep_only: BTreeSet::new() }
    }
}

/// Plans for `state`. Deterministic; linear in shards, with one look-up for each, plus a sort of the executors.
///
/// Executors that leave ([`crate::state::Executor::takes_shards`]) give up everything, but only while somebody can take it.
/// Unassigned shards all go out at once (R28), each to whoever is then furthest below quota. A shard whose epochs are
/// exhausted is neither given away nor taken: nobody could own it after.
#[must_use]
pub fn plan(state: &ClusterState, limits: &Limits) -> Plan {
    let mut plan = Plan { revision: state.revision, ..Plan::default() };
    let survey = Survey::of(state, limits);
    let Some(quotas) = survey.quotas() else { return plan };
    let counts = || survey.members.iter().map(|member| member.owned).zip(quotas.iter().copied());

    let surpluses: Vec<u32> = counts().map(|(owned, quota)| owned.saturating_sub(quota)).collect();
    let deficits: Vec<u32> = counts().map(|(owned, quota)| quota.saturating_sub(owned)).collect();
    let mut takes = level(&surpluses, limits.max_moves.saturating_sub(survey.releasing));
    let gives = level(&deficits, survey.free);
    if takes.iter().sum::<u32>() == 0 && survey.free == 0 {
        return plan;
    }

    let mut receivers =
        gives.iter().enumerate().flat_map(|(at, give)| std::iter::repeat_n(survey.members[at].id, *give as usize));
    for (shard, place) in (0..).map(ShardId).zip(&survey.places) {
        match place {
            Place::Owned(at) if takes[*at as usize] > 0 => {
                takes[*at as usize] -= 1;
                plan.releases.push((shard, survey.members[*at as usize].id));
            }
            Place::Free => plan.grants.extend(receivers.next().map(|to| (shard, to))),
            Place::Owned(_) | Place::Settled => {}
        }
    }
    plan
}

/// How many shards each executor should own, by the rules that [`plan`] follows; empty while nobody can be given any.
#[must_use]
pub fn quotas(state: &ClusterState, limits: &Limits) -> BTreeMap<ExecutorId, u32> {
    let survey = Survey::of(state, limits);
    let quotas = survey.quotas().unwrap_or_default();
    survey.members.iter().map(|member| member.id).zip(quotas).collect()
}

/// One executor, as far as placement cares.
struct Member {
    id: ExecutorId,
    weight: u64,
    /// May own shards at all.
    takes: bool,
    /// May keep what it has, but is given nothing.
    keeps_only: bool,
    /// Counts the shards it owns.
    owned: u32,
}

impl Member {
    const fn may_gain(&self) -> bool {
        self.takes && !self.keeps_only
    }
}

/// What can be done with a shard.
#[derive(Clone, Copy)]
enum Place {
    /// May be taken from the member with this number.
    Owned(u32),
    /// May be given away.
    Free,
    /// Neither: being released, or its epochs are exhausted.
    Settled,
}

/// The state, counted once.
struct Survey {
    /// Ascending by id.
    members: Vec<Member>,
    /// One for each shard.
    places: Vec<Place>,
    /// Shards being released.
    releasing: u32,
    /// Shards to be given away.
    free: u32,
    /// Shards that somebody can own: all but the unassigned ones whose epochs are exhausted.
    pool: u32,
}

impl Survey {
    fn of(state: &ClusterState, limits: &Limits) -> Self {
        let members = state.executors().map(|(id, row)| Member {
            id,
            weight: row.weight.get().into(),
            takes: row.takes_shards(),
            keeps_only: limits.keep_only.contains(&id),
            owned: 0,
        });
        let mut members: Vec<Member> = members.collect();
        let numbers: HashMap<ExecutorId, u32> = members.iter().map(|member| member.id).zip(0..).collect();
        let (mut releasing, mut free, mut exhausted) = (0, 0, 0);
        let place = |(_, row): (ShardId, &crate::state::Shard)| match row.state {
            ShardState::Owned(owner) => {
                let at = *numbers.get(&owner).expect("State::check: a shard's executor is registered");
                members[at as usize].owned += 1;
                if row.epoch < ShardEpoch::MAX { Place::Owned(at) } else { Place::Settled }
            }
            ShardState::Releasing { .. } => {
                releasing += 1;
                Place::Settled
            }
            ShardState::Unassigned if row.epoch < ShardEpoch::MAX => {
                free += 1;
                Place::Free
            }
            ShardState::Unassigned => {
                exhausted += 1;
                Place::Settled
            }
        };
        let places = state.shards().map(place).collect();
        Self { members, places, releasing, free, pool: state.shard_count.get() - exhausted }
    }

    /// The quota of every member, or `None` when nobody can gain: then nobody gives up anything either.
    fn quotas(&self) -> Option<Vec<u32>> {
        if !self.members.iter().any(Member::may_gain) {
            return None;
        }
        let fair = self.shares(self.pool, |member| member.takes);
        let kept = self.members.iter().zip(&fair).map(|(member, fair)| match member.may_gain() {
            true => 0,
            false => member.owned.min(*fair),
        });
        let mut quotas: Vec<u32> = kept.collect();
        let rest = self.pool - quotas.iter().sum::<u32>();
        for (quota, share) in quotas.iter_mut().zip(self.shares(rest, Member::may_gain)) {
            *quota += share;
        }
        Some(quotas)
    }

    /// Divides `pool` among the members that `share_in_it` in proportion to their weights; the others get 0.
    fn shares(&self, pool: u32, share_in_it: impl Fn(&Member) -> bool) -> Vec<u32> {
        let sharers = || self.members.iter().enumerate().filter(|(_, member)| share_in_it(member));
        let total: u64 = sharers().map(|(_, member)| member.weight).sum();
        let mut shares = vec![0; self.members.len()];
        let mut extras = pool;
        let mut candidates = Vec::new();
        for (at, member) in sharers() {
            let portion = u64::from(pool) * member.weight;
            let floor = u32::try_from(portion / total).expect("a share is at most the pool");
            shares[at] = floor;
            extras -= floor;
            let fraction = portion % total;
            if fraction > 0 {
                // Of those who own more, the ones who gain nothing come first: what the others own changes as they are
                // given the rest, and the room kept for these must not change with it.
                let saves = (member.owned > floor).then(|| !member.may_gain());
                candidates.push((Reverse(floor == 0), Reverse(saves), Reverse(fraction), at));
            }
        }
        candidates.sort_unstable();
        for (.., at) in candidates.into_iter().take(extras as usize) {
            shares[at] += 1;
        }
        shares
    }
}

/// Spends `budget` on lowering `amounts`, one unit at a time from whichever is then greatest, the first of equals. Answers
/// how much of each is spent. One sort instead of a step for each unit.
fn level(amounts: &[u32], budget: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    order.sort_unstable_by_key(|at| (Reverse(amounts[*at]), *at));
    let mut spent = vec![0; amounts.len()];
    let mut sum: u64 = 0;
    for (position, at) in order.iter().enumerate() {
        let lowered = position as u64 + 1;
        sum += u64::from(amounts[*at]);
        let next = order.get(position + 1).map_or(0, |next| u64::from(amounts[*next]));
        if sum - next * lowered < u64::from(budget) && position + 1 < order.len() {
            continue;
        }
        let left = sum.saturating_sub(u64::from(budget));
        let (height, higher) = (left / lowered, left % lowered);
        let mut lowest = order[..=position].to_vec();
        lowest.sort_unstable();
        for (rank, at) in (1..).zip(lowest) {
            let stays = height + u64::from(rank > lowered - higher);
            spent[at] = amounts[at] - u32::try_from(stays).expect("an amount is only lowered");
        }
        break;
    }
    spent
}

#[cfg(test)]
mod tests {
    use super::level;
    use quickcheck::quickcheck;

    /// The definition, one unit at a time.
    fn level_slowly(amounts: &[u32], budget: u32) -> Vec<u32> {
        let mut left = amounts.to_vec();
        for _ in 0..budget {
            let greatest = left.iter().copied().max().unwrap_or(0);
            if greatest == 0 {
                break;
            }
            let first = left.iter().position(|amount| *amount == greatest).unwrap();
            left[first] -= 1;
        }
        amounts.iter().zip(left).map(|(amount, left)| amount - left).collect()
    }

    quickcheck! {
        fn levelling_equals_taking_from_the_greatest_one_by_one(amounts: Vec<u8>, budget: u16) -> bool {
            let amounts: Vec<u32> = amounts.into_iter().map(|amount| u32::from(amount % 12)).collect();
            let budget = u32::from(budget % 128);
            level(&amounts, budget) == level_slowly(&amounts, budget)
        }
    }
}
