//! What the leader tells people and routers. Nothing here changes anything.

use super::Leader;
use crate::ids::{ExecutorId, ManagerId, ShardId};
use crate::message::{ClusterStatus, Condition, ExecutorStatus, Owner, Route, RoutingTable, ShardExplanation};
use crate::state::{ClusterState, Executor, ShardState};
use crate::time::Tick;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A committed state as published to readers. Its routing table is made when somebody asks, and shared by all who ask while
/// anybody uses it: kept for good it would be a second copy of the state.
#[derive(Debug)]
pub struct Published {
    /// The manager process that leads.
    pub manager: ManagerId,
    /// The committed state.
    pub state: Arc<ClusterState>,
    table: Mutex<Weak<RoutingTable>>,
}

impl Published {
    /// Publishes `state` in the name of `manager`.
    #[must_use]
    pub const fn new(manager: ManagerId, state: Arc<ClusterState>) -> Self {
        Self { manager, state, table: Mutex::new(Weak::new()) }
    }

    /// The routing table of this state.
    pub fn table(&self) -> Arc<RoutingTable> {
        // Whoever comes meanwhile waits for the table that is being made. A panic in making it left the old one.
        let mut shared = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let table = Arc::new(routing_table(&self.state, self.manager));
            *shared = Arc::downgrade(&table);
            table
        })
    }
}

/// The committed owners of all shards.
#[must_use]
pub fn routing_table(state: &ClusterState, manager: ManagerId) -> RoutingTable {
    let mut owners: Vec<Owner> = Vec::with_capacity(state.executors().len());
    let mut index: HashMap<ExecutorId, u32> = HashMap::with_capacity(state.executors().len());
    for (id, _) in state.executors() {
        index.insert(id, u32::try_from(owners.len()).expect("fewer executors than u32"));
        owners.extend(state.owner(id));
    }
    let route = |row: &crate::state::Shard| match row.state {
        ShardState::Unassigned => Route::Unassigned,
        ShardState::Owned(owner) => Route::Owned(index[&owner], row.epoch),
        ShardState::Releasing { from, .. } => Route::Releasing(index[&from]),
    };
    let mut routes = Vec::with_capacity(state.shard_count.get() as usize);
    routes.extend(state.shards().map(|(_, row)| route(row)));
    RoutingTable { manager, revision: state.revision, owners, routes }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// What is not said here, how the store fails, is said by the executor's log and by its answers.
fn oplogs_fail(name: impl fmt::Display, condition: Condition) -> String {
    let ms = condition.oplog_failing_ms;
    format!(
        "{name} cannot use its oplog store: it has been failing for {ms} ms, and calls fail with it; see {name}'s log"
    )
}

/// How long a refused write is shown if none was made since: nobody writes just to see whether the store takes writes again.
const REFUSED_SHOWN: Duration = Duration::from_secs(60);

/// Orders troubles, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Store,
    Silent,
    Oplogs,
    Lagging,
    Wedged,
    Superseded,
}

impl Leader {
    /// This leadership's process.
    #[must_use]
    pub const fn manager(&self) -> ManagerId {
        self.manager
    }

    /// The last committed state.
    #[must_use]
    pub const fn state(&self) -> &Arc<ClusterState> {
        &self.state
    }

    /// When the lease of `id` ends on the manager's clock.
    #[must_use]
    pub fn deadline(&self, id: ExecutorId) -> Option<Tick> {
        self.standings.get(&id).map(|standing| standing.deadline)
    }

    /// A short account of the cluster at `now`.
    #[must_use]
    pub fn status(&self, now: Tick) -> ClusterStatus {
        let totals = self.state.totals();
        let mut executors: Vec<ExecutorStatus> =
            self.state.executors().map(|(id, row)| self.executor_status(now, id, row)).collect();
        executors.sort_by(|a, b| (&a.name, a.superseded, a.id).cmp(&(&b.name, b.superseded, b.id)));
        let troubles = self.troubles(now, &executors);
        ClusterStatus {
            cluster: self.state.cluster.clone(),
            manager: self.manager,
            revision: self.state.revision,
            shard_count: self.state.shard_count,
            totals,
            unassigned_because: (totals.unassigned > 0).then(|| self.why_unassigned(now)),
            troubles,
            executors,
            leading_ms: millis(now.since(self.began)),
        }
    }

    fn executor_status(&self, now: Tick, id: ExecutorId, row: &Executor) -> ExecutorStatus {
        let standing = self.standings.get(&id);
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        ExecutorStatus {
            id,
            name: row.name.clone(),
            address: row.address.clone(),
            zone: row.zone.clone(),
            weight: row.weight,
            owned: standing.map_or(0, |standing| count(standing.set.len())),
            releasing: standing.map_or(0, |standing| count(standing.releasing.len())),
            lease_remaining_ms: standing.map_or(0, |standing| millis(standing.deadline.since(now))),
            draining: row.draining,
            superseded: row.superseded,
            lagging_ms: standing.and_then(|standing| standing.lagging_since).map(|since| millis(now.since(since))),
            condition: standing.map(|standing| standing.condition).unwrap_or_default(),
            registered_at_ms: row.registered_at_ms,
        }
    }

