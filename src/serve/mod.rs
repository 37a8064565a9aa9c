//! Whole processes: what a configuration becomes. The binaries and `shard-manager dev` are made of these.

pub(crate) mod archive;
mod door;
pub mod executor;
pub mod manager;
pub mod replica;

use crate::cli::{Exit, Failure};
use crate::http;
use leasehold_config::StorageUrl;
use leasehold_persistence::StoreUrl;
use leasehold_rpc::server::Limits;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// How long calls under way may take to end when a process stops.
pub const GRACE: Duration = Duration::from_secs(2);

/// The same place, in the stores' words.
pub(crate) fn store_url(url: &StorageUrl) -> StoreUrl {
    match url {
        StorageUrl::Memory => StoreUrl::Memory,
        StorageUrl::Sqlite(path) => StoreUrl::Sqlite(path.clone()),
        StorageUrl::Postgres(url) => StoreUrl::Postgres(url.clone()),
        StorageUrl::Redis(url) => StoreUrl::Redis(url.clone()),
        StorageUrl::Etcd(endpoints) => StoreUrl::Etcd(endpoints.clone()),
    }
}

/// A listener and where it is.
pub(crate) async fn bind(what: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let failure = |error: std::io::Error| Failure::new(Exit::Failed, error.to_string());
    let listener = http::bind(what, address).await.map_err(failure)?;
    let bound = listener.local_addr().map_err(failure)?;
    Ok((listener, bound))
}

/// The configured bounds of a gRPC listener.
pub(crate) fn limits(of: &leasehold_config::Limits) -> Limits {
    Limits { connections: of.connections, calls: of.calls, grace: GRACE, ..Limits::default() }
}
