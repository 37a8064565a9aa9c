//! What a value may be: its text form, its range, and how both are told to a person.

use leasehold_model::archive::{ACCEPTED_ARCHIVE, ACCEPTED_ENDPOINT};
use leasehold_model::secret::without_password;
use leasehold_model::{Address, ClusterName, InvalidValue};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The kind of a key's value, with its accepted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A span with a unit: `60s`, `500ms`, `1m 30s`.
    Duration {
        /// The shortest accepted.
        min: Duration,
        /// The longest accepted.
        max: Duration,
    },
    /// A whole number.
    Whole {
        /// The least accepted.
        min: u64,
        /// The greatest accepted.
        max: u64,
    },
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A name of a cluster, an executor or a zone.
    Name,
    /// `host:port` that somebody else dials.
    Address,
    /// One or more of them.
    Addresses,
    /// `IP:port` to listen on.
    Listen,
    /// Allowance for clock-rate error: `0.1%` or `1000ppm`.
    Allowance,
    /// Where oplogs are: `sqlite:` with a path of the named sort, a server that executors share, or `memory:`.
    Storage(&'static str),
    /// Where a manager's state is: `sqlite:` with a path, a server that managers share, or `memory:`.
    SharedStorage(&'static str),
    /// A file's path.
    File,
    /// Where the archive of oplogs is.
    Archive,
    /// Where S3-compatible storage is served.
    Endpoint,
    /// A region of S3.
    Region,
    /// Agent types with the applications that decide for them.
    Apps,
}

impl Kind {
    /// What is accepted, in words, with the range.
    #[must_use]
    pub fn accepted(&self) -> String {
        match self {
            Self::Duration { min, max } => {
                format!("a duration with its unit, {} to {}", show_duration(*min), show_duration(*max))
            }
            Self::Whole { min, max } => format!("a whole number, {min} to {max}"),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::Name => "1 to 128 of letters, digits, '.', '_', '-'".into(),
            Self::Address => "host:port with a port in 1 to 65535".into(),
            Self::Addresses => "one to 16 of host:port, each with a port in 1 to 65535".into(),
            Self::Listen => "IP:port, such as 127.0.0.1:7470 or [::1]:7470; port 0 takes a free one".into(),
            Self::Allowance => "0% to 10%, in % (at most four decimals) or in ppm".into(),
            Self::Storage(path) => {
                format!("sqlite:{path}, postgres://USER@HOST:PORT/DATABASE, redis://HOST:PORT or memory:")
            }
            Self::SharedStorage(path) => format!(
                "sqlite:{path}, postgres://USER@HOST:PORT/DATABASE, etcd:http://HOST:PORT with up to 15 more between commas (or \
                 https://), or memory:"
            ),
            Self::File => "the path of a file".into(),
            Self::Archive => ACCEPTED_ARCHIVE.into(),
            Self::Endpoint => ACCEPTED_ENDPOINT.into(),
            Self::Region => "1 to 64 of letters, digits, '-'".into(),
            Self::Apps => "up to 64 of TYPE=http://HOST:PORT, with a path after it if need be, each TYPE once (1 to 128 of letters, \
                 digits, '.', '_', '-'); https:// is not spoken: the application stands beside the executor"
                .into(),
        }
    }

    /// `text` as a TOML value of this kind.
    pub(crate) fn toml(&self, text: &str) -> String {
        match self {
            Self::Whole { .. } => text.to_owned(),
            Self::Addresses | Self::Apps => {
                let items: Vec<_> = text.split(',').map(|item| format!("{:?}", item.trim())).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Duration { .. }
            | Self::OneOf(_)
            | Self::Name
            | Self::Address
            | Self::Listen
            | Self::Allowance
            | Self::Storage(_)
            | Self::SharedStorage(_)
            | Self::File
            | Self::Archive
            | Self::Endpoint
            | Self::Region => format!("{text:?}"),
        }
    }
}

/// Where a store keeps its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageUrl {
    /// `memory:`. Everything is forgotten when the process ends.
    Memory,
    /// `sqlite:PATH`: a file for the manager's state, a directory for oplogs.
    Sqlite(PathBuf),
    /// `postgres://USER@HOST:PORT/DATABASE?sslmode=…`, as libpq writes it. May hold a password, which is never shown.
    Postgres(String),
    /// `redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]`, for oplogs. The password is never shown.
    Redis(String),
    /// `etcd:http://HOST:PORT,…`: distributed mode.
    Etcd(Vec<String>),
}

impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) | Self::Redis(url) => f.write_str(&without_password(url)),
            Self::Etcd(endpoints) => write!(f, "etcd:{}", endpoints.join(",")),
        }
    }
}

/// An agent type and the application that decides for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgedApp {
    /// The agent type's name.
    pub kind: String,
    /// `http://HOST:PORT`, with a path if need be, without a slash at its end.
    pub url: String,
}

