//! The figures of docs/benchmarks.md: `make bench`, or `make bench ONLY="NAME …"`.
//!
//! One JSON line per figure on standard output, progress and a summary on standard error. Every baseline is measured in
//! the same run, in rounds that alternate with those of the subject, so that a noisy machine hits both. The exit code is 1
//! when a figure misses its bound.

mod admission;
mod cluster;
mod etcd;
mod failover;
mod figure;
mod load;
mod memory;
mod oplogs;
mod placement;
mod processes;
mod pushes;
mod raw;
mod recovery;
mod renewals;
mod requests;
mod rounds;
mod state_cas;

use figure::{FIGURES, Figure, Measured, Outcome};
use leasehold::cli::{Exit, Failure, abort_on_panic, finish};
use leasehold::runtime;
use std::process::ExitCode;

fn main() -> ExitCode {
    abort_on_panic("bench");
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let [memory::CHILD, arguments @ ..] = names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        let child = memory::child(arguments);
        return finish(runtime::block_on(async { child.await.map_err(failure).map(|()| Exit::Fine) }));
    }
    match select(&names) {
        Ok(figures) => finish(runtime::block_on(run(figures))),
        Err(failure) => finish(Err(failure)),
    }
}

fn failure(error: figure::Error) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

/// The figures with these names, or all.
fn select(names: &[String]) -> Result<Vec<&'static Figure>, Failure> {
    if names.is_empty() {
        return Ok(FIGURES.iter().collect());
    }
    let find = |name: &String| {
        FIGURES.iter().find(|figure| figure.name == name).ok_or_else(|| {
            let known: Vec<_> = FIGURES.iter().map(|figure| figure.name).collect();
            Failure::new(Exit::Usage, format!("no figure is named {name:?}; there are {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

async fn run(figures: Vec<&'static Figure>) -> Result<Exit, Failure> {
    let mut outcomes = Vec::new();
    for figure in figures {
        eprintln!("{} …", figure.name);
        let measured = (figure.measure)().await;
        let measured: Measured =
            measured.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", figure.name)))?;
        let outcome = Outcome { figure, measured };
        println!("{}", outcome.line());
        outcomes.push(outcome);
    }
    eprintln!("\n{}", figure::summary(&outcomes));
    let all_hold = outcomes.iter().all(|outcome| figure::holds(outcome.figure.bound, outcome.measured));
    Ok(if all_hold { Exit::Fine } else { Exit::Failed })
}
