//! Whole clusters in virtual time: the real actors of manager and executors, the real router, on a network that a test scripts.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, missing_docs, reason = "a test reads better so")]

mod chaos;
mod checker;
mod failover;
mod failures;
mod moves;
mod network;
mod standing_still;
mod world;
