//! What is stored and found: bounds, idempotency keys, snapshots, pages, lists.

use super::{Fixture, SHARD, agent, all, at, claimed, entry, indexes, keyed, snapshot, writer};
use crate::oplog::{
    Claimed, Entry, EntryIndex, Error, MAX_BODY_BYTES, MAX_ENTRIES_PER_APPEND, MAX_KEY_BYTES, NewEntry,
};
use leasehold_model::{AgentId, ShardId};

/// Bounds are the store's own.
pub async fn bounds_are_kept_before_anything_is_written(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    let large = NewEntry { body: vec![7; MAX_BODY_BYTES + 1], ..entry("") };
    let refused = [
        at(&agent, ours, 1, vec![]),
        at(&agent, ours, 1, vec![entry(0); MAX_ENTRIES_PER_APPEND + 1]),
        at(&agent, ours, 0, vec![entry(0)]),
        at(&agent, ours, i64::MAX as u64, vec![entry(0)]),
        at(&agent, ours, u64::MAX, vec![entry(0)]),
        at(&agent, ours, 1, vec![large]),
        at(&agent, ours, 1, vec![keyed("")]),
        at(&agent, ours, 1, vec![keyed(&long)]),
        at(&agent, ours, 1, vec![keyed("twice"), keyed("twice")]),
    ];
    for append in refused {
        let outcome = store.append(append).await;
        assert!(matches!(outcome, Err(Error::Invalid(_))), "{outcome:?}");
    }
    assert_eq!(all(&*store, &agent, ours).await, []);
    let greatest = NewEntry { key: Some("ü".repeat(MAX_KEY_BYTES / 2)), body: vec![0; MAX_BODY_BYTES], ..entry("") };
    let empty = NewEntry { body: Vec::new(), ..entry("") };
    let accepted = vec![greatest, empty];
    assert_eq!(store.append(at(&agent, ours, 1, accepted.clone())).await, Ok(EntryIndex(3)));
    let stored = all(&*store, &agent, ours).await;
    assert!(stored.into_iter().map(|e| e.entry).eq(accepted), "what came out is not what went in");
}

/// Idempotency keys.
pub async fn a_key_is_unique_in_its_oplog_and_free_in_others(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, a, b) = (writer(5, 1), agent("a"), agent("b"));
    for agent in [&a, &b] {
        assert_eq!(store.claim(agent, SHARD, ours).await, claimed(1));
        assert_eq!(store.append(at(agent, ours, 1, vec![keyed("k"), entry("no key")])).await, Ok(EntryIndex(3)));
    }
    let outcome = store.append(at(&a, ours, 3, vec![keyed("k")])).await;
    assert!(matches!(&outcome, Err(Error::Invalid(what)) if what.contains("\"k\"")), "{outcome:?}");
    assert_eq!(store.append(at(&a, ours, 3, vec![keyed("K"), entry("no key")])).await, Ok(EntryIndex(5)));
    assert_eq!(indexes(&*store, &a, ours).await, [1, 2, 3, 4]);
}

/// An invocation whose key the oplog holds is answered from it, however long ago that was.
pub async fn a_key_is_found_after_snapshots(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    let entries = vec![keyed("first"), snapshot("s1"), keyed("second"), snapshot("s2"), snapshot("s3"), entry("e")];
    assert_eq!(store.append(at(&agent, ours, 1, entries)).await, Ok(EntryIndex(7)));
    let later = writer(6, 2);
    assert!(store.claim(&agent, SHARD, later).await.is_ok());
    let found = store.find(&agent, later, "first").await;
    assert_eq!(found, Ok(Some(Entry { index: EntryIndex(1), writer: ours, entry: keyed("first") })));
    assert_eq!(store.find(&agent, later, "second").await.map(|e| e.map(|e| e.index)), Ok(Some(EntryIndex(3))));
    assert_eq!(store.find(&agent, later, "third").await, Ok(None));
    assert_eq!(store.find(&agent, later, "").await, Ok(None));
}