impl BridgedApp {
    /// Whether the application is on this machine, so that nobody reads along.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let place = self.url.strip_prefix("http://").unwrap_or_default();
        let host = place.split('/').next().and_then(|place| place.rsplit_once(':')).map_or("", |(host, _)| host);
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

/// The most applications in a list.
const MAX_APPS: usize = 64;

pub(crate) fn apps(text: &str) -> Option<Vec<BridgedApp>> {
    let apps: Vec<_> = text.split(',').take(MAX_APPS + 1).map(|item| app(item.trim())).collect::<Option<_>>()?;
    let names: BTreeSet<_> = apps.iter().map(|app| &app.kind).collect();
    (apps.len() <= MAX_APPS && names.len() == apps.len()).then_some(apps)
}

fn app(text: &str) -> Option<BridgedApp> {
    let (kind, url) = text.split_once('=')?;
    let (place, path) = url.strip_prefix("http://")?.split_once('/').unwrap_or((url.strip_prefix("http://")?, ""));
    let sound = |c: char| c.is_ascii_graphic() && !"?#%\"<>\\^`{|}".contains(c);
    // A type is written as a name is.
    let named = ClusterName::new(kind).is_ok() && Address::new(place).is_ok();
    let url = url.trim_end_matches('/').to_owned();
    (named && path.chars().all(sound)).then(|| BridgedApp { kind: kind.to_owned(), url })
}

/// The most addresses in a list.
pub(crate) const MAX_ADDRESSES: usize = 16;

pub(crate) fn duration(text: &str, min: Duration, max: Duration) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|span| (min..=max).contains(span))
}

pub(crate) fn whole(text: &str, min: u64, max: u64) -> Option<u64> {
    text.parse().ok().filter(|number| (min..=max).contains(number))
}

