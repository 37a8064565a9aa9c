//! What a move changes, and what it does not.

use super::{ChunkFixture, filled, move_upto};
use crate::conformance::oplog::{SHARD, agent, all, at, entry, fenced, indexes, keyed, one, snapshot, writer};
use crate::oplog::layers::{Chunk, Content, Layered, Listing, MAX_CHUNKS_PER_READ, chunk};
use crate::oplog::{Claimed, EntryIndex, Error, NewEntry, OplogStore, Writer};
use leasehold_model::AgentId;
use std::sync::Arc;

/// A chunk of `entries`, in the list.
fn inline(agent: &AgentId, writer: Writer, first: u64, entries: &[NewEntry]) -> Chunk {
    let bytes = chunk::encode(agent, EntryIndex(first), entries.iter().map(|entry| (writer, entry)));
    let last = EntryIndex(first + entries.len() as u64 - 1);
    Chunk { first: EntryIndex(first), last, content: Content::Inline(bytes) }
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
    let nobody = crate::conformance::oplog::agent("nobody");
    assert_eq!(store.listing(&nobody, EntryIndex(1), EntryIndex(9)).await, Ok(None));
    assert_eq!(indexes(&layered, &agent, ours).await, (1..=2 * count).collect::<Vec<_>>());
}
