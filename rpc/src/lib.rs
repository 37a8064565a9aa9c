//! `leasehold.v1` on the wire. A generated type never leaves this crate: [`api`] speaks `leasehold_model`.

pub mod api;
