//! Admission on the executor: a lock-free table of held shards and one deadline.

use crate::ids::{ShardCount, ShardEpoch, ShardId};
use crate::time::Tick;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Debug, Default)]
struct Table {
    /// Nanoseconds of the holder's clock from which on nothing is admitted; 0 closes everything.
    deadline: AtomicU64,
    /// Epoch at which each shard is admitted, 0 when it is not. Made when the shard count is first heard.
    epochs: OnceLock<Box<[AtomicU64]>>,
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

    /// Whether work for `shard` may start at `now`: only while the lease is live and the shard is held.
    ///
    /// # Errors
    /// Says which of the two is missing.
    pub fn admit(&self, now: Tick, shard: ShardId) -> Result<Admitted, Closed> {
        if now.0 >= self.0.deadline.load(Ordering::Acquire) {
            return Err(Closed::NotReady);
        }
        let epochs = self.0.epochs.get().ok_or(Closed::NotReady)?;
        let epoch = epochs.get(shard.index()).map_or(0, |epoch| epoch.load(Ordering::Acquire));
        ShardEpoch::owned(epoch).map(|epoch| Admitted { shard, epoch }).map_err(|_| Closed::NotHeld)
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

    /// Admits `shard` at `epoch` from now on, while the lease is live.
    pub fn open(&self, shard: ShardId, epoch: ShardEpoch) {
        self.store(shard, epoch.get());
    }

    /// Admits nothing for `shard` from now on.
    pub fn close(&self, shard: ShardId) {
        self.store(shard, 0);
    }

    /// The lease ends at `deadline`.
    pub fn arm(&self, deadline: Tick) {
        self.fence.0.deadline.store(deadline.0, Ordering::Release);
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
