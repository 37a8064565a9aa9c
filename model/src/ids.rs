//! Identities and counters. Each is a newtype, so that an epoch can never be passed where a revision belongs.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// A value that was refused when it was decoded or parsed: which field, what was given, what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[error("{field}: {value:?} is not accepted; expected {accepted}")]
pub struct InvalidValue {
    /// Path of the field, as the sender knows it (`lease.ttl_ms`).
    pub field: String,
    /// What was given, shortened to 80 characters.
    pub value: String,
    /// What would have been accepted.
    pub accepted: String,
}

impl InvalidValue {
    /// Names `field`, the offending `value` (shortened to 80 characters) and what is `accepted`.
    pub fn new(field: impl Into<String>, value: impl fmt::Display, accepted: impl Into<String>) -> Self {
        let value: String = value.to_string().chars().take(80).collect();
        Self { field: field.into(), value, accepted: accepted.into() }
    }

    /// The same complaint with `prefix.` before the field's name.
    #[must_use]
    pub fn within(mut self, prefix: &str) -> Self {
        self.field = format!("{prefix}.{}", self.field);
        self
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The id made of these 128 bits; for tests and for shells that mint ids.
            #[must_use]
            pub const fn from_u128(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }

            /// The id as 16 bytes, big-endian (RFC 9562).
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Decodes 16 bytes.
            ///
            /// # Errors
            /// Names `field` when there are not 16 bytes, or all are zero.
            pub fn from_slice(field: &str, bytes: &[u8]) -> Result<Self, InvalidValue> {
                match Uuid::from_slice(bytes) {
                    Ok(id) if !id.is_nil() => Ok(Self(id)),
                    _ => Err(InvalidValue::new(field, format!("{} bytes", bytes.len()), "16 bytes, not all zero")),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;
            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                Uuid::parse_str(text).map(Self).map_err(|_| InvalidValue::new(stringify!($name), text, "a UUID"))
            }
        }
    };
}

uuid_id! {
    /// One life of an executor process; a restarted process has another.
    ExecutorId
}
uuid_id! {
    /// One period in which a shard-manager process is able to serve.
    ManagerId
}

/// How many shards a cluster has: `1..=65536`, fixed when a store is first written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ShardCount(u32);

impl ShardCount {
    /// The most shards a cluster can have.
    pub const MAX: u32 = 65_536;

    /// A count in `1..=65536`.
    ///
    /// # Errors
    /// Names `shard_count` when outside that range.
    pub fn new(count: u32) -> Result<Self, InvalidValue> {
        if (1..=Self::MAX).contains(&count) {
            Ok(Self(count))
        } else {
            Err(InvalidValue::new("shard_count", count, "1..=65536"))
        }
    }

    /// The count.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Every shard, ascending.
    pub fn shards(self) -> impl ExactSizeIterator<Item = ShardId> {
        (0..self.0).map(ShardId)
    }

    /// The shard numbered `shard`.
    ///
    /// # Errors
    /// Names `shard` when it is not below the count.
    pub fn shard(self, shard: u32) -> Result<ShardId, InvalidValue> {
        if shard < self.0 {
            Ok(ShardId(shard))
        } else {
            Err(InvalidValue::new("shard", shard, format!("0..{}", self.0)))
        }
    }
}

impl TryFrom<u32> for ShardCount {
    type Error = InvalidValue;
    fn try_from(count: u32) -> Result<Self, InvalidValue> {
        Self::new(count)
    }
}

impl From<ShardCount> for u32 {
    fn from(count: ShardCount) -> u32 {
        count.0
    }
}

impl fmt::Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A shard's number, `0..shard_count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

impl ShardId {
    /// The number as an index into a table of all shards.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ownership generation of one shard: `0` (never owned) `..= i64::MAX`, so that it fits every store's signed column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ShardEpoch(u64);

impl ShardEpoch {
    /// The epoch of a shard that never had an owner.
    pub const NEVER_OWNED: Self = Self(0);
    /// The greatest epoch.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// An epoch in `0..=i64::MAX`.
    ///
    /// # Errors
    /// Names `epoch` when outside that range.
    pub fn new(epoch: u64) -> Result<Self, InvalidValue> {
        if epoch <= Self::MAX.0 {
            Ok(Self(epoch))
        } else {
            Err(InvalidValue::new("epoch", epoch, "0..=9223372036854775807"))
        }
    }

