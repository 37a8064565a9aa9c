//! Several managers as one: the next call after a failure goes to the next of them. Nothing is retried here (R13).

use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_model::message::{ClusterStatus, Deregistration, Registration, Renewal, RoutingTable, ShardExplanation};
use leasehold_model::{Address, CallError, ExecutorName, Grant, Refusal, ShardId};
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ManagerClient;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The managers that an executor was given; at least one.
pub struct Managers {
    managers: Vec<Arc<dyn ManagerApi>>,
    current: AtomicUsize,
}

impl Managers {
    /// Dials `addresses` when they are first needed.
    #[must_use]
    pub fn dial(dialer: &Dialer, addresses: &[Address]) -> Self {
        let dialed = |address| Arc::new(ManagerClient::new(dialer.dial(address))) as Arc<dyn ManagerApi>;
        Self::of(addresses.iter().map(dialed).collect())
    }

    /// These managers.
    ///
    /// # Panics
    /// When there are none: configuration refuses that.
    #[must_use]
    pub fn of(managers: Vec<Arc<dyn ManagerApi>>) -> Self {
        assert!(!managers.is_empty(), "at least one manager");
        Self { managers, current: AtomicUsize::new(0) }
    }

    async fn ask<'a, T, F>(&'a self, call: impl FnOnce(&'a dyn ManagerApi) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        // A call that is cancelled has not been answered: the next one asks another manager, too.
        let at = self.current.load(Ordering::Relaxed);
        let unanswered = Unanswered { managers: self, at };
        let answer = call(&*self.managers[at % self.managers.len()]).await;
        match &answer {
            Ok(_) => unanswered.stay(),
            Err(CallError::Refused(refusal)) if !matches!(refusal, Refusal::NotLeader { .. }) => unanswered.stay(),
            Err(_) => drop(unanswered),
        }
        answer
    }
}

/// Moves on to the next manager when dropped.
struct Unanswered<'a> {
    managers: &'a Managers,
    at: usize,
}

impl Unanswered<'_> {
    fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let next = (self.at + 1) % self.managers.managers.len();
        // Lost to another call that has moved on already: once is enough.
        let _ = self.managers.current.compare_exchange(self.at, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[async_trait]
impl ManagerApi for Managers {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        self.ask(|manager| manager.register(registration)).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        self.ask(|manager| manager.renew(renewal)).await
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        self.ask(|manager| manager.deregister(deregistration)).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.ask(|manager| manager.routing_table()).await
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        self.ask(|manager| manager.watch_routing_table()).await
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.ask(|manager| manager.status()).await
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        self.ask(|manager| manager.explain(shard)).await
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        self.ask(|manager| manager.set_draining(name, draining)).await
    }
}
