//! A whole cluster in one process, for the first minute with Leasehold: a manager, executors and a gateway.
//!
//! Each executor runs on a thread of its own, so that one can be killed: its runtime is dropped, its lease is not given back.

mod control;
mod executor;
mod running;

pub use control::{Control, Reply, Request, ask};

use crate::cli::{Exit, Failure};
use crate::gateway::GatewayProcess;
use crate::serve::manager::ManagerProcess;
use executor::ExecutorThread;
use leasehold_config::{Configuration, ExecutorConfig, GatewayConfig, ManagerConfig, Sources, load};
use leasehold_model::ExecutorName;
use leasehold_rpc::api::ManagerApi;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the cluster may take until every shard is served.
const START_WITHIN: Duration = Duration::from_secs(30);

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many executors, 1 to 16.
    pub executors: usize,
    /// How many shards.
    pub shards: u32,
    /// Where data is kept.
    pub folder: PathBuf,
}

/// A running cluster.
pub struct Cluster {
    /// The manager.
    pub manager: ManagerProcess,
    /// The gateway.
    pub gateway: GatewayProcess,
    executors: BTreeMap<ExecutorName, Slot>,
}

struct Slot {
    config: ExecutorConfig,
    running: Option<ExecutorThread>,
}

/// What a shard went through when its executor was killed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Killed {
    /// How many shards it owned.
    pub shards: usize,
    /// How long until all of them were owned by others, in milliseconds.
    pub served_again_ms: u64,
    /// One of them: shard, epoch before, new owner, epoch after.
    pub example: Option<(u32, u64, String, u64)>,
}

/// Loads a configuration made of settings only: files and environment of the user are for real processes.
fn configure<T: Configuration>(overrides: &[String]) -> Result<T, Failure> {
    Ok(load::<T>(&Sources { overrides: overrides.to_vec(), ..Sources::default() })?.config)
}

/// The well-known port if it is free, otherwise any.
fn port(wanted: u16) -> SocketAddr {
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, wanted));
    if TcpListener::bind(wanted).is_ok() { wanted } else { ANY_PORT }
}

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn path(folder: &Path, name: &str) -> String {
    format!("sqlite:{}", folder.join(name).display())
}

impl Cluster {
    /// Starts everything and waits until every shard is served.
    ///
    /// # Errors
    /// Whatever part could not start, by name.
    pub async fn start(plan: &Plan) -> Result<Self, Failure> {
        // A port that was free a moment ago may be another dev's by now: then any will do.
        let manager = match Self::manager(plan, port(7470), port(7471)).await {
            Err(_) => Self::manager(plan, ANY_PORT, ANY_PORT).await?,
            Ok(manager) => manager,
        };
        let gateway = match Self::gateway(&manager, port(7490), port(7491)).await {
            Err(_) => Self::gateway(&manager, ANY_PORT, ANY_PORT).await?,
            Ok(gateway) => gateway,
        };
        let mut cluster = Self { manager, gateway, executors: BTreeMap::new() };
        for number in 1..=plan.executors {
            cluster.add(number, plan)?;
        }
        cluster.wait_until_served(plan.executors).await?;
        Ok(cluster)
    }

    async fn manager(plan: &Plan, grpc: SocketAddr, http: SocketAddr) -> Result<ManagerProcess, Failure> {
        let config = configure::<ManagerConfig>(&[
            "lease.profile=fast".to_owned(),
            "rebalance.settle=300ms".to_owned(),
            format!("cluster.shard_count={}", plan.shards),
            format!("store.url={}", path(&plan.folder, "manager.db")),
            format!("listen.grpc={grpc}"),
            format!("listen.http={http}"),
        ])?;
        ManagerProcess::start(&config).await
    }

    async fn gateway(manager: &ManagerProcess, grpc: SocketAddr, http: SocketAddr) -> Result<GatewayProcess, Failure> {
        let config = configure::<GatewayConfig>(&[
            format!("route.managers={}", manager.grpc),
            format!("listen.grpc={grpc}"),
            format!("listen.http={http}"),
        ])?;
        GatewayProcess::start(&config).await
    }

