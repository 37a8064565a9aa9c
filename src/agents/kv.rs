//! `kv`: a small map from keys to JSON values.

use super::{AgentState, AgentType, Decision, Unreadable, read, settle, stored};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The `kv` type. Methods: `put`, `get`, `delete`, `list`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kv;

/// The longest key, in bytes.
const MAX_KEY: usize = 256;
/// The longest value, in bytes of JSON.
const MAX_VALUE: usize = 64 * 1024;
/// All keys and values of one agent together, in bytes (32 for each pair included): its snapshot stays below 1 MiB.
const MAX_BYTES: usize = 384 * 1024;
const BYTES_PER_PAIR: usize = 32;
/// The most keys in one answer of `list`.
const MAX_LISTED: usize = 1000;

/// Values are kept as the JSON text that was first written, so that a replay can never round a number differently.
#[derive(Debug, Default)]
struct State {
    pairs: BTreeMap<String, String>,
    bytes: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Put {
    key: String,
    value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    #[serde(default = "hundred")]
    limit: usize,
}

const fn hundred() -> usize {
    100
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Changed {
    Put(String, String),
    Delete(String),
}

fn size(key: &str, value: &str) -> usize {
    key.len() + value.len() + BYTES_PER_PAIR
}

impl State {
    fn bytes_of(&self, key: &str) -> usize {
        self.pairs.get(key).map_or(0, |value| size(key, value))
    }

    fn put(&self, payload: &Value) -> Result<Decision, Decision> {
        let Put { key, value } = read(payload)?;
        let value = value.to_string();
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(Decision::Reject(format!("a key has 1 to {MAX_KEY} bytes, not {}", key.len())));
        }
        if value.len() > MAX_VALUE {
            return Err(Decision::Reject(format!("a value has at most {MAX_VALUE} bytes, not {}", value.len())));
        }
        let bytes = self.bytes - self.bytes_of(&key) + size(&key, &value);
        if bytes > MAX_BYTES {
            let why = format!("its pairs would take {bytes} bytes, {MAX_BYTES} are allowed: use more agents");
            return Err(Decision::Reject(why));
        }
        let answer = json!({ "replaced": self.pairs.contains_key(&key) });
        Ok(Decision::Append { events: vec![json!({ "put": [key, value] })], answer })
    }

    fn get(&self, payload: &Value) -> Result<Decision, Decision> {
        let Key { key } = read(payload)?;
        let value = self.pairs.get(&key).map(|text| parsed(text));
        let found = value.is_some();
        Ok(Decision::Answer(json!({ "key": key, "found": found, "value": value })))
    }

    fn delete(&self, payload: &Value) -> Result<Decision, Decision> {
        let Key { key } = read(payload)?;
        let found = self.pairs.contains_key(&key);
        let events = if found { vec![json!({ "delete": key })] } else { Vec::new() };
        Ok(Decision::Append { events, answer: json!({ "deleted": found }) })
    }

    fn list(&self, payload: &Value) -> Result<Decision, Decision> {
        let List { prefix, after, limit } = read(payload)?;
        if limit == 0 || limit > MAX_LISTED {
            return Err(Decision::Reject(format!("limit is 1..={MAX_LISTED}, not {limit}")));
        }
        let past = |key: &str| after.as_deref().is_none_or(|after| key > after);
        let mut matching = self
            .pairs
            .range::<str, _>((std::ops::Bound::Included(prefix.as_str()), std::ops::Bound::Unbounded))
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(&prefix))
            .filter(|key| past(key));
        let keys: Vec<&String> = matching.by_ref().take(limit).collect();
        let more = matching.next().is_some();
        Ok(Decision::Answer(json!({ "keys": keys, "more": more })))
    }

