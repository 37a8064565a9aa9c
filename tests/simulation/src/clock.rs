//! Simulated time, and machines' clocks that run faster or slower than it.

use leasehold_actors::clock::Clock;
use leasehold_model::Tick;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Clocks gain or lose up to so many millionths: two of them together stay within the allowance.
pub const DRIFT_PPM: i64 = 8_000;

thread_local! {
    /// The time while no simulated host runs.
    static BETWEEN: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Since the simulation began. Tokio's instants are of use only within one life of one host: each has an origin of its own.
pub fn now() -> Duration {
    BETWEEN.get().or_else(turmoil::sim_elapsed).unwrap_or_default()
}

/// Says what time it is while no host runs; `None`: hosts run.
pub fn between(time: Option<Duration>) {
    BETWEEN.set(time);
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A machine's clock. Clones are one clock; it outlives the processes on its machine.
#[derive(Debug, Clone, Default)]
pub struct MachineClock(Arc<Rate>);

#[derive(Debug, Default)]
struct Rate {
    ppm: AtomicI64,
    slept: AtomicU64,
}

impl MachineClock {
    /// A clock that gains so many millionths.
    pub fn new(ppm: i64) -> Self {
        Self(Arc::new(Rate { ppm: AtomicI64::new(ppm), slept: AtomicU64::new(0) }))
    }

    /// How long `span` of this clock is.
    pub fn lasts(&self, span: Duration) -> Duration {
        const MILLION: i64 = 1_000_000;
        let nanos =
            i128::from(nanos(span)) * i128::from(MILLION) / i128::from(MILLION + self.0.ppm.load(Ordering::SeqCst));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How long `span` may be at most, of whichever machine.
    pub fn slowest(span: Duration) -> Duration {
        Self::new(-DRIFT_PPM).lasts(span)
    }

    /// The machine slept for `span`: its timers and everybody else noticed nothing, this clock did.
    pub fn sleep(&self, span: Duration) {
        self.0.slept.fetch_add(nanos(span), Ordering::SeqCst);
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Tick {
        let hour = i128::from(nanos(Duration::from_secs(3600)));
        let elapsed = i128::from(nanos(now()));
        let gained = elapsed * i128::from(self.0.ppm.load(Ordering::SeqCst)) / 1_000_000;
        let slept = i128::from(self.0.slept.load(Ordering::SeqCst));
        Tick(u64::try_from(hour + elapsed + gained + slept).unwrap_or(u64::MAX))
    }

    fn wall_ms(&self) -> i64 {
        const A_DAY: i64 = 1_700_000_000_000;
        A_DAY.saturating_add_unsigned(u64::try_from(now().as_millis()).unwrap_or(u64::MAX))
    }
}

/// The same machine's clock for granters: it stands still while the machine sleeps.
#[derive(Debug, Clone)]
pub struct SleeplessClock(pub MachineClock);

impl Clock for SleeplessClock {
    fn now(&self) -> Tick {
        let slept = self.0.0.slept.load(Ordering::SeqCst);
        Tick(self.0.now().0.saturating_sub(slept))
    }

    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }
}
