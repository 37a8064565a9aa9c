//! Agents whose behaviour is an application beside the executor, in any language. docs/agents.md ("The bridge") is its contract.
//!
//! The executor keeps the state, the oplog, the idempotency keys and the fence; the application gets a state and a payload and says
//! what becomes of them. Replaying asks nobody: an entry holds the new state, or how it differs from the one before.

mod answer;
mod app;
mod patch;
#[cfg(test)]
mod tests;

use crate::agents::{AgentState, AgentType, Decider, Decision, Unreadable};
use app::App;
use leasehold_model::InvalidValue;
use patch::merge;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// What `body` comes to as an application's answer, for `fuzz/`.
///
/// # Errors
/// What is wrong with it.
#[cfg(feature = "fuzzing")]
pub fn decision(body: &[u8]) -> Result<Decision, String> {
    answer::decision(body, Value::Null)
}

/// The most bytes of an application's answer: 1 MiB.
pub const ANSWER_MOST: usize = 1024 * 1024;
/// The most bytes of a state, as JSON text: 512 KiB.
pub const STATE_MOST: usize = 512 * 1024;

/// Bounds of the calls of one application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeSettings {
    /// How long one attempt may take (10 s), waiting for a free place included.
    pub timeout: Duration,
    /// Calls under way at once (64).
    pub calls: usize,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), calls: 64 }
    }
}

/// A type of agents that an application decides for.
pub struct Bridge {
    name: String,
    app: Arc<App>,
}

impl Bridge {
    /// The type `name`, decided for by the application at `url` (`http://HOST:PORT`, with a path if need be).
    ///
    /// # Errors
    /// Names `url` when it is none that can be called.
    pub fn new(name: &str, url: &str, settings: BridgeSettings) -> Result<Self, InvalidValue> {
        Ok(Self { name: name.to_owned(), app: Arc::new(App::new(url, settings)?) })
    }
}

impl AgentType for Bridge {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, _: &str) -> Box<dyn AgentState> {
        Box::new(State(Value::Null))
    }

    fn decider(&self) -> Option<Arc<dyn Decider>> {
        Some(Arc::clone(&self.app) as Arc<dyn Decider>)
    }
}

/// Whatever the application made of it; `null` at first.
struct State(Value);

/// The event that replaces the state.
fn set(state: Value) -> Value {
    json!({ "set": state })
}

/// The event that merges a patch into the state.
fn merged(patch: Value) -> Value {
    json!({ "merge": patch })
}

impl AgentState for State {
    fn decide(&self, _: &str, _: &Value) -> Decision {
        Decision::Outside(self.0.clone())
    }

    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        let only = event.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.iter().next());
        match only.map(|(how, value)| (how.as_str(), value)) {
            Some(("set", state)) => self.0 = state.clone(),
            Some(("merge", patch)) => merge(&mut self.0, patch),
            Some(_) | None => return Err(Unreadable(format!("{event}: no entry of a bridged agent"))),
        }
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        self.0 = serde_json::from_slice(snapshot).map_err(|error| Unreadable(error.to_string()))?;
        Ok(())
    }
}
