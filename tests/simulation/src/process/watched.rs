//! The shipped counter, watched where it decides.

use crate::world::{Event, Process, World, lock};
use leasehold::agents::{AgentState, AgentType, Counter, Decision, Unreadable};
use leasehold_model::routing::shard_of;
use leasehold_model::{AgentId, ExecutorId, ShardCount, ShardId};
use serde_json::Value;
use std::sync::Arc;

/// The counter in one process.
pub struct Watched {
    pub process: Arc<Process>,
    pub world: Arc<World>,
    pub shards: ShardCount,
}

impl AgentType for Watched {
    fn name(&self) -> &str {
        Counter.name()
    }

    fn start(&self, key: &str) -> Box<dyn AgentState> {
        let agent: AgentId = format!("{}/{key}", self.name()).parse().expect("an agent that runs has an id");
        let shard = shard_of(&agent, self.shards);
        let life = self.process.life.read();
        *lock(&self.process.agents).entry((life, shard)).or_default() += 1;
        let (process, world) = (Arc::clone(&self.process), Arc::clone(&self.world));
        Box::new(State { inner: Counter.start(key), agent, life, shard, process, world })
    }
}

struct State {
    inner: Box<dyn AgentState>,
    agent: AgentId,
    life: ExecutorId,
    shard: ShardId,
    process: Arc<Process>,
    world: Arc<World>,
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(count) = lock(&self.process.agents).get_mut(&(self.life, self.shard)) {
            *count -= 1;
        }
    }
}

impl AgentState for State {
    fn decide(&self, method: &str, payload: &Value) -> Decision {
        // A lookup comes between the beginning and the decision, and a running invocation may finish (R20).
        let began = lock(&self.process.lookups).remove(&self.agent);
        let admitted = began.unwrap_or_else(|| self.process.admits(self.shard).is_some());
        self.world.happen(Event::Decided { process: self.process.number, shard: self.shard, admitted });
        self.inner.decide(method, payload)
    }

    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        self.inner.apply(event)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.inner.snapshot()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        self.inner.restore(snapshot)
    }
}
