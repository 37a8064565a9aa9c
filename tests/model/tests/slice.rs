//! A bounded slice of what the checker explores; `make model` explores more of it, at a higher speed.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test reads better so")]

use leasehold_model_check::bug::Bug;
use leasehold_model_check::run::{Bound, Report};
use leasehold_model_check::truth::Rule;
use leasehold_model_check::worlds;

fn explore(world: &str, bug: Option<Bug>, steps: usize) -> Report {
    let bound = Bound { steps: Some(steps), threads: 1, progress: None };
    worlds::explore(world, bug, bound).unwrap()
}

fn hold_at_first<'a>(worlds: impl Iterator<Item = &'a str>) {
    for world in worlds {
        let report = explore(world, None, 1_000);
        assert!(report.violation.is_none(), "{world}: {:#?}", report.violation);
        assert!(report.complete || report.steps >= 1_000, "{world}: {} steps", report.steps);
    }
}

/// S1 to S7 and L1, as far as a few thousand steps lead: half of the worlds.
#[test]
fn no_invariant_breaks_within_the_first_steps_of_any_world() {
    hold_at_first(worlds::names().step_by(2));
}

/// The other half, so that both are done in half of the time.
#[test]
fn no_invariant_breaks_within_the_first_steps_of_any_other_world() {
    hold_at_first(worlds::names().skip(1).step_by(2));
}

/// S4, S5, S6, L1, R20 and R7 are looked for: a bug that breaks each is found, and taken for nothing else. `make model-bugs` plants the rest.
#[test]
fn planted_bugs_are_found_by_the_invariant_that_they_break() {
    for bug in [
        Bug::FenceOpenPastDeadline,
        Bug::MovesInOneCommit,
        Bug::AcknowledgesDrainEarly,
        Bug::RecoveryNotLatched,
        Bug::TellsBeforeStored,
        Bug::DoubtIsFailure,
        Bug::EqualEpochClaims,
        Bug::KeepaliveAnchoredAtReceipt,
    ] {
        let report = explore(bug.scenario(), Some(bug), 100_000);
        let found = report.violation.map(|violation| violation.rule);
        assert_eq!(found, Some(bug.breaks()), "{bug:?}");
    }
}

/// A bug names an invariant that is looked for, in a world that there is.
#[test]
fn every_bug_has_a_world_that_is_to_find_it() {
    for bug in Bug::ALL {
        assert!(worlds::names().any(|world| world == bug.scenario()), "{bug:?}: no {:?}", bug.scenario());
        assert_ne!(bug.breaks(), Rule::Panic, "{bug:?}: a panic says too little");
    }
}
