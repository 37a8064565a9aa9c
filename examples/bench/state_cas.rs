//! The manager that Leasehold is measured against: it keeps deadlines in its stored state, and writes that state whole, by
//! compare-and-swap, for each renewal. Nothing else holds it up: one writer that never loses a race, one prepared UPDATE
//! of a blob guarded by its version (WAL, `synchronous = FULL`) or one transaction of etcd, the same gRPC in front. It cannot group: each
//! write is conditional on the one before.
//!
//! Two forms of the blob. [`Form::Json`] is a document with the columns of our own rows, as our own store on etcd keeps its values: an operator can
//! read it and the next version can extend it. [`Form::Packed`] has the same facts with nothing between them, in a third of the
//! bytes: the best that the design can be.

use crate::cluster::Member;
use crate::figure::Result;
use async_trait::async_trait;
use etcd_client::{CompactionOptions, Compare, CompareOp, Txn, TxnOp};
use futures::stream::BoxStream;
use leasehold_model::message::{ClusterStatus, Deregistration, Registration, Renewal, RoutingTable, ShardExplanation};
use leasehold_model::state::{ClusterState, Executor, Shard, ShardState};
use leasehold_model::{CallError, ExecutorId, ExecutorName, Grant, GrantSeq, Refusal, ShardId, Ttl};
use leasehold_rpc::api::ManagerApi;
use serde::Serialize;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;

/// How the state is stored.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// Text with names.
    Json,
    /// Bytes, in an order that only this version knows.
    Packed,
}

/// Such a manager.
pub struct StateCas {
    form: Form,
    state: Arc<ClusterState>,
    grants: HashMap<ExecutorId, Grant>,
    table: Arc<RoutingTable>,
    ttl: Ttl,
    stored: Mutex<Stored>,
    writes: AtomicU64,
}

struct Stored {
    place: Place,
    deadlines: HashMap<ExecutorId, u64>,
}

/// Where the blob is, guarded by its version.
pub enum Place {
    /// A row of a SQLite file.
    Sqlite {
        /// Nobody else's.
        connection: Box<SqliteConnection>,
        /// Of the last write.
        version: i64,
    },
    /// A key of an etcd.
    Etcd {
        /// Nobody else's.
        client: Box<etcd_client::Client>,
        /// The key's revision of modification; 0 before the first write.
        version: i64,
    },
}

impl Place {
    /// A new SQLite file at `path`.
    pub async fn sqlite(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        sqlx::raw_sql("CREATE TABLE state (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL)")
            .execute(&mut connection)
            .await?;
        sqlx::raw_sql("INSERT INTO state VALUES (1, 0, x'')").execute(&mut connection).await?;
        Ok(Self::Sqlite { connection: Box::new(connection), version: 0 })
    }

    /// A key of the etcd at `endpoint` that nobody has yet.
    pub async fn etcd(endpoint: &str) -> Result<Self> {
        Ok(Self::Etcd { client: Box::new(etcd_client::Client::connect([endpoint], None).await?), version: 0 })
    }

    /// Lets etcd forget the blobs before the last one, and waits until it has: 400 MB a round would fill it within five.
    async fn forget(&mut self) -> Result<()> {
        match self {
            Self::Sqlite { .. } => {}
            Self::Etcd { client, version } => {
                client.compact(*version, Some(CompactionOptions::new().with_physical())).await?;
            }
        }
        Ok(())
    }

    /// Replaces the blob; says how that failed.
    async fn replace(&mut self, body: Vec<u8>) -> std::result::Result<(), String> {
        let replaced = match self {
            Self::Sqlite { connection, version } => {
                let update = "UPDATE state SET body = ?, version = version + 1 WHERE id = 1 AND version = ?";
                let done = sqlx::query(update).bind(body).bind(*version).execute(&mut **connection).await;
                *version += 1;
                done.map_err(|error| error.to_string())?.rows_affected() == 1
            }
            Self::Etcd { client, version } => {
                let unchanged = Compare::mod_revision(STATE_KEY, CompareOp::Equal, *version);
                let txn = Txn::new().when([unchanged]).and_then([TxnOp::put(STATE_KEY, body, None)]);
                let done = client.txn(txn).await.map_err(|error| error.to_string())?;
                *version = done.header().map_or(0, etcd_client::ResponseHeader::revision);
                done.succeeded()
            }
        };
        if replaced { Ok(()) } else { Err("another writer".to_owned()) }
    }
}

/// The blob's key on etcd.
const STATE_KEY: &str = "/state-cas";

impl StateCas {
    /// Serves `members` of `state` from `place`.
    pub fn new(
        place: Place,
        state: Arc<ClusterState>,
        table: Arc<RoutingTable>,
        (members, ttl, form): (&[Member], Ttl, Form),
    ) -> Self {
        let grants = members.iter().map(|member| (member.renewal().executor, member.grant.clone())).collect();
        let stored = Mutex::new(Stored { place, deadlines: HashMap::new() });
        Self { form, state, grants, table, ttl, stored, writes: AtomicU64::new(0) }
    }

    /// The bytes of one write.
    pub async fn size(&self) -> usize {
        self.form.encode(&self.state, &self.stored.lock().await.deadlines).len()
    }

    /// Between rounds: makes room for the next one.
    pub async fn forget(&self) -> Result<()> {
        self.stored.lock().await.place.forget().await
    }

