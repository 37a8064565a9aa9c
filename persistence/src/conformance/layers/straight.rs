//! Appends straight to the archive layer, as an ephemeral agent makes them.

use super::{ChunkFixture, filled, inline};
use crate::conformance::oplog::{SHARD, agent, all, at, entry, fenced, indexes, keyed, snapshot, writer};
use crate::oplog::layers::{Archive, Chunk, Content, Layered};
use crate::oplog::{Append, Claimed, EntryIndex, Error, NewEntry, OplogStore};
use std::sync::Arc;

async fn straight(layered: &Layered, append: Append) -> Result<EntryIndex, Error> {
    Archive::append_straight(layered, SHARD, append).await
}

fn stubs(append: &Append) -> Append {
    let stub = |entry: &NewEntry| NewEntry { body: Vec::new(), ..entry.clone() };
    Append { entries: append.entries.iter().map(stub).collect(), ..append.clone() }
}

/// Keys, snapshots and deletion work as they do for what was moved.
pub async fn an_append_straight_to_the_archive_leaves_nothing_in_the_primary_layer(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let layered = Layered::in_list(Arc::clone(&store));
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert!(layered.claim(&agent, SHARD, ours).await.is_ok());
    for (first, entries) in
        [(1, vec![keyed("a")]), (2, vec![snapshot("s"), keyed("c")]), (4, vec![entry(4)]), (5, vec![snapshot("t")])]
    {
        let end = EntryIndex(first + entries.len() as u64);
        assert_eq!(straight(&layered, at(&agent, ours, first, entries)).await, Ok(end));
        let page = store.page(&agent, ours, EntryIndex(1), 9).await.expect("a page");
        assert_eq!((page.primary_from, page.entries), (end, vec![]));
    }
    let chunks = store.chunks(&agent, ours, EntryIndex(1), 9).await.expect("chunks");
    assert_eq!(
        chunks.iter().map(|chunk| (chunk.first.0, chunk.last.0)).collect::<Vec<_>>(),
        [(1, 1), (2, 3), (4, 4), (5, 5)]
    );
    let whole = all(&layered, &agent, ours).await;
    let expected = [keyed("a"), snapshot("s"), keyed("c"), entry(4), snapshot("t")];
    assert_eq!(whole.iter().map(|entry| entry.entry.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(layered.find(&agent, ours, "c").await, Ok(Some(whole[2].clone())));
    let next = Layered::in_list(fixture.open().await);
    let claimed = Claimed { next: EntryIndex(6), snapshot: Some(EntryIndex(5)) };
    assert_eq!(next.claim(&agent, SHARD, theirs).await, Ok(claimed));
    assert_eq!(all(&next, &agent, theirs).await, whole);
    // Another type's now, and back.
    assert_eq!(next.append(at(&agent, theirs, 6, vec![keyed("f")])).await, Ok(EntryIndex(7)));
    assert_eq!(indexes(&next, &agent, theirs).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(next.delete(&agent, theirs, EntryIndex(7)).await, Ok(()));
    let claimed = Claimed { next: EntryIndex(7), snapshot: None };
    assert_eq!(next.claim(&agent, SHARD, theirs).await, Ok(claimed));
    assert_eq!(straight(&next, at(&agent, theirs, 7, vec![keyed("a")])).await, Ok(EntryIndex(8)), "the key is free");
    assert_eq!(indexes(&next, &agent, theirs).await, [7]);
}

/// F2, F3, keys, and the next index; whatever is refused leaves nothing behind.
pub async fn an_append_straight_to_the_archive_is_fenced_and_checked_as_any_other_is(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let layered = Layered::in_list(Arc::clone(&store));
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert_eq!(straight(&layered, at(&agent, ours, 1, vec![entry(1)])).await, fenced(None, ours), "F2");
    assert!(layered.claim(&agent, SHARD, ours).await.is_ok());
    assert_eq!(straight(&layered, at(&agent, ours, 1, vec![keyed("a")])).await, Ok(EntryIndex(2)));
    for wrong in [1, 3] {
        let conflict = Error::IndexConflict { expected: EntryIndex(wrong), found: EntryIndex(2) };
        assert_eq!(straight(&layered, at(&agent, ours, wrong, vec![entry(1)])).await, Err(conflict));
    }
    let taken = straight(&layered, at(&agent, ours, 2, vec![entry(2), keyed("b"), keyed("a")])).await;
    assert!(matches!(&taken, Err(Error::Invalid(what)) if what.contains("\"a\"")), "{taken:?}");
    let two = at(&agent, ours, 2, vec![keyed("b"), entry(3)]);
    let chunk = inline(&agent, ours, 2, &two.entries);
    let longer = Chunk { last: EntryIndex(4), ..chunk.clone() };
    for (stubs, chunk) in [(stubs(&two), longer), (two.clone(), chunk.clone())] {
        assert!(matches!(store.append_chunk(stubs, chunk).await, Err(Error::Invalid(_))));
    }
    assert!(layered.claim(&agent, SHARD, theirs).await.is_ok());
    let refused = fenced(Some(theirs), ours);
    assert_eq!(store.append_chunk(stubs(&two), chunk).await, refused);
    assert_eq!(straight(&layered, two).await, refused);
    assert_eq!(indexes(&layered, &agent, theirs).await, [1], "nothing was written");
    assert_eq!(layered.find(&agent, theirs, "b").await, Ok(None));
    let after = Append { writer: theirs, ..at(&agent, theirs, 2, vec![keyed("b")]) };
    assert_eq!(straight(&layered, after).await, Ok(EntryIndex(3)));
    assert_eq!(layered.delete(&agent, theirs, EntryIndex(3)).await, Ok(()));
    assert_eq!(straight(&layered, at(&agent, theirs, 3, vec![entry(3)])).await, fenced(None, theirs), "deleted");
}

/// An agent whose type was durable before: each entry is in one place all the same.
pub async fn an_append_straight_to_the_archive_moves_what_was_written_before_it(fixture: &dyn ChunkFixture) {
    let store = fixture.open().await;
    let layered = Layered::in_list(Arc::clone(&store));
    let (ours, agent) = (writer(5, 1), agent("a"));
    filled(&layered, &agent, ours, vec![keyed("a"), entry(2), snapshot("s")]).await;
    let four = at(&agent, ours, 4, vec![keyed("d")]);
    let conflict = Error::IndexConflict { expected: EntryIndex(4), found: EntryIndex(1) };
    let chunk = inline(&agent, ours, 4, &four.entries);
    assert_eq!(store.append_chunk(stubs(&four), chunk).await, Err(conflict), "the list would have a gap");
    assert_eq!(layered.find(&agent, ours, "d").await, Ok(None), "and nothing stays of it");
    assert_eq!(indexes(&layered, &agent, ours).await, [1, 2, 3]);
    assert_eq!(straight(&layered, four).await, Ok(EntryIndex(5)));
    assert_eq!(indexes(&layered, &agent, ours).await, [1, 2, 3, 4]);
    assert_eq!(store.page(&agent, ours, EntryIndex(1), 9).await.expect("a page").entries, []);
    let listed = store.chunks(&agent, ours, EntryIndex(1), 9).await.expect("chunks");
    assert!(listed.iter().all(|chunk| matches!(chunk.content, Content::Inline(_))));
    assert_eq!(listed.iter().map(|chunk| (chunk.first.0, chunk.last.0)).collect::<Vec<_>>(), [(1, 3), (4, 4)]);
}
