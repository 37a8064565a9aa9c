//! The cluster store on etcd, for managers of which one is elected to lead.
//!
//! Every transaction holds only while the leader's key is the one that this leader's election created and the head was last
//! changed by this store. A change too large for one transaction is stored in parts (`plan`); a write whose outcome is in doubt
//! stays with the store as *pending*, and nothing else is done before it is settled: its remaining parts are stored if its
//! first one is, and otherwise it is fenced off by a new head, so that a request that still waits somewhere can never land.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod keys;
mod load;
mod plan;
mod values;
mod wire;

use super::{ClusterStore, Counters, Error, Write};
use crate::etcd::{EtcdConnection, Failure, LeaderKey, Limit};
use async_trait::async_trait;
use keys::Keys;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use load::not_ours;
use plan::{Limits, Part, Planned, Rows};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Short, PoisonError};
use tokio::sync::Mutex;
use values::HeadValue;
use wire::{Seen, Sent, Standing, Wire};

/// How many commits are remembered with their etcd revision, for compaction.
const MAX_MARKS: usize = 64;
/// How often settling looks anew when what it saw changed under it.
const MAX_LOOKS: usize = 8;

/// One leadership's handle on the store.
#[derive(Debug)]
pub struct EtcdClusterStore {
    cluster: ClusterName,
    wire: Wire,
    counters: Arc<Counters>,
    inner: Mutex<Inner>,
    /// Commits with the etcd revision that they made, oldest first.
    marks: Short<VecDeque<(Revision, i64)>>,
    /// Up to where history was forgotten by this store.
    compacted: AtomicI64,
    /// Parts after which a commit stops, for tests.
    interrupt_after: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    known: Option<Known>,
    pending: Option<Pending>,
    /// What etcd has taken so far, or not refused.
    limits: Limits,
}

/// What is stored, as far as this store has read or written it.
#[derive(Debug)]
struct Known {
    rows: Rows,
    head: Option<HeadValue>,
    /// The etcd revision of the head's last change; 0 if there is none.
    changed_at: i64,
}

/// A write that was begun and whose end is not known.
#[derive(Debug)]
struct Pending {
    tag: u128,
    expected: Revision,
    planned: Planned,
    /// What is counted when it is complete.
    rows: u64,
    bytes: u64,
    /// How many parts are known to be stored.
    landed: usize,
    /// The etcd revision of the head's last change after these parts.
    changed_at: i64,
    /// The head before the write.
    before: Option<HeadValue>,
    /// The next part, or a fence, was sent and its answer is not known.
    in_doubt: bool,
}

/// Why a write does not go on.
enum Stuck {
    /// The next part was provably not written.
    NotWritten(String),
    /// It may have been.
    Unknown(String),
    /// Nothing more of it can ever be written.
    Over(Error),
}

/// What was sent to etcd to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdTraffic {
    /// Transactions, those included that did not land.
    pub transactions: u64,
    /// Bytes of the keys and values in them.
    pub bytes: u64,
}

impl EtcdClusterStore {
    /// The store of `cluster`, written for as long as `leader` stands.
    ///
    /// # Panics
    /// When `leader` has no creation revision: a key that does not exist would pass for it.
    #[must_use]
    pub fn new(connection: EtcdConnection, cluster: &ClusterName, leader: LeaderKey) -> Self {
        assert!(leader.create_revision > 0, "a leader's key without a creation revision");
        Self {
            cluster: cluster.clone(),
            wire: Wire::new(connection, Keys::of(cluster), Some(leader)),
            counters: Arc::default(),
            inner: Mutex::default(),
            marks: Short::default(),
            compacted: AtomicI64::new(0),
            interrupt_after: AtomicUsize::new(usize::MAX),
        }
    }

    /// How often the store was used since it was made.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// What this store has sent to be stored.
    #[must_use]
    pub fn traffic(&self) -> EtcdTraffic {
        let traffic = &self.wire.traffic;
        EtcdTraffic {
            transactions: traffic.transactions.load(Ordering::Relaxed),
            bytes: traffic.bytes.load(Ordering::Relaxed),
        }
    }

