//! The manager's and the executor's actors: each turns messages into events of the pure core and performs its effects.

mod backoff;
pub mod clock;
pub mod executor;
pub mod lease_key;
pub mod manager;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
