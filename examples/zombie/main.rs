//! `make zombie`: executors frozen in the middle of an append, on every store, and the proof that it did no harm.
//!
//! For each backend a cluster of real processes serves callers without a pause, while one executor after the other is frozen with an
//! append under way, replaced, and thawed. What the callers were answered must fit one order of events, the store must pass
//! `shard-executor oplog check`, and each acknowledged append must stand in it once (docs/oplog-kit.md). The exit code is 0 if all of it is so.

mod story;

use clap::Parser;
use leasehold::cli::{Exit, Failure, finish};
use std::process::ExitCode;
use story::{Backend, Binaries, Plan, Summary, everything, table};

/// Freezes executors in mid-append on every store, and checks what callers saw.
#[derive(Debug, Parser)]
#[command(name = "zombie", max_term_width = 100)]
struct Cli {
    /// Executors to freeze, on each backend
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Which backends
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Backend::Sqlite, Backend::Postgres, Backend::Redis])]
    backend: Vec<Backend>,
    /// One after the other instead of all at once
    #[arg(long)]
    one_by_one: bool,
}

fn main() -> ExitCode {
    finish(run(&Cli::parse()))
}

fn run(cli: &Cli) -> Result<Exit, Failure> {
    let failed = |error: story::Error| Failure::new(Exit::Failed, error.to_string());
    let binaries = Binaries::beside_this_example().map_err(failed)?;
    let plan = |backend| Plan { backend, rounds: cli.rounds, binaries: binaries.clone() };
    let mut summaries: Vec<Summary> = Vec::new();
    let at_once = if cli.one_by_one { 1 } else { cli.backend.len() };
    for some in cli.backend.chunks(at_once.max(1)) {
        summaries.extend(everything(some.iter().copied().map(plan).collect()));
    }
    println!("\n{}", table(&summaries));
    for summary in &summaries {
        for violation in &summary.violations {
            println!("{}: {violation}", summary.backend);
        }
    }
    Ok(if summaries.iter().all(Summary::holds) { Exit::Fine } else { Exit::Failed })
}
