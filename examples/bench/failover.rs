//! How soon the next manager grants when the leading one ends: three real processes on a real etcd, 200 executors that renew.

use crate::cluster::{Idle, Member, Obedient, cluster_name, registration};
use crate::figure::{Measured, Result};
use crate::load::{Serving, listener};
use crate::processes::{Process, binary, free_address};
use crate::rounds::{Dice, median};
use leasehold_harness::Etcd;
use leasehold_model::lease::{Jitter, retry_pause};
use leasehold_model::{Address, ManagerId};
use leasehold_persistence::Elections;
use leasehold_persistence::election::EtcdElections;
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions};
use leasehold_rpc::api::{ExecutorApi, ManagerApi};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::managers::Managers;
use leasehold_rpc::server::{Limits, serve_executor};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// `leadership.leader_lease_ttl`, in seconds. etcd's least.
pub const TTL_S: f64 = 2.0;
const MANAGERS: usize = 3;
const EXECUTORS: usize = 200;
const RUNS: usize = 20;
/// How often an executor renews while all is well, at the most.
const PERIOD: Duration = Duration::from_millis(500);
/// What is left of an executor's lease, about, while it looks for the next leader.
const LEFT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Whose grants are heard, and since when.
type Heard = Option<(ManagerId, Instant)>;

/// Renews for ever; where that fails it tries again after the pauses of a real executor (R13).
async fn renew(managers: Managers, mut member: Member, heard: watch::Sender<Heard>, seed: u64) {
    let (dice, mut failures) = (Dice::new(seed), 0);
    loop {
        let pause = match managers.renew(member.renewal()).await {
            Ok(grant) => {
                let (from, now) = (grant.set.manager, Instant::now());
                heard.send_if_modified(|heard| {
                    let another = heard.is_none_or(|(before, _)| before != from);
                    if another {
                        *heard = Some((from, now));
                    }
                    another
                });
                (member, failures) = (member.with(grant), 0);
                PERIOD / 2 + PERIOD.mul_f64(dice.roll(1000) as f64 / 2000.0)
            }
            Err(_) => {
                failures += 1;
                retry_pause(failures, LEFT, Jitter::new(u16::try_from(dice.roll(1 << 16)).unwrap_or_default()))
            }
        };
        sleep(pause).await;
    }
}

/// Everything that runs.
struct World {
    binary: PathBuf,
    etcd: Etcd,
    connection: EtcdConnection,
    elections: EtcdElections,
    processes: Vec<(Address, Process)>,
    heard: watch::Receiver<Heard>,
    executors: JoinSet<()>,
    server: Serving,
}

fn manager(binary: &Path, etcd: &Etcd, address: &Address) -> Result<Process> {
    let mut command = Command::new(binary);
    command.arg("serve").stdout(Stdio::null());
    for setting in [
        format!("store.url=etcd:{}", etcd.endpoint()),
        format!("listen.grpc={address}"),
        "listen.http=127.0.0.1:0".to_owned(),
        format!("cluster.name={}", cluster_name()?),
        "cluster.shard_count=1024".to_owned(),
        "lease.profile=lan".to_owned(),
        format!("leadership.leader_lease_ttl={TTL_S}s"),
        "store.request_timeout=1s".to_owned(),
        "leadership.standby_grpc=redirect".to_owned(),
    ] {
        command.args(["--set", &setting]);
    }
    Process::start(&mut command)
}