    /// Durable writes since it was opened.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    async fn write(&self, stored: &mut Stored) -> std::result::Result<(), CallError> {
        let body = self.form.encode(&self.state, &stored.deadlines);
        stored.place.replace(body).await.map_err(CallError::Unknown)?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Form {
    fn encode(self, state: &ClusterState, deadlines: &HashMap<ExecutorId, u64>) -> Vec<u8> {
        match self {
            Self::Json => document(state, deadlines),
            Self::Packed => packed(state, deadlines),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    cluster: &'a str,
    shard_count: u32,
    revision: u64,
    executors: Vec<ExecutorEntry<'a>>,
    shards: Vec<ShardEntry>,
}

#[derive(Serialize)]
struct ExecutorEntry<'a> {
    id: ExecutorId,
    name: &'a str,
    address: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    weight: u32,
    lease_length_ms: u64,
    key_hash: String,
    draining: bool,
    superseded: bool,
    registered_at_ms: i64,
    lease_ends_at_ms: u64,
}

#[derive(Serialize)]
struct ShardEntry {
    shard: u32,
    epoch: u64,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    executor: Option<ExecutorId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
}

fn entry(id: ExecutorId, row: &Executor, lease_ends_at_ms: u64) -> ExecutorEntry<'_> {
    ExecutorEntry {
        id,
        name: row.name.as_str(),
        address: row.address.as_str(),
        zone: row.zone.as_deref(),
        weight: row.weight.get(),
        lease_length_ms: row.lease_length.as_ms(),
        key_hash: hex(&row.key_hash.0),
        draining: row.draining,
        superseded: row.superseded,
        registered_at_ms: row.registered_at_ms,
        lease_ends_at_ms,
    }
}

fn document(state: &ClusterState, deadlines: &HashMap<ExecutorId, u64>) -> Vec<u8> {
    let shard = |(shard, row): (ShardId, &Shard)| {
        let (state, since) = match row.state {
            ShardState::Unassigned => ("unassigned", None),
            ShardState::Owned(_) => ("owned", None),
            ShardState::Releasing { since, .. } => ("releasing", Some(since.0)),
        };
        ShardEntry { shard: shard.0, epoch: row.epoch.get(), state, executor: row.state.executor(), since }
    };
    let document = Document {
        cluster: state.cluster.as_str(),
        shard_count: state.shard_count.get(),
        revision: state.revision.0,
        executors: state
            .executors()
            .map(|(id, row)| entry(id, row, deadlines.get(&id).copied().unwrap_or(0)))
            .collect(),
        shards: state.shards().map(shard).collect(),
    };
    serde_json::to_vec(&document).expect("texts and numbers serialize")
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Everything, with nothing between the fields.
pub fn packed(state: &ClusterState, deadlines: &HashMap<ExecutorId, u64>) -> Vec<u8> {
    let mut body = Vec::with_capacity(state.executors().len() * 128 + state.shard_count.get() as usize * 32);
    let text = |body: &mut Vec<u8>, text: &str| {
        body.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        body.extend(text.as_bytes());
    };
    for (id, row) in state.executors() {
        let row: &Executor = row;
        body.extend(id.as_bytes());
        text(&mut body, row.name.as_str());
        text(&mut body, row.address.as_str());
        text(&mut body, row.zone.as_deref().unwrap_or_default());
        body.extend(row.weight.get().to_be_bytes());
        body.extend(row.lease_length.as_ms().to_be_bytes());
        body.extend(row.key_hash.0);
        body.extend([u8::from(row.draining), u8::from(row.superseded)]);
        body.extend(row.registered_at_ms.to_be_bytes());
        body.extend(deadlines.get(&id).copied().unwrap_or(0).to_be_bytes());
    }
    for (_, row) in state.shards() {
        body.extend(row.epoch.get().to_be_bytes());
        match row.state {
            ShardState::Unassigned => body.push(0),
            ShardState::Owned(owner) => {
                body.push(1);
                body.extend(owner.as_bytes());
            }
            ShardState::Releasing { from, since } => {
                body.push(2);
                body.extend(from.as_bytes());
                body.extend(since.0.to_be_bytes());
            }
        }
    }
    body
}

fn absent<T>() -> std::result::Result<T, CallError> {
    Err(Refusal::NotLeader { leader: None }.into())
}

#[async_trait]
impl ManagerApi for StateCas {
    async fn register(&self, _: Registration) -> std::result::Result<Grant, CallError> {
        absent()
    }

    async fn renew(&self, renewal: Renewal) -> std::result::Result<Grant, CallError> {
        let mut grant = self.grants.get(&renewal.executor).cloned().ok_or(Refusal::UnknownExecutor)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let deadline = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add(self.ttl.as_ms());
        let mut stored = self.stored.lock().await;
        stored.deadlines.insert(renewal.executor, deadline);
        self.write(&mut stored).await?;
        grant.seq = GrantSeq(renewal.heard.0 + 1);
        Ok(grant)
    }

    async fn deregister(&self, _: Deregistration) -> std::result::Result<(), CallError> {
        absent()
    }

    async fn routing_table(&self) -> std::result::Result<Arc<RoutingTable>, CallError> {
        Ok(Arc::clone(&self.table))
    }

    async fn watch_routing_table(
        &self,
    ) -> std::result::Result<BoxStream<'static, std::result::Result<Arc<RoutingTable>, CallError>>, CallError> {
        absent()
    }

    async fn status(&self) -> std::result::Result<ClusterStatus, CallError> {
        absent()
    }

    async fn explain(&self, _: ShardId) -> std::result::Result<ShardExplanation, CallError> {
        absent()
    }

    async fn set_draining(&self, _: ExecutorName, _: bool) -> std::result::Result<(), CallError> {
        absent()
    }
}
