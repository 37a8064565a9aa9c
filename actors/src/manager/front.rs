//! What the network side talks to where managers are several: the leader's handle while this process leads, otherwise `NOT_LEADER`
//! with the leader's address.

use super::gate::Gate;
use super::handle::ManagerHandle;
use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_model::message::{ClusterStatus, Deregistration, Registration, Renewal, RoutingTable, ShardExplanation};
use leasehold_model::{Address, CallError, ExecutorName, Grant, Refusal, ShardId};
use leasehold_rpc::api::ManagerApi;
use std::sync::Arc;
use tokio::sync::watch;

/// A leadership of this process.
#[derive(Clone)]
pub struct Leadership {
    /// The way to its actors.
    pub handle: ManagerHandle,
    /// How long it lasts.
    pub gate: Gate,
}

/// What this process is at the moment.
#[derive(Clone)]
pub enum Standing {
    /// It leads.
    Leading(Arc<Leadership>),
    /// It does not; this is who does, if that is known.
    Standby(Option<Address>),
}

impl Standing {
    /// The leadership, while it lasts.
    #[must_use]
    pub fn leadership(&self) -> Option<&Arc<Leadership>> {
        match self {
            Self::Leading(leadership) if leadership.gate.is_open() => Some(leadership),
            Self::Leading(_) | Self::Standby(_) => None,
        }
    }

    /// Where else the leader is.
    #[must_use]
    pub const fn leader(&self) -> Option<&Address> {
        match self {
            Self::Standby(leader) => leader.as_ref(),
            Self::Leading(_) => None,
        }
    }
}

/// The switch; see the module. Cheap to clone.
#[derive(Clone)]
pub struct ManagerFront(watch::Receiver<Standing>);

impl ManagerFront {
    /// Follows `standing`.
    #[must_use]
    pub const fn new(standing: watch::Receiver<Standing>) -> Self {
        Self(standing)
    }

    fn leadership(&self) -> Result<Arc<Leadership>, CallError> {
        let standing = self.0.borrow();
        let not_leader = || Refusal::NotLeader { leader: standing.leader().cloned() }.into();
        standing.leadership().cloned().ok_or_else(not_leader)
    }
}

impl Leadership {
    /// A grant leaves only while the leadership lasts, however long it took to come about.
    fn still(&self, answer: Result<Grant, CallError>) -> Result<Grant, CallError> {
        match answer {
            Ok(_) if !self.gate.is_open() => {
                Err(CallError::Unknown("the leadership ended before it answered".to_owned()))
            }
            answer => answer,
        }
    }
}

#[async_trait]
impl ManagerApi for ManagerFront {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        let leadership = self.leadership()?;
        leadership.still(leadership.handle.register(registration).await)
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        let leadership = self.leadership()?;
        leadership.still(leadership.handle.renew(renewal).await)
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        self.leadership()?.handle.deregister(deregistration).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.leadership()?.handle.routing_table().await
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        self.leadership()?.handle.watch_routing_table().await
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.leadership()?.handle.status().await
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        self.leadership()?.handle.explain(shard).await
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        self.leadership()?.handle.set_draining(name, draining).await
    }
}
