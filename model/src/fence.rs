//! Admission on the executor: a lock-free table of held shards and one deadline.
//!
//! One thread writes, any number admit. An admission reads two words and writes none, so threads that admit do not slow
//! each other down. What an admission promises is that the lease was live at the instant passed in and that the
//! shard was held when it was asked for. It does not promise that this is still so a moment later:
//!
//! - whoever starts work asks [`Fence::still_admits`] again where the order with a sweep is known (the mailbox that the
//!   sweep goes through as well), so that nothing starts behind a sweep's back;
//! - whoever was stopped between asking and writing is refused by storage (S6).
//!
//! The instant must come from a clock that counts the machine's sleep, read right before the call (R10).

use crate::ids::{Revision, ShardCount, ShardEpoch, ShardId};
use crate::time::Tick;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Aligned, so that cloning a [`Fence`] (which counts beside the table) never takes the deadline's cache line from those who admit.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Table {
    /// Nanoseconds of the holder's clock from which on nothing is admitted; 0 closes everything.
    deadline: AtomicU64,
    /// Epoch at which each shard is admitted, 0 when it is not. Made when the shard count is first heard.
    epochs: OnceLock<Box<[AtomicU64]>>,
    /// Of the last set applied; 0 before the first. Evidence for a refusal: no admission reads it.
    revision: AtomicU64,
}

/// Reads the fence. Cheap to clone, shared by every thread that admits work.
#[derive(Debug, Clone, Default)]
pub struct Fence(Arc<Table>);

/// An admission: work for `shard` may start under `epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Admitted {
    /// The shard.
    pub shard: ShardId,
    /// The epoch to write under.
    pub epoch: ShardEpoch,
}

/// Why nothing was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// No live lease.
    NotReady,
    /// The lease is live, the shard is not held.
    NotHeld,
}

impl Fence {
    /// The number of shards, once it has been heard from a manager.
    #[must_use]
    pub fn shard_count(&self) -> Option<ShardCount> {
        let len = u32::try_from(self.0.epochs.get()?.len()).ok()?;
        ShardCount::new(len).ok()
    }

    /// Whether work for `shard` may start at `now`: only while the lease is live and the shard is held. Nothing that
    /// asks after [`FenceKeeper::close`], [`FenceKeeper::close_all`] or the keeper's drop returned is admitted.
    ///
    /// # Errors
    /// Says which of the two is missing.
    pub fn admit(&self, now: Tick, shard: ShardId) -> Result<Admitted, Closed> {
        if now.0 >= self.0.deadline.load(Ordering::Acquire) {
            return Err(Closed::NotReady);
        }
        let epochs = self.0.epochs.get().ok_or(Closed::NotReady)?;
        match epochs.get(shard.index()).map_or(0, |epoch| epoch.load(Ordering::Acquire)) {
            0 => Err(Closed::NotHeld),
            epoch => ShardEpoch::new(epoch).map(|epoch| Admitted { shard, epoch }).map_err(|_| Closed::NotHeld),
        }
    }

    /// Whether an earlier admission would still be given at `now`.
    #[must_use]
    pub fn still_admits(&self, now: Tick, admitted: Admitted) -> bool {
        self.admit(now, admitted.shard) == Ok(admitted)
    }

    /// When the lease ends, on the holder's clock; [`Tick::ZERO`] without one.
    #[must_use]
    pub fn deadline(&self) -> Tick {
        Tick(self.0.deadline.load(Ordering::Acquire))
    }

    /// Revision of the last set applied. Read after [`Closed::NotHeld`], it is that of the set that closed the shard, or newer.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision(self.0.revision.load(Ordering::Acquire))
    }
}

/// Writes the fence. There is one; when it goes away, for whatever reason, the fence is closed for good.
#[derive(Debug, Default)]
pub struct FenceKeeper {
    fence: Fence,
}

impl FenceKeeper {
    /// A closed fence.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Makes the table when the shard count is first heard. `false` if it was made with another count (R23).
    #[must_use]
    pub fn size(&self, count: ShardCount) -> bool {
        let make = || (0..count.get()).map(|_| AtomicU64::new(0)).collect();
        self.fence.0.epochs.get_or_init(make).len() == count.get() as usize
    }

    /// Admits `shard` at `epoch` from now on, while the lease is live. Epoch 0 closes it. Without a table, or for a shard
    /// that is not in it, nothing is opened.
    pub fn open(&self, shard: ShardId, epoch: ShardEpoch) {
        self.store(shard, epoch.get());
    }

    /// Admits nothing for `shard` from now on.
    pub fn close(&self, shard: ShardId) {
        self.store(shard, 0);
    }

