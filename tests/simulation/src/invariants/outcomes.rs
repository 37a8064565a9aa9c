//! Outcomes are learnt, never guessed: nobody but managers writes here, so a leader that knows how its writes ended meets no other
//! revision than the one that it believes in.

use super::{Invariant, View};
use crate::world::Event;
use std::time::Duration;

#[derive(Default)]
pub struct Outcomes {
    /// The store was put back: its leader could not know.
    excused: bool,
}

impl Invariant for Outcomes {
    fn id(&self) -> &'static str {
        "outcomes"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::Restored { .. } => self.excused = true,
            Event::TookOver { .. } => self.excused = false,
            Event::Misjudged { host, why } if !self.excused => {
                return Err(format!("{host} misjudged how a write of its own ended: {why}"));
            }
            _ => {}
        }
        Ok(())
    }
}
