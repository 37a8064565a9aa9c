//! What goes wrong, and when: drawn from the seed.

use crate::cluster::{CALLERS, Cluster, EXECUTORS, MANAGERS, SPARE};
use crate::invariants::Violation;
use crate::process::Orders;
use crate::process::callers::Drain;
use crate::storage::{Cut, Weather};
use crate::world::{ELECTION_TTL, LEASE};
use leasehold_persistence::cluster::memory::Snapshot;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// How long faults go on.
const CHAOS: Duration = Duration::from_secs(24);
/// One seed in so many puts the cluster's store back to a backup.
const RESTORES: u64 = 8;

/// What ends a fault.
#[derive(Debug, Clone)]
enum Undo {
    Repair(String, String),
    RepairOneWay(String, String),
    Release(String, String),
    Begin(String),
    MendStore(String),
    CalmStores,
    /// The second half of a fault.
    CutAnswers(String),
    Hear(String),
    Undrain(String),
    Latency,
}

/// The faults of one seed.
pub struct Chaos {
    rng: StdRng,
    undo: Vec<(Duration, Undo)>,
    /// The longest pause between two faults.
    pause: Duration,
    backup: Option<Snapshot>,
    restores: bool,
}

impl Chaos {
    /// Drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 5);
        let pause = Duration::from_millis(rng.random_range(400..2_500));
        Self { rng, undo: Vec::new(), pause, backup: None, restores: seed % RESTORES == RESTORES - 1 }
    }

    /// Lets things go wrong for a while.
    pub fn rage(&mut self, cluster: &mut Cluster<'_>) -> Result<(), Violation> {
        let until = cluster.now() + CHAOS;
        let mut next = cluster.now();
        while cluster.now() < until {
            if cluster.now() >= next {
                self.strike(cluster);
                next = cluster.now() + self.span(Duration::from_millis(50), self.pause);
            }
            self.undo_due(cluster);
            cluster.step()?;
        }
        Ok(())
    }

    /// Ends every fault.
    pub fn heal(&mut self, cluster: &mut Cluster<'_>) {
        cluster.trace.say("everything heals");
        for (_, undo) in std::mem::take(&mut self.undo) {
            self.undo(cluster, undo);
        }
        cluster.storage.heal();
        cluster.supervised = true;
        for host in cluster.hosts() {
            cluster.machine(&host).expect("a host has a machine").freezer.thaw();
        }
        // What was asked for before a restore is not in the restored store.
        EXECUTORS.iter().for_each(|name| drain(cluster, (*name).to_owned(), false));
        if cluster.runs(SPARE) {
            cluster.crash(SPARE);
        }
        for host in MANAGERS.iter().chain(&EXECUTORS).filter(|host| !cluster.runs(host)).collect::<Vec<_>>() {
            cluster.begin(host);
        }
    }

    fn span(&mut self, least: Duration, most: Duration) -> Duration {
        self.rng.random_range(least..most.max(least + Duration::from_millis(1)))
    }

    /// Mostly short, sometimes longer than a lease.
    fn while_(&mut self) -> Duration {
        let most = if self.rng.random_bool(0.7) { LEASE / 2 } else { LEASE * 3 };
        self.span(Duration::from_millis(50), most)
    }

    fn undo_due(&mut self, cluster: &mut Cluster<'_>) {
        let now = cluster.now();
        let due: Vec<_> = self.undo.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, undo) in due {
            self.undo(cluster, undo);
        }
    }

    fn undo(&mut self, cluster: &mut Cluster<'_>, undo: Undo) {
        cluster.trace.say(&format!("over: {undo:?}"));
        match undo {
            Undo::Repair(one, other) => cluster.sim.repair(one.as_str(), other.as_str()),
            Undo::RepairOneWay(from, to) => cluster.sim.repair_oneway(from.as_str(), to.as_str()),
            Undo::Release(one, other) => cluster.sim.release(one.as_str(), other.as_str()),
            Undo::Begin(host) => {
                if !cluster.runs(&host) {
                    cluster.begin(&host);
                }
            }
            Undo::MendStore(host) => cluster.storage.mend(&host),
            Undo::CutAnswers(host) => cluster.storage.cut(&host, Cut::Answers),
            Undo::CalmStores => cluster.storage.weather(Weather::default()),
            Undo::Hear(host) => order(cluster, &host, |orders| orders.deaf = false),
            Undo::Undrain(name) => drain(cluster, name, false),
            Undo::Latency => cluster.sim.set_max_message_latency(Duration::from_millis(8)),
        }
    }

    fn later(&mut self, cluster: &Cluster<'_>, span: Duration, undo: Undo) {
        self.undo.push((cluster.now() + span, undo));
    }

    fn one_of(&mut self, of: &[String]) -> Option<String> {
        of.choose(&mut self.rng).cloned()
    }

    /// One fault.
    fn strike(&mut self, cluster: &mut Cluster<'_>) {
        let span = self.while_();
        match self.rng.random_range(0..100) {
            0..30 => self.break_network(cluster, span),
            30..48 => self.end_process(cluster, span),
            48..62 => self.stop_clock(cluster, span),
            62..78 => self.trouble_stores(cluster, span),
            78..86 => self.operate(cluster, span),
            86..91 => self.impersonate(cluster),
            91..94 => self.deafen(cluster, span),
            94..96 => self.usurp(cluster),
            96..98 => self.slow_goodbye(cluster),
            _ => {
                let whole = self.rng.random_bool(0.5);
                cluster.trace.say(&format!("the leader's place in the queue is gone, with its lease: {whole}"));
                cluster.storage.depose(whole);
            }
        }
        if self.restores {
            self.restore(cluster);
        }
    }

    fn pair(&mut self, cluster: &Cluster<'_>) -> Option<(String, String)> {
        let mut hosts = cluster.hosts();
        hosts.push(CALLERS.to_owned());
        let one = self.one_of(&hosts)?;
        hosts.retain(|host| *host != one);
        Some((one, self.one_of(&hosts)?))
    }

    fn break_network(&mut self, cluster: &mut Cluster<'_>, span: Duration) {
        let Some((one, other)) = self.pair(cluster) else { return };
        match self.rng.random_range(0..10) {
            0..3 => {
                cluster.trace.say(&format!("{one} and {other} do not reach each other for {span:?}"));
                cluster.sim.partition(one.as_str(), other.as_str());
                self.later(cluster, span, Undo::Repair(one, other));
            }
            3..6 => {
                cluster.trace.say(&format!("nothing gets from {one} to {other} for {span:?}"));
                cluster.sim.partition_oneway(one.as_str(), other.as_str());
                self.later(cluster, span, Undo::RepairOneWay(one, other));
            }
            6..8 => {
                cluster.trace.say(&format!("what {one} and {other} send each other is held for {span:?}"));
                cluster.sim.hold(one.as_str(), other.as_str());
                self.later(cluster, span, Undo::Release(one, other));
            }
            8 => {
                let latency = self.span(Duration::from_millis(20), Duration::from_millis(400));
                cluster.trace.say(&format!("messages take up to {latency:?} for {span:?}"));
                cluster.sim.set_max_message_latency(latency);
                self.later(cluster, span, Undo::Latency);
            }
            _ => {
                cluster.trace.say(&format!("{one} is cut off from everybody for {span:?}"));
                for other in cluster.hosts().into_iter().chain([CALLERS.to_owned()]).filter(|other| *other != one) {
                    cluster.sim.partition(one.as_str(), other.as_str());
                    self.later(cluster, span, Undo::Repair(one.clone(), other));
                }
            }
        }
    }

    fn end_process(&mut self, cluster: &mut Cluster<'_>, span: Duration) {
        let manager = self.rng.random_bool(0.4);
        let leader = cluster.world.leader().filter(|_| self.rng.random_bool(0.7));
        let candidates = if manager { MANAGERS.map(str::to_owned).to_vec() } else { cluster.executors() };
        let Some(host) = leader.filter(|_| manager).or_else(|| self.one_of(&candidates)) else { return };
        if !cluster.runs(&host) {
            return;
        }
        if self.rng.random_bool(0.5) {
            cluster.trace.say(&format!("{host} crashes; back in {span:?}"));
            cluster.crash(&host);
        } else {
            cluster.trace.say(&format!("{host} is told to stop; back in {span:?} or later"));
            order(cluster, &host, |orders| orders.stop = true);
        }
        if host != SPARE {
            self.later(cluster, span, Undo::Begin(host));
        }
    }

    fn stop_clock(&mut self, cluster: &mut Cluster<'_>, span: Duration) {
        let mut candidates = cluster.executors();
        candidates.extend(MANAGERS.iter().filter(|host| cluster.runs(host)).map(|host| (*host).to_owned()));
        let Some(host) = self.one_of(&candidates) else { return };
        let Some(machine) = cluster.machine(&host).cloned() else { return };
        if self.rng.random_bool(0.4) {
            cluster.trace.say(&format!("the machine of {host} has slept for {span:?}"));
            machine.clock.sleep(span);
        } else {
            cluster.trace.say(&format!("{host} stands still for {span:?}"));
            machine.freezer.until(cluster.now() + span);
            for other in cluster.hosts().into_iter().chain([CALLERS.to_owned()]).filter(|other| *other != host) {
                cluster.sim.hold(host.as_str(), other.as_str());
                self.later(cluster, span, Undo::Release(host.clone(), other));
            }
        }
    }

    fn trouble_stores(&mut self, cluster: &mut Cluster<'_>, span: Duration) {
        if self.rng.random_bool(0.3) {
            let Some(host) = self.one_of(&cluster.hosts()) else { return };
            let cut = if self.rng.random_bool(0.5) { Cut::Requests } else { Cut::Answers };
            cluster.trace.say(&format!("{host} does not reach the stores ({cut:?} are lost) for {span:?}"));
            cluster.storage.cut(&host, cut);
            return self.later(cluster, span, Undo::MendStore(host));
        }
        let mut share = |most: u32| if self.rng.random_bool(0.5) { self.rng.random_range(0..most) } else { 0 };
        let (stall, refuse, lose_request, lose_answer, silent) =
            (share(300), share(200), share(150), share(250), share(60));
        let longest = self.span(Duration::from_millis(100), LEASE);
        let weather = Weather { stall, refuse, lose_request, lose_answer, silent, longest };
        cluster.trace.say(&format!("the stores are in trouble for {span:?}: {weather:?}"));
        cluster.storage.weather(weather);
        self.later(cluster, span, Undo::CalmStores);
    }

    fn operate(&mut self, cluster: &mut Cluster<'_>, span: Duration) {
        let Some(host) = self.one_of(&cluster.executors()) else { return };
        let Some(machine) = cluster.machine(&host) else { return };
        let name = crate::world::lock(&machine.name).clone();
        cluster.trace.say(&format!("an operator drains {name} for {span:?}"));
        drain(cluster, name.clone(), true);
        self.later(cluster, span, Undo::Undrain(name));
    }

    /// A process takes the name of another one that may still run.
    fn impersonate(&mut self, cluster: &mut Cluster<'_>) {
        let Some(name) = self.one_of(&EXECUTORS.map(str::to_owned)) else { return };
        cluster.trace.say(&format!("{name} is started a second time, on {SPARE}"));
        if cluster.machine(SPARE).is_none() {
            cluster.begin(SPARE);
            cluster.crash(SPARE);
        }
        if cluster.runs(SPARE) {
            cluster.crash(SPARE);
        }
        cluster.rename(SPARE, &name);
        cluster.begin(SPARE);
    }

    fn deafen(&mut self, cluster: &mut Cluster<'_>, span: Duration) {
        let Some(host) = self.one_of(&cluster.executors()) else { return };
        cluster.trace.say(&format!("{host} does not listen for {span:?}, and lives on"));
        order(cluster, &host, |orders| orders.deaf = true);
        self.later(cluster, span, Undo::Hear(host));
    }

    /// The leader is deposed and cannot know, and an executor hears of nobody else.
    fn usurp(&mut self, cluster: &mut Cluster<'_>) {
        let Some(leader) = cluster.world.leader() else { return };
        let Some(executor) = self.one_of(&cluster.executors()) else { return };
        let span = self.span(LEASE, LEASE * 3);
        cluster.trace.say(&format!(
            "{leader} is deposed, cut off from the stores, and all that {executor} reaches, for {span:?}"
        ));
        cluster.storage.depose(true);
        cluster.storage.cut(&leader, Cut::Requests);
        self.later(cluster, span, Undo::MendStore(leader.clone()));
        for other in MANAGERS.iter().filter(|other| **other != leader) {
            cluster.sim.partition(executor.as_str(), *other);
            self.later(cluster, span, Undo::Repair(executor.clone(), (*other).to_owned()));
        }
    }

    /// The stores' answers to the leader come ever later, and then no more.
    fn slow_goodbye(&mut self, cluster: &mut Cluster<'_>) {
        let Some(leader) = cluster.world.leader() else { return };
        let slow = self.span(ELECTION_TTL / 4, ELECTION_TTL);
        cluster
            .trace
            .say(&format!("the stores' answers come late for {slow:?}; {leader} does not hear any after that"));
        cluster.storage.weather(Weather { stall: 900, longest: Duration::from_millis(550), ..Weather::default() });
        self.later(cluster, slow, Undo::CutAnswers(leader.clone()));
        self.later(cluster, slow + ELECTION_TTL * 2, Undo::CalmStores);
        self.later(cluster, slow + ELECTION_TTL * 2, Undo::MendStore(leader));
    }

    /// First a backup is made, later it is put back, once.
    fn restore(&mut self, cluster: &mut Cluster<'_>) {
        if !self.rng.random_bool(0.15) {
            return;
        }
        match self.backup.take() {
            None => {
                cluster.trace.say("the cluster's store is backed up");
                self.backup = Some(cluster.storage.backup());
            }
            Some(backup) => {
                cluster.trace.say("the backup of the cluster's store is put back");
                cluster.storage.restore(&backup);
                self.restores = false;
            }
        }
    }
}

fn order(cluster: &Cluster<'_>, host: &str, change: impl FnOnce(&mut Orders)) {
    if let Some(machine) = cluster.machine(host) {
        machine.orders.send_modify(change);
    }
}

fn drain(cluster: &Cluster<'_>, name: String, draining: bool) {
    // The callers' host lives as long as the simulation.
    let _ = cluster.drains.send(Drain { name, draining });
}
