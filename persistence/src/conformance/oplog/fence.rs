//! Who may write, claim, read and delete: the rules one by one.

use super::{Fixture, SHARD, agent, all, at, claimed, entry, fenced, indexes, keyed, one, snapshot, writer};
use crate::oplog::{EntryIndex, Error, MAX_ENTRIES_PER_APPEND};
use leasehold_model::ShardId;

/// F1.
pub async fn f1_a_claim_takes_an_absent_or_lower_record_or_its_own(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert_eq!(store.recorded(&agent).await, Ok(None));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1), "its own claim again");
    assert_eq!(other.recorded(&agent).await, Ok(Some(ours)), "another process sees it");
    assert_eq!(store.append(one(&agent, ours, 1)).await, Ok(EntryIndex(2)));
    assert_eq!(other.claim(&agent, SHARD, theirs).await, claimed(2), "a lower record");
    assert_eq!(store.claim(&agent, SHARD, ours).await, fenced(Some(theirs), ours), "a higher record");
    assert_eq!(store.recorded(&agent).await, Ok(Some(theirs)));
}

/// F1, case 4.
pub async fn f1_an_equal_epoch_of_another_writer_is_refused(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let (ours, theirs, agent) = (writer(7, 1), writer(7, 2), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(other.claim(&agent, SHARD, theirs).await, fenced(Some(ours), theirs));
    assert_eq!(other.append(one(&agent, theirs, 1)).await, fenced(Some(ours), theirs));
    assert_eq!(store.append(one(&agent, ours, 1)).await, Ok(EntryIndex(2)), "the first writer goes on");
}

/// F2.
pub async fn f2_an_append_without_a_record_is_fenced(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.append(one(&agent, ours, 1)).await, fenced(None, ours));
    assert_eq!(store.read(&agent, ours, EntryIndex(1), 10).await, fenced(None, ours));
    assert_eq!(store.find(&agent, ours, "k").await, fenced(None, ours));
    assert_eq!(store.delete(&agent, ours, EntryIndex(1)).await, fenced(None, ours));
    assert_eq!(store.suspend(&agent, ours).await, fenced(None, ours));
    assert_eq!(store.recorded(&agent).await, Ok(None), "nothing made a record");
}

/// F3.
pub async fn f3_an_append_by_anybody_but_the_recorded_writer_writes_nothing(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    for offered in [writer(4, 1), writer(6, 1), writer(5, 2), writer(4, 2), writer(6, 2)] {
        assert_eq!(store.append(one(&agent, offered, 1)).await, fenced(Some(ours), offered));
    }
    assert_eq!(all(&*store, &agent, ours).await, []);
    assert_eq!(store.recorded(&agent).await, Ok(Some(ours)), "an append takes no record");
}

/// F3.
pub async fn f3_an_append_at_another_index_writes_nothing(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.append(at(&agent, ours, 1, vec![entry(1), entry(2)])).await, Ok(EntryIndex(3)));
    for wrong in [1, 2, 4, 1000] {
        let conflict = Err(Error::IndexConflict { expected: EntryIndex(wrong), found: EntryIndex(3) });
        assert_eq!(store.append(one(&agent, ours, wrong)).await, conflict);
        let three = vec![entry("x"), entry("y"), entry("z")];
        assert_eq!(store.append(at(&agent, ours, wrong, three)).await, conflict, "also where its end would fit");
    }
    assert_eq!(indexes(&*store, &agent, ours).await, [1, 2]);
}

/// F3.
pub async fn f3_an_append_is_written_as_a_whole_or_not_at_all(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.append(at(&agent, ours, 1, vec![keyed("k")])).await, Ok(EntryIndex(2)));
    let torn = vec![entry("a"), entry("b"), keyed("k"), entry("c")];
    assert!(matches!(store.append(at(&agent, ours, 2, torn)).await, Err(Error::Invalid(_))), "the key is taken");
    assert_eq!(indexes(&*store, &agent, ours).await, [1]);
    let whole: Vec<_> = (0..MAX_ENTRIES_PER_APPEND).map(entry).collect();
    assert_eq!(store.append(at(&agent, ours, 2, whole.clone())).await, Ok(EntryIndex(258)));
    let stored = all(&*store, &agent, ours).await;
    assert_eq!(stored[1..].iter().map(|e| e.entry.clone()).collect::<Vec<_>>(), whole);
    assert!(stored.iter().zip(1..).all(|(e, index)| e.index == EntryIndex(index) && e.writer == ours));
}

