//! What every [`ChunkStore`] must do beside being an [`OplogStore`]; and a store that archives all that it is given, on which the suite of
//! oplog stores runs again.

use super::oplog::{Fixture, SHARD, agent, all, at, entry, fenced, indexes, keyed, one, snapshot, writer};
use crate::oplog::layers::blobs::MemoryBlobs;
use crate::oplog::layers::{Archive, Chunk, ChunkStore, Content, Layered, Listing, MAX_CHUNKS_PER_READ, Upto, chunk};
use crate::oplog::{Append, Claimed, Entry, EntryIndex, Error, Gate, NewEntry, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::{AgentId, ShardId};
use std::sync::Arc;

/// Access to one store with its chunks, empty at first.
#[async_trait]
pub trait ChunkFixture: Send + Sync {
    /// Another process's handle on the store.
    async fn open(&self) -> Arc<dyn ChunkStore>;

    /// A handle whose first append from now on stops, as [`Fixture::open_held`] says.
    async fn open_held(&self, gate: Gate) -> Arc<dyn ChunkStore>;
}

/// A store of which everything is archived as soon as it is written: in the list, or in blob storage.
pub struct Archived<F> {
    fixture: F,
    blobs: Option<MemoryBlobs>,
}

impl<F: ChunkFixture> Archived<F> {
    /// In the list.
    pub fn in_list(fixture: F) -> Self {
        Self { fixture, blobs: None }
    }

    /// In blob storage.
    pub fn in_blobs(fixture: F) -> Self {
        Self { fixture, blobs: Some(MemoryBlobs::default()) }
    }

    fn over(&self, store: Arc<dyn ChunkStore>) -> Arc<dyn OplogStore> {
        Arc::new(Archiving::new(match &self.blobs {
            Some(blobs) => Layered::in_blobs(store, Arc::new(blobs.handle())),
            None => Layered::in_list(store),
        }))
    }
}

#[async_trait]
impl<F: ChunkFixture> Fixture for Archived<F> {
    async fn open(&self) -> Arc<dyn OplogStore> {
        self.over(self.fixture.open().await)
    }

    async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
        self.over(self.fixture.open_held(gate).await)
    }
}

/// Makes a tokio test of every test of chunks. The argument makes a fixture over an empty store.
#[macro_export]
macro_rules! chunk_store_conformance {
    ($fixture:expr) => {
        $crate::chunk_store_conformance! { $fixture;
            a_move_changes_where_an_entry_is_read_and_nothing_else,
            a_move_is_fenced_and_takes_the_oldest_entries_only,
            a_move_again_after_an_unknown_outcome_is_fine,
            a_store_by_itself_refuses_to_read_what_is_archived,
            keys_and_the_newest_snapshot_outlast_their_move,
            a_deletion_takes_the_archive_layer_along,
            a_claim_finds_where_an_oplog_goes_on_when_all_of_it_is_archived,
            chunks_are_read_in_pages_in_order,
            a_move_that_was_cut_short_at_any_point_loses_and_doubles_nothing,
            objects_that_no_list_names_are_swept_and_others_are_not,
            entries_are_unavailable_while_blob_storage_is_away_and_others_are_not,
        }
    };
    ($fixture:expr; $($test:ident,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                $crate::conformance::layers::$test(&$fixture).await;
            }
        )*
    };
}

/// All that there is.
const EVERYTHING: Upto = Upto { index: EntryIndex(i64::MAX as u64), least: 1 };

/// Archives after each append: the whole oplog is always in the archive layer, unless somebody else came between.
#[derive(Debug)]
pub struct Archiving(Layered);

impl Archiving {
    /// On top of `layered`.
    #[must_use]
    pub fn new(layered: Layered) -> Self {
        Self(layered)
    }

    /// F7, as an agent does it.
    async fn read_back(&self, append: &Append, what: String) -> Result<EntryIndex, Error> {
        let limit = u32::try_from(append.entries.len()).expect("an append is bounded");
        let stored = self.0.read(&append.agent, append.writer, append.expected, limit).await?;
        let ours = |stored: &Entry, given: &NewEntry| stored.writer == append.writer && stored.entry == *given;
        let whole = stored.len() == append.entries.len();
        let same = whole && stored.iter().zip(&append.entries).all(|(stored, given)| ours(stored, given));
        if same { Ok(append.end()) } else { Err(Error::Unknown(what)) }
    }
}

