//! What every [`OplogStore`] must do.
//!
//! Each function is one test and takes a [`Fixture`] over an empty store of its own. [`oplog_store_conformance!`] makes
//! tests of all of them:
//!
//! ```ignore
//! leasehold_persistence::oplog_store_conformance!(MyFixture::new());
//! ```

use crate::oplog::{
    Append, Claimed, Entry, EntryIndex, EntryKind, Error, Gate, MAX_BODY_BYTES, MAX_ENTRIES_PER_APPEND, MAX_KEY_BYTES,
    NewEntry, OplogStore, Writer,
};
use async_trait::async_trait;
use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use quickcheck::{Arbitrary, Gen};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Access to one store, empty at first.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Another process's handle on the store.
    async fn open(&self) -> Arc<dyn OplogStore>;

    /// A handle whose first append from now on stops inside the store, before it is durable, until the gate is released.
    async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore>;
}

/// Makes a tokio test of every conformance test. The argument makes a fixture over an empty store.
#[macro_export]
macro_rules! oplog_store_conformance {
    ($fixture:expr) => {
        $crate::oplog_store_conformance! { $fixture;
            f1_a_claim_takes_an_absent_or_lower_record_or_its_own,
            f1_an_equal_epoch_of_another_writer_is_refused,
            f2_an_append_without_a_record_is_fenced,
            f3_an_append_by_anybody_but_the_recorded_writer_writes_nothing,
            f3_an_append_at_another_index_writes_nothing,
            f3_an_append_is_written_as_a_whole_or_not_at_all,
            f4_the_record_never_goes_down,
            f5_a_stale_deletion_removes_nothing,
            f5_what_was_deleted_stays_deleted_until_its_owner_claims_it_anew,
            f5_a_new_life_begins_where_the_deleted_one_ended,
            f5_a_deletion_that_comes_late_removes_nothing_of_the_next_life,
            f7_an_append_that_was_cancelled_is_there_once_or_not_at_all,
            a_stale_owner_is_fenced_on_every_path,
            giant_epochs_are_stored_exactly_and_epoch_zero_is_refused,
            bounds_are_kept_before_anything_is_written,
            a_key_is_unique_in_its_oplog_and_free_in_others,
            a_key_is_found_after_snapshots,
            replay_starts_at_the_newest_snapshot,
            a_read_is_ascending_from_its_index_and_ends_at_its_limit,
            running_agents_are_listed_by_shard_in_pages,
            sixteen_appenders_of_one_owner_leave_no_gap,
            many_agents_do_not_disturb_each_other,
            deletions_racing_with_appends_leave_nothing_behind,
            two_owners_racing_never_share_an_index,
            a_held_append_is_fenced_once_the_next_owner_took_over,
            random_histories_follow_the_reference,
        }
    };
    ($fixture:expr; $($test:ident,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                $crate::conformance::oplog::$test(&$fixture).await;
            }
        )*
    };
}

/// How many random histories are played.
const HISTORIES: u64 = 24;
/// How many appends are cancelled, each a little later than the one before.
const CANCELLATIONS: u64 = 40;
/// A shard for agents whose shard does not matter.
pub(super) const SHARD: ShardId = ShardId(7);
/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The writer of `epoch` whose identity is `executor`.
#[must_use]
pub fn writer(epoch: u64, executor: u128) -> Writer {
    Writer { epoch: ShardEpoch::new(epoch).expect("an epoch"), executor: ExecutorId::from_u128(executor) }
}

pub(super) fn agent(key: impl std::fmt::Display) -> AgentId {
    AgentId::new(format!("counter/{key}")).expect("an agent")
}

pub(super) fn entry(body: impl std::fmt::Display) -> NewEntry {
    NewEntry { kind: EntryKind::Invocation, key: None, body: body.to_string().into_bytes() }
}

pub(super) fn keyed(key: &str) -> NewEntry {
    NewEntry { key: Some(key.into()), ..entry(key) }
}

pub(super) fn snapshot(body: &str) -> NewEntry {
    NewEntry { kind: EntryKind::Snapshot, ..entry(body) }
}

pub(super) fn at(agent: &AgentId, writer: Writer, expected: u64, entries: Vec<NewEntry>) -> Append {
    Append { agent: agent.clone(), writer, expected: EntryIndex(expected), entries }
}

/// An append of one entry.
pub(super) fn one(agent: &AgentId, writer: Writer, expected: u64) -> Append {
    at(agent, writer, expected, vec![entry(expected)])
}

