//! Throw-away etcd: one node ([`Etcd`]) or three ([`EtcdCluster`]). Data and logs live in a temporary folder that goes with the
//! value. `--unsafe-no-fsync` is not known to etcd 3.4: every write is synced, as in production.

use crate::process::{Process, free_port};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a member may take to answer that it is healthy. Half a second alone, two for three on an idle machine.
const READY: Duration = Duration::from_secs(60);
/// How long a member may take to end after SIGTERM.
const ENDING: Duration = Duration::from_secs(20);
/// How much of a member's log a failure shows.
const SHOWN_LOG: usize = 4000;

/// Certificates for TLS, PEM files. A client needs all three as well.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Who signed the others.
    pub ca: PathBuf,
    /// The server's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How etcd is started.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    /// Where clients and peers are listened to. Ports are free ones. The loopback by default.
    pub listen: IpAddr,
    /// Further arguments (`--quota-backend-bytes=…`).
    pub args: Vec<String>,
    /// Serves clients over TLS and wants a certificate signed by the same authority from them.
    pub tls: Option<TlsFiles>,
    /// What stands before the program's name: `ip netns exec NAMESPACE`.
    pub wrap: Vec<String>,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        Self { listen: Ipv4Addr::LOCALHOST.into(), args: Vec::new(), tls: None, wrap: Vec::new() }
    }
}

impl EtcdConfig {
    /// With further arguments.
    #[must_use]
    pub fn with_args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    fn command(&self, program: &str) -> Command {
        let mut words = self.wrap.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words);
        command
    }
}

/// A member: its process, if it runs, and what a restart needs.
#[derive(Debug)]
struct Member {
    name: String,
    config: EtcdConfig,
    client: SocketAddr,
    peer: SocketAddr,
    initial_cluster: String,
    dir: PathBuf,
    process: Option<Process>,
}

impl Member {
    fn new(name: &str, config: &EtcdConfig, dir: &Path) -> Self {
        let address = || SocketAddr::new(config.listen, free_port());
        Self {
            name: name.into(),
            config: config.clone(),
            client: address(),
            peer: address(),
            initial_cluster: String::new(),
            dir: dir.to_owned(),
            process: None,
        }
    }

    fn endpoint(&self) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.client)
    }

    fn peer_url(&self) -> String {
        format!("http://{}", self.peer)
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// The end of what it logged.
    fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(SHOWN_LOG)..]).into_owned()
    }

    fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.unwrap_or_else(|why| panic!("{}: {why}", self.log_path().display()));
        let mut command = self.config.command("etcd");
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.dir.join(&self.name).display()))
            .arg(format!("--listen-client-urls={}", self.endpoint()))
            .arg(format!("--advertise-client-urls={}", self.endpoint()))
            .arg(format!("--listen-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-cluster={}", self.initial_cluster))
            .arg(format!("--initial-cluster-token={}", self.initial_cluster))
            .args(&self.config.args);
        if let Some(tls) = &self.config.tls {
            command
                .arg(format!("--cert-file={}", tls.cert.display()))
                .arg(format!("--key-file={}", tls.key.display()))
                .arg(format!("--trusted-ca-file={}", tls.ca.display()))
                .arg("--client-cert-auth");
        }
        // An operator's own settings must not reach a throw-away server.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ETCD")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a second handle on the log")).stdout(log);
        self.process = Some(Process::start(format!("etcd {}", self.name), &mut command));
    }

    /// Whether it answers a linearizable read, so that there is a quorum too.
    fn is_healthy(&self) -> bool {
        if self.config.tls.is_some() || !self.config.wrap.is_empty() {
            return ctl(&self.config, &self.endpoint(), &["endpoint", "health"]).is_ok();
        }
        let patience = Duration::from_secs(1);
        let Ok(mut stream) = TcpStream::connect_timeout(&self.client, patience) else { return false };
        let mut answer = String::new();
        stream.set_read_timeout(Some(patience)).is_ok()
            && stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.contains("\"true\"")
    }

    /// Whether it ended by itself: mostly because its port was taken meanwhile.
    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| matches!(process.ended(), Ok(Some(_)) | Err(_)))
    }

    fn process(&self) -> &Process {
        self.process.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn terminate(&mut self) {
        self.process().signal(Signal::TERM);
        let until = Instant::now() + ENDING;
        while !self.has_ended() {
            assert!(Instant::now() < until, "{} did not end within {ENDING:?}; its log:\n{}", self.name, self.log());
            sleep(Duration::from_millis(10));
        }
        self.process = None;
    }
}

/// Waits until all `members` are healthy, starting anew those that ended.
fn wait_ready(members: &mut [&mut Member]) {
    let until = Instant::now() + READY;
    loop {
        let Some(sick) = members.iter_mut().find(|member| !member.is_healthy()) else { return };
        let late = Instant::now() > until;
        assert!(!late, "etcd {} is not healthy after {READY:?}; its log:\n{}", sick.name, sick.log());
        if sick.has_ended() {
            sick.start();
        }
        sleep(Duration::from_millis(50));
    }
}

