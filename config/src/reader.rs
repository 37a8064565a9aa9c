//! Reads keys into typed values, collecting every complaint and what is to be shown.

use crate::error::Problem;
use crate::key::{Default, Key};
use crate::kind::{self, Kind, StorageUrl};
use crate::layers::Layers;
use crate::show::ShownValue;
use crate::source::Source;
use leasehold_model::lease::Allowance;
use leasehold_model::secret::without_password;
use leasehold_model::{Address, InvalidValue};
use std::net::SocketAddr;
use std::time::Duration;

/// Reads each key once. A value that is refused is noted, and a built-in one stands in for it until loading fails.
pub struct Reader {
    layers: Layers,
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
    pub shown: Vec<ShownValue>,
}

impl Reader {
    pub(crate) fn new(mut layers: Layers) -> Self {
        let problems = std::mem::take(&mut layers.problems);
        let warnings = std::mem::take(&mut layers.warnings);
        Self { layers, problems, warnings, shown: Vec::new() }
    }

    /// A value that is always there: a key with a built-in default.
    pub fn value<T>(&mut self, key: &'static Key, parse: impl Fn(&str) -> Option<T>) -> T {
        let Default::Text(built_in) = key.default else { panic!("{} has no built-in value", key.path) };
        self.optional(key, &parse)
            .or_else(|| parse(built_in))
            .unwrap_or_else(|| panic!("the built-in {} {built_in:?} is not accepted", key.path))
    }

    /// A value that may be unset. An empty text is unset, so that an environment can take a file's value away.
    pub fn optional<T>(&mut self, key: &'static Key, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let unset_by_empty = matches!(key.default, Default::Unset { .. });
        let (text, source) = self.layers.value(key).filter(|(text, _)| !(unset_by_empty && text.is_empty()))?;
        let parsed = parse(&text);
        // The text goes into what is shown and into complaints; a store's may hold a password.
        let text = match key.kind {
            Kind::Storage(_) | Kind::SharedStorage(_) | Kind::Archive | Kind::Endpoint => without_password(&text),
            Kind::Duration { .. }
            | Kind::Whole { .. }
            | Kind::OneOf(_)
            | Kind::Name
            | Kind::Address
            | Kind::Addresses
            | Kind::Listen
            | Kind::Allowance
            | Kind::File
            | Kind::Region
            | Kind::Apps => text,
        };
        if parsed.is_some() {
            self.shown.push(ShownValue::set(key.path, text, &source));
        } else {
            self.problems.push(Problem::Invalid {
                key: key.path,
                value: text,
                source_of: source,
                accepted: key.kind.accepted(),
            });
        }
        parsed
    }

    /// Whether somebody set the key.
    pub fn is_set(&self, key: &Key) -> bool {
        self.layers.value(key).is_some_and(|(text, source)| source != Source::Default && !text.is_empty())
    }

    /// What an unset key comes to.
    pub fn show_unset(&mut self, key: &'static Key, value: impl Into<String>, source: impl Into<String>) {
        if !self.shown.iter().any(|shown| shown.key == key.path) {
            self.shown.push(ShownValue::unset(key.path, value, source));
        }
    }

    pub fn contradiction(&mut self, key: &'static Key, arithmetic: String) {
        self.problems.push(Problem::Contradiction { key: key.path, arithmetic });
    }

    pub fn duration(&mut self, key: &'static Key) -> Duration {
        let (min, max) = duration_range(key);
        self.value(key, |text| kind::duration(text, min, max))
    }

    pub fn optional_duration(&mut self, key: &'static Key) -> Option<Duration> {
        let (min, max) = duration_range(key);
        self.optional(key, |text| kind::duration(text, min, max))
    }

    /// A number that the key's range makes fit into `T`.
    pub fn whole<T: TryFrom<u64>>(&mut self, key: &'static Key) -> T {
        let (min, max) = whole_range(key);
        self.value(key, |text| T::try_from(kind::whole(text, min, max)?).ok())
    }

    pub fn optional_whole<T: TryFrom<u64>>(&mut self, key: &'static Key) -> Option<T> {
        let (min, max) = whole_range(key);
        self.optional(key, |text| T::try_from(kind::whole(text, min, max)?).ok())
    }

    pub fn listen(&mut self, key: &'static Key) -> SocketAddr {
        self.value(key, kind::listen)
    }

    pub fn addresses(&mut self, key: &'static Key) -> Vec<Address> {
        self.value(key, kind::addresses)
    }

    pub fn storage(&mut self, key: &'static Key) -> StorageUrl {
        self.value(key, kind::storage)
    }

    pub fn shared_storage(&mut self, key: &'static Key) -> StorageUrl {
        self.value(key, kind::shared_storage)
    }

    pub fn allowance(&mut self, key: &'static Key) -> Allowance {
        self.value(key, |text| Allowance::from_ppm(kind::parts_per_million(text)?).ok())
    }

    /// A type of the model that checks its own text.
    pub fn checked<T>(&mut self, key: &'static Key, new: impl Fn(String) -> Result<T, InvalidValue>) -> T {
        self.value(key, |text| new(text.to_owned()).ok())
    }
}

fn duration_range(key: &Key) -> (Duration, Duration) {
    let Kind::Duration { min, max } = key.kind else { panic!("{} is not a duration", key.path) };
    (min, max)
}

fn whole_range(key: &Key) -> (u64, u64) {
    let Kind::Whole { min, max } = key.kind else { panic!("{} is not a whole number", key.path) };
    (min, max)
}
