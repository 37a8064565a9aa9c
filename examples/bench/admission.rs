//! Admission, as an executor's front does it: read the holder's clock, ask the fence. In processor time of the thread, which a
//! busy machine does not lengthen by waiting.

use crate::figure::{Measured, Result};
use crate::rounds::in_turns_sync;
use leasehold_actors::clock::{HolderClock, SharedClock};
use leasehold_model::fence::{Fence, FenceKeeper};
use leasehold_model::{ShardCount, ShardEpoch, ShardId};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const SHARDS: u32 = 1024;
const CALLS: u32 = 1_000_000;
const ROUNDS: usize = 15;

/// A fence that admits every shard for an hour, its keeper and the holder's clock.
fn open() -> Result<(FenceKeeper, SharedClock)> {
    let clock: SharedClock = Arc::new(HolderClock);
    let keeper = FenceKeeper::new();
    let count = ShardCount::new(SHARDS)?;
    assert!(keeper.size(count), "the first count is taken");
    for shard in count.shards() {
        keeper.open(shard, ShardEpoch::owned(7)?);
    }
    keeper.arm(clock.now().plus(Duration::from_secs(3600)));
    Ok((keeper, clock))
}

/// Nanoseconds of this thread's processor time for one call.
fn cost(mut call: impl FnMut(u32)) -> f64 {
    let now = || {
        let at = clock_gettime(ClockId::ThreadCPUTime);
        at.tv_sec as f64 * 1e9 + at.tv_nsec as f64
    };
    let began = now();
    for number in 0..CALLS {
        call(number);
    }
    (now() - began) / f64::from(CALLS)
}

fn admissions(fence: &Fence, clock: &SharedClock) -> f64 {
    cost(|number| {
        let admitted = fence.admit(clock.now(), ShardId(number % SHARDS));
        assert!(black_box(admitted).is_ok(), "the lease is live and every shard is held");
    })
}

/// `admission_ns`; the baseline is the clock alone.
pub async fn alone() -> Result<Measured> {
    let (keeper, clock) = open()?;
    let fence = keeper.fence();
    let baseline = || {
        cost(|_| {
            black_box(clock.now());
        })
    };
    in_turns_sync(ROUNDS, || admissions(&fence, &clock), baseline).await
}

/// `admission_two_threads`: what a thread pays beside another one, against what it pays alone.
pub async fn on_two_threads() -> Result<Measured> {
    let (keeper, clock) = open()?;
    let fence = keeper.fence();
    let beside = || {
        let start = Barrier::new(2);
        let run = || {
            start.wait();
            admissions(&fence, &clock)
        };
        thread::scope(|threads| {
            let other = threads.spawn(run);
            (run() + other.join().expect("nothing panics there")) / 2.0
        })
    };
    in_turns_sync(ROUNDS, beside, || {
        thread::scope(|threads| threads.spawn(|| admissions(&fence, &clock)).join().expect("nothing panics there"))
    })
    .await
}
