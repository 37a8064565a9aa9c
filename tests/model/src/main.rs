//! `model bound | deep | bugs [NAME] | trace SCENARIO [BUG]`: see `make help` and docs/how-we-know.md.

mod bugs;

use comfy_table::Table;
use leasehold_model_check::bug::Bug;
use leasehold_model_check::run::{Bound, Report};
use leasehold_model_check::worlds;
use std::process::ExitCode;
use std::time::Duration;

/// What `bound` must see, in all.
const BOUND_STATES: usize = 1_000_000;
/// What `deep` must see, in all.
const DEEP_STATES: usize = 10_000_000;
/// Steps in each scenario of `bound` and `deep`.
const BOUND_STEPS: usize = 300_000;
const DEEP_STEPS: usize = 2_200_000;

fn bound(steps: usize) -> Bound {
    Bound { steps: Some(steps), threads: 2, progress: Some(Duration::from_secs(10)) }
}

fn main() -> ExitCode {
    // A panic of shipped code is a violation, and told as one.
    std::panic::set_hook(Box::new(|_| {}));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let well = match words.as_slice() {
        ["bound"] => every(BOUND_STEPS, BOUND_STATES),
        ["deep"] => every(DEEP_STEPS, DEEP_STATES),
        ["bugs"] => bugs::hunt(""),
        ["bugs", name] => bugs::hunt(name),
        ["bug", name] => bugs::one(name),
        ["trace", name] => trace(name, None),
        ["trace", name, bug] => trace(name, Some(bug)),
        _ => {
            eprintln!("model bound | deep | bugs [NAME] | trace SCENARIO [BUG]");
            false
        }
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(report: &Report) {
    if let Some(violation) = &report.violation {
        println!("VIOLATED: {}: {}", violation.rule.text(), violation.evidence);
        for (at, step) in violation.trace.iter().enumerate() {
            println!("  {:>2} {step}", at + 1);
        }
    }
}

fn every(steps: usize, least: usize) -> bool {
    let mut table = Table::new();
    table.set_header(["scenario", "distinct states", "steps", "depth", "all?", "seconds", "always", "sometimes"]);
    let (mut states, mut well) = (0, true);
    for name in worlds::names() {
        let Some(report) = worlds::explore(name, None, bound(steps)) else { continue };
        let (seconds, distinct) = (report.took.as_secs(), report.states);
        println!("{name}: done, {distinct} states, depth {}, {seconds} s", report.depth);
        tell(&report);
        for mark in &report.unreached {
            println!("{name}: NOT REACHED: {}", mark.text());
        }
        states += report.states;
        well &= report.violation.is_none() && report.unreached.is_empty();
        table.add_row(row(name, &report));
    }
    println!("{table}\n{states} distinct states (at least {least} are asked for)");
    well && states >= least
}

fn row(name: &str, report: &Report) -> [String; 8] {
    let held = if report.violation.is_none() { "all held" } else { "VIOLATED" };
    [
        format!("{name}: {}", report.text),
        report.states.to_string(),
        report.steps.to_string(),
        report.depth.to_string(),
        if report.complete { "all" } else { "bounded" }.to_owned(),
        format!("{:.1}", report.took.as_secs_f64()),
        held.to_owned(),
        format!("{} of {} reached", report.wanted - report.unreached.len(), report.wanted),
    ]
}

fn trace(name: &str, bug: Option<&str>) -> bool {
    let bug = bug.and_then(Bug::named);
    if let Err(why) = bug.map_or(Ok(()), Bug::plant) {
        eprintln!("{why}");
        return false;
    }
    let Some(report) = worlds::explore(name, bug, bound(bugs::STEPS)) else {
        eprintln!("no scenario is called {name:?}; there are {:?}", worlds::names().collect::<Vec<_>>());
        return false;
    };
    tell(&report);
    println!("{:?}", row(name, &report));
    report.violation.is_none()
}
