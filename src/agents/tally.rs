//! `tally`: how often each word (or other key) was seen.

use super::{AgentState, AgentType, Decision, Nothing, Unreadable, read, settle, stored};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The `tally` type. Methods: `add`, `add_many`, `get`, `top`, `total`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally;

/// The longest word, in bytes.
const MAX_WORD: usize = 256;
/// All words of one tally together, in bytes (32 for each word included): its snapshot stays well below 1 MiB.
const MAX_BYTES: usize = 512 * 1024;
const BYTES_PER_WORD: usize = 32;
/// The most words in one `add_many` or one answer of `top`.
const MAX_MANY: usize = 1000;
/// The most that a count can be: JSON numbers are exact up to here everywhere.
const MAX_COUNT: u64 = 9_007_199_254_740_991;

#[derive(Debug)]
struct State {
    /// The word that an `add` without one means: the agent's own key.
    own: String,
    counts: BTreeMap<String, u64>,
    total: u64,
    bytes: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    #[serde(alias = "key")]
    word: Option<String>,
    #[serde(default = "one")]
    count: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddMany {
    #[serde(default, alias = "keys")]
    words: Vec<String>,
    #[serde(default)]
    counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    #[serde(alias = "key")]
    word: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Top {
    #[serde(default = "ten")]
    n: usize,
}

const fn one() -> u64 {
    1
}

const fn ten() -> usize {
    10
}

impl State {
    fn count(&self, word: &str) -> u64 {
        self.counts.get(word).copied().unwrap_or(0)
    }

    fn add(&self, payload: &Value) -> Result<Decision, Decision> {
        let Add { word, count } = read(payload)?;
        let word = word.unwrap_or_else(|| self.own.clone());
        let added = BTreeMap::from([(word.clone(), count)]);
        self.check(&added)?;
        let answer = json!({ "word": word, "count": self.count(&word) + count });
        Ok(Decision::Append { events: vec![json!({ "add": added })], answer })
    }

    fn add_many(&self, payload: &Value) -> Result<Decision, Decision> {
        let AddMany { words, counts: mut added } = read(payload)?;
        if words.len() > MAX_MANY || added.len() > MAX_MANY {
            return Err(Decision::Reject(format!("at most {MAX_MANY} words at a time")));
        }
        if words.is_empty() && added.is_empty() {
            return Err(Decision::Reject("payload: `words` or `counts` is needed".to_owned()));
        }
        for word in words {
            let count = added.entry(word).or_insert(0);
            *count = count.saturating_add(1);
        }
        self.check(&added)?;
        let sum: u64 = added.values().sum();
        let answer = json!({ "added": sum, "total": self.total + sum });
        Ok(Decision::Append { events: vec![json!({ "add": added })], answer })
    }

    /// Whether `added` keeps every bound.
    fn check(&self, added: &BTreeMap<String, u64>) -> Result<(), Decision> {
        let reject = |why: String| Err(Decision::Reject(why));
        let (mut total, mut bytes) = (self.total, self.bytes);
        for (word, count) in added {
            if word.is_empty() || word.len() > MAX_WORD {
                return reject(format!("a word has 1 to {MAX_WORD} bytes, not {}", word.len()));
            }
            if *count == 0 || *count > MAX_COUNT {
                return reject(format!("a count is 1..={MAX_COUNT}, not {count}"));
            }
            total = total.saturating_add(*count);
            bytes += if self.counts.contains_key(word) { 0 } else { word.len() + BYTES_PER_WORD };
        }
        if total > MAX_COUNT {
            return reject(format!("the total would exceed {MAX_COUNT}"));
        }
        if bytes > MAX_BYTES {
            return reject(format!("its words would take {bytes} bytes, {MAX_BYTES} are allowed: use more agents"));
        }
        Ok(())
    }

    fn take(&mut self, added: BTreeMap<String, u64>) -> Result<(), Unreadable> {
        for (word, count) in added {
            let sum = self.total.checked_add(count).ok_or_else(|| Unreadable(format!("{} + {count}", self.total)))?;
            self.total = sum;
            let bytes = word.len() + BYTES_PER_WORD;
            let counted = self.counts.entry(word).or_insert_with(|| {
                self.bytes += bytes;
                0
            });
            *counted += count;
        }
        Ok(())
    }

    fn get(&self, payload: &Value) -> Result<Decision, Decision> {
        let Get { word } = read(payload)?;
        let word = word.unwrap_or_else(|| self.own.clone());
        let count = self.count(&word);
        Ok(Decision::Answer(json!({ "word": word, "count": count })))
    }

    fn top(&self, payload: &Value) -> Result<Decision, Decision> {
        let Top { n } = read(payload)?;
        if n == 0 || n > MAX_MANY {
            return Err(Decision::Reject(format!("n is 1..={MAX_MANY}, not {n}")));
        }
        let mut words: Vec<(&String, u64)> = self.counts.iter().map(|(word, count)| (word, *count)).collect();
        // Equal counts in the order of the words, so that every replica and repetition answers the same.
        words.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
        let top: Vec<Value> =
            words.iter().take(n).map(|(word, count)| json!({ "word": word, "count": count })).collect();
        Ok(Decision::Answer(json!({ "top": top })))
    }
}

impl AgentState for State {
    fn decide(&self, method: &str, payload: &Value) -> Decision {
        match method {
            "add" => settle(self.add(payload)),
            "add_many" => settle(self.add_many(payload)),
            "get" => settle(self.get(payload)),
            "top" => settle(self.top(payload)),
            "total" => settle(
                read(payload)
                    .map(|Nothing {}| Decision::Answer(json!({ "total": self.total, "words": self.counts.len() }))),
            ),
            _ => Decision::UnknownMethod,
        }
    }

    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Added {
            add: BTreeMap<String, u64>,
        }
        let Added { add } = stored(event)?;
        self.take(add)
    }

    fn snapshot(&self) -> Vec<u8> {
        json!(self.counts).to_string().into_bytes()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        let counts = serde_json::from_slice(snapshot).map_err(|error| Unreadable(error.to_string()))?;
        *self = Self { own: std::mem::take(&mut self.own), counts: BTreeMap::new(), total: 0, bytes: 0 };
        self.take(counts)
    }
}

impl AgentType for Tally {
    fn name(&self) -> &str {
        "tally"
    }

