//! The table of docs/bad-input.md: each a clear message, its exit code, nothing lost.

use crate::processes::{Place, text, wait_for};
use std::fs;
use std::net::TcpListener;

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    let place = Place::new();
    let output = place.manager(&["config", "check", "--set", "lease.duratoin=60s"]);
    assert_eq!(output.status.code(), Some(78));
    let said = text(&output.stderr);
    assert!(said.contains("lease.duratoin") && said.contains("lease.duration"), "{said}");
    fs::write(place.path().join("m.toml"), "[lease]\nprofil = \"lan\"\n").unwrap();
    let output = place.manager(&["serve", "--config", "m.toml"]);
    assert_eq!(output.status.code(), Some(78));
    let said = text(&output.stderr);
    assert!(said.contains("m.toml:2") && said.contains("lease.profile"), "{said}");
    let output = place.manager(&["config", "check", "--set", "foo.bar=1"]);
    assert!(!text(&output.stderr).contains("did you mean"), "{}", text(&output.stderr));
}

/// R14
#[test]
fn a_lease_of_five_seconds_in_profile_wan_is_refused_with_the_arithmetic() {
    let place = Place::new();
    let output = place.manager(&["serve", "--set", "lease.duration=5s"]);
    assert_eq!(output.status.code(), Some(78));
    let said = text(&output.stderr);
    assert!(said.contains("3 × 10s") && said.contains("30s"), "{said}");
    assert!(!place.path().join("leasehold-data").exists(), "nothing was written");
}

#[test]
fn a_second_manager_on_the_same_file_is_told_who_holds_it() {
    let place = Place::new();
    let mut first = place.manager_with(&[]);
    let address = first.address();
    let mut second = place.manager_with(&[]);
    assert_eq!(second.ended().code(), Some(75));
    let said = second.log();
    assert!(said.contains("manager.db") && said.contains(&address), "{said}");
    assert!(place.status(&address).is_some(), "the first is not disturbed");
}

#[test]
fn a_corrupt_store_refuses_to_start_and_says_where() {
    let place = Place::new();
    fs::write(place.path().join("manager.db"), "this is not a database, and never was; ".repeat(200)).unwrap();
    let before = fs::read(place.path().join("manager.db")).unwrap();
    let mut manager = place.manager_with(&[]);
    assert_eq!(manager.ended().code(), Some(1));
    let said = manager.log();
    assert!(said.contains("manager.db") && said.contains("corrupt"), "{said}");
    assert_eq!(fs::read(place.path().join("manager.db")).unwrap(), before, "left as it was");
}

#[test]
fn a_port_in_use_is_named() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut manager = place.manager_at(&address, &[]);
    assert_eq!(manager.ended().code(), Some(1));
    let said = manager.log();
    assert!(said.contains(&address) && said.contains("another process listens there"), "{said}");
}

/// Case 37
#[test]
fn an_executor_with_another_shard_count_stops_and_says_both() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let mut executor = place.executor(&address, "executor-1", &["--set", "cluster.shard_count=128"]);
    assert_eq!(executor.ended().code(), Some(78));
    let said = executor.log();
    assert!(said.contains("16") && said.contains("128"), "{said}");
    assert_eq!(place.status(&address).unwrap()["executors"].as_array().unwrap().len(), 0);
}

/// Case 37
#[test]
fn a_manager_with_another_shard_count_leaves_the_store_alone() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    manager.address();
    manager.terminate();
    assert!(manager.ended().success());
    let mut other = place.manager_with(&["--set", "cluster.shard_count=32"]);
    assert_eq!(other.ended().code(), Some(78));
    let said = other.log();
    assert!(said.contains("16") && said.contains("32"), "{said}");
    let mut same = place.manager_with(&[]);
    let address = same.address();
    assert_eq!(place.status(&address).unwrap()["shard_count"], 16);
}

#[test]
fn an_executor_of_another_cluster_is_refused() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let mut executor = place.executor(&address, "executor-1", &["--set", "cluster.name=elsewhere"]);
    assert_eq!(executor.ended().code(), Some(78));
    assert!(executor.log().contains("elsewhere"), "{}", executor.log());
}

/// R38
#[test]
fn an_executor_that_finds_no_manager_gives_up_and_says_what_it_tried() {
    let place = Place::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut executor = place.executor(&nobody, "executor-1", &["--set", "executor.registration_patience=1s"]);
    assert_eq!(executor.ended().code(), Some(69));
    let said = executor.log();
    assert!(said.contains(&nobody) && said.contains("attempts"), "{said}");
}

#[test]
fn a_command_that_nobody_answers_exits_with_69() {
    let place = Place::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for args in [vec!["status"], vec!["shards"], vec!["explain", "3"], vec!["drain", "executor-1"]] {
        let output = place.manager(&[&args[..], &["--manager", &nobody]].concat());
        assert_eq!(output.status.code(), Some(69), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&nobody));
    }
}

#[test]
fn bad_arguments_exit_with_64_and_say_what_is_accepted() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    for (args, says) in [
        (vec!["explain", "99"], "0..16"),
        (vec!["explain", "no-slash"], "type/id"),
        (vec!["drain", "a b"], "letters"),
        (vec!["status", "--timeout", "soon"], "--timeout"),
    ] {
        let output = place.manager(&[&args[..], &["--manager", &address]].concat());
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn an_argument_that_is_no_json_is_shown_with_what_the_parser_said() {
    let output = Place::new().executor_command(&["invoke", "counter/a", "increment", "{bad"]);
    assert_eq!(output.status.code(), Some(64));
    let expected =
        "argument: \"{bad\" is not accepted; expected one JSON value (key must be a string at line 1 column 2)";
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

#[test]
fn output_to_a_closed_pipe_ends_quietly() {
    let place = Place::new();
    let mut manager = place.manager_with(&["--set", "cluster.shard_count=4096"]);
    let address = manager.address();
    let line =
        format!("{} shards --manager {address} | head -1; exit ${{PIPESTATUS[0]}}", crate::processes::manager_binary());
    let output = std::process::Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// A file that is deleted or replaced under a manager ends its leadership: it must not go on granting for a store that is not there.
#[test]
fn a_manager_whose_file_was_replaced_ends() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    assert!(place.status(&address).is_some(), "it leads, and nobody renews");
    fs::remove_file(place.path().join("manager.db")).unwrap();
    assert_eq!(manager.ended().code(), Some(1));
    assert!(manager.log().contains("leadership is over"), "{}", manager.log());
    wait_for("the log's last line", || manager.log().contains("manager.db").then_some(()));
}