    /// Lets the next writes stop with an unknown outcome once this many of their parts are stored, as if the process died there.
    #[cfg(feature = "conformance")]
    pub fn interrupt_after(&self, parts: Option<usize>) {
        self.interrupt_after.store(parts.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Stores what is left of the pending write. `Ok` when all of it is stored; it is not pending any more then.
    async fn drive(&self, inner: &mut Inner) -> Result<(), Stuck> {
        while let Some(pending) = &mut inner.pending
            && let Some(part) = pending.planned.parts.get(pending.landed)
        {
            if pending.landed >= self.interrupt_after.load(Ordering::Relaxed) {
                return Err(Stuck::Unknown("interrupted by a test".into()));
            }
            // Set before the call: whoever drops the future leaves the doubt behind.
            pending.in_doubt = true;
            match self.wire.send(pending.changed_at, part).await {
                Sent::Landed(at) => pending.has_landed(pending.landed + 1, at),
                Sent::Not(seen) => pending.meets(seen).map_err(Stuck::Over)?,
                Sent::Failed(Failure::NotSent(why) | Failure::Refused(why) | Failure::Compacted(why)) => {
                    pending.in_doubt = false;
                    return Err(Stuck::NotWritten(why));
                }
                Sent::Failed(Failure::TooLarge(limit, why)) => {
                    pending.in_doubt = false;
                    inner.limits = inner.limits.tightened(limit, part).ok_or_else(|| indivisible(limit, &why, part))?;
                    let Limits { operations, bytes } = inner.limits;
                    tracing::warn!(
                        flag = limit.flag(),
                        operations,
                        bytes,
                        "etcd takes less than its default; writes are split smaller"
                    );
                    pending.planned.split_smaller(pending.landed, inner.limits);
                }
                Sent::Failed(Failure::Unknown(why)) => return Err(Stuck::Unknown(why)),
                // The server is done with it, so what is stored now says whether it was stored.
                Sent::Failed(Failure::Ended(why)) => {
                    let seen = self.wire.look().await.map_err(|error| Stuck::Unknown(error.to_string()))?;
                    if !pending.advances_to(&seen) {
                        pending.in_doubt = false;
                        return Err(Stuck::NotWritten(why));
                    }
                }
            }
        }
        self.complete(inner);
        Ok(())
    }

    /// The pending write is stored.
    fn complete(&self, inner: &mut Inner) {
        let Some(pending) = inner.pending.take() else { return };
        self.counters.committed(pending.rows, pending.bytes);
        let head = pending.planned.parts.into_iter().next_back().map(|part| part.head);
        let rows = pending.planned.after;
        self.mark(rows.revision, pending.changed_at);
        inner.known = Some(Known { rows, head, changed_at: pending.changed_at });
    }

    fn mark(&self, revision: Revision, at: i64) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.push_back((revision, at));
        if marks.len() > MAX_MARKS {
            marks.pop_front();
        }
    }

    /// Finds out what became of the pending write, if there is one, and makes it final: whether it is stored.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when that could not be learnt; the write is still pending. A fatal one when nothing more can be
    /// written.
    async fn settle(&self, inner: &mut Inner) -> Result<bool, Error> {
        for _ in 0..MAX_LOOKS {
            let Some(pending) = &mut inner.pending else { return Ok(false) };
            if pending.landed == 0 && !pending.in_doubt {
                inner.pending = None;
                return Ok(false);
            }
            let seen = self.wire.look().await?;
            if pending.advances_to(&seen) || pending.landed > 0 {
                return self.finish(inner).await;
            }
            if !seen.leads {
                inner.pending = None;
                return Err(not_ours());
            }
            let is_fenced = seen.head.as_ref().is_some_and(|head| head.fenced == Some(pending.tag.into()));
            if is_fenced || seen.changed_at != pending.changed_at {
                // Whatever changed the head, the write's condition can never hold again.
                if is_fenced && let Some(known) = &mut inner.known {
                    (known.head, known.changed_at) = (seen.head, seen.changed_at);
                }
                inner.pending = None;
                return Ok(false);
            }
            self.fence(pending).await?;
        }
        Err(Error::Unavailable("etcd: the head kept changing while a write was looked up".into()))
    }

    /// Stores what is left of a write whose first part is stored.
    async fn finish(&self, inner: &mut Inner) -> Result<bool, Error> {
        match self.drive(inner).await {
            Ok(()) => Ok(true),
            Err(Stuck::NotWritten(why) | Stuck::Unknown(why)) => Err(Error::Unavailable(why)),
            Err(Stuck::Over(error)) => {
                inner.pending = None;
                Err(error)
            }
        }
    }

    /// Changes the head, and nothing in it that counts, so that the pending write can never land. The next look shows whether that was done.
    async fn fence(&self, pending: &Pending) -> Result<(), Error> {
        let rows = &pending.planned.after;
        let before = pending.before.as_ref();
        let head = HeadValue::fencing(before, &rows.cluster, rows.shard_count, pending.tag);
        match self.wire.send(pending.changed_at, &Part { ops: Vec::new(), head }).await {
            Sent::Landed(_) | Sent::Not(_) => Ok(()),
            Sent::Failed(failed) => Err(Error::Unavailable(failed.why().to_owned())),
        }
    }

    /// Begins `write` on top of what is known.
    async fn begin(&self, inner: &mut Inner, write: &Write) -> Result<(), Error> {
        self.settle(inner).await?;
        let found = inner.known.as_ref().map(|known| known.rows.revision);
        let found = match found {
            Some(found) if found == write.expected => found,
            // Never loaded, or the caller believes something else than what this store wrote last.
            Some(_) | None => {
                let seen = self.wire.look().await?;
                if !seen.leads {
                    return Err(not_ours());
                }
                seen.revision()
            }
        };
        let Some(known) = inner.known.as_ref().filter(|known| known.rows.revision == write.expected) else {
            return Err(Error::Conflict { expected: write.expected, found });
        };
        let changes = &write.changes;
        inner.pending = Some(Pending {
            tag: write.tag,
            expected: write.expected,
            planned: known.rows.plan(&self.wire.keys, write, inner.limits),
            rows: (1 + changes.shards.len() + changes.executors.len() + changes.removed.len()) as u64,
            bytes: write.bytes(),
            landed: 0,
            changed_at: known.changed_at,
            before: known.head.clone(),
            in_doubt: false,
        });
        Ok(())
    }
}

/// A part that holds one key, and is refused for its size.
fn indivisible(limit: Limit, why: &str, part: &Part) -> Stuck {
    let (keys, bytes) = (part.ops.len() + 1, part.ops.iter().map(plan::Op::bytes).sum::<usize>());
    Stuck::Over(Error::Incompatible(format!(
        "{why}: a write of {keys} keys and {bytes} bytes cannot be split further; raise etcd's {}",
        limit.flag()
    )))
}

impl Seen {
    fn revision(&self) -> Revision {
        self.head.as_ref().map_or(Revision(0), |head| head.revision)
    }
}

impl Pending {
    fn has_landed(&mut self, landed: usize, at: i64) {
        (self.landed, self.changed_at, self.in_doubt) = (landed, at, false);
    }

