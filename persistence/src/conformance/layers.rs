//! What every [`ChunkStore`] must do beside being an [`OplogStore`]; and a store that archives all that it is given, on which the suite of
//! oplog stores runs again.

mod archiving;
mod crashes;
mod garbage;
mod moves;
mod scripted;

pub use archiving::Archiving;
pub use crashes::*;
pub use garbage::*;
pub use moves::*;

use super::blobs::{BlobsFixture, MemoryPlace};
use super::oplog::{Fixture, SHARD, at};
use crate::oplog::layers::{Archive, ChunkStore, Layered, Upto};
use crate::oplog::{EntryIndex, Gate, NewEntry, OplogStore, Writer};
use async_trait::async_trait;
use leasehold_model::AgentId;
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
    blobs: Option<Box<dyn BlobsFixture>>,
}

impl<F: ChunkFixture> Archived<F> {
    /// In the list.
    pub fn in_list(fixture: F) -> Self {
        Self { fixture, blobs: None }
    }

    /// In blob storage in memory.
    pub fn in_blobs(fixture: F) -> Self {
        Self::in_place(fixture, MemoryPlace::default())
    }

    /// In this blob storage.
    pub fn in_place(fixture: F, place: impl BlobsFixture + 'static) -> Self {
        Self { fixture, blobs: Some(Box::new(place)) }
    }

    async fn over(&self, store: Arc<dyn ChunkStore>) -> Arc<dyn OplogStore> {
        Arc::new(Archiving::new(match &self.blobs {
            Some(place) => Layered::in_blobs(store, place.open("cluster").await),
            None => Layered::in_list(store),
        }))
    }
}

#[async_trait]
impl<F: ChunkFixture> Fixture for Archived<F> {
    async fn open(&self) -> Arc<dyn OplogStore> {
        self.over(self.fixture.open().await).await
    }

    async fn open_held(&self, gate: Gate) -> Arc<dyn OplogStore> {
        self.over(self.fixture.open_held(gate).await).await
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
            a_move_that_goes_on_after_a_takeover_changes_nothing,
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

/// Claims, and appends `entries` as one.
async fn filled(store: &dyn OplogStore, agent: &AgentId, writer: Writer, entries: Vec<NewEntry>) {
    let next = store.claim(agent, SHARD, writer).await.expect("a claim").next;
    store.append(at(agent, writer, next.0, entries)).await.expect("an append");
}

async fn move_upto(layered: &Layered, agent: &AgentId, writer: Writer, index: u64) -> u64 {
    let upto = Upto { index: EntryIndex(index), least: 1 };
    layered.archive(agent, SHARD, writer, upto).await.expect("a move").entries
}
