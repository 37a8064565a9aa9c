//! S3: a shard's epoch only rises, and does so with each new owner.

use super::{Invariant, View};
use crate::world::Event;
use leasehold_model::{ExecutorId, ShardEpoch, ShardId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
pub struct EpochsRise {
    /// The highest epoch of each shard, and whose it was.
    highest: BTreeMap<ShardId, (ShardEpoch, Option<ExecutorId>)>,
}

impl Invariant for EpochsRise {
    fn id(&self) -> &'static str {
        "S3"
    }

    fn hear(&mut self, _: Duration, event: &Event, view: &View) -> Result<(), String> {
        let state = match event {
            Event::Committed { state } => state,
            Event::NewWorld => {
                self.highest.clear();
                view.state.as_ref().expect("a restored store has a state")
            }
            _ => return Ok(()),
        };
        for (shard, row) in state.shards() {
            let (before, owner) = self.highest.get(&shard).copied().unwrap_or((row.epoch, None));
            if row.epoch < before {
                return Err(format!("shard {shard} fell from epoch {before} to {}", row.epoch));
            }
            let now = row.state.owner();
            if row.epoch == before && owner.is_some() && now.is_some() && now != owner {
                return Err(format!("shard {shard} has another owner at the same epoch {before}"));
            }
            self.highest.insert(shard, (row.epoch, now.or(owner.filter(|_| row.epoch == before))));
        }
        Ok(())
    }
}
