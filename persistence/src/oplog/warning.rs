//! What an operator should know of a store that was opened: settings of the server that weaken what it promises.

use std::fmt;

/// A setting of the server that the store can work under and should not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// PostgreSQL's `fsync` or `full_page_writes` is off.
    PostgresUnsafe(&'static str),
    /// PostgreSQL's `synchronous_commit` is off for this role.
    PostgresAsynchronous,
    /// Redis keeps no append-only file; `save` is what it has instead.
    RedisNoAppendOnly {
        /// The setting, empty: it keeps nothing at all.
        save: String,
    },
    /// Redis' `appendfsync` is not `always`.
    RedisFsync(String),
    /// Redis may evict keys that expire. None of the store's do.
    RedisEviction(String),
    /// The server does not show its settings.
    SettingsUnreadable(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PostgresUnsafe(setting) => write!(
                f,
                "{setting} is off at the PostgreSQL server: a crash of its machine may damage the database; set {setting} = on"
            ),
            Self::PostgresAsynchronous => f.write_str(
                "synchronous_commit is off for this role at the PostgreSQL server: the store's sessions turn it on for themselves",
            ),
            Self::RedisNoAppendOnly { save } if save.is_empty() => f.write_str(
                "the Redis server keeps nothing on disk (appendonly no, save \"\"): a restart loses every agent; set appendonly yes and \
                 appendfsync always",
            ),
            Self::RedisNoAppendOnly { save } => write!(
                f,
                "the Redis server keeps snapshots only (appendonly no, save {save:?}): a crash loses what was acknowledged since the \
                 last one; set appendonly yes and appendfsync always"
            ),
            Self::RedisFsync(how) => write!(
                f,
                "appendfsync is {how} at the Redis server: a crash of its machine loses what was acknowledged in about the last {}; set \
                 appendfsync always",
                if how == "everysec" { "second" } else { "half minute" }
            ),
            Self::RedisEviction(policy) => write!(
                f,
                "maxmemory-policy is {policy} at the Redis server: of this store it evicts nothing, because none of its keys expires; \
                 noeviction says so"
            ),
            Self::SettingsUnreadable(why) => write!(
                f,
                "the server does not show its settings ({why}), so nobody has checked whether it keeps what it acknowledges and evicts \
                 nothing; grant the right, or check by hand (docs/operations.md)"
            ),
        }
    }
}
