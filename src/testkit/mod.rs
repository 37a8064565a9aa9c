//! For whoever tests a backend, or a cluster, of their own. With the cargo feature `testkit`.
//!
//! | module | for |
//! | --- | --- |
//! | [`oplog`] | the suite that every oplog store must pass, and [`oplog_store_conformance!`](oplog_store_conformance), which makes tests of it |
//! | [`blobs`] | the same for blob storage of archived entries, and [`blobs_conformance!`](blobs_conformance) |
//! | [`cluster`] | the same for stores of the manager's state |
//! | [`history`] | whether what callers were answered fits one order of events, whatever a store thinks of itself |
//!
//! docs/oplog-kit.md is the guide for writing an oplog store. `tests/backend` has a whole one, and the suite on it:
//!
//! ```
//! use leasehold::testkit::oplog::{Fixture, Gate, OplogStore};
//! use leasehold_persistence::oplog::MemoryOplogStore;
//! use leasehold_persistence::oplog::memory::{Call, Fault};
//! use std::sync::Arc;
//!
//! struct Mine(MemoryOplogStore);
//!
//! #[async_trait::async_trait]
//! impl Fixture for Mine {
//!     async fn open(&self) -> Arc<dyn OplogStore> {
//!         Arc::new(self.0.handle())
//!     }
//!
//!     async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
//!         let handle = self.0.handle();
//!         handle.script(Call::Append, Fault::HoldBefore(gate));
//!         Arc::new(handle)
//!     }
//! }
//!
//! leasehold::testkit::oplog_store_conformance!(Mine(MemoryOplogStore::new()));
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! leasehold::testkit::oplog::f4_the_record_never_goes_down(&Mine(MemoryOplogStore::new())).await;
//! # });
//! ```

pub mod history;

/// What every oplog store must do: [`Fixture`](oplog::Fixture) gives the suite access to yours.
pub mod oplog {
    pub use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
    pub use leasehold_persistence::conformance::oplog::*;
    pub use leasehold_persistence::oplog::{
        Append, Claimed, Entry, EntryIndex, EntryKind, Error, Gate, MAX_BODY_BYTES, MAX_ENTRIES_PER_APPEND,
        MAX_KEY_BYTES, NewEntry, OplogStore, Writer,
    };
}

/// What blob storage of an archive must do: [`BlobsFixture`](blobs::BlobsFixture) gives the suite access to yours.
pub mod blobs {
    pub use leasehold_persistence::conformance::blobs::*;
    pub use leasehold_persistence::oplog::layers::blobs::Blobs;
    pub use leasehold_persistence::oplog::layers::names::{ObjectName, ObjectPath};
}

/// What every store of the manager's state must do.
pub mod cluster {
    pub use leasehold_persistence::cluster::ClusterStore;
    pub use leasehold_persistence::conformance::cluster::*;
}

pub use leasehold_persistence::{blobs_conformance, cluster_store_conformance, oplog_store_conformance};
