//! S2: no two executors are ever told the same shard at the same epoch.

use super::{Invariant, View};
use crate::world::Event;
use leasehold_model::{ExecutorId, ShardEpoch, ShardId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
pub struct EpochsSeparate {
    told: BTreeMap<(ShardId, ShardEpoch), ExecutorId>,
}

impl Invariant for EpochsSeparate {
    fn id(&self) -> &'static str {
        "S2"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            // What an earlier world told does not bind it (R40).
            Event::NewWorld => self.told.clear(),
            Event::Told { to, set, .. } => {
                for (shard, epoch) in set.shards.iter() {
                    let first = *self.told.entry((shard, epoch)).or_insert(*to);
                    if first != *to {
                        return Err(format!("shard {shard} at epoch {epoch} was told to {first} and to {to}"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
