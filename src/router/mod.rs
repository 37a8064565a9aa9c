//! The router: from an agent to the executor that owns its shard, riding out moves within the caller's deadline.
//!
//! ```text
//! call ─▶ table: agent ─▶ shard ─▶ owner ─▶ attempt ─▶ answer
//!           ▲                                  │ refusal, connection error, time-out
//!           └── refreshed ◀── policy::decide ◀─┘ (with the same idempotency key)
//! ```
//!
//! The table is advisory, the executor decides admission; so a stale table costs time and never correctness. Every call carries
//! an idempotency key (the caller's, or one made here), which is what makes it safe to repeat a call that may have run.

mod call;
mod connections;
mod error;
mod metrics;
pub mod policy;
mod request;
mod table;
#[cfg(test)]
mod tests;

pub use call::Doubt;
pub use connections::ExecutorDialer;
pub use error::{Attempts, MAX_OWNERS_LISTED, RouterError, Tried};
pub use metrics::RouterMetrics;
pub(crate) use request::{Request, deleted};
pub use table::{Heard, Located, judge};

use async_trait::async_trait;
use call::Call;
use connections::Connections;
use leasehold_model::agents::DeletionAnswer;
use leasehold_model::message::{Invocation, InvocationAnswer, RoutingTable};
use leasehold_model::refusal::Class;
use leasehold_model::{AgentId, CallError, Refusal};
use leasehold_rpc::api::InvokeApi;
use leasehold_rpc::managers::Managers;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// The router's bounds. All have defaults that suit every lease profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterSettings {
    /// The most one attempt may take (2 s), and never more than a third of the time left; doubled each time that one owner
    /// times out in a row, so that slow methods come to their end.
    pub attempt_timeout: Duration,
    /// The first back-off between attempts (10 ms). It doubles each time.
    pub back_off_first: Duration,
    /// The longest back-off between attempts (500 ms).
    pub back_off_most: Duration,
    /// How long one manager may take to answer a refresh (2 s); several are asked in turn.
    pub refresh_timeout: Duration,
    /// The least time between two refreshes (10 ms), whatever the number of waiting calls.
    pub refresh_pace: Duration,
    /// The first back-off before a watch is begun again (100 ms). It doubles each time.
    pub watch_first: Duration,
    /// The longest back-off before a watch is begun again (5 s).
    pub watch_most: Duration,
    /// How long the table in use is kept against an older one of another manager process (5 s): longer than a leader that was
    /// replaced may believe that it leads.
    pub doubt: Duration,
    /// The most calls under way (4,096); further ones are refused as `OVERLOADED`.
    pub calls_most: usize,
    /// The most executors to which connections are kept (1,024).
    pub connections_most: usize,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            attempt_timeout: Duration::from_secs(2),
            back_off_first: Duration::from_millis(10),
            back_off_most: Duration::from_millis(500),
            refresh_timeout: Duration::from_secs(2),
            refresh_pace: Duration::from_millis(10),
            watch_first: Duration::from_millis(100),
            watch_most: Duration::from_secs(5),
            doubt: Duration::from_secs(5),
            calls_most: 4096,
            connections_most: 1024,
        }
    }
}

/// The longest time that a call may be given; longer ones are cut to it.
pub const WITHIN_MOST: Duration = Duration::from_secs(60 * 60);

struct Shared {
    settings: RouterSettings,
    tables: Arc<table::Tables>,
    connections: Connections,
    metrics: Arc<RouterMetrics>,
    admitted: Semaphore,
    _tasks: table::Tasks,
}

