//! How long a leadership may answer and push, readable from any thread.

use crate::clock::SharedClock;
use crate::planted::{self, Bug};
use async_trait::async_trait;
use leasehold_model::message::{Inspection, Push, PushAnswer};
use leasehold_model::{Address, CallError, Tick};
use leasehold_rpc::api::ExecutorApi;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::handle::ExecutorLinks;

/// Open until a deadline on the holder's clock; once closed it stays closed. One per leadership; clones are the same gate.
#[derive(Clone)]
pub struct Gate {
    until: Arc<AtomicU64>,
    clock: SharedClock,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Gate {
    /// No deadline is as early as this.
    const CLOSED: u64 = 0;

    /// Open until `until`.
    #[must_use]
    pub fn new(clock: SharedClock, until: Tick) -> Self {
        Self { until: Arc::new(AtomicU64::new(until.0)), clock }
    }

    /// Moves the deadline, unless it is closed.
    pub fn extend(&self, until: Tick) {
        let extended = |present| (present != Self::CLOSED).then_some(until.0);
        // An error means that it is closed, for good.
        let _ = self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, extended);
    }

    /// Closes it for good.
    pub fn close(&self) {
        self.until.store(Self::CLOSED, Ordering::Release);
    }

    /// Whether the leadership may still answer and push: asked anew each time, for a process that was frozen past the deadline wakes here.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        if planted::is(Bug::GateIgnoresDeadline) {
            return until != Self::CLOSED;
        }
        self.clock.now().0 < until
    }
}

/// Ways to executors for as long as a leadership lasts.
pub(super) struct GatedLinks {
    pub links: Arc<dyn ExecutorLinks>,
    pub gate: Gate,
}

impl ExecutorLinks for GatedLinks {
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi> {
        Arc::new(GatedLink { executor: self.links.link(address), gate: self.gate.clone() })
    }
}

struct GatedLink {
    executor: Arc<dyn ExecutorApi>,
    gate: Gate,
}

#[async_trait]
impl ExecutorApi for GatedLink {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        if !self.gate.is_open() {
            return Err(CallError::Unreachable("the leadership is over".to_owned()));
        }
        self.executor.assign(push).await
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        self.executor.inspect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, VirtualClock};
    use std::time::Duration;

    /// Case 20, R10's kind: the clock that counts a sleep closes it, and nothing opens it again.
    #[tokio::test(start_paused = true)]
    async fn a_gate_closes_by_the_clock_that_counts_sleep_and_stays_closed_once_closed() {
        let clock = VirtualClock::start();
        let gate = Gate::new(Arc::new(clock.clone()), clock.now().plus(Duration::from_secs(10)));
        assert!(gate.is_open());
        clock.sleep_machine(Duration::from_secs(10));
        assert!(!gate.is_open());
        gate.extend(clock.now().plus(Duration::from_secs(1)));
        assert!(gate.is_open());
        gate.close();
        gate.extend(Tick::NEVER);
        assert!(!gate.is_open());
    }
}
