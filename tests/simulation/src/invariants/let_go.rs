//! Let go of before it is given on (R20, R22): while a lease runs, no agent of a shard is left where the shard was taken from.

use super::{Invariant, View};
use crate::world::shards;
use leasehold_model::state::ShardState;

pub struct LetGo;

impl Invariant for LetGo {
    fn id(&self) -> &'static str {
        "let go"
    }

    fn look(&mut self, view: &View) -> Result<(), String> {
        let Some(state) = view.state.as_ref().filter(|_| !view.two_worlds) else { return Ok(()) };
        for process in view.processes.iter().filter(|process| process.has_lease()) {
            let life = process.life.read();
            for shard in shards().filter(|shard| process.agents_of(life, *shard) > 0) {
                let row = state.shard(shard).expect("every shard is stored");
                match row.state {
                    ShardState::Owned(owner) if owner != life => {
                        return Err(format!(
                            "{} still has agents of shard {shard}, which {owner} owns at epoch {}",
                            process.host, row.epoch
                        ));
                    }
                    ShardState::Owned(_) | ShardState::Releasing { .. } | ShardState::Unassigned => {}
                }
            }
        }
        Ok(())
    }
}