    /// An epoch under which a shard is owned: `1..=i64::MAX`.
    ///
    /// # Errors
    /// Names `epoch` when outside that range.
    pub fn owned(epoch: u64) -> Result<Self, InvalidValue> {
        match Self::new(epoch) {
            Ok(Self(0)) | Err(_) => Err(InvalidValue::new("epoch", epoch, "1..=9223372036854775807")),
            Ok(epoch) => Ok(epoch),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next epoch, or `None` past the greatest: it never wraps.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        (self < Self::MAX).then_some(Self(self.0 + 1))
    }
}

impl TryFrom<u64> for ShardEpoch {
    type Error = InvalidValue;
    fn try_from(epoch: u64) -> Result<Self, InvalidValue> {
        Self::new(epoch)
    }
}

impl From<ShardEpoch> for u64 {
    fn from(epoch: ShardEpoch) -> u64 {
        epoch.0
    }
}

impl fmt::Display for ShardEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The greatest value: it fits every store's signed column.
            pub const MAX: Self = Self(i64::MAX as u64);

            /// A value in `0..=i64::MAX`.
            ///
            /// # Errors
            /// Names the field when outside that range.
            pub fn new(value: u64) -> Result<Self, InvalidValue> {
                if value <= Self::MAX.0 {
                    Ok(Self(value))
                } else {
                    Err(InvalidValue::new($field, value, "0..=9223372036854775807"))
                }
            }

            /// The next value.
            ///
            /// # Panics
            /// When the counter is exhausted, which takes 292 years at a billion a second.
            #[must_use]
            pub fn next(self) -> Self {
                assert!(self < Self::MAX, concat!($field, " is exhausted at {}"), self.0);
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// The number of a committed state. Comparable only within one [`ManagerId`].
    Revision, "revision"
}
counter! {
    /// Numbers the grants that one manager process gave to one executor; `0` is "none heard yet".
    GrantSeq, "heard_grant"
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $field:literal, $accepted:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps `text`.
            ///
            /// # Errors
            /// Names the field when `text` is not acceptable.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidValue> {
                let text = text.into();
                let valid: fn(&str) -> bool = $valid;
                if valid(&text) { Ok(Self(text)) } else { Err(InvalidValue::new($field, text, $accepted)) }
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidValue;
            fn try_from(text: String) -> Result<Self, InvalidValue> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;
            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// Letters, digits, `.`, `_`, `-`; 1 to 128 of them.
fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// `host:port` with a port above 0; a bracketed IPv6 host is accepted.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host_is_sane = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b))
        && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
    host_is_sane && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// `type/id`: the type is a name without `/`, the id any printable text without control characters.
fn is_agent_id(text: &str) -> bool {
    text.len() <= 512
        && text
            .split_once('/')
            .is_some_and(|(kind, id)| is_name(kind) && !id.is_empty() && !id.chars().any(char::is_control))
}

text! {
    /// An executor's name: stable across restarts, unique in a cluster.
    ExecutorName, "name", "1 to 128 of letters, digits, '.', '_', '-'", is_name
}
text! {
    /// A cluster's name. Both sides state it, so that two clusters can never mix.
    ClusterName, "cluster", "1 to 128 of letters, digits, '.', '_', '-'", is_name
}
text! {
    /// Where a process can be dialled: `host:port`.
    Address, "address", "host:port with a port in 1..=65535", is_address
}
text! {
    /// An agent: `type/id`. At most 512 bytes; the type is 1 to 128 of letters, digits, `.`, `_`, `-`.
    AgentId, "agent", "type/id, at most 512 bytes, no control characters", is_agent_id
}

impl AgentId {
    /// The part before the first `/`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// The part after the first `/`.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, key)| key)
    }
}

/// SHA-256 of an executor's lease key. The key itself is never stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKeyHash(pub [u8; 32]);

impl fmt::Debug for LeaseKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseKeyHash({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}
