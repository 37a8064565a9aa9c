//! What an executor's agents share of the archive: a bound on moves, the metrics, and the removal of objects that nobody needs.

use super::agent::Surroundings;
use leasehold_model::fence::Admitted;
use leasehold_model::{AgentId, ShardId, Tick};
use leasehold_persistence::oplog::layers::{Archive, Moved, Swept, Upto};
use leasehold_persistence::oplog::{Error, Writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Moves of one executor at a time: each takes a part of a core and of the store.
const MOVES: usize = 2;

/// How long one move may take, the object's way into blob storage included.
const MOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the sweep of one shard may take.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(600);

/// Failures are logged this seldom; all of them are counted.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// See the module's documentation. Clones are the same.
#[derive(Clone)]
pub struct Archiver {
    archive: Arc<dyn Archive>,
    moves: Arc<Semaphore>,
    /// When a failure was logged last; 0: never.
    warned: Arc<AtomicU64>,
}

impl Archiver {
    /// For one executor.
    #[must_use]
    pub fn new(archive: Arc<dyn Archive>) -> Self {
        Self { archive, moves: Arc::new(Semaphore::new(MOVES)), warned: Arc::default() }
    }

    /// Moves one chunk, when it is its turn.
    pub(super) async fn archive(
        &self,
        (agent, shard, writer): (&AgentId, ShardId, Writer),
        upto: Upto,
    ) -> Result<Moved, Error> {
        // Never closed; waiting for a turn does not count against the deadline.
        let _turn = self.moves.acquire().await;
        let moved = timeout(MOVE_TIMEOUT, self.archive.archive(agent, shard, writer, upto)).await;
        moved.unwrap_or_else(|_| Err(late(MOVE_TIMEOUT)))
    }

    async fn sweep(&self, shard: ShardId) -> Result<Swept, Error> {
        let swept = timeout(SWEEP_TIMEOUT, self.archive.sweep_shard(shard)).await;
        swept.unwrap_or_else(|_| Err(late(SWEEP_TIMEOUT)))
    }

    /// Whether a failure is to be logged now.
    fn warns(&self, now: Tick) -> bool {
        let last = self.warned.load(Ordering::Relaxed);
        let due = last == 0 || now.since(Tick(last)) >= WARN_EVERY;
        if due {
            self.warned.store(now.0.max(1), Ordering::Relaxed);
        }
        due
    }
}

fn late(limit: Duration) -> Error {
    Error::Unknown(format!("no answer within {} s", limit.as_secs()))
}

impl Surroundings {
    /// Takes note of how a move ended.
    pub(super) fn count_move(&self, (shard, agent): (ShardId, &AgentId), moved: &Result<Moved, Error>) {
        match moved {
            Ok(moved) => {
                self.metrics.archived_entries.inc_by(moved.entries);
                self.metrics.archived_bytes.inc_by(moved.stored);
                if moved.entries > 0 {
                    let Moved { entries, raw, stored, .. } = *moved;
                    tracing::debug!(%agent, %shard, entries, raw, stored, "entries are archived");
                }
            }
            // Another owner, or another caller of this one, was first.
            Err(Error::Fenced { .. } | Error::IndexConflict { .. }) => {}
            Err(error @ (Error::Unavailable(_) | Error::Unknown(_) | Error::Corrupt { .. } | Error::Invalid(_))) => {
                self.metrics.count_archive_failure("move");
                if self.archiver.as_ref().is_some_and(|archiver| archiver.warns(self.clock.now())) {
                    tracing::warn!(%agent, %shard, %error, "entries cannot be archived: they stay where they are, and it is tried again");
                }
            }
        }
    }

    /// Removes objects of these shards that no list names, as far as the shards are still held.
    pub(super) async fn sweep_archive(&self, held: Vec<Admitted>) {
        let Some(archiver) = &self.archiver else { return };
        for admitted in held {
            if self.fence.admit(self.clock.now(), admitted.shard) != Ok(admitted) {
                continue;
            }
            let shard = admitted.shard;
            match archiver.sweep(shard).await {
                Ok(swept) => {
                    self.metrics.swept_objects.inc_by(swept.deleted);
                    if swept.deleted > 0 {
                        let Swept { seen, deleted } = swept;
                        tracing::info!(%shard, seen, deleted, "objects that nobody needs are removed from the archive");
                    }
                }
                Err(error) => {
                    self.metrics.count_archive_failure("sweep");
                    if archiver.warns(self.clock.now()) {
                        tracing::warn!(%shard, %error, "the archive cannot be swept: what nobody needs stays for now");
                    }
                }
            }
        }
    }
}
