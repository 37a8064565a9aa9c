//! leasehold

pub mod cli;
mod gateway;
mod http;
pub mod router;

pub mod agents;
pub mod runtime;
pub mod serve;
