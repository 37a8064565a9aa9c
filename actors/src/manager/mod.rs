//! The manager's actors, and how they stand together.
//!
//! `Leader` decides (by `leasehold_model::leader`), `Persistence` writes, one `ExecutorSession` per executor
//! pushes. [`start`] takes over a store and starts all of them on the current `LocalSet`; [`ManagerHandle`] is
//! what the network side talks to. Where managers are several, [`Election`] does that each time that its process is elected, and
//! [`ManagerFront`] is what the network side talks to.

mod election;
mod election_metrics;
mod executor_session;
mod front;
mod gate;
mod handle;
mod leader;
mod metrics;
mod persistence;
mod stage;

pub use election::{Election, ElectionEnd, ElectionParts, NewElection, StopElection, elect_on_own_thread};
pub use election_metrics::ElectionMetrics;
pub use executor_session::ExecutorSession;
pub use front::{Leadership, ManagerFront, Standing};
pub use gate::Gate;
pub use handle::{ExecutorLinks, ManagerHandle};
pub use leader::{Leader, LeadershipEnd, Stop};
pub use metrics::ManagerMetrics;
pub use persistence::Persistence;
pub use stage::Stage;

use crate::clock::SharedClock;
use actix::{Actor, Addr, Context};
use leasehold_model::leader as core;
use leasehold_model::{ClusterName, ManagerId, ShardCount};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::Error as StoreError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What an operator can set of a manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The cluster served.
    pub cluster: ClusterName,
    /// How many shards; must be what the store has, if it has any.
    pub shard_count: ShardCount,
    /// The leader's own.
    pub leader: core::Settings,
    /// The deadline of a push's attempt.
    pub push_deadline: Duration,
    /// The most a store may take for one write or one confirmation, retries and look-ups included, before the leadership ends.
    pub store_patience: Duration,
}

/// Mailbox of the `Leader`. Renewals share it with what is bounded elsewhere (`handle::MAX_REGISTRATIONS`), so it never fills with anything else.
pub const LEADER_MAILBOX: usize = 65_536;

/// Everything of one leadership that others may use.
pub struct Running {
    /// The network side's way in.
    pub handle: ManagerHandle,
    /// Becomes `Some` when the leadership has ended, with the reason.
    pub ended: watch::Receiver<Option<LeadershipEnd>>,
}

/// What surrounds the actors.
#[derive(Clone)]
pub struct Surroundings {
    /// How executors are reached.
    pub links: Arc<dyn ExecutorLinks>,
    /// The granter's clock.
    pub clock: SharedClock,
    /// Counters.
    pub metrics: ManagerMetrics,
}

/// Reads the state, takes over (R39) and starts the actors on the current `LocalSet`.
///
/// # Errors
/// What the store said: it belongs to somebody else, is corrupt, or was written with another shard count.
pub async fn start(
    settings: Settings,
    store: Arc<dyn ClusterStore>,
    with: Surroundings,
) -> Result<Running, StoreError> {
    let state = Arc::new(store.load(&settings.cluster, settings.shard_count).await?);
    let manager = ManagerId(uuid::Uuid::new_v4());
    tracing::info!(
        manager = %manager,
        cluster = %state.cluster,
        shard_count = state.shard_count.get(),
        revision = state.revision.0,
        executors = state.executors().len(),
        "took over the store"
    );
    let persistence = Persistence::new(store, Arc::clone(&state), settings.store_patience, with.metrics.clone());
    let persistence = roomy(LEADER_MAILBOX, persistence);
    let (actor, published, ended) = Leader::new(settings, manager, state, persistence, with);
    let handle = ManagerHandle::new(roomy(LEADER_MAILBOX, actor), published);
    Ok(Running { handle, ended })
}

/// Starts an actor whose mailbox has `capacity` from its first message on; set in `started` it would come too late.
fn roomy<A: Actor<Context = Context<A>>>(capacity: usize, actor: A) -> Addr<A> {
    A::create(|ctx| {
        ctx.set_mailbox_capacity(capacity);
        actor
    })
}
