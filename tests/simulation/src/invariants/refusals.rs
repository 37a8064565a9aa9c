//! A refusal means that nothing was done: unless an earlier attempt is in doubt, no entry of the call is in the oplog.

use super::{Invariant, View};
use crate::world::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Default)]
pub struct Refusals {
    /// Attempts of each call that did not end as refused.
    open: BTreeMap<String, u32>,
    written: BTreeSet<String>,
}

impl Invariant for Refusals {
    fn id(&self) -> &'static str {
        "refusals"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::Trying { key } => *self.open.entry(key.clone()).or_default() += 1,
            Event::Appended { keys, .. } => self.written.extend(keys.iter().cloned()),
            Event::Refused { key, why } => {
                let open = self.open.entry(key.clone()).or_default();
                *open = open.saturating_sub(1);
                if *open == 0 && self.written.contains(key) {
                    return Err(format!("call {key} was refused ({why}), and was done"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
