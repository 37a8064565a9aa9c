//! What an executor archives, beside its agents' work.

use super::super::super::agent_event::ArchivePolicy;
use super::super::super::archiver::Archiver;
use super::*;
use leasehold_persistence::oplog::layers::blobs::{BlobCall, MemoryBlobs};
use leasehold_persistence::oplog::layers::{ChunkStore, Layered};

const AGE: Duration = Duration::from_secs(1000);

/// Waits for what another thread or a timer brings about.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..10_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 100 s");
}

/// Eight entries stay.
fn archiving() -> HostLimits {
    let archive = Some(ArchivePolicy { after_entries: 8, after_age: AGE });
    let agent = AgentLimits { archive, recent_keys: 0, ..AgentLimits::default() };
    HostLimits { agent, ..patient() }
}

/// The executor `n` on `store`, which archives into the list, or into `blobs`.
fn executor(store: Arc<MemoryOplogStore>, n: u64, blobs: Option<&Arc<MemoryBlobs>>) -> Rig {
    let chunks = Arc::clone(&store) as Arc<dyn ChunkStore>;
    let layered = Arc::new(match blobs {
        Some(blobs) => Layered::in_blobs(chunks, Arc::clone(blobs) as _),
        None => Layered::in_list(chunks),
    });
    Rig::over((Arc::clone(&layered) as _, Some(Archiver::new(layered))), store, n, archiving())
}

fn first() -> Rig {
    executor(Arc::new(MemoryOplogStore::new()), 1, None)
}

impl Rig {
    /// Where the layers of `a` meet, as `n` sees them.
    async fn primary_from(&self, n: u64) -> u64 {
        let page = self.store.handle().page(&agent("a"), writer(n, u128::from(n)), EntryIndex(1), 1).await;
        page.unwrap().primary_from.0
    }

    /// Waits until entries before `index` are archived, and no more.
    async fn archived_before(&self, index: u64) {
        let what = format!("the layers meet at {index}");
        until(&what, async || self.primary_from(self.epoch.get()).await == index).await;
    }
}

#[test]
fn entries_beyond_those_that_stay_are_archived_while_calls_go_on() {
    paused(async {
        let rig = first();
        let gate = Gate::default();
        rig.store.script(Call::MoveOut, Fault::HoldBefore(gate.clone()));
        for n in 1..=30 {
            assert_eq!(rig.add("a", 1).await, json!(n), "whether a move stands still or not");
        }
        gate.reached().await;
        assert_eq!(rig.primary_from(1).await, 1);
        gate.release();
        rig.archived_before(23).await;
        assert_eq!((rig.calls(Call::MoveOut), rig.metrics.archived_entries.get()), (2, 22), "one at a time");
        assert!(rig.metrics.archived_bytes.get() > 100);
        assert_eq!(rig.add("a", 1).await, json!(31));
        assert_eq!(rig.told(), []);
    });
}

#[test]
fn the_next_owner_replays_both_layers_and_knows_the_keys_of_both() {
    paused(async {
        let rig = first();
        for n in 1..=20 {
            value(rig.keyed("a", "add", json!(n), Some(&format!("key {n}"))).await.unwrap());
        }
        rig.archived_before(13).await;
        let next = executor(Arc::new(rig.store.handle()), 2, None);
        next.recover().await;
        assert_eq!(next.get("a").await, json!(210));
        for n in [1, 12, 13, 20] {
            let again = next.keyed("a", "add", json!(n), Some(&format!("key {n}"))).await.unwrap().unwrap();
            assert!(again.replayed, "key {n}");
        }
        assert_eq!(next.get("a").await, json!(210), "nothing was run twice");
    });
}

#[test]
fn old_entries_are_archived_however_few_there_are() {
    paused(async {
        let rig = first();
        rig.add("a", 1).await;
        tokio::time::sleep(AGE / 2).await;
        rig.add("a", 1).await;
        tokio::time::sleep(AGE / 2 + Duration::from_secs(1)).await;
        rig.archived_before(2).await;
        tokio::time::sleep(AGE + Duration::from_secs(1)).await;
        rig.archived_before(3).await;
        assert_eq!(rig.add("a", 1).await, json!(3));
    });
}

/// F6.
#[test]
fn a_move_that_is_fenced_latches_its_agent_and_tells_the_lease_holder() {
    paused(async {
        let rig = first();
        rig.add("a", 1).await;
        rig.store.handle().claim(&agent("a"), SHARD, writer(2, 2)).await.unwrap();
        tokio::time::sleep(AGE + Duration::from_secs(1)).await;
        until("it is told", async || !rig.told().is_empty()).await;
        assert_eq!(rig.told(), [(epoch(1), Some(epoch(2)))]);
        assert_eq!(reason(&rig.invoke("a", "get", Value::Null).await.unwrap()), "EPOCH_FENCED");
        assert_eq!(rig.metrics.archived_entries.get(), 0);
    });
}

#[test]
fn an_archive_that_is_away_holds_up_no_call_and_is_used_again_when_it_is_back() {
    paused(async {
        let blobs = Arc::new(MemoryBlobs::default());
        let rig = executor(Arc::new(MemoryOplogStore::new()), 1, Some(&blobs));
        blobs.set_away(true);
        for n in 1..=20 {
            assert_eq!(rig.add("a", 1).await, json!(n));
        }
        let failed = || {
            let call = super::super::super::metrics::Call { call: "move" };
            rig.metrics.archive_failures.get_or_create(&call).get()
        };
        until("a move fails", async || failed() > 0).await;
        assert_eq!((rig.primary_from(1).await, rig.condition().oplog_failing_ms), (1, 0), "no trouble of the oplogs");
        blobs.set_away(false);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(rig.add("a", 1).await, json!(21));
        rig.archived_before(13).await;
        assert_eq!((failed(), blobs.paths().len()), (1, 1));
    });
}

#[test]
fn objects_that_nobody_needs_are_swept_from_the_shards_held_and_from_no_other() {
    paused(async {
        let blobs = Arc::new(MemoryBlobs::default());
        let rig = executor(Arc::new(MemoryOplogStore::new()), 1, Some(&blobs));
        rig.recover().await;
        blobs.script(BlobCall::Put, Fault::LoseAnswer);
        for n in 1..=10 {
            assert_eq!(rig.add("a", 1).await, json!(n));
        }
        until("an object is put", async || !blobs.paths().is_empty()).await;
        let lost = blobs.paths().remove(0);
        tokio::time::sleep(Duration::from_secs(61)).await;
        rig.add("a", 1).await;
        rig.archived_before(3).await;
        assert_eq!(blobs.paths().len(), 2, "one of them is in no list");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        settled().await;
        assert_eq!((blobs.paths().contains(&lost), rig.metrics.swept_objects.get()), (false, 1));
        assert_eq!(rig.add("a", 1).await, json!(12));
        blobs.script(BlobCall::List, Fault::Refuse);
        rig.keeper.close(SHARD);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        settled().await;
        let failed = super::super::super::metrics::Call { call: "sweep" };
        assert_eq!(rig.metrics.archive_failures.get_or_create(&failed).get(), 0, "it is not held any more");
    });
}
