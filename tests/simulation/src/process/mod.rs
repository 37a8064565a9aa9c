//! The processes of a simulated cluster, made of the shipped actors and the shipped gRPC.

pub mod callers;
pub mod executor;
pub mod manager;
mod observed;
mod watched;

use crate::clock::MachineClock;
use crate::freeze::Freezer;
use crate::storage::Storage;
use crate::world::World;
use leasehold_model::ClusterName;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// What a process is told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Orders {
    /// As SIGTERM.
    pub stop: bool,
    /// Its listener is closed while it lives on.
    pub deaf: bool,
}

/// One machine: what outlives the processes on it.
pub struct Machine {
    /// Its name in the network.
    pub host: String,
    /// Its clock.
    pub clock: MachineClock,
    /// What stops it.
    pub freezer: Freezer,
    /// The executor name that the next process on it takes.
    pub name: Mutex<String>,
    /// What its process is told.
    pub orders: watch::Sender<Orders>,
}

impl Machine {
    /// A machine whose clock gains `ppm` millionths.
    pub fn new(host: &str, ppm: i64) -> Arc<Self> {
        let (clock, freezer) = (MachineClock::new(ppm), Freezer::default());
        let (host, name) = (host.to_owned(), Mutex::new(host.to_owned()));
        Arc::new(Self { host, clock, freezer, name, orders: watch::Sender::default() })
    }
}

/// What every process finds around itself.
#[derive(Clone)]
pub struct Site {
    /// Who watches.
    pub world: Arc<World>,
    /// The stores.
    pub storage: Arc<Storage>,
    /// The managers' hosts.
    pub managers: Vec<String>,
}

fn cluster() -> ClusterName {
    ClusterName::new("simulated").expect("a plain name")
}

/// Resolves once `wanted` is so.
async fn told(mut orders: watch::Receiver<Orders>, wanted: fn(&Orders) -> bool) {
    if orders.wait_for(wanted).await.is_err() {
        // Its sender lives as long as the machine: never told.
        std::future::pending::<()>().await;
    }
}
