//! The agent types that the shipped executor hosts: [`counter`](Counter), [`tally`](Tally) and [`kv`](Kv). docs/agents.md shows
//! each method with its JSON.
//!
//! A service that embeds the executor brings its own [`AgentType`]s, next to these or instead of them:
//!
//! ```
//! use leasehold::agents::{AgentTypes, shipped};
//!
//! let types = AgentTypes::new(shipped());
//! assert_eq!(types.names().collect::<Vec<_>>(), ["counter", "kv", "tally"]);
//! ```

mod counter;
mod kv;
mod tally;

pub use counter::Counter;
pub use kv::Kv;
pub use leasehold_actors::executor::agent_type::{
    Admission, AgentState, AgentType, AgentTypes, Decider, Decision, MAX_EVENTS, Question, Undecided, Unreadable,
};
pub use tally::Tally;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// Every type in this module.
#[must_use]
pub fn shipped() -> Vec<Arc<dyn AgentType>> {
    vec![Arc::new(Counter), Arc::new(Tally), Arc::new(Kv)]
}

/// The payload as `T`; `null` counts as `{}`.
fn read<T: DeserializeOwned>(payload: &Value) -> Result<T, Decision> {
    let empty = Value::Object(serde_json::Map::new());
    let payload = if payload.is_null() { &empty } else { payload };
    if !payload.is_object() {
        // Deserializing would take the items of an array for the fields, in their order.
        return Err(Decision::Reject("payload: expected an object, such as {}".to_owned()));
    }
    T::deserialize(payload).map_err(|error| Decision::Reject(format!("payload: {error}")))
}

/// A stored event or snapshot as `T`.
fn stored<T: DeserializeOwned>(event: &Value) -> Result<T, Unreadable> {
    T::deserialize(event).map_err(|error| Unreadable(format!("{event}: {error}")))
}

/// For methods without arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Either way of a decision that may end early.
fn settle(decision: Result<Decision, Decision>) -> Decision {
    decision.unwrap_or_else(|early| early)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs invocations against a fresh agent as an executor does, checking on the way that replaying the events and
    /// restoring a snapshot give the same state.
    pub(super) struct Bench {
        kind: Box<dyn AgentType>,
        key: &'static str,
        state: Box<dyn AgentState>,
        log: Vec<Value>,
    }

    impl Bench {
        pub(super) fn new(kind: impl AgentType, key: &'static str) -> Self {
            let state = kind.start(key);
            Self { kind: Box::new(kind), key, state, log: Vec::new() }
        }

        /// The answer to a read or a change.
        pub(super) fn ask(&mut self, method: &str, payload: Value) -> Value {
            match self.state.decide(method, &payload) {
                Decision::Answer(answer) => answer,
                Decision::Append { events, answer } => {
                    events.iter().for_each(|event| self.state.apply(event).unwrap());
                    self.log.extend(events);
                    self.assert_recoverable();
                    answer
                }
                other @ (Decision::Reject(_) | Decision::UnknownMethod | Decision::Outside(_)) => {
                    panic!("{method} {payload}: {other:?}")
                }
            }
        }

        /// The words of a rejection.
        pub(super) fn rejected(&self, method: &str, payload: Value) -> String {
            match self.state.decide(method, &payload) {
                Decision::Reject(why) => why,
                other @ (Decision::Answer(_)
                | Decision::Append { .. }
                | Decision::UnknownMethod
                | Decision::Outside(_)) => {
                    panic!("{method} {payload}: {other:?}")
                }
            }
        }

        fn assert_recoverable(&self) {
            let mut replayed = self.kind.start(self.key);
            self.log.iter().for_each(|event| replayed.apply(event).unwrap());
            assert_eq!(replayed.snapshot(), self.state.snapshot(), "replaying {:?}", self.log);
            let mut restored = self.kind.start(self.key);
            restored.restore(&self.state.snapshot()).unwrap();
            assert_eq!(restored.snapshot(), self.state.snapshot());
        }
    }

    #[test]
    fn an_unknown_method_is_named_unknown_by_every_type() {
        for kind in shipped() {
            let decision = kind.start("x").decide("no-such-method", &Value::Null);
            assert_eq!(decision, Decision::UnknownMethod, "{}", kind.name());
        }
    }

    #[test]
    fn damaged_events_and_snapshots_are_errors_for_every_type() {
        for kind in shipped() {
            let mut state = kind.start("x");
            for event in [Value::Null, serde_json::json!({"nobody": 1}), serde_json::json!([1, 2, 3, 4])] {
                assert!(state.apply(&event).is_err(), "{} took {event}", kind.name());
            }
            for snapshot in [&b""[..], b"nonsense", b"\xff\xfe", b"[[[["] {
                assert!(state.restore(snapshot).is_err(), "{} took {snapshot:?}", kind.name());
            }
        }
    }

    #[test]
    fn unknown_fields_of_a_payload_are_named() {
        for (kind, method) in [("counter", "increment"), ("tally", "add"), ("kv", "get")] {
            let types = AgentTypes::new(shipped());
            let state = types.find(kind).unwrap().start("x");
            match state.decide(method, &serde_json::json!({"byy": 1})) {
                Decision::Reject(why) => assert!(why.contains("byy"), "{why}"),
                other @ (Decision::Answer(_)
                | Decision::Append { .. }
                | Decision::UnknownMethod
                | Decision::Outside(_)) => {
                    panic!("{kind}: {other:?}")
                }
            }
        }
    }

    #[test]
    fn only_an_object_is_taken_for_the_arguments_of_any_method() {
        let methods = [("counter", "increment"), ("counter", "get"), ("tally", "add"), ("kv", "get"), ("kv", "put")];
        for (name, method) in methods {
            let kind = shipped().into_iter().find(|kind| kind.name() == name).unwrap();
            for payload in
                [serde_json::json!([1]), serde_json::json!(["a", 1]), serde_json::json!(1), serde_json::json!("a")]
            {
                let decision = kind.start("x").decide(method, &payload);
                assert!(
                    matches!(&decision, Decision::Reject(why) if why.contains("object")),
                    "{name} {method} {payload}"
                );
            }
        }
    }
}
