//! Real processes in network namespaces: what is cut here is cut by dropped packets, with every socket left open.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod leader;
mod members;
mod world;
