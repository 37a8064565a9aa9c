//! Opens the store that a URL names, to read it.

use super::OplogAudit;
use crate::oplog::Error;
use crate::url::StoreUrl;
use leasehold_model::ClusterName;

/// Opens the oplogs of `cluster` at `url` without a fence. Nothing is made there: what is not there is an error.
///
/// # Errors
/// [`Error::Invalid`] when the URL names no store that can be read, or one of another build; [`Error::Unavailable`] when there is none, or
/// it is away; [`Error::Corrupt`] when it is no store.
pub async fn open(url: &StoreUrl, cluster: &ClusterName) -> Result<Box<dyn OplogAudit>, Error> {
    let _ = cluster;
    let absent = |name: &str, feature: &str| {
        Error::Invalid(format!("{url}: this build has no {name} store; build it with the cargo feature `{feature}`"))
    };
    let _ = &absent;
    match url {
        StoreUrl::Memory => {
            let why = "oplogs in memory are their executor's own, there is nothing to read; name sqlite:, postgres: or redis:";
            Err(Error::Invalid(format!("{url}: {why}")))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(folder) => Ok(Box::new(crate::oplog::sqlite::SqliteAudit::open(folder).await?)),
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => Err(absent("SQLite", "sqlite")),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => Ok(Box::new(crate::oplog::postgres::PostgresAudit::open(url, cluster).await?)),
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres(_) => Err(absent("PostgreSQL", "postgres")),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => Ok(Box::new(crate::oplog::redis::RedisAudit::open(url, cluster).await?)),
        #[cfg(not(feature = "redis"))]
        StoreUrl::Redis(_) => Err(absent("Redis", "redis")),
        StoreUrl::Etcd(_) => {
            Err(Error::Invalid(format!("{url}: etcd keeps no oplogs; name sqlite:, postgres: or redis:")))
        }
    }
}
