//! `shard-manager dev`, as a newcomer runs it.

use crate::processes::{manager_binary, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn ask(runtime: &Path, args: &[&str]) -> std::process::Output {
    Command::new(manager_binary()).args(args).env("XDG_RUNTIME_DIR", runtime).output().unwrap()
}

/// What the README shows: up, an invocation that answers, a kill that moves shards under higher epochs with the count right, down.
#[test]
fn dev_serves_survives_a_kill_and_ends_in_order() {
    let runtime = tempfile::tempdir().unwrap();
    let nobody = ask(runtime.path(), &["dev", "kill", "executor-2"]);
    assert_eq!(nobody.status.code(), Some(69), "{}", text(&nobody.stderr));
    let child = Command::new(manager_binary())
        .args(["dev", "--shards", "16"])
        .env("XDG_RUNTIME_DIR", runtime.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut dev = Dev(child);
    let (lines, printed) = mpsc::channel();
    let stdout = BufReader::new(dev.0.stdout.take().unwrap());
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
    let mut said = Vec::new();
    wait_for("dev to be ready", || {
        said.extend(printed.try_iter());
        said.iter().any(|line| line.starts_with("Ctrl-C")).then_some(())
    });
    let curl = said.iter().find(|line| line.contains("curl")).expect("an invocation to try").trim().to_owned();
    let invoke = || {
        let output = Command::new("bash").args(["-c", &format!("{curl} -sS --max-time 20")]).output().unwrap();
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
    kill_process(Pid::from_child(&dev.0), Signal::TERM).unwrap();
    let status = wait_for("dev to end", || dev.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert_eq!(std::fs::read_dir(runtime.path()).unwrap().count(), 0, "nothing is left behind");
}
