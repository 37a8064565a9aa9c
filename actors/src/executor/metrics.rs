//! What an executor counts. Every name here is in docs/operations.md; success and failure are told apart (case 47).

use super::agent_type::{Decision, Undecided};
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

/// A call of the oplog store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Call {
    /// Which.
    pub call: &'static str,
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
    /// Calls of the oplog store that failed or were not answered in time, by call.
    pub oplog_failures: Family<Call, Counter>,
    /// Deletions that reached an agent, by outcome.
    pub deletions: Family<Outcome, Counter>,
    /// Times that an application was asked what a method comes to, by outcome.
    pub consultations: Family<Outcome, Counter>,
    /// Agents of gained shards that were left alone because this executor does not know their type.
    pub unknown_types: Counter,
    /// Agents suspended because memory was short or they were idle for long.
    pub suspensions: Counter,
    /// Agents that ended by a panic in their type's code.
    pub agent_panics: Counter,
    /// Entries moved to the archive layer.
    pub archived_entries: Counter,
    /// Bytes of the chunks that they are in.
    pub archived_bytes: Counter,
    /// Moves and sweeps that failed, by which.
    pub archive_failures: Family<Call, Counter>,
    /// Objects removed from the archive because no list named them.
    pub swept_objects: Counter,
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
        executor.register(
            "oplog_failures",
            "Calls of the oplog store that failed or were not answered in time, by call",
            all.oplog_failures.clone(),
        );
        executor.register("deletions", "Deletions that reached an agent, by outcome", all.deletions.clone());
        executor.register(
            "consultations",
            "Times that an application was asked what a method comes to, by outcome",
            all.consultations.clone(),
        );
        executor.register(
            "unknown_type_agents",
            "Agents of gained shards left alone because this executor does not know their type",
            all.unknown_types.clone(),
        );
        executor.register(
            "suspensions",
            "Idle agents suspended, to make room or after agents.idle_after",
            all.suspensions.clone(),
        );
        executor.register("agent_panics", "Agents that ended by a panic", all.agent_panics.clone());
        all.register_archive(executor);
        all
    }

    fn register_archive(&self, executor: &mut Registry) {
        executor.register(
            "archived_entries",
            "Oplog entries moved to the archive layer",
            self.archived_entries.clone(),
        );
        executor.register(
            "archived_bytes",
            "Bytes of the compressed chunks that entries were moved into",
            self.archived_bytes.clone(),
        );
        executor.register(
            "archive_failures",
            "Moves to the archive layer, and sweeps of it, that failed, by call",
            self.archive_failures.clone(),
        );
        executor.register(
            "archive_swept_objects",
            "Objects removed from the archive because no oplog names them",
            self.swept_objects.clone(),
        );
    }

    /// Counts one move or sweep that failed.
    pub fn count_archive_failure(&self, call: &'static str) {
        self.archive_failures.get_or_create(&Call { call }).inc();
    }

    /// Counts one end of an invocation.
    pub fn count_invocation(&self, outcome: &'static str) {
        self.invocations.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts one end of a deletion.
    pub fn count_deletion(&self, outcome: &'static str) {
        self.deletions.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts one attempt to have something decided outside.
    pub fn count_consultation(&self, answer: &Result<Decision, Undecided>) {
        let outcome = match answer {
            Ok(Decision::Reject(_)) => "rejected",
            Ok(Decision::UnknownMethod | Decision::Answer(_) | Decision::Append { .. } | Decision::Outside(_)) => {
                "answered"
            }
            Err(Undecided::Away(_)) => "APP_UNAVAILABLE",
            Err(Undecided::Unusable(_)) => "APP_FAULT",
        };
        self.consultations.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts one call of the oplog store that failed.
    pub fn count_oplog_failure(&self, call: &'static str) {
        self.oplog_failures.get_or_create(&Call { call }).inc();
    }

    /// Counts one refusal before an agent was reached.
    pub fn count_admission_refusal(&self, reason: &'static str) {
        self.admission_refusals.get_or_create(&Reason { reason }).inc();
    }
}
