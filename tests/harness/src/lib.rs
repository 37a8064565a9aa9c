//! Throw-away servers for tests and benchmarks: started from Debian's packages on free ports of the loopback, with
//! temporary data, ended with the value that stands for them. An absent server is a failure, not a skip.

mod certificates;
mod etcd;
pub mod netns;
mod pooler;
mod postgres;
mod process;
mod proxy;
mod redis;
#[cfg(feature = "s3")]
mod s3;

pub use certificates::Certificates;
pub use etcd::{Etcd, EtcdCluster, EtcdConfig, TlsFiles};
pub use pooler::Pooler;
pub use postgres::Postgres;
pub use process::{Process, free_port, wait_until};
pub use proxy::{Proxy, Relay};
pub use redis::Redis;
#[cfg(feature = "s3")]
pub use s3::{S3, Strike};