/// F4, case 30.
pub async fn f4_the_record_never_goes_down(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let agent = agent("a");
    let mut greatest = 0;
    for (step, epoch) in [3, 1, 2, 3, 9, 8, 4, 9, 10, 1].into_iter().enumerate() {
        let offered = writer(epoch, 1);
        let outcome = store.claim(&agent, SHARD, offered).await;
        assert_eq!(outcome.is_ok(), epoch >= greatest, "step {step}: {epoch} over {greatest}");
        greatest = greatest.max(epoch);
        if step == 4 {
            assert_eq!(store.delete(&agent, writer(greatest, 1), EntryIndex(1)).await, Ok(()));
        }
        assert_eq!(store.recorded(&agent).await, Ok(Some(writer(greatest, 1))));
    }
}

/// F5.
pub async fn f5_a_stale_deletion_removes_nothing(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.append(one(&agent, ours, 1)).await, Ok(EntryIndex(2)));
    assert_eq!(other.claim(&agent, SHARD, theirs).await, claimed(2));
    assert_eq!(store.delete(&agent, ours, EntryIndex(2)).await, fenced(Some(theirs), ours));
    assert_eq!(store.suspend(&agent, ours).await, fenced(Some(theirs), ours));
    assert_eq!(indexes(&*other, &agent, theirs).await, [1]);
    assert_eq!(other.running(SHARD, None, 10).await, Ok(vec![agent]));
}

/// F5, case 30.
pub async fn f5_what_was_deleted_stays_deleted_until_its_owner_claims_it_anew(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.append(at(&agent, ours, 1, vec![keyed("k")])).await, Ok(EntryIndex(2)));
    assert_eq!(other.claim(&agent, SHARD, theirs).await, claimed(2));
    assert_eq!(other.delete(&agent, theirs, EntryIndex(2)).await, Ok(()));
    assert_eq!(other.delete(&agent, theirs, EntryIndex(2)).await, Ok(()), "again, as after an unknown outcome");
    assert_eq!(store.claim(&agent, SHARD, ours).await, fenced(Some(theirs), ours), "the thawed older owner");
    for index in [1, 2] {
        assert_eq!(store.append(one(&agent, ours, index)).await, fenced(Some(theirs), ours));
        assert_eq!(other.append(one(&agent, theirs, index)).await, fenced(None, theirs), "not without a claim");
    }
    assert_eq!(other.read(&agent, theirs, EntryIndex(1), 10).await, fenced(None, theirs));
    assert_eq!(other.find(&agent, theirs, "k").await, fenced(None, theirs));
    assert_eq!(other.suspend(&agent, theirs).await, fenced(None, theirs));
    assert_eq!(other.running(SHARD, None, 10).await, Ok(vec![]));
    assert_eq!(other.recorded(&agent).await, Ok(Some(theirs)), "the record stays");
}

/// F5.
pub async fn f5_a_new_life_begins_where_the_deleted_one_ended(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    let life = vec![keyed("k"), snapshot("s"), entry("e")];
    assert_eq!(store.append(at(&agent, ours, 1, life)).await, Ok(EntryIndex(4)));
    assert_eq!(store.delete(&agent, ours, EntryIndex(4)).await, Ok(()));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(4), "nothing to replay");
    assert_eq!(all(&*store, &agent, ours).await, []);
    assert_eq!(store.find(&agent, ours, "k").await, Ok(None));
    assert_eq!(store.append(at(&agent, ours, 4, vec![keyed("k")])).await, Ok(EntryIndex(5)), "the key is free again");
    assert_eq!(store.delete(&agent, ours, EntryIndex(5)).await, Ok(()));
    assert_eq!(store.delete(&agent, ours, EntryIndex(5)).await, Ok(()));
    let later = writer(9, 2);
    assert_eq!(store.claim(&agent, SHARD, later).await, claimed(5));
    assert_eq!(store.append(one(&agent, later, 5)).await, Ok(EntryIndex(6)));
    assert_eq!(indexes(&*store, &agent, later).await, [5]);
}

