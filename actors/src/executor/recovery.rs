//! Recovering the agents of gained shards: pages of those marked as running, a bounded number at a time. One that cannot be
//! recovered is logged and counted and never holds up the rest; it is recovered when it is next invoked.

use super::agent::Surroundings;
use super::agent_host::{AgentHost, Open};
use super::oplog_health::StoreCall;
use actix::Addr;
use futures::StreamExt;
use leasehold_model::fence::Admitted;
use leasehold_model::{AgentId, CallError, Refusal, ShardEpoch, ShardId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Agents per page of the store's list.
const PAGE: u32 = 256;
/// How often a page is asked for, with [`PAGE_PAUSE`] times the attempt between.
const PAGE_ATTEMPTS: u32 = 5;
const PAGE_PAUSE: Duration = Duration::from_millis(200);
/// A line of progress after so many agents.
const PROGRESS: u64 = 1000;
/// Failures that are logged one by one.
const SHOWN_FAILURES: u64 = 20;

/// How far a recovery has come.
#[derive(Default)]
struct Progress {
    recovered: Cell<u64>,
    failed: Cell<u64>,
    /// Agents of types that this executor does not know, by type.
    unknown: RefCell<BTreeMap<String, u64>>,
    /// Shards that were swept meanwhile.
    lost: RefCell<BTreeSet<ShardId>>,
}

/// Recovers the running agents of `shards`, `at_a_time`.
pub(super) async fn recover(
    host: Addr<AgentHost>,
    around: Surroundings,
    at_a_time: usize,
    shards: Vec<(ShardId, ShardEpoch)>,
) {
    let count = shards.len();
    let progress = Progress::default();
    futures::stream::iter(shards)
        .flat_map(|(shard, epoch)| agents_of(Admitted { shard, epoch }, &around, &progress))
        .for_each_concurrent(at_a_time.max(1), |(agent, held)| {
            let (host, around, progress) = (&host, &around, &progress);
            async move {
                let opened = host.send(Open { agent: agent.clone(), held }).await;
                let opened = opened.unwrap_or_else(|lost| Err(CallError::Unreachable(lost.to_string())));
                progress.note(&agent, held, opened, around);
            }
        })
        .await;
    for (kind, agents) in progress.unknown.take() {
        tracing::warn!(
            kind,
            agents,
            "this executor does not know the agent type: its agents stay as they are, unserved until an executor that knows \
             the type owns their shards"
        );
    }
    let (recovered, failed) = (progress.recovered.get(), progress.failed.get());
    if recovered + failed > 0 {
        tracing::info!(shards = count, recovered, failed, "recovered the agents of gained shards");
    }
}

impl Progress {
    fn note(&self, agent: &AgentId, held: Admitted, opened: Result<(), CallError>, around: &Surroundings) {
        match opened {
            Ok(()) => {
                self.recovered.set(self.recovered.get() + 1);
                if self.recovered.get().is_multiple_of(PROGRESS) {
                    tracing::info!(recovered = self.recovered.get(), failed = self.failed.get(), "recovering agents");
                }
            }
            // No failure: the shard moved on, and so do its agents.
            Err(CallError::Refused(Refusal::HandoffInProgress { .. })) => {
                self.lost.borrow_mut().insert(held.shard);
            }
            // Nothing was claimed: another executor can serve it.
            Err(CallError::Refused(Refusal::UnknownMethod { .. })) => {
                around.metrics.unknown_types.inc();
                *self.unknown.borrow_mut().entry(agent.kind().to_owned()).or_default() += 1;
            }
            Err(error) => {
                around.metrics.recovery_failures.inc();
                self.failed.set(self.failed.get() + 1);
                if self.failed.get() <= SHOWN_FAILURES {
                    let Admitted { shard, epoch } = held;
                    tracing::warn!(%agent, %shard, %epoch, %error, "not recovered now; its next invocation tries again");
                }
            }
        }
    }
}

/// The running agents of one shard, page after page.
fn agents_of<'a>(
    held: Admitted,
    around: &'a Surroundings,
    progress: &'a Progress,
) -> impl futures::Stream<Item = (AgentId, Admitted)> + 'a {
    let start = (VecDeque::new(), None::<AgentId>, false);
    Box::pin(futures::stream::unfold(start, move |(mut page, mut after, mut last)| async move {
        if page.is_empty() && !last && !progress.lost.borrow().contains(&held.shard) {
            page = next_page(held, after.as_ref(), around).await;
            last = page.len() < PAGE as usize;
        }
        if progress.lost.borrow().contains(&held.shard) {
            return None;
        }
        let agent = page.pop_front()?;
        after = Some(agent.clone());
        Some(((agent, held), (page, after, last)))
    }))
}

async fn next_page(held: Admitted, after: Option<&AgentId>, around: &Surroundings) -> VecDeque<AgentId> {
    for attempt in 1..=PAGE_ATTEMPTS {
        let asked = around.store.running(held.shard, after, PAGE);
        let page = Surroundings::timed(around.store_timeout, asked).await;
        around.note(StoreCall::Running, (held.shard, None), page.as_ref().map(drop));
        let why = match page {
            Ok(page) => return page.into(),
            Err(error) => error.to_string(),
        };
        let Admitted { shard, epoch } = held;
        tracing::warn!(%shard, %epoch, attempt, why, "cannot list the shard's running agents");
        tokio::time::sleep(PAGE_PAUSE * attempt).await;
    }
    VecDeque::new()
}
