//! A child process that ends with its owner.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a process may take to stand still.
const STOPPING: Duration = Duration::from_secs(10);

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command`; `name` is how it is told of in failures.
    ///
    /// # Panics
    /// When the program cannot be started: it is missing, which is a failure, never a skip.
    #[must_use]
    pub fn start(name: impl Into<String>, command: &mut Command) -> Self {
        let name = name.into();
        match command.spawn() {
            Ok(child) => Self { child, name },
            Err(error) => panic!("{name}: cannot start {}: {error}", command.get_program().display()),
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal`: `Signal::STOP`, `Signal::CONT`, `Signal::TERM`, `Signal::INT`. After a stop no thread of it runs any more.
    ///
    /// # Panics
    /// When the process has ended and was waited for.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        if signal == Signal::STOP {
            // Threads on another core may run on for a while.
            wait_until(&format!("{} stands still", self.name), STOPPING, || self.stands_still());
        }
    }

    fn stands_still(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid())) else { return true };
        let stats = tasks.filter_map(Result::ok).map(|task| fs::read_to_string(task.path().join("stat")));
        // PID (NAME) STATE …: the name may hold anything.
        stats
            .filter_map(Result::ok)
            .all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z'])))
    }

    /// `SIGKILL`, and waits for its end.
    pub fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// What the system said.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port of the loopback that was free a moment ago.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("the listener's address").port()
}

/// Asks every 20 ms until `ready` says yes; `what` is told when it does not within `patience`.
///
/// # Panics
/// When `patience` has passed.
pub fn wait_until(what: &str, patience: Duration, mut ready: impl FnMut() -> bool) {
    let until = Instant::now() + patience;
    while !ready() {
        assert!(Instant::now() < until, "{what}: not within {patience:?}");
        sleep(Duration::from_millis(20));
    }
}
