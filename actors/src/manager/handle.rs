//! The network side's way to the `Leader`: bounds what may wait, asks, and answers.

use super::leader::{Abandon, AreYouThere, AskStatus, Deregister, Explain, Leader, Register, Renew, SetDraining, Stop};
use actix::prelude::*;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold_model::leader::Published;
use leasehold_model::message::{ClusterStatus, Deregistration, Registration, Renewal, RoutingTable, ShardExplanation};
use leasehold_model::{Address, CallError, ExecutorName, Grant, Refusal, ShardId};
use leasehold_rpc::api::{ExecutorApi, ManagerApi};
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};
use tokio_stream::wrappers::WatchStream;

/// How executors are reached.
pub trait ExecutorLinks: Send + Sync + 'static {
    /// A link to the process at `address`; connects when it is first used.
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi>;
}

/// The most registrations, departures and operators' calls that may wait at a time; renewals have the rest of the mailbox to themselves (R45).
pub const MAX_REGISTRATIONS: usize = 4096;

/// Talks to the `Leader`. Cheap to clone; works from any thread.
#[derive(Clone)]
pub struct ManagerHandle {
    leader: Addr<Leader>,
    published: watch::Receiver<Arc<Published>>,
    registrations: Arc<Semaphore>,
}

impl ManagerHandle {
    pub(super) fn new(leader: Addr<Leader>, published: watch::Receiver<Arc<Published>>) -> Self {
        Self { leader, published, registrations: Arc::new(Semaphore::new(MAX_REGISTRATIONS)) }
    }

    /// The last committed state, as published.
    #[must_use]
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published.borrow())
    }

    /// Waits until the leader has answered, behind what waits for it already, or is over.
    pub(super) async fn is_there(&self) {
        // An error means that it has stopped, which its end tells.
        let _ = self.leader.send(AreYouThere).await;
    }

    /// Ends the leadership once no write is in flight.
    pub async fn stop(&self) {
        // An error means that it has stopped already.
        let _ = self.leader.send(Stop).await;
    }

    /// Ends the leadership at once; a write in flight has an outcome that nobody here will know.
    pub fn abandon(&self, why: String) {
        // Dropped silently only when the leader is gone, which is what is asked for.
        self.leader.do_send(Abandon(why));
    }

    fn room(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.registrations.try_acquire().map_err(|_| Refusal::Overloaded {
            resource: "registrations waiting".to_owned(),
            used: MAX_REGISTRATIONS as u64,
            limit: MAX_REGISTRATIONS as u64,
        })
    }

    /// Sends what carries its own way of answering, and waits for the answer.
    async fn ask<M, T>(&self, message: impl FnOnce(oneshot::Sender<Result<T, CallError>>) -> M) -> Result<T, CallError>
    where
        M: Message<Result = ()> + Send + 'static,
        Leader: Handler<M>,
    {
        let (reply, answer) = oneshot::channel();
        self.leader.try_send(message(reply)).map_err(|error| match error {
            SendError::Full(_) => Refusal::Overloaded {
                resource: "the leader's mailbox".to_owned(),
                used: super::LEADER_MAILBOX as u64,
                limit: super::LEADER_MAILBOX as u64,
            },
            SendError::Closed(_) => Refusal::NotLeader { leader: None },
        })?;
        let ended = |_| Err(CallError::Unknown("the leadership ended before it answered".to_owned()));
        answer.await.unwrap_or_else(ended)
    }
}

fn closed(_: MailboxError) -> CallError {
    Refusal::NotLeader { leader: None }.into()
}

#[async_trait]
impl ManagerApi for ManagerHandle {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        let _room = self.room()?;
        self.ask(|reply| Register(registration, reply)).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        self.ask(|reply| Renew(renewal, reply)).await
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        let _room = self.room()?;
        self.ask(|reply| Deregister(deregistration, reply)).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        Ok(self.published.borrow().table())
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        Ok(WatchStream::new(self.published.clone()).map(|published| Ok(published.table())).boxed())
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        let _room = self.room()?;
        self.leader.send(AskStatus).await.map_err(closed)
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        let _room = self.room()?;
        Ok(self.leader.send(Explain(shard)).await.map_err(closed)??)
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        let _room = self.room()?;
        self.ask(|reply| SetDraining { name, draining, reply }).await
    }
}