    /// The lease ends at `deadline`, which may be earlier than before. To be called after the closings that came with it:
    /// whoever sees the new deadline sees those as well.
    pub fn arm(&self, deadline: Tick) {
        self.fence.0.deadline.store(deadline.0, Ordering::Release);
    }

    /// The set of `revision` is being applied. To be called before the closings that come with it.
    pub fn know(&self, revision: Revision) {
        self.fence.0.revision.store(revision.0, Ordering::Release);
    }

    /// Admits nothing, whatever is held.
    pub fn close_all(&self) {
        self.arm(Tick::ZERO);
    }

    fn store(&self, shard: ShardId, epoch: u64) {
        if let Some(cell) = self.fence.0.epochs.get().and_then(|epochs| epochs.get(shard.index())) {
            cell.store(epoch, Ordering::Release);
        }
    }
}

impl Drop for FenceKeeper {
    fn drop(&mut self) {
        self.close_all();
    }
}

#[cfg(test)]
mod tests {
    use super::{Admitted, Closed, Fence, FenceKeeper};
    use crate::ids::{Revision, ShardCount, ShardEpoch, ShardId};
    use crate::time::Tick;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const SHARD: ShardId = ShardId(3);

    fn epoch(number: u64) -> ShardEpoch {
        ShardEpoch::new(number).unwrap()
    }

    fn keeper() -> FenceKeeper {
        let keeper = FenceKeeper::new();
        assert!(keeper.size(ShardCount::new(8).unwrap()));
        keeper.open(SHARD, epoch(5));
        keeper.arm(Tick(1_000));
        keeper
    }

    #[test]
    fn admits_a_held_shard_under_its_epoch_until_just_before_the_deadline() {
        let keeper = keeper();
        let fence = keeper.fence();
        let admitted = Ok(Admitted { shard: SHARD, epoch: epoch(5) });
        assert_eq!(fence.admit(Tick::ZERO, SHARD), admitted);
        assert_eq!(fence.admit(Tick(999), SHARD), admitted);
        assert_eq!(fence.admit(Tick(1_000), SHARD), Err(Closed::NotReady));
        assert_eq!(fence.admit(Tick(1_001), SHARD), Err(Closed::NotReady));
        assert_eq!(fence.deadline(), Tick(1_000));
        assert_eq!(fence.shard_count(), Some(ShardCount::new(8).unwrap()));
    }

    #[test]
    fn admits_nothing_that_is_not_held_or_does_not_exist() {
        let keeper = keeper();
        assert_eq!(keeper.fence().admit(Tick(1), ShardId(4)), Err(Closed::NotHeld));
        assert_eq!(keeper.fence().admit(Tick(1), ShardId(8)), Err(Closed::NotHeld));
        assert_eq!(keeper.fence().admit(Tick(1), ShardId(u32::MAX)), Err(Closed::NotHeld));
        keeper.open(ShardId(8), epoch(1));
        keeper.open(ShardId(4), ShardEpoch::NEVER_OWNED);
        assert_eq!(keeper.fence().admit(Tick(1), ShardId(8)), Err(Closed::NotHeld));
        assert_eq!(keeper.fence().admit(Tick(1), ShardId(4)), Err(Closed::NotHeld));
    }

    #[test]
    fn a_fence_that_never_heard_a_shard_count_is_closed() {
        let keeper = FenceKeeper::new();
        keeper.arm(Tick::NEVER);
        keeper.open(SHARD, epoch(5));
        assert_eq!(keeper.fence().admit(Tick(1), SHARD), Err(Closed::NotReady));
        assert_eq!(keeper.fence().shard_count(), None);
        assert_eq!(Fence::default().admit(Tick::ZERO, SHARD), Err(Closed::NotReady));
    }

    #[test]
    fn whoever_is_refused_can_be_told_which_set_was_applied_last() {
        let keeper = keeper();
        let fence = keeper.fence();
        assert_eq!(fence.revision(), Revision(0), "before the first set");
        keeper.know(Revision(9));
        keeper.close(SHARD);
        assert_eq!((fence.admit(Tick(1), SHARD), fence.revision()), (Err(Closed::NotHeld), Revision(9)));
    }

    /// R23: the caller exits on `false`.
    #[test]
    fn another_shard_count_than_the_first_is_not_taken() {
        let keeper = keeper();
        assert!(keeper.size(ShardCount::new(8).unwrap()));
        assert!(!keeper.size(ShardCount::new(9).unwrap()));
        assert_eq!(keeper.fence().shard_count(), Some(ShardCount::new(8).unwrap()));
    }

