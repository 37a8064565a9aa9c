//! What the cluster's state costs on a real etcd: renewals, and the first assignment of a large cluster.

use crate::cluster::{cluster_name, owned_by, unassigned};
use crate::figure::{Measured, Result};
use crate::renewals::{SPAN, Subject};
use crate::rounds::{in_turns, median};
use crate::state_cas::{Form, Place, packed};
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use leasehold_harness::{Etcd, EtcdConfig};
use leasehold_model::Revision;
use leasehold_model::command::{Command, Draft};
use leasehold_model::plan::{Limits, plan};
use leasehold_model::state::ClusterState;
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{EtcdClusterStore, Write};
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

const SHARDS: u32 = 65_536;
const EXECUTORS: usize = 200;
const LEADER: &str = "/bench-leader";
const ROUNDS: usize = 7;
/// A round of the other manager is a thousand writes of its state, some twelve seconds.
const RENEWAL_ROUNDS: usize = 3;

/// A connection to `etcd`.
async fn connection(etcd: &Etcd) -> Result<EtcdConnection> {
    let options = EtcdOptions { endpoints: etcd.endpoints(), ..EtcdOptions::default() };
    Ok(EtcdConnection::open(options).await?)
}

/// A store in the hands of a leader that nobody contests.
async fn store(etcd: &Etcd) -> Result<EtcdClusterStore> {
    let connection = connection(etcd).await?;
    etcd.ctl(&["put", LEADER, ""]);
    let leader = connection.leader_key(LEADER).await?.ok_or("the leader's key is gone")?;
    Ok(EtcdClusterStore::new(connection, &cluster_name()?, leader))
}

/// One with room for the states that the other manager writes.
fn roomy() -> Etcd {
    Etcd::start_with(&EtcdConfig::default().with_args(["--quota-backend-bytes=8589934592"]))
}

/// `renewal_vs_state_cas_etcd`: as `renewal_vs_state_cas_sqlite`, both on the same etcd.
pub async fn renewals_against_state_cas() -> Result<Measured> {
    let etcd = roomy();
    let store = store(&etcd).await?;
    let counters = store.counters();
    let subject = Subject::on(Arc::new(store), counters).await?;
    let place = Place::etcd(&etcd.endpoint()).await?;
    let (api, server, baseline) = subject.state_cas(place, Form::Json).await?;
    let others = async || {
        let rate = baseline.rate(SPAN).await?;
        api.forget().await?;
        Ok(rate)
    };
    let measured = in_turns(RENEWAL_ROUNDS, async || subject.fleet.rate(SPAN).await, others).await?;
    eprintln!("  baseline: {} bytes of JSON for each renewal", api.size().await);
    drop(baseline);
    server.stop().await?;
    subject.stop().await?;
    Ok(measured)
}

/// `etcd_revisions_per_10k_renewals`: by how much etcd's own revision rose, against the other manager's renewals.
pub async fn revisions() -> Result<Measured> {
    const RENEWALS: f64 = 10_000.0;
    let etcd = roomy();
    let (store, watched) = (store(&etcd).await?, connection(&etcd).await?);
    let counters = store.counters();
    let subject = Subject::on(Arc::new(store), counters).await?;
    let (_, server, baseline) = subject.state_cas(Place::etcd(&etcd.endpoint()).await?, Form::Json).await?;
    let before = watched.revision().await?;
    let mut renewals = 0.0;
    while renewals < RENEWALS {
        renewals += subject.fleet.renewals_within(SPAN).await?;
    }
    let between = watched.revision().await?;
    let others = baseline.renewals_within(SPAN).await?;
    let after = watched.revision().await?;
    drop(baseline);
    server.stop().await?;
    subject.stop().await?;
    let per = |revisions: i64, renewals: f64| revisions as f64 * RENEWALS / renewals;
    Ok(Measured { value: per(between - before, renewals), baseline: per(after - between, others) })
}

/// Plans a first assignment and stores it. Answers the seconds that storing took, and those before it.
async fn assign(store: &EtcdClusterStore, state: &ClusterState) -> Result<(f64, f64)> {
    let began = Instant::now();
    let mut draft = Draft::on(state);
    let planned = plan(draft.state(), &Limits::none());
    let _ = draft.apply(&Command::Plan(planned))?;
    let (after, changes) = draft.finish();
    let write = Write { tag: 2, expected: state.revision, next: after.revision, changes };
    let prepared = began.elapsed().as_secs_f64();
    store.commit(&write).await?;
    Ok((began.elapsed().as_secs_f64() - prepared, prepared))
}

