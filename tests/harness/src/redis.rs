//! A Redis server of a test's own.

use crate::process::{Process, free_port, wait_until};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long a server may take to start or to stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Debian's Redis 7. It ends with this value. Its data is in a temporary folder, its port is its own and stays over restarts.
#[derive(Debug)]
pub struct Redis {
    folder: TempDir,
    port: u16,
    settings: Vec<(String, String)>,
    server: Option<Process>,
}

impl Redis {
    /// A server that loses nothing: an append-only file, synced before each answer.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with these settings beside: `("maxmemory", "10mb")`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut server = Self { folder, port: free_port(), settings, server: None };
        server.start_again();
        server
    }

    /// Starts it again after [`Redis::kill`], on the same data and port.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_again(&mut self) {
        assert!(self.server.is_none(), "the server runs");
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("a log file");
        let mut command = Command::new("redis-server");
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(self.folder.path());
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--enable-debug-command", "yes"]);
        for (key, value) in &self.settings {
            command.arg(format!("--{key}")).arg(value);
        }
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a second handle on the log")).stdout(log);
        self.server = Some(Process::start("redis-server", &mut command));
        wait_until("Redis is ready", PATIENCE, || {
            let ended = self.server.as_mut().and_then(|server| server.ended().ok().flatten());
            assert!(ended.is_none(), "Redis ended: {}", self.log());
            self.cli(&["PING"]).is_ok_and(|output| output.stdout.starts_with(b"PONG"))
        });
    }

    /// `SIGKILL`.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Ends it and starts it again.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Sends `signal` to it.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        self.server.as_ref().expect("a running server").signal(signal);
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same server as it is reached through `port` of the loopback: a proxy.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    /// Its port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with its data and its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Answers what `redis-cli` prints for one command.
    ///
    /// # Panics
    /// When the server refuses it.
    pub fn command(&self, words: &[&str]) -> String {
        let output = self.cli(words).unwrap_or_else(|error| panic!("redis-cli: {error}"));
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(
            output.status.success() && !text.starts_with("ERR "),
            "{words:?}: {text} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    fn cli(&self, words: &[&str]) -> std::io::Result<Output> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        // A password of the test's own would be asked for.
        if let Some((_, password)) = self.settings.iter().find(|(key, _)| key == "requirepass") {
            cli.args(["--no-auth-warning", "-a", password]);
        }
        cli.args(words).stdin(Stdio::null()).output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_data_when_it_is_killed_and_takes_settings() {
        let mut server = Redis::start_with(&[("databases", "3")]);
        assert_eq!(server.command(&["CONFIG", "GET", "databases"]), "databases\n3");
        server.command(&["SET", "k", "v"]);
        server.restart();
        assert_eq!(server.command(&["GET", "k"]), "v");
    }
}
