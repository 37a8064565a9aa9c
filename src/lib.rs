//! Leasehold decides which process owns which shard, by renewable leases with fencing epochs, and keeps that safe when a
//! process is paused, partitioned or wrong.
//!
//! Two binaries are made of this crate: `shard-manager` keeps the shard map, `shard-executor` holds shards, runs agents on
//! them and routes calls to whoever does. A Rust service can use the parts:
//!
//! | module | for |
//! | --- | --- |
//! | [`router`] | calling agents: key to shard to executor, with retries within a deadline |
//! | [`agents`] | agent types: the trait, and the ones that the binary ships |
//! | [`bridge`] | agents whose behaviour is an application in any language |
//! | [`serve`] | running a manager or an executor inside another process |
//! | [`dev`] | a whole cluster in one process |
//! | `testkit` | testing a backend of your own (feature `testkit`) |
//! | [`cli`], [`runtime`] | what the two binaries share |
//!
//! The protocol itself is `leasehold_model`; `docs/architecture.md` has the picture.

pub mod agents;
pub mod bridge;
pub mod cli;
pub mod dev;
mod gateway;
mod http;
pub mod router;
pub mod runtime;
pub mod serve;
#[cfg(feature = "testkit")]
pub mod testkit;
