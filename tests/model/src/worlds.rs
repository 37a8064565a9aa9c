//! Every world by its name.

use crate::bug::Bug;
use crate::election::{self, Elections};
use crate::protocol::Protocol;
use crate::run::{self, Bound, Report};
use crate::scenario;

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    scenario::ALL
        .iter()
        .chain(scenario::NARROW)
        .map(|scenario| scenario.name)
        .chain(election::ALL.iter().map(|scenario| scenario.name))
}

/// Explores the world called `name`, if there is one.
#[must_use]
pub fn explore(name: &str, bug: Option<Bug>, bound: Bound) -> Option<Report> {
    if let Some(scenario) = election::ALL.iter().find(|scenario| scenario.name == name) {
        return Some(run::explore(&Elections::new(*scenario, bug), bound));
    }
    let scenario = scenario::named(name)?;
    Some(run::explore(&Protocol::new(*scenario, bug), bound))
}