impl World {
    async fn start() -> Result<Self> {
        let (binary, etcd) = (binary()?, Etcd::start());
        let connection =
            EtcdConnection::open(EtcdOptions { endpoints: etcd.endpoints(), ..EtcdOptions::default() }).await?;
        let elections = EtcdElections::new(connection.clone(), cluster_name()?);
        let mut processes = Vec::new();
        for _ in 0..MANAGERS {
            let address = free_address()?;
            let process = manager(&binary, &etcd, &address)?;
            processes.push((address, process));
        }
        let addresses: Vec<_> = processes.iter().map(|(address, _)| address.clone()).collect();
        let (listener, address) = listener().await?;
        let apis = (Arc::new(Obedient::default()) as Arc<dyn ExecutorApi>, Arc::new(Idle) as _);
        let server = Serving::start(|stop| serve_executor(listener, apis, Limits::default(), stop));
        let (heard, hears) = watch::channel(None);
        let mut executors = JoinSet::new();
        for number in 0..EXECUTORS {
            let managers = Managers::dial(Dialer::tcp(), &addresses).deadline(Duration::from_secs(1));
            let mut from = registration(number)?;
            from.address = address.clone();
            let registering = async {
                loop {
                    match managers.register(from.clone()).await {
                        Ok(grant) => return grant,
                        Err(_) => sleep(Duration::from_millis(100)).await,
                    }
                }
            };
            let grant = timeout(PATIENCE, registering).await?;
            let member = Member::new(from.executor, from.lease_key, grant);
            executors.spawn(renew(managers, member, heard.clone(), number as u64));
        }
        let world = Self { binary, etcd, connection, elections, processes, heard: hears, executors, server };
        world.complete().await?;
        Ok(world)
    }

    /// Waits until three managers stand in the queue, and lets the executors find the first.
    async fn complete(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let queue = format!("/leasehold/{}/election/", cluster_name()?);
        while self.etcd.ctl(&["get", "--prefix", "--keys-only", &queue]).split_whitespace().count() != MANAGERS {
            if Instant::now() > until {
                return Err("the managers do not come back".into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        sleep(2 * PERIOD).await;
        Ok(())
    }

    /// One end of a leader by `end`; how long it was until somebody else granted. Puts a new process in its place.
    async fn lose_leader(&mut self, end: fn(Process) -> Result<()>) -> Result<Duration> {
        let first = self.elections.observe(None).await?.ok_or("nobody leads")?;
        let led = self.heard.borrow_and_update().map(|(manager, _)| manager);
        let at = self.processes.iter().position(|(address, _)| *address == first.address);
        let (address, process) = self.processes.remove(at.ok_or("the leader is none of these processes")?);
        let began = Instant::now();
        let ended = tokio::task::spawn_blocking(move || end(process));
        let another = |heard: &Heard| heard.is_some_and(|(manager, _)| Some(manager) != led);
        let heard = timeout(PATIENCE, self.heard.wait_for(another)).await??.ok_or("nobody grants")?;
        let took = heard.1.duration_since(began);
        ended.await??;
        let process = manager(&self.binary, &self.etcd, &address)?;
        self.processes.push((address, process));
        self.complete().await?;
        Ok(took)
    }

    /// The median of some linearizable reads.
    async fn round_trip(&self) -> Result<Duration> {
        let mut took = Vec::new();
        for _ in 0..51 {
            let began = Instant::now();
            self.connection.revision().await?;
            took.push(began.elapsed().as_secs_f64());
        }
        Ok(Duration::from_secs_f64(median(took)))
    }

    async fn stop(mut self) -> Result<()> {
        self.executors.shutdown().await;
        self.server.stop().await?;
        for (_, process) in self.processes {
            process.end()?;
        }
        Ok(())
    }
}

/// Loses the leader so many times.
async fn runs(world: &mut World, end: fn(Process) -> Result<()>) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    for run in 0..RUNS {
        let seconds = world.lose_leader(end).await?.as_secs_f64();
        eprintln!("  run {}: {:.0} ms", run + 1, seconds * 1e3);
        took.push(seconds);
    }
    Ok(took)
}

/// `failover_kill_s`: from `kill -9` of the leading manager to the next one's first grant, the worst of 20; against the ttl of its lease.
pub async fn killed() -> Result<Measured> {
    let mut world = World::start().await?;
    let took = runs(&mut world, |process| {
        drop(process);
        Ok(())
    });
    let worst = took.await?.into_iter().fold(0.0, f64::max);
    world.stop().await?;
    Ok(Measured { value: worst, baseline: TTL_S })
}

/// `failover_graceful_ms`: the same on SIGTERM, the median of 20 less one round trip to etcd, which is the baseline.
pub async fn stopped() -> Result<Measured> {
    let mut world = World::start().await?;
    let took = median(runs(&mut world, Process::end).await?);
    let round_trip = world.round_trip().await?.as_secs_f64();
    world.stop().await?;
    Ok(Measured { value: (took - round_trip) * 1e3, baseline: round_trip * 1e3 })
}
