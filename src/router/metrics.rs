//! What a router counts.

use super::policy::Outcome;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
}

/// Counters of one router. [`RouterMetrics::register`] makes them visible under `/metrics`.
#[derive(Debug)]
pub struct RouterMetrics {
    attempts: Counter,
    retries: Family<Reason, Counter>,
    calls: Family<Ended, Counter>,
    seconds: Histogram,
    refreshes: Family<Ended, Counter>,
    watches: Family<Ended, Counter>,
    revision: Gauge,
    by_reason: Mutex<BTreeMap<&'static str, u64>>,
}

impl Default for RouterMetrics {
    fn default() -> Self {
        Self {
            attempts: Counter::default(),
            retries: Family::default(),
            calls: Family::default(),
            // From half a millisecond to a little over a minute.
            seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 18)),
            refreshes: Family::default(),
            watches: Family::default(),
            revision: Gauge::default(),
            by_reason: Mutex::default(),
        }
    }
}

impl RouterMetrics {
    /// Adds every counter to `registry`, named `router_…`.
    pub fn register(&self, registry: &mut Registry) {
        let router = registry.sub_registry_with_prefix("router");
        router.register("attempts", "Calls sent to an executor, repeats included", self.attempts.clone());
        router.register("retries", "Attempts that ended without an answer and were repeated", self.retries.clone());
        router.register("calls", "Calls by how they ended for the caller", self.calls.clone());
        router.register("call_seconds", "How long callers waited", self.seconds.clone());
        router.register("refreshes", "Refreshes of the routing table", self.refreshes.clone());
        router.register("watches", "Watches of the routing table: begun, failed to begin, ended", self.watches.clone());
        router.register("table_revision", "Revision of the routing table in use", self.revision.clone());
    }

    /// How many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.attempts.get()
    }

    /// How many attempts were repeated, by the reason of the first one's failure.
    #[must_use]
    pub fn retries(&self) -> BTreeMap<&'static str, u64> {
        self.by_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn attempted(&self) {
        self.attempts.inc();
    }

    pub(super) fn retried(&self, outcome: &Outcome) {
        let reason = outcome.reason();
        self.retries.get_or_create(&Reason { reason }).inc();
        *self.by_reason.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    pub(super) fn ended(&self, outcome: &'static str, seconds: f64) {
        self.calls.get_or_create(&Ended { outcome }).inc();
        self.seconds.observe(seconds);
    }

    pub(super) fn refreshed(&self, outcome: &'static str) {
        self.refreshes.get_or_create(&Ended { outcome }).inc();
    }

    pub(super) fn watch(&self, outcome: &'static str) {
        self.watches.get_or_create(&Ended { outcome }).inc();
    }

    pub(super) fn table(&self, revision: u64) {
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
    }
}
