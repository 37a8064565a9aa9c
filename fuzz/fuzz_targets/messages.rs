//! Bytes as any message of `leasehold.v1`.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::messages(bytes));
