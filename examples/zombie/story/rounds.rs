//! Two executors at a time are frozen with an append under way, replaced, and thawed.

use super::callers::Callers;
use super::verdict;
use super::world::{EXECUTORS, PATIENCE, SHARDS, World};
use super::{Backend, Plan, Result, Summary};
use leasehold_harness::Relay;
use leasehold_model::message::RoutingTable;
use leasehold_model::routing::shard_of;
use leasehold_model::{Address, ShardCount};
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::managers::Managers;
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Executors frozen at a time: half of them.
const AT_ONCE: usize = EXECUTORS / 2;
/// Waves before callers are stopped and everything is checked.
const WAVES_PER_CHAPTER: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);
/// How long the next owner may take on a busy machine: many leases.
const TAKE_OVER: Duration = Duration::from_secs(30);
/// How long to wait until the proxy holds something.
const HOLD: Duration = Duration::from_secs(3);
/// How often an executor is stopped to find it in the middle of a transaction.
const TRIES: u32 = 400;

/// How an executor is caught, and let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Its append is held on the way to the server, and arrives while it is still frozen.
    RequestThenThaw,
    /// The same, and it is thawed before that arrives.
    ThawThenRequest,
    /// Its append is carried out, and the answer held until it is thawed.
    Answer,
    /// Wherever it is. On SQLite: in the middle of a transaction.
    Anywhere,
}

const MANNERS: [Manner; 4] = [Manner::RequestThenThaw, Manner::Answer, Manner::ThawThenRequest, Manner::Anywhere];

/// A cluster, its callers, and how far the story is.
pub struct Rounds {
    world: World,
    managers: Managers,
    callers: Option<Callers>,
    wave: u32,
}

impl Rounds {
    pub async fn start(plan: &Plan) -> Result<Self> {
        let world = World::start(plan)?;
        let managers = Managers::dial(Dialer::tcp(), &[Address::new(world.manager.as_str())?]).deadline(PATIENCE);
        let rounds = Self { world, managers, callers: None, wave: 0 };
        rounds.settled().await?;
        Ok(rounds)
    }

    /// Ends every process; where everything is kept, if that is wanted.
    pub fn end(self, keep: bool) -> Option<PathBuf> {
        drop(self.callers);
        self.world.end(keep)
    }

    fn say(&self, text: &str) {
        eprintln!("[{:>8}] {text}", self.world.backend.to_string());
    }

    /// Freezes `count` executors, and checks everything now and then and in the end.
    pub async fn play(&mut self, count: u32, summary: &mut Summary) -> Result<()> {
        let mut chapter = 0;
        while summary.rounds < count {
            chapter += 1;
            self.callers = Some(Callers::start(&self.world.manager, chapter)?);
            for _ in 0..WAVES_PER_CHAPTER {
                let left = usize::try_from(count - summary.rounds).unwrap_or(AT_ONCE);
                if left == 0 {
                    break;
                }
                self.wave(left.min(AT_ONCE), summary).await?;
            }
            self.settled().await?;
            if let Some(callers) = self.callers.take() {
                let histories = callers.end().await?;
                verdict::judge(&self.world, &histories, summary)?;
            }
            summary.fenced = self.world.executors.iter().map(fenced).sum();
            self.say(&format!(
                "{} of {count} rounds, {} in mid-append; {} appends acknowledged, {} unknown ({} landed); {} fenced; {} violations",
                summary.rounds,
                summary.mid_append,
                summary.acknowledged,
                summary.unknown.0,
                summary.unknown.1,
                summary.fenced,
                summary.violations.len()
            ));
            if !summary.holds() {
                break;
            }
        }
        Ok(())
    }

    async fn wave(&mut self, size: usize, summary: &mut Summary) -> Result<()> {
        let table = self.settled().await?;
        let victims = self.victims(&table, size);
        let manner = MANNERS[self.wave as usize % MANNERS.len()];
        self.wave += 1;
        let mut frozen = Vec::new();
        for victim in victims {
            let caught = self.freeze(victim, manner).await;
            summary.mid_append += u32::from(caught);
            frozen.push((victim, Instant::now()));
        }
        let moved = match self.moved_on(&table, &frozen).await {
            // docs/decisions/0005: until it wakes, which it does now; what that does to the entries is judged as ever.
            Err(error) if self.world.backend == Backend::Sqlite => {
                self.say(&format!("stood still: {error}"));
                summary.stood_still += u32::try_from(frozen.len()).unwrap_or(0);
                Ok(())
            }
            moved => moved,
        };
        // Also if they did not: nothing stays frozen.
        for (victim, _) in &frozen {
            self.thaw(*victim, manner).await;
        }
        summary.rounds += u32::try_from(frozen.len()).unwrap_or(0);
        moved
    }