pub(crate) fn listen(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

pub(crate) fn addresses(text: &str) -> Option<Vec<Address>> {
    let list: Vec<_> =
        text.split(',').take(MAX_ADDRESSES + 1).map(|item| Address::new(item.trim())).collect::<Result<_, _>>().ok()?;
    (list.len() <= MAX_ADDRESSES).then_some(list)
}

/// A zone is written as a name is.
pub(crate) fn zone(text: &str) -> Option<String> {
    ClusterName::new(text).ok().map(String::from)
}

pub(crate) fn file(text: &str) -> Option<PathBuf> {
    (!text.contains(char::is_control)).then(|| PathBuf::from(text))
}

/// A region is written as part of a host's name.
pub(crate) fn region(text: &str) -> Option<String> {
    let sound = text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    sound.then(|| text.to_owned())
}

pub(crate) fn yes(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Where oplogs may be.
pub(crate) fn storage(text: &str) -> Option<StorageUrl> {
    match text.strip_prefix("redis://") {
        Some(rest) if !rest.is_empty() && !text.contains(char::is_control) => Some(StorageUrl::Redis(text.to_owned())),
        Some(_) => None,
        None => file_or_postgres(text),
    }
}

/// Where a manager's state may be.
pub(crate) fn shared_storage(text: &str) -> Option<StorageUrl> {
    match text.strip_prefix("etcd:") {
        Some(list) => endpoints(list).map(StorageUrl::Etcd),
        None => file_or_postgres(text),
    }
}

fn file_or_postgres(text: &str) -> Option<StorageUrl> {
    match text.split_once(':')? {
        ("memory", "") => Some(StorageUrl::Memory),
        // SQLite would take this name for a database in memory, which is spelled `memory:` here.
        ("sqlite", ":memory:") => None,
        ("sqlite", path) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            (!path.is_empty() && !path.contains('\0')).then(|| StorageUrl::Sqlite(path.into()))
        }
        ("postgres" | "postgresql", rest) if rest.len() > 2 && rest.starts_with("//") => {
            (!text.contains(char::is_control)).then(|| StorageUrl::Postgres(text.to_owned()))
        }
        _ => None,
    }
}

/// etcd's endpoints between commas: a scheme, and `host:port`.
fn endpoints(text: &str) -> Option<Vec<String>> {
    let list: Vec<&str> = text.split(',').take(MAX_ADDRESSES + 1).map(str::trim).collect();
    let sound = |endpoint: &&str| {
        let place = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        place.is_some_and(|place| Address::new(place).is_ok())
    };
    (list.len() <= MAX_ADDRESSES && list.iter().all(sound)).then(|| list.into_iter().map(str::to_owned).collect())
}

/// Parts per million of `0.1%` or `1000ppm`.
pub(crate) fn parts_per_million(text: &str) -> Option<u32> {
    if let Some(number) = text.strip_suffix("ppm") {
        return digits(number.trim_end());
    }
    let number = text.strip_suffix('%')?.trim_end();
    let (percent, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if decimals.len() > 4 {
        return None;
    }
    digits(percent)?.checked_mul(10_000)?.checked_add(digits(&format!("{decimals:0<4}"))?)
}

/// Digits alone: `str::parse` would also take a sign.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A span as people read it: `60s`, `59.94s`, `500ms`.
#[must_use]
pub fn show_duration(span: Duration) -> String {
    let (whole, fraction, digits, unit) = if span >= Duration::from_secs(1) || span.is_zero() {
        (span.as_secs(), span.subsec_nanos(), 9, "s")
    } else {
        (u64::from(span.subsec_millis()), span.subsec_nanos() % 1_000_000, 6, "ms")
    };
    if fraction == 0 {
        return format!("{whole}{unit}");
    }
    let fraction = format!("{fraction:0digits$}");
    format!("{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

/// `text` between quotes, escaped and shortened to what the model shows of a refused value.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", InvalidValue::new("", text, "").value)
}

/// As [`quoted`], without the quotes.
pub(crate) fn bare(text: &str) -> String {
    let quoted = quoted(text);
    quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(&quoted).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_read_in_percent_and_in_ppm() {
        let table = [
            ("0.1%", Some(1000)),
            ("1000ppm", Some(1000)),
            ("0%", Some(0)),
            ("10%", Some(100_000)),
            ("0.0001%", Some(1)),
            ("0.05 %", Some(500)),
            ("0.00001%", None),
            ("-1%", None),
            ("+1ppm", None),
            ("0.1", None),
            ("%", None),
            ("9999999999%", None),
            ("429497%", None),
        ];
        for (text, ppm) in table {
            assert_eq!(parts_per_million(text), ppm, "{text}");
        }
    }

    #[test]
    fn an_application_is_a_type_and_a_url_and_no_type_has_two() {
        let read =
            |text: &str| apps(text).map(|apps| apps.into_iter().map(|app| (app.kind, app.url)).collect::<Vec<_>>());
        let pair = |kind: &str, url: &str| (kind.to_owned(), url.to_owned());
        let two = vec![pair("cart", "http://127.0.0.1:9000"), pair("mail", "http://mail:80/in/box")];
        assert_eq!(read("cart=http://127.0.0.1:9000/, mail=http://mail:80/in/box"), Some(two));
        for text in [
            "",
            "cart",
            "cart=",
            "=http://a:1",
            "cart=a:1",
            "cart=https://a:1",
            "cart=http://a",
            "cart=http://a:0",
            "a/b=http://a:1",
            "cart=http://a:1?x=1",
            "cart=http://a:1/x y",
            "cart=http://a:1,cart=http://b:1",
            "cart=http://a:1,",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        let many = |count: usize| (0..count).map(|n| format!("t{n}=http://a:1")).collect::<Vec<_>>().join(",");
        assert_eq!((apps(&many(64)).map(|apps| apps.len()), apps(&many(65))), (Some(64), None));
    }

    #[test]
    fn only_this_machine_counts_as_local() {
        for (url, local) in [
            ("http://127.0.0.1:9", true),
            ("http://localhost:9/x", true),
            ("http://[::1]:9", true),
            ("http://10.0.0.1:9", false),
            ("http://localhost.example:9", false),
        ] {
            assert_eq!(BridgedApp { kind: "a".into(), url: url.into() }.is_local(), local, "{url}");
        }
    }

    #[test]
    fn a_store_is_read_as_it_is_written_and_nothing_else_is_one() {
        let sqlite = |path: &str| Some(StorageUrl::Sqlite(path.into()));
        for (text, read) in [
            ("memory:", Some(StorageUrl::Memory)),
            ("sqlite:data/manager.db", sqlite("data/manager.db")),
            ("sqlite://data/manager.db", sqlite("data/manager.db")),
            ("sqlite:///a.db", sqlite("/a.db")),
            ("etcd:http://a:1, https://b:2", Some(StorageUrl::Etcd(vec!["http://a:1".into(), "https://b:2".into()]))),
        ] {
            assert_eq!(shared_storage(text), read, "{text}");
        }
        let none =
            ["", "memory", "memory:x", "sqlite:", "sqlite://", "sqlite::memory:", "mysql:x", "manager.db", "postgres:"];
        let nor = ["postgres://", "etcd:", "etcd:127.0.0.1:2379", "etcd:http://a", "etcd:http://a:1,ftp://b:1"];
        for text in none.into_iter().chain(nor) {
            assert_eq!(shared_storage(text), None, "{text}");
        }
    }

    #[test]
    fn spans_are_shown_in_seconds_or_milliseconds() {
        let table = [(60_000_000, "60s"), (59_940_000, "59.94s"), (500_000, "500ms"), (1_250, "1.25ms"), (0, "0s")];
        for (micros, text) in table {
            assert_eq!(show_duration(Duration::from_micros(micros)), text);
        }
    }
}
