//! S4: whatever a manager tells was stored, at the revision that it names, before it was sent.

use super::{Invariant, View};
use crate::world::Event;
use leasehold_model::state::{ClusterState, ShardState};
use leasehold_model::{Revision, ShardEpoch, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
pub struct StoredFirst {
    /// Every stored state. A restored store counts on from an older revision: of two with one number either may be told of for a while.
    history: BTreeMap<Revision, Vec<Arc<ClusterState>>>,
}

impl Invariant for StoredFirst {
    fn id(&self) -> &'static str {
        "S4"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::Committed { state } | Event::Restored { state } => {
                self.history.entry(state.revision).or_default().push(Arc::clone(state));
            }
            Event::Told { host, to, set } => {
                let Some(states) = self.history.get(&set.revision) else {
                    return Err(format!("{host} tells {to} of revision {}, which is not stored", set.revision));
                };
                let told: Vec<_> = set.shards.iter().collect();
                let stored = |state: &ClusterState| -> Vec<(ShardId, ShardEpoch)> {
                    let owned = state.shards().filter(|(_, row)| row.state == ShardState::Owned(*to));
                    owned.map(|(shard, row)| (shard, row.epoch)).collect()
                };
                if !states.iter().any(|state| stored(state) == told) {
                    let stored: Vec<_> = states.iter().map(|state| stored(state)).collect();
                    let revision = set.revision;
                    return Err(format!(
                        "{host} tells {to} that it has {told:?} at revision {revision}, where {stored:?} is stored"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