    fn start(&self, key: &str) -> Box<dyn AgentState> {
        Box::new(State { own: key.to_owned(), counts: BTreeMap::new(), total: 0, bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;

    #[test]
    fn words_are_counted_ranked_and_totalled() {
        let mut tally = Bench::new(Tally, "gpl");
        assert_eq!(tally.ask("add", json!({"word": "the"})), json!({"word": "the", "count": 1}));
        assert_eq!(tally.ask("add", json!({"key": "of", "count": 4})), json!({"word": "of", "count": 4}));
        assert_eq!(
            tally.ask("add_many", json!({"words": ["a", "the", "a"], "counts": {"a": 1, "no": 1}})),
            json!({"added": 5, "total": 10})
        );
        assert_eq!(tally.ask("get", json!({"word": "a"})), json!({"word": "a", "count": 3}));
        assert_eq!(tally.ask("get", json!({"word": "absent"})), json!({"word": "absent", "count": 0}));
        let top = json!({"top": [{"word": "of", "count": 4}, {"word": "a", "count": 3}]});
        assert_eq!(tally.ask("top", json!({"n": 2})), top);
        assert_eq!(tally.ask("total", Value::Null), json!({"total": 10, "words": 4}));
    }

    #[test]
    fn an_agent_keyed_by_a_word_counts_that_word() {
        let mut tally = Bench::new(Tally, "licence");
        tally.ask("add", Value::Null);
        assert_eq!(tally.ask("add", json!({"count": 2})), json!({"word": "licence", "count": 3}));
        assert_eq!(tally.ask("get", Value::Null), json!({"word": "licence", "count": 3}));
    }

    #[test]
    fn equal_counts_rank_by_word() {
        let mut tally = Bench::new(Tally, "x");
        tally.ask("add_many", json!({"words": ["c", "a", "b"]}));
        let words: Vec<Value> = ["a", "b", "c"].iter().map(|word| json!({"word": word, "count": 1})).collect();
        assert_eq!(tally.ask("top", Value::Null), json!({ "top": words }));
    }

    #[test]
    fn a_tally_refuses_what_would_outgrow_it() {
        let mut tally = Bench::new(Tally, "x");
        assert!(tally.rejected("add", json!({"word": ""})).contains("1 to 256"));
        assert!(tally.rejected("add", json!({"word": "w".repeat(257)})).contains("1 to 256"));
        assert!(tally.rejected("add", json!({"word": "w", "count": 0})).contains("count is"));
        assert!(tally.rejected("add", json!({"word": "w", "count": u64::MAX})).contains("count is"));
        assert!(tally.rejected("add_many", json!({"counts": {"a": MAX_COUNT, "b": 1}})).contains("total"));
        assert!(tally.rejected("add_many", Value::Null).contains("needed"));
        assert!(tally.rejected("add_many", json!({"words": vec!["w"; 1001]})).contains("1000"));
        assert!(tally.rejected("top", json!({"n": 1001})).contains("1..=1000"));
        for batch in 0.. {
            let words: Vec<String> = (0..1000).map(|n| format!("{batch}-{n}-{}", "w".repeat(240))).collect();
            if batch == 1 {
                assert!(tally.rejected("add_many", json!({ "words": words })).contains("use more agents"));
                break;
            }
            tally.ask("add_many", json!({ "words": words }));
        }
        assert_eq!(tally.ask("total", Value::Null), json!({"total": 1000, "words": 1000}));
    }
}