pub(super) fn fenced<T>(recorded: Option<Writer>, offered: Writer) -> Result<T, Error> {
    Err(Error::Fenced { recorded, offered })
}

fn claimed(next: u64) -> Result<Claimed, Error> {
    Ok(Claimed { next: EntryIndex(next), snapshot: None })
}

pub(super) async fn all(store: &dyn OplogStore, agent: &AgentId, writer: Writer) -> Vec<Entry> {
    store.read(agent, writer, EntryIndex(1), u32::MAX).await.expect("a read by the owner")
}

pub(super) async fn indexes(store: &dyn OplogStore, agent: &AgentId, writer: Writer) -> Vec<u64> {
    all(store, agent, writer).await.iter().map(|entry| entry.index.0).collect()
}

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

/// One step of a random history over three agents and four writers, two of which share an epoch.
#[derive(Debug, Clone)]
struct Step {
    agent: u8,
    writer: Writer,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Claim,
    /// At the next index plus this much.
    Append(i8, Vec<NewEntry>),
    Read(u8),
    Find(u8),
    Delete,
    Suspend,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let pick = |g: &mut Gen, from: &[u64]| g.choose(from).copied().unwrap_or(0);
        let writer = match pick(g, &[0, 0, 0, 1, 2, 3]) {
            0 => writer(5, 1),
            1 => writer(5, 2),
            2 => writer(6, 1),
            _ => writer(i64::MAX as u64, 3),
        };
        let what = match pick(g, &[0, 0, 1, 1, 1, 1, 1, 2, 3, 4, 5]) {
            0 => What::Claim,
            1 => {
                let off = g.choose(&[0, 0, 0, 0, 0, 0, -2, -1, 1, 2]).copied().unwrap_or(0);
                let count = pick(g, &[1, 1, 2, 5]);
                let entries = (0..count).map(|_| {
                    let kind = if pick(g, &[0, 1, 2]) == 0 { EntryKind::Snapshot } else { EntryKind::Invocation };
                    let key = pick(g, &[0, 0, 0, 1, 2, 3, 4, 5]);
                    NewEntry { kind, key: (key > 0).then(|| key.to_string()), body: Vec::arbitrary(g) }
                });
                What::Append(off, entries.collect())
            }
            2 => What::Read(u8::arbitrary(g) % 8),
            3 => What::Find(u8::arbitrary(g) % 6),
            4 => What::Delete,
            _ => What::Suspend,
        };
        Self { agent: u8::arbitrary(g) % 3, writer, what }
    }
}

/// The reference: as plain as the rules.
#[derive(Debug, Default)]
struct Reference(BTreeMap<AgentId, Known>);

#[derive(Debug)]
struct Known {
    writer: Writer,
    running: bool,
    deleted: bool,
    next: u64,
    entries: Vec<Entry>,
}

impl Reference {
    fn open(&mut self, agent: &AgentId, offered: Writer) -> Result<&mut Known, Error> {
        let recorded = self.0.get(agent).map(|known| known.writer);
        match self.0.get_mut(agent) {
            Some(known) if known.writer == offered && !known.deleted => Ok(known),
            _ => Err(Error::Fenced { recorded: recorded.filter(|recorded| *recorded != offered), offered }),
        }
    }

    fn claim(&mut self, agent: &AgentId, offered: Writer) -> Result<Claimed, Error> {
        let fresh = Known { writer: offered, running: true, deleted: false, next: 1, entries: Vec::new() };
        let known = self.0.entry(agent.clone()).or_insert(fresh);
        if known.writer.epoch > offered.epoch || (known.writer.epoch == offered.epoch && known.writer != offered) {
            return Err(Error::Fenced { recorded: Some(known.writer), offered });
        }
        (known.writer, known.running, known.deleted) = (offered, true, false);
        let snapshot = known.entries.iter().filter(|e| e.entry.kind == EntryKind::Snapshot).map(|e| e.index).max();
        Ok(Claimed { next: EntryIndex(known.next), snapshot })
    }

