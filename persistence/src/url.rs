//! Where a store is, as an operator writes it.

use leasehold_model::InvalidValue;
use leasehold_model::secret::without_password;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Names a backend and where it keeps its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`: gone when the process ends.
    Memory,
    /// `sqlite:PATH` (also `sqlite://PATH`).
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

/// The most etcd endpoints.
const MAX_ENDPOINTS: usize = 16;

/// Endpoints between commas: `http` or `https`, each with a host.
fn endpoints(text: &str) -> Option<Vec<String>> {
    let list: Vec<_> = text.split(',').take(MAX_ENDPOINTS + 1).map(|item| item.trim().to_owned()).collect();
    let sound = |item: &String| {
        let rest = item.strip_prefix("http://").or_else(|| item.strip_prefix("https://"));
        rest.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', '@', '?', '#']))
    };
    (list.len() <= MAX_ENDPOINTS && list.iter().all(sound)).then_some(list)
}

impl FromStr for StoreUrl {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let invalid = |accepted: &str| InvalidValue::new("store", text, accepted);
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            // SQLite would take this name for a database in memory, which is spelled `memory:` here.
            Some(("sqlite", ":memory:")) => Err(invalid("memory: for a store in memory")),
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => Err(invalid("sqlite:PATH with a path")),
                path => Ok(Self::Sqlite(PathBuf::from(path))),
            },
            Some(("postgres" | "postgresql", rest)) if rest.len() > 2 && rest.starts_with("//") => {
                Ok(Self::Postgres(text.to_owned()))
            }
            Some(("redis", rest)) if rest.len() > 2 && rest.starts_with("//") => Ok(Self::Redis(text.to_owned())),
            Some(("etcd", list)) => endpoints(list)
                .map(Self::Etcd)
                .ok_or_else(|| invalid("etcd:http://HOST:PORT[,http://HOST:PORT…], at most 16")),
            _ => Err(invalid(
                "sqlite:PATH, postgres://USER@HOST/DATABASE, redis://HOST:PORT, etcd:http://HOST:PORT[,…] or memory:",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_is_read_back_as_it_was_written() {
        for text in [
            "memory:",
            "sqlite:/var/lib/manager.db",
            "sqlite:data/manager.db",
            "postgres://leasehold@db.example:5432/leasehold",
            "redis://cache.example:6379/1",
            "etcd:http://10.0.0.1:2379,https://etcd-2:2379",
        ] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), text);
        }
        assert_eq!("sqlite:///a.db".parse::<StoreUrl>().unwrap(), StoreUrl::Sqlite(PathBuf::from("/a.db")));
    }

    #[test]
    fn a_store_url_is_shown_without_its_password() {
        let url: StoreUrl = "postgres://leasehold:secret@db/leasehold".parse().unwrap();
        assert_eq!(url.to_string(), "postgres://leasehold:***@db/leasehold");
    }

    #[test]
    fn an_unknown_store_is_refused_with_what_would_be_accepted() {
        for text in [
            "",
            "memory",
            "memory:x",
            "sqlite:",
            "sqlite://",
            "sqlite::memory:",
            "mysql:x",
            "manager.db",
            "postgres:",
            "postgres://",
            "redis://",
            "etcd:",
            "etcd:127.0.0.1:2379",
            "etcd:http://a,ftp://b",
        ] {
            let refusal = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(refusal.contains("store") && refusal.contains("expected"), "{text}: {refusal}");
        }
    }
}
