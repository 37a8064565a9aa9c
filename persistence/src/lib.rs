//! Stores behind two small traits: [`ClusterStore`] for the manager, [`OplogStore`] for executors.
//!
//! A database row never leaves this crate. Nothing here decides: a store applies a write under its
//! condition, refuses it, or says that it does not know.

pub mod cluster;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod election;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod oplog;
pub mod url;

pub use cluster::ClusterStore;
pub use election::Elections;
pub use oplog::OplogStore;
pub use url::StoreUrl;
