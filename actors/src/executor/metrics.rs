//! What an executor counts. Every name here is in docs/operations.md; success and failure are told apart (case 47).

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How something ended: in one lower-case word when it went well, by its reason as docs/errors.md spells it when not.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// Which.
    pub outcome: &'static str,
}

/// Why something was refused, as docs/errors.md spells it, or why it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// Which.
    pub reason: &'static str,
}

/// The counters of one executor. Cheap to clone; clones count together.
#[derive(Debug, Clone, Default)]
pub struct ExecutorMetrics {
    /// Invocations that reached the `AgentHost`, by outcome.
    pub invocations: Family<Outcome, Counter>,
    /// Invocations that were refused before they reached it, by reason.
    pub admission_refusals: Family<Reason, Counter>,
    /// Agents that storage fenced.
    pub fenced: Counter,
    /// Agents in memory.
    pub agents: Gauge,
    /// Oplogs replayed.
    pub replays: Counter,
    /// Entries read by those replays.
    pub replayed_entries: Counter,
    /// Agents that could not be recovered when their shard was gained.
    pub recovery_failures: Counter,
    /// Agents suspended because memory was short.
    pub suspensions: Counter,
    /// Agents that ended by a panic in their type's code.
    pub agent_panics: Counter,
}

impl ExecutorMetrics {
    /// Fresh counters, shown by `registry`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        let executor = registry.sub_registry_with_prefix("leasehold_executor");
        executor.register("invocations", "Invocations that reached an agent, by outcome", all.invocations.clone());
        executor.register(
            "admission_refusals",
            "Invocations refused before they reached an agent, by reason",
            all.admission_refusals.clone(),
        );
        executor.register("fenced_agents", "Agents that storage refused as stale", all.fenced.clone());
        executor.register("agents", "Agents in memory", all.agents.clone());
        executor.register("replays", "Oplogs replayed", all.replays.clone());
        executor.register("replayed_entries", "Oplog entries read by replays", all.replayed_entries.clone());
        executor.register(
            "recovery_failures",
            "Agents of gained shards that could not be recovered at once",
            all.recovery_failures.clone(),
        );
        executor.register("suspensions", "Idle agents suspended to make room", all.suspensions.clone());
        executor.register("agent_panics", "Agents that ended by a panic", all.agent_panics.clone());
        all
    }

    /// Counts one end of an invocation.
    pub fn count_invocation(&self, outcome: &'static str) {
        self.invocations.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts one refusal before an agent was reached.
    pub fn count_admission_refusal(&self, reason: &'static str) {
        self.admission_refusals.get_or_create(&Reason { reason }).inc();
    }
}
