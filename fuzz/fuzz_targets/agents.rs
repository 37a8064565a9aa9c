//! Calls, events and snapshots of every agent type, and answers of an application.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::agents(bytes));
