//! What is seen of every party, for checkers that share nothing with what they check.

use crate::clock::{self, MachineClock};
use leasehold_actors::clock::Clock;
use leasehold_actors::executor::message::CurrentLife;
use leasehold_model::fence::{Admitted, Fence};
use leasehold_model::state::ClusterState;
use leasehold_model::{AgentId, ExecutorId, ManagerId, ShardId, ShardSet};
use leasehold_persistence::oplog::{EntryIndex, Writer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many shards the simulated cluster has.
pub const SHARDS: u32 = 16;
/// How long its leases last.
pub const LEASE: Duration = Duration::from_secs(3);
/// How long a candidacy lasts unseen.
pub const ELECTION_TTL: Duration = Duration::from_millis(1_200);
/// What clocks may differ by: large, so that a mistake in it shows within a tick.
pub const ALLOWANCE_PPM: u32 = 20_000;
/// How long one step of the simulation is.
pub const TICK: Duration = Duration::from_millis(5);

/// Every shard.
pub fn shards() -> impl Iterator<Item = ShardId> {
    (0..SHARDS).map(ShardId)
}

/// Something that a party did, in the order in which it happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A manager read the state and owns the store from now on.
    TookOver { host: String },
    /// A write was applied; this is stored now.
    Committed { state: Arc<ClusterState> },
    /// A write met another revision than its writer believed in.
    Misjudged { host: String, why: String },
    /// The store was put back to an earlier state.
    Restored { state: Arc<ClusterState> },
    /// A set left a manager.
    Told { host: String, to: ExecutorId, set: ShardSet },
    /// A grant left a manager, whose deadline for this executor is not after `until`.
    Granted { to: ExecutorId, until: Duration },
    /// A manager has read the restored state: from now on it binds.
    NewWorld,
    /// The leader's place in the election's queue was taken from it by force.
    Deposed,
    /// A registration was acknowledged: its answer arrived.
    Registered(ExecutorId),
    /// An executor asks to leave.
    Leaving(ExecutorId),
    /// An oplog was claimed.
    Claimed { agent: AgentId, writer: Writer, next: EntryIndex },
    /// Entries with these keys were appended.
    Appended { agent: AgentId, keys: Vec<String> },
    /// An agent's code decided about an invocation that changes it.
    Decided { process: usize, shard: ShardId, admitted: bool },
    /// A call with this key is sent to an executor.
    Trying { key: String },
    /// It ended, and nothing was done.
    Refused { key: String, why: String },
    /// A caller's operation begins.
    Began { agent: String, key: String },
    /// It is answered: the counter's value.
    Answered { agent: String, key: String, value: u64, read: bool },
}

/// One life of an executor process.
pub struct Process {
    /// Its place in the list of processes.
    pub number: usize,
    /// Where it runs.
    pub host: String,
    /// Its machine's clock.
    pub clock: MachineClock,
    /// Its admission.
    pub fence: Fence,
    /// Whom it is registered as.
    pub life: CurrentLife,
    /// How many agents it has in memory, by the life that began them and their shard.
    pub agents: Mutex<BTreeMap<(ExecutorId, ShardId), usize>>,
    /// Agents that look an idempotency key up before they decide, and whether their shard was admitted when they began to.
    pub lookups: Mutex<BTreeMap<AgentId, bool>>,
    alive: AtomicBool,
}

impl Process {
    /// Whether it has not ended.
    pub fn alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// What it admits at this instant.
    pub fn admits(&self, shard: ShardId) -> Option<Admitted> {
        self.alive().then(|| self.fence.admit(self.clock.now(), shard).ok()).flatten()
    }

    /// Whether its lease runs.
    pub fn has_lease(&self) -> bool {
        self.alive() && self.clock.now() < self.fence.deadline()
    }

    /// When its lease ends if nothing renews it and its machine does not sleep.
    pub fn lease_ends(&self) -> Duration {
        clock::now() + self.clock.lasts(self.fence.deadline().since(self.clock.now()))
    }

    /// Agents of `shard` in its memory that `life` began.
    pub fn agents_of(&self, life: ExecutorId, shard: ShardId) -> usize {
        lock(&self.agents).get(&(life, shard)).copied().unwrap_or_default()
    }
}

/// A lock that a panic elsewhere does not spoil.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
#[derive(Default)]
pub struct World {
    events: Mutex<Vec<(Duration, Event)>>,
    processes: Mutex<Vec<Arc<Process>>>,
    ended: Mutex<Vec<(String, String)>>,
    reached: Mutex<BTreeMap<String, u64>>,
    managers: Mutex<BTreeMap<ManagerId, String>>,
    leader: Mutex<Option<String>>,
}

impl World {
    /// Something happened now.
    pub fn happen(&self, event: Event) {
        if let Event::TookOver { host } = &event {
            *lock(&self.leader) = Some(host.clone());
        }
        lock(&self.events).push((clock::now(), event));
    }

    /// Who took over last.
    pub fn leader(&self) -> Option<String> {
        lock(&self.leader).clone()
    }

    /// What happened since this was last asked.
    pub fn happened(&self) -> Vec<(Duration, Event)> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Something worth reaching was reached.
    pub fn reach(&self, what: impl Into<String>) {
        *lock(&self.reached).entry(what.into()).or_default() += 1;
    }

    /// What was reached, and how often.
    pub fn reached(&self) -> BTreeMap<String, u64> {
        lock(&self.reached).clone()
    }

    /// A set of this manager left `host`: it is the same host each time, or somebody speaks for another.
    pub fn speaks(&self, manager: ManagerId, host: &str) -> bool {
        lock(&self.managers).entry(manager).or_insert_with(|| host.to_owned()) == host
    }

    /// An executor process begins.
    pub fn begin(&self, host: &str, clock: MachineClock, fence: Fence, life: CurrentLife) -> Arc<Process> {
        let mut processes = lock(&self.processes);
        let process = Arc::new(Process {
            number: processes.len(),
            host: host.to_owned(),
            clock,
            fence,
            life,
            agents: Mutex::default(),
            lookups: Mutex::default(),
            alive: AtomicBool::new(true),
        });
        processes.push(Arc::clone(&process));
        process
    }

    /// Nothing runs on `host` any more.
    pub fn end(&self, host: &str) {
        for process in self.processes().iter().filter(|process| process.host == host) {
            process.alive.store(false, Ordering::SeqCst);
        }
    }

    /// Every executor process there ever was.
    pub fn processes(&self) -> Vec<Arc<Process>> {
        lock(&self.processes).clone()
    }

    /// The process on `host` says that it is done, and why.
    pub fn says_ended(&self, host: &str, why: String) {
        lock(&self.ended).push((host.to_owned(), why));
    }

    /// Who said so since this was last asked.
    pub fn said_ended(&self) -> Vec<(String, String)> {
        std::mem::take(&mut lock(&self.ended))
    }
}
