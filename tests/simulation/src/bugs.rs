//! Trust in the simulation: bugs that are planted, and what finds each of them.
//!
//! Those of the actors sit behind their feature `planted`; those of what surrounds the actors sit in the simulated stores.

use crate::many::{self, Report};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A bug of what surrounds the actors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Around {
    /// An oplog's record is given to another writer at an equal epoch.
    EqualEpochClaims,
    /// A leadership is confirmed by nobody.
    ConfirmedByNobody,
    /// What was in flight when an answer got lost is stored after its outcome was looked up.
    LookUpDoesNotSettle,
}

const AROUND: [(&str, Around); 3] = [
    ("equal epoch of another writer claims", Around::EqualEpochClaims),
    ("leadership confirmed by nobody", Around::ConfirmedByNobody),
    ("look-up does not settle a write", Around::LookUpDoesNotSettle),
];

/// Bugs that change nothing here, because something else guards against what they do; the model checker finds them (`make model-bugs`).
const LEFT_TO_THE_MODEL: [&str; 1] = ["keepalive anchored at receipt"];

static PLANTED: OnceLock<Around> = OnceLock::new();

/// Whether `bug` is planted in this process.
pub fn is(bug: Around) -> bool {
    PLANTED.get() == Some(&bug)
}

fn names() -> Vec<&'static str> {
    let around = AROUND.iter().map(|(name, _)| *name);
    #[cfg(feature = "planted")]
    let around = leasehold_actors::planted::Bug::ALL.iter().map(|(name, _)| *name).chain(around);
    around.collect()
}

/// Plants the bug called `name` in this process.
pub fn plant(name: &str) {
    #[cfg(feature = "planted")]
    if let Some((_, bug)) = leasehold_actors::planted::Bug::ALL.iter().find(|(known, _)| *known == name) {
        return leasehold_actors::planted::plant(*bug);
    }
    let (_, bug) = AROUND.iter().find(|(known, _)| *known == name).unwrap_or_else(|| {
        panic!("no bug is called {name:?}; there are {:?}. Those of the actors need the feature `planted`", names())
    });
    assert!(PLANTED.set(*bug).is_ok(), "one bug at a time");
}

/// What found a bug.
struct Found {
    report: Report,
    tried: u64,
    took: Duration,
}

fn hunt_one(name: &str, seeds: u64, jobs: usize) -> Option<Found> {
    let (began, mut tried, mut found) = (Instant::now(), 0, None);
    many::run_all(0..seeds, jobs, Some(name), |report| {
        let Some(report) = report else { return found.is_none() };
        tried += 1;
        if report.violation.is_some() && found.is_none() {
            found = Some((report, began.elapsed()));
        }
        found.is_none()
    });
    found.map(|(report, took)| Found { report, tried, took })
}

/// Plants each bug in turn and prints a table; says whether every one was found.
pub fn hunt(seeds: u64, jobs: usize, only: &str) -> bool {
    let names: Vec<_> = names().into_iter().filter(|name| name.contains(only)).collect();
    let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
    println!("{:<width$}  {:<12} {:>5} {:>6} {:>7}", "bug", "found by", "seed", "tried", "seconds");
    let mut survivors = 0;
    for name in names {
        match hunt_one(name, seeds, jobs) {
            Some(Found { report, tried, took }) => {
                let (id, what) = report.violation.unwrap_or_default();
                let what: String = what.chars().take(100).collect();
                let seconds = took.as_secs_f64();
                println!("{name:<width$}  {id:<12} {:>5} {tried:>6} {seconds:>7.1}  {what}", report.seed);
            }
            None if LEFT_TO_THE_MODEL.contains(&name) => {
                println!("{name:<width$}  not found in {seeds} seeds; `make model-bugs` finds it");
            }
            None => {
                survivors += 1;
                println!("{name:<width$}  SURVIVED {seeds} seeds");
            }
        }
    }
    survivors == 0
}
