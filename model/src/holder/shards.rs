//! Which shards an executor was told to hold, which it admits work for, and which it has not let go of yet.

use super::event::{Loss, WorkId};
use crate::ids::{ShardEpoch, ShardId};
use crate::set::Holdings;
use std::collections::BTreeMap;

/// A shard whose agents are being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Draining {
    epoch: ShardEpoch,
    sweep: WorkId,
}

/// Three views of the shards of one executor.
///
/// A shard is *open* only at the epoch at which it is assigned, and never while it drains: so one that was lost and regained is
/// admitted at its new epoch only after the last agent of the old one has stopped (R29).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Shards {
    /// The last set that was applied.
    assigned: BTreeMap<ShardId, ShardEpoch>,
    /// Admitted, and recovered or being recovered.
    open: BTreeMap<ShardId, ShardEpoch>,
    /// Not admitted, agents may still be there.
    draining: BTreeMap<ShardId, Draining>,
}

impl Shards {
    /// What is claimed: everything that is assigned or still drains. Of a shard that drains at an older epoch than it is assigned at, the older.
    pub(super) fn claimed(&self) -> Holdings {
        let mut all = self.assigned.clone();
        all.extend(self.draining.iter().map(|(shard, draining)| (*shard, draining.epoch)));
        holdings(all)
    }

    pub(super) fn open(&self) -> Holdings {
        holdings(self.open.clone())
    }

    pub(super) fn draining(&self) -> Holdings {
        holdings(self.draining.iter().map(|(shard, draining)| (*shard, draining.epoch)))
    }

    pub(super) fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// The epoch at which `shard` is assigned.
    pub(super) fn assigned(&self, shard: ShardId) -> Option<ShardEpoch> {
        self.assigned.get(&shard).copied()
    }

    /// Makes `set` the assigned one. What is open and not in it must be closed first.
    pub(super) fn assign(&mut self, set: &Holdings) {
        self.assigned = set.iter().collect();
    }

    /// Moves every open shard for which `lost` names a cause to `sweep`.
    pub(super) fn close(
        &mut self,
        sweep: WorkId,
        lost: impl Fn(ShardId, ShardEpoch) -> Option<Loss>,
    ) -> Vec<(ShardId, ShardEpoch, Loss)> {
        let closed: Vec<_> =
            self.open.iter().filter_map(|(shard, epoch)| Some((*shard, *epoch, lost(*shard, *epoch)?))).collect();
        for (shard, epoch, _) in &closed {
            self.open.remove(shard);
            self.draining.insert(*shard, Draining { epoch: *epoch, sweep });
        }
        closed
    }

    /// `sweep` is over: what it swept, with the epochs.
    pub(super) fn swept(&mut self, sweep: WorkId) -> Vec<(ShardId, ShardEpoch)> {
        self.draining
            .extract_if(.., |_, draining| draining.sweep == sweep)
            .map(|(shard, of)| (shard, of.epoch))
            .collect()
    }

    /// Opens every assigned shard that is not open and not draining.
    pub(super) fn open_waiting(&mut self) -> Vec<(ShardId, ShardEpoch)> {
        let waiting = |(shard, _): &(&ShardId, &ShardEpoch)| {
            !self.open.contains_key(*shard) && !self.draining.contains_key(*shard)
        };
        let opened: Vec<_> = self.assigned.iter().filter(waiting).map(|(shard, epoch)| (*shard, *epoch)).collect();
        self.open.extend(opened.iter().copied());
        opened
    }

    /// Forgets everything: there is nobody left who could sweep.
    pub(super) fn abandon(&mut self) {
        *self = Self::default();
    }

    /// Panics when the three views contradict each other.
    pub(super) fn check(&self) {
        for (shard, epoch) in &self.open {
            let assigned = self.assigned.get(shard);
            assert!(assigned == Some(epoch), "shard {shard} is open at epoch {epoch}, assigned at {assigned:?}");
            let draining = self.draining.get(shard);
            assert!(draining.is_none(), "shard {shard} is open at epoch {epoch} and drains: {draining:?}");
        }
    }
}

fn holdings(shards: impl IntoIterator<Item = (ShardId, ShardEpoch)>) -> Holdings {
    Holdings::new(shards.into_iter().collect()).expect("a map has each shard once, and sets have no epoch 0")
}

#[cfg(test)]
mod tests {
    use super::{Draining, Shards};
    use crate::holder::WorkId;
    use crate::ids::{ShardEpoch, ShardId};
    use crate::set::Holdings;
    use std::panic::catch_unwind;

    const SHARD: ShardId = ShardId(3);

    /// S1, R29: a view that was broken is a bug, which stops the process before anything is admitted by it.
    #[test]
    fn views_that_contradict_each_other_stop_the_process() {
        let (older, epoch) = (ShardEpoch::new(6).unwrap(), ShardEpoch::new(7).unwrap());
        let mut sound = Shards::default();
        sound.assign(&Holdings::new(vec![(SHARD, epoch)]).unwrap());
        sound.open_waiting();
        sound.check();
        let mut unassigned = sound.clone();
        unassigned.assign(&Holdings::default());
        let mut stale = sound.clone();
        stale.open.insert(SHARD, older);
        let mut drains = sound;
        drains.draining.insert(SHARD, Draining { epoch: older, sweep: WorkId(1) });
        for broken in [unassigned, stale, drains] {
            assert!(catch_unwind(|| broken.check()).is_err(), "{broken:?}");
        }
    }
}
