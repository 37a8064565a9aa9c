//! leasehold

pub mod cli;