    /// `None` stands for "invalid", whose words are the store's own.
    fn append(&mut self, append: &Append) -> Result<Option<EntryIndex>, Error> {
        let keys: Vec<_> = append.entries.iter().filter_map(|e| e.key.as_ref()).collect();
        if append.expected.0 == 0 || keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key)) {
            return Ok(None);
        }
        let known = self.open(&append.agent, append.writer)?;
        if known.next != append.expected.0 {
            return Err(Error::IndexConflict { expected: append.expected, found: EntryIndex(known.next) });
        }
        if known.entries.iter().any(|e| e.entry.key.as_ref().is_some_and(|key| keys.contains(&key))) {
            return Ok(None);
        }
        for entry in &append.entries {
            let index = EntryIndex(known.next);
            known.entries.push(Entry { index, writer: append.writer, entry: entry.clone() });
            known.next += 1;
        }
        Ok(Some(EntryIndex(known.next)))
    }

    fn delete(&mut self, agent: &AgentId, offered: Writer, expected: EntryIndex) -> Result<(), Error> {
        match self.0.get_mut(agent) {
            Some(known) if known.writer == offered && !known.deleted && known.next != expected.0 => {
                Err(Error::IndexConflict { expected, found: EntryIndex(known.next) })
            }
            Some(known) if known.writer == offered => {
                (known.running, known.deleted) = (false, true);
                known.entries.clear();
                Ok(())
            }
            other => Err(Error::Fenced { recorded: other.map(|known| known.writer), offered }),
        }
    }
}

/// Every rule at once, against a reference.
///
/// # Panics
/// With the seed, the step and both answers, when the store differs.
pub async fn random_histories_follow_the_reference(fixture: &dyn Fixture) {
    let (store, other) = (fixture.open().await, fixture.open().await);
    for seed in 0..HISTORIES {
        let mut g = Gen::from_size_and_seed(12, seed);
        let mut reference = Reference::default();
        let shard = ShardId(u32::try_from(seed).expect("a small number"));
        for number in 0..60 {
            let step = Step::arbitrary(&mut g);
            let handle = if bool::arbitrary(&mut g) { &store } else { &other };
            let agent = agent(format!("{seed}/{}", step.agent));
            compare(&**handle, &mut reference, (&agent, shard), &step)
                .await
                .unwrap_or_else(|what| panic!("seed {seed}, step {number}, {step:?}: {what}"));
        }
        let running = reference.0.iter().filter(|(_, known)| known.running).map(|(agent, _)| agent.clone());
        assert_eq!(other.running(shard, None, 10).await, Ok(running.collect()), "seed {seed}");
    }
}

async fn compare(
    store: &dyn OplogStore,
    reference: &mut Reference,
    (agent, shard): (&AgentId, ShardId),
    step: &Step,
) -> Result<(), String> {
    let offered = step.writer;
    match &step.what {
        What::Claim => same(store.claim(agent, shard, offered).await, reference.claim(agent, offered))?,
        What::Append(off, entries) => {
            let next = reference.0.get(agent).map_or(1, |known| known.next);
            let append = at(agent, offered, next.saturating_add_signed(i64::from(*off)), entries.clone());
            let outcome = match store.append(append.clone()).await {
                Err(Error::Invalid(_)) => Ok(None),
                other => other.map(Some),
            };
            same(outcome, reference.append(&append))?;
        }
        What::Read(from) => {
            let expected = reference.open(agent, offered).map(|known| known.entries.clone());
            let from = EntryIndex(u64::from(*from));
            let expected = expected.map(|all| all.into_iter().filter(|e| e.index >= from).take(7).collect::<Vec<_>>());
            same(store.read(agent, offered, from, 7).await, expected)?;
        }
        What::Find(key) => {
            let key = key.to_string();
            let expected = reference
                .open(agent, offered)
                .map(|known| known.entries.iter().find(|e| e.entry.key.as_ref() == Some(&key)).cloned());
            same(store.find(agent, offered, &key).await, expected)?;
        }
        What::Delete => {
            let next = reference.0.get(agent).map_or(1, |known| known.next);
            // Now and then it is one that comes late.
            let expected = EntryIndex(if next.is_multiple_of(5) { next - 1 } else { next });
            same(store.delete(agent, offered, expected).await, reference.delete(agent, offered, expected))?;
        }
        What::Suspend => {
            let expected = reference.open(agent, offered).map(|known| known.running = false);
            same(store.suspend(agent, offered).await, expected)?;
        }
    }
    same(store.recorded(agent).await, Ok(reference.0.get(agent).map(|known| known.writer)))
}

fn same<T: PartialEq + std::fmt::Debug>(found: Result<T, Error>, expected: Result<T, Error>) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
}
