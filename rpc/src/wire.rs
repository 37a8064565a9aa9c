//! The generated messages and services. Private: see [`crate::api`] for what callers use.
#![allow(missing_docs, clippy::all, clippy::too_many_lines, clippy::wildcard_enum_match_arm, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/leasehold.v1.rs"));