#[async_trait]
impl OplogStore for Archiving {
    async fn claim(&self, agent: &AgentId, shard: ShardId, writer: Writer) -> Result<Claimed, Error> {
        self.0.claim(agent, shard, writer).await
    }

    async fn append(&self, append: Append) -> Result<EntryIndex, Error> {
        let (agent, writer) = (append.agent.clone(), append.writer);
        let next = match self.0.append(append.clone()).await {
            Err(Error::Unknown(what)) => self.read_back(&append, what).await?,
            told => told?,
        };
        match self.0.archive(&agent, SHARD, writer, EVERYTHING).await {
            // Another owner, a deletion or another caller of this owner came between.
            Ok(_) | Err(Error::Fenced { .. } | Error::IndexConflict { .. }) => Ok(next),
            Err(error) => panic!("a move after an append: {error}"),
        }
    }

    async fn read(&self, agent: &AgentId, writer: Writer, from: EntryIndex, limit: u32) -> Result<Vec<Entry>, Error> {
        self.0.read(agent, writer, from, limit).await
    }

    async fn find(&self, agent: &AgentId, writer: Writer, key: &str) -> Result<Option<Entry>, Error> {
        self.0.find(agent, writer, key).await
    }

    async fn delete(&self, agent: &AgentId, writer: Writer, expected: EntryIndex) -> Result<(), Error> {
        self.0.delete(agent, writer, expected).await
    }

    async fn suspend(&self, agent: &AgentId, writer: Writer) -> Result<(), Error> {
        self.0.suspend(agent, writer).await
    }

