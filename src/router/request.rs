//! What is routed: both kinds go the same way and are repeated alike.

use leasehold_model::agents::DeletionAnswer;
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{AgentId, CallError};
use leasehold_rpc::api::InvokeApi;
use std::time::Duration;
use uuid::Uuid;

/// Something asked of an agent that may safely be asked twice.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// To run a method. Carries an idempotency key.
    Invoke(Invocation),
    /// To be deleted: what is not there is as good as deleted.
    Delete(AgentId),
}

impl Request {
    /// Gives the invocation a key if it has none: without one a repetition would not be safe.
    pub(crate) fn invoke(mut invocation: Invocation) -> Self {
        invocation.idempotency_key.get_or_insert_with(|| Uuid::new_v4().to_string());
        Self::Invoke(invocation)
    }

    pub(crate) const fn agent(&self) -> &AgentId {
        match self {
            Self::Invoke(invocation) => &invocation.agent,
            Self::Delete(agent) => agent,
        }
    }

    /// Asks `api`. A deletion's answer has no payload.
    pub(crate) async fn send(self, api: &dyn InvokeApi, within: Duration) -> Result<InvocationAnswer, CallError> {
        match self {
            Self::Invoke(invocation) => api.invoke(invocation, within).await,
            Self::Delete(agent) => api.delete(agent, within).await.map(|DeletionAnswer { shard, epoch, executor }| {
                InvocationAnswer { payload: Vec::new(), shard, epoch, executor, replayed: false }
            }),
        }
    }
}

/// The answer to a deletion, as [`Request::send`] gave it.
pub(crate) fn deleted(answer: InvocationAnswer) -> DeletionAnswer {
    let InvocationAnswer { shard, epoch, executor, .. } = answer;
    DeletionAnswer { shard, epoch, executor }
}
