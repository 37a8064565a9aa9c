//! Every backend that keeps anything, for tests of what is stored.

#![allow(dead_code, reason = "each test binary uses some of it")]

use crate::oplogs::cluster;
use async_trait::async_trait;
use leasehold_harness::{Postgres, Redis};
use leasehold_persistence::StoreUrl;
use leasehold_persistence::oplog::audit::{self, Layers, OplogAudit, Options, Report, check};
use leasehold_persistence::oplog::layers::ChunkStore;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Damage, done by each backend's own means.
pub struct Change {
    pub what: &'static str,
    pub sqlite: &'static str,
    /// In the schema of the oplogs.
    pub postgres: &'static str,
    /// The words of a command.
    pub redis: Vec<String>,
}

impl Change {
    pub fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// A backend under test.
#[async_trait]
pub trait Backend: Send + Sync {
    fn url(&self) -> StoreUrl;
    async fn suffer(&self, change: &Change);

    async fn store(&self) -> Arc<dyn ChunkStore> {
        leasehold_persistence::oplog::open(&self.url(), &cluster(), Duration::from_secs(1)).await.unwrap().store
    }

    async fn audit(&self) -> Box<dyn OplogAudit> {
        audit::open(&self.url(), &cluster()).await.unwrap()
    }
}

pub struct Sqlite(pub TempDir);

#[async_trait]
impl Backend for Sqlite {
    fn url(&self) -> StoreUrl {
        StoreUrl::Sqlite(self.0.path().to_path_buf())
    }

    async fn suffer(&self, change: &Change) {
        let options = SqliteConnectOptions::new().filename(self.0.path().join("gen-000001.db"));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql(change.sqlite).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

#[async_trait]
impl Backend for Postgres {
    fn url(&self) -> StoreUrl {
        StoreUrl::Postgres(Postgres::url(self))
    }

    async fn suffer(&self, change: &Change) {
        self.sql(&format!("SET search_path TO leasehold_oplogs; {}", change.postgres));
    }
}

#[async_trait]
impl Backend for Redis {
    fn url(&self) -> StoreUrl {
        StoreUrl::Redis(Redis::url(self))
    }

    async fn suffer(&self, change: &Change) {
        self.command(&change.redis.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

pub async fn checked(backend: &dyn Backend, options: &Options) -> Report {
    check(Layers::indexed(&*backend.audit().await), options, &mut |_| ()).await.unwrap()
}

/// The same for every backend.
macro_rules! on_every_backend {
    ($($(#[$doc:meta])* $test:ident;)*) => {
        $(
            mod $test {
                $(#[$doc])*
                #[tokio::test]
                async fn on_sqlite() {
                    super::$test(&crate::backends::Sqlite(tempfile::TempDir::new().unwrap())).await;
                }
                $(#[$doc])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn on_postgresql() {
                    super::$test(&leasehold_harness::Postgres::start()).await;
                }
                $(#[$doc])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn on_redis() {
                    super::$test(&leasehold_harness::Redis::start()).await;
                }
            }
        )*
    };
}
pub(crate) use on_every_backend;
