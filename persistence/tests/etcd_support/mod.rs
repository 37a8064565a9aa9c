//! What the tests on etcd share.

use leasehold_harness::{Etcd, TlsFiles};
use leasehold_model::command::{Command, Draft};
use leasehold_model::message::Weight;
use leasehold_model::plan::Plan;
use leasehold_model::state::{ClusterState, Executor};
use leasehold_model::{Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, ShardCount, ShardId, Ttl};
use leasehold_persistence::cluster::{EtcdClusterStore, Write};
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions, EtcdTls, LeaderKey, prefix};
use std::fs;
use std::ops::Range;

pub fn cluster() -> ClusterName {
    ClusterName::new("test").unwrap()
}

pub fn count(shards: u32) -> ShardCount {
    ShardCount::new(shards).unwrap()
}

pub const fn id(number: u128) -> ExecutorId {
    ExecutorId::from_u128(1 << 100 | number)
}

/// Its name is as long as can be.
pub fn executor(number: u128) -> Executor {
    Executor {
        name: ExecutorName::new(format!("{:x<128}", format!("executor-{number}-"))).unwrap(),
        address: Address::new(format!("executor-{number}.example:7000")).unwrap(),
        zone: Some("zone".into()),
        weight: Weight::default(),
        lease_length: Ttl::from_ms(60_000).unwrap(),
        key_hash: LeaseKeyHash([7; 32]),
        draining: false,
        superseded: false,
        registered_at_ms: 1_700_000_000_000,
    }
}

pub fn register(number: u128) -> Command {
    Command::Register { id: id(number), executor: executor(number), replaces: None }
}

/// Every shard to the executors of these numbers in turn.
pub fn assignment(shards: u32, to: Range<u128>) -> Command {
    let len = to.end - to.start;
    let grants = (0..shards).map(|shard| (ShardId(shard), id(to.start + u128::from(shard) % len))).collect();
    Command::Plan(Plan { grants, ..Plan::default() })
}

/// The write of `commands`, none of which may be refused, and the state after it.
pub fn draft(state: &ClusterState, tag: u128, commands: &[Command]) -> (Write, ClusterState) {
    let mut draft = Draft::on(state);
    for command in commands {
        let _ = draft.apply(command).unwrap();
    }
    let (after, changes) = draft.finish();
    (Write { tag, expected: state.revision, next: after.revision, changes }, after)
}

pub fn options(endpoints: Vec<String>) -> EtcdOptions {
    EtcdOptions { endpoints, ..EtcdOptions::default() }
}

/// One leadership.
#[derive(Debug)]
pub struct Leading {
    pub connection: EtcdConnection,
    pub store: EtcdClusterStore,
    pub key: String,
    leader: LeaderKey,
}

impl Leading {
    /// Another handle of the same leadership.
    pub fn another(&self) -> EtcdClusterStore {
        EtcdClusterStore::new(self.connection.clone(), &cluster(), self.leader.clone())
    }
}

/// Ends whatever election there was and wins one: the key, and its number.
pub fn election(etcd: &Etcd, cluster: &ClusterName) -> (String, u32) {
    let election = format!("{}election/", prefix(cluster));
    let number = etcd.ctl(&["get", &format!("{}elections", prefix(cluster)), "--print-value-only"]);
    let number = number.trim().parse().unwrap_or(0) + 1;
    etcd.ctl(&["put", &format!("{}elections", prefix(cluster)), &number.to_string()]);
    etcd.ctl(&["del", "--prefix", &election]);
    let key = format!("{election}{number}");
    etcd.ctl(&["put", &key, "leader"]);
    (key, number)
}

pub async fn lead(etcd: &Etcd) -> Leading {
    lead_cluster(etcd, &cluster()).await
}

pub async fn lead_cluster(etcd: &Etcd, cluster: &ClusterName) -> Leading {
    lead_options(etcd, cluster, options(etcd.endpoints())).await
}

pub async fn lead_options(etcd: &Etcd, cluster: &ClusterName, options: EtcdOptions) -> Leading {
    let (key, _) = election(etcd, cluster);
    of_cluster(options, cluster, key).await
}

/// Leads by `key`, which exists.
pub async fn lead_on(options: EtcdOptions, key: String) -> Leading {
    of_cluster(options, &cluster(), key).await
}

async fn of_cluster(options: EtcdOptions, cluster: &ClusterName, key: String) -> Leading {
    let connection = EtcdConnection::open(options).await.unwrap();
    let leader = connection.leader_key(key.as_str()).await.unwrap().unwrap();
    let store = EtcdClusterStore::new(connection.clone(), cluster, leader.clone());
    Leading { connection, store, key, leader }
}

/// The certificates of `files`, for a client.
pub fn tls(files: &TlsFiles) -> EtcdTls {
    let read = |path| fs::read_to_string(path).unwrap();
    EtcdTls { ca: read(&files.ca), identity: Some((read(&files.cert), read(&files.key))) }
}
