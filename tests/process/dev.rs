//! `shard-manager dev`, as a newcomer runs it.

use crate::processes::{manager_binary, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

struct Dev {
    child: Child,
    said: Vec<String>,
    complaints: PathBuf,
}

impl Drop for Dev {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Dev {
    /// Starts one and waits until it is ready.
    fn start(runtime: &Path, logs: &Path, args: &[&str]) -> Self {
        let complaints = logs.join(format!("{}.log", fs::read_dir(logs).unwrap().count()));
        let mut child = Command::new(manager_binary())
            .arg("dev")
            .args(args)
            .env("XDG_RUNTIME_DIR", runtime)
            .stdout(Stdio::piped())
            .stderr(File::create(&complaints).unwrap())
            .spawn()
            .unwrap();
        let (lines, printed) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let mut dev = Self { child, said: Vec::new(), complaints };
        wait_for("dev to be ready", || {
            dev.said.extend(printed.try_iter());
            assert!(dev.child.try_wait().unwrap().is_none(), "it ended: {}", dev.complaints());
            dev.said.iter().any(|line| line.starts_with("Ctrl-C")).then_some(())
        });
        dev
    }

    /// What it prints to try, by a word of it.
    fn to_try(&self, word: &str) -> String {
        self.said.iter().find(|line| line.contains(word)).expect("something to try").trim().to_owned()
    }

    fn manager(&self) -> String {
        let line = self.said.iter().find(|line| line.contains("manager  gRPC")).expect("where the manager is");
        line.trim().strip_prefix("manager  gRPC ").unwrap().split(',').next().unwrap().to_owned()
    }

    fn complaints(&self) -> String {
        fs::read_to_string(&self.complaints).unwrap()
    }

    fn terminate(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = wait_for("dev to end", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{}", self.complaints());
    }
}

fn ask(runtime: &Path, args: &[&str]) -> Output {
    Command::new(manager_binary()).args(args).env("XDG_RUNTIME_DIR", runtime).output().unwrap()
}

/// As somebody who copies a line into a shell.
fn shell(runtime: &Path, line: &str) -> Output {
    Command::new("bash").args(["-c", line]).env("XDG_RUNTIME_DIR", runtime).output().unwrap()
}

/// What the README shows: up, an invocation that answers, a kill that moves shards under higher epochs with the count right, down.
#[test]
fn dev_serves_survives_a_kill_and_ends_in_order() {
    let (runtime, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let nobody = ask(runtime.path(), &["dev", "kill", "executor-2"]);
    assert_eq!(nobody.status.code(), Some(69), "{}", text(&nobody.stderr));
    let mut dev = Dev::start(runtime.path(), logs.path(), &["--shards", "16"]);
    let curl = dev.to_try("curl");
    let invoke = || {
        let output = shell(runtime.path(), &format!("{curl} -sS --max-time 20"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(invoke().trim(), r#"{"value":1}"#);
    let killed = ask(runtime.path(), &["dev", "kill", "executor-2", "--json"]);
    assert!(killed.status.success(), "{}", text(&killed.stderr));
    let killed: serde_json::Value = serde_json::from_slice(&killed.stdout).unwrap();
    assert!(killed["shards"].as_u64() >= Some(5));
    let example = &killed["example"];
    assert!(example[3].as_u64() > example[1].as_u64(), "the epoch rises: {example}");
    assert_eq!(invoke().trim(), r#"{"value":2}"#, "the count stays right");
    assert_eq!(ask(runtime.path(), &["dev", "kill", "executor-2"]).status.code(), Some(1), "it does not run");
    assert_eq!(ask(runtime.path(), &["dev", "kill", "executor-7"]).status.code(), Some(64));
    assert!(ask(runtime.path(), &["dev", "start", "executor-2"]).status.success());
    dev.terminate();
    assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0, "nothing is left behind");
    assert!(!dev.complaints().contains("ERROR"), "what was asked for is no error: {}", dev.complaints());
}

#[test]
fn of_several_devs_only_the_one_that_is_meant_is_hit() {
    let (runtime, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut first = Dev::start(runtime.path(), logs.path(), &["--executors", "3", "--shards", "16"]);
    let mut second = Dev::start(runtime.path(), logs.path(), &["--executors", "2", "--shards", "16"]);
    let unclear = ask(runtime.path(), &["dev", "kill", "executor-2"]);
    assert_eq!(unclear.status.code(), Some(64));
    for dev in [&first, &second] {
        let listed = format!("--manager {}  (pid {}, ", dev.manager(), dev.child.id());
        assert!(text(&unclear.stderr).contains(&listed), "{}", text(&unclear.stderr));
    }
    // As it was printed, before there was a second one.
    let killed = shell(runtime.path(), &first.to_try("dev kill"));
    assert!(killed.status.success(), "{}", text(&killed.stderr));
    let executors = |dev: &Dev| {
        let output = ask(runtime.path(), &["executors", "--json", "--manager", &dev.manager()]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap().as_array().unwrap().len()
    };
    assert_eq!((executors(&first), executors(&second)), (2, 2));
    second.terminate();
    let started = ask(runtime.path(), &["dev", "start", "executor-2"]);
    assert!(started.status.success(), "the second took only its own file with it: {}", text(&started.stderr));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 1, "a killed one leaves its file");
    let nobody = ask(runtime.path(), &["dev", "kill", "executor-2"]);
    assert_eq!(nobody.status.code(), Some(69), "{}", text(&nobody.stderr));
    assert!(text(&nobody.stderr).contains("no `shard-manager dev` of yours is running"), "{}", text(&nobody.stderr));
    assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0, "and whoever finds that removes it");
}
