//! What the `Election` counts. Names are listed in docs/operations.md.

use crate::clock::SharedClock;
use leasehold_model::Tick;
use leasehold_model::election::Call;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCall {
    call: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfChange {
    change: &'static str,
}

/// All of them; clones count together.
#[derive(Debug, Clone, Default)]
pub struct ElectionMetrics {
    failures: Family<OfCall, Counter>,
    changes: Family<OfChange, Counter>,
    /// Before the keepalive was sent that was acknowledged last; 0 without a lease.
    acknowledged: Arc<AtomicU64>,
}

impl ElectionMetrics {
    /// Registers every metric in `registry`; ages are read from `clock`.
    #[must_use]
    pub fn register(registry: &mut Registry, clock: SharedClock) -> Self {
        let all = Self::default();
        registry.register("leasehold_campaign_failures", "Calls of the election that failed", all.failures.clone());
        registry.register("leasehold_leadership_changes", "Leaderships won and lost here", all.changes.clone());
        registry.register_collector(Box::new(Age { acknowledged: Arc::clone(&all.acknowledged), clock }));
        all
    }

    pub(super) fn failed(&self, call: Call) {
        self.failures.get_or_create(&OfCall { call: call.as_str() }).inc();
    }

    pub(super) fn changed(&self, change: &'static str) {
        self.changes.get_or_create(&OfChange { change }).inc();
    }

    /// A keepalive sent at `noted` was acknowledged; `None`: there is no lease.
    pub(super) fn acknowledged(&self, noted: Option<Tick>) {
        self.acknowledged.store(noted.map_or(0, |noted| noted.0), Ordering::Relaxed);
    }
}

/// Reads the age when it is asked.
struct Age {
    acknowledged: Arc<AtomicU64>,
    clock: SharedClock,
}

impl fmt::Debug for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Age").field("acknowledged", &self.acknowledged).finish_non_exhaustive()
    }
}

impl Collector for Age {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let noted = Tick(self.acknowledged.load(Ordering::Relaxed));
        if noted == Tick::ZERO {
            return Ok(());
        }
        let seconds = ConstGauge::new(self.clock.now().since(noted).as_secs_f64());
        let help = "Seconds since the last acknowledged keepalive of the election's lease was sent";
        seconds.encode(encoder.encode_descriptor(
            "leasehold_keepalive_age_seconds",
            help,
            None,
            seconds.metric_type(),
        )?)
    }
}
