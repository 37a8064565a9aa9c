//! Callers under load: each repeats an operation, under its idempotency key, until it is answered.

use super::Site;
use super::observed::HeardExecutor;
use crate::net::{address, dialer};
use crate::world::{Event, World};
use leasehold::router::{Router, RouterSettings};
use leasehold_model::message::Invocation;
use leasehold_model::{Address, CallError, ExecutorName};
use leasehold_rpc::api::{InvokeApi, ManagerApi};
use leasehold_rpc::client::ExecutorClient;
use leasehold_rpc::managers::Managers;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How many call at a time.
pub const CALLERS: usize = 4;
/// How often an operator tries.
const ATTEMPTS: usize = 200;
/// How many counters they share.
const COUNTERS: usize = 8;

/// What an operator asks for.
#[derive(Debug, Clone)]
pub struct Drain {
    pub name: String,
    pub draining: bool,
}

/// The callers, from outside.
#[derive(Clone, Default)]
pub struct Load(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// Nothing new is begun.
    enough: AtomicBool,
    done: AtomicUsize,
}

impl Load {
    /// No caller begins anything new.
    pub fn enough(&self) {
        self.0.enough.store(true, Ordering::SeqCst);
    }

    /// Whether every caller has its last answer.
    pub fn done(&self) -> bool {
        self.0.done.load(Ordering::SeqCst) == CALLERS
    }
}

fn settings() -> RouterSettings {
    RouterSettings {
        attempt_timeout: Duration::from_millis(400),
        back_off_most: Duration::from_millis(200),
        refresh_timeout: Duration::from_millis(400),
        watch_most: Duration::from_secs(1),
        doubt: Duration::from_secs(2),
        ..RouterSettings::default()
    }
}

fn managers(site: &Site) -> Managers {
    let addresses: Vec<_> = site.managers.iter().map(|host| address(host)).collect();
    Managers::dial(dialer(), &addresses).deadline(Duration::from_secs(1))
}

/// Calls until it is enough, and carries out what operators ask.
pub async fn run(site: Site, load: Load, seed: u64, mut drains: mpsc::UnboundedReceiver<Drain>) {
    let (dialer, world) = (dialer(), Arc::clone(&site.world));
    let dial = move |address: &Address| {
        let inner = ExecutorClient::new(dialer.dial(address));
        Ok(Arc::new(HeardExecutor { inner, world: Arc::clone(&world) }) as Arc<dyn InvokeApi>)
    };
    let router = Router::new(managers(&site), Arc::new(dial), settings());
    for caller in 0..CALLERS {
        let (router, load, world) = (router.clone(), load.clone(), Arc::clone(&site.world));
        let rng = StdRng::seed_from_u64(seed.wrapping_add(caller as u64));
        tokio::spawn(async move {
            call(&router, &load, &world, (caller, rng)).await;
            load.0.done.fetch_add(1, Ordering::SeqCst);
        });
    }
    let operator = managers(&site);
    while let Some(Drain { name, draining }) = drains.recv().await {
        let name = ExecutorName::new(name).expect("a plain name");
        for _ in 0..ATTEMPTS {
            let Err(error) = operator.set_draining(name.clone(), draining).await else {
                tracing::info!(%name, draining, "an operator's request is done");
                break;
            };
            site.world.reach(format!("operator hears {}", error.reason()));
            tracing::info!(%name, draining, %error, "an operator's request failed");
            if error.reason() == "UNKNOWN_EXECUTOR" {
                // Nobody of that name is registered.
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
    std::future::pending::<()>().await;
}

async fn call(router: &Router, load: &Load, world: &World, (caller, mut rng): (usize, StdRng)) {
    let mut number = 0;
    while !load.0.enough.load(Ordering::SeqCst) {
        number += 1;
        let (agent, key) = (format!("counter/c{}", rng.random_range(0..COUNTERS)), format!("{caller}-{number}"));
        let read = rng.random_bool(0.2);
        world.happen(Event::Began { agent: agent.clone(), key: key.clone() });
        let invocation = Invocation {
            agent: agent.parse().expect("a counter's id"),
            method: if read { "get" } else { "increment" }.to_owned(),
            payload: Vec::new(),
            idempotency_key: Some(key.clone()),
        };
        let value = loop {
            let within = Duration::from_millis(rng.random_range(200..3_000));
            match router.call(invocation.clone(), within).await {
                Ok(answer) => break value(&answer.payload),
                Err(error) => world.reach(format!("operation ends as {}", CallError::from(error).reason())),
            }
        };
        world.happen(Event::Answered { agent, key, value, read });
        sleep(Duration::from_millis(rng.random_range(20..300))).await;
    }
}

fn value(payload: &[u8]) -> u64 {
    let answer: serde_json::Value = serde_json::from_slice(payload).expect("a counter answers in JSON");
    answer["value"].as_u64().expect("a counter answers its value")
}