/// A store whose executors have registered.
async fn registered(etcd: &mut Etcd) -> Result<(EtcdClusterStore, ClusterState)> {
    etcd.wipe();
    let (store, (state, changes)) = (store(etcd).await?, unassigned(SHARDS, EXECUTORS)?.finish());
    let write = Write { tag: 1, expected: Revision(0), next: state.revision, changes };
    store.load(&state.cluster, state.shard_count).await?;
    store.commit(&write).await?;
    Ok((store, state))
}

/// `first_assignment_bytes`: keys and values as they were sent, against the changed rows with nothing between their fields
/// (25 bytes for a shard).
pub async fn assignment_bytes() -> Result<Measured> {
    let mut etcd = Etcd::start();
    let (store, state) = registered(&mut etcd).await?;
    let before = store.traffic();
    assign(&store, &state).await?;
    let sent = store.traffic();
    eprintln!("  {} bytes in {} transactions", sent.bytes - before.bytes, sent.transactions - before.transactions);
    let owned = owned_by(SHARDS, EXECUTORS)?;
    let rows = packed(&owned, &HashMap::new()).len() - packed(&owned_by(1, EXECUTORS)?, &HashMap::new()).len();
    Ok(Measured { value: (sent.bytes - before.bytes) as f64, baseline: rows as f64 })
}

/// What a first assignment leaves on etcd, dealt to so many transactions.
async fn transactions(etcd: &Etcd, count: usize) -> Result<Vec<Vec<(Vec<u8>, Vec<u8>)>>> {
    let mut client = Client::connect(etcd.endpoints(), None).await?.kv_client().max_decoding_message_size(64 << 20);
    let head = format!("/leasehold/{}/head", cluster_name()?);
    let chunks = format!("/leasehold/{}/shards/", cluster_name()?);
    let pairs = async |client: &mut etcd_client::KvClient, key: String, options| -> Result<Vec<_>> {
        let found = client.get(key, options).await?;
        Ok(found.kvs().iter().map(|pair| (pair.key().to_vec(), pair.value().to_vec())).collect::<Vec<_>>())
    };
    let head = pairs(&mut client, head, None).await?;
    let chunks = pairs(&mut client, chunks, Some(GetOptions::new().with_prefix())).await?;
    let each = chunks.len().div_ceil(count);
    Ok(chunks.chunks(each).map(|chunks| chunks.iter().chain(&head).cloned().collect()).collect())
}

/// `first_assignment_time`, in milliseconds: storing it, against a bare loop that puts the same keys and values in as many transactions, each
/// conditional as ours are (on one key's creation and on another's last change), one after the other. Planning has figures of its own; what it
/// and the draft took is on standard error.
pub async fn assignment_time() -> Result<Measured> {
    let mut etcd = Etcd::start();
    let (store, state) = registered(&mut etcd).await?;
    let before = store.traffic().transactions;
    assign(&store, &state).await?;
    let parts = usize::try_from(store.traffic().transactions - before)?;
    let bare = transactions(&etcd, parts).await?;
    let (etcd, mut before_it) = (tokio::sync::Mutex::new(etcd), Vec::new());
    let subject = async || {
        let mut etcd = etcd.lock().await;
        let (store, state) = registered(&mut etcd).await?;
        let (stored, prepared) = assign(&store, &state).await?;
        before_it.push(prepared);
        Ok(stored * 1e3)
    };
    let baseline = async || {
        let mut etcd = etcd.lock().await;
        registered(&mut etcd).await?;
        let mut client = Client::connect(etcd.endpoints(), None).await?;
        let get = client.get(LEADER, None).await?;
        let leader = get.kvs().first().ok_or("the leader's key is gone")?.create_revision();
        let (parts, head) = (bare.clone(), format!("/leasehold/{}/head", cluster_name()?));
        let head_at = client.get(head.clone(), None).await?.kvs().first().ok_or("no head")?.mod_revision();
        let (mut at, began) = (head_at, Instant::now());
        for part in parts {
            let when = [
                Compare::create_revision(LEADER, CompareOp::Equal, leader),
                Compare::mod_revision(head.clone(), CompareOp::Equal, at),
            ];
            let puts = part.into_iter().map(|(key, value)| TxnOp::put(key, value, None)).collect::<Vec<_>>();
            let done = client.txn(Txn::new().when(when).and_then(puts)).await?;
            if !done.succeeded() {
                return Err("a bare transaction was refused".into());
            }
            at = done.header().map_or(0, etcd_client::ResponseHeader::revision);
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let measured = in_turns(ROUNDS, subject, baseline).await?;
    eprintln!("  planned and drafted in {:.1} ms before", median(before_it) * 1e3);
    Ok(measured)
}
