//! The idempotency keys that one agent remembers.

use super::agent_event::AgentLimits;
use std::collections::{HashMap, VecDeque};

/// Keys answered lately, the oldest forgotten first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    pub(super) answers: HashMap<String, Vec<u8>>,
    pub(super) order: VecDeque<String>,
    pub(super) bytes: usize,
    /// Whether no key of the oplog is missing here: then the store need not be asked.
    pub(super) complete: bool,
}

impl Recent {
    pub(super) fn find(&self, key: &str) -> Option<&[u8]> {
        self.answers.get(key).map(Vec::as_slice)
    }

    pub(super) fn remember(&mut self, key: String, answer: Vec<u8>, limits: AgentLimits) {
        self.bytes += key.len() + answer.len();
        if let Some(replaced) = self.answers.insert(key.clone(), answer) {
            self.bytes -= key.len() + replaced.len();
        } else {
            self.order.push_back(key);
        }
        while self.order.len() > limits.recent_keys || self.bytes > limits.recent_bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            let answer = self.answers.remove(&oldest).map_or(0, |answer| answer.len());
            self.bytes -= oldest.len() + answer;
            self.complete = false;
        }
    }
}
