//! A process that stands still, as under SIGSTOP: its actors are not polled and its timers come late, while its clocks run on.
//!
//! What the runtime itself keeps (the sockets' tasks) lives on: whoever freezes a host holds its links as well.

use crate::clock;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::sleep;

/// How long it naps before it looks again whether it goes on.
const NAP: Duration = Duration::from_millis(50);

/// Until when a host stands still.
#[derive(Debug, Clone, Default)]
pub struct Freezer(Arc<AtomicU64>);

impl Freezer {
    /// It stands still until `until` of the simulation's time.
    pub fn until(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_max(until, Ordering::SeqCst);
    }

    /// It goes on.
    pub fn thaw(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn left(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst)).saturating_sub(clock::now())
    }

    /// Runs `process` and whatever it spawns locally, but not while it stands still.
    pub async fn run<F: Future>(self, process: F) -> F::Output {
        let local = LocalSet::new();
        let mut running = pin!(local.run_until(process));
        let mut nap = None;
        poll_fn(move |cx| {
            loop {
                let left = self.left();
                if left.is_zero() {
                    nap = None;
                    return running.as_mut().poll(cx);
                }
                let napping = nap.get_or_insert_with(|| Box::pin(sleep(left.min(NAP))));
                match napping.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) => nap = None,
                }
            }
        })
        .await
    }
}
