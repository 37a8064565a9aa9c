//! A simulated cluster: hosts, and what can be done to them.

use crate::clock;
use crate::invariants::{Invariants, Violation};
use crate::process::callers::{self, Drain, Load};
use crate::process::{Machine, Orders, Site, executor, manager};
use crate::storage::{STORE, Storage};
use crate::trace::Trace;
use crate::world::{TICK, World, lock};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The callers' host.
pub const CALLERS: &str = "callers";
/// Managers.
pub const MANAGERS: [&str; 2] = ["m0", "m1"];
/// Executors that are there from the beginning.
pub const EXECUTORS: [&str; 3] = ["e0", "e1", "e2"];
/// An executor's host on which another one's name may turn up.
pub const SPARE: &str = "x0";
/// An executor that joins at the end.
pub const JOINER: &str = "j0";

/// How much of latency there is when nothing is wrong.
const LATENCY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// See the module.
pub struct Cluster<'a> {
    /// The network and the hosts in it.
    pub sim: turmoil::Sim<'a>,
    /// Who watches.
    pub world: Arc<World>,
    /// The stores.
    pub storage: Arc<Storage>,
    /// The trace.
    pub trace: Trace,
    /// The callers.
    pub load: Load,
    /// What operators ask for.
    pub drains: mpsc::UnboundedSender<Drain>,
    /// The invariants.
    pub invariants: Invariants,
    site: Site,
    machines: BTreeMap<String, Arc<Machine>>,
    running: BTreeMap<String, bool>,
    /// Whether a process that ends is begun again, as by a supervisor.
    pub supervised: bool,
    /// From which machines' rates are drawn.
    rates: StdRng,
}

impl Cluster<'_> {
    /// A cluster of which everything follows from `seed`.
    pub fn new(seed: u64, world: Arc<World>, trace: Trace) -> Self {
        let storage = Storage::new(Arc::clone(&world), seed ^ 1);
        let sim = turmoil::Builder::new()
            .rng_seed(seed ^ 2)
            .tick_duration(TICK)
            .simulation_duration(Duration::from_secs(600))
            .min_message_latency(LATENCY.0)
            .max_message_latency(LATENCY.1)
            .enable_random_order()
            .build();
        let managers = MANAGERS.map(str::to_owned).to_vec();
        let site = Site { world: Arc::clone(&world), storage: Arc::clone(&storage), managers };
        let (drains, asked) = mpsc::unbounded_channel();
        let invariants = Invariants::new(Arc::clone(&world), &storage);
        let (load, rates) = (Load::default(), StdRng::seed_from_u64(seed ^ 3));
        let (machines, running, supervised) = (BTreeMap::new(), BTreeMap::new(), false);
        let mut cluster =
            Self { sim, world, storage, trace, load, drains, invariants, site, machines, running, supervised, rates };
        clock::between(Some(Duration::ZERO));
        cluster.host_the_rest(seed, asked);
        MANAGERS.iter().chain(&EXECUTORS).for_each(|host| cluster.begin(host));
        cluster
    }

    fn host_the_rest(&mut self, seed: u64, asked: mpsc::UnboundedReceiver<Drain>) {
        let storage = Arc::clone(&self.storage);
        self.sim.host(STORE, move || {
            let storage = Arc::clone(&storage);
            async move {
                storage.serve().await;
                Ok(())
            }
        });
        let (site, load, asked) = (self.site.clone(), self.load.clone(), std::cell::Cell::new(Some(asked)));
        self.sim.host(CALLERS, move || {
            let asked = asked.take().expect("callers begin once");
            let (site, load) = (site.clone(), load.clone());
            async move {
                callers::run(site, load, seed ^ 4, asked).await;
                Ok(())
            }
        });
    }

    /// Begins a process on `host`, which is made if it is not there.
    pub fn begin(&mut self, host: &str) {
        self.running.insert(host.to_owned(), true);
        if let Some(machine) = self.machines.get(host) {
            machine.orders.send_replace(Orders::default());
            return self.sim.bounce(host);
        }
        let machine = Machine::new(host, self.rates.random_range(-clock::DRIFT_PPM..=clock::DRIFT_PPM));
        self.machines.insert(host.to_owned(), Arc::clone(&machine));
        let (site, manages) = (self.site.clone(), MANAGERS.contains(&host));
        self.sim.host(host, move || {
            let (site, machine) = (site.clone(), Arc::clone(&machine));
            async move {
                let freezer = machine.freezer.clone();
                if manages {
                    freezer.run(manager::run(site, machine)).await;
                } else {
                    freezer.run(executor::run(site, machine)).await;
                }
                Ok(())
            }
        });
    }

    /// As `kill -9`.
    pub fn crash(&mut self, host: &str) {
        self.sim.crash(host);
        self.world.end(host);
        self.running.insert(host.to_owned(), false);
    }

    /// The machine called `host`, if it was ever begun.
    pub fn machine(&self, host: &str) -> Option<&Arc<Machine>> {
        self.machines.get(host)
    }

    /// Whether a process runs on `host`.
    pub fn runs(&self, host: &str) -> bool {
        self.running.get(host).copied().unwrap_or_default()
    }

    /// Hosts of the cluster's own processes that were ever begun.
    pub fn hosts(&self) -> Vec<String> {
        self.machines.keys().cloned().collect()
    }

    /// Executors' hosts on which a process runs.
    pub fn executors(&self) -> Vec<String> {
        let executor = |host: &&String| !MANAGERS.contains(&host.as_str()) && self.runs(host);
        self.machines.keys().filter(executor).cloned().collect()
    }

    /// The simulation's time.
    pub fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    /// Names the next process on `host`.
    pub fn rename(&self, host: &str, name: &str) {
        if let Some(machine) = self.machines.get(host) {
            name.clone_into(&mut lock(&machine.name));
        }
    }

    /// One step, and then a look at every invariant.
    pub fn step(&mut self) -> Result<(), Violation> {
        clock::between(None);
        let stepped = self.sim.step();
        let now = self.sim.elapsed();
        clock::between(Some(now));
        stepped.map_err(|error| Violation { id: "the process", what: error.to_string() })?;
        for (host, why) in self.world.said_ended() {
            self.trace.say(&format!("the process on {host} is over: {why}"));
            self.crash(&host);
            if self.supervised && host != SPARE {
                self.begin(&host);
            }
        }
        self.invariants.check(now)
    }

    /// Steps until `span` is over.
    pub fn pass(&mut self, span: Duration) -> Result<(), Violation> {
        let until = self.now() + span;
        while self.now() < until {
            self.step()?;
        }
        Ok(())
    }
}
