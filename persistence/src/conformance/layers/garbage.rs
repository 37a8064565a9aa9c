//! Objects in blob storage: what is nobody's, and what is away.

use super::{ChunkFixture, EVERYTHING, filled, move_upto};
use crate::conformance::oplog::{SHARD, agent, entry, indexes, keyed, one, writer};
use crate::oplog::layers::blobs::{BlobCall, MemoryBlobs};
use crate::oplog::layers::{Archive, Layered, Upto};
use crate::oplog::memory::Fault;
use crate::oplog::{EntryIndex, Error, OplogStore};
use std::sync::Arc;

/// Garbage.
pub async fn objects_that_no_list_names_are_swept_and_others_are_not(fixture: &dyn ChunkFixture) {
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    let blobs = Arc::new(MemoryBlobs::default());
    let layered = Layered::in_blobs(fixture.open().await, Arc::clone(&blobs) as _);
    filled(&layered, &agent, ours, vec![entry(1), entry(2), entry(3)]).await;
    blobs.script(BlobCall::Put, Fault::LoseAnswer);
    let upto = Upto { index: EntryIndex(3), least: 1 };
    assert!(matches!(layered.archive(&agent, SHARD, ours, upto).await, Err(Error::Unavailable(_))));
    assert_eq!(blobs.paths().len(), 1, "it is there, and in no list");
    assert_eq!(
        layered.sweep_agent(SHARD, &agent).await.map(|swept| swept.deleted),
        Ok(0),
        "its writer may list it yet"
    );
    assert_eq!(layered.archive(&agent, SHARD, ours, upto).await.map(|moved| moved.entries), Ok(2));
    assert_eq!(blobs.paths().len(), 2);
    let swept = layered.sweep_shard(SHARD).await.expect("a sweep");
    assert_eq!((swept.seen, swept.deleted), (2, 1));
    assert_eq!(
        indexes(&Layered::in_blobs(fixture.open().await, Arc::clone(&blobs) as _), &agent, ours).await,
        [1, 2, 3]
    );
    blobs.script(BlobCall::Put, Fault::LoseAnswer);
    assert!(layered.archive(&agent, SHARD, ours, EVERYTHING).await.is_err());
    assert!(layered.claim(&agent, SHARD, theirs).await.is_ok());
    assert_eq!(layered.sweep_agent(SHARD, &agent).await.map(|swept| swept.deleted), Ok(1), "its writer is fenced");
    assert_eq!(layered.delete(&agent, theirs, EntryIndex(4)).await, Ok(()));
    assert_eq!(layered.sweep_agent(SHARD, &agent).await.map(|swept| swept.deleted), Ok(1), "the deleted agent's");
    assert_eq!(blobs.paths(), [] as [String; 0]);
}

/// Blob storage away, or a listed object that is missing.
pub async fn entries_are_unavailable_while_blob_storage_is_away_and_others_are_not(fixture: &dyn ChunkFixture) {
    let (ours, agent) = (writer(5, 1), agent("a"));
    let blobs = Arc::new(MemoryBlobs::default());
    let store = fixture.open().await;
    let writing = Layered::in_blobs(Arc::clone(&store), Arc::clone(&blobs) as _);
    filled(&writing, &agent, ours, vec![keyed("a"), entry(2), keyed("c")]).await;
    assert_eq!(move_upto(&writing, &agent, ours, 3).await, 2);
    let layered = Layered::in_blobs(Arc::clone(&store), Arc::clone(&blobs) as _);
    blobs.set_away(true);
    assert!(matches!(layered.read(&agent, ours, EntryIndex(1), 9).await, Err(Error::Unavailable(_))));
    assert!(matches!(layered.find(&agent, ours, "a").await, Err(Error::Unavailable(_))));
    assert!(matches!(layered.archive(&agent, SHARD, ours, EVERYTHING).await, Err(Error::Unavailable(_))));
    assert_eq!(layered.append(one(&agent, ours, 4)).await, Ok(EntryIndex(5)), "appends need it not");
    assert_eq!(layered.read(&agent, ours, EntryIndex(3), 9).await.map(|entries| entries.len()), Ok(2));
    assert!(layered.find(&agent, ours, "c").await.expect("a read").is_some());
    blobs.set_away(false);
    assert_eq!(indexes(&layered, &agent, ours).await, [1, 2, 3, 4]);
    for other in [Layered::in_blobs(Arc::clone(&store), Arc::new(MemoryBlobs::default())), Layered::in_list(store)] {
        let refused = other.read(&agent, ours, EntryIndex(1), 9).await;
        assert!(matches!(&refused, Err(Error::Unavailable(what)) if what.contains(".chunk")), "{refused:?}");
    }
}
