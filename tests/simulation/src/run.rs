//! One seed from beginning to end.

use crate::chaos::Chaos;
use crate::cluster::Cluster;
use crate::invariants::Violation;
use crate::trace::Trace;
use crate::world::{World, lock};
use crate::{entropy, healing};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// What came of a seed.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub violation: Option<(Duration, Violation)>,
    pub lines: Vec<String>,
    pub reached: BTreeMap<String, u64>,
    /// How often the invariants were looked at.
    pub checks: u64,
    /// How long the simulation lasted, in its own time.
    pub lasted: Duration,
}

impl Outcome {
    /// Equal for equal traces.
    pub fn digest(&self) -> u64 {
        xxh3_64(self.lines.join("\n").as_bytes())
    }
}

fn live(seed: u64, cluster: &mut Cluster<'_>) -> Result<(), Violation> {
    cluster.pass(Duration::from_secs(3))?;
    let mut chaos = Chaos::new(seed);
    chaos.rage(cluster)?;
    chaos.heal(cluster);
    healing::after_faults(cluster)?;
    match seed % 3 {
        0 => healing::failover(cluster)?,
        1 => healing::join(cluster)?,
        _ => healing::crash(cluster)?,
    }
    healing::callers(cluster)
}

/// Simulates `seed`. In a process of its own, or what tokio counts per process makes a difference.
pub fn simulate(seed: u64) -> Outcome {
    entropy::seed(seed);
    let world = Arc::new(World::default());
    let trace = Trace::new(Arc::clone(&world));
    let panicked: Arc<Mutex<Option<String>>> = Arc::default();
    let noted = Arc::clone(&panicked);
    std::panic::set_hook(Box::new(move |panic| {
        lock(&noted).get_or_insert(panic.to_string());
    }));
    let simulation = {
        let (world, trace, panicked) = (Arc::clone(&world), trace.clone(), Arc::clone(&panicked));
        // A thread of its own: what is seeded once per thread is seeded now.
        std::thread::Builder::new().stack_size(16 << 20).spawn(move || run(seed, world, trace, &panicked))
    };
    let (violation, checks, lasted) =
        simulation.expect("a thread can be made").join().unwrap_or((None, 0, Duration::ZERO));
    let panic = lock(&panicked).take().map(|what| (lasted, Violation { id: "no panic", what }));
    Outcome { violation: panic.or(violation), lines: trace.lines(), reached: world.reached(), checks, lasted }
}

type Ended = (Option<(Duration, Violation)>, u64, Duration);

fn run(seed: u64, world: Arc<World>, trace: Trace, panicked: &Mutex<Option<String>>) -> Ended {
    tracing::subscriber::set_global_default(trace.clone()).expect("one simulation in a process");
    let mut cluster = Cluster::new(seed, world, trace);
    let lived = live(seed, &mut cluster).err();
    let now = cluster.now();
    if let Some(Violation { id, what }) = &lived {
        cluster.trace.say(&format!("VIOLATED {id}: {what}"));
    }
    let checks = cluster.invariants.checks;
    // Torn down outside of any host, where nothing of it matters any more.
    let seen = lock(panicked).clone();
    std::mem::forget(cluster);
    *lock(panicked) = seen;
    (lived.map(|violation| (now, violation)), checks, now)
}