    fn troubles(&self, now: Tick, executors: &[ExecutorStatus]) -> Vec<String> {
        let store =
            self.pass.trouble.iter().map(|why| (Severity::Store, format!("the store does not take writes: {why}")));
        let mut troubles: Vec<(Severity, String)> = store.collect();
        if let (None, Some((at, why))) = (&self.pass.trouble, &self.pass.refused)
            && now.since(*at) < REFUSED_SHOWN
        {
            let ms = millis(now.since(*at));
            troubles.push((
                Severity::Store,
                format!("the store did not take a write {ms} ms ago: {why}; whoever asked for it was told"),
            ));
        }
        let half_ms = millis(self.settings.lease.as_duration() / 2);
        for executor in executors {
            let name = &executor.name;
            if executor.superseded {
                let told = format!("{name} ({}) was superseded by a newer process", executor.id);
                troubles.push((Severity::Superseded, told));
                continue;
            }
            if let Some(unheard) = self.deaf_for(now, executor.id) {
                let ms = millis(unheard);
                let told = format!("{name} talks but does not hear: its grants have gone unheard for {ms} ms");
                troubles.push((Severity::Silent, told));
            } else if executor.lease_remaining_ms < half_ms {
                let told = match executor.lease_remaining_ms {
                    0 => format!("{name} is silent: its lease has lapsed; {}", self.removal()),
                    left => format!("{name} is silent: its lease ends in {left} ms unless it renews"),
                };
                troubles.push((Severity::Silent, told));
            }
            if executor.condition.oplog_failing_ms > 0 {
                troubles.push((Severity::Oplogs, oplogs_fail(name, executor.condition)));
            }
            if let Some(lag) = executor.lagging_ms.filter(|lag| *lag > millis(self.settings.lag_after())) {
                let told = format!("{name} is lagging: it has not acknowledged its newest set for {lag} ms");
                troubles.push((Severity::Lagging, told));
            }
            if executor.condition.oldest_running_ms > millis(self.settings.wedged_after()) {
                let age = executor.condition.oldest_running_ms;
                let told = format!("{name} looks wedged: an invocation has been running for {age} ms");
                troubles.push((Severity::Wedged, told));
            }
        }
        troubles.sort_by_key(|(severity, _)| *severity);
        troubles.into_iter().map(|(_, told)| told).collect()
    }

    /// How long grants to `id` have gone unheard, if that is trouble and it has asked for more since (R46).
    fn deaf_for(&self, now: Tick, id: ExecutorId) -> Option<Duration> {
        let half = self.settings.lease.as_duration() / 2;
        let standing = self.standings.get(&id).filter(|standing| standing.talks(now, half))?;
        let (_, given) = standing.unheard.filter(|(seq, _)| standing.granted > *seq)?;
        Some(now.since(given)).filter(|unheard| *unheard > half)
    }

    /// What becomes of an executor whose lease has lapsed, and what keeps it.
    const fn removal(&self) -> &'static str {
        match self.pass.trouble {
            Some(_) => "it is removed, and its shards go to others, once the store takes writes again",
            None => "it is about to be removed, and its shards go to others",
        }
    }

    /// Never "unassigned" without a reason.
    fn why_unassigned(&self, now: Tick) -> String {
        if self.state.executors().len() == 0 {
            return "no executor is registered".to_owned();
        }
        if let Some(until) = self.pass.settle_until.filter(|until| now < *until) {
            return format!("the cluster is new and waits {} ms for more executors", millis(until.since(now)));
        }
        if let Some(trouble) = &self.pass.trouble {
            return format!("the store does not take the assignment: {trouble}");
        }
        let mut takers = self.state.executors().filter(|(_, row)| row.takes_shards()).peekable();
        if takers.peek().is_none() {
            return "every registered executor is draining or superseded".to_owned();
        }
        if takers.all(|(id, _)| self.standings.get(&id).is_none_or(|standing| standing.kept_only)) {
            return "every executor that could take it is silent or lagging".to_owned();
        }
        "the next pass assigns it".to_owned()
    }

    /// One shard's row at `now`, and why it is as it is. `None` if there is no such shard.
    #[must_use]
    pub fn explain(&self, now: Tick, shard: ShardId) -> Option<ShardExplanation> {
        let row = self.state.shard(shard)?;
        let holder = row.state.executor();
        let owner = holder.and_then(|id| self.state.owner(id));
        let standing = holder.and_then(|id| self.standings.get(&id));
        let remaining = standing.map(|standing| millis(standing.deadline.since(now)));
        let name = owner.as_ref().map(|owner| owner.name.to_string()).unwrap_or_default();
        let left = remaining.unwrap_or(0);
        let mut because = Vec::new();
        let state = match row.state {
            ShardState::Unassigned => {
                because.push(self.why_unassigned(now));
                "unassigned"
            }
            ShardState::Owned(_) => {
                let lease = match left {
                    0 => format!("its lease has lapsed; {}", self.removal()),
                    left => format!("its lease ends in {left} ms unless renewed"),
                };
                because.push(format!("{name} owns it at epoch {}; {lease}", row.epoch));
                if standing.is_some_and(|standing| standing.lagging_since.is_some()) {
                    because.push(format!("{name} has not acknowledged its newest set yet"));
                }
                if let Some(failing) = standing.map(|standing| standing.condition).filter(|it| it.oplog_failing_ms > 0)
                {
                    because.push(oplogs_fail(&name, failing));
                }
                "owned"
            }
            ShardState::Releasing { since, .. } => {
                because.push(format!("{name} was told at revision {since} to let go"));
                because.push(match left {
                    0 => format!("the lease of {name} has lapsed; {}", self.removal()),
                    left => format!(
                        "it goes to its next owner when {name} proves that it let go, or in {left} ms when its lease ends"
                    ),
                });
                "releasing"
            }
        };
        Some(ShardExplanation {
            shard,
            epoch: row.epoch,
            state: state.to_owned(),
            owner,
            lease_remaining_ms: remaining,
            because,
        })
    }
}
