//! The two shipped binaries as processes: real sockets, real files, real signals.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test reads better so")]

mod archive;
mod bad_input;
mod cluster;
mod dev;
mod distributed;
mod distributed_refusals;
mod full_disk;
mod lifecycle;
mod oplog_cases;
mod oplog_kit;
mod oplogs;
mod postgres;
mod processes;
mod replicas;
mod stopping;
mod wire;
mod wrong_use;
mod zombie;
