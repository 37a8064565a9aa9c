//! Trust in the checker: each bug is planted in a process of its own and must be found, by the invariant that it breaks.

use comfy_table::Table;
use leasehold_model_check::bug::Bug;
use leasehold_model_check::run::{Bound, Report};
use leasehold_model_check::worlds;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// Steps until a bug counts as not found.
pub const STEPS: usize = 3_000_000;

/// What came of one bug: a line of the table, without its name and its scenario.
struct Found {
    well: bool,
    columns: [String; 4],
}

/// Plants one bug in this process and says what came of it, as one line.
pub fn one(name: &str) -> bool {
    let Some(bug) = Bug::named(name) else {
        eprintln!("no bug is called {name:?}; there are {:?}", Bug::ALL);
        return false;
    };
    if let Err(why) = bug.plant() {
        eprintln!("{why}");
        return false;
    }
    // One thread: the shortest way is found, and every run finds the same one.
    let bound = Bound { steps: Some(STEPS), threads: 1, progress: None };
    let Some(report) = worlds::explore(bug.scenario(), Some(bug), bound) else { return false };
    let Found { well, columns } = judge(bug, &report);
    println!("{}", columns.join("\t"));
    well
}

fn judge(bug: Bug, report: &Report) -> Found {
    let (found, depth, well) = match &report.violation {
        Some(violation) if violation.rule == bug.breaks() => (violation.rule.id(), violation.trace.len(), true),
        Some(violation) => {
            (format!("{}, NOT {}", violation.rule.id(), bug.breaks().id()), violation.trace.len(), false)
        }
        None => ("NOT FOUND".to_owned(), report.depth, false),
    };
    let seconds = format!("{:.1}", report.took.as_secs_f64());
    Found { well, columns: [found, depth.to_string(), report.states.to_string(), seconds] }
}

fn in_a_process(bug: Bug) -> Found {
    let failed = |why: String| Found { well: false, columns: [why, "-".into(), "-".into(), "-".into()] };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(why) => return failed(format!("this program has no path: {why}")),
    };
    let output = Command::new(program).args(["bug", &format!("{bug:?}")]).stderr(Stdio::inherit()).output();
    let output = match output {
        Ok(output) => output,
        Err(why) => return failed(format!("it does not start: {why}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let columns: Vec<String> = text.trim_end().split('\t').map(str::to_owned).collect();
    match columns.try_into() {
        Ok(columns) => Found { well: output.status.success(), columns },
        Err(_) => failed(format!("NOT RUN ({})", output.status)),
    }
}

/// Plants every bug whose name has `only` in it, and prints a table. Says whether each was found by the invariant that it breaks.
pub fn hunt(only: &str) -> bool {
    let bugs: Vec<Bug> = Bug::ALL.iter().copied().filter(|bug| format!("{bug:?}").contains(only)).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let result = in_a_process(*bug);
                    println!("{bug:?}: {}", result.columns.join(", "));
                    found.lock().expect("nobody panics with it").push((*bug, result));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("nobody panics with it");
    found.sort_by_key(|(bug, _)| *bug);
    let mut table = Table::new();
    table.set_header(["bug", "scenario", "found by", "depth", "distinct states", "seconds"]);
    for (bug, Found { columns, .. }) in &found {
        table.add_row([bug.text(), bug.scenario()].into_iter().chain(columns.iter().map(String::as_str)));
    }
    let well = found.iter().filter(|(_, found)| found.well).count();
    println!("{table}\n{} bugs planted, {well} found by the invariant that they break", found.len());
    !found.is_empty() && well == found.len()
}
