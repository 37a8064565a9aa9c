//! Where a store is, as an operator writes it.

use leasehold_model::InvalidValue;
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
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
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
            _ => Err(invalid("sqlite:PATH or memory:")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_is_read_back_as_it_was_written() {
        for text in ["memory:", "sqlite:/var/lib/manager.db", "sqlite:data/manager.db"] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), text);
        }
        assert_eq!("sqlite:///a.db".parse::<StoreUrl>().unwrap(), StoreUrl::Sqlite(PathBuf::from("/a.db")));
    }

    #[test]
    fn an_unknown_store_is_refused_with_what_would_be_accepted() {
        for text in ["", "memory", "memory:x", "sqlite:", "sqlite://", "sqlite::memory:", "mysql:x", "manager.db"] {
            let refusal = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(refusal.contains("store") && refusal.contains("expected"), "{text}: {refusal}");
        }
    }
}