    #[test]
    fn an_admission_stands_only_while_the_same_epoch_is_held() {
        let keeper = keeper();
        let fence = keeper.fence();
        let admitted = fence.admit(Tick(1), SHARD).unwrap();
        assert!(fence.still_admits(Tick(999), admitted));
        assert!(!fence.still_admits(Tick(1_000), admitted), "the lease ended");
        keeper.open(SHARD, epoch(6));
        assert!(!fence.still_admits(Tick(999), admitted), "the shard was away in between");
        keeper.close(SHARD);
        assert!(!fence.still_admits(Tick(999), admitted));
    }

    #[test]
    fn a_closed_shard_is_refused_while_the_others_are_served() {
        let keeper = keeper();
        keeper.open(ShardId(4), epoch(9));
        keeper.close(SHARD);
        assert_eq!(keeper.fence().admit(Tick(1), SHARD), Err(Closed::NotHeld));
        assert_eq!(keeper.fence().admit(Tick(1), ShardId(4)), Ok(Admitted { shard: ShardId(4), epoch: epoch(9) }));
    }

    #[test]
    fn closing_everything_holds_until_a_lease_is_armed_anew() {
        let keeper = keeper();
        keeper.close_all();
        assert_eq!(keeper.fence().admit(Tick::ZERO, SHARD), Err(Closed::NotReady));
        keeper.arm(Tick(2_000));
        assert_eq!(keeper.fence().admit(Tick(1_999), SHARD), Ok(Admitted { shard: SHARD, epoch: epoch(5) }));
    }

    /// Case 19: a lease longer than the machine has been up, at both ends of the clock.
    #[test]
    fn deadlines_at_the_ends_of_the_clock_are_deadlines() {
        let keeper = keeper();
        keeper.arm(Tick::NEVER);
        assert!(keeper.fence().admit(Tick(u64::MAX - 1), SHARD).is_ok());
        assert_eq!(keeper.fence().admit(Tick::NEVER, SHARD), Err(Closed::NotReady));
        keeper.arm(Tick::ZERO);
        assert_eq!(keeper.fence().admit(Tick::ZERO, SHARD), Err(Closed::NotReady));
    }

    /// S1: the keeper lives in the actor that renews; whatever ends that actor, a panic included, ends admission.
    #[test]
    fn the_fence_closes_for_good_as_its_keeper_goes_away() {
        let keeper = keeper();
        let fence = keeper.fence();
        let panicked = std::thread::spawn(move || {
            let _keeper = keeper;
            panic!("the holder's handler panics (on purpose)");
        })
        .join();
        assert!(panicked.is_err());
        assert_eq!(fence.admit(Tick::ZERO, SHARD), Err(Closed::NotReady));
        assert_eq!(fence.deadline(), Tick::ZERO);
    }

    /// R10, case 16: two clocks of one machine. Timers fire by the one that stood still while the machine slept; the
    /// fence is asked with the one that ran on, so it needs no timer to be closed.
    #[test]
    fn the_first_thing_after_a_sleep_past_the_deadline_is_a_refusal() {
        let keeper = keeper();
        let (counts_sleep, stands_still) = (Tick(500), Tick(500));
        assert!(keeper.fence().admit(counts_sleep, SHARD).is_ok());
        let slept = std::time::Duration::from_nanos(2_000);
        assert_eq!(keeper.fence().admit(counts_sleep.plus(slept), SHARD), Err(Closed::NotReady));
        assert!(keeper.fence().admit(stands_still, SHARD).is_ok(), "so the other clock must not be used");
    }

    /// S1: neither through a closed shard nor, after a lapse, through the deadline.
    #[test]
    fn no_thread_is_admitted_once_close_has_returned() {
        const ROUNDS: u64 = 500;
        let keeper = FenceKeeper::new();
        assert!(keeper.size(ShardCount::new(8).unwrap()));
        keeper.arm(Tick(1_000));
        let closed_up_to = AtomicU64::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let fence = keeper.fence();
            let (closed_up_to, done) = (&closed_up_to, &done);
            let reader = threads.spawn(move || {
                let mut admissions = 0_u64;
                while !done.load(Ordering::Acquire) {
                    let closed = closed_up_to.load(Ordering::Acquire);
                    if let Ok(admitted) = fence.admit(Tick(1), SHARD) {
                        assert!(admitted.epoch.get() > closed, "{admitted:?} after {closed} was closed");
                        admissions += 1;
                    }
                }
                admissions
            });
            for round in 1..=ROUNDS {
                keeper.open(SHARD, epoch(round));
                keeper.arm(Tick(1_000));
                std::thread::yield_now();
                if round % 2 == 0 {
                    keeper.close(SHARD)
                } else {
                    keeper.close_all()
                }
                closed_up_to.store(round, Ordering::Release);
            }
            done.store(true, Ordering::Release);
            let _: u64 = reader.join().expect("the reader saw nothing admitted after a close");
        });
    }
}
