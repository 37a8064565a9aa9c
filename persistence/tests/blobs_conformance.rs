//! The conformance suite of blob storage, on every one that is built in.

#![allow(missing_docs, reason = "a test binary has no public items; the lint sees those that macros make")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[cfg(all(feature = "files", feature = "s3"))]
mod blob_places;

mod memory {
    use leasehold_persistence::conformance::blobs::MemoryPlace;

    leasehold_persistence::blobs_conformance!(MemoryPlace::default());
}

#[cfg(all(feature = "files", feature = "s3"))]
mod files {
    use crate::blob_places::Folder;

    leasehold_persistence::blobs_conformance!(Folder::new());
}

#[cfg(all(feature = "files", feature = "s3"))]
mod s3 {
    use crate::blob_places::Bucket;

    leasehold_persistence::blobs_conformance!(Bucket::new());
}
