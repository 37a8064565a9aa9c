//! Steady instants and lease lengths. Wall-clock time does not exist in this crate.

use crate::ids::InvalidValue;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An instant on one process's steady clock, in nanoseconds since an origin of that clock's own.
///
/// Ticks of two processes, or of two clocks of one process, are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tick(pub u64);

impl Tick {
    /// The clock's origin: earlier than any instant that is read.
    pub const ZERO: Self = Self(0);
    /// Later than any instant that is read.
    pub const NEVER: Self = Self(u64::MAX);

    /// `self + span`, stopping at [`Tick::NEVER`].
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// `self - span`, stopping at [`Tick::ZERO`].
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Time to live of a lease as it travels: `1 ms ..= 24 h`, in whole milliseconds. It never travels as a time of day (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Ttl(u64);

impl Ttl {
    /// The longest ttl, 24 h, in milliseconds.
    pub const MAX_MS: u64 = 24 * 60 * 60 * 1000;

    /// Rule R8: decoding is total. Anything but `1..=86_400_000` milliseconds is an error.
    ///
    /// # Errors
    /// Names `ttl_ms`.
    pub fn from_ms(ms: u64) -> Result<Self, InvalidValue> {
        if (1..=Self::MAX_MS).contains(&ms) {
            Ok(Self(ms))
        } else {
            Err(InvalidValue::new("ttl_ms", ms, "1..=86400000 (24 h)"))
        }
    }

    /// The ttl of `span`, rounded down to whole milliseconds.
    ///
    /// # Errors
    /// As [`Ttl::from_ms`].
    pub fn from_duration(span: Duration) -> Result<Self, InvalidValue> {
        Self::from_ms(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    /// In milliseconds.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// As a [`Duration`].
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl TryFrom<u64> for Ttl {
    type Error = InvalidValue;
    fn try_from(ms: u64) -> Result<Self, InvalidValue> {
        Self::from_ms(ms)
    }
}

impl From<Ttl> for u64 {
    fn from(ttl: Ttl) -> u64 {
        ttl.0
    }
}
