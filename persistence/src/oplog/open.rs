//! Opens the store that a URL names.

use super::layers::ChunkStore;
use super::{Error, MemoryOplogStore, Warning};
use crate::url::StoreUrl;
use leasehold_model::ClusterName;
use std::sync::Arc;
use std::time::Duration;

/// A store, and what an operator should know of it.
pub struct Opened {
    /// The store, which has an archive layer for whoever puts one in front ([`super::layers::Layered`]).
    pub store: Arc<dyn ChunkStore>,
    /// Settings of the server that weaken what it promises.
    pub warnings: Vec<Warning>,
}

impl Opened {
    fn sound(store: impl ChunkStore) -> Self {
        Self { store: Arc::new(store), warnings: Vec::new() }
    }
}

/// Opens the oplogs of `cluster` at `url`. `step_around_after` is SQLite's, see its settings; a store in SQLite is one cluster's.
///
/// # Errors
/// [`Error::Invalid`] when the backend was not built in (names the cargo feature), or keeps no oplogs; otherwise as the backend's own opening.
pub async fn open(url: &StoreUrl, cluster: &ClusterName, step_around_after: Duration) -> Result<Opened, Error> {
    // Some of it is of use only to a backend that may not be built in.
    let _ = (cluster, step_around_after);
    let absent = |name: &str, feature: &str| {
        Error::Invalid(format!("{url}: this build has no {name} store; build it with the cargo feature `{feature}`"))
    };
    let _ = &absent;
    match url {
        StoreUrl::Memory => Ok(Opened::sound(MemoryOplogStore::new())),
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(folder) => {
            let settings = super::sqlite::Settings { step_around_after, ..Default::default() };
            super::SqliteOplogStore::open_with(folder, settings).await.map(Opened::sound)
        }
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => Err(absent("SQLite", "sqlite")),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let store = super::PostgresOplogStore::open(url, cluster).await?;
            Ok(Opened { warnings: store.warnings().to_vec(), store: Arc::new(store) })
        }
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres(_) => Err(absent("PostgreSQL", "postgres")),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => {
            let store = super::RedisOplogStore::open(url, cluster).await?;
            Ok(Opened { warnings: store.warnings().to_vec(), store: Arc::new(store) })
        }
        #[cfg(not(feature = "redis"))]
        StoreUrl::Redis(_) => Err(absent("Redis", "redis")),
        StoreUrl::Etcd(_) => {
            Err(Error::Invalid(format!("{url}: etcd keeps no oplogs; use sqlite:, postgres: or redis:")))
        }
    }
}
