//! Explores, and says what was found.

use crate::mark::{Mark, Marks};
use crate::truth::{Breach, Rule};
use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// What can be explored.
pub trait World: Model + Clone + Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &'static str;
    /// What it is about.
    fn text(&self) -> &'static str;
    /// What must be reached.
    fn reach(&self) -> &'static [Mark];
    /// What any step did.
    fn reached(&self) -> Marks;
    /// The broken invariant.
    fn breach(state: &Self::State) -> Option<&Breach>;
    /// `action` in words.
    fn describe(state: &Self::State, action: &Self::Action) -> String;
}

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
    /// The invariant.
    pub rule: Rule,
    /// The ids and numbers.
    pub evidence: String,
    /// Each step, in words.
    pub trace: Vec<String>,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Report {
    /// What the world is about.
    pub text: &'static str,
    /// How much had to be reached.
    pub wanted: usize,
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

/// Explores `world`, the shortest ways first, until an invariant breaks.
#[must_use]
pub fn explore<W: World>(world: &W, bound: Bound) -> Report
where
    W::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    W::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let began = Instant::now();
    let builder = world.clone().checker().threads(bound.threads).finish_when(HasDiscoveries::AnyFailures);
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
            println!("{}: {states} states, depth {depth}, {} s", world.name(), began.elapsed().as_secs());
        }
    }
    let checker = checker.join();
    let violation = checker.discoveries().into_values().filter_map(|path| {
        let mut trace = Vec::new();
        let steps = path.into_vec();
        for (state, action) in &steps {
            trace.extend(action.as_ref().map(|action| W::describe(state, action)));
        }
        let breach = steps.last().and_then(|(state, _)| W::breach(state));
        breach.cloned().map(|Breach { rule, evidence }| Violation { rule, evidence, trace })
    });
    let steps = checker.state_count();
    Report {
        text: world.text(),
        wanted: world.reach().len(),
        states: checker.unique_state_count(),
        steps,
        depth: checker.max_depth(),
        took: began.elapsed(),
        complete: bound.steps.is_none_or(|bound| steps < bound),
        violation: violation.min_by_key(|violation| violation.trace.len()),
        reached: world.reached(),
        unreached: world.reach().iter().copied().filter(|mark| !world.reached().has(*mark)).collect(),
    }
}