    /// Takes in that a part of this write was stored that was not known to be; whether that is so.
    fn advances_to(&mut self, seen: &Seen) -> bool {
        let part = seen.head.as_ref().filter(|head| head.has(self.tag)).map_or(0, |head| head.part);
        let advances = part > self.landed;
        if advances {
            self.has_landed(part, seen.changed_at);
        }
        advances
    }

    /// The condition of the next part did not hold: because it is stored already, or because there is nothing more to be stored.
    fn meets(&mut self, seen: Seen) -> Result<(), Error> {
        if self.advances_to(&seen) {
            return Ok(());
        }
        if !seen.leads {
            return Err(not_ours());
        }
        Err(Error::Conflict { expected: self.expected, found: seen.revision() })
    }
}

/// Refuses what is stored for another cluster or shard count, as a load does, without leading: what a standby asks at its start.
///
/// # Errors
/// As [`ClusterStore::load`].
pub async fn check_stored(
    connection: &EtcdConnection,
    cluster: &ClusterName,
    shard_count: ShardCount,
) -> Result<(), Error> {
    let wire = Wire::new(connection.clone(), Keys::of(cluster), None);
    match wire.look().await?.head.filter(|head| head.revision > Revision(0)) {
        Some(head) => super::check_head(&head.head(), cluster, shard_count),
        None => Ok(()),
    }
}

#[async_trait]
impl ClusterStore for EtcdClusterStore {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        Counters::add(&self.counters.loads, 1);
        let mut inner = self.inner.lock().await;
        // Nothing of an earlier write may land behind what is read now.
        self.settle(&mut inner).await?;
        if *cluster != self.cluster {
            return Err(Error::Incompatible(format!(
                "the store belongs to cluster {:?}, this process is configured for cluster {:?}",
                self.cluster.as_str(),
                cluster.as_str()
            )));
        }
        let (state, seen) = load::load(&self.wire, cluster, shard_count).await?;
        self.mark(state.revision, seen.changed_at);
        inner.known = Some(Known { rows: Rows::of(&state), head: seen.head, changed_at: seen.changed_at });
        Ok(state)
    }