    async fn running(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<AgentId>, Error> {
        self.0.running(shard, after, limit).await
    }

    async fn agents(&self, shard: ShardId, after: Option<&AgentId>, limit: u32) -> Result<Vec<(AgentId, bool)>, Error> {
        self.0.agents(shard, after, limit).await
    }

    async fn recorded(&self, agent: &AgentId) -> Result<Option<Writer>, Error> {
        self.0.recorded(agent).await
    }
}

/// Claims, and appends `entries` as one.
async fn filled(store: &dyn OplogStore, agent: &AgentId, writer: Writer, entries: Vec<NewEntry>) {
    let next = store.claim(agent, SHARD, writer).await.expect("a claim").next;
    store.append(at(agent, writer, next.0, entries)).await.expect("an append");
}

/// A chunk of `entries`, in the list.
fn inline(agent: &AgentId, writer: Writer, first: u64, entries: &[NewEntry]) -> Chunk {
    let bytes = chunk::encode(agent, EntryIndex(first), entries.iter().map(|entry| (writer, entry)));
    let last = EntryIndex(first + entries.len() as u64 - 1);
    Chunk { first: EntryIndex(first), last, content: Content::Inline(bytes) }
}

async fn move_upto(layered: &Layered, agent: &AgentId, writer: Writer, index: u64) -> u64 {
    let upto = Upto { index: EntryIndex(index), least: 1 };
    layered.archive(agent, SHARD, writer, upto).await.expect("a move").entries
}

/// Reading is seamless.
pub async fn a_move_changes_where_an_entry_is_read_and_nothing_else(fixture: &dyn ChunkFixture) {
    let layered = Layered::in_list(fixture.open().await);
    let (ours, agent) = (writer(5, 1), agent("a"));
    let entries = vec![keyed("a"), entry(2), snapshot("s"), keyed("d"), entry(5), entry(6)];
    filled(&layered, &agent, ours, entries).await;
    let before = all(&layered, &agent, ours).await;
    for (upto, moved) in [(1, 0), (3, 2), (3, 0), (4, 1), (6, 2), (99, 1), (99, 0)] {
        assert_eq!(move_upto(&layered, &agent, ours, upto).await, moved, "up to {upto}");
        let others = Layered::in_list(fixture.open().await);
        for store in [&layered, &others] {
            assert_eq!(all(store, &agent, ours).await, before, "up to {upto}");
            for (from, limit) in [(2, 3), (3, 1), (6, 9), (7, 9), (1, 0)] {
                let page = store.read(&agent, ours, EntryIndex(from), limit).await.expect("a read");
                let expected = before.iter().filter(|entry| entry.index.0 >= from).take(limit as usize);
                assert!(page.iter().eq(expected), "{limit} from {from}, up to {upto}");
            }
        }
    }
    assert_eq!(layered.append(one(&agent, ours, 7)).await, Ok(EntryIndex(8)));
    assert_eq!(indexes(&layered, &agent, ours).await, [1, 2, 3, 4, 5, 6, 7]);
}

/// F3 for moves.
pub async fn a_move_is_fenced_and_takes_the_oldest_entries_only(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    let entries = vec![entry(1), entry(2), entry(3)];
    let first_two = inline(&agent, ours, 1, &entries[..2]);
    assert_eq!(store.move_out(&agent, ours, first_two.clone()).await, fenced(None, ours), "F2");
    filled(&*store, &agent, ours, entries.clone()).await;
    let conflict =
        |expected, found| Err(Error::IndexConflict { expected: EntryIndex(expected), found: EntryIndex(found) });
    assert_eq!(store.move_out(&agent, ours, inline(&agent, ours, 2, &entries[1..2])).await, conflict(2, 1));
    let four = vec![entry(1); 4];
    assert_eq!(store.move_out(&agent, ours, inline(&agent, ours, 1, &four)).await, conflict(5, 4));
    assert_eq!(indexes(&*store, &agent, ours).await, [1, 2, 3], "nothing was moved");
    let empty = Chunk { first: EntryIndex(2), last: EntryIndex(1), ..first_two.clone() };
    assert!(matches!(store.move_out(&agent, ours, empty).await, Err(Error::Invalid(_))));
    assert!(store.claim(&agent, SHARD, theirs).await.is_ok());
    assert_eq!(store.move_out(&agent, ours, first_two.clone()).await, fenced(Some(theirs), ours));
    assert_eq!(store.page(&agent, ours, EntryIndex(1), 1).await, fenced(Some(theirs), ours));
    assert_eq!(store.chunks(&agent, ours, EntryIndex(1), 1).await, fenced(Some(theirs), ours));
    assert_eq!(store.look_up(&agent, ours, "k").await, fenced(Some(theirs), ours));
    assert_eq!(indexes(&*store, &agent, theirs).await, [1, 2, 3], "nothing was moved");
    assert_eq!(store.move_out(&agent, theirs, first_two).await, Ok(()));
    let page = store.page(&agent, theirs, EntryIndex(1), 9).await.expect("a page");
    assert_eq!((page.first, page.primary_from, page.entries.len()), (EntryIndex(1), EntryIndex(3), 1));
}

/// F7 for moves.
pub async fn a_move_again_after_an_unknown_outcome_is_fine(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    let entries = vec![entry(1), entry(2), entry(3)];
    filled(&*store, &agent, ours, entries.clone()).await;
    let first = inline(&agent, ours, 1, &entries[..2]);
    for _ in 0..2 {
        assert_eq!(store.move_out(&agent, ours, first.clone()).await, Ok(()));
    }
    // The same place with other bytes is another chunk.
    let other = Chunk { content: Content::Blob("elsewhere".into()), ..first.clone() };
    let conflict = Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(3) };
    assert_eq!(store.move_out(&agent, ours, other).await, Err(conflict));
    assert_eq!(store.chunks(&agent, ours, EntryIndex(1), 9).await, Ok(vec![first]));
    assert_eq!(indexes(&Layered::in_list(store), &agent, ours).await, [1, 2, 3]);
}

/// Nobody takes a part for the whole.
pub async fn a_store_by_itself_refuses_to_read_what_is_archived(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    let entries = vec![keyed("a"), entry(2), keyed("c")];
    filled(&*store, &agent, ours, entries.clone()).await;
    assert_eq!(store.move_out(&agent, ours, inline(&agent, ours, 1, &entries[..2])).await, Ok(()));
    for refused in [
        store.read(&agent, ours, EntryIndex(1), 9).await.map(drop),
        store.read(&agent, ours, EntryIndex(2), 1).await.map(drop),
        store.find(&agent, ours, "a").await.map(drop),
    ] {
        assert!(matches!(&refused, Err(Error::Invalid(what)) if what.contains("archive layer")), "{refused:?}");
    }
    let rest = store.read(&agent, ours, EntryIndex(3), 9).await.expect("a read");
    assert_eq!(rest.iter().map(|entry| entry.index.0).collect::<Vec<_>>(), [3]);
    assert_eq!(store.find(&agent, ours, "c").await.map(|found| found.map(|e| e.index)), Ok(Some(EntryIndex(3))));
    assert_eq!(store.find(&agent, ours, "x").await, Ok(None));
}

