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
    for _ in 0..MAX_BEGINNINGS {
        let seen = wire.look().await?;
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