    async fn commit(&self, write: &Write) -> Result<(), Error> {
        write.check()?;
        let mut inner = self.inner.lock().await;
        let begun = self.begin(&mut inner, write).await;
        let stuck = match begun {
            Ok(()) => match self.drive(&mut inner).await {
                Ok(()) => return Ok(()),
                Err(stuck) => stuck,
            },
            Err(error) => Stuck::Over(error),
        };
        Counters::add(&self.counters.refused, 1);
        let landed = inner.pending.as_ref().map_or(0, |pending| pending.landed);
        match stuck {
            Stuck::NotWritten(why) if landed == 0 => {
                inner.pending = None;
                Err(Error::Unavailable(why))
            }
            // The first parts are stored: it is neither written nor not, until `outcome` has stored the rest.
            Stuck::NotWritten(why) | Stuck::Unknown(why) => {
                Err(Error::Unknown(format!("{why} ({landed} parts stored)")))
            }
            Stuck::Over(error) => {
                // An earlier write that could not be settled stays.
                if !matches!(error, Error::Unavailable(_)) {
                    inner.pending = None;
                }
                Err(error)
            }
        }
    }

    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        Counters::add(&self.counters.outcomes, 1);
        let mut inner = self.inner.lock().await;
        if inner.pending.as_ref().is_some_and(|pending| pending.tag == tag) {
            return self.settle(&mut inner).await;
        }
        let head = self.wire.look().await?.head;
        Ok(head.is_some_and(|head| head.has(tag) && head.is_complete()))
    }

    async fn confirm_leadership(&self) -> Result<(), Error> {
        Counters::add(&self.counters.confirmations, 1);
        match self.wire.confirm().await? {
            Standing::Leads => Ok(()),
            Standing::Deposed => Err(not_ours()),
            Standing::Restored => Err(Error::NotOwner(format!(
                "{} in etcd is older than what this manager has seen: a backup was restored under it",
                self.wire.keys.head()
            ))),
        }
    }

    /// Leaves the last `compaction_retention_revisions` of etcd's revisions before the commit of `upto`. To spare etcd the
    /// work, nothing is done for less than a tenth of them.
    async fn compact(&self, upto: Revision) -> Result<(), Error> {
        let retention = self.wire.connection.options().compaction_retention_revisions;
        let Ok(retention @ 1..) = i64::try_from(retention) else { return Ok(()) };
        let mark = {
            let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
            marks.iter().rev().find(|(revision, _)| *revision <= upto).map(|(_, at)| *at)
        };
        let Some(target) = mark.map(|at| at - retention) else { return Ok(()) };
        let before = self.compacted.load(Ordering::Relaxed);
        if target <= 0 || target - before < (retention / 10).max(1) {
            return Ok(());
        }
        self.wire.compact(target).await?;
        self.compacted.fetch_max(target, Ordering::Relaxed);
        Ok(())
    }
}
