//! Where values come from: the inputs of loading, and what each value remembers of its origin.

use crate::kind::bare;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// What every environment variable of the configuration begins with; `__` separates section and name.
pub const ENV_PREFIX: &str = "LEASEHOLD__";

/// The inputs, weakest first: the built-in defaults, then these.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// The environment. Variables that do not begin with [`ENV_PREFIX`] are left alone.
    pub env: Vec<(OsString, OsString)>,
    /// Flags, each `key=value`; of two for one key the last counts.
    pub overrides: Vec<String>,
}

impl Sources {
    /// With this process's environment.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        Self { file, env: std::env::vars_os().collect(), overrides }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The built-in default.
    Default,
    /// `lease.profile`.
    Profile(&'static str),
    /// A file and the line in it.
    File {
        /// As it was given.
        path: PathBuf,
        /// From 1.
        line: usize,
    },
    /// This environment variable.
    Environment(String),
    /// A flag.
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(variable) => f.write_str(&bare(variable)),
            Self::Flag => f.write_str("flag"),
        }
    }
}
