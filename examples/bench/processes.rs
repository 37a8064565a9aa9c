//! The real release binary as a process: how soon it serves, how much memory it has.

use crate::cluster::{folder, store};
use crate::figure::{Error, Measured, Result};
use crate::rounds::in_turns;
use leasehold_model::Address;
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ManagerClient;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to do anything.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_micros(200);

/// Where `shard-manager` is, which `make bench` has built beside this example: built from here, this example might be built anew under its own feet.
pub fn binary() -> Result<PathBuf> {
    // This is target/release/examples/bench.
    let exe = std::env::current_exe()?;
    let release = exe.ancestors().nth(2).ok_or("this binary is nowhere")?;
    let binary = release.join("shard-manager");
    if binary.exists() { Ok(binary) } else { Err(format!("there is no {}: use make bench", binary.display()).into()) }
}

/// A process that does not outlive the benchmark.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// Asks it to end, and waits.
    pub fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.0.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("a process does not end".into())
    }

    fn resident_mib(&self) -> Result<f64> {
        Ok(resident_kib(&self.0.id().to_string())? / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has usually ended before.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Resident memory of a process, in KiB.
pub fn resident_kib(process: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// `shard-manager serve` on the store at `path`.
fn serve(binary: &Path, store: &Path, address: &Address) -> Result<Process> {
    let mut command = Command::new(binary);
    command.arg("serve").stdout(Stdio::null());
    for setting in [
        format!("store.url=sqlite:{}", store.display()),
        format!("listen.grpc={address}"),
        "listen.http=127.0.0.1:0".to_owned(),
        "cluster.name=bench".to_owned(),
        "cluster.shard_count=1024".to_owned(),
    ] {
        command.args(["--set", &setting]);
    }
    Process::start(&mut command)
}

/// A port that was free a moment ago.
pub fn free_address() -> Result<Address> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(Address::new(listener.local_addr()?.to_string())?)
}

/// Waits for the first answered call; an open port alone would not mean that anything is served.
async fn first_answer(address: &Address) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let target: std::net::SocketAddr = address.as_str().parse()?;
    while Instant::now() < until {
        if std::net::TcpStream::connect(target).is_ok() {
            let client = ManagerClient::new(Dialer::tcp().deadline(PATIENCE).dial(address));
            client.routing_table().await?;
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::from("nothing is served"))
}

/// `port_open_ms`: from before the process is made until it has answered a call, on a store with 200 executors that own
/// 1,024 shards; against the same binary saying its version.
pub async fn port_open() -> Result<Measured> {
    let (binary, folder) = (binary()?, folder()?);
    let path = folder.path().join("manager.db");
    store(&path, 1024, 200).await?;
    let subject = async || {
        let address = free_address()?;
        let began = Instant::now();
        let process = serve(&binary, &path, &address)?;
        first_answer(&address).await?;
        let took = began.elapsed();
        process.end()?;
        Ok(took.as_secs_f64() * 1e3)
    };
    let baseline = async || {
        let began = Instant::now();
        Command::new(&binary).arg("--version").stdout(Stdio::null()).status()?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    in_turns(20, subject, baseline).await
}

/// `dev_rss_mib`: `shard-manager dev` with its defaults, once it says that every shard is served; against a manager alone.
pub async fn dev_resident() -> Result<Measured> {
    let (binary, folder) = (binary()?, folder()?);
    let path = folder.path().join("manager.db");
    let subject = async || {
        let mut process = Process::start(Command::new(&binary).arg("dev").stdout(Stdio::piped()))?;
        let output = process.0.stdout.take().ok_or("no output")?;
        for line in BufReader::new(output).lines() {
            if line?.starts_with("Ctrl-C") {
                break;
            }
        }
        // A few renewals and passes: what it is like when nobody looks.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let resident = process.resident_mib()?;
        process.end()?;
        Ok(resident)
    };
    let baseline = async || {
        let address = free_address()?;
        let process = serve(&binary, &path, &address)?;
        first_answer(&address).await?;
        let resident = process.resident_mib()?;
        process.end()?;
        Ok(resident)
    };
    in_turns(3, subject, baseline).await
}