    fn insert(&mut self, key: String, value: String) -> Result<(), Unreadable> {
        serde_json::from_str::<Value>(&value).map_err(|error| Unreadable(format!("value of {key}: {error}")))?;
        self.bytes = self.bytes - self.bytes_of(&key) + size(&key, &value);
        self.pairs.insert(key, value);
        Ok(())
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("only JSON is inserted")
}

impl AgentState for State {
    fn decide(&self, method: &str, payload: &Value) -> Decision {
        match method {
            "put" => settle(self.put(payload)),
            "get" => settle(self.get(payload)),
            "delete" => settle(self.delete(payload)),
            "list" => settle(self.list(payload)),
            _ => Decision::UnknownMethod,
        }
    }

    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        match stored(event)? {
            Changed::Put(key, value) => self.insert(key, value),
            Changed::Delete(key) => {
                self.bytes -= self.bytes_of(&key);
                self.pairs.remove(&key);
                Ok(())
            }
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        json!(self.pairs).to_string().into_bytes()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        let pairs: BTreeMap<String, String> =
            serde_json::from_slice(snapshot).map_err(|error| Unreadable(error.to_string()))?;
        *self = Self::default();
        pairs.into_iter().try_for_each(|(key, value)| self.insert(key, value))
    }
}

impl AgentType for Kv {
    fn name(&self) -> &str {
        "kv"
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
    fn what_is_put_is_got_until_it_is_deleted() {
        let mut kv = Bench::new(Kv, "settings");
        let value = json!({"size": 1.25, "tags": ["a", null], "big": u64::MAX});
        assert_eq!(kv.ask("put", json!({"key": "a", "value": value})), json!({"replaced": false}));
        assert_eq!(kv.ask("get", json!({"key": "a"})), json!({"key": "a", "found": true, "value": value}));
        assert_eq!(kv.ask("put", json!({"key": "a", "value": null})), json!({"replaced": true}));
        assert_eq!(kv.ask("get", json!({"key": "a"})), json!({"key": "a", "found": true, "value": null}));
        assert_eq!(kv.ask("delete", json!({"key": "a"})), json!({"deleted": true}));
        assert_eq!(kv.ask("delete", json!({"key": "a"})), json!({"deleted": false}));
        assert_eq!(kv.ask("get", json!({"key": "a"})), json!({"key": "a", "found": false, "value": null}));
    }

    #[test]
    fn keys_are_listed_by_prefix_in_pages() {
        let mut kv = Bench::new(Kv, "x");
        for key in ["b/2", "a/1", "b/1", "b/3", "c"] {
            kv.ask("put", json!({"key": key, "value": 0}));
        }
        assert_eq!(kv.ask("list", json!({"prefix": "b/", "limit": 2})), json!({"keys": ["b/1", "b/2"], "more": true}));
        let rest = kv.ask("list", json!({"prefix": "b/", "limit": 2, "after": "b/2"}));
        assert_eq!(rest, json!({"keys": ["b/3"], "more": false}));
        assert_eq!(kv.ask("list", Value::Null)["keys"].as_array().unwrap().len(), 5);
    }

    #[test]
    fn a_map_refuses_what_would_outgrow_it_and_counts_what_it_frees() {
        let mut kv = Bench::new(Kv, "x");
        assert!(kv.rejected("put", json!({"key": "", "value": 0})).contains("1 to 256"));
        assert!(kv.rejected("put", json!({"key": "k"})).contains("value"));
        assert!(kv.rejected("put", json!({"key": "k", "value": "v".repeat(MAX_VALUE)})).contains("65536"));
        assert!(kv.rejected("list", json!({"limit": 0})).contains("1..=1000"));
        let big = "v".repeat(MAX_VALUE - 2);
        for key in ["1", "2", "3", "4", "5"] {
            kv.ask("put", json!({"key": key, "value": big}));
        }
        assert!(kv.rejected("put", json!({"key": "6", "value": big})).contains("use more agents"));
        kv.ask("put", json!({"key": "1", "value": big}));
        kv.ask("delete", json!({"key": "1"}));
        kv.ask("put", json!({"key": "6", "value": big}));
    }
}
