//! The manager's counters, in Prometheus' conventions. Names are listed in docs/operations.md.

use leasehold_model::command::{Changes, Move};
use leasehold_model::state::ClusterState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::time::Duration;

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    outcome: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Cause {
    cause: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct State {
    state: &'static str,
}

/// All of them; cheap to clone, for each session has them too.
#[derive(Debug, Clone)]
pub struct ManagerMetrics(Arc<Metrics>);

#[derive(Debug, Clone)]
struct Metrics {
    is_leader: Gauge,
    executors: Gauge,
    shards: Family<State, Gauge>,
    renewals: Family<Outcome, Counter>,
    registrations: Family<Outcome, Counter>,
    mismatches: Counter,
    reaped: Counter,
    standstills: Counter,
    moves: Family<Cause, Counter>,
    pushes: Family<Outcome, Counter>,
    repairs: Counter,
    commits: Family<Outcome, Counter>,
    commit_commands: Histogram,
    commit_seconds: Histogram,
    confirmations: Counter,
    passes: Family<Outcome, Counter>,
}

impl ManagerMetrics {
    /// Registers every metric in `registry`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Metrics {
            is_leader: Gauge::default(),
            executors: Gauge::default(),
            shards: Family::default(),
            renewals: Family::default(),
            registrations: Family::default(),
            mismatches: Counter::default(),
            reaped: Counter::default(),
            standstills: Counter::default(),
            moves: Family::default(),
            pushes: Family::default(),
            repairs: Counter::default(),
            commits: Family::default(),
            commit_commands: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            commit_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            confirmations: Counter::default(),
            passes: Family::default(),
        };
        let m = metrics.clone();
        registry.register("leasehold_is_leader", "1 while this process leads", m.is_leader);
        registry.register("leasehold_executors", "Registered executors", m.executors);
        registry.register("leasehold_shards", "Shards by state", m.shards);
        registry.register("leasehold_renewals", "Renewals by outcome", m.renewals);
        registry.register("leasehold_registrations", "Registrations by outcome", m.registrations);
        registry.register("leasehold_claim_mismatches", "Claims that had to be corrected", m.mismatches);
        registry.register("leasehold_reaped_leases", "Executors removed because their lease ended", m.reaped);
        let stood_still = "Times this manager did nothing for more than half a lease";
        registry.register("leasehold_standstills", stood_still, m.standstills);
        registry.register("leasehold_moves", "Steps of ownership by cause", m.moves);
        registry.register("leasehold_pushes", "Pushes by outcome", m.pushes);
        registry.register("leasehold_push_repairs", "Pushes that had to be repeated", m.repairs);
        registry.register("leasehold_commits", "Writes to the store by outcome", m.commits);
        registry.register("leasehold_commit_commands", "Commands grouped into one write", m.commit_commands);
        registry.register_with_unit("leasehold_commit", "Time of one write", Unit::Seconds, m.commit_seconds);
        registry.register("leasehold_leadership_confirmations", "Checks that this process leads", m.confirmations);
        registry.register("leasehold_passes", "Passes by outcome", m.passes);
        Self(Arc::new(metrics))
    }

    pub(super) fn leads(&self, leads: bool) {
        self.0.is_leader.set(i64::from(leads));
    }

    pub(super) fn published(&self, state: &ClusterState, changes: &Changes) {
        let totals = state.totals();
        self.0.executors.set(i64::try_from(state.executors().len()).unwrap_or(i64::MAX));
        for (name, count) in
            [("owned", totals.owned), ("releasing", totals.releasing), ("unassigned", totals.unassigned)]
        {
            self.0.shards.get_or_create(&State { state: name }).set(i64::from(count));
        }
        for Move { cause, .. } in &changes.moves {
            self.0.moves.get_or_create(&Cause { cause: cause.as_str() }).inc();
        }
    }

    pub(super) fn renewed(&self, outcome: &'static str) {
        self.0.renewals.get_or_create(&Outcome { outcome }).inc();
    }

    pub(super) fn registered(&self, outcome: &'static str) {
        self.0.registrations.get_or_create(&Outcome { outcome }).inc();
    }

    pub(super) fn mismatch(&self) {
        self.0.mismatches.inc();
    }

    pub(super) fn lapsed(&self, count: usize) {
        self.0.reaped.inc_by(count as u64);
    }

    pub(super) fn stood_still(&self) {
        self.0.standstills.inc();
    }

    pub(super) fn pushed(&self, outcome: &'static str) {
        self.0.pushes.get_or_create(&Outcome { outcome }).inc();
    }

    pub(super) fn repaired(&self) {
        self.0.repairs.inc();
    }

    pub(super) fn committed(&self, commands: usize, took: Duration) {
        self.0.commits.get_or_create(&Outcome { outcome: "applied" }).inc();
        #[allow(clippy::cast_precision_loss, reason = "a group is far smaller than 2^52")]
        self.0.commit_commands.observe(commands as f64);
        self.0.commit_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn commit_failed(&self) {
        self.0.commits.get_or_create(&Outcome { outcome: "failed" }).inc();
    }

    pub(super) fn confirmed(&self) {
        self.0.confirmations.inc();
    }

    pub(super) fn passed(&self, outcome: &'static str) {
        self.0.passes.get_or_create(&Outcome { outcome }).inc();
    }
}
