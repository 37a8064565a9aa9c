//! The clocks. Whoever *holds* a lease measures it on a clock that counts the machine's sleep; whoever *grants*
//! one measures it on a clock that does not: each errs on the safe side. The wall clock, which anybody may step, only ever shows.

use leasehold_model::Tick;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Reads steady time. Ticks of two clocks are never compared.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Tick;

    /// What the wall clock shows, in milliseconds since 1970: for people to read, never to decide by.
    fn wall_ms(&self) -> i64 {
        chrono::Utc::now().timestamp_millis()
    }
}

/// A clock that any part of a process can share.
pub type SharedClock = Arc<dyn Clock>;

fn read(id: ClockId) -> Tick {
    let at = clock_gettime(id);
    let seconds = u64::try_from(at.tv_sec).expect("steady clocks start at zero");
    let nanos = u64::try_from(at.tv_nsec).expect("nanoseconds are 0..1_000_000_000");
    Tick(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// For holders of leases: CLOCK_BOOTTIME, which runs on while the machine sleeps (R10).
#[derive(Debug, Clone, Copy, Default)]
pub struct HolderClock;

impl Clock for HolderClock {
    fn now(&self) -> Tick {
        read(ClockId::Boottime)
    }
}

/// For granters of leases: CLOCK_MONOTONIC, which stands still while the machine sleeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct GranterClock;

impl Clock for GranterClock {
    fn now(&self) -> Tick {
        read(ClockId::Monotonic)
    }
}

/// For tests: tokio's clock (which may be paused), plus whatever the machine is said to have slept.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    origin: tokio::time::Instant,
    slept_ns: Arc<AtomicU64>,
    wall: WallClock,
}

/// A wall clock that a test steps. Clones are one clock.
#[derive(Debug, Clone, Default)]
pub struct WallClock(Arc<AtomicI64>);

impl WallClock {
    /// Steps it by so much, back or forth.
    pub fn step_ms(&self, by: i64) {
        self.0.fetch_add(by, Ordering::SeqCst);
    }
}

impl VirtualClock {
    /// Starts an hour after its origin, so that arithmetic below the start is not clipped.
    #[must_use]
    pub fn start() -> Self {
        let hour = Duration::from_secs(3600);
        Self {
            origin: tokio::time::Instant::now(),
            slept_ns: Arc::new(AtomicU64::new(nanos(hour))),
            wall: WallClock::default(),
        }
    }

    /// The same clock beside this wall clock.
    #[must_use]
    pub fn with_wall(mut self, wall: WallClock) -> Self {
        self.wall = wall;
        self
    }

    /// The machine slept for `span`: timers noticed nothing, this clock did.
    pub fn sleep_machine(&self, span: Duration) {
        self.slept_ns.fetch_add(nanos(span), Ordering::SeqCst);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Clock for VirtualClock {
    fn now(&self) -> Tick {
        Tick(nanos(self.origin.elapsed()).saturating_add(self.slept_ns.load(Ordering::SeqCst)))
    }

    fn wall_ms(&self) -> i64 {
        // A fixed day, so that a test's output does not depend on when it runs.
        let day = 1_700_000_000_000_i64;
        let shown = day.saturating_add_unsigned(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX));
        shown.saturating_add(self.wall.0.load(Ordering::SeqCst))
    }
}