    fn add(&mut self, number: usize, plan: &Plan) -> Result<(), Failure> {
        let name = format!("executor-{number}");
        let config = configure::<ExecutorConfig>(&[
            "lease.profile=fast".to_owned(),
            format!("executor.name={name}"),
            format!("executor.managers={}", self.manager.grpc),
            format!("oplog.url={}", path(&plan.folder, "oplogs")),
            "listen.grpc=127.0.0.1:0".to_owned(),
            "listen.http=127.0.0.1:0".to_owned(),
        ])?;
        let running = Some(ExecutorThread::start(&config)?);
        let name = ExecutorName::new(name).expect("a word and a number");
        self.executors.insert(name, Slot { config, running });
        Ok(())
    }

    async fn wait_until_served(&self, executors: usize) -> Result<(), Failure> {
        let until = Instant::now() + START_WITHIN;
        loop {
            let status = self.manager.handle.status().await?;
            if status.executors.len() == executors && status.totals.owned == status.shard_count.get() {
                return Ok(());
            }
            if Instant::now() > until {
                let why = status.unassigned_because.unwrap_or_else(|| format!("{:?}", status.totals));
                return Err(Failure::new(
                    Exit::Failed,
                    format!("not every shard was served in {START_WITHIN:?}: {why}"),
                ));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn slot(&mut self, name: &ExecutorName) -> Result<&mut Slot, Failure> {
        let known: Vec<String> = self.executors.keys().map(ToString::to_string).collect();
        let unknown = || Failure::new(Exit::Usage, format!("no executor {name}; there are {}", known.join(", ")));
        self.executors.get_mut(name).ok_or_else(unknown)
    }

    /// Ends an executor as a crash would: nothing is drained, nothing is given back. Waits until its shards are served elsewhere.
    ///
    /// # Errors
    /// An unknown name, one that does not run, or no other executor to take over (the name is in the message).
    pub async fn kill(&mut self, name: &ExecutorName) -> Result<Killed, Failure> {
        if self.executors.values().filter(|slot| slot.running.is_some()).count() < 2 {
            return Err(Failure::new(Exit::Failed, format!("{name} is the last executor; nobody could take over")));
        }
        let thread = self.slot(name)?.running.take();
        let thread = thread.ok_or_else(|| Failure::new(Exit::Failed, format!("{name} does not run")))?;
        let before = self.manager.handle.published().table();
        let began = Instant::now();
        thread.kill();
        let lost: Vec<_> = (0..)
            .zip(&before.routes)
            .filter_map(|(shard, _)| {
                let (owner, epoch) = before.owner(leasehold_model::ShardId(shard))?;
                (owner.name == *name).then_some((shard, epoch))
            })
            .collect();
        loop {
            let now = self.manager.handle.published().table();
            let owner = |shard: u32| now.owner(leasehold_model::ShardId(shard));
            if lost.iter().all(|(shard, epoch)| owner(*shard).is_some_and(|(_, now)| now > *epoch)) {
                let example = lost.first().and_then(|(shard, epoch)| {
                    let (owner, now) = owner(*shard)?;
                    Some((*shard, epoch.get(), owner.name.to_string(), now.get()))
                });
                let served_again_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Ok(Killed { shards: lost.len(), served_again_ms, example });
            }
            if began.elapsed() > START_WITHIN {
                return Err(Failure::new(
                    Exit::Failed,
                    format!("the shards of {name} are not served after {START_WITHIN:?}"),
                ));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts a killed executor again, as a new process would.
    ///
    /// # Errors
    /// An unknown name, one that runs, or what kept it from starting.
    pub fn start_executor(&mut self, name: &ExecutorName) -> Result<(), Failure> {
        let slot = self.slot(name)?;
        if slot.running.is_some() {
            return Err(Failure::new(Exit::Failed, format!("{name} runs already")));
        }
        slot.running = Some(ExecutorThread::start(&slot.config)?);
        Ok(())
    }

    /// Ends everything in order: callers first, then executors, then the manager.
    pub async fn stop(self) {
        self.gateway.stop().await;
        let running = self.executors.into_values().filter_map(|slot| slot.running);
        futures::future::join_all(running.map(ExecutorThread::stop)).await;
        self.manager.stop().await;
    }
}
