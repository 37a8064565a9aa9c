//! Sections that several commands share, and how they are read.

use crate::key::Key;
use crate::keys;
use crate::kind::show_duration;
use crate::reader::Reader;
use leasehold_model::lease::{Allowance, LeaseTimes, Profile};
use std::net::SocketAddr;
use std::time::Duration;

/// `[lease]`: how long leases last and how their ends are kept apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The preset that unset times come from.
    pub profile: Profile,
    /// Length and call deadline floor, checked against each other (R14).
    pub times: LeaseTimes,
    /// What is taken off an executor's copy of a lease for clock-rate error (R9).
    pub allowance: Allowance,
}

impl Lease {
    pub(crate) fn read(reader: &mut Reader) -> Self {
        let profile: Profile = reader.value(&keys::PROFILE, |text| text.parse().ok());
        let duration = preset(reader, &keys::LEASE_DURATION, profile, profile.duration());
        let floor = preset(reader, &keys::CALL_DEADLINE_FLOOR, profile, profile.call_deadline_floor());
        let allowance = reader.allowance(&keys::ALLOWANCE);
        let times = match LeaseTimes::new(duration, floor) {
            Ok(times) => times,
            Err(_) => {
                let arithmetic = too_short(reader, profile, duration, floor);
                reader.contradiction(&keys::LEASE_DURATION, arithmetic);
                profile.into()
            }
        };
        reader.warnings.extend(times.warning());
        Self { profile, times, allowance }
    }
}

/// The value of `key`, or the profile's.
pub(crate) fn preset(reader: &mut Reader, key: &'static Key, profile: Profile, of_profile: Duration) -> Duration {
    let set = reader.optional_duration(key);
    reader.show_unset(key, show_duration(of_profile), format!("profile {profile}"));
    set.unwrap_or(of_profile)
}

/// R14, as arithmetic.
fn too_short(reader: &Reader, profile: Profile, duration: Duration, floor: Duration) -> String {
    let origin = |key: &Key| {
        let shown = reader.shown.iter().find(|shown| shown.key == key.path);
        shown.map_or(String::new(), |shown| shown.source.clone())
    };
    let least = floor.saturating_mul(3);
    format!(
        "{} ({}) is below 3 × lease.call_deadline_floor = 3 × {} ({}) = {}, so that three \
         attempts to renew would not fit into a lease; set lease.duration to {} or more, or \
         lease.call_deadline_floor to {} or less, or another lease.profile than {profile} \
         (lan: 12s and 2s, fast: 3s and 500ms)",
        show_duration(duration),
        origin(&keys::LEASE_DURATION),
        show_duration(floor),
        origin(&keys::CALL_DEADLINE_FLOOR),
        show_duration(least),
        show_duration(least),
        show_duration(duration / 3),
    )
}

/// `[listen]`: where a process serves. Port 0 takes a free one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// gRPC.
    pub grpc: SocketAddr,
    /// HTTP.
    pub http: SocketAddr,
}

impl Listen {
    pub(crate) fn read(reader: &mut Reader, grpc: &'static Key, http: &'static Key) -> Self {
        let listen = Self { grpc: reader.listen(grpc), http: reader.listen(http) };
        let same_port = listen.grpc.port() != 0 && listen.grpc.port() == listen.http.port();
        let same_host = listen.grpc.ip() == listen.http.ip()
            || listen.grpc.ip().is_unspecified()
            || listen.http.ip().is_unspecified();
        if same_port && same_host {
            let arithmetic =
                format!("{} and listen.grpc = {} are one port; give each its own", listen.http, listen.grpc);
            reader.contradiction(http, arithmetic);
        }
        listen
    }
}

/// `[limits]`: overload is refused, never taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at a listener.
    pub connections: u32,
    /// Calls under way at once.
    pub calls: u32,
}

impl Limits {
    pub(crate) fn read(reader: &mut Reader) -> Self {
        Self { connections: reader.whole(&keys::CONNECTIONS), calls: reader.whole(&keys::CALLS) }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

/// The least severe lines that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is degraded.
    Warn,
    /// Something changed.
    Info,
    /// What led to it.
    Debug,
    /// Everything.
    Trace,
}

/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// Text or JSON.
    pub format: LogFormat,
    /// The least severe that is written.
    pub level: LogLevel,
}

impl LogLevel {
    /// As it stands in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Log {
    pub(crate) fn read(reader: &mut Reader) -> Self {
        let format = reader.value(&keys::LOG_FORMAT, |text| match text {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        });
        let levels = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];
        let level = reader.value(&keys::LOG_LEVEL, |text| levels.into_iter().find(|level| level.as_str() == text));
        Self { format, level }
    }
}