/// Routes calls to the owners of their agents' shards. Clones share everything; the last one ends the background tasks.
#[derive(Clone)]
pub struct Router(Arc<Shared>);

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Router {
    /// A router that learns from `managers` (whichever of them leads) and calls executors over `dialer`.
    /// It begins to fetch the table at once, on the tokio runtime it is made on.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(managers: Managers, dialer: Arc<dyn ExecutorDialer>, settings: RouterSettings) -> Self {
        let metrics = Arc::new(RouterMetrics::default());
        let (tables, tasks) = table::start(managers, &settings, Arc::clone(&metrics));
        tables.refresh();
        let connections = Connections::new(dialer, settings.connections_most);
        let admitted = Semaphore::new(settings.calls_most.clamp(1, Semaphore::MAX_PERMITS));
        Self(Arc::new(Shared { settings, tables, connections, metrics, admitted, _tasks: tasks }))
    }

    /// Where calls of `agent` go by the table in use; `None` while no table was ever heard.
    #[must_use]
    pub fn route(&self, agent: &AgentId) -> Option<Located> {
        self.0.tables.locate(agent)
    }

    /// The table in use, now and after each change; `None` until the first is heard.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<RoutingTable>>> {
        self.0.tables.subscribe()
    }

    /// What this router counted.
    #[must_use]
    pub fn metrics(&self) -> &RouterMetrics {
        &self.0.metrics
    }

    /// Runs `invocation` on its agent, wherever that lives and however often the shard moves meanwhile, within `within` (at most
    /// [`WITHIN_MOST`]). It is run at most once: a call without an idempotency key is given one.
    ///
    /// # Errors
    /// [`RouterError::Refused`] as soon as an executor refuses for good, [`RouterError::DeadlineExceeded`] when the time is up;
    /// both say who was tried, how often, and what each answered.
    pub async fn call(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, RouterError> {
        self.call_in_doubt(invocation, within, &Doubt::default()).await
    }

    /// As [`Router::call`], for a caller that may stop waiting: `doubt` then says whether the call may have run.
    ///
    /// # Errors
    /// As [`Router::call`].
    pub async fn call_in_doubt(
        &self,
        invocation: Invocation,
        within: Duration,
        doubt: &Doubt,
    ) -> Result<InvocationAnswer, RouterError> {
        self.send(Request::invoke(invocation), within, doubt).await
    }

    /// Deletes `agent`, wherever it lives. What is not there is as good as deleted, so the deletion may be repeated, here and by the
    /// caller; but one that is repeated after somebody has called the agent again deletes what was begun since.
    ///
    /// # Errors
    /// As [`Router::call`].
    pub async fn delete(&self, agent: AgentId, within: Duration) -> Result<DeletionAnswer, RouterError> {
        self.send(Request::Delete(agent), within, &Doubt::default()).await.map(deleted)
    }

    pub(crate) async fn send(
        &self,
        request: Request,
        within: Duration,
        doubt: &Doubt,
    ) -> Result<InvocationAnswer, RouterError> {
        let began = Instant::now();
        let ended = match self.0.admitted.try_acquire() {
            Ok(_admitted) => Call::new(&self.0, request, within.min(WITHIN_MOST), doubt).run().await,
            Err(_) => Err(self.overloaded()),
        };
        self.0.metrics.ended(ended_as(&ended), began.elapsed().as_secs_f64());
        ended
    }

    fn overloaded(&self) -> RouterError {
        let limit = u64::try_from(self.0.settings.calls_most).unwrap_or(u64::MAX);
        let refusal = Refusal::Overloaded { resource: "calls under way in the router".into(), used: limit, limit };
        RouterError::Refused { refusal, attempts: Attempts::default() }
    }
}

fn ended_as(ended: &Result<InvocationAnswer, RouterError>) -> &'static str {
    match ended {
        Ok(answer) if answer.replayed => "replayed",
        Ok(_) => "answered",
        Err(RouterError::DeadlineExceeded { .. }) => "deadline",
        Err(RouterError::Refused { refusal, .. }) => match refusal.class() {
            Class::Rejected => "rejected",
            Class::Retry | Class::Fatal => "refused",
        },
    }
}

/// A router stands in for all executors: that is what a gateway serves.
#[async_trait]
impl InvokeApi for Router {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        self.call(invocation, within).await.map_err(CallError::from)
    }

    async fn delete(&self, agent: AgentId, within: Duration) -> Result<DeletionAnswer, CallError> {
        Router::delete(self, agent, within).await.map_err(CallError::from)
    }
}