/// Idempotency keys stay unique and found; replay still begins at the newest snapshot.
pub async fn keys_and_the_newest_snapshot_outlast_their_move(fixture: &dyn ChunkFixture) {
    let layered = Layered::in_list(fixture.open().await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    filled(&layered, &agent, ours, vec![keyed("a"), snapshot("s1"), keyed("c"), snapshot("s2"), entry(5)]).await;
    assert_eq!(move_upto(&layered, &agent, ours, 99).await, 5);
    let found = layered.find(&agent, ours, "c").await.expect("a read").expect("an entry");
    assert_eq!((found.index, found.writer, found.entry), (EntryIndex(3), ours, keyed("c")));
    let taken = layered.append(at(&agent, ours, 6, vec![keyed("a")])).await;
    assert!(matches!(&taken, Err(Error::Invalid(what)) if what.contains("\"a\"")), "{taken:?}");
    let expected = Claimed { next: EntryIndex(6), snapshot: Some(EntryIndex(4)) };
    assert_eq!(layered.claim(&agent, SHARD, theirs).await, Ok(expected));
    let replay = layered.read(&agent, theirs, EntryIndex(4), 9).await.expect("a read");
    assert_eq!(replay.iter().map(|e| e.entry.clone()).collect::<Vec<_>>(), [snapshot("s2"), entry(5)]);
    assert_eq!(layered.append(at(&agent, theirs, 6, vec![keyed("f")])).await, Ok(EntryIndex(7)));
}

/// F5.
pub async fn a_deletion_takes_the_archive_layer_along(fixture: &dyn ChunkFixture) {
    let layered = Layered::in_list(fixture.open().await);
    let (ours, agent) = (writer(5, 1), agent("a"));
    filled(&layered, &agent, ours, vec![keyed("a"), snapshot("s"), entry(3)]).await;
    assert_eq!(move_upto(&layered, &agent, ours, 3).await, 2);
    assert_eq!(layered.delete(&agent, ours, EntryIndex(4)).await, Ok(()));
    assert_eq!(layered.delete(&agent, ours, EntryIndex(4)).await, Ok(()), "again");
    let expected = Claimed { next: EntryIndex(4), snapshot: None };
    assert_eq!(layered.claim(&agent, SHARD, ours).await, Ok(expected));
    assert_eq!(all(&layered, &agent, ours).await, []);
    assert_eq!(layered.find(&agent, ours, "a").await, Ok(None));
    assert_eq!(layered.append(at(&agent, ours, 4, vec![keyed("a"), entry(5)])).await, Ok(EntryIndex(6)), "it is free");
    assert_eq!(move_upto(&layered, &agent, ours, 5).await, 1);
    assert_eq!(indexes(&layered, &agent, ours).await, [4, 5]);
    assert_eq!(layered.find(&agent, ours, "a").await.map(|found| found.map(|e| e.index)), Ok(Some(EntryIndex(4))));
}

/// Nothing is left in the primary layer to tell the next index by.
pub async fn a_claim_finds_where_an_oplog_goes_on_when_all_of_it_is_archived(fixture: &dyn ChunkFixture) {
    let layered = Layered::in_list(fixture.open().await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    filled(&layered, &agent, ours, vec![entry(1), entry(2)]).await;
    assert_eq!(move_upto(&layered, &agent, ours, 99).await, 2);
    let wrong = Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(3) };
    assert_eq!(layered.append(one(&agent, ours, 1)).await, Err(wrong.clone()));
    assert_eq!(layered.delete(&agent, ours, EntryIndex(1)).await, Err(wrong));
    let expected = Claimed { next: EntryIndex(3), snapshot: None };
    assert_eq!(layered.claim(&agent, SHARD, theirs).await, Ok(expected));
    assert_eq!(layered.append(one(&agent, theirs, 3)).await, Ok(EntryIndex(4)));
    let writers = all(&layered, &agent, theirs).await.iter().map(|e| e.writer).collect::<Vec<_>>();
    assert_eq!(writers, [ours, ours, theirs], "who wrote an entry is kept");
    assert_eq!(layered.delete(&agent, theirs, EntryIndex(4)).await, Ok(()));
}

/// The list.
pub async fn chunks_are_read_in_pages_in_order(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    let count = u64::from(MAX_CHUNKS_PER_READ) + 3;
    filled(&*store, &agent, ours, (0..2 * count).map(entry).collect()).await;
    let layered = Layered::in_list(Arc::clone(&store));
    for chunk in 1..=count {
        assert_eq!(move_upto(&layered, &agent, ours, 2 * chunk + 1).await, 2);
    }
    let firsts = async |from, limit| {
        let chunks = store.chunks(&agent, ours, EntryIndex(from), limit).await.expect("chunks");
        chunks.iter().map(|chunk| chunk.first.0).collect::<Vec<_>>()
    };
    assert_eq!(firsts(1, 2).await, [1, 3]);
    assert_eq!(firsts(4, 2).await, [3, 5], "from the one that holds it on");
    assert_eq!(firsts(1, u32::MAX).await.len(), MAX_CHUNKS_PER_READ as usize);
    assert_eq!(firsts(2 * count + 1, 9).await, [] as [u64; 0]);
    let listing = store.listing(&agent, EntryIndex(3), EntryIndex(6)).await.expect("a listing").expect("a record");
    let Listing { writer: recorded, primary_from, chunks } = listing;
    assert_eq!((recorded, primary_from), (ours, EntryIndex(2 * count + 1)));
    assert_eq!(chunks.iter().map(|chunk| (chunk.first.0, chunk.last.0)).collect::<Vec<_>>(), [(3, 4), (5, 6)]);
    let nobody = super::oplog::agent("nobody");
    assert_eq!(store.listing(&nobody, EntryIndex(1), EntryIndex(9)).await, Ok(None));
    assert_eq!(indexes(&layered, &agent, ours).await, (1..=2 * count).collect::<Vec<_>>());
}

/// A crash between any two steps of a move: the next owner finds every entry once, and goes on.
pub async fn a_move_that_was_cut_short_at_any_point_loses_and_doubles_nothing(fixture: &dyn ChunkFixture) {
    let (ours, theirs) = (writer(5, 1), writer(6, 2));
    let blobs = Arc::new(MemoryBlobs::default());
    for polls in 0..24_u32 {
        let agent = agent(polls);
        let layered = Arc::new(Layered::in_blobs(fixture.open().await, Arc::new(blobs.handle())));
        filled(&*layered, &agent, ours, vec![keyed("a"), entry(2), entry(3)]).await;
        let moving = tokio::spawn({
            let (layered, agent) = (Arc::clone(&layered), agent.clone());
            async move { layered.archive(&agent, SHARD, ours, Upto { index: EntryIndex(3), least: 1 }).await }
        });
        for _ in 0..polls {
            // Some of its steps take other threads.
            tokio::time::sleep(std::time::Duration::from_micros(300)).await;
        }
        moving.abort();
        drop(moving.await);
        let next = Layered::in_blobs(fixture.open().await, Arc::new(blobs.handle()));
        assert_eq!(next.claim(&agent, SHARD, theirs).await.expect("a claim").next, EntryIndex(4));
        assert_eq!(indexes(&next, &agent, theirs).await, [1, 2, 3], "{polls}");
        assert!(next.find(&agent, theirs, "a").await.expect("a read").is_some(), "{polls}");
        next.archive(&agent, SHARD, theirs, EVERYTHING).await.expect("a move");
        assert_eq!(indexes(&next, &agent, theirs).await, [1, 2, 3], "{polls}");
        next.sweep_agent(SHARD, &agent).await.expect("a sweep");
        let fresh = Layered::in_blobs(fixture.open().await, Arc::new(blobs.handle()));
        assert_eq!(indexes(&fresh, &agent, theirs).await, [1, 2, 3], "{polls}: swept is what nobody needs");
    }
}

/// Garbage.
pub async fn objects_that_no_list_names_are_swept_and_others_are_not(fixture: &dyn ChunkFixture) {
    use crate::oplog::layers::blobs::BlobCall;
    use crate::oplog::memory::Fault;
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
