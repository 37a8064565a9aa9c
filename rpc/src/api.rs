//! The services as traits over plain values. A client implements the trait by calling over the network; a server
//! is given something that implements it. So an actor's neighbour in a test is a struct with a few methods.

use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_model::agents::{AgentPage, AgentQuery, DeletionAnswer};
use leasehold_model::message::{
    ClusterStatus, Deregistration, Inspection, Invocation, InvocationAnswer, Push, PushAnswer, Registration, Renewal,
    RoutingTable, ShardExplanation,
};
use leasehold_model::{AgentId, CallError, ExecutorName, Grant, Refusal, ShardId};
use std::sync::Arc;
use std::time::Duration;

/// The manager, as executors, routers and operators see it.
#[async_trait]
pub trait ManagerApi: Send + Sync + 'static {
    /// `Register`: committed before it is answered, idempotent by executor id (R34).
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome.
    async fn register(&self, registration: Registration) -> Result<Grant, CallError>;

    /// `RenewShardLease`.
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome.
    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError>;

    /// `Deregister`.
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome.
    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError>;

    /// `GetRoutingTable`: the committed owners.
    ///
    /// # Errors
    /// A refusal with its reason.
    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError>;

    /// `WatchRoutingTable`: the table now, then again after each change (newest wins: one may be skipped). Ends when the leadership ends.
    ///
    /// # Errors
    /// A refusal with its reason.
    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError>;

    /// `GetClusterStatus`.
    ///
    /// # Errors
    /// A refusal with its reason.
    async fn status(&self) -> Result<ClusterStatus, CallError>;

    /// `ExplainShard`.
    ///
    /// # Errors
    /// A refusal with its reason.
    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError>;

    /// `SetDraining`: asks an executor (by name) to leave, or to stay after all.
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome.
    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError>;
}

/// An executor, as its manager sees it.
#[async_trait]
pub trait ExecutorApi: Send + Sync + 'static {
    /// `AssignShards`.
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome.
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError>;

    /// `Inspect`: what this process holds. Never refused.
    ///
    /// # Errors
    /// Only if the call did not get through.
    async fn inspect(&self) -> Result<Inspection, CallError>;

    /// `ListAgents`: the agents of a shard that this process holds, page by page.
    ///
    /// # Errors
    /// A refusal with its reason; unless it is implemented, `UNKNOWN_METHOD`.
    async fn list_agents(&self, _: AgentQuery) -> Result<AgentPage, CallError> {
        Err(Refusal::UnknownMethod { what: "listing agents".to_owned() }.into())
    }
}

/// Something that runs invocations: an executor, or a gateway in front of all of them.
#[async_trait]
pub trait InvokeApi: Send + Sync + 'static {
    /// `Invoke`, answered within `within`.
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome.
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError>;

    /// `Delete`, answered within `within`. An agent that is not there is as good as deleted, so repeating it is harmless
    /// until somebody calls the agent again, which begins a new one.
    ///
    /// # Errors
    /// A refusal with its reason, or an unknown outcome; unless it is implemented, `UNKNOWN_METHOD`.
    async fn delete(&self, _: AgentId, _: Duration) -> Result<DeletionAnswer, CallError> {
        Err(Refusal::UnknownMethod { what: "deleting agents".to_owned() }.into())
    }
}
