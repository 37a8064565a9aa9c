//! A cluster store in memory, with a script of faults: what tests and simulations put under a manager.
//!
//! Each [`MemoryClusterStore`] is one process's handle; [`MemoryClusterStore::another`] gives another process's handle on the same data.
//! A handle's load or [`MemoryClusterStore::take_over`] ends the ownership of every older handle.
//!
//! Calls of one handle are applied in the order in which they were made, as by a database connection: the outcome
//! of a write is not told before a delayed write was applied. A call whose future is dropped is applied all the same.

mod script;
mod stored;

pub use script::{Call, Fault, Op};
pub use stored::Snapshot;

use super::{ClusterStore, Counters, Error, Write, check_head};
use async_trait::async_trait;
use leasehold_model::state::ClusterState;
use leasehold_model::{ClusterName, Revision, ShardCount};
use script::{Course, Script};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stored::Stored;
use tokio::sync::oneshot;

/// One process's handle on a store in memory.
#[derive(Debug)]
pub struct MemoryClusterStore {
    shared: Arc<Shared>,
    token: u64,
    /// Ends when the latest ordered call was applied.
    latest: Mutex<Option<oneshot::Receiver<()>>>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Inner {
    stored: Stored,
    /// The token of the handle that may write.
    owner: u64,
    /// How many handles were given out; the newest has this token.
    handles: u64,
    script: Script,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked half-way must not hide its reason behind a poisoned lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryClusterStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryClusterStore {
    /// An empty store and its first handle, which owns it.
    #[must_use]
    pub fn new() -> Self {
        let inner = Inner { stored: Stored::default(), owner: 1, handles: 1, script: Script::default() };
        let shared = Shared { inner: Mutex::new(inner), counters: Arc::default() };
        Self { shared: Arc::new(shared), token: 1, latest: Mutex::new(None) }
    }

    /// Another process's handle on the same data. It owns nothing before it loads.
    #[must_use]
    pub fn another(&self) -> Self {
        let mut inner = self.shared.lock();
        inner.handles += 1;
        Self { shared: Arc::clone(&self.shared), token: inner.handles, latest: Mutex::new(None) }
    }

    /// Makes this handle the owner, unless a newer one is.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when a newer one is.
    pub fn take_over(&self) -> Result<(), Error> {
        self.shared.lock().take_over(self.token)
    }

    /// Lets the faults happen to the next call of `op` that has none yet. Several calls queue up.
    pub fn inject(&self, op: Op, faults: impl IntoIterator<Item = Fault>) {
        self.shared.lock().script.queue(op, faults.into_iter().collect());
    }

    /// Asks `choose` about every call for which nothing was injected. Replaces an earlier choice.
    pub fn inject_when(&self, choose: impl FnMut(&Call<'_>) -> Vec<Fault> + Send + 'static) {
        self.shared.lock().script.choose(Box::new(choose));
    }

    /// Forgets every fault that has not happened yet.
    pub fn heal(&self) {
        self.shared.lock().script.clear();
    }

    /// Empties the store, as if it had been wiped.
    pub fn wipe(&self) {
        self.shared.lock().stored = Stored::default();
    }

    /// A backup of the store.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.shared.lock().stored.clone())
    }

    /// Puts a backup back.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.shared.lock().stored = snapshot.0.clone();
    }

    /// What is stored, without a fault, a count or a change of owner; `None` when nothing is.
    ///
    /// # Panics
    /// When what was committed breaks an invariant.
    #[must_use]
    pub fn peek(&self) -> Option<ClusterState> {
        let inner = self.shared.lock();
        let head = inner.stored.head()?.clone();
        Some(inner.stored.load(&head.cluster, head.shard_count).expect("what was committed is sound"))
    }

    /// The store's counts, over all its handles.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Queues a call behind the calls made before it. The receiver ends when it is its turn; dropping the sender ends its turn.
    fn queue_up(&self) -> (Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let (done, latest) = oneshot::channel();
        let before = self.latest.lock().unwrap_or_else(PoisonError::into_inner).replace(latest);
        (before, done)
    }

    /// Applies `apply` in this call's turn, with the faults that the script has for it.
    async fn call<T: Send + 'static>(
        &self,
        op: Op,
        write: Option<&Write>,
        apply: impl FnOnce(&mut Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let course = self.shared.lock().script.course(op, self.token, write);
        // A confirmation is a read of its own: it does not wait for writes.
        let turn = (op != Op::Confirm).then(|| self.queue_up());
        let (before, done) = turn.map_or((None, None), |(before, done)| (before, Some(done)));
        let before = before.and_then(|mut before| match before.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => Some(before),
            Ok(()) | Err(oneshot::error::TryRecvError::Closed) => None,
        });
        let shared = Arc::clone(&self.shared);
        if before.is_none() && !course.takes_time() {
            return run(&shared, op, course, apply).1;
        }
        // A task of its own, so that the call is applied even when nobody waits for it any more.
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            pause(course.before).await;
            let (after, answer) = run(&shared, op, course, apply);
            drop(done);
            pause(after).await;
            answer
        });
        task.await.unwrap_or_else(|lost| Err(op.unknown(format!("the call was lost: {lost}"))))
    }
}

