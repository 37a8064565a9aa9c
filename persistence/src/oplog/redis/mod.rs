//! Oplogs in a Redis server, shared by all executors of a cluster; many clusters share one server, told apart by their names in
//! the keys.
//!
//! # The fence
//! Every call is one script, and Redis runs one at a time (see `scripts`): an append checks the record and the index in the script
//! that writes. Record, entries and keys of an agent share a hash tag.
//!
//! # What Redis keeps
//! What is acknowledged is as durable as the server is set: with `appendonly yes` and `appendfsync always` it is on its disk. Anything less
//! is warned about at the opening. Replicas are asked for nothing: a failover to one that lagged behind loses what was acknowledged
//! meanwhile, and may bring an old record back; so may a restart that loses the last second. Owners that the manager makes after
//! that get higher epochs, which fence the others again; what was lost stays lost.
//!
//! Cluster mode, replicas, Sentinels and a `maxmemory-policy` that evicts records are refused. A server that is full (`noeviction`) refuses
//! appends before they write anything.
//!
//! # Unknown outcomes
//! A script whose answer was lost may have run, or may run yet. Before the same process asks anything else about the agent, it ends
//! the lost connection at the server, so that what a reader finds after that stays so.

mod audit;
mod chunks;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod link;
mod scripts;
mod server;
mod values;

pub use audit::RedisAudit;

use super::layers::ChunkStore;
use super::{Append, Claimed, Entry, EntryIndex, EntryKind, Error, Gate, OplogStore, Warning, Writer, check_writer};
use async_trait::async_trait;
use leasehold_model::secret::without_password;
use leasehold_model::{AgentId, ClusterName, InvalidValue, ShardId};
use link::{Effect, Link, Place};
use redis::{Client, Cmd, Script, ScriptInvocation};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use values::{accepted, corrupt, encode, epoch, index};

/// Connections. Every call about an agent goes over the same one, so that they keep their order; a long answer holds up a part of the others only.
const LINKS: usize = 4;

/// Lua counts exactly up to here.
const MOST_EXACT: u64 = 1 << 53;

/// What the store may take.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long making a connection may take, and each question before its first use. Default 5 s.
    pub connect_timeout: Duration,
    /// After how long without an answer a connection is given up. Default 10 s.
    pub silence: Duration,
    /// Appends without the fence: the other side of a benchmark's comparison.
    #[doc(hidden)]
    pub unfenced: bool,
    /// Where tests hold appends.
    #[doc(hidden)]
    pub hold: Option<Gate>,
}

impl Default for Settings {
    fn default() -> Self {
        let (connect_timeout, silence) = (Duration::from_secs(5), Duration::from_secs(10));
        Self { connect_timeout, silence, unfenced: false, hold: None }
    }
}

/// A process's handle on the store.
pub struct RedisOplogStore {
    place: Arc<Place>,
    links: Vec<Link>,
    /// `leasehold:CLUSTER:`, before every key.
    prefix: String,
    warnings: Vec<Warning>,
    fenced: AtomicU64,
}

impl fmt::Debug for RedisOplogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOplogStore").field("place", &self.place.name).finish_non_exhaustive()
    }
}

impl RedisOplogStore {
    /// Opens the oplogs of `cluster` at `url` (`redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]`), with default settings.
    ///
    /// # Errors
    /// As [`RedisOplogStore::open_with`].
    pub async fn open(url: &str, cluster: &ClusterName) -> Result<Self, Error> {
        Self::open_with(url, cluster, Settings::default()).await
    }

    /// Opens the oplogs of `cluster` at `url`. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the URL or the credentials are wrong, when the server is in Cluster mode, evicts keys or is too old, or
    /// when a newer build has written to it; [`Error::Unavailable`] otherwise.
    pub async fn open_with(url: &str, cluster: &ClusterName, settings: Settings) -> Result<Self, Error> {
        let client = Client::open(url);
        let client = client.map_err(|error| Error::Invalid(format!("no URL of a Redis server: {error}")))?;
        let prefix = format!("leasehold:{cluster}:");
        let name = format!("Redis {}, cluster {cluster}", without_password(url));
        let place = Arc::new(Place { client, settings, name, schema: format!("{prefix}schema") });
        let links: Vec<_> = (0..LINKS).map(|_| Link::new(Arc::clone(&place))).collect();
        let mut warnings = Vec::new();
        // The others connect when they are needed.
        if let Some(first) = links.first() {
            warnings = first.open().await?;
        }
        Ok(Self { place, links, prefix, warnings, fenced: AtomicU64::new(0) })
    }

    /// What an operator should know of the server's settings, as they were when the store was opened.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Calls through this handle that were fenced.
    #[must_use]
    pub fn fenced(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    fn link(&self, by: impl Hash) -> &Link {
        let mut hasher = DefaultHasher::new();
        by.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % LINKS as u64).unwrap_or(0);
        &self.links[at]
    }

    fn key(&self, agent: &AgentId, what: &str) -> String {
        format!("{}{{{}}}:{what}", self.prefix, agent.as_str())
    }

    /// The set of a shard's running agents, without the shard.
    fn running_set(&self) -> String {
        format!("{}running:", self.prefix)
    }

    /// The set of a shard's suspended agents, without the shard.
    fn suspended_set(&self) -> String {
        format!("{}suspended:", self.prefix)
    }

    /// As `ZRANGEBYLEX` wants it.
    fn beyond(after: Option<&AgentId>) -> String {
        after.map_or_else(|| "-".to_owned(), |agent| format!("({}", agent.as_str()))
    }

