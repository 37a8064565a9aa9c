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
use leasehold_model::message::{Owner, Route, RoutingTable};
use leasehold_model::routing::shard_of;
use leasehold_model::{AgentId, CallError, ExecutorId, ShardCount, ShardEpoch, ShardId};
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::managers::Managers;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
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

/// What a table that was heard is to the one in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It replaces the one in use.
    News,
    /// The manager process in use said nothing new.
    Nothing,
    /// Another manager process says what was so before.
    Older,
}

/// Judges `heard`. Within one manager process the revision decides. Another process's table replaces the one in use, unless it
/// is of an earlier revision and gives no shard a later epoch: then either a leader that was replaced goes on answering, or
/// the store was restored. Only time tells which; until then the one in use is the better guess.
#[must_use]
pub fn judge(known: Option<&RoutingTable>, heard: &RoutingTable) -> Heard {
    let Some(known) = known else { return Heard::News };
    if known.manager == heard.manager {
        return if known.revision < heard.revision { Heard::News } else { Heard::Nothing };
    }
    let comparable = known.routes.len() == heard.routes.len() && heard.revision < known.revision;
    let later =
        |(known, heard): (&Route, &Route)| epoch(known).zip(epoch(heard)).is_some_and(|(known, heard)| known < heard);
    if comparable && !known.routes.iter().zip(&heard.routes).any(later) { Heard::Older } else { Heard::News }
}

const fn epoch(route: &Route) -> Option<ShardEpoch> {
    match route {
        Route::Owned(_, epoch) => Some(*epoch),
        Route::Unassigned | Route::Releasing(_) => None,
    }
}

/// The table in use; the tasks behind it end with it.
pub(super) struct Tables {
    table: watch::Sender<Option<Arc<RoutingTable>>>,
    wanted: Notify,
    metrics: Arc<RouterMetrics>,
    doubt: Duration,
    /// Since when only older tables were heard.
    doubted: Mutex<Option<Instant>>,
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

    /// Takes a table that was heard. An older one of another manager process is used once nothing else was heard for the time of
    /// doubt: so two managers that both answer cannot make the table flap, and a restored store is not held against anybody for long.
    fn accept(&self, heard: Arc<RoutingTable>) -> Heard {
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut judgement = Heard::Nothing;
        self.table.send_if_modified(|known| {
            judgement = judge(known.as_deref(), &heard);
            if judgement == Heard::Older {
                let since = *doubted.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.doubt {
                    judgement = Heard::News;
                }
            }
            if judgement == Heard::News {
                *known = Some(Arc::clone(&heard));
            }
            judgement == Heard::News
        });
        match judgement {
            Heard::News => {
                *doubted = None;
                self.metrics.table(heard.revision.0);
                debug!(manager = %heard.manager, revision = heard.revision.0, "routing table changed");
            }
            Heard::Nothing => *doubted = None,
            Heard::Older => {
                info!(manager = %heard.manager, revision = heard.revision.0, "an older routing table is not used yet");
            }
        }
        judgement
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
    managers: Managers,
    settings: &RouterSettings,
    metrics: Arc<RouterMetrics>,
) -> (Arc<Tables>, Tasks) {
    let (table, wanted, doubted) = (watch::Sender::new(None), Notify::new(), Mutex::default());
    let tables = Arc::new(Tables { table, wanted, metrics, doubt: settings.doubt, doubted });
    let each = u32::try_from(managers.count()).unwrap_or(u32::MAX);
    // One for both: who leads is learned once.
    let managers = Arc::new(managers.deadline(settings.refresh_timeout.saturating_mul(each)));
    let refresher =
        Refresher { tables: Arc::clone(&tables), managers: Arc::clone(&managers), settings: settings.clone() };
    let follower = Follower { tables: Arc::clone(&tables), managers, settings: settings.clone() };
    (tables, Tasks([tokio::spawn(refresher.run()), tokio::spawn(follower.run())]))
}

struct Refresher {
    tables: Arc<Tables>,
    managers: Arc<Managers>,
    settings: RouterSettings,
}

impl Refresher {
    async fn run(self) {
        let mut away = false;
        loop {
            self.tables.wanted.notified().await;
            let begun = Instant::now();
            match self.managers.routing_table().await {
                Ok(table) => {
                    if away {
                        info!(manager = %table.manager, revision = table.revision.0, "a manager answers again");
                    }
                    away = false;
                    let older = self.tables.accept(table) == Heard::Older;
                    if older {
                        self.managers.pass_over();
                    }
                    self.tables.metrics.refreshed(if older { "older" } else { "answered" });
                }
                Err(error) => {
                    if !away {
                        warn!(%error, "no manager answers; the last routing table stays in use");
                    }
                    away = true;
                    self.tables.metrics.refreshed("no_manager");
                }
            }
            sleep_until(begun + self.settings.refresh_pace).await;
        }
    }
}

type Watched = BoxStream<'static, Result<Arc<RoutingTable>, CallError>>;

struct Follower {
    tables: Arc<Tables>,
    managers: Arc<Managers>,
    settings: RouterSettings,
}

impl Follower {
    async fn run(self) {
        let mut failures = 0_u32;
        loop {
            match self.managers.watch_routing_table().await {
                Ok(stream) => {
                    self.tables.metrics.watch("begun");
                    if self.follow(stream).await {
                        failures = 0;
                    }
                    self.tables.metrics.watch("ended");
                }
                Err(_) => self.tables.metrics.watch("failed"),
            }
            sleep(back_off(failures, self.settings.watch_first, self.settings.watch_most, rand::random())).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Follows one watch to its end; true if it brought anything of use. Also ends it when a refresh heard of another manager
    /// process, and when it brings what is older than the table in use: that manager's leadership is over, whether or not it knows.
    async fn follow(&self, mut stream: Watched) -> bool {
        let mut used = self.tables.subscribe();
        let mut mine = None;
        loop {
            tokio::select! {
                item = stream.next() => match item {
                    Some(Ok(table)) => {
                        let manager = table.manager;
                        if self.tables.accept(table) == Heard::Older {
                            self.managers.pass_over();
                            return false;
                        }
                        mine = Some(manager);
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