async fn pause(span: std::time::Duration) {
    if !span.is_zero() {
        tokio::time::sleep(span).await;
    }
}

/// Lets everything happen that happens at once, and says how long to hold the answer.
fn run<T>(
    shared: &Shared,
    op: Op,
    course: Course,
    apply: impl FnOnce(&mut Inner) -> Result<T, Error>,
) -> (std::time::Duration, Result<T, Error>) {
    let mut inner = shared.lock();
    for event in course.events {
        inner.suffer(event);
    }
    let answer = if let Some(why) = course.refuse {
        Err(Error::Unavailable(why))
    } else if course.lose_request {
        Err(op.unknown("the request was lost".into()))
    } else {
        let answer = apply(&mut inner);
        if course.lose_answer { Err(op.unknown("the answer was lost".into())) } else { answer }
    };
    if op == Op::Commit && answer.is_err() {
        Counters::add(&shared.counters.refused, 1);
    }
    (course.after, answer)
}

impl Inner {
    fn take_over(&mut self, token: u64) -> Result<(), Error> {
        if token < self.owner {
            return Err(Error::NotOwner(format!("manager {} took the store over from manager {token}", self.owner)));
        }
        self.owner = token;
        Ok(())
    }

    fn owned_by(&self, token: u64) -> Result<(), Error> {
        if token == self.owner {
            Ok(())
        } else {
            Err(Error::NotOwner(format!("manager {} owns the store, manager {token} does not", self.owner)))
        }
    }

    /// Lets happen what others do to the store.
    fn suffer(&mut self, event: Fault) {
        match event {
            Fault::ForeignWrite => self.stored.write_foreign(),
            Fault::Wipe => self.stored = Stored::default(),
            Fault::Restore(snapshot) => self.stored = snapshot.0,
            Fault::Depose => {
                self.handles += 1;
                self.owner = self.handles;
            }
            Fault::DelayBefore(_)
            | Fault::DelayAfter(_)
            | Fault::Refuse(_)
            | Fault::LoseRequest
            | Fault::LoseAnswer => unreachable!("{event:?} happens to the call, not to the store"),
        }
    }
}

#[async_trait]
impl ClusterStore for MemoryClusterStore {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        Counters::add(&self.shared.counters.loads, 1);
        let (token, cluster) = (self.token, cluster.clone());
        self.call(Op::Load, None, move |inner| {
            if let Some(head) = inner.stored.head() {
                check_head(head, &cluster, shard_count)?;
            }
            inner.take_over(token)?;
            inner.stored.load(&cluster, shard_count)
        })
        .await
    }

    async fn commit(&self, write: &Write) -> Result<(), Error> {
        write.check()?;
        let (token, counters) = (self.token, self.counters());
        let owned = write.clone();
        self.call(Op::Commit, Some(write), move |inner| {
            inner.owned_by(token)?;
            let rows = inner.stored.apply(&owned)?;
            counters.committed(rows, owned.bytes());
            Ok(())
        })
        .await
    }

    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        Counters::add(&self.shared.counters.outcomes, 1);
        self.call(Op::Outcome, None, move |inner| Ok(inner.stored.tag() == Some(tag))).await
    }

    async fn confirm_leadership(&self) -> Result<(), Error> {
        Counters::add(&self.shared.counters.confirmations, 1);
        let token = self.token;
        self.call(Op::Confirm, None, move |inner| inner.owned_by(token)).await
    }

    async fn compact(&self, _upto: Revision) -> Result<(), Error> {
        self.call(Op::Compact, None, |_| Ok(())).await
    }
}

#[cfg(test)]
mod tests;
