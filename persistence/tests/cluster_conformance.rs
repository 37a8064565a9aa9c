//! The conformance suite of cluster stores, on every backend that is built in.

#![allow(missing_docs, reason = "a test binary has no public items; the lint sees those that macros make")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use async_trait::async_trait;
use leasehold_persistence::cluster::{Error, MemoryClusterStore};
use leasehold_persistence::conformance::cluster::{Fixture, Opened};
use std::sync::Arc;

mod memory {
    use super::*;

    /// One store; every opening is another process's handle.
    #[derive(Default)]
    struct Memory(MemoryClusterStore);

    #[async_trait]
    impl Fixture for Memory {
        async fn open(&self) -> Result<Opened, Error> {
            let store = self.0.another();
            store.take_over()?;
            let counters = store.counters();
            let before = counters.read();
            let counts = move || counters.read().since(before);
            Ok(Opened { store: Arc::new(store), counts: Box::new(counts) })
        }
    }

    leasehold_persistence::cluster_store_conformance!(Memory::default());
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use leasehold_harness::Postgres;
    use leasehold_model::ClusterName;
    use leasehold_persistence::cluster::PostgresClusterStore;

    struct Server(Postgres);

    #[async_trait]
    impl Fixture for Server {
        async fn open(&self) -> Result<Opened, Error> {
            let cluster = ClusterName::new("conformance").unwrap();
            let store = PostgresClusterStore::open(&self.0.url(), &cluster).await?;
            let counters = store.counters();
            Ok(Opened { store: Arc::new(store), counts: Box::new(move || counters.read()) })
        }
    }

    leasehold_persistence::cluster_store_conformance!(Server(Postgres::start()));
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use leasehold_persistence::cluster::SqliteClusterStore;
    use tempfile::TempDir;

    struct Sqlite(TempDir);

    #[async_trait]
    impl Fixture for Sqlite {
        async fn open(&self) -> Result<Opened, Error> {
            let store = SqliteClusterStore::open(self.0.path().join("manager.db")).await?;
            let counters = store.counters();
            Ok(Opened { store: Arc::new(store), counts: Box::new(move || counters.read()) })
        }
    }

    leasehold_persistence::cluster_store_conformance!(Sqlite(tempfile::tempdir().unwrap()));
}

#[cfg(feature = "etcd")]
mod etcd {
    use super::*;
    use leasehold_harness::Etcd;
    use leasehold_model::ClusterName;
    use leasehold_persistence::cluster::EtcdClusterStore;
    use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A node of its own; every opening is another leader's handle, whose election ended the one before.
    struct Node {
        etcd: Etcd,
        elections: AtomicU64,
    }

    impl Node {
        fn start() -> Self {
            Self { etcd: Etcd::start(), elections: AtomicU64::new(0) }
        }
    }

    #[async_trait]
    impl Fixture for Node {
        async fn open(&self) -> Result<Opened, Error> {
            let election = "/leasehold/conformance/election/";
            let key = format!("{election}{}", self.elections.fetch_add(1, Ordering::Relaxed));
            self.etcd.ctl(&["del", "--prefix", election]);
            self.etcd.ctl(&["put", &key, "leader"]);
            let options = EtcdOptions { endpoints: self.etcd.endpoints(), ..EtcdOptions::default() };
            let connection = EtcdConnection::open(options).await?;
            let leader = connection.leader_key(key).await?.unwrap();
            let store = EtcdClusterStore::new(connection, &ClusterName::new("conformance").unwrap(), leader);
            let counters = store.counters();
            Ok(Opened { store: Arc::new(store), counts: Box::new(move || counters.read()) })
        }
    }

    leasehold_persistence::cluster_store_conformance!(Node::start());
}
