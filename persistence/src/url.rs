//! Where a store is. What an operator writes is read by `leasehold-config`.

use leasehold_model::secret::without_password;
use std::fmt;
use std::path::PathBuf;

/// Names a backend and where it keeps its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`: gone when the process ends.
    Memory,
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
    /// `postgres://USER@HOST:PORT/DATABASE`, as libpq writes it.
    Postgres(String),
    /// `redis://HOST:PORT/DATABASE`, for oplogs.
    Redis(String),
    /// `etcd:http://HOST:PORT,http://…`: one to 16 endpoints, `http` or `https`.
    Etcd(Vec<String>),
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) | Self::Redis(url) => f.write_str(&without_password(url)),
            Self::Etcd(endpoints) => write!(f, "etcd:{}", endpoints.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_as_an_operator_writes_it_without_its_password() {
        for (url, shown) in [
            (StoreUrl::Memory, "memory:"),
            (StoreUrl::Sqlite("data/manager.db".into()), "sqlite:data/manager.db"),
            (StoreUrl::Postgres("postgres://me:secret@db/x".into()), "postgres://me:***@db/x"),
            (StoreUrl::Etcd(vec!["http://a:1".into(), "https://b:2".into()]), "etcd:http://a:1,https://b:2"),
        ] {
            assert_eq!(url.to_string(), shown);
        }
    }
}
