//! What every [`OplogStore`] must do.
//!
//! Each function is one test and takes a [`Fixture`] over an empty store of its own. [`oplog_store_conformance!`] makes
//! tests of all of them:
//!
//! ```ignore
//! leasehold_persistence::oplog_store_conformance!(MyFixture::new());
//! ```

mod contents;
mod fence;
mod racing;
mod random;

pub use contents::*;
pub use fence::*;
pub use racing::*;
pub use random::*;

use crate::oplog::{Append, Claimed, Entry, EntryIndex, EntryKind, Error, Gate, NewEntry, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
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

/// A shard for agents whose shard does not matter.
pub(super) const SHARD: ShardId = ShardId(7);
/// The longest that anything here may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

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
