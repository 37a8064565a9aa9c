//! Clients: the traits of [`crate::api`] over a [`Channel`]. They retry nothing (R13): each call ends as done, refused,
//! unreachable (nothing left this process) or unknown.

use crate::api::{ExecutorApi, InvokeApi, ManagerApi};
use crate::bounds::MAX_MESSAGE;
use crate::channel::{Channel, Sent, Tracked};
use crate::wire::agent_service_client::AgentServiceClient;
use crate::wire::executor_service_client::ExecutorServiceClient;
use crate::wire::manager_service_client::ManagerServiceClient;
use crate::{decode, encode, status, wire};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold_model::agents::{AgentPage, AgentQuery, DeletionAnswer};
use leasehold_model::message::{
    ClusterStatus, Deregistration, Inspection, Invocation, InvocationAnswer, Push, PushAnswer, Registration, Renewal,
    RoutingTable, ShardExplanation,
};
use leasehold_model::{AgentId, CallError, ExecutorName, Grant, InvalidValue, Refusal, ShardId};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Sends one request by `call` and waits for at most `within`.
async fn send<Q, A, F>(message: Q, within: Duration, call: impl FnOnce(Request<Q>) -> F) -> Result<A, CallError>
where
    Q: prost::Message,
    F: Future<Output = Result<Response<A>, Status>>,
{
    let size = message.encoded_len();
    if size > MAX_MESSAGE {
        let invalid = InvalidValue::new("message", format!("{size} bytes"), format!("at most {MAX_MESSAGE} bytes"));
        return Err(Refusal::InvalidField(invalid).into());
    }
    let sent = Sent::default();
    let mut request = Request::new(message);
    request.extensions_mut().insert(sent.clone());
    match tokio::time::timeout(within, call(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status::call_error(&status, sent.get())),
        Err(_) if sent.get() => Err(CallError::Unknown(format!("no answer within {within:?}"))),
        Err(_) => Err(CallError::Unreachable(format!("no connection within {within:?}"))),
    }
}

/// What was answered cannot be used: the call was handled, how is not known.
fn unusable(invalid: InvalidValue) -> CallError {
    CallError::Unknown(format!("the answer is not usable: {invalid}"))
}

/// A manager, over the network.
#[derive(Debug, Clone)]
pub struct ManagerClient {
    client: ManagerServiceClient<Tracked>,
    deadline: Duration,
}

impl ManagerClient {
    /// Calls the manager at the other end of `channel`.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self {
            client: ManagerServiceClient::new(channel.inner).max_decoding_message_size(MAX_MESSAGE),
            deadline: channel.deadline,
        }
    }

    /// The same client with another deadline for each call.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

#[async_trait]
impl ManagerApi for ManagerClient {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        let mut client = self.client.clone();
        let message = encode::registration(registration);
        let answer = send(message, self.deadline, move |request| async move { client.register(request).await }).await?;
        decode::grant(answer.grant).map_err(unusable)
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        let mut client = self.client.clone();
        let message = encode::renewal(&renewal);
        let answer =
            send(message, self.deadline, move |request| async move { client.renew_shard_lease(request).await }).await?;
        decode::grant(answer.grant).map_err(unusable)
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        let mut client = self.client.clone();
        let message = encode::deregistration(&deregistration);
        send(message, self.deadline, move |request| async move { client.deregister(request).await }).await.map(drop)
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        let mut client = self.client.clone();
        let message = wire::GetRoutingTableRequest {};
        let answer =
            send(message, self.deadline, move |request| async move { client.get_routing_table(request).await }).await?;
        decode::routing_table(answer.table).map(Arc::new).map_err(unusable)
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        let mut client = self.client.clone();
        let message = wire::WatchRoutingTableRequest {};
        let tables =
            send(message, self.deadline, move |request| async move { client.watch_routing_table(request).await })
                .await?;
        let decoded = tables.map(|item| match item {
            Ok(answer) => decode::routing_table(answer.table).map(Arc::new).map_err(unusable),
            Err(status) => Err(status::call_error(&status, true)),
        });
        Ok(decoded.boxed())
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        let mut client = self.client.clone();
        let message = wire::GetClusterStatusRequest {};
        let answer =
            send(message, self.deadline, move |request| async move { client.get_cluster_status(request).await })
                .await?;
        decode::status(answer).map_err(unusable)
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        let mut client = self.client.clone();
        let message = encode::shard(shard);
        let answer =
            send(message, self.deadline, move |request| async move { client.explain_shard(request).await }).await?;
        decode::explanation(answer).map_err(unusable)
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        let mut client = self.client.clone();
        let message = encode::draining(name, draining);
        send(message, self.deadline, move |request| async move { client.set_draining(request).await }).await.map(drop)
    }
}

/// An executor, over the network.
#[derive(Debug, Clone)]
pub struct ExecutorClient {
    client: ExecutorServiceClient<Tracked>,
    agents: AgentClient,
    deadline: Duration,
}

impl ExecutorClient {
    /// Calls the executor at the other end of `channel`.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        let client = ExecutorServiceClient::new(channel.inner.clone()).max_decoding_message_size(MAX_MESSAGE);
        Self { client, deadline: channel.deadline, agents: AgentClient::new(channel) }
    }

    /// The same client with another deadline for each call but `invoke`.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

#[async_trait]
impl ExecutorApi for ExecutorClient {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        let mut client = self.client.clone();
        let message = encode::push(&push);
        let answer =
            send(message, self.deadline, move |request| async move { client.assign_shards(request).await }).await?;
        decode::push_answer(&answer).map_err(unusable)
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        let mut client = self.client.clone();
        let message = wire::InspectRequest {};
        let answer = send(message, self.deadline, move |request| async move { client.inspect(request).await }).await?;
        decode::inspection(answer).map_err(unusable)
    }

    async fn list_agents(&self, query: AgentQuery) -> Result<AgentPage, CallError> {
        let mut client = self.client.clone();
        let message = encode::agent_query(query);
        let answer =
            send(message, self.deadline, move |request| async move { client.list_agents(request).await }).await?;
        decode::agent_page(answer).map_err(unusable)
    }
}

#[async_trait]
impl InvokeApi for ExecutorClient {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        self.agents.invoke(invocation, within).await
    }

    async fn delete(&self, agent: AgentId, within: Duration) -> Result<DeletionAnswer, CallError> {
        self.agents.delete(agent, within).await
    }
}

/// Whatever runs invocations, over the network: an executor or a gateway.
#[derive(Debug, Clone)]
pub struct AgentClient {
    client: AgentServiceClient<Tracked>,
}

impl AgentClient {
    /// Calls what is at the other end of `channel`.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self { client: AgentServiceClient::new(channel.inner).max_decoding_message_size(MAX_MESSAGE) }
    }
}

#[async_trait]
impl InvokeApi for AgentClient {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        let mut client = self.client.clone();
        let message = encode::invocation(invocation);
        let call = move |mut request: Request<_>| async move {
            // The server stops waiting when the caller does.
            request.set_timeout(within);
            client.invoke(request).await
        };
        decode::answer(send(message, within, call).await?).map_err(unusable)
    }

    async fn delete(&self, agent: AgentId, within: Duration) -> Result<DeletionAnswer, CallError> {
        let mut client = self.client.clone();
        let message = encode::deletion(agent);
        let call = move |mut request: Request<_>| async move {
            request.set_timeout(within);
            client.delete(request).await
        };
        decode::deletion_answer(send(message, within, call).await?).map_err(unusable)
    }
}
