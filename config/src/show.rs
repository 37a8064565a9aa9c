//! What `config show` lists: every value with its origin, and every time that follows from them.

use crate::kind::show_duration;
use crate::sections::Lease;
use crate::source::Source;
use std::time::Duration;

/// One line of `config show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownValue {
    /// A key of the configuration, or the name of a derived value.
    pub key: String,
    /// In text form; empty when there is none.
    pub value: String,
    /// Where it came from; for a derived value how it is computed.
    pub source: String,
    /// Whether it follows from others and cannot be set.
    pub derived: bool,
    /// What a derived value means; empty for a key, whose meaning stands in the reference.
    pub note: String,
}

impl ShownValue {
    pub(crate) fn set(key: &str, value: String, source: &Source) -> Self {
        Self::unset(key, value, source.to_string())
    }

    pub(crate) fn unset(key: &str, value: impl Into<String>, source: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), source: source.into(), derived: false, note: String::new() }
    }

    fn derived(key: &str, value: impl Into<String>, formula: &str, note: &str) -> Self {
        Self { key: key.into(), value: value.into(), source: formula.into(), derived: true, note: note.into() }
    }
}

/// One second beyond the lease: what a pass, its commit and its pushes may take (L1).
const HEALING_MARGIN: Duration = Duration::from_secs(1);

impl Lease {
    /// How often the manager makes a pass at least, and how long a lost push stays unrepaired at most: a third of a
    /// lease (R30, L1).
    #[must_use]
    pub fn pass_interval(&self) -> Duration {
        self.times.ttl().as_duration() / 3
    }

    /// How long an executor may hold on to what it was granted, from before it asked (R2).
    #[must_use]
    pub fn holder_lease(&self) -> Duration {
        self.allowance.shorten(self.times.ttl().as_duration())
    }

    /// After which time the shards of a crashed executor are served elsewhere (L1).
    #[must_use]
    pub fn crash_bound(&self) -> Duration {
        self.times.ttl().as_duration() + HEALING_MARGIN
    }

    /// After which time the shards of an executor that talks and cannot hear are served elsewhere (R46).
    #[must_use]
    pub fn unheard_bound(&self) -> Duration {
        self.times.ttl().as_duration() * 2 + self.pass_interval()
    }

    fn shown_of_both(&self) -> Vec<ShownValue> {
        let show = |key: &str, span: Duration, formula: &str, note: &str| {
            ShownValue::derived(key, show_duration(span), formula, note)
        };
        vec![
            show(
                "lease.holder_lease",
                self.holder_lease(),
                "lease.duration × (1 − lease.allowance)",
                "an executor's own copy of its lease, counted from before it asked (R2)",
            ),
            show(
                "lease.renew_after",
                self.times.renew_after(self.allowance),
                "lease.holder_lease / 3",
                "an executor renews this long after its last grant, or up to a tenth of that earlier (R11)",
            ),
            show(
                "lease.attempt_deadline",
                self.times.attempt_deadline(),
                "max(lease.duration / 6, lease.call_deadline_floor)",
                "one attempt to register or renew is given this long (R13)",
            ),
        ]
    }

    /// What follows on a manager.
    pub(crate) fn shown_of_manager(&self) -> Vec<ShownValue> {
        let mut shown = self.shown_of_both();
        shown.extend([
            ShownValue::derived(
                "lease.pass_interval",
                show_duration(self.pass_interval()),
                "lease.duration / 3",
                "a pass runs at least this often (R30); a lost push is repaired within it (L1)",
            ),
            ShownValue::derived(
                "lease.crash_bound",
                show_duration(self.crash_bound()),
                "lease.duration + 1s",
                "a crashed executor's shards are served elsewhere after this (L1)",
            ),
            ShownValue::derived(
                "lease.unheard_bound",
                show_duration(self.unheard_bound()),
                "2 × lease.duration + lease.pass_interval",
                "an executor that talks and cannot hear has lost its shards after this (R46)",
            ),
        ]);
        shown
    }

    /// What follows on an executor.
    pub(crate) fn shown_of_executor(&self) -> Vec<ShownValue> {
        let mut shown = self.shown_of_both();
        let attempts = self.attempts_that_fit();
        shown.push(ShownValue::derived(
            "lease.attempts",
            attempts.to_string(),
            "(lease.holder_lease − lease.renew_after) / lease.attempt_deadline",
            "so many attempts to renew fit one after the other, even if each runs into its deadline (R13)",
        ));
        shown
    }

    /// How many attempts to renew fit one after the other into what is left of a lease when the first begins.
    #[must_use]
    pub fn attempts_that_fit(&self) -> u128 {
        let left = self.holder_lease().saturating_sub(self.times.renew_after(self.allowance));
        left.as_nanos() / self.times.attempt_deadline().as_nanos().max(1)
    }
}
