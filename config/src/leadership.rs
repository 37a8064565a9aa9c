//! `[leadership]`, and what of `[store]` only etcd has: distributed mode.

use crate::key::{Default, Key};
use crate::keys;
use crate::kind::{self, StorageUrl, show_duration};
use crate::reader::Reader;
use crate::sections::{Lease, Listen};
use leasehold_model::{Address, InvalidValue};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What a manager does with its gRPC port while another one leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyGrpc {
    /// It is closed: an open port is the leader's.
    Closed,
    /// It answers `NOT_LEADER` with the leader's address.
    Redirect,
}

/// How several managers share a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    /// The ttl of the leader's lease in etcd that is asked for; what etcd grants counts.
    pub lease_ttl: Duration,
    /// What a standby does with its gRPC port.
    pub standby_grpc: StandbyGrpc,
    /// Where the leader is reached; `None`: the address that `listen.grpc` was bound to.
    pub address: Option<Address>,
    /// How etcd is reached.
    pub etcd: EtcdAccess,
}

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAccess {
    /// `http://HOST:PORT` or `https://HOST:PORT`, 1 to 16.
    pub endpoints: Vec<String>,
    /// How long one call may take.
    pub request_timeout: Duration,
    /// How much history is kept behind a compaction; 0: nothing is compacted.
    pub compaction_retention_revisions: u64,
    /// The user, if etcd wants one, with the file that its password is in.
    pub user: Option<(String, PathBuf)>,
    /// Who signs etcd's certificates, in PEM; needed by `https` endpoints.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key of this process, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// What taking over may take beyond the end of the dead leader's lease.
const FAILOVER_MARGIN: Duration = Duration::from_millis(500);

const OF_ETCD: &[&Key] = &[
    &keys::LEADER_LEASE_TTL,
    &keys::STANDBY_GRPC,
    &keys::LEADERSHIP_ADDRESS,
    &keys::REQUEST_TIMEOUT,
    &keys::COMPACTION_RETENTION,
    &keys::STORE_USER,
    &keys::STORE_PASSWORD_FILE,
    &keys::STORE_CA_FILE,
    &keys::STORE_CERT_FILE,
    &keys::STORE_KEY_FILE,
];

impl Leadership {
    /// Reads every key; `None` unless `store` is etcd, with a warning for each key that then does nothing.
    pub(crate) fn read(reader: &mut Reader, store: &StorageUrl, listen: Listen, lease: &Lease) -> Option<Self> {
        let read = Self::of_keys(reader, store);
        let StorageUrl::Etcd(_) = store else {
            let set = |key: &&Key| reader.is_set(key);
            let idle: Vec<&str> = OF_ETCD.iter().copied().filter(set).map(|key| key.path).collect();
            if !idle.is_empty() {
                let plural = if idle.len() == 1 { "does" } else { "do" };
                reader.warnings.push(format!("{} {plural} nothing while store.url is {store}", idle.join(", ")));
            }
            return None;
        };
        let least = read.etcd.request_timeout.saturating_mul(2);
        if least > read.lease_ttl {
            let arithmetic = format!(
                "2 × store.request_timeout = 2 × {} = {} is above leadership.leader_lease_ttl = {}, so that a keepalive that \
                 failed once could not be repeated in time; set store.request_timeout to {} or less",
                show_duration(read.etcd.request_timeout),
                show_duration(least),
                show_duration(read.lease_ttl),
                show_duration(read.lease_ttl / 2),
            );
            reader.contradiction(&keys::REQUEST_TIMEOUT, arithmetic);
        }
        if read.address.is_none() && listen.grpc.ip().is_unspecified() {
            let why =
                format!("unset, and nobody can dial listen.grpc = {}; set where this manager is reached", listen.grpc);
            reader.contradiction(&keys::LEADERSHIP_ADDRESS, why);
        }
        let failover = read.lease_ttl + FAILOVER_MARGIN;
        let bridged = lease.holder_lease() - lease.holder_lease() / 3;
        if failover > bridged {
            reader.warnings.push(format!(
                "a leader that is killed is replaced within leadership.leader_lease_ttl + {} = {}; executors bridge {} (two \
                 thirds of a lease): callers may notice. Set leader_lease_ttl lower or lease.duration higher",
                show_duration(FAILOVER_MARGIN),
                show_duration(failover),
                show_duration(bridged),
            ));
        }
        if read.etcd.identity.is_some() && read.etcd.ca_file.is_none() {
            let why =
                "unset, but store.cert_file is set: a certificate is shown to nobody without https, which needs it";
            reader.contradiction(&keys::STORE_CA_FILE, why.to_owned());
        }
        Some(read)
    }

    fn of_keys(reader: &mut Reader, store: &StorageUrl) -> Self {
        let endpoints = if let StorageUrl::Etcd(endpoints) = store { endpoints.clone() } else { Vec::new() };
        let path = |text: &str| (!text.contains(char::is_control)).then(|| PathBuf::from(text));
        // A user's name is written as others are.
        let user = reader.optional(&keys::STORE_USER, kind::zone);
        let password = reader.optional(&keys::STORE_PASSWORD_FILE, path);
        let cert = reader.optional(&keys::STORE_CERT_FILE, path);
        let key = reader.optional(&keys::STORE_KEY_FILE, path);
        let etcd = EtcdAccess {
            endpoints,
            request_timeout: reader.duration(&keys::REQUEST_TIMEOUT),
            compaction_retention_revisions: reader.whole(&keys::COMPACTION_RETENTION),
            user: both(reader, (&keys::STORE_USER, user), (&keys::STORE_PASSWORD_FILE, password)),
            ca_file: reader.optional(&keys::STORE_CA_FILE, path),
            identity: both(reader, (&keys::STORE_CERT_FILE, cert), (&keys::STORE_KEY_FILE, key)),
        };
        let read = Self {
            lease_ttl: reader.duration(&keys::LEADER_LEASE_TTL),
            standby_grpc: reader.value(&keys::STANDBY_GRPC, |text| match text {
                "closed" => Some(StandbyGrpc::Closed),
                "redirect" => Some(StandbyGrpc::Redirect),
                _ => None,
            }),
            address: reader.optional(&keys::LEADERSHIP_ADDRESS, |text| Address::new(text).ok()),
            etcd,
        };
        for key in OF_ETCD {
            if let Default::Unset { then, .. } = key.default {
                reader.show_unset(key, "", format!("unset: {then}"));
            }
        }
        read
    }

    /// Where a manager is reached that was bound to `bound`.
    ///
    /// # Errors
    /// Names `leadership.address` when it was not given and `bound` is a wildcard, which nobody can dial.
    pub fn reached_at(&self, bound: SocketAddr) -> Result<Address, InvalidValue> {
        match &self.address {
            Some(address) => Ok(address.clone()),
            None if bound.ip().is_unspecified() => {
                let accepted = "an address that others can dial, because listen.grpc is a wildcard";
                Err(InvalidValue::new(keys::LEADERSHIP_ADDRESS.path, "", accepted))
            }
            None => Address::new(bound.to_string()).map_err(|error| error.within("leadership")),
        }
    }
}

/// Two keys that mean something only together.
fn both<A, B>(reader: &mut Reader, a: (&'static Key, Option<A>), b: (&'static Key, Option<B>)) -> Option<(A, B)> {
    match (a.1, b.1) {
        (Some(one), Some(other)) => Some((one, other)),
        (None, None) => None,
        (Some(_), None) => {
            reader.contradiction(b.0, format!("unset, but {} is set: they are used together", a.0.path));
            None
        }
        (None, Some(_)) => {
            reader.contradiction(a.0, format!("unset, but {} is set: they are used together", b.0.path));
            None
        }
    }
}
