//! A bounded slice of the simulation; `make sim-many` runs more of it, at a higher speed.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test reads better so")]

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// S1 to S7 and L1 to L3, in clusters that suffer every kind of fault and then heal.
#[test]
fn every_invariant_holds_throughout_chaos_and_every_cluster_heals() {
    let many = simulate(&["many", "40", "--incomplete"]);
    assert!(many.status.success(), "{}", text(&many));
}

/// One seed derives everything: or a failure could not be shown again.
#[test]
fn equal_seeds_give_traces_that_are_equal_to_the_byte() {
    for seed in ["1", "2", "7", "12"] {
        let (one, other) = (simulate(&["seed", seed]), simulate(&["seed", seed]));
        assert!(one.stdout.len() > 10_000, "a trace of {} bytes", one.stdout.len());
        assert!(one.stdout == other.stdout, "seed {seed} gave two traces");
    }
    assert_ne!(simulate(&["seed", "1"]).stdout, simulate(&["seed", "2"]).stdout);
}
