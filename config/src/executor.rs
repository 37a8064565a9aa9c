//! Configuration of `shard-executor`.

use crate::Configuration;
use crate::archive::Archive;
use crate::key::Key;
use crate::keys;
use crate::kind::{self, BridgedApp, StorageUrl, show_duration};
use crate::reader::Reader;
use crate::sections::{Lease, Limits, Listen, Log, preset};
use crate::show::ShownValue;
use leasehold_model::lease::Profile;
use leasehold_model::message::Weight;
use leasehold_model::{Address, ClusterName, ExecutorName, InvalidValue, ShardCount};
use std::net::SocketAddr;
use std::time::Duration;

/// Everything that `shard-executor serve` can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// `cluster.name`.
    pub cluster: ClusterName,
    /// `cluster.shard_count`: what this executor expects, if it expects anything.
    pub shard_count: Option<ShardCount>,
    /// `[executor]`.
    pub executor: Identity,
    /// `[lease]`. The lease that is granted counts; these times are used until there is one.
    pub lease: Lease,
    /// `[listen]`.
    pub listen: Listen,
    /// `[agents]`.
    pub agents: Agents,
    /// `[bridge]`.
    pub bridge: Bridge,
    /// `[oplog]`.
    pub oplog: Oplog,
    /// `[limits]`.
    pub limits: Limits,
    /// `[log]`.
    pub log: Log,
}

/// `[executor]`: who this executor is and how it comes and goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name, if one was given; see [`Identity::resolve`].
    pub name: Option<ExecutorName>,
    /// Its advertised address, if one was given; see [`Identity::resolve`].
    pub address: Option<Address>,
    /// The managers to register with: 1 to 16.
    pub managers: Vec<Address>,
    /// Its failure domain, if any.
    pub zone: Option<String>,
    /// Its share relative to the others'.
    pub weight: Weight,
    /// How long running invocations may take to finish (R20, R37); zero stops them at once.
    pub handoff_grace: Duration,
    /// How long to keep trying while no manager answers (R38).
    pub registration_patience: Duration,
}

impl Identity {
    /// Name and address of an executor that is bound to `bound`: what was given, else what follows from it.
    ///
    /// # Errors
    /// Names `executor.address` when it was not given and `bound` is a wildcard, which nobody can dial; names
    /// `executor.name` when it was not given and none can be made of the address.
    pub fn resolve(&self, bound: SocketAddr) -> Result<(ExecutorName, Address), InvalidValue> {
        let address = match &self.address {
            Some(address) => address.clone(),
            None if bound.ip().is_unspecified() => {
                let accepted = "an address that others can dial, because listen.grpc is a wildcard";
                return Err(InvalidValue::new(keys::EXECUTOR_ADDRESS.path, "", accepted));
            }
            None => Address::new(bound.to_string()).map_err(|error| error.within("executor"))?,
        };
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ExecutorName::new(name_of(&address)).map_err(|error| error.within("executor"))?,
        };
        Ok((name, address))
    }
}

/// `127.0.0.1:7480` becomes `127.0.0.1-7480`.
fn name_of(address: &Address) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    address.as_str().chars().map(|c| if allowed(c) { c } else { '-' }).collect()
}

/// `[agents]`: what one executor takes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agents {
    /// Agents in memory.
    pub max_in_memory: usize,
    /// Invocations that wait for one agent.
    pub queue: usize,
    /// After how long without work an agent is suspended; zero: only when memory is short.
    pub idle_after: Duration,
}

/// `[bridge]`: agent types that applications decide for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Which, and where the applications are.
    pub apps: Vec<BridgedApp>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Calls of one application at once.
    pub calls: usize,
}

impl Bridge {
    fn read(reader: &mut Reader) -> Self {
        let apps = reader.optional(&keys::BRIDGE_APPS, kind::apps).unwrap_or_default();
        reader.show_unset(&keys::BRIDGE_APPS, "", "unset");
        for BridgedApp { kind, url } in apps.iter().filter(|app| !app.is_local()) {
            let warning =
                format!("bridge.apps: {kind} is decided for at {url}: states and payloads travel unencrypted");
            reader.warnings.push(warning);
        }
        Self { apps, timeout: reader.duration(&keys::BRIDGE_TIMEOUT), calls: reader.whole(&keys::BRIDGE_CALLS) }
    }
}

/// `[oplog]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oplog {
    /// Where oplogs are kept.
    pub url: StorageUrl,
    /// After how many entries the whole state is written.
    pub snapshot_every: u32,
    /// How long the lock may be held without a commit before its holder counts as frozen and is stepped around.
    pub step_around_after: Duration,
    /// `[oplog.archive]`.
    pub archive: Archive,
}

/// Well below a lease, so that a frozen writer does not cost its shards' next owner one.
/// Not longer than a lease: a planned move should not take longer than a crash.
const fn handoff_grace(profile: Profile) -> Duration {
    match profile {
        Profile::Wan | Profile::Lan => Duration::from_secs(10),
        Profile::Fast => Duration::from_secs(3),
    }
}

const fn step_around_after(profile: Profile) -> Duration {
    match profile {
        Profile::Wan | Profile::Lan => Duration::from_secs(1),
        Profile::Fast => Duration::from_millis(500),
    }
}

pub(crate) fn shard_count(text: &str) -> Option<ShardCount> {
    ShardCount::new(text.parse().ok()?).ok()
}

impl Configuration for ExecutorConfig {
    const BINARY: &'static str = "shard-executor";

