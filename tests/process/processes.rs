//! Processes on free ports in a temporary folder, ended by pid when the test ends.

use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than anything here should take on a busy machine of two cores.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn manager_binary() -> &'static str {
    env!("CARGO_BIN_EXE_shard-manager")
}

pub fn executor_binary() -> &'static str {
    env!("CARGO_BIN_EXE_shard-executor")
}

/// Waits until `ask` has an answer.
///
/// # Panics
/// After [`PATIENCE`], saying what was waited for.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(Duration::from_millis(20));
    }
}

/// A process that is killed when the test ends.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// What it says on its standard output.
    output: PathBuf,
}

impl Process {
    fn start(binary: &str, name: &str, folder: &Path, args: &[&str]) -> Self {
        let log = folder.join(format!("{name}-{}.log", fs::read_dir(folder).unwrap().count()));
        let output = log.with_extension("out");
        let child = Command::new(binary)
            .args(["--log-format", "json", "--log", "info"])
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log, output }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The JSON that it has said on its standard output.
    pub fn said(&self) -> Value {
        let said = fs::read_to_string(&self.output).unwrap();
        serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}\n{}", self.log()))
    }

    /// The value of `field` in the first log line with this message.
    pub fn logged(&mut self, message: &str, field: &str) -> String {
        wait_for(&format!("{message:?} in {}", self.log.display()), || {
            let log = self.log();
            assert!(self.child.try_wait().unwrap().is_none(), "it ended:\n{log}");
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let line = lines.into_iter().find(|line| line["message"] == message)?;
            Some(line[field].as_str().unwrap_or_default().to_owned())
        })
    }

    /// The value of `field` in every log line with this message so far.
    pub fn every(&self, message: &str, field: &str) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines = lines.filter(|line| line["message"] == message);
        lines.map(|line| line[field].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub fn address(&mut self) -> String {
        self.logged("serving", "grpc")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Whether it would notice SIGTERM, instead of being ended by it.
    pub fn catches_sigterm(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
        let signal = rustix::process::Signal::TERM.as_raw();
        u64::from_str_radix(caught, 16).is_ok_and(|caught| caught >> (signal - 1) & 1 == 1)
    }

    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn ended(&mut self) -> ExitStatus {
        wait_for(&format!("the end of {}", self.log.display()), || self.child.try_wait().unwrap())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
            eprintln!("--- {}\n{log}", self.log.display());
        }
    }
}

/// A place for one test's cluster.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn manager_with(&self, more: &[&str]) -> Process {
        self.manager_at("127.0.0.1:0", more)
    }

    pub fn manager_at(&self, grpc: &str, more: &[&str]) -> Process {
        let grpc = format!("listen.grpc={grpc}");
        let mut args = vec!["serve", "--set", &grpc, "--set", "listen.http=127.0.0.1:0", "--set", "lease.profile=fast"];
        args.extend(["--set", "rebalance.settle=200ms", "--set", "store.url=sqlite:manager.db"]);
        if !more.iter().any(|arg| arg.contains("shard_count")) {
            args.extend(["--set", "cluster.shard_count=16"]);
        }
        args.extend(more);
        Process::start(manager_binary(), "manager", self.path(), &args)
    }

    pub fn executor(&self, manager: &str, name: &str, more: &[&str]) -> Process {
        let (managers, name_arg) = (format!("executor.managers={manager}"), format!("executor.name={name}"));
        let mut args = vec!["serve", "--set", &managers, "--set", &name_arg, "--set", "lease.profile=fast"];
        args.extend(["--set", "listen.grpc=127.0.0.1:0", "--set", "listen.http=127.0.0.1:0"]);
        args.extend(["--set", "oplog.url=sqlite:oplogs"]);
        args.extend(more);
        Process::start(executor_binary(), name, self.path(), &args)
    }

    pub fn gateway(&self, manager: &str) -> Process {
        let args = ["route", "--manager", manager, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        Process::start(executor_binary(), "gateway", self.path(), &args)
    }

    /// A command that does not end soon.
    pub fn begin(&self, args: &[&str]) -> Process {
        Process::start(executor_binary(), "command", self.path(), args)
    }

    pub fn manager(&self, args: &[&str]) -> Output {
        run(manager_binary(), self.path(), args)
    }

    pub fn executor_command(&self, args: &[&str]) -> Output {
        run(executor_binary(), self.path(), args)
    }

    pub fn status(&self, manager: &str) -> Option<Value> {
        let output = self.manager(&["status", "--json", "--manager", manager]);
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until `executors` are registered and every shard is owned.
    pub fn served(&self, manager: &str, executors: usize) -> Value {
        wait_for("every shard to be served", || {
            let status = self.status(manager)?;
            let all = status["shard_count"] == status["totals"]["owned"];
            (status["executors"].as_array()?.len() == executors && all).then_some(status)
        })
    }

    /// Waits until no executor is registered.
    pub fn served_by_nobody(&self, manager: &str) {
        wait_for("every executor to be gone", || {
            self.status(manager)?["executors"].as_array()?.is_empty().then_some(())
        });
    }

    pub fn owners(&self, manager: &str) -> Value {
        let output = self.manager(&["shards", "--json", "--manager", manager]);
        serde_json::from_slice(&output.stdout).expect("a table of shards")
    }

    pub fn invoke(&self, manager: &str, agent: &str, method: &str) -> Value {
        let output = self.executor_command(&["invoke", agent, method, "--json", "--manager", manager]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn run(binary: &str, folder: &Path, args: &[&str]) -> Output {
    Command::new(binary).args(args).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
