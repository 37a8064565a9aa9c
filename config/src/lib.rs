//! Typed configuration of the binaries.
//!
//! Values come from four sources, each stronger than the one before: built-in defaults, a TOML file, the environment
//! (`LEASEHOLD__LEASE__DURATION=60s`), flags (`lease.duration=60s`). Every value remembers which one it came from. A key
//! that nobody reads, a value outside its range and values that contradict each other are refused, all at once, each with
//! what would be accepted. Everything is made from one list of keys: loading, the sample files in `config/samples`, the
//! tables in `docs/configuration.md`.
//!
//! ```
//! use leasehold_config::{ManagerConfig, Sources, load};
//!
//! let sources = Sources { overrides: vec!["lease.profile=lan".into()], ..Sources::default() };
//! let loaded = load::<ManagerConfig>(&sources)?;
//! assert_eq!(loaded.config.lease.times.ttl().as_ms(), 12_000);
//!
//! let sources = Sources { overrides: vec!["lease.duration=5s".into()], ..Sources::default() };
//! let refused = load::<ManagerConfig>(&sources).unwrap_err();
//! let arithmetic = "5s (flag) is below 3 × lease.call_deadline_floor = 3 × 10s (profile wan) = 30s";
//! assert!(refused.to_string().contains(arithmetic));
//! # Ok::<(), leasehold_config::ConfigError>(())
//! ```

mod archive;
mod error;
mod executor;
mod file;
mod gateway;
mod key;
mod keys;
mod kind;
mod layers;
mod leadership;
mod manager;
mod reader;
mod render;
mod sections;
mod show;
mod source;

pub use archive::{Archive, ArchiveTo, BlobStorage};
pub use error::{ConfigError, Problem};
pub use executor::{Agents, Bridge, ExecutorConfig, Identity, Oplog};
pub use gateway::{GatewayConfig, Route};
pub use key::{Default, Key};
pub use kind::{BridgedApp, Kind, StorageUrl, show_duration};
pub use leadership::{EtcdAccess, Leadership, StandbyGrpc};
pub use manager::{ManagerConfig, Rebalance};
pub use render::{render_default, render_reference};
pub use sections::{Lease, Limits, Listen, Log, LogFormat, LogLevel};
pub use show::ShownValue;
pub use source::{ENV_PREFIX, Source, Sources};

use layers::Layers;
use reader::Reader;

/// A configuration that can be loaded: [`ManagerConfig`], [`ExecutorConfig`], [`GatewayConfig`]. Only this
/// crate can implement it.
pub trait Configuration: Sized {
    /// The command it is for.
    const BINARY: &'static str;

    /// Its keys, in the order of the sample file.
    fn keys() -> &'static [&'static Key];

    /// Reads each key once, noting what is wrong.
    #[doc(hidden)]
    fn read(reader: &mut Reader) -> Self;

    /// The values that follow from it.
    #[doc(hidden)]
    fn derived(&self) -> Vec<ShownValue>;
}

/// A configuration that holds together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded<T> {
    /// The values.
    pub config: T,
    /// What is allowed and probably not meant; to be logged at start.
    pub warnings: Vec<String>,
    shown: Vec<ShownValue>,
}

impl<T> Loaded<T> {
    /// Every key in the order of the sample file with its value and origin, then every value that follows.
    #[must_use]
    pub fn render_show(&self) -> Vec<ShownValue> {
        self.shown.clone()
    }
}

/// Loads `T` from `sources`.
///
/// # Errors
/// Everything that is wrong with the sources, the keys, the values and what they come to together.
pub fn load<T: Configuration>(sources: &Sources) -> Result<Loaded<T>, ConfigError> {
    finish(Layers::read(T::BINARY, T::keys(), sources))
}

fn finish<T: Configuration>(layers: Layers) -> Result<Loaded<T>, ConfigError> {
    let mut reader = Reader::new(layers);
    let config = T::read(&mut reader);
    let Reader { mut problems, warnings, mut shown, .. } = reader;
    // A built-in value stood in for each refused one: what it contradicts is nobody's mistake.
    if problems.iter().any(|problem| matches!(problem, Problem::Invalid { .. })) {
        problems.retain(|problem| !matches!(problem, Problem::Contradiction { .. }));
    }
    if !problems.is_empty() {
        return Err(ConfigError { problems });
    }
    shown.sort_by_key(|shown| T::keys().iter().position(|key| key.path == shown.key));
    shown.extend(config.derived());
    Ok(Loaded { config, warnings, shown })
}

#[cfg(test)]
mod tests;