    fn keys() -> &'static [&'static Key] {
        keys::EXECUTOR
    }

    fn read(reader: &mut Reader) -> Self {
        let cluster = reader.checked(&keys::CLUSTER_NAME, ClusterName::new);
        let expected = reader.optional(&keys::EXPECTED_SHARD_COUNT, shard_count);
        reader.show_unset(&keys::EXPECTED_SHARD_COUNT, "", "unset: the manager says");
        let lease = Lease::read(reader);
        let listen = Listen::read(reader, &keys::EXECUTOR_GRPC, &keys::EXECUTOR_HTTP);
        let executor = read_identity(reader, &lease, &listen);
        let agents = Agents {
            max_in_memory: reader.whole(&keys::AGENTS_IN_MEMORY),
            queue: reader.whole(&keys::AGENTS_QUEUE),
            idle_after: reader.duration(&keys::AGENTS_IDLE_AFTER),
        };
        let bridge = Bridge::read(reader);
        let url = reader.storage(&keys::OPLOG_URL);
        let oplog = Oplog {
            snapshot_every: reader.whole(&keys::SNAPSHOT_EVERY),
            step_around_after: preset(
                reader,
                &keys::STEP_AROUND_AFTER,
                lease.profile,
                step_around_after(lease.profile),
            ),
            archive: Archive::read(reader, &url),
            url,
        };
        if oplog.url == StorageUrl::Memory {
            reader.warnings.push("oplog.url is memory: agents' state is forgotten when the process ends".into());
        }
        if reader.is_set(&keys::STEP_AROUND_AFTER) && !matches!(oplog.url, StorageUrl::Sqlite(_)) {
            reader.warnings.push("oplog.step_around_after has no effect: only oplogs in sqlite: have that lock".into());
        }
        let limits = Limits::read(reader);
        Self {
            cluster,
            shard_count: expected,
            executor,
            lease,
            listen,
            agents,
            bridge,
            oplog,
            limits,
            log: Log::read(reader),
        }
    }

    fn derived(&self) -> Vec<ShownValue> {
        self.lease.shown_of_executor()
    }
}

fn read_identity(reader: &mut Reader, lease: &Lease, listen: &Listen) -> Identity {
    let identity = Identity {
        name: reader.optional(&keys::EXECUTOR_NAME, |text| ExecutorName::new(text).ok()),
        address: reader.optional(&keys::EXECUTOR_ADDRESS, |text| Address::new(text).ok()),
        managers: reader.addresses(&keys::EXECUTOR_MANAGERS),
        zone: reader.optional(&keys::ZONE, kind::zone),
        weight: reader.value(&keys::WEIGHT, |text| Weight::new(text.parse().ok()?).ok()),
        handoff_grace: preset(reader, &keys::HANDOFF_GRACE, lease.profile, handoff_grace(lease.profile)),
        registration_patience: reader.duration(&keys::REGISTRATION_PATIENCE),
    };
    reader.show_unset(&keys::ZONE, "", "unset");
    show_identity(reader, &identity, listen.grpc);
    check_timing(reader, &identity, lease);
    identity
}

/// A free port is known only once it is bound; what follows from the address is then shown as such.
fn show_identity(reader: &mut Reader, identity: &Identity, bound: SocketAddr) {
    let later = bound.port() == 0 && identity.address.is_none();
    match identity.resolve(bound) {
        _ if later && bound.ip().is_unspecified() => {
            reader.contradiction(&keys::EXECUTOR_ADDRESS, wildcard(bound));
        }
        Ok((name, address)) => {
            reader.show_unset(&keys::EXECUTOR_ADDRESS, address.as_str(), "from listen.grpc");
            reader.show_unset(&keys::EXECUTOR_NAME, name.as_str(), "from executor.address");
        }
        Err(_) if later => {
            reader.show_unset(&keys::EXECUTOR_ADDRESS, "", "from listen.grpc, once its port is known");
            reader.show_unset(&keys::EXECUTOR_NAME, "", "from executor.address, once it is known");
        }
        Err(error) if error.field == keys::EXECUTOR_ADDRESS.path => {
            reader.contradiction(&keys::EXECUTOR_ADDRESS, wildcard(bound));
        }
        Err(error) => reader.contradiction(
            &keys::EXECUTOR_NAME,
            format!("not set, and executor.address makes no name: {:?}; expected {}", error.value, error.accepted),
        ),
    }
}

fn wildcard(bound: SocketAddr) -> String {
    format!(
        "not set, and listen.grpc = {bound} is a wildcard that nobody can dial; expected host:port that others can dial"
    )
}

fn check_timing(reader: &mut Reader, identity: &Identity, lease: &Lease) {
    let patience = identity.registration_patience;
    let attempt = lease.times.attempt_deadline();
    if patience < attempt {
        let arithmetic = format!(
            "{} is below one attempt's deadline, max(lease.duration / 6, \
             lease.call_deadline_floor) = max({}, {}) = {}; not one attempt to register could run its course",
            show_duration(patience),
            show_duration(lease.times.ttl().as_duration() / 6),
            show_duration(lease.times.floor()),
            show_duration(attempt),
        );
        reader.contradiction(&keys::REGISTRATION_PATIENCE, arithmetic);
    }
    let duration = lease.times.ttl().as_duration();
    if identity.handoff_grace > duration {
        reader.warnings.push(format!(
            "executor.handoff_grace of {} is above lease.duration of {}: a shard that moves may wait \
             longer for its next owner than after a crash",
            show_duration(identity.handoff_grace),
            show_duration(duration),
        ));
    }
}
