//! The router's copy of the routing table, and the two tasks that keep it fresh.
//!
//! The *refresher* asks for the table when somebody wants it: one request at a time however many calls ask, and no more often
//! than its pace allows. The *follower* watches for changes and comes back with back-off when the watch ends. Both hand what
//! they hear to [`Tables::accept`]. While no manager answers the last table stays: it is advisory anyway.

use super::RouterSettings;
use super::metrics::RouterMetrics;
use super::policy::back_off;
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold_model::message::{Owner, RoutingTable};
use leasehold_model::routing::shard_of;
use leasehold_model::{AgentId, CallError, ExecutorId, ShardCount, ShardEpoch, ShardId};
use leasehold_rpc::api::ManagerApi;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

/// Where an agent's calls go, by one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The agent's shard.
    pub shard: ShardId,
    /// The owner that may admit work, and its epoch; `None` while there is none.
    pub owner: Option<(Owner, ShardEpoch)>,
}

impl Located {
    /// Finds `agent` in `table`; `None` if the table has no shard at all.
    #[must_use]
    pub fn within(table: &RoutingTable, agent: &AgentId) -> Option<Self> {
        let count = u32::try_from(table.routes.len()).ok().and_then(|count| ShardCount::new(count).ok())?;
        let shard = shard_of(agent, count);
        Some(Self { shard, owner: table.owner(shard).map(|(owner, epoch)| (owner.clone(), epoch)) })
    }

    /// The owner's life and epoch: what changes when the shard changes hands.
    pub(super) fn hold(&self) -> Option<Hold> {
        self.owner.as_ref().map(|(owner, epoch)| (owner.executor, *epoch))
    }
}

pub(super) type Hold = (ExecutorId, ShardEpoch);

/// Whether `heard` replaces `known`. Revisions are comparable only within one manager process; another process replaces
/// what its predecessor said.
#[must_use]
pub fn is_news(known: Option<&RoutingTable>, heard: &RoutingTable) -> bool {
    known.is_none_or(|known| known.manager != heard.manager || known.revision < heard.revision)
}

/// The table in use; the tasks behind it end with it.
pub(super) struct Tables {
    table: watch::Sender<Option<Arc<RoutingTable>>>,
    wanted: Notify,
    metrics: Arc<RouterMetrics>,
}

impl Tables {
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<RoutingTable>>> {
        self.table.subscribe()
    }

    pub(super) fn locate(&self, agent: &AgentId) -> Option<Located> {
        self.table.borrow().as_ref().and_then(|table| Located::within(table, agent))
    }

    /// Asks for a refresh that begins after now, and does not wait for it.
    pub(super) fn refresh(&self) {
        self.wanted.notify_one();
    }

    /// Waits until the table names an owner of `agent` that `accepts` likes.
    pub(super) async fn owner(&self, agent: &AgentId, accepts: impl Fn(Hold) -> bool) {
        let mut table = self.subscribe();
        let named = table.wait_for(|table| {
            let located = table.as_ref().and_then(|table| Located::within(table, agent));
            located.and_then(|located| located.hold()).is_some_and(&accepts)
        });
        if named.await.is_err() {
            // The sender lives in `self`, so this cannot be; waiting for ever is what "no such owner" means.
            std::future::pending::<()>().await;
        }
    }

    fn accept(&self, heard: Arc<RoutingTable>) {
        let news = self.table.send_if_modified(|known| {
            let news = is_news(known.as_deref(), &heard);
            if news {
                *known = Some(Arc::clone(&heard));
            }
            news
        });
        if news {
            self.metrics.table(heard.revision.0);
            debug!(manager = %heard.manager, revision = heard.revision.0, "routing table changed");
        }
    }
}

