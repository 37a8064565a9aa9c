//! The conformance suite of oplog stores, on every backend that is built in.

#![allow(missing_docs, reason = "a test binary has no public items; the lint sees those that macros make")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[cfg(all(feature = "files", feature = "s3"))]
mod blob_places;

use async_trait::async_trait;
use leasehold_persistence::conformance::layers::{Archived, ChunkFixture};
use leasehold_persistence::conformance::oplog::Fixture;
use leasehold_persistence::oplog::layers::ChunkStore;
use leasehold_persistence::oplog::{Gate, OplogStore};
use std::sync::Arc;

/// The suites of the archive layer.
macro_rules! layers {
    ($fixture:expr) => {
        mod chunks {
            use super::*;
            leasehold_persistence::chunk_store_conformance!($fixture);
        }

        mod archived_in_the_list {
            use super::*;
            leasehold_persistence::oplog_store_conformance!(Archived::in_list($fixture));
        }

        mod archived_in_blobs {
            use super::*;
            leasehold_persistence::oplog_store_conformance!(Archived::in_blobs($fixture));
        }

        #[cfg(all(feature = "files", feature = "s3"))]
        mod archived_in_files {
            use super::*;
            use crate::blob_places::Folder;
            leasehold_persistence::oplog_store_conformance!(Archived::in_place($fixture, Folder::new()));
        }

        #[cfg(all(feature = "files", feature = "s3"))]
        mod archived_on_s3 {
            use super::*;
            use crate::blob_places::Bucket;
            leasehold_persistence::oplog_store_conformance!(Archived::in_place($fixture, Bucket::new()));
        }
    };
}

mod memory {
    use super::*;
    use leasehold_persistence::oplog::MemoryOplogStore;
    use leasehold_persistence::oplog::memory::{Call, Fault};

    #[derive(Default)]
    struct Memory(MemoryOplogStore);

    #[async_trait]
    impl Fixture for Memory {
        async fn open(&self) -> Arc<dyn OplogStore> {
            Arc::new(self.0.handle())
        }

        async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
            let handle = self.0.handle();
            handle.script(Call::Append, Fault::HoldBefore(gate));
            Arc::new(handle)
        }
    }

    leasehold_persistence::oplog_store_conformance!(Memory::default());

    #[async_trait]
    impl ChunkFixture for Memory {
        async fn open(&self) -> Arc<dyn ChunkStore> {
            Arc::new(self.0.handle())
        }

        async fn open_held(&self, gate: Gate) -> Arc<dyn ChunkStore> {
            let handle = self.0.handle();
            handle.script(Call::Append, Fault::HoldBefore(gate));
            Arc::new(handle)
        }
    }

    layers!(Memory::default());
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use leasehold_persistence::oplog::SqliteOplogStore;
    use leasehold_persistence::oplog::sqlite::{Point, Settings};
    use std::time::Duration;
    use tempfile::TempDir;

    struct Sqlite(TempDir);

    impl Sqlite {
        async fn with(&self, settings: Settings) -> Arc<SqliteOplogStore> {
            Arc::new(SqliteOplogStore::open_with(self.0.path(), settings).await.unwrap())
        }
    }

    #[async_trait]
    impl Fixture for Sqlite {
        async fn open(&self) -> Arc<dyn OplogStore> {
            self.with(prompt()).await
        }

        async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
            self.with(held(gate)).await
        }
    }

    #[async_trait]
    impl ChunkFixture for Sqlite {
        async fn open(&self) -> Arc<dyn ChunkStore> {
            self.with(prompt()).await
        }

        async fn open_held(&self, gate: Gate) -> Arc<dyn ChunkStore> {
            self.with(held(gate)).await
        }
    }

    fn prompt() -> Settings {
        Settings { step_around_after: Duration::from_millis(300), ..Settings::default() }
    }

    /// Held inside its transaction, with SQLite's write lock.
    fn held(gate: Gate) -> Settings {
        let probe = move |point| {
            let gate = gate.clone();
            Box::pin(async move {
                if point == Point::Written {
                    gate.pass().await;
                }
            }) as futures::future::BoxFuture<'static, ()>
        };
        Settings { probe: Some(Arc::new(probe)), ..Settings::default() }
    }

    leasehold_persistence::oplog_store_conformance!(Sqlite(TempDir::new().unwrap()));

    layers!(Sqlite(TempDir::new().unwrap()));
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use leasehold_harness::Postgres;
    use leasehold_model::ClusterName;
    use leasehold_persistence::oplog::PostgresOplogStore;
    use leasehold_persistence::oplog::postgres::Settings;

    /// One server, one cluster.
    struct Server(Postgres);

    impl Server {
        async fn with(&self, settings: Settings) -> Arc<PostgresOplogStore> {
            let cluster = ClusterName::new("c").unwrap();
            Arc::new(PostgresOplogStore::open_with(&self.0.url(), &cluster, settings).await.unwrap())
        }
    }

    #[async_trait]
    impl Fixture for Server {
        async fn open(&self) -> Arc<dyn OplogStore> {
            self.with(Settings::default()).await
        }

        /// Held before it is sent; `oplog_postgres.rs` holds one inside the server.
        async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
            self.with(Settings { hold: Some(gate), ..Settings::default() }).await
        }
    }

    leasehold_persistence::oplog_store_conformance!(Server(Postgres::start()));

    #[async_trait]
    impl ChunkFixture for Server {
        async fn open(&self) -> Arc<dyn ChunkStore> {
            self.with(Settings::default()).await
        }

        async fn open_held(&self, gate: Gate) -> Arc<dyn ChunkStore> {
            self.with(Settings { hold: Some(gate), ..Settings::default() }).await
        }
    }

    layers!(Server(Postgres::start()));
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;
    use leasehold_harness::Redis;
    use leasehold_model::ClusterName;
    use leasehold_persistence::oplog::RedisOplogStore;
    use leasehold_persistence::oplog::redis::Settings;

    struct Server(Redis);

    impl Server {
        async fn with(&self, settings: Settings) -> Arc<RedisOplogStore> {
            let cluster = ClusterName::new("c").unwrap();
            Arc::new(RedisOplogStore::open_with(&self.0.url(), &cluster, settings).await.unwrap())
        }
    }

    #[async_trait]
    impl Fixture for Server {
        async fn open(&self) -> Arc<dyn OplogStore> {
            self.with(Settings::default()).await
        }

        /// Held before it is sent; `oplog_redis.rs` holds one in the network.
        async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
            self.with(Settings { hold: Some(gate), ..Settings::default() }).await
        }
    }

    leasehold_persistence::oplog_store_conformance!(Server(Redis::start()));

    #[async_trait]
    impl ChunkFixture for Server {
        async fn open(&self) -> Arc<dyn ChunkStore> {
            self.with(Settings::default()).await
        }

        async fn open_held(&self, gate: Gate) -> Arc<dyn ChunkStore> {
            self.with(Settings { hold: Some(gate), ..Settings::default() }).await
        }
    }

    layers!(Server(Redis::start()));
}