/// F5, case 28: sent in the old life, carried out in the new one.
pub async fn f5_a_deletion_that_comes_late_removes_nothing_of_the_next_life(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let (ours, agent) = (writer(5, 1), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(store.append(one(&agent, ours, 1)).await, Ok(EntryIndex(2)));
    assert_eq!(store.delete(&agent, ours, EntryIndex(2)).await, Ok(()));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(2));
    assert_eq!(store.append(one(&agent, ours, 2)).await, Ok(EntryIndex(3)));
    let late = Err(Error::IndexConflict { expected: EntryIndex(2), found: EntryIndex(3) });
    assert_eq!(store.delete(&agent, ours, EntryIndex(2)).await, late);
    assert_eq!(indexes(&*store, &agent, ours).await, [2]);
    assert_eq!(store.running(SHARD, None, 10).await, Ok(vec![agent]));
}

/// Case 8.
pub async fn a_stale_owner_is_fenced_on_every_path(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    let (ours, theirs, agent) = (writer(5, 1), writer(6, 2), agent("a"));
    assert_eq!(store.claim(&agent, SHARD, ours).await, claimed(1));
    assert_eq!(other.claim(&agent, SHARD, theirs).await, claimed(1));
    assert_eq!(store.append(one(&agent, ours, 1)).await, fenced(Some(theirs), ours));
    assert_eq!(store.append(at(&agent, ours, 1, vec![snapshot("s")])).await, fenced(Some(theirs), ours));
    assert_eq!(store.read(&agent, ours, EntryIndex(1), 10).await, fenced(Some(theirs), ours));
    assert_eq!(store.find(&agent, ours, "k").await, fenced(Some(theirs), ours));
    assert_eq!(store.delete(&agent, ours, EntryIndex(2)).await, fenced(Some(theirs), ours));
    assert_eq!(store.suspend(&agent, ours).await, fenced(Some(theirs), ours));
    assert_eq!(store.claim(&agent, SHARD, ours).await, fenced(Some(theirs), ours));
}

/// Case 33.
pub async fn giant_epochs_are_stored_exactly_and_epoch_zero_is_refused(fixture: &dyn Fixture) {
    let store = fixture.open().await;
    let agent = agent("a");
    let giant = i64::MAX as u64;
    assert!(matches!(store.claim(&agent, SHARD, writer(0, 1)).await, Err(Error::Invalid(_))));
    assert!(matches!(store.append(one(&agent, writer(0, 1), 1)).await, Err(Error::Invalid(_))));
    for epoch in [giant - 2, giant - 1, giant] {
        assert_eq!(store.claim(&agent, SHARD, writer(epoch, 1)).await, claimed(1));
        assert_eq!(store.recorded(&agent).await, Ok(Some(writer(epoch, 1))));
    }
    assert_eq!(store.append(one(&agent, writer(giant, 1), 1)).await, Ok(EntryIndex(2)));
    assert_eq!(store.claim(&agent, SHARD, writer(giant, 2)).await, fenced(Some(writer(giant, 1)), writer(giant, 2)));
    assert_eq!(store.claim(&agent, SHARD, writer(1, 1)).await, fenced(Some(writer(giant, 1)), writer(1, 1)));
    let shard = ShardId(u32::MAX);
    assert_eq!(store.claim(&agent, shard, writer(giant, 1)).await, claimed(2));
    assert_eq!(store.running(shard, None, 10).await, Ok(vec![agent.clone()]));
    assert_eq!(all(&*store, &agent, writer(giant, 1)).await[0].writer, writer(giant, 1));
}
