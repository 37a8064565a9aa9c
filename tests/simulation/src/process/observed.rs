//! The parties' interfaces with somebody listening in.

use crate::clock::{self, MachineClock};
use crate::world::{Event, World};
use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_actors::manager::ExecutorLinks;
use leasehold_model::message::{
    ClusterStatus, Deregistration, Inspection, Invocation, InvocationAnswer, Push, PushAnswer, Registration, Renewal,
    RoutingTable, ShardExplanation,
};
use leasehold_model::{Address, CallError, ExecutorName, Grant, ShardId};
use leasehold_rpc::api::{ExecutorApi, InvokeApi, ManagerApi};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ExecutorClient;
use std::sync::Arc;
use std::time::Duration;

/// Where one listens in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ear {
    /// Where a manager's answers leave it.
    Manager,
    /// Where they arrive at an executor.
    Executor,
}

/// A manager, heard.
pub struct HeardManager<M> {
    pub inner: M,
    pub ear: Ear,
    pub host: String,
    pub world: Arc<World>,
}

impl<M> HeardManager<M> {
    fn granted(&self, to: leasehold_model::ExecutorId, answer: Result<Grant, CallError>) -> Result<Grant, CallError> {
        match (&answer, self.ear) {
            (Ok(grant), Ear::Manager) => {
                self.world.happen(Event::Told { host: self.host.clone(), to, set: grant.set.clone() });
                let until = clock::now() + MachineClock::slowest(grant.ttl.as_duration());
                self.world.happen(Event::Granted { to, until });
            }
            (Ok(_), Ear::Executor) => {}
            (Err(error), Ear::Executor) => self.world.reach(format!("executor hears {}", error.reason())),
            (Err(_), Ear::Manager) => {}
        }
        answer
    }
}

#[async_trait]
impl<M: ManagerApi> ManagerApi for HeardManager<M> {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        let id = registration.executor;
        let answer = self.granted(id, self.inner.register(registration).await);
        if self.ear == Ear::Executor && answer.is_ok() {
            self.world.happen(Event::Registered(id));
        }
        answer
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        let id = renewal.executor;
        self.granted(id, self.inner.renew(renewal).await)
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        if self.ear == Ear::Executor {
            self.world.happen(Event::Leaving(deregistration.executor));
        }
        self.inner.deregister(deregistration).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.inner.routing_table().await
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        self.inner.watch_routing_table().await
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.inner.status().await
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        self.inner.explain(shard).await
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        self.inner.set_draining(name, draining).await
    }
}

/// A manager's ways to executors, heard where pushes leave.
pub struct HeardLinks {
    pub dialer: Dialer,
    pub host: String,
    pub world: Arc<World>,
}

impl ExecutorLinks for HeardLinks {
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi> {
        let inner = ExecutorClient::new(self.dialer.dial(address));
        Arc::new(HeardLink { inner, host: self.host.clone(), world: Arc::clone(&self.world) })
    }
}

struct HeardLink {
    inner: ExecutorClient,
    host: String,
    world: Arc<World>,
}

#[async_trait]
impl ExecutorApi for HeardLink {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        self.world.happen(Event::Told { host: self.host.clone(), to: push.executor, set: push.set.clone() });
        self.inner.assign(push).await
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        self.inner.inspect().await
    }
}

/// A caller's way to an executor, heard.
pub struct HeardExecutor<I> {
    pub inner: I,
    pub world: Arc<World>,
}

#[async_trait]
impl<I: InvokeApi> InvokeApi for HeardExecutor<I> {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        let key = invocation.idempotency_key.clone().unwrap_or_default();
        self.world.happen(Event::Trying { key: key.clone() });
        let answer = self.inner.invoke(invocation, within).await;
        match &answer {
            Ok(answer) if answer.replayed => self.world.reach("caller is answered from the oplog"),
            Ok(_) => {}
            Err(error) => {
                self.world.reach(format!("caller hears {}", error.reason()));
                if !matches!(error, CallError::Unknown(_)) {
                    self.world.happen(Event::Refused { key, why: error.to_string() });
                }
            }
        }
        answer
    }
}
