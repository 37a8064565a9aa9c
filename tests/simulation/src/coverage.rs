//! What the seeds must reach, so that none of the invariants holds for want of anything happening.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What is to be reached at least once, by the part of the cluster that it is about.
const REQUIRED: &[(&str, &[&str])] = &[
    (
        "Registering, renewing, leaving",
        &[
            "log: the first executor registered",
            "log: lease live",
            "log: a manager is followed",
            "log: a call to the manager failed",
            "log: lease lapsed",
            "log: the registration is gone",
            "log: the executor leaves [asked to stop]",
            "log: the executor ends",
            "log: a granted set was overtaken by a newer one",
        ],
    ),
    (
        "Pushes",
        &[
            "log: push applied",
            "log: push not applied [foreign]",
            "log: push not applied [stale]",
            "log: push not applied [too_early]",
            "log: push not applied [other_life]",
            "log: push not applied [leaving]",
            "log: a push failed",
            "log: a claim had to be corrected",
        ],
    ),
    (
        "Shards on an executor",
        &[
            "log: shard gained",
            "log: shard let go of",
            "log: shard not admitted any more [narrowed]",
            "log: shard not admitted any more [lapsed]",
            "log: shard not admitted any more [leaving]",
            "log: shard not admitted any more [unregistered]",
            "log: shard not admitted any more [epoch_changed]",
            "log: sweeping",
            "log: recovery done",
            "log: recovered the agents of gained shards",
            "log: cannot list the shard's running agents",
        ],
    ),
    (
        "Shards in the store",
        &[
            "log: ownership changed [assign]",
            "log: ownership changed [rebalance]",
            "log: ownership changed [released]",
            "log: ownership changed [reaped]",
            "log: ownership changed [deregistered]",
            "log: ownership changed [replaced]",
            "log: ownership changed [epoch_floor]",
        ],
    ),
    (
        "The leader",
        &[
            "log: a pass ended",
            "log: a pass could not be committed",
            "log: a lease has ended",
            "log: grants to this executor go unheard",
            "log: this manager stood still for more than half a lease",
            "log: the leadership is over",
            "log: the leadership was given up",
        ],
    ),
    (
        "The election",
        &[
            "log: this process leads",
            "log: a standby again",
            "log: another leader is followed",
            "log: the place in the queue was lost",
            "log: a call of the election failed",
        ],
    ),
    (
        "Refusals that executors hear",
        &[
            "executor hears NOT_LEADER",
            "executor hears LEADERSHIP_UNCONFIRMED",
            "executor hears STORE_UNAVAILABLE",
            "executor hears SUPERSEDED",
            "executor hears UNHEARD",
            "executor hears UNKNOWN_EXECUTOR",
            "executor hears UNREACHABLE",
            "executor hears OUTCOME_UNKNOWN",
        ],
    ),
    (
        "Refusals that callers' routers hear",
        &[
            "caller hears DRAINING",
            "caller hears EPOCH_FENCED",
            "caller hears HANDOFF_IN_PROGRESS",
            "caller hears SHARDING_NOT_READY",
            "caller hears STORE_UNAVAILABLE",
            "caller hears WRONG_OWNER",
            "caller hears UNREACHABLE",
            "caller hears OUTCOME_UNKNOWN",
            "caller is answered from the oplog",
        ],
    ),
    (
        "Callers' operations, each asked for again until it is answered",
        &[
            "operation ends as SHARD_UNASSIGNED",
            "operation ends as OUTCOME_UNKNOWN",
            "operation ends as SHARDING_NOT_READY",
        ],
    ),
    (
        "Routers",
        &[
            "log: routing table changed",
            "log: another manager leads",
            "log: no manager answers",
            "log: a manager answers again",
            "log: an older routing table is not used yet",
        ],
    ),
    (
        "The cluster's store",
        &[
            "store: write refused",
            "store: write request lost",
            "store: write answer lost",
            "store: write never answered",
            "store: confirmation refused",
            "store: confirmation never answered",
            "store: election answer lost",
            "store: election never answered",
            "log: outcome of a write unknown",
            "unknown write: it was there",
            "unknown write: it was not there",
            "log: the store did not take a write",
        ],
    ),
    (
        "The oplogs",
        &[
            "store: append refused",
            "store: append request lost",
            "store: append answer lost",
            "store: append never answered",
            "unknown append: it was there",
            "unknown append: it was not there",
            "oplog: a write was fenced",
            "oplog: a read was fenced",
            "oplog: an equal epoch of another writer was refused",
            "log: storage fenced the agent",
            "log: storage fenced a write",
            "log: the oplog store fails",
            "log: the oplog store works again",
        ],
    ),
    ("Operators", &["log: an operator's request is done", "log: an operator's request failed"]),
];

/// What of it was not.
pub fn missing(reached: &BTreeMap<String, u64>) -> Vec<&'static str> {
    let required = REQUIRED.iter().flat_map(|(_, whats)| *whats);
    required.filter(|what| !reached.contains_key(**what)).copied().collect()
}

/// A table of how often each was.
pub fn table(reached: &BTreeMap<String, u64>) -> String {
    let mut table = String::new();
    for (part, whats) in REQUIRED {
        // Writing to a string never fails.
        let _ = writeln!(table, "{part}");
        for what in *whats {
            let _ = writeln!(table, "{:>10}  {what}", reached.get(*what).copied().unwrap_or_default());
        }
    }
    table
}