/// Runs etcdctl, answers its standard output, or what it said instead.
fn ctl(config: &EtcdConfig, endpoints: &str, args: &[&str]) -> Result<String, String> {
    let mut command = config.command("etcdctl");
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoints}"));
    if let Some(tls) = &config.tls {
        command
            .arg(format!("--cacert={}", tls.ca.display()))
            .arg(format!("--cert={}", tls.cert.display()))
            .arg(format!("--key={}", tls.key.display()));
    }
    let output = command.args(args).output().unwrap_or_else(|why| panic!("cannot run etcdctl: {why}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("etcdctl {args:?}: {}{}", text(&output.stdout), text(&output.stderr)))
    }
}

/// One node.
#[derive(Debug)]
pub struct Etcd {
    member: Member,
    dir: TempDir,
}

impl Etcd {
    /// Starts a node with default settings and waits until it is healthy.
    ///
    /// # Panics
    /// When it is not within a minute; shows its log.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&EtcdConfig::default())
    }

    /// As [`Etcd::start`], configured.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    #[must_use]
    pub fn start_with(config: &EtcdConfig) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut member = Member::new("solo", config, dir.path());
        member.initial_cluster = format!("{}={}", member.name, member.peer_url());
        member.start();
        wait_ready(&mut [&mut member]);
        Self { member, dir }
    }

    /// Where clients connect: `http://127.0.0.1:PORT`, or `https` with TLS.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.member.endpoint()
    }

    /// [`Etcd::endpoint`] as a list.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        vec![self.endpoint()]
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.member.process().pid()
    }

    /// SIGSTOP: it answers nothing, its sockets stay open.
    ///
    /// # Panics
    /// When it does not run.
    pub fn stop(&self) {
        self.member.process().signal(Signal::STOP);
    }

    /// SIGCONT.
    ///
    /// # Panics
    /// When it does not run.
    pub fn cont(&self) {
        self.member.process().signal(Signal::CONT);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.member.kill();
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Panics
    /// When it does not end.
    pub fn terminate(&mut self) {
        self.member.terminate();
    }

    /// Starts it anew on the same port and data, after [`Etcd::kill`] or [`Etcd::terminate`], and waits until it is healthy.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    pub fn restart(&mut self) {
        self.member.kill();
        self.member.start();
        wait_ready(&mut [&mut self.member]);
    }

    /// Forgets all data: ends it, deletes everything and starts an empty one on the same port.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    pub fn wipe(&mut self) {
        self.member.kill();
        remove_data(&self.member);
        self.restart();
    }

    /// Writes a backup of the data to a file, which lives as long as this value.
    ///
    /// # Panics
    /// When etcdctl fails.
    #[must_use]
    pub fn backup(&self) -> PathBuf {
        let count = fs::read_dir(self.dir.path()).map_or(0, Iterator::count);
        let path = self.dir.path().join(format!("backup-{count}.db"));
        self.ctl(&["snapshot", "save", &path.display().to_string()]);
        path
    }

    /// Ends it, puts the data of `backup` in place of its own, and starts it on the same port.
    ///
    /// # Panics
    /// When etcdctl fails, and as [`Etcd::start`].
    pub fn restore(&mut self, backup: &Path) {
        self.member.kill();
        remove_data(&self.member);
        let args = [
            "snapshot".to_owned(),
            "restore".to_owned(),
            backup.display().to_string(),
            format!("--name={}", self.member.name),
            format!("--data-dir={}", self.dir.path().join(&self.member.name).display()),
            format!("--initial-cluster={}", self.member.initial_cluster),
            format!("--initial-cluster-token={}", self.member.initial_cluster),
            format!("--initial-advertise-peer-urls={}", self.member.peer_url()),
        ];
        self.ctl(&args.iter().map(String::as_str).collect::<Vec<_>>());
        self.restart();
    }

    /// Runs `etcdctl` on it and answers its standard output.
    ///
    /// # Panics
    /// When it fails; shows what it said.
    #[allow(clippy::must_use_candidate, reason = "mostly run for what it does")]
    pub fn ctl(&self, args: &[&str]) -> String {
        ctl(&self.member.config, &self.endpoint(), args)
            .unwrap_or_else(|why| panic!("{why}; the server's log:\n{}", self.member.log()))
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.member.log()
    }
}

fn remove_data(member: &Member) {
    let data = member.dir.join(&member.name);
    fs::remove_dir_all(&data).unwrap_or_else(|why| panic!("{}: {why}", data.display()));
}

/// Three members, numbered 0, 1, 2.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    _dir: TempDir,
}

impl EtcdCluster {
    /// How many members there are.
    pub const MEMBERS: usize = 3;

