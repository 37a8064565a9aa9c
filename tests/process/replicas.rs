//! Several managers on one etcd, all on this host.

use crate::processes::{Place, Process, wait_for};
use leasehold_harness::{Etcd, EtcdConfig};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// `leadership.leader_lease_ttl` where a test waits for its end.
pub const TTL: Duration = Duration::from_secs(3);
/// What noticing, loading and granting may take, on a busy machine of two cores.
pub const SLACK: Duration = Duration::from_secs(2);
/// A ttl that no test outlasts: whatever happens sooner did not wait for it.
pub const LONG: &[&str] = &["--set", "leadership.leader_lease_ttl=60s"];
pub const REDIRECT: &[&str] = &["--set", "leadership.standby_grpc=redirect"];

/// A manager that serves HTTP.
pub struct Replica {
    pub process: Process,
    pub grpc: String,
    pub http: String,
}

impl Replica {
    /// Status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let ask = || {
            let mut stream = TcpStream::connect(&self.http).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
        };
        ask().unwrap_or_default()
    }

    pub fn leads(&self) -> bool {
        self.get("/leaderz").0 == 200
    }

    pub fn wait_to_lead(&self) {
        wait_for("it to lead", || self.leads().then_some(()));
    }

    /// The value of a metric, named with its labels; 0 before it first counted.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
    }

    /// Whether its gRPC port is open.
    pub fn is_open(&self) -> bool {
        let address: SocketAddr = self.grpc.parse().unwrap();
        TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
    }

    /// The `ManagerId` of each leadership that it has had.
    pub fn leaderships(&self) -> Vec<String> {
        self.process.every("took over the store", "manager")
    }
}

/// An etcd, and a folder for what runs on it.
pub struct Replicas {
    pub etcd: Etcd,
    pub place: Place,
}

impl Replicas {
    pub fn new() -> Self {
        Self { etcd: Etcd::start_with(&EtcdConfig::default()), place: Place::new() }
    }

    /// A manager that may not come to serve.
    pub fn begin(&self, grpc: &str, more: &[&str]) -> Process {
        let (url, ttl) = (
            format!("store.url=etcd:{}", self.etcd.endpoint()),
            format!("leadership.leader_lease_ttl={}s", TTL.as_secs()),
        );
        let mut args = vec!["--set", &url, "--set", &ttl, "--set", "store.request_timeout=1s"];
        args.extend(["--set", "lease.profile=lan", "--set", "store.compaction_retention_revisions=0"]);
        args.extend(more);
        self.place.manager_at(grpc, &args)
    }

    pub fn manager(&self, more: &[&str]) -> Replica {
        let mut process = self.begin("127.0.0.1:0", more);
        let (grpc, http) = (process.address(), process.logged("serving", "http"));
        Replica { process, grpc, http }
    }

    /// Managers in this order in the queue: the first leads.
    pub fn managers(&self, count: usize, more: &[&str]) -> Vec<Replica> {
        let managers = (1..=count).map(|place| {
            let manager = self.manager(more);
            wait_for("its place in the queue", || (self.queue().len() == place).then_some(()));
            manager
        });
        let managers: Vec<_> = managers.collect();
        managers[0].wait_to_lead();
        managers
    }

    /// An executor whose lease bridges the death of a leader.
    pub fn executor(&self, managers: &str, name: &str) -> Process {
        self.place.executor(managers, name, &["--set", "lease.profile=lan"])
    }

    /// The places in the queue, first place first: each ends with the id of a lease.
    pub fn queue(&self) -> Vec<String> {
        let key = "/leasehold/leasehold/election/";
        let keys = self.etcd.ctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", key]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Takes the leader's lease away under it.
    pub fn revoke(&self) {
        let queue = self.queue();
        self.etcd.ctl(&["lease", "revoke", queue[0].rsplit('/').next().unwrap()]);
    }

    /// Every key of the cluster's state with its value and modification, as etcd has them.
    pub fn stored(&self) -> Vec<Value> {
        let parts = ["head", "shards/", "executors/"].map(|part| {
            let key = format!("/leasehold/leasehold/{part}");
            let answer: Value = serde_json::from_str(&self.etcd.ctl(&["get", "--prefix", &key, "-w", "json"])).unwrap();
            answer["kvs"].as_array().cloned().unwrap_or_default()
        });
        parts.concat()
    }
}

/// The managers' addresses as a list.
pub fn list(managers: &[Replica]) -> String {
    let all: Vec<_> = managers.iter().map(|manager| manager.grpc.as_str()).collect();
    all.join(",")
}

/// Waits until `ready`, which must be so within `bound`.
pub fn within(what: &str, bound: Duration, mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    wait_for(what, || ready().then_some(()));
    assert!(began.elapsed() < bound, "{what}: took {:?}, and may take {bound:?}", began.elapsed());
}
