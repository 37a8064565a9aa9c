//! The leader's decisions as tables: given a history, expect exact answers, commits and pushes.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, missing_docs, reason = "a test reads better so")]

mod granting;
mod moving;
mod passes;
mod registering;
mod standing_still;
mod viewing;
mod world;
