//! What the seeds must reach, so that none of the invariants holds for want of anything happening.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What is to be reached at least once, by the part of the cluster that it is about.
const REQUIRED: &[(&str, &[&str])] = &[];

/// What of it was not.
pub fn missing(reached: &BTreeMap<String, u64>) -> Vec<&'static str> {
    let required = REQUIRED.iter().flat_map(|(_, whats)| *whats);
    required.filter(|what| !reached.contains_key(**what)).copied().collect()
}

/// A table of how often each was.
pub fn table(reached: &BTreeMap<String, u64>) -> String {
    let mut table = String::new();
    for (part, whats) in REQUIRED {
        // Writing to a string never fails.
        let _ = writeln!(table, "{part}");
        for what in *whats {
            let _ = writeln!(table, "{:>10}  {what}", reached.get(*what).copied().unwrap_or_default());
        }
    }
    table
}
