//! A whole cluster whose processes stand on hosts of their own, in network namespaces: three etcd members, three managers,
//! executors and a gateway under constant load. What is cut is cut by dropped packets.

use leasehold_harness::netns::{Host, Network};
use leasehold_harness::{Process, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here should take on a busy machine of two cores.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// `leadership.leader_lease_ttl`, unless a test has its own.
pub const LEADER_TTL: Duration = Duration::from_secs(3);
/// What L1 gives to noticing, planning, committing, recovering and routing, and once more for a busy machine.
pub const SLACK: Duration = Duration::from_secs(2);
/// The text whose words are counted.
const TEXT: &str = "/usr/share/common-licenses/GPL-3";
const MANAGERS: usize = 3;

/// How many of each there are, and how etcd is started.
pub struct Plan {
    /// Executors.
    pub executors: usize,
    /// `lease.profile`.
    pub profile: &'static str,
    /// `leadership.leader_lease_ttl`.
    pub leader_ttl: Duration,
    /// Further arguments of every etcd member.
    pub etcd: &'static [&'static str],
}

impl Default for Plan {
    fn default() -> Self {
        Self { executors: 2, profile: "lan", leader_ttl: LEADER_TTL, etcd: &[] }
    }
}

/// The cluster. Its parts end with it.
pub struct World {
    plan: Plan,
    folder: tempfile::TempDir,
    network: Network,
    etcd: Vec<Option<Process>>,
    managers: Vec<Option<Process>>,
    executors: Vec<Option<Process>>,
    gateway: Option<Process>,
    load: Option<Process>,
}

/// Where a part serves.
fn at(host: &Host, port: u16) -> String {
    format!("{}:{port}", host.address)
}

impl World {
    /// Starts everything and waits until every shard is owned.
    pub fn start(plan: Plan) -> Self {
        let hosts = u8::try_from(2 * MANAGERS + plan.executors + 1).unwrap();
        let mut world = Self {
            folder: tempfile::tempdir().unwrap(),
            network: Network::new(hosts),
            etcd: (0..MANAGERS).map(|_| None).collect(),
            managers: (0..MANAGERS).map(|_| None).collect(),
            executors: (0..plan.executors).map(|_| None).collect(),
            gateway: None,
            load: None,
            plan,
        };
        for member in 0..MANAGERS {
            world.start_etcd(member);
        }
        world.wait_for_etcd();
        for manager in 0..MANAGERS {
            world.start_manager(manager);
        }
        for executor in 0..world.plan.executors {
            world.start_executor(executor);
        }
        world.start_gateway();
        let executors = world.plan.executors;
        world.served(executors);
        world
    }

    pub fn etcd_host(&self, member: usize) -> &Host {
        &self.network.hosts()[member]
    }

    pub fn manager_host(&self, manager: usize) -> &Host {
        &self.network.hosts()[MANAGERS + manager]
    }

    pub fn executor_host(&self, executor: usize) -> &Host {
        &self.network.hosts()[2 * MANAGERS + executor]
    }

    fn gateway_host(&self) -> &Host {
        self.network.hosts().last().unwrap()
    }

    pub fn etcd_hosts(&self) -> &[Host] {
        &self.network.hosts()[..MANAGERS]
    }

    pub fn manager_hosts(&self) -> &[Host] {
        &self.network.hosts()[MANAGERS..2 * MANAGERS]
    }