/// Recovery.
pub async fn replay_starts_at_the_newest_snapshot(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    let entries = vec![entry(1), snapshot("s1"), entry(3), snapshot("s2"), entry(5)];
    assert_eq!(store.append(at(&agent, ours, 1, entries)).await, Ok(EntryIndex(6)));
    let later = writer(6, 2);
    let found = store.claim(&agent, SHARD, later).await;
    assert_eq!(found, Ok(Claimed { next: EntryIndex(6), snapshot: Some(EntryIndex(4)) }));
    let replay = store.read(&agent, later, EntryIndex(4), 100).await.expect("a read");
    assert_eq!(replay.iter().map(|e| e.index.0).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(replay.first().map(|e| e.entry.clone()), Some(snapshot("s2")));
}

/// Reads in pages.
pub async fn a_read_is_ascending_from_its_index_and_ends_at_its_limit(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.append(at(&agent, ours, 1, (0..10).map(entry).collect())).await, Ok(EntryIndex(11)));
    for (from, limit, expected) in [
        (1, 3, vec![1, 2, 3]),
        (4, 3, vec![4, 5, 6]),
        (9, 100, vec![9, 10]),
        (11, 100, vec![]),
        (u64::MAX, 100, vec![]),
        (0, 1, vec![1]),
        (1, 0, vec![]),
    ] {
        let entries = store.read(&agent, ours, EntryIndex(from), limit).await.expect("a read");
        assert_eq!(entries.iter().map(|e| e.index.0).collect::<Vec<_>>(), expected, "{limit} from {from}");
    }
}

/// Recovery finds what ran.
pub async fn running_agents_are_listed_by_shard_in_pages(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let ours = writer(5, 1);
    let names: Vec<AgentId> = ["a", "b", "c", "d", "e"].into_iter().map(agent).collect();
    for name in names.iter().rev() {
        assert_eq!(store.claim(name, SHARD, ours).await, claimed(1));
    }
    assert_eq!(store.claim(&agent("elsewhere"), ShardId(8), ours).await, claimed(1));
    assert_eq!(store.running(SHARD, None, 2).await.as_deref(), Ok(&names[..2]));
    assert_eq!(store.running(SHARD, Some(&names[1]), 2).await.as_deref(), Ok(&names[2..4]));
    assert_eq!(store.running(SHARD, Some(&names[3]), 2).await.as_deref(), Ok(&names[4..]));
    assert_eq!(store.running(SHARD, Some(&names[4]), 2).await, Ok(vec![]));
    assert_eq!(store.suspend(&names[0], ours).await, Ok(()));
    assert_eq!(store.suspend(&names[0], ours).await, Ok(()), "again, as after an unknown outcome");
    assert_eq!(store.delete(&names[1], ours, EntryIndex(1)).await, Ok(()));
    assert_eq!(store.running(SHARD, None, 10).await.as_deref(), Ok(&names[2..]));
    let listed = |from: usize, to: usize| {
        let kept = names[from..to].iter().filter(|name| **name != names[1]);
        Ok(kept.map(|name| (name.clone(), *name != names[0])).collect::<Vec<_>>())
    };
    assert_eq!(store.agents(SHARD, None, 10).await, listed(0, 5), "the suspended one too, the deleted one not");
    assert_eq!(store.agents(SHARD, None, 2).await, listed(0, 3));
    assert_eq!(store.agents(SHARD, Some(&names[2]), 1).await, listed(3, 4));
    assert_eq!(store.agents(SHARD, Some(&names[4]), 10).await, Ok(vec![]));
    assert_eq!(store.claim(&names[0], SHARD, writer(6, 2)).await, claimed(1), "an invocation starts it again");
    assert_eq!(store.running(SHARD, None, 1).await.as_deref(), Ok(&names[..1]));
}
