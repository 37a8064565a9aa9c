//! For whoever tests a backend, or a cluster, of their own. With the cargo feature `testkit`.
//!
//! | module | for |
//! | --- | --- |
//! | [`oplog`] | the suite that every oplog store must pass, and [`oplog_store_conformance!`](oplog_store_conformance), which makes tests of it |
//! | [`cluster`] | the same for stores of the manager's state |
//! | [`history`] | whether what callers were answered fits one order of events, whatever a store thinks of itself |
//!
//! docs/oplog-kit.md is the guide for writing an oplog store.

pub mod history;

/// What every oplog store must do: [`Fixture`](oplog::Fixture) gives the suite access to yours.
pub mod oplog {
    pub use leasehold_persistence::conformance::oplog::*;
    pub use leasehold_persistence::oplog::{
        Append, Claimed, Entry, EntryIndex, EntryKind, Error, Gate, MAX_BODY_BYTES, MAX_ENTRIES_PER_APPEND, MAX_KEY_BYTES,
        NewEntry, OplogStore, Writer,
    };
}

/// What every store of the manager's state must do.
pub mod cluster {
    pub use leasehold_persistence::cluster::ClusterStore;
    pub use leasehold_persistence::conformance::cluster::*;
}

pub use leasehold_persistence::{cluster_store_conformance, oplog_store_conformance};
