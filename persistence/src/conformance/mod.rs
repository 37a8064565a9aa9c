//! What every backend of a store trait must do, as tests that run unchanged on each of them.

pub mod blobs;
pub mod cluster;
pub mod layers;
pub mod oplog;
