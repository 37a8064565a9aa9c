//! The processes: one manager, executors on one store, each behind a proxy of its own where the store is a server.

use super::{Backend, Plan, Result};
use leasehold_harness::{Postgres, Process, Proxy, Redis, Relay};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const SHARDS: u32 = 16;
pub const EXECUTORS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// Entries between two snapshots: few, so that recoveries begin at some.
const SNAPSHOT_EVERY: u32 = 40;

/// The programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    pub manager: PathBuf,
    pub executor: PathBuf,
}

impl Binaries {
    /// This is `target/PROFILE/examples/zombie`; they are two steps above.
    #[allow(dead_code, reason = "the test knows them from cargo")]
    pub fn beside_this_example() -> Result<Self> {
        let exe = std::env::current_exe()?;
        let folder = exe.ancestors().nth(2).ok_or("this binary is nowhere")?;
        let (manager, executor) = (folder.join("shard-manager"), folder.join("shard-executor"));
        for binary in [&manager, &executor] {
            if !binary.exists() {
                return Err(format!("{} is not there; build it first: cargo build --bins", binary.display()).into());
            }
        }
        Ok(Self { manager, executor })
    }
}

enum Server {
    None,
    Postgres(Postgres),
    Redis(Redis),
}

/// An executor that is frozen now and then, and never killed.
pub struct Executor {
    pub name: String,
    process: Process,
    http: String,
    proxy: Option<Proxy>,
}

/// See the module's documentation.
pub struct World {
    pub backend: Backend,
    pub manager: String,
    pub executors: Vec<Executor>,
    binaries: Binaries,
    // Before the folder: processes end before it goes.
    _manager: Process,
    server: Server,
    folder: TempDir,
}

impl World {
    pub fn start(plan: &Plan) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = match plan.backend {
            Backend::Sqlite => Server::None,
            Backend::Postgres => Server::Postgres(Postgres::start()),
            Backend::Redis => Server::Redis(Redis::start()),
        };
        let shards = format!("cluster.shard_count={SHARDS}");
        let manager = ["store.url=sqlite:manager.db", "rebalance.settle=100ms", &shards];
        let (process, log) = serve(&plan.binaries.manager, "manager", folder.path(), &manager)?;
        let (manager, _) = addresses(&log)?;
        let mut world = Self {
            backend: plan.backend,
            manager,
            executors: Vec::new(),
            binaries: plan.binaries.clone(),
            _manager: process,
            server,
            folder,
        };
        for number in 1..=EXECUTORS {
            let executor = world.executor(&format!("executor-{number}"))?;
            world.executors.push(executor);
        }
        Ok(world)
    }

    fn executor(&self, name: &str) -> Result<Executor> {
        let proxy = match &self.server {
            Server::None => None,
            Server::Postgres(server) => Some(Proxy::before(server.port())),
            Server::Redis(server) => Some(Proxy::before(server.port())),
        };
        let url = format!("oplog.url={}", self.url(proxy.as_ref().map(Proxy::port)));
        let (managers, name_is) = (format!("executor.managers={}", self.manager), format!("executor.name={name}"));
        let snapshots = format!("oplog.snapshot_every={SNAPSHOT_EVERY}");
        let settings = [&*managers, &name_is, &url, &snapshots, "executor.handoff_grace=1s"];
        let (process, log) = serve(&self.binaries.executor, name, self.folder.path(), &settings)?;
        let (_, http) = addresses(&log)?;
        Ok(Executor { name: name.to_owned(), process, http, proxy })
    }

    /// The store, through a port of the loopback or as it is.
    fn url(&self, port: Option<u16>) -> String {
        match &self.server {
            Server::None => "sqlite:oplogs".to_owned(),
            Server::Postgres(server) => server.url_at(port.unwrap_or_else(|| server.port())),
            Server::Redis(server) => server.url_at(port.unwrap_or_else(|| server.port())),
        }
    }

    /// `shard-executor oplog …` on the store itself.
    pub fn oplog(&self, words: &[&str]) -> Result<Output> {
        let url = self.url(None);
        let mut command = Command::new(&self.binaries.executor);
        command.args(["oplog", "--url", &url]).args(words).current_dir(self.folder.path());
        Ok(command.stdin(Stdio::null()).output()?)
    }

    /// Whether executor `number` is in the middle of a transaction on SQLite: it has the write lock, byte 120 of the WAL index.
    pub fn writes(&self, number: usize) -> bool {
        let pid = self.executors[number].process.pid().to_string();
        let files = fs::read_dir(self.folder.path().join("oplogs")).into_iter().flatten().filter_map(|file| file.ok());
        let indexes = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "db-shm"));
        let inodes: Vec<String> = indexes.filter_map(|file| Some(file.metadata().ok()?.ino().to_string())).collect();
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        locks.lines().any(|line| {
            // NUMBER: POSIX ADVISORY WRITE PID MAJOR:MINOR:INODE FROM TO
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "POSIX", _, "WRITE", holder, file, from, to] = words[..] else { return false };
            let covers = from.parse().is_ok_and(|from: u64| from <= 120) && to.parse().is_ok_and(|to: u64| 120 <= to);
            holder == pid && covers && file.rsplit(':').next().is_some_and(|inode| inodes.iter().any(|it| it == inode))
        })
    }

    /// Ends every process; keeps the folder if that is wanted.
    pub fn end(self, keep: bool) -> Option<PathBuf> {
        let Self { folder, executors, _manager, server, .. } = self;
        drop((executors, _manager, server));
        keep.then(|| folder.keep())
    }
}

impl Executor {
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// What the proxy does from now on, if there is one.
    pub fn relay(&self, relay: Relay) {
        if let Some(proxy) = &self.proxy {
            proxy.set(relay);
        }
    }

    /// Messages that the proxy held so far.
    pub fn held(&self) -> usize {
        self.proxy.as_ref().map_or(0, Proxy::held)
    }

    pub fn has_proxy(&self) -> bool {
        self.proxy.is_some()
    }

    /// A counter of its metrics; 0 if it does not answer.
    pub fn metric(&self, name: &str) -> u64 {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.http)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = ask().unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    }
}

/// A server with short leases that logs to a file.
fn serve(binary: &Path, name: &str, folder: &Path, settings: &[&str]) -> Result<(Process, PathBuf)> {
    let log = folder.join(format!("{name}.log"));
    let mut command = Command::new(binary);
    command.args(["--log-format", "json", "--log", "info", "serve"]).current_dir(folder);
    let always = ["listen.grpc=127.0.0.1:0", "listen.http=127.0.0.1:0", "lease.profile=fast", "lease.duration=2s"];
    for setting in always.iter().chain(settings) {
        command.args(["--set", setting]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
    Ok((Process::start(name, &mut command), log))
}

/// Where a server says that it serves gRPC and HTTP.
fn addresses(log: &Path) -> Result<(String, String)> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let text = fs::read_to_string(log)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let said = |line: Value| Some((line["grpc"].as_str()?.to_owned(), line["http"].as_str()?.to_owned()));
        if let Some(found) = lines.into_iter().find_map(said) {
            return Ok(found);
        }
        std::thread::sleep(PAUSE);
    }
    Err(format!("{} does not say where it serves:\n{}", log.display(), fs::read_to_string(log)?).into())
}
