//! S7: an acknowledged registration survives: while its lease runs, it is stored.

use super::{Invariant, View};
use crate::world::Event;
use leasehold_model::ExecutorId;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Default)]
pub struct Registrations {
    acknowledged: BTreeSet<ExecutorId>,
    leaving: BTreeSet<ExecutorId>,
}

impl Invariant for Registrations {
    fn id(&self) -> &'static str {
        "S7"
    }

    fn hear(&mut self, _: Duration, event: &Event, view: &View) -> Result<(), String> {
        match event {
            Event::Registered(id) => {
                self.acknowledged.insert(*id);
                let stored = view.state.as_ref().is_some_and(|state| state.executor(*id).is_some());
                let alive = view.processes.iter().any(|process| process.has_lease() && process.life.read() == *id);
                if alive && !stored && !view.two_worlds {
                    return Err(format!("executor {id} is told that it is registered, and is not stored"));
                }
            }
            Event::Leaving(id) => drop(self.leaving.insert(*id)),
            // What was acknowledged since is gone with the store.
            Event::NewWorld => {
                let state = view.state.as_ref().expect("a restored store has a state");
                self.acknowledged.retain(|id| state.executor(*id).is_some());
            }
            _ => {}
        }
        Ok(())
    }

    fn look(&mut self, view: &View) -> Result<(), String> {
        let Some(state) = view.state.as_ref().filter(|_| !view.two_worlds) else { return Ok(()) };
        for process in view.processes.iter().filter(|process| process.has_lease()) {
            let id = process.life.read();
            let binding = self.acknowledged.contains(&id) && !self.leaving.contains(&id);
            if binding && state.executor(id).is_none() {
                return Err(format!("the registration of {} as {id} is gone while its lease runs", process.host));
            }
        }
        Ok(())
    }
}
