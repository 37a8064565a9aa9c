//! Commands that are pointed at the wrong thing, or stopped half-way: what is said is what is so, with what to do.

use crate::processes::{Place, Process, text, wait_for};
use std::fs;
use std::net::TcpListener;
use std::process::Output;
use std::time::{Duration, Instant};

fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn refused(output: &Output, code: i32, says: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in says {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}

/// A gateway's two ports.
fn other_ports(gateway: &mut Process) -> [String; 2] {
    [gateway.logged("routing", "grpc"), gateway.logged("routing", "http")]
}

#[test]
fn a_managers_command_at_another_port_is_told_that_it_is_one() {
    let place = Place::new();
    let mut gateway = place.gateway(&nobody());
    let [grpc, http] = other_ports(&mut gateway);
    for (port, what) in [(&grpc, "it serves gRPC, but something else"), (&http, "an HTTP port")] {
        for command in [vec!["status"], vec!["shards"], vec!["drain", "executor-1"], vec!["explain", "counter/a"]] {
            let output = place.manager(&[&command[..], &["--manager", port]].concat());
            refused(&output, 69, &[&format!("{port} is not a manager's gRPC port"), what, "--manager", "listen.grpc"]);
        }
    }
    // Beside one that is a manager it does no harm; beside one that does not answer it is told, too.
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    assert!(place.status(&format!("{grpc},{address}")).is_some());
    let both = format!("{grpc},{}", nobody());
    let output = place.manager(&["status", "--manager", &both]);
    refused(&output, 69, &["not reached", &format!("{grpc} is not a manager's gRPC port")]);
}

#[test]
fn a_call_through_another_port_than_a_gateways_is_told_that_it_is_one() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let mut gateway = place.gateway(&address);
    let [_, http] = other_ports(&mut gateway);
    for (port, what) in [(&address, "it serves gRPC, but something else"), (&http, "an HTTP port")] {
        let began = Instant::now();
        let output = place.executor_command(&["invoke", "counter/a", "increment", "--gateway", port]);
        refused(&output, 69, &[&format!("{port} is not a gateway's gRPC port"), what, "--gateway", "listen.grpc"]);
        assert!(began.elapsed() < Duration::from_secs(20), "not only at its deadline of 30 s");
    }
    let output = place.executor_command(&["invoke", "counter/a", "increment", "--manager", &http, "--timeout", "1s"]);
    refused(&output, 69, &[&format!("{http} is not a manager's gRPC port"), "listen.grpc"]);
}

#[test]
fn a_call_that_is_stopped_says_that_it_has_not_run_if_nobody_took_it() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = silent.local_addr().unwrap().to_string();
    for (flag, address, says) in [
        ("--manager", nobody(), "the call has not run: nobody took it"),
        ("--gateway", nobody(), "the call has not run: nobody took it"),
        ("--gateway", there, "the call may have run"),
    ] {
        let mut call = place.begin(&["invoke", "counter/a", "increment", flag, &address, "--timeout", "1h"]);
        // Before that it would be ended by one.
        wait_for("it to catch signals", || call.catches_sigterm().then_some(()));
        if says.contains("may") {
            silent.accept().unwrap();
        }
        call.terminate();
        assert_eq!(call.ended().code(), Some(75), "{}", call.log());
        assert!(call.log().contains(&format!("SIGTERM: stopped waiting; {says}")), "{flag} {address}: {}", call.log());
    }
}

#[test]
fn progress_that_cannot_be_kept_is_refused_before_anything_is_sent() {
    let place = Place::new();
    fs::write(place.path().join("text"), "a b c").unwrap();
    let load = |file: &str| {
        place.executor_command(&["load", "text", "--progress", file, "--manager", &nobody(), "--timeout", "1s"])
    };
    refused(&load("/nosuch/p.json"), 64, &["--progress /nosuch/p.json", "No such file", "nothing was sent"]);
    refused(&load("."), 64, &["--progress ."]);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn progress_of_another_way_to_count_names_what_differs() {
    let place = Place::new();
    fs::write(place.path().join("text"), "a b c").unwrap();
    let load = |more: &[&str]| {
        let args = ["load", "text", "--progress", "p.json", "--timeout", "50ms", "--manager", &nobody()];
        place.executor_command(&[&args[..], more].concat())
    };
    assert_eq!(load(&["--per", "word"]).status.code(), Some(1), "no call is answered, the progress is kept");
    refused(&load(&["--per", "line"]), 64, &["another --per: word, now line"]);
    refused(&load(&["--type", "tally"]), 64, &["another --type: counter, now tally"]);
    fs::write(place.path().join("text"), "a b c d").unwrap();
    refused(&load(&[]), 64, &["another FILE"]);
}

#[test]
fn a_store_whose_folder_cannot_be_is_a_wrong_configuration() {
    let place = Place::new();
    let mut manager = place.manager_with(&["--set", "store.url=sqlite:no/such/manager.db"]);
    assert_eq!(manager.ended().code(), Some(78));
    let folder = place.path().join("no/such");
    assert!(manager.log().contains(&format!("there is no folder {};", folder.display())), "{}", manager.log());
    fs::write(place.path().join("file"), "").unwrap();
    let mut executor = place.executor(&nobody(), "executor-1", &["--set", "oplog.url=sqlite:file/oplogs"]);
    assert_eq!(executor.ended().code(), Some(78));
    assert!(executor.log().contains("the folder file/oplogs cannot be made"), "{}", executor.log());
}

#[test]
fn a_second_manager_that_comes_through_a_link_is_told_who_holds_the_file() {
    let place = Place::new();
    let mut first = place.manager_with(&[]);
    let address = first.address();
    std::os::unix::fs::symlink("manager.db", place.path().join("link.db")).unwrap();
    let mut second = place.manager_with(&["--set", "store.url=sqlite:link.db"]);
    assert_eq!(second.ended().code(), Some(75));
    let said = second.log();
    assert!(said.contains("link.db (that is ") && said.contains(&address), "{said}");
}
