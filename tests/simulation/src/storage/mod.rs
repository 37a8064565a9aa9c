//! The stores: one host that runs every call, so that a call outlives whoever made it, and a weather that decides how each one fares.
//!
//! Calls of one connection to the cluster's store keep their order, as the stores promise; calls to the oplogs do not.

mod cluster;
mod election;
mod oplogs;

pub use election::SimElections;
pub use oplogs::SimOplogs;

use crate::world::{Event, TICK, World, lock};
use leasehold_persistence::cluster::memory::Snapshot;
use leasehold_persistence::election::MemoryElections;
use leasehold_persistence::oplog::MemoryOplogStore;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, mpsc, oneshot};
use tokio::time::sleep;

/// The stores' host.
pub const STORE: &str = "store";

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a call that was not applied is answered, and one of which nobody knows.
pub type Fails<E> = (fn(String) -> E, fn(String) -> E);

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Load,
    Commit,
    Outcome,
    Confirm,
    Election,
    OplogRead,
    OplogWrite,
}

/// How often calls fare badly, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    pub stall: u32,
    pub refuse: u32,
    pub lose_request: u32,
    pub lose_answer: u32,
    pub silent: u32,
    /// The longest stall.
    pub longest: Duration,
}

/// Which way a host is cut off from the stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Requests,
    Answers,
}

/// How one call fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Fine,
    Refuse,
    LoseRequest,
    LoseAnswer,
    Silent,
}

struct Fate {
    before: Duration,
    end: End,
    after: Duration,
}

struct Sky {
    rng: StdRng,
    weather: Weather,
    cuts: BTreeMap<String, Cut>,
}

impl Sky {
    fn fate(&mut self, kind: Kind) -> Fate {
        // Never less than a tick: hosts run one after the other within it, and nothing may arrive before it was sent.
        let mut before = TICK + Duration::from_micros(self.rng.random_range(0..4_000));
        let mut after = Duration::from_micros(self.rng.random_range(500..4_000));
        let Weather { stall, refuse, lose_request, lose_answer, silent, longest } = self.weather;
        let drawn = self.rng.random_range(0..1000_u32);
        let mut bar = 0;
        let mut below = |share: u32| {
            bar += share;
            drawn < bar
        };
        let end = if below(refuse) {
            End::Refuse
        } else if below(lose_request) {
            End::LoseRequest
        } else if below(lose_answer) {
            End::LoseAnswer
        } else if below(silent) && kind != Kind::Load {
            End::Silent
        } else {
            End::Fine
        };
        if stall > 0 && self.rng.random_range(0..1000) < stall {
            let span = self.rng.random_range(Duration::from_millis(20)..longest.max(Duration::from_millis(21)));
            if self.rng.random_bool(0.5) { before += span } else { after += span }
        }
        Fate { before, end, after }
    }
}

/// See the module.
pub struct Storage {
    jobs: mpsc::UnboundedSender<Job>,
    queue: Mutex<Option<mpsc::UnboundedReceiver<Job>>>,
    sky: Mutex<Sky>,
    world: Arc<World>,
    elections: MemoryElections,
    oplogs: MemoryOplogStore,
}

