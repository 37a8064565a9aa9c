//! The executor's side of the lease protocol, rule by rule, as tables: what happened, and exactly what is to be done.
#![allow(clippy::unwrap_used)] // Test code: a wrong value is a failed test.

mod bench;
mod leaving;
mod properties;
mod receiving;
mod renewing;
