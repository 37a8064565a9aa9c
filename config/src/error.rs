//! What can be wrong with a configuration.

use crate::kind::{bare, quoted};
use crate::source::Source;
use std::fmt;
use std::path::PathBuf;

/// A configuration was refused: everything that was found wrong with it, at least one problem, one per line when shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// In the order of the sources, then of the keys.
    pub problems: Vec<Problem>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.problems.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read, or is not TOML.
    #[error("{}{}: {message}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    File {
        /// As it was given.
        path: PathBuf,
        /// From 1, when the trouble has a place.
        line: Option<usize>,
        /// What the trouble is.
        message: String,
    },
    /// A variable of ours whose value is not text.
    #[error("{}: the value is not UTF-8", bare(variable))]
    Environment {
        /// Its name.
        variable: String,
    },
    /// A flag that is not `key=value`.
    #[error("flag {} is not accepted; expected key=value, such as lease.duration=60s", quoted(flag))]
    Flag {
        /// As it was given.
        flag: String,
    },
    /// A key that nobody reads.
    #[error("{}: unknown key ({found_in}); {hint}", bare(key))]
    UnknownKey {
        /// As it was given.
        key: String,
        /// Where it stands.
        found_in: Source,
        /// The nearest known key, or whose key it is.
        hint: String,
    },
    /// A value outside its range.
    #[error("{key}: {} ({source_of}) is not accepted; expected {accepted}", quoted(value))]
    Invalid {
        /// The key.
        key: &'static str,
        /// As it was given.
        value: String,
        /// Where it came from.
        source_of: Source,
        /// The accepted range, in words.
        accepted: String,
    },
    /// Values that are fine alone and cannot hold together.
    #[error("{key}: {arithmetic}")]
    Contradiction {
        /// The key to change first.
        key: &'static str,
        /// What was compared, with every number, and the ways out.
        arithmetic: String,
    },
}