    /// Starts three members with default settings and waits until all are healthy.
    ///
    /// # Panics
    /// When they are not within a minute; shows a log.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&EtcdConfig::default())
    }

    /// As [`EtcdCluster::start`], all members configured alike.
    ///
    /// # Panics
    /// As [`EtcdCluster::start`].
    #[must_use]
    pub fn start_with(config: &EtcdConfig) -> Self {
        Self::start_each(&[config.clone(), config.clone(), config.clone()])
    }

    /// As [`EtcdCluster::start`], each member with a configuration of its own: another address or network namespace.
    ///
    /// # Panics
    /// As [`EtcdCluster::start`].
    #[must_use]
    pub fn start_each(configs: &[EtcdConfig; Self::MEMBERS]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let named = configs.iter().enumerate();
        let mut members: Vec<_> =
            named.map(|(at, config)| Member::new(&format!("member-{at}"), config, dir.path())).collect();
        let all: Vec<_> = members.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        for member in &mut members {
            member.initial_cluster = all.join(",");
            member.start();
        }
        let mut cluster = Self { members, _dir: dir };
        cluster.wait_ready();
        cluster
    }

    /// Waits until every member that runs is healthy.
    ///
    /// # Panics
    /// When they are not within a minute; shows a log.
    pub fn wait_ready(&mut self) {
        let mut running: Vec<_> = self.members.iter_mut().filter(|member| member.process.is_some()).collect();
        wait_ready(&mut running);
    }

    /// Where clients connect, one for each member, in order.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    /// A member's process id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self, member: usize) -> u32 {
        self.members[member].process().pid()
    }

    /// Which member leads the raft group, as those that run say.
    ///
    /// # Panics
    /// When nobody does within a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        let until = Instant::now() + READY;
        loop {
            let running = self.members.iter().enumerate().filter(|(_, member)| member.process.is_some());
            for (at, member) in running {
                let args = ["endpoint", "status", "--command-timeout=2s", "-w", "simple"];
                // ENDPOINT, ID, VERSION, DB SIZE, IS LEADER, …
                let status = ctl(&member.config, &member.endpoint(), &args).unwrap_or_default();
                if status.split(", ").nth(4) == Some("true") {
                    return at;
                }
            }
            assert!(Instant::now() < until, "no member leads within {READY:?}; a log:\n{}", self.members[0].log());
            sleep(Duration::from_millis(50));
        }
    }

    /// SIGSTOP: it answers nothing, its sockets stay open.
    ///
    /// # Panics
    /// When it does not run.
    pub fn stop(&self, member: usize) {
        self.members[member].process().signal(Signal::STOP);
    }

    /// SIGCONT.
    ///
    /// # Panics
    /// When it does not run.
    pub fn cont(&self, member: usize) {
        self.members[member].process().signal(Signal::CONT);
    }

    /// SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Panics
    /// When it does not end.
    pub fn terminate(&mut self, member: usize) {
        self.members[member].terminate();
    }

    /// Starts a member anew on the same port and data; does not wait (with two members down, nobody becomes healthy).
    pub fn restart(&mut self, member: usize) {
        self.members[member].kill();
        self.members[member].start();
    }

    /// Runs `etcdctl` with the endpoint of one member and answers its standard output.
    ///
    /// # Errors
    /// What it said when it failed.
    pub fn ctl(&self, member: usize, args: &[&str]) -> Result<String, String> {
        ctl(&self.members[member].config, &self.members[member].endpoint(), args)
    }

    /// The end of a member's log.
    #[must_use]
    pub fn log(&self, member: usize) -> String {
        self.members[member].log()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_keeps_its_data_through_a_kill_and_loses_it_only_when_wiped() {
        let mut etcd = Etcd::start();
        etcd.ctl(&["put", "k", "1"]);
        let backup = etcd.backup();
        etcd.ctl(&["put", "k", "2"]);
        etcd.kill();
        etcd.restart();
        assert_eq!(etcd.ctl(&["get", "k", "--print-value-only"]), "2\n");
        etcd.restore(&backup);
        assert_eq!(etcd.ctl(&["get", "k", "--print-value-only"]), "1\n");
        etcd.wipe();
        assert_eq!(etcd.ctl(&["get", "k", "--print-value-only"]), "");
    }

    #[test]
    fn three_members_elect_another_leader_when_theirs_is_killed_and_take_it_back() {
        let mut cluster = EtcdCluster::start();
        let first = cluster.leader();
        cluster.ctl(first, &["put", "k", "1"]).unwrap();
        cluster.kill(first);
        let second = cluster.leader();
        assert_ne!(first, second);
        cluster.restart(first);
        cluster.wait_ready();
        assert_eq!(cluster.ctl(first, &["get", "k", "--print-value-only"]).unwrap(), "1\n");
    }
}
