//! Renewals and routing tables per second through this crate, against a bare tonic service with the same messages, in
//! the same process: `cargo run --release -p leasehold-rpc --features baseline --example rpc_overhead`.
#![allow(clippy::unwrap_used, reason = "a measurement")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, missing_docs, reason = "shared with the tests, of which this needs a part")]
mod support;

use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_model::message::*;
use leasehold_model::*;
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::baseline::{BareClient, BareServer};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ManagerClient;
use leasehold_rpc::server::{Limits, serve_manager};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Answers with what it has.
struct Ready(Grant, Arc<RoutingTable>);

#[async_trait]
impl ManagerApi for Ready {
    async fn register(&self, _: Registration) -> Result<Grant, CallError> {
        Ok(self.0.clone())
    }
    async fn renew(&self, _: Renewal) -> Result<Grant, CallError> {
        Ok(self.0.clone())
    }
    async fn deregister(&self, _: Deregistration) -> Result<(), CallError> {
        Ok(())
    }
    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        Ok(Arc::clone(&self.1))
    }
    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        Err(Refusal::Superseded.into())
    }
    async fn status(&self) -> Result<ClusterStatus, CallError> {
        Ok(support::status())
    }
    async fn explain(&self, _: ShardId) -> Result<ShardExplanation, CallError> {
        Ok(support::explanation())
    }
    async fn set_draining(&self, _: ExecutorName, _: bool) -> Result<(), CallError> {
        Ok(())
    }
}

/// Calls per second of 64 callers, for two seconds.
async fn rate<F: Future<Output = ()> + Send>(call: impl Fn(usize) -> F + Clone + Send + Sync + 'static) -> f64 {
    let (done, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let (call, done) = (call.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                while start.elapsed() < Duration::from_secs(2) {
                    call(caller).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn table() -> RoutingTable {
    let owners: Vec<_> = (0..200u32)
        .map(|at| Owner {
            executor: ExecutorId::from_u128(u128::from(at) + 1),
            name: ExecutorName::new(format!("executor-{at}")).unwrap(),
            address: Address::new(format!("10.0.0.{}:7101", at % 250)).unwrap(),
        })
        .collect();
    let routes = (0..1024).map(|shard| Route::Owned(shard % 200, ShardEpoch::owned(7).unwrap())).collect();
    RoutingTable { manager: ManagerId::from_u128(2), revision: Revision(42), owners, routes }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let shards: Vec<_> = (0..16).map(|shard| (shard, 1000)).collect();
    let mut grant = support::grant();
    grant.set.shards = support::holdings(&shards);
    let mut renewal = support::renewal();
    renewal.claim.shards = support::holdings(&shards);
    let (bare_listener, bare_address) = support::listener().await;
    tokio::spawn(BareServer::new(&grant, &table()).serve(bare_listener, std::future::pending()));
    let (listener, address) = support::listener().await;
    let api: Arc<dyn ManagerApi> = Arc::new(Ready(grant, Arc::new(table())));
    tokio::spawn(serve_manager(listener, api, Limits::default(), std::future::pending()));
    let bare: Arc<Vec<_>> = Arc::new((0..64).map(|_| BareClient::dial(&bare_address)).collect());
    let ours: Arc<Vec<_>> = Arc::new((0..64).map(|_| ManagerClient::new(Dialer::tcp().dial(&address))).collect());
    let renewal = Arc::new(renewal);
    for _ in 0..3 {
        let (clients, message) = (Arc::clone(&bare), Arc::clone(&renewal));
        let baseline = rate(move |at| {
            let (clients, message) = (Arc::clone(&clients), Arc::clone(&message));
            async move { clients[at].renew(&message).await.unwrap() }
        })
        .await;
        let (clients, message) = (Arc::clone(&ours), Arc::clone(&renewal));
        let value = rate(move |at| {
            let (clients, message) = (Arc::clone(&clients), Arc::clone(&message));
            async move { clients[at].renew(Renewal::clone(&message)).await.map(drop).unwrap() }
        })
        .await;
        println!("renewals/s {value:.0}, bare {baseline:.0}, ratio {:.2}", value / baseline);
        let clients = Arc::clone(&bare);
        let baseline = rate(move |at| {
            let clients = Arc::clone(&clients);
            async move { clients[at].routing_table().await.unwrap() }
        })
        .await;
        let clients = Arc::clone(&ours);
        let value = rate(move |at| {
            let clients = Arc::clone(&clients);
            async move { clients[at].routing_table().await.map(drop).unwrap() }
        })
        .await;
        println!("tables/s {value:.0}, bare {baseline:.0}, ratio {:.2}", value / baseline);
    }
}
