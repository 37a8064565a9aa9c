//! Reads the whole state, page by page at one revision.

use super::keys::Keys;
use super::values::{corrupt, decode_chunk, decode_executor};
use super::wire::{Page, Seen, Wire};
use crate::cluster::{Error, check_head};
use leasehold_model::state::{ClusterState, Head, StateRows};
use leasehold_model::{ClusterName, Revision, ShardCount, ShardId};

/// How often a load begins anew when the revision that it reads at is compacted meanwhile.
const MAX_BEGINNINGS: usize = 8;

type Pairs = Vec<(String, Vec<u8>)>;

/// The state, and what the head was then.
pub(super) async fn load(
    wire: &Wire,
    cluster: &ClusterName,
    shard_count: ShardCount,
) -> Result<(ClusterState, Seen), Error> {
    load_as_of(wire, cluster, shard_count, || wire.look()).await
}

/// As [`load`], of the revision that `look` says, which is asked anew when that is compacted meanwhile.
async fn load_as_of<F: Future<Output = Result<Seen, Error>>>(
    wire: &Wire,
    cluster: &ClusterName,
    shard_count: ShardCount,
    look: impl Fn() -> F,
) -> Result<(ClusterState, Seen), Error> {
    for _ in 0..MAX_BEGINNINGS {
        let seen = look().await?;
        if !seen.leads {
            return Err(not_ours());
        }
        let stored = seen.head.as_ref().filter(|head| head.revision > Revision(0));
        if let Some(head) = stored {
            check_head(&head.head(), cluster, shard_count)?;
            if !head.is_complete() {
                tracing::warn!(
                    revision = head.revision.0,
                    part = head.part,
                    parts = head.parts,
                    "the last writer ended between the parts of a write"
                );
            }
        }
        let Some(executors) = pages(wire, false, seen.at).await? else { continue };
        let Some(chunks) = pages(wire, true, seen.at).await? else { continue };
        let is_stored = stored.is_some();
        let head = stored.map_or_else(
            || Head { cluster: cluster.clone(), shard_count, revision: Revision(0) },
            super::values::HeadValue::head,
        );
        if !is_stored && let Some((key, _)) = executors.iter().chain(&chunks).next() {
            return Err(corrupt(&wire.keys.head(), format!("there is none, beside {key}")));
        }
        return Ok((assemble(&wire.keys, head, executors, chunks)?, seen));
    }
    Err(Error::Unavailable(format!("etcd: compacted under {MAX_BEGINNINGS} attempts to read the state")))
}

pub(super) fn not_ours() -> Error {
    Error::NotOwner("the election's key is gone, or another leader's".into())
}

/// Everything of a kind at `revision`; nothing when that is compacted.
async fn pages(wire: &Wire, chunks: bool, revision: i64) -> Result<Option<Pairs>, Error> {
    let mut all = Pairs::new();
    let mut from = if chunks { wire.keys.chunks() } else { wire.keys.executors() };
    loop {
        let page = if chunks { wire.chunks(from, revision).await? } else { wire.executors(from, revision).await? };
        let Page::Keys(keys, more) = page else { return Ok(None) };
        all.extend(keys);
        match all.last() {
            // The next key in order is this one with a zero byte behind it. Each page has a key at least, so this ends.
            Some((last, _)) if more => from = format!("{last}\0"),
            _ => return Ok(Some(all)),
        }
    }
}

fn assemble(keys: &Keys, head: Head, executors: Pairs, chunks: Pairs) -> Result<ClusterState, Error> {
    let mut rows = StateRows::new(head);
    for (key, value) in executors {
        let id = keys.executor_of(&key).ok_or_else(|| corrupt(&key, "is no executor's key"))?;
        rows.executor(id, decode_executor(&key, &value)?);
    }
    for (key, value) in chunks {
        let chunk = keys.chunk_of(&key).ok_or_else(|| corrupt(&key, "is no chunk's key"))?;
        for (shard, row) in decode_chunk(&key, Keys::first_shard(chunk), &value)? {
            if Keys::first_shard(chunk) > shard || shard - Keys::first_shard(chunk) >= CHUNK {
                return Err(corrupt(&key, format!("shard {shard} belongs to another chunk")));
            }
            if let Some(executor) = row.state.executor().filter(|executor| !rows.has_executor(*executor)) {
                return Err(corrupt(&key, format!("shard {shard} is {executor}'s, which is not stored")));
            }
            rows.shard(ShardId(shard), row).map_err(|broken| corrupt(&key, broken))?;
        }
    }
    rows.finish().map_err(|broken| corrupt(&keys.head(), broken))
}

const CHUNK: u32 = 1024;
const _: () = assert!(CHUNK as usize == leasehold_model::state::CHUNK);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::{EtcdConnection, EtcdOptions};
    use leasehold_harness::Etcd;
    use std::cell::RefCell;
    use std::future::ready;

    /// What the state is read at is compacted between the look at the head and the pages, once or for ever.
    #[tokio::test]
    async fn a_load_whose_revision_is_compacted_under_it_begins_anew_and_not_for_ever() {
        let etcd = Etcd::start();
        let options = EtcdOptions { endpoints: etcd.endpoints(), ..EtcdOptions::default() };
        let cluster = ClusterName::new("a").unwrap();
        let connection = EtcdConnection::open(options).await.unwrap();
        let wire = Wire::new(connection, Keys::of(&cluster), None);
        let count = ShardCount::new(8).unwrap();
        let stale = wire.look().await.unwrap();
        etcd.ctl(&["put", "/elsewhere", "1"]);
        wire.compact(wire.look().await.unwrap().at).await.unwrap();

        let looks = RefCell::new(vec![wire.look().await.unwrap(), stale.clone(), stale.clone()]);
        let look = || ready(Ok(looks.borrow_mut().pop().expect("no more than three looks")));
        let (state, seen) = load_as_of(&wire, &cluster, count, look).await.unwrap();
        assert_eq!(state, ClusterState::empty(cluster.clone(), count));
        assert!(looks.borrow().is_empty() && seen.at > stale.at, "{seen:?}");

        let told = load_as_of(&wire, &cluster, count, || ready(Ok(stale.clone()))).await.unwrap_err();
        assert!(matches!(&told, Error::Unavailable(why) if why.contains("compacted under 8 attempts")), "{told}");
    }
}