/// Ends both tasks when the router goes.
pub(super) struct Tasks([JoinHandle<()>; 2]);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// Starts both tasks on the present tokio runtime.
pub(super) fn start(
    managers: Vec<Arc<dyn ManagerApi>>,
    settings: &RouterSettings,
    metrics: Arc<RouterMetrics>,
) -> (Arc<Tables>, Tasks) {
    let tables = Arc::new(Tables { table: watch::Sender::new(None), wanted: Notify::new(), metrics });
    let managers: Arc<[Arc<dyn ManagerApi>]> = managers.into();
    let refresher =
        Refresher { tables: Arc::clone(&tables), managers: Arc::clone(&managers), settings: settings.clone() };
    let follower = Follower { tables: Arc::clone(&tables), managers, settings: settings.clone() };
    (tables, Tasks([tokio::spawn(refresher.run()), tokio::spawn(follower.run())]))
}

struct Refresher {
    tables: Arc<Tables>,
    managers: Arc<[Arc<dyn ManagerApi>]>,
    settings: RouterSettings,
}

impl Refresher {
    async fn run(self) {
        let mut preferred = 0;
        let mut away = false;
        loop {
            self.tables.wanted.notified().await;
            let begun = Instant::now();
            let heard = self.ask(&mut preferred).await;
            self.tables.metrics.refreshed(heard.is_ok());
            match heard {
                Ok(table) => {
                    if away {
                        info!(manager = %table.manager, revision = table.revision.0, "a manager answers again");
                    }
                    away = false;
                    self.tables.accept(table);
                }
                Err(error) => {
                    if !away {
                        warn!(%error, "no manager answers; the last routing table stays in use");
                    }
                    away = true;
                }
            }
            sleep_until(begun + self.settings.refresh_pace).await;
        }
    }

    /// Asks the managers in turn, first the one that answered last.
    async fn ask(&self, preferred: &mut usize) -> Result<Arc<RoutingTable>, CallError> {
        let mut last = CallError::Unreachable("no manager is configured".into());
        for offset in 0..self.managers.len() {
            let at = (*preferred + offset) % self.managers.len();
            match timeout(self.settings.refresh_timeout, self.managers[at].routing_table()).await {
                Ok(Ok(table)) => {
                    *preferred = at;
                    return Ok(table);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = CallError::Unknown("the manager did not answer in time".into()),
            }
        }
        Err(last)
    }
}

type Watched = BoxStream<'static, Result<Arc<RoutingTable>, CallError>>;

struct Follower {
    tables: Arc<Tables>,
    managers: Arc<[Arc<dyn ManagerApi>]>,
    settings: RouterSettings,
}

impl Follower {
    async fn run(self) {
        let mut failures = 0_u32;
        for at in (0..self.managers.len()).cycle() {
            match timeout(self.settings.refresh_timeout, self.managers[at].watch_routing_table()).await {
                Ok(Ok(stream)) => {
                    self.tables.metrics.watch("begun");
                    if self.follow(stream).await {
                        failures = 0;
                    }
                    self.tables.metrics.watch("ended");
                }
                Ok(Err(_)) | Err(_) => self.tables.metrics.watch("failed"),
            }
            sleep(back_off(failures, self.settings.watch_first, self.settings.watch_most, rand::random())).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Follows one watch to its end; true if it brought anything. Also ends it when a refresh heard of another manager
    /// process: this one's leadership is over, whether or not it knows.
    async fn follow(&self, mut stream: Watched) -> bool {
        let mut used = self.tables.subscribe();
        let mut mine = None;
        loop {
            tokio::select! {
                item = stream.next() => match item {
                    Some(Ok(table)) => {
                        mine = Some(table.manager);
                        self.tables.accept(table);
                    }
                    Some(Err(_)) | None => return mine.is_some(),
                },
                changed = used.changed() => {
                    let current = used.borrow_and_update().as_ref().map(|table| table.manager);
                    if changed.is_err() || (mine.is_some() && current != mine) {
                        return mine.is_some();
                    }
                }
            }
        }
    }
}
