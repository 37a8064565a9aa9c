//! The manager through its actors' mailboxes, in virtual time: a store that delays, refuses or loses an answer,
//! executors that hold, lose or drop pushes.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, missing_docs, reason = "a test reads better so")]

mod clock_bounds;
mod delivery;
mod election;
mod election_faults;
mod managers;
mod own_thread;
mod standing_still;
mod store;
mod supervision;
mod world;
