//! SIGTERM, a second signal, and what a panic does.

use crate::processes::{Place, text};
use std::process::Command;
use std::time::{Duration, Instant};

/// R37, R26 (b): SIGTERM gives everything back at once and ends with 0.
#[test]
fn a_terminated_executor_gives_its_shards_back_and_ends_with_0() {
    let place = Place::new();
    let mut manager = place.manager_with(&["--set", "lease.profile=wan"]);
    let address = manager.address();
    let wan = ["--set", "lease.profile=wan"];
    let mut leaving = place.executor(&address, "executor-1", &wan);
    let _staying = place.executor(&address, "executor-2", &wan);
    place.served(&address, 2);
    let began = Instant::now();
    leaving.terminate();
    assert_eq!(leaving.ended().code(), Some(0));
    place.served(&address, 1);
    assert!(began.elapsed() < Duration::from_secs(30), "long before a lease of 60 s: {:?}", began.elapsed());
}

/// R37
#[test]
fn a_terminated_manager_ends_with_0_within_seconds() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    let began = Instant::now();
    manager.terminate();
    assert_eq!(manager.ended().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// R37: SIGTERM while it tries to register ends it, too.
#[test]
fn an_executor_without_a_manager_ends_on_sigterm() {
    let place = Place::new();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut executor = place.executor(&nobody, "executor-1", &[]);
    executor.address();
    executor.terminate();
    assert_eq!(executor.ended().code(), Some(0));
}

/// R37: a second signal ends it at once.
#[test]
fn a_second_signal_ends_an_executor_that_waits_for_its_manager() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let mut executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
    manager.signal(rustix::process::Signal::STOP);
    executor.terminate();
    std::thread::sleep(Duration::from_millis(100));
    assert!(executor.is_running(), "it waits for the answer to its deregistration");
    executor.terminate();
    let began = Instant::now();
    assert_eq!(executor.ended().code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// A panic on any thread aborts the whole process: nothing may go on renewing or admitting with a dead part inside.
#[test]
fn a_panic_anywhere_ends_the_process() {
    const CHILD: &str = "LEASEHOLD_TEST_PANICS";
    if std::env::var_os(CHILD).is_some() {
        leasehold::cli::abort_on_panic("test");
        drop(std::thread::spawn(|| panic!("a part died")).join());
        std::process::exit(0);
    }
    let name = "stopping::a_panic_anywhere_ends_the_process";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6), "SIGABRT");
    assert!(text(&output.stderr).contains("a part died"), "{}", text(&output.stderr));
}
