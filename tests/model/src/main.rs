//! `model bound | deep | bugs | trace SCENARIO [BUG]`: see `make help`.

use comfy_table::Table;
use leasehold_model_check::bug::Bug;
use leasehold_model_check::run::{Bound, Report, explore};
use leasehold_model_check::scenario::{self, Scenario};
use std::process::ExitCode;
use std::time::Duration;

/// What `bound` must see, in all.
const BOUND_STATES: usize = 1_000_000;
/// What `deep` must see, in all.
const DEEP_STATES: usize = 10_000_000;
/// Steps in each scenario of `bound` and `deep`, and for each bug.
const BOUND_STEPS: usize = 200_000;
const DEEP_STEPS: usize = 4_000_000;
const BUG_STEPS: usize = 3_000_000;

fn bound(steps: usize) -> Bound {
    Bound { steps: Some(steps), threads: 2, progress: Some(Duration::from_secs(5)) }
}

fn main() -> ExitCode {
    // A panic of shipped code is a violation, and told as one.
    std::panic::set_hook(Box::new(|_| {}));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let well = match words.as_slice() {
        ["bound"] => every(BOUND_STEPS, BOUND_STATES),
        ["deep"] => every(DEEP_STEPS, DEEP_STATES),
        ["bugs"] => bugs(),
        ["trace", name] => trace(name, None),
        ["trace", name, bug] => trace(name, Some(bug)),
        _ => {
            eprintln!("model bound | deep | bugs | trace SCENARIO [BUG]");
            false
        }
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(report: &Report) {
    if let Some(violation) = &report.violation {
        println!("VIOLATED: {}: {}", violation.rule, violation.evidence);
        for (at, step) in violation.trace.iter().enumerate() {
            println!("  {:>2} {step}", at + 1);
        }
    }
}

fn every(steps: usize, least: usize) -> bool {
    let mut table = Table::new();
    table.set_header(["scenario", "distinct states", "steps", "depth", "all?", "seconds", "always", "sometimes"]);
    let (mut states, mut well) = (0, true);
    for scenario in scenario::ALL {
        let report = explore(scenario, None, bound(steps));
        tell(&report);
        for mark in &report.unreached {
            println!("{}: NOT REACHED: {}", scenario.name, mark.text());
        }
        states += report.states;
        well &= report.violation.is_none() && report.unreached.is_empty();
        table.add_row(row(scenario, &report));
    }
    println!("{table}\n{states} distinct states (at least {least} are asked for)");
    well && states >= least
}

fn row(scenario: &Scenario, report: &Report) -> [String; 8] {
    let all = scenario.reach.len();
    let held = if report.violation.is_none() { "10 of 10 held" } else { "VIOLATED" };
    [
        format!("{}: {}", scenario.name, scenario.text),
        report.states.to_string(),
        report.steps.to_string(),
        report.depth.to_string(),
        if report.complete { "all" } else { "bounded" }.to_owned(),
        format!("{:.1}", report.took.as_secs_f64()),
        held.to_owned(),
        format!("{} of {all} reached", all - report.unreached.len()),
    ]
}

fn bugs() -> bool {
    let mut table = Table::new();
    table.set_header(["bug", "scenario", "found by", "depth", "distinct states", "seconds"]);
    let mut survivors = 0;
    for bug in Bug::ALL {
        let Some(scenario) = scenario::named(bug.scenario()) else { continue };
        let report = explore(scenario, Some(*bug), Bound { progress: None, ..bound(BUG_STEPS) });
        let (found, depth) = match &report.violation {
            Some(violation) => (violation.rule, violation.trace.len().to_string()),
            None => ("NOT FOUND", "-".to_owned()),
        };
        survivors += usize::from(report.violation.is_none());
        let seconds = format!("{:.1}", report.took.as_secs_f64());
        println!("{bug:?}: {found}, depth {depth}, {} states, {seconds} s", report.states);
        table.add_row([bug.text(), scenario.name, found, &depth, &report.states.to_string(), &seconds]);
    }
    println!("{table}\n{} bugs planted, {survivors} not found", Bug::ALL.len());
    survivors == 0
}

fn trace(name: &str, bug: Option<&str>) -> bool {
    let Some(scenario) = scenario::named(name) else {
        eprintln!("no scenario is called {name}");
        return false;
    };
    let bug = bug.and_then(|word| Bug::ALL.iter().copied().find(|bug| format!("{bug:?}") == word));
    let report = explore(scenario, bug, bound(BUG_STEPS));
    tell(&report);
    println!("{:?}", row(scenario, &report));
    report.violation.is_none()
}
