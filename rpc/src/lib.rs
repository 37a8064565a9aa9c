//! `leasehold.v1` on the wire. A generated type never leaves this crate: [`api`] speaks `leasehold_model`.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`api`] | the services as traits over plain values |
//! | [`channel`], [`client`] | dial a peer and call it; nothing is retried here |
//! | [`managers`] | several managers as one, of which at most one leads |
//! | [`probe`] | what answers at an address that was meant for something else |
//! | [`server`] | serve something that implements the traits, with health and reflection |
//! | [`status`] | the only home of refusal to status and back |
//! | [`bounds`] | what a message may carry at most |
//!
//! Decoding is total (R8): every absent, zero, negative or giant value is refused with the path of its field.

pub mod api;
#[cfg(feature = "baseline")]
pub mod baseline;
pub mod bounds;
pub mod channel;
pub mod client;
mod decode;
mod encode;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod guard;
pub mod managers;
pub mod probe;
pub mod server;
pub mod status;
mod wire;

#[cfg(test)]
mod tests;

/// The descriptors of package `leasehold.v1` as an encoded `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/leasehold.v1.bin"));
