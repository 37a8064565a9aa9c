//! A few rounds of `make zombie` on each backend: real executors frozen with an append under way, replaced, thawed.

#[path = "../../examples/zombie/story/mod.rs"]
mod story;

use crate::processes::{executor_binary, manager_binary};
use story::{Backend, Binaries, Plan, Summary, everything, table};

/// Each manner of freezing once, two executors at a time.
const ROUNDS: u32 = 8;

fn a_few_rounds_do_no_harm(backend: Backend) {
    let binaries = Binaries { manager: manager_binary().into(), executor: executor_binary().into() };
    let summaries = everything(vec![Plan { backend, rounds: ROUNDS, binaries }]);
    assert!(summaries.iter().all(Summary::holds), "{summaries:#?}");
    eprintln!("{}", table(&summaries));
    for summary in &summaries {
        assert_eq!(summary.rounds, ROUNDS);
        assert!(
            summary.acknowledged > 0 && summary.reads > 0 && summary.entries >= summary.acknowledged,
            "{summary:?}"
        );
        // A proxy holds an append for certain; SQLite's writer has to be caught.
        assert!(!backend.is_a_server() || summary.mid_append >= ROUNDS / 2, "{summary:?}");
    }
}

/// Cases 30, 31, S6, F1, F3, F4, F7.
#[test]
fn executors_frozen_in_the_middle_of_an_append_do_no_harm_on_sqlite() {
    a_few_rounds_do_no_harm(Backend::Sqlite);
}

/// Cases 30, 31, S6, F1, F3, F4, F7.
#[test]
fn executors_frozen_in_the_middle_of_an_append_do_no_harm_on_postgresql() {
    a_few_rounds_do_no_harm(Backend::Postgres);
}

/// Cases 30, 31, S6, F1, F3, F4, F7.
#[test]
fn executors_frozen_in_the_middle_of_an_append_do_no_harm_on_redis() {
    a_few_rounds_do_no_harm(Backend::Redis);
}
