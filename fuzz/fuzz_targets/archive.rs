//! Bytes as a chunk of archived entries, as an object's path, as an archive's URL.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::archive(bytes));