impl Storage {
    /// Empty stores, whose weather follows from `seed`.
    pub fn new(world: Arc<World>, seed: u64) -> Arc<Self> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let sky = Sky { rng: StdRng::seed_from_u64(seed), weather: Weather::default(), cuts: BTreeMap::new() };
        Arc::new(Self {
            jobs,
            queue: Mutex::new(Some(queue)),
            sky: Mutex::new(sky),
            world,
            elections: MemoryElections::new(),
            oplogs: MemoryOplogStore::new(),
        })
    }

    /// What runs on the stores' host.
    pub async fn serve(self: Arc<Self>) {
        let mut queue = lock(&self.queue).take().expect("the stores are served once");
        while let Some(job) = queue.recv().await {
            tokio::spawn(job);
        }
    }

    /// From now on calls fare so.
    pub fn weather(&self, weather: Weather) {
        lock(&self.sky).weather = weather;
    }

    /// Cuts `host` off.
    pub fn cut(&self, host: &str, cut: Cut) {
        lock(&self.sky).cuts.insert(host.to_owned(), cut);
    }

    /// `host` reaches the stores again.
    pub fn mend(&self, host: &str) {
        lock(&self.sky).cuts.remove(host);
    }

    /// Nothing fares badly any more. What is under way stays so.
    pub fn heal(&self) {
        let mut sky = lock(&self.sky);
        (sky.weather, sky.cuts) = (Weather::default(), BTreeMap::new());
    }

    /// The oplogs, for those who look without touching.
    pub fn look_at_oplogs(&self) -> MemoryOplogStore {
        self.oplogs.handle()
    }

    /// A backup of the cluster's store.
    pub fn backup(&self) -> Snapshot {
        self.elections.data().snapshot()
    }

    /// Puts a backup back.
    pub fn restore(&self, backup: &Snapshot) {
        self.elections.data().restore(backup);
        if let Some(state) = self.elections.data().peek() {
            self.world.happen(Event::Restored { state: Arc::new(state) });
        }
    }

    /// Takes away the lease, or only the place, of whoever is first in the election's queue.
    pub fn depose(&self, whole: bool) {
        let Some(first) = self.elections.places().first().map(|place| place.candidacy) else { return };
        self.world.happen(Event::Deposed);
        if whole { self.elections.revoke(first) } else { self.elections.delete_place(first) }
    }

    fn cut_of(&self, host: &str) -> Option<Cut> {
        lock(&self.sky).cuts.get(host).copied()
    }
}

/// One process's connection to the stores.
#[derive(Clone)]
pub struct Connection {
    storage: Arc<Storage>,
    host: String,
    /// Whose turn it is, for calls that keep their order.
    turn: Arc<Turn<()>>,
}

impl Connection {
    /// A connection from `host`.
    pub fn new(storage: &Arc<Storage>, host: &str) -> Self {
        Self { storage: Arc::clone(storage), host: host.to_owned(), turn: Arc::default() }
    }

    /// Makes a call that is `applied` on the stores' host, whether or not anybody still waits for it. `failed` makes an error of a call
    /// that was not applied, `unknown` of one of which nobody knows.
    async fn call<T, E>(
        &self,
        (kind, ordered): (Kind, bool),
        applied: impl Future<Output = Result<T, E>> + Send + 'static,
        (failed, unknown): Fails<E>,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let Fate { before, end, after } = lock(&self.storage.sky).fate(kind);
        self.count(kind, end);
        let (answer, answered) = oneshot::channel();
        let turn = ordered.then(|| Arc::clone(&self.turn));
        let this = self.clone();
        let job = async move {
            let turn = match turn {
                Some(turn) => Some(turn.lock_owned().await),
                None => None,
            };
            sleep(before).await;
            let outcome = match end {
                End::Refuse => Err(failed("refused by the simulation".to_owned())),
                End::LoseRequest => Err(unknown("the simulation lost the request".to_owned())),
                End::Fine | End::Silent => applied.await,
                End::LoseAnswer => {
                    applied.await.and_then(|_| Err(unknown("the simulation lost the answer".to_owned())))
                }
            };
            drop(turn);
            sleep(after).await;
            if end != End::Silent && this.storage.cut_of(&this.host).is_none() {
                // Whoever asked may be gone.
                let _ = answer.send(outcome);
            }
        };
        if self.storage.cut_of(&self.host) != Some(Cut::Requests) {
            // The stores' host lives as long as the simulation.
            let _ = self.storage.jobs.send(Box::pin(job));
        }
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => std::future::pending().await,
        }
    }

    fn count(&self, kind: Kind, end: End) {
        let name = match end {
            End::Fine => return,
            End::Refuse => "refused",
            End::LoseRequest => "request lost",
            End::LoseAnswer => "answer lost",
            End::Silent => "never answered",
        };
        let what = match kind {
            Kind::Commit => "write",
            Kind::Confirm => "confirmation",
            Kind::Election => "election",
            Kind::OplogWrite => "append",
            Kind::Load | Kind::Outcome | Kind::OplogRead => return,
        };
        self.storage.world.reach(format!("store: {what} {name}"));
    }
}
