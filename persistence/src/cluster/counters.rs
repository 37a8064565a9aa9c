//! How often a store was used: what tests and benches compare with what they allow.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts kept by a store, from its opening on. Shared by everybody who uses that store.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) loads: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) outcomes: AtomicU64,
    pub(crate) confirmations: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// The counts at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// States read.
    pub loads: u64,
    /// Durable writes.
    pub commits: u64,
    /// Writes that were not made, or not known to be.
    pub refused: u64,
    /// Outcomes asked for.
    pub outcomes: u64,
    /// Confirmations of the leadership asked for.
    pub confirmations: u64,
    /// Rows written or removed by the durable writes, the head's included.
    pub rows: u64,
    /// About how many bytes these rows have.
    pub bytes: u64,
}

impl Counts {
    /// What was counted after `earlier`, an earlier reading of the same counters.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            loads: self.loads - earlier.loads,
            commits: self.commits - earlier.commits,
            refused: self.refused - earlier.refused,
            outcomes: self.outcomes - earlier.outcomes,
            confirmations: self.confirmations - earlier.confirmations,
            rows: self.rows - earlier.rows,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

impl Counters {
    /// The counts now. Each is exact; together they are a snapshot only while nobody uses the store.
    #[must_use]
    pub fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            loads: read(&self.loads),
            commits: read(&self.commits),
            refused: read(&self.refused),
            outcomes: read(&self.outcomes),
            confirmations: read(&self.confirmations),
            rows: read(&self.rows),
            bytes: read(&self.bytes),
        }
    }

    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn committed(&self, rows: u64, bytes: u64) {
        Self::add(&self.commits, 1);
        Self::add(&self.rows, rows);
        Self::add(&self.bytes, bytes);
    }
}
