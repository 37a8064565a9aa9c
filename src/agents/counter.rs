//! `counter`: one number.

use super::{AgentState, AgentType, Decision, Nothing, Unreadable, read, settle, stored};
use serde::Deserialize;
use serde_json::{Value, json};

/// The `counter` type. Methods: `increment`, `get`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counter;

/// The furthest from zero that a counter goes: JSON numbers are exact up to here everywhere.
const LIMIT: i64 = 9_007_199_254_740_991;

#[derive(Debug, Default)]
struct State {
    value: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Increment {
    #[serde(default = "one")]
    by: i64,
}

const fn one() -> i64 {
    1
}

impl State {
    fn increment(&self, payload: &Value) -> Result<Decision, Decision> {
        let Increment { by } = read(payload)?;
        match self.value.checked_add(by).filter(|value| (-LIMIT..=LIMIT).contains(value)) {
            Some(value) => {
                Ok(Decision::Append { events: vec![json!({ "by": by })], answer: json!({ "value": value }) })
            }
            None => Err(Decision::Reject(format!("{} + {by} is outside -{LIMIT}..={LIMIT}", self.value))),
        }
    }
}

impl AgentState for State {
    fn decide(&self, method: &str, payload: &Value) -> Decision {
        match method {
            "increment" => settle(self.increment(payload)),
            "get" => settle(read(payload).map(|Nothing {}| Decision::Answer(json!({ "value": self.value })))),
            _ => Decision::UnknownMethod,
        }
    }

    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Incremented {
            by: i64,
        }
        let Incremented { by } = stored(event)?;
        self.value = self.value.checked_add(by).ok_or_else(|| Unreadable(format!("{} + {by}", self.value)))?;
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.value.to_string().into_bytes()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        self.value = serde_json::from_slice(snapshot).map_err(|error| Unreadable(error.to_string()))?;
        Ok(())
    }
}

impl AgentType for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn start(&self, _key: &str) -> Box<dyn AgentState> {
        Box::new(State::default())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;

    #[test]
    fn increments_add_up_and_get_tells_the_sum() {
        let mut counter = Bench::new(Counter, "visits");
        assert_eq!(counter.ask("increment", Value::Null), json!({"value": 1}));
        assert_eq!(counter.ask("increment", json!({"by": 41})), json!({"value": 42}));
        assert_eq!(counter.ask("increment", json!({"by": -2})), json!({"value": 40}));
        assert_eq!(counter.ask("get", Value::Null), json!({"value": 40}));
    }

    #[test]
    fn a_counter_never_wraps_or_loses_exactness() {
        let mut counter = Bench::new(Counter, "visits");
        counter.ask("increment", json!({ "by": LIMIT }));
        assert!(counter.rejected("increment", json!({"by": 1})).contains("outside"));
        assert!(counter.rejected("increment", json!({"by": i64::MAX})).contains("outside"));
        assert!(counter.rejected("increment", json!({"by": 0.5})).starts_with("payload:"));
        assert!(counter.rejected("increment", json!({"by": u64::MAX})).starts_with("payload:"));
        assert_eq!(counter.ask("get", Value::Null), json!({ "value": LIMIT }));
    }
}
