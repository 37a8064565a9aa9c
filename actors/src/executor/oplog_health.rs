//! Whether the oplog store works, as the agents' calls of it show: for the log and for the renewals. It asks the store nothing.

use leasehold_model::Tick;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The least time between two warnings.
pub const WARN_EVERY: Duration = Duration::from_secs(10);
/// A failure this old, with nothing tried since, says nothing of how the store is now.
pub const STALE_AFTER: Duration = Duration::from_secs(30);

/// Calls of the store, as metrics and logs name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreCall {
    /// Opens an oplog.
    Claim,
    /// Writes entries.
    Append,
    /// Reads entries.
    Read,
    /// Looks up an idempotency key.
    Find,
    /// Marks an agent as not running.
    Suspend,
    /// Deletes an agent.
    Delete,
    /// Lists the running agents of a shard.
    Running,
    /// Lists all agents of a shard.
    Agents,
}

impl StoreCall {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Append => "append",
            Self::Read => "read",
            Self::Find => "find",
            Self::Suspend => "suspend",
            Self::Delete => "delete",
            Self::Running => "running",
            Self::Agents => "agents",
        }
    }

    const fn writes(self) -> bool {
        match self {
            Self::Claim | Self::Append | Self::Suspend | Self::Delete => true,
            Self::Read | Self::Find | Self::Running | Self::Agents => false,
        }
    }
}

/// What is to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// It fails; so many failures went unlogged since the line before.
    Fails {
        /// How many.
        suppressed: u64,
    },
    /// It works again.
    Works {
        /// How long it failed.
        failing: Duration,
        /// How many calls failed.
        failures: u64,
    },
}

/// One trouble with the store, from its first failure on.
#[derive(Debug)]
struct Trouble {
    began: Tick,
    /// A full disk can be read: what fails has to work again, not anything.
    reads_fail: bool,
    writes_fail: bool,
    failures: u64,
    logged: bool,
}

#[derive(Debug, Default)]
struct Account {
    trouble: Option<Trouble>,
    warned_at: Option<Tick>,
    suppressed: u64,
}

/// The health of one executor's oplog store.
#[derive(Debug, Default)]
pub struct OplogHealth {
    account: Mutex<Account>,
    /// Since when it fails, in nanoseconds of the holder's clock; 0 while it works.
    began: AtomicU64,
    /// When a call of it last failed.
    failed_at: AtomicU64,
}

impl OplogHealth {
    /// `call` failed at `now`. Returns what to log.
    pub fn failed(&self, now: Tick, call: StoreCall) -> Option<Line> {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let warn = account.warned_at.is_none_or(|at| now.since(at) >= WARN_EVERY);
        if now.since(Tick(self.failed_at.load(Ordering::Relaxed))) > STALE_AFTER {
            account.trouble = None;
        }
        let trouble = account.trouble.get_or_insert(Trouble {
            began: now,
            reads_fail: false,
            writes_fail: false,
            failures: 0,
            logged: false,
        });
        trouble.reads_fail |= !call.writes();
        trouble.writes_fail |= call.writes();
        trouble.failures += 1;
        trouble.logged |= warn;
        self.failed_at.store(now.0, Ordering::Relaxed);
        self.began.store(trouble.began.0.max(1), Ordering::Relaxed);
        if warn {
            account.warned_at = Some(now);
            return Some(Line::Fails { suppressed: std::mem::take(&mut account.suppressed) });
        }
        account.suppressed += 1;
        None
    }

    /// `call` worked at `now`. Returns what to log.
    pub fn worked(&self, now: Tick, call: StoreCall) -> Option<Line> {
        if self.began.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = account.trouble.as_mut()?;
        if call.writes() {
            trouble.writes_fail = false;
        } else {
            trouble.reads_fail = false;
        }
        if trouble.reads_fail || trouble.writes_fail {
            return None;
        }
        let Trouble { began, failures, logged, .. } = account.trouble.take()?;
        self.began.store(0, Ordering::Relaxed);
        account.suppressed = 0;
        logged.then_some(Line::Works { failing: now.since(began), failures })
    }

    /// For how long it has been failing at `now`; zero if it works, or if nothing has been tried for long.
    #[must_use]
    pub fn failing(&self, now: Tick) -> Duration {
        let (began, failed_at) = (self.began.load(Ordering::Relaxed), self.failed_at.load(Ordering::Relaxed));
        if began == 0 || now.since(Tick(failed_at)) > STALE_AFTER {
            return Duration::ZERO;
        }
        // Never zero, which would say that it works.
        now.since(Tick(began)).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick(1_000_000_000).plus(Duration::from_millis(ms))
    }

    #[test]
    fn the_first_failure_is_logged_at_once_and_further_ones_every_ten_seconds_with_their_number() {
        let health = OplogHealth::default();
        assert_eq!(health.failed(at(0), StoreCall::Append), Some(Line::Fails { suppressed: 0 }));
        for ms in [1, 5000, 9999] {
            assert_eq!(health.failed(at(ms), StoreCall::Append), None);
        }
        assert_eq!(health.failed(at(10_000), StoreCall::Claim), Some(Line::Fails { suppressed: 3 }));
        assert_eq!(health.failed(at(11_000), StoreCall::Claim), None);
    }

    #[test]
    fn that_it_works_again_is_said_once_with_how_long_and_how_often_it_failed() {
        let health = OplogHealth::default();
        assert_eq!(health.worked(at(0), StoreCall::Append), None);
        health.failed(at(1000), StoreCall::Append);
        health.failed(at(2000), StoreCall::Append);
        assert_eq!(health.failing(at(3000)), Duration::from_secs(2));
        let works = Line::Works { failing: Duration::from_secs(3), failures: 2 };
        assert_eq!(health.worked(at(4000), StoreCall::Append), Some(works));
        assert_eq!(health.worked(at(4001), StoreCall::Append), None);
        assert_eq!(health.failing(at(4001)), Duration::ZERO);
    }

    #[test]
    fn a_store_that_can_be_read_does_not_work_while_it_cannot_be_written() {
        let health = OplogHealth::default();
        health.failed(at(0), StoreCall::Append);
        assert_eq!(health.worked(at(1), StoreCall::Read), None);
        assert_eq!(health.failing(at(5)), Duration::from_millis(5));
        assert!(health.worked(at(6), StoreCall::Claim).is_some());
    }

    #[test]
    fn a_store_that_fails_now_and_then_does_not_flood_the_log() {
        let health = OplogHealth::default();
        let mut lines = 0;
        for ms in 0..20_000 {
            lines += usize::from(health.failed(at(ms), StoreCall::Append).is_some());
            lines += usize::from(health.worked(at(ms), StoreCall::Append).is_some());
        }
        assert_eq!(lines, 4, "two warnings and their ends");
    }

    #[test]
    fn a_failure_that_is_old_with_nothing_tried_since_is_not_reported_any_more() {
        let health = OplogHealth::default();
        health.failed(at(0), StoreCall::Append);
        assert_eq!(health.failing(at(0)), Duration::from_millis(1), "never zero while it fails");
        assert_eq!(health.failing(at(30_000)), Duration::from_secs(30));
        assert_eq!(health.failing(at(30_001)), Duration::ZERO);
        health.failed(at(60_000), StoreCall::Append);
        assert_eq!(health.failing(at(60_500)), Duration::from_millis(500), "nobody knows of the time between");
    }
}
