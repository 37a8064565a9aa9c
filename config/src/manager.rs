//! Configuration of `shard-manager`.

use crate::Configuration;
use crate::key::Key;
use crate::keys;
use crate::kind::StorageUrl;
use crate::leadership::Leadership;
use crate::reader::Reader;
use crate::sections::{Lease, Limits, Listen, Log};
use crate::show::ShownValue;
use leasehold_model::{ClusterName, ShardCount};
use std::time::Duration;

/// Everything that `shard-manager serve` can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerConfig {
    /// `cluster.name`.
    pub cluster: ClusterName,
    /// `cluster.shard_count`.
    pub shard_count: ShardCount,
    /// `[lease]`.
    pub lease: Lease,
    /// `[rebalance]`.
    pub rebalance: Rebalance,
    /// `store.url`.
    pub store: StorageUrl,
    /// `[leadership]`: there exactly when the store is etcd.
    pub leadership: Option<Leadership>,
    /// `[listen]`.
    pub listen: Listen,
    /// `[limits]`.
    pub limits: Limits,
    /// `[log]`.
    pub log: Log,
}

/// `[rebalance]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebalance {
    /// How long a cold cluster waits after its first registration (R33): at most 10 s.
    pub settle: Duration,
    /// How many shards may be on the move at once for balance (R28).
    pub max_moves_per_pass: u32,
}

impl Configuration for ManagerConfig {
    const BINARY: &'static str = "shard-manager";

    fn keys() -> &'static [&'static Key] {
        keys::MANAGER
    }

    fn read(reader: &mut Reader) -> Self {
        let cluster = reader.checked(&keys::CLUSTER_NAME, ClusterName::new);
        let shard_count = reader.value(&keys::SHARD_COUNT, crate::executor::shard_count);
        let lease = Lease::read(reader);
        let rebalance =
            Rebalance { settle: reader.duration(&keys::SETTLE), max_moves_per_pass: reader.whole(&keys::MAX_MOVES) };
        let store = reader.shared_storage(&keys::STORE_URL);
        if store == StorageUrl::Memory {
            reader.warnings.push("store.url is memory: the shard map is forgotten when the process ends".into());
        }
        let listen = Listen::read(reader, &keys::MANAGER_GRPC, &keys::MANAGER_HTTP);
        let leadership = Leadership::read(reader, &store, listen, &lease);
        let limits = Limits::read(reader);
        Self { cluster, shard_count, lease, rebalance, store, leadership, listen, limits, log: Log::read(reader) }
    }

    fn derived(&self) -> Vec<ShownValue> {
        self.lease.shown_of_manager()
    }
}
