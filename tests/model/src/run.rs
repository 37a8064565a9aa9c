//! Explores, and says what was found.

use crate::bug::Bug;
use crate::mark::{Mark, Marks};
use crate::protocol::Protocol;
use crate::scenario::Scenario;
use stateright::{Checker, HasDiscoveries, Model};
use std::time::{Duration, Instant};

/// How far to go.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// Stop after about so many steps; `None` explores everything.
    pub steps: Option<usize>,
    /// Where it works.
    pub threads: usize,
    /// Print where it is, every so often.
    pub progress: Option<Duration>,
}

/// A broken invariant, and the shortest way there that was found.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The invariant, in words.
    pub rule: &'static str,
    /// The ids and numbers.
    pub evidence: String,
    /// Each step, in words.
    pub trace: Vec<String>,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Report {
    /// Distinct states.
    pub states: usize,
    /// Steps taken.
    pub steps: usize,
    /// The longest way from the beginning.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Whether there is nothing more within the scenario's bounds.
    pub complete: bool,
    /// The first broken invariant.
    pub violation: Option<Violation>,
    /// What was reached.
    pub reached: Marks,
    /// What had to be reached and was not.
    pub unreached: Vec<Mark>,
}

/// Explores `scenario`, the shortest ways first, until an invariant breaks.
#[must_use]
pub fn explore(scenario: &Scenario, bug: Option<Bug>, bound: Bound) -> Report {
    let protocol = Protocol::new(*scenario, bug);
    let began = Instant::now();
    let builder = protocol.clone().checker().threads(bound.threads).finish_when(HasDiscoveries::AnyFailures);
    let builder = match bound.steps {
        Some(steps) => builder.target_state_count(steps),
        None => builder,
    };
    let checker = builder.spawn_bfs();
    let mut told = Instant::now();
    while !checker.is_done() {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(every) = bound.progress
            && told.elapsed() >= every
        {
            told = Instant::now();
            let (states, depth) = (checker.unique_state_count(), checker.max_depth());
            println!("{}: {states} states, depth {depth}, {} s", scenario.name, began.elapsed().as_secs());
        }
    }
    let checker = checker.join();
    let violation = checker.discoveries().into_iter().map(|(rule, path)| {
        let mut trace = Vec::new();
        let steps = path.into_vec();
        for (state, action) in &steps {
            trace.extend(action.as_ref().map(|action| state.describe(action)));
        }
        let breach = steps.last().and_then(|(state, _)| state.breach.as_ref());
        let evidence = breach.map(|breach| breach.evidence.clone()).unwrap_or_default();
        Violation { rule, evidence, trace }
    });
    let steps = checker.state_count();
    Report {
        states: checker.unique_state_count(),
        steps,
        depth: checker.max_depth(),
        took: began.elapsed(),
        complete: bound.steps.is_none_or(|bound| steps < bound),
        violation: violation.min_by_key(|violation| violation.trace.len()),
        reached: protocol.reached(),
        unreached: protocol.unreached().collect(),
    }
}
