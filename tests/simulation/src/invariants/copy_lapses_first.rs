//! S5: the executor's copy of a lease ends first: before the deadlines of all managers that granted it. So whoever admits a shard is still, in the store, its owner, or the
//! one it is being taken from: nobody else was given it in the belief that the lease had ended or the shard had been let go of.
//! Stored may be a higher epoch of the same owner, which it has not heard of yet (R40).

use super::{Invariant, View};
use crate::world::{Event, shards};
use leasehold_model::ExecutorId;
use leasehold_model::state::ShardState;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
pub struct CopyLapsesFirst {
    /// The latest deadline that a manager may have for each executor.
    granted: BTreeMap<ExecutorId, Duration>,
}

impl Invariant for CopyLapsesFirst {
    fn id(&self) -> &'static str {
        "S5"
    }

    fn hear(&mut self, _at: Duration, event: &Event, _view: &View) -> Result<(), String> {
        if let Event::Granted { to, until } = event {
            let latest = self.granted.entry(*to).or_default();
            *latest = (*latest).max(*until);
        }
        Ok(())
    }

    fn look(&mut self, view: &View) -> Result<(), String> {
        for process in view.processes.iter().filter(|process| process.has_lease()) {
            let (ends, granted) = (process.lease_ends(), self.granted.get(&process.life.read()));
            if granted.is_none_or(|granted| ends > *granted) {
                return Err(format!(
                    "{} believes in a lease until {ends:?}; managers granted until {granted:?}",
                    process.host
                ));
            }
        }
        let Some(state) = view.state.as_ref().filter(|_| !view.two_worlds) else { return Ok(()) };
        for process in view.processes.iter().filter(|process| process.has_lease()) {
            let life = process.life.read();
            for admitted in shards().filter_map(|shard| process.admits(shard)) {
                let row = state.shard(admitted.shard).expect("every shard is stored");
                let holds = match row.state {
                    ShardState::Owned(owner) => owner == life && row.epoch >= admitted.epoch,
                    ShardState::Releasing { from, .. } => from == life,
                    ShardState::Unassigned => false,
                };
                if !holds {
                    let (shard, epoch) = (admitted.shard, admitted.epoch);
                    return Err(format!(
                        "{} admits shard {shard} at epoch {epoch}; stored is {:?} at epoch {}",
                        process.host, row.state, row.epoch
                    ));
                }
            }
        }
        Ok(())
    }
}