    fn log(&self, name: &str) -> File {
        File::options().create(true).append(true).open(self.log_path(name)).unwrap()
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn spawn(&self, name: &str, mut command: Command) -> Process {
        let log = self.log(name);
        let out = log.try_clone().unwrap();
        command.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(out).stderr(log);
        Process::start(name, &mut command)
    }

    pub fn start_etcd(&mut self, member: usize) {
        let peers: Vec<_> =
            (0..MANAGERS).map(|peer| format!("etcd-{peer}=http://{}", at(self.etcd_host(peer), 2380))).collect();
        let host = self.etcd_host(member);
        let (client, peer) = (format!("http://{}", at(host, 2379)), format!("http://{}", at(host, 2380)));
        let mut command = host.command("etcd");
        command.args(["--name", &format!("etcd-{member}"), "--data-dir", &format!("etcd-{member}")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(",")]).args(self.plan.etcd);
        self.etcd[member] = Some(self.spawn(&format!("etcd-{member}"), command));
    }

    /// Waits until every member answers a linearizable read.
    pub fn wait_for_etcd(&self) {
        for member in 0..MANAGERS {
            let url = format!("http://{}/health", at(self.etcd_host(member), 2379));
            let healthy = || self.get(&url).is_some_and(|(_, body)| body.contains("true"));
            wait_until(&format!("etcd member {member}"), PATIENCE, healthy);
        }
    }

    /// What etcdctl prints, asked from the gateway's host of the members that are not cut off from it.
    pub fn etcdctl(&self, args: &[&str]) -> String {
        let endpoints: Vec<_> = self.etcd_hosts().iter().map(|host| at(host, 2379)).collect();
        let mut command = self.gateway_host().command("timeout");
        command.env("ETCDCTL_API", "3").args(["20", "etcdctl", "--endpoints", &endpoints.join(",")]).args(args);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    pub fn start_manager(&mut self, manager: usize) {
        let endpoints: Vec<_> = self.etcd_hosts().iter().map(|host| format!("http://{}", at(host, 2379))).collect();
        let host = self.manager_host(manager);
        let mut command = host.command(env!("CARGO_BIN_EXE_shard-manager"));
        command.args(["--log-format", "json", "serve"]);
        for setting in [
            format!("lease.profile={}", self.plan.profile),
            format!("store.url=etcd:{}", endpoints.join(",")),
            format!("listen.grpc={}", at(host, 7470)),
            format!("listen.http={}", at(host, 7471)),
            format!("leadership.leader_lease_ttl={}s", self.plan.leader_ttl.as_secs()),
            "store.request_timeout=1s".to_owned(),
            "leadership.standby_grpc=redirect".to_owned(),
            "store.compaction_retention_revisions=0".to_owned(),
            "cluster.shard_count=12".to_owned(),
            "rebalance.settle=1s".to_owned(),
        ] {
            command.args(["--set", &setting]);
        }
        self.managers[manager] = Some(self.spawn(&format!("manager-{manager}"), command));
    }

    fn manager_addresses(&self) -> String {
        let addresses: Vec<_> = self.manager_hosts().iter().map(|host| at(host, 7470)).collect();
        addresses.join(",")
    }

    pub fn start_executor(&mut self, executor: usize) {
        let host = self.executor_host(executor);
        let mut command = host.command(env!("CARGO_BIN_EXE_shard-executor"));
        command.args(["--log-format", "json", "serve"]);
        for setting in [
            format!("lease.profile={}", self.plan.profile),
            format!("executor.managers={}", self.manager_addresses()),
            format!("executor.name=executor-{executor}"),
            format!("listen.grpc={}", at(host, 7480)),
            format!("listen.http={}", at(host, 7481)),
            "executor.handoff_grace=1s".to_owned(),
            "oplog.url=sqlite:oplogs".to_owned(),
        ] {
            command.args(["--set", &setting]);
        }
        self.executors[executor] = Some(self.spawn(&format!("executor-{executor}"), command));
    }

    fn start_gateway(&mut self) {
        let host = self.gateway_host();
        let mut command = host.command(env!("CARGO_BIN_EXE_shard-executor"));
        command.args(["--log-format", "json", "route"]);
        for setting in [
            format!("route.managers={}", self.manager_addresses()),
            format!("listen.grpc={}", at(host, 7490)),
            format!("listen.http={}", at(host, 7491)),
        ] {
            command.args(["--set", &setting]);
        }
        self.gateway = Some(self.spawn("gateway", command));
    }

    /// The process of a manager.
    pub fn manager(&mut self, manager: usize) -> &mut Process {
        self.managers[manager].as_mut().unwrap()
    }

    /// The process of an etcd member.
    pub fn member(&mut self, member: usize) -> &mut Process {
        self.etcd[member].as_mut().unwrap()
    }

    /// The process of an executor.
    pub fn executor(&mut self, executor: usize) -> &mut Process {
        self.executors[executor].as_mut().unwrap()
    }

    /// Status and body of an HTTP answer, asked from the host that is asked itself, so that no cut is in between.
    fn get(&self, url: &str) -> Option<(u16, String)> {
        let address = url.strip_prefix("http://")?.split(':').next()?;
        let host = self.network.hosts().iter().find(|host| host.address.to_string() == address)?;
        let mut command = host.command("curl");
        command.args(["--silent", "--max-time", "2", "--write-out", "\n%{http_code}", url]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (body, code) = text.rsplit_once('\n')?;
        Some((code.parse().ok()?, body.to_owned()))
    }

    /// Whether a manager says itself that it leads.
    pub fn leads(&self, manager: usize) -> bool {
        let url = format!("http://{}/leaderz", at(self.manager_host(manager), 7471));
        self.get(&url).is_some_and(|(status, _)| status == 200)
    }

    /// The manager that leads, other than `not`; waits for it.
    pub fn leader_but(&self, not: Option<usize>) -> usize {
        let mut leader = None;
        wait_until("a leader", PATIENCE, || {
            leader = (0..MANAGERS).find(|manager| Some(*manager) != not && self.leads(*manager));
            leader.is_some()
        });
        leader.unwrap()
    }

    /// The value of a metric of a manager, named with its labels; 0 before it first counted.
    pub fn metric_of(&self, manager: usize, name: &str) -> f64 {
        let url = format!("http://{}/metrics", at(self.manager_host(manager), 7471));
        let (_, text) = self.get(&url).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    /// What a command prints, run beside the gateway.
    fn json(&self, binary: &str, args: &[&str]) -> Option<Value> {
        let mut command = self.gateway_host().command(binary);
        let output = command.current_dir(self.folder.path()).args(args).arg("--json").output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The status of the cluster.
    pub fn status(&self) -> Option<Value> {
        self.json(env!("CARGO_BIN_EXE_shard-manager"), &["status", "--manager", &self.manager_addresses()])
    }

    /// Owner and epoch of every shard.
    pub fn owners(&self) -> Value {
        let mut shards = None;
        wait_until("the shards", PATIENCE, || {
            let args = ["shards", "--manager", &self.manager_addresses()];
            shards = self.json(env!("CARGO_BIN_EXE_shard-manager"), &args);
            shards.is_some()
        });
        shards.unwrap()
    }

    /// Waits until so many executors own all shards, evenly.
    pub fn served(&self, executors: usize) {
        wait_until("every shard to be owned", PATIENCE, || {
            let Some(status) = self.status() else { return false };
            let held: Vec<_> =
                status["executors"].as_array().unwrap().iter().map(|row| row["owned"].as_u64()).collect();
            held.len() == executors && held.iter().all(|owned| *owned == Some(12 / executors as u64))
        });
    }

    /// Starts counting words through the gateway, again and again.
    pub fn start_load(&mut self) {
        let gateway = at(self.gateway_host(), 7490);
        let mut command = self.gateway_host().command(env!("CARGO_BIN_EXE_shard-executor"));
        command.args(["load", TEXT, "--gateway", &gateway, "--json", "--timeout", "60s", "--repeat", "1000000"]);
        command.args(["--concurrency", "16", "--progress", "progress.json"]);
        let out = File::create(self.folder.path().join("load.json")).unwrap();
        command.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(out).stderr(self.log("load"));
        self.load = Some(Process::start("load", &mut command));
        wait_until("the first words", PATIENCE, || self.folder.path().join("progress.json").exists());
    }

    /// Stops counting: no caller may have seen an error. The longest that one call took.
    pub fn stop_load(&mut self) -> Duration {
        let mut load = self.load.take().unwrap();
        load.signal(rustix::process::Signal::INT);
        wait_until("the load's end", PATIENCE, || load.ended().unwrap().is_some());
        let said = fs::read_to_string(self.folder.path().join("load.json")).unwrap();
        let summary: Value = serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}"));
        assert_eq!(summary["failed"], 0, "{summary}");
        Duration::from_secs_f64(summary["latency_ms"]["max"].as_f64().unwrap() / 1000.0)
    }

    /// Every write of the state ever, from etcd's own history.
    pub fn history(&self) -> Vec<Value> {
        let watched = {
            let endpoints: Vec<_> = self.etcd_hosts().iter().map(|host| at(host, 2379)).collect();
            let mut command = self.gateway_host().command("timeout");
            command.env("ETCDCTL_API", "3").args(["3", "etcdctl", "--endpoints", &endpoints.join(",")]);
            command.args(["watch", "--rev=1", "/leasehold/leasehold/head"]);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        watched.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Makes the leader of the moment write.
    pub fn write(&self) {
        for order in ["drain", "undrain"] {
            let mut done = None;
            wait_until(order, PATIENCE, || {
                let args = [order, "executor-0", "--manager", &self.manager_addresses()];
                done = self.json(env!("CARGO_BIN_EXE_shard-manager"), &args);
                done.is_some()
            });
        }
    }

    /// Fails unless each write came from the leader of its time: the leaderships in the order of their elections, never back.
    pub fn check_history(&self) -> usize {
        let history = self.history();
        assert!(!history.is_empty(), "etcd remembers no write");
        let number = |write: &Value, field: &str| write[field].as_u64().unwrap_or_else(|| panic!("{field} of {write}"));
        for (before, after) in history.iter().zip(&history[1..]) {
            assert!(number(before, "revision") <= number(after, "revision"), "{before} then {after}");
            assert!(number(before, "leadership") <= number(after, "leadership"), "{before} then {after}");
        }
        history.iter().map(|write| number(write, "leadership")).collect::<BTreeSet<_>>().len()
    }

    /// What a part has logged.
    pub fn logged(&self, name: &str) -> String {
        fs::read_to_string(self.log_path(name)).unwrap_or_default()
    }

    /// How many executors any manager has reaped.
    pub fn reaped(&self) -> f64 {
        (0..MANAGERS).map(|manager| self.metric_of(manager, "leasehold_reaped_leases_total")).sum()
    }

    /// The folder that everything is in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Waits until `what` holds, and fails when that took longer than `within`; how long it took.
pub fn within(what: &str, limit: Duration, ready: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    wait_until(what, PATIENCE, ready);
    let took = began.elapsed();
    assert!(took <= limit, "{what} took {took:?}, not {limit:?}");
    took
}
