//! Whole clusters in a simulated network: the shipped actors, the shipped gRPC, and one seed from which everything follows.
//! docs/how-we-know.md says what is simulated and what is not.
#![allow(missing_docs, clippy::wildcard_enum_match_arm, reason = "a program for tests")]

mod bugs;
mod chaos;
mod clock;
mod cluster;
mod coverage;
mod entropy;
mod freeze;
mod healing;
mod invariants;
mod many;
mod net;
mod process;
mod run;
mod storage;
mod trace;
mod world;

use clap::{Parser, Subcommand};
use run::Outcome;
use std::process::ExitCode;
use std::thread::available_parallelism;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulates one seed and prints its trace.
    Seed {
        seed: u64,
        /// Also prints everything that was reached.
        #[arg(long)]
        reached: bool,
        #[arg(long)]
        bug: Option<String>,
    },
    /// Simulates one seed and prints what came of it as JSON.
    One {
        seed: u64,
        #[arg(long)]
        bug: Option<String>,
    },
    /// Simulates many seeds.
    Many {
        count: u64,
        #[arg(long, default_value_t = 0)]
        from: u64,
        #[arg(long)]
        jobs: Option<usize>,
        /// Whether to be content without everything reached.
        #[arg(long)]
        incomplete: bool,
    },
    /// Plants one bug after the other and says which invariant finds each, and how fast.
    Bugs {
        /// How many seeds each is given.
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        #[arg(long)]
        jobs: Option<usize>,
        /// Only bugs whose name has this in it.
        #[arg(long, default_value = "")]
        only: String,
    },
}

fn main() -> ExitCode {
    let well = match Arguments::parse().command {
        Command::Seed { seed, reached, bug } => show(seed, reached, bug.as_deref()),
        Command::One { seed, bug } => one(seed, bug.as_deref()),
        Command::Many { count, from, jobs, incomplete } => {
            many::many(from..from + count, processors(jobs), !incomplete)
        }
        Command::Bugs { seeds, jobs, only } => bugs::hunt(seeds, processors(jobs), &only),
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn processors(jobs: Option<usize>) -> usize {
    jobs.unwrap_or_else(|| available_parallelism().map_or(1, usize::from))
}

fn simulate(seed: u64, bug: Option<&str>) -> Outcome {
    if let Some(bug) = bug {
        bugs::plant(bug);
    }
    run::simulate(seed)
}

fn show(seed: u64, reached: bool, bug: Option<&str>) -> bool {
    let outcome = simulate(seed, bug);
    outcome.lines.iter().for_each(|line| println!("{line}"));
    if reached {
        outcome.reached.iter().for_each(|(what, times)| println!("{times:>8}  {what}"));
    }
    println!("seed {seed}: {:?} simulated, trace {:016x}", outcome.lasted, outcome.digest());
    match &outcome.violation {
        None => println!("every invariant held, looked at {} times", outcome.checks),
        Some((at, violation)) => println!("{} was violated at {at:?}: {}", violation.id, violation.what),
    }
    outcome.violation.is_none()
}

fn one(seed: u64, bug: Option<&str>) -> bool {
    let outcome = simulate(seed, bug);
    let violation = outcome.violation.as_ref().map(|(_, violation)| (violation.id, &violation.what));
    let report = serde_json::json!({
        "digest": format!("{:016x}", outcome.digest()),
        "violation": violation,
        "reached": outcome.reached,
        "checks": outcome.checks,
        "lasted_ms": u64::try_from(outcome.lasted.as_millis()).unwrap_or(u64::MAX),
    });
    println!("{report}");
    violation.is_none()
}
