//! leasehold

pub mod cli;
mod gateway;
mod http;
pub mod router;

pub mod agents;
pub mod dev;
pub mod runtime;
pub mod serve;