    /// Executors whose agents are called, beginning with another one each time.
    fn victims(&self, table: &RoutingTable, size: usize) -> Vec<usize> {
        let first = self.wave as usize * AT_ONCE;
        let order = (0..EXECUTORS).map(|step| (first + step) % EXECUTORS);
        let serves = |number: &usize| !self.agents(table, &self.world.executors[*number].name).is_empty();
        order.filter(serves).take(size).collect()
    }

    /// The registers that executor `name` owns.
    fn agents(&self, table: &RoutingTable, name: &str) -> Vec<usize> {
        let registers = self.callers.as_ref().map_or(&[][..], |callers| callers.registers.as_slice());
        let owned = |agent| {
            let shards = ShardCount::new(SHARDS).ok()?;
            let (owner, _) = table.owner(shard_of(agent, shards))?;
            Some(owner.name.as_str() == name)
        };
        let numbers = registers.iter().enumerate().filter(|(_, register)| owned(&register.agent) == Some(true));
        numbers.map(|(number, _)| number).collect()
    }

    /// Whether it was caught with an append under way.
    async fn freeze(&self, victim: usize, manner: Manner) -> bool {
        let executor = &self.world.executors[victim];
        if !executor.has_proxy() {
            for _ in 0..TRIES {
                executor.signal(Signal::STOP);
                if self.world.writes(victim) {
                    return true;
                }
                executor.signal(Signal::CONT);
                sleep(Duration::from_millis(3)).await;
            }
            executor.signal(Signal::STOP);
            return false;
        }
        let before = executor.held();
        match manner {
            Manner::RequestThenThaw | Manner::ThawThenRequest => executor.relay(Relay::HoldRequests),
            Manner::Answer => executor.relay(Relay::HoldAnswers),
            Manner::Anywhere => {}
        }
        let until = Instant::now() + HOLD;
        while manner != Manner::Anywhere && executor.held() == before && Instant::now() < until {
            sleep(Duration::from_millis(2)).await;
        }
        executor.signal(Signal::STOP);
        executor.held() > before
    }

    async fn thaw(&self, victim: usize, manner: Manner) {
        let executor = &self.world.executors[victim];
        if manner == Manner::RequestThenThaw {
            executor.relay(Relay::Pass);
            sleep(PAUSE).await;
        }
        executor.signal(Signal::CONT);
        sleep(PAUSE).await;
        executor.relay(Relay::Pass);
    }

    /// Waits until the next owner of each frozen executor's agents has appended.
    async fn moved_on(&self, table: &RoutingTable, frozen: &[(usize, Instant)]) -> Result<()> {
        let Some(callers) = &self.callers else { return Ok(()) };
        for (victim, since) in frozen {
            let name = &self.world.executors[*victim].name;
            for number in self.agents(table, name) {
                let register = &callers.registers[number];
                let until = Instant::now() + TAKE_OVER;
                while !register.moved_on(name, *since) {
                    if Instant::now() >= until {
                        let agent = &register.agent;
                        return Err(format!(
                            "{agent} of {name}, which is frozen, is served by nobody for {TAKE_OVER:?}"
                        )
                        .into());
                    }
                    sleep(PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// Waits until every executor is registered and every shard owned by one of them.
    async fn settled(&self) -> Result<std::sync::Arc<RoutingTable>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.managers.status().await;
            let settled = status.is_ok_and(|status| {
                let owning =
                    status.executors.iter().filter(|executor| executor.owned > 0 && executor.releasing == 0).count();
                status.totals.owned == SHARDS && status.executors.len() == EXECUTORS && owning == EXECUTORS
            });
            if settled {
                return Ok(self.managers.routing_table().await.map_err(|error| error.to_string())?);
            }
            if Instant::now() >= until {
                return Err(format!("the cluster is not whole again within {PATIENCE:?}").into());
            }
            sleep(PAUSE).await;
        }
    }
}

fn fenced(executor: &super::world::Executor) -> u64 {
    executor.metric("leasehold_executor_fenced_agents_total")
}

impl Backend {
    /// Whether each executor stands behind a proxy.
    #[allow(dead_code, reason = "the test asks")]
    pub const fn is_a_server(self) -> bool {
        match self {
            Self::Sqlite => false,
            Self::Postgres | Self::Redis => true,
        }
    }
}
