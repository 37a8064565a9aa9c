//! Text as a configuration file, as flags and as a variable of the environment.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::configuration(bytes));
