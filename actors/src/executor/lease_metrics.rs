//! What the `LeaseHolder` counts. Success and failure are told apart (case 47).

use super::metrics::{Outcome, Reason};
use crate::clock::SharedClock;
use leasehold_model::fence::Fence;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// The lease's counters. Cheap to clone; clones count together.
#[derive(Debug, Clone, Default)]
pub struct LeaseMetrics {
    /// Registrations, by outcome: `granted` or the reason of the error.
    pub registrations: Family<Outcome, Counter>,
    /// Renewals, by the same outcomes.
    pub renewals: Family<Outcome, Counter>,
    /// Deregistrations, by outcome: `done` instead of `granted`.
    pub deregistrations: Family<Outcome, Counter>,
    /// Pushes, by outcome: `applied`, or why not.
    pub pushes: Family<Outcome, Counter>,
    /// Shards that were admitted.
    pub shards_gained: Counter,
    /// Shards that stopped being admitted, by cause.
    pub shards_closed: Family<Reason, Counter>,
    /// Sweeps that were asked for.
    pub sweeps: Counter,
    /// Recoveries that were asked for.
    pub recoveries: Counter,
    /// Leases that ended before they were renewed.
    pub lapses: Counter,
    /// Writes that storage refused and that were reported to the manager (R40).
    pub fenced_writes: Counter,
}

impl LeaseMetrics {
    /// Fresh counters, shown by `registry` together with the lease seconds remaining on `fence`.
    #[must_use]
    pub fn register(registry: &mut Registry, fence: Fence, clock: SharedClock) -> Self {
        let all = Self::default();
        let lease = registry.sub_registry_with_prefix("leasehold_executor");
        lease.register("registrations", "Attempts to register, by outcome", all.registrations.clone());
        lease.register("renewals", "Attempts to renew, by outcome", all.renewals.clone());
        lease.register("deregistrations", "Attempts to deregister, by outcome", all.deregistrations.clone());
        lease.register("pushes", "Pushed shard sets, by outcome", all.pushes.clone());
        lease.register("shards_gained", "Shards that were admitted", all.shards_gained.clone());
        lease.register("shards_closed", "Shards that stopped being admitted, by cause", all.shards_closed.clone());
        lease.register("sweeps", "Sweeps begun", all.sweeps.clone());
        lease.register("recoveries", "Recoveries begun", all.recoveries.clone());
        lease.register("lease_lapses", "Leases that ended before they were renewed", all.lapses.clone());
        lease.register("fenced_writes", "Writes that storage refused as stale", all.fenced_writes.clone());
        lease.register_collector(Box::new(Remaining { fence, clock }));
        all
    }
}

/// Reads the lease when it is asked.
struct Remaining {
    fence: Fence,
    clock: SharedClock,
}

impl fmt::Debug for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remaining").field("deadline", &self.fence.deadline()).finish_non_exhaustive()
    }
}

impl Collector for Remaining {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let seconds = ConstGauge::new(self.fence.deadline().since(self.clock.now()).as_secs_f64());
        let help = "Seconds left on the lease, 0 without one";
        seconds.encode(encoder.encode_descriptor("lease_seconds_remaining", help, None, seconds.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, VirtualClock};
    use leasehold_model::fence::FenceKeeper;
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_lease_seconds_remaining_are_read_when_they_are_scraped() {
        let (keeper, clock) = (FenceKeeper::new(), VirtualClock::start());
        let mut registry = Registry::default();
        let metrics = LeaseMetrics::register(&mut registry, keeper.fence(), Arc::new(clock.clone()));
        metrics.renewals.get_or_create(&Outcome { outcome: "granted" }).inc();
        keeper.arm(clock.now().plus(Duration::from_secs(30)));
        let scrape = |registry: &Registry| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            text
        };
        assert!(scrape(&registry).contains("leasehold_executor_lease_seconds_remaining 30.0"));
        assert!(scrape(&registry).contains("leasehold_executor_renewals_total{outcome=\"granted\"} 1"));
        clock.sleep_machine(Duration::from_secs(40));
        assert!(scrape(&registry).contains("leasehold_executor_lease_seconds_remaining 0.0"));
    }
}
