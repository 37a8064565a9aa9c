//! The model as the checker sees it.

use crate::action::Action;
use crate::bug::Bug;
use crate::mark::{Mark, Marks};
use crate::run::World;
use crate::scenario::Scenario;
use crate::state::State;
use crate::truth::{Breach, Rule};
use stateright::{Model, Property};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One world, with at most one bug.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The world.
    pub scenario: Scenario,
    /// What is planted.
    pub bug: Option<Bug>,
    /// Everything that any step did.
    reached: Arc<AtomicU64>,
}

impl Protocol {
    /// A world in which nothing was tried yet.
    #[must_use]
    pub fn new(scenario: Scenario, bug: Option<Bug>) -> Self {
        Self { scenario, bug, reached: Arc::default() }
    }
}

impl World for Protocol {
    fn name(&self) -> &'static str {
        self.scenario.name
    }

    fn text(&self) -> &'static str {
        self.scenario.text
    }

    fn reach(&self) -> &'static [Mark] {
        self.scenario.reach
    }

    fn reached(&self) -> Marks {
        Marks(self.reached.load(Ordering::Relaxed))
    }

    fn breach(state: &State) -> Option<&Breach> {
        state.breach.as_ref()
    }

    fn describe(state: &State, action: &Action) -> String {
        state.describe(action)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(self.scenario.pace, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let stepped = catch_unwind(AssertUnwindSafe(|| last.after(self, action)));
        let next = stepped.unwrap_or_else(|panic| last.panicked(panic.as_ref()));
        if next.marks.0 & !self.reached.load(Ordering::Relaxed) != 0 {
            self.reached.fetch_or(next.marks.0, Ordering::Relaxed);
        }
        (next != *last).then_some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        format!("{action:?}")
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! always {
            ($($rule:ident),*) => { vec![$(Property::always(Rule::$rule.text(), |_, state: &State| {
                state.breach.as_ref().is_none_or(|breach| breach.rule != Rule::$rule)
            })),*] };
        }
        always![S1, S2, S3, S4, S5, S6, S7, HandOff, Outcome, Panic, L1]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.net.len() <= self.scenario.messages
    }
}