    fn at_oplog(&self, agent: &AgentId) -> String {
        format!("{}: oplog {:?}", self.place.name, agent.as_str())
    }

    fn prepare<'a>(&self, script: &'a Script, agent: &AgentId, writer: Writer) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.key(self.key(agent, "oplog")).key(self.key(agent, "keys"));
        call.arg(epoch(writer)).arg(writer.executor.as_bytes().as_slice());
        call
    }

    /// Runs a prepared script about `agent`.
    async fn run(
        &self,
        (agent, writer): (&AgentId, Writer),
        (effect, call): (Effect, &ScriptInvocation<'_>),
        expected: EntryIndex,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let place = self.at_oplog(agent);
        let answer = self.link(agent).call(effect, call, &place).await?;
        let outcome = accepted(answer, (writer, expected), &place);
        if matches!(outcome, Err(Error::Fenced { .. })) {
            self.fenced.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

/// No index is expected.
const NONE: EntryIndex = EntryIndex(0);

#[async_trait]
impl OplogStore for RedisOplogStore {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        check_writer(writer)?;
        let mut call = self.prepare(&scripts::CLAIMING, agent, writer);
        call.arg(shard.0).arg(self.running_set()).arg(agent.as_str()).arg(self.suspended_set());
        let told = self.run((agent, writer), (Effect::Writes, &call), NONE).await?;
        let place = self.at_oplog(agent);
        let [next, snapshot] = told.as_slice() else {
            return Err(corrupt(&place, "a claim was answered with nonsense"));
        };
        let snapshot = (!snapshot.is_empty()).then(|| index(snapshot, &place)).transpose()?;
        Ok(Claimed { next: index(next, &place)?, snapshot })
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        append.check()?;
        let (writer, end) = (append.writer, append.end());
        if let Some(gate) = &self.place.settings.hold {
            gate.pass().await;
        }
        let script = if self.place.settings.unfenced { &scripts::APPENDING_UNFENCED } else { &scripts::APPENDING };
        let mut call = self.prepare(script, &append.agent, writer);
        let snapshots = append.entries.iter().rposition(|entry| entry.kind == EntryKind::Snapshot);
        let snapshot = snapshots.map_or_else(String::new, |at| (append.expected.0 + at as u64).to_string());
        call.arg(append.expected.0).arg(end.0).arg(snapshot).arg(2 * append.entries.len());
        for (entry, at) in append.entries.iter().zip(append.expected.0..) {
            call.arg(at).arg(encode(writer, entry));
        }
        for (entry, at) in append.entries.iter().zip(append.expected.0..) {
            if let Some(key) = &entry.key {
                call.arg(key).arg(at);
            }
        }
        self.run((&append.agent, writer), (Effect::Writes, &call), append.expected).await?;
        Ok(end)
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.page(agent, writer, from, limit).await?.primary_only(agent, from)
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        let found = self.look_up(agent, writer, key).await?;
        found.map(|found| found.primary_only(agent)).transpose()
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        let mut call = self.prepare(&scripts::DELETING, agent, writer);
        call.key(self.key(agent, "chunks")).key(self.key(agent, "chunk-order"));
        call.arg(self.running_set()).arg(agent.as_str()).arg(self.suspended_set()).arg(expected.0);
        self.run((agent, writer), (Effect::Writes, &call), expected).await.map(drop)
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        let mut call = self.prepare(&scripts::SUSPENDING, agent, writer);
        call.arg(self.running_set()).arg(agent.as_str()).arg(self.suspended_set());
        self.run((agent, writer), (Effect::Writes, &call), NONE).await.map(drop)
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        let mut ask = Cmd::new();
        ask.arg("ZRANGEBYLEX").arg(format!("{}{}", self.running_set(), shard.0)).arg(Self::beyond(after)).arg("+");
        ask.arg("LIMIT").arg(0).arg(limit);
        let place = format!("{}: shard {shard}", self.place.name);
        let names: Vec<String> = self.link(shard).read(&ask, &place).await?;
        names.into_iter().map(|name| AgentId::new(name).map_err(|error| corrupt(&place, error))).collect()
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        let mut call = scripts::LISTING.prepare_invoke();
        call.key(format!("{}{}", self.suspended_set(), shard.0)).key(format!("{}{}", self.running_set(), shard.0));
        call.arg(Self::beyond(after)).arg(limit);
        let place = format!("{}: shard {shard}", self.place.name);
        let told = self.link(shard).call(Effect::Reads, &call, &place).await?;
        let names: Result<Vec<_>, _> = told.into_iter().map(String::from_utf8).collect();
        let names = names.map_err(|error| corrupt(&place, error))?;
        let Some((count, names)) = names.split_first() else { return Err(corrupt(&place, "no answer")) };
        let suspended: usize = count.parse().map_err(|error| corrupt(&place, error))?;
        let listed = names.iter().enumerate().map(|(at, name)| Ok((AgentId::new(name.as_str())?, at >= suspended)));
        let listed: Result<BTreeMap<_, _>, InvalidValue> = listed.collect();
        Ok(listed.map_err(|error| corrupt(&place, error))?.into_iter().take(limit as usize).collect())
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        let mut ask = Cmd::new();
        ask.arg("HMGET").arg(self.key(agent, "oplog")).arg("epoch").arg("executor");
        let place = self.at_oplog(agent);
        let found: Vec<Option<Vec<u8>>> = self.link(agent).read(&ask, &place).await?;
        match found.as_slice() {
            [Some(epoch), Some(executor)] => values::writer(epoch, executor, &place).map(Some),
            [None, None] => Ok(None),
            _ => Err(corrupt(&place, "its record has an epoch or an executor only")),
        }
    }
}
