//! Several callers at a time, and callers that go away.

use super::{Fixture, PATIENCE, SHARD, agent, all, at, claimed, entry, fenced, indexes, keyed, one, writer};
use crate::oplog::{EntryIndex, Error, Gate};
use std::sync::Arc;

/// How many appends are cancelled, each a little later than the one before.
const CANCELLATIONS: u64 = 40;

/// F7, case 28: the caller is gone, the store goes on.
pub async fn f7_an_append_that_was_cancelled_is_there_once_or_not_at_all(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    let mut next = store.claim(&agent, SHARD, ours).await.expect("a claim").next;
    let mut written = Vec::new();
    for round in 0..CANCELLATIONS {
        let append = at(&agent, ours, next.0, vec![keyed(&format!("round {round}"))]);
        let caller = tokio::spawn({
            let (store, append) = (Arc::clone(&store), append.clone());
            async move { store.append(append).await }
        });
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        caller.abort();
        drop(caller.await);
        // Reading back: the claim is behind whatever the cancelled call left in the store.
        let found = store.claim(&agent, SHARD, ours).await.expect("a claim").next;
        assert!(found == next || found == append.end(), "round {round}: {found:?} after {next:?}");
        if found == next {
            assert_eq!(store.append(append).await, Ok(EntryIndex(next.0 + 1)), "round {round}: written now");
        }
        written.push(next.0);
        next = EntryIndex(next.0 + 1);
    }
    assert_eq!(indexes(&*store, &agent, ours).await, written);
    for round in 0..CANCELLATIONS {
        let found = store.find(&agent, ours, &format!("round {round}")).await.expect("a read");
        assert_eq!(found.map(|entry| entry.index), Some(EntryIndex(round + 1)));
    }
}

/// Concurrent callers of one owner: each takes the index that it is told is next.
pub async fn sixteen_appenders_of_one_owner_leave_no_gap(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    let appenders = (0..16).map(|who| {
        let (store, agent) = (Arc::clone(&store), agent.clone());
        tokio::spawn(async move {
            let mut expected = 1;
            let mut done = 0;
            while done < 5 {
                match store.append(at(&agent, ours, expected, vec![keyed(&format!("{who}/{done}"))])).await {
                    Ok(next) => {
                        assert_eq!(next.0, expected + 1);
                        (expected, done) = (next.0, done + 1);
                    }
                    Err(Error::IndexConflict { found, .. }) => expected = found.0,
                    Err(other) => panic!("{other}"),
                }
            }
        })
    });
    for appender in appenders.collect::<Vec<_>>() {
        tokio::time::timeout(PATIENCE, appender).await.expect("in time").expect("an appender");
    }
    let expected: Vec<u64> = (1..=80).collect();
    assert_eq!(indexes(&*store, &agent, ours).await, expected);
}

/// Refusals beside successes in the same durable write.
pub async fn many_agents_do_not_disturb_each_other(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, theirs) = (writer(5, 1), writer(6, 2));
    let appends = (0..90_u64).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let agent = agent(number);
            let owner = if number % 3 == 1 { theirs } else { ours };
            assert_eq!(store.claim(&agent, SHARD, owner).await, claimed(1));
            let expected = if number % 3 == 2 { 2 } else { 1 };
            let outcome = store.append(at(&agent, ours, expected, vec![keyed("k"), entry(number)])).await;
            match number % 3 {
                0 => assert_eq!(outcome, Ok(EntryIndex(3))),
                1 => assert_eq!(outcome, fenced(Some(theirs), ours)),
                _ => assert_eq!(outcome, Err(Error::IndexConflict { expected: EntryIndex(2), found: EntryIndex(1) })),
            }
            let written = if number % 3 == 0 { vec![1, 2] } else { vec![] };
            assert_eq!(indexes(&*store, &agent, owner).await, written);
        })
    });
    for append in appends.collect::<Vec<_>>() {
        tokio::time::timeout(PATIENCE, append).await.expect("in time").expect("an append");
    }
}

/// F5: whatever the order, an acknowledged deletion is the end of what was there.
pub async fn deletions_racing_with_appends_leave_nothing_behind(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    for round in 0..20 {
        let (ours, agent) = (writer(5, 1), agent(round));
        assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
        let append = one(&agent, ours, 1);
        let (appended, deleted) = tokio::join!(store.append(append), other.delete(&agent, ours, EntryIndex(1)));
        if deleted != Ok(()) {
            let late = Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) };
            assert_eq!((deleted, &appended), (Err(late), &Ok(EntryIndex(2))));
            assert_eq!(other.delete(&agent, ours, EntryIndex(2)).await, Ok(()));
        }
        let next = match appended {
            Ok(next) => next.0,
            Err(error) => {
                assert_eq!(Err(error), fenced::<()>(None, ours));
                1
            }
        };
        assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(next), "round {round}");
        assert_eq!(all(&*store, &agent, ours).await, []);
    }
}

/// The old owner writes on while the new one takes over.
pub async fn two_owners_racing_never_share_an_index(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    for round in 0..10_u64 {
        let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent(round));
        assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
        let old = async {
            for index in 1..=200 {
                match store.append(one(&agent, ours, index)).await {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(Err(error), fenced::<()>(Some(theirs), ours));
                        return index;
                    }
                }
            }
            201
        };
        let new = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            let found = other.claim(&agent, SHARD, theirs).await.expect("a claim").next;
            assert_eq!(other.append(one(&agent, theirs, found.0)).await, Ok(EntryIndex(found.0 + 1)));
            found.0
        };
        let (refused_at, taken_over_at) = tokio::join!(old, new);
        assert_eq!(refused_at, taken_over_at, "the old owner's last acknowledged entry is the new one's first sight");
        let entries = all(&*other, &agent, theirs).await;
        assert!(entries.iter().zip(1..).all(|(e, index)| e.index == EntryIndex(index)));
        assert!(entries.iter().all(|e| (e.writer == theirs) == (e.index.0 >= taken_over_at)));
    }
}

/// Case 31: the slow commit.
pub async fn a_held_append_is_fenced_once_the_next_owner_took_over(fixture: &dyn Fixture) {
    let gate = Gate::default();
    let (other, held) = (fixture.open().await, fixture.open_held(gate.clone()).await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert_eq!(other.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(other.append(one(&agent, ours, 1)).await, Ok(EntryIndex(2)));
    let slow = tokio::spawn({
        let (held, append) = (Arc::clone(&held), at(&agent, ours, 2, vec![entry("slow")]));
        async move { held.append(append).await }
    });
    tokio::time::timeout(PATIENCE, gate.reached()).await.expect("the append stands inside the store");
    let found = tokio::time::timeout(PATIENCE, other.claim(&agent, SHARD, theirs)).await.expect("in time");
    assert_eq!(found, claimed(2), "what is not durable is not seen");
    assert_eq!(other.append(one(&agent, theirs, 2)).await, Ok(EntryIndex(3)));
    gate.release();
    let outcome = tokio::time::timeout(PATIENCE, slow).await.expect("in time").expect("the append");
    assert_eq!(outcome, fenced(Some(theirs), ours));
    assert_eq!(held.read(&agent, ours, EntryIndex(1), 10).await, fenced(Some(theirs), ours));
    let entries = all(&*fixture.open().await, &agent, theirs).await;
    assert_eq!(entries.iter().map(|e| (e.index.0, e.writer)).collect::<Vec<_>>(), [(1, ours), (2, theirs)]);
}
