//! `shard-executor delete` and `shard-executor agents`.

use super::executor::within;
use super::target::{TargetArgs, not_too_many, until_signal};
use super::{Exit, Failure, Signals, show, table};
use crate::router::Doubt;
use leasehold_model::agents::{AgentPage, AgentQuery, MAX_PAGE};
use leasehold_model::message::RoutingTable;
use leasehold_model::refusal::Class;
use leasehold_model::{Address, AgentId, CallError, ShardId};
use leasehold_rpc::api::{ExecutorApi, ManagerApi};
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::ExecutorClient;
use leasehold_rpc::managers::Managers;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two attempts to list the agents of a shard that is on the move.
const PAUSE: Duration = Duration::from_millis(200);

/// Arguments of `delete`.
#[derive(Debug, Clone, clap::Args)]
pub struct DeleteArgs {
    /// The agent, as `type/id`
    agent: AgentId,
    /// How long to try, through every move of the agent's shard
    #[arg(long, default_value = "30s", value_parser = within)]
    timeout: Duration,
    #[command(flatten)]
    target: TargetArgs,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Arguments of `agents`.
#[derive(Debug, Clone, clap::Args)]
pub struct AgentsArgs {
    /// Only those of this shard
    #[arg(long, value_name = "NUMBER")]
    shard: Option<u32>,
    /// Only ids after this one, to go on where a list with --shard ended
    #[arg(long, value_name = "TYPE/ID", requires = "shard")]
    after: Option<AgentId>,
    /// At most so many
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// How long to try
    #[arg(long, default_value = "30s", value_parser = within)]
    timeout: Duration,
    /// A manager to read the routing table from; may be given several times
    #[arg(long = "manager", value_name = "HOST:PORT", env = "LEASEHOLD_MANAGER", value_delimiter = ',')]
    #[arg(default_value = "127.0.0.1:7470")]
    managers: Vec<Address>,
    /// For programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Deleted {
    agent: String,
    shard: u32,
    epoch: u64,
    executor: String,
}

/// Deletes an agent.
///
/// # Errors
/// Why it could not, with the exit code.
pub(super) async fn delete(args: DeleteArgs) -> Result<Exit, Failure> {
    let DeleteArgs { agent, timeout, target, json } = args;
    let target = target.target()?;
    let mut signals = Signals::listen()?;
    let doubt = Doubt::default();
    let call = target.delete(agent.clone(), timeout, &doubt);
    let told = ("it may have been deleted", "it has not been deleted: nobody took the call");
    let answer = until_signal(call, &mut signals, &doubt, told).await?;
    let deleted = Deleted {
        agent: agent.to_string(),
        shard: answer.shard.0,
        epoch: answer.epoch.get(),
        executor: answer.executor.to_string(),
    };
    show(&deleted, json, || format!("deleted {agent}"))?;
    Ok(Exit::Fine)
}

#[derive(Debug, Serialize)]
struct Listed {
    agent: String,
    shard: u32,
    executor: String,
    standing: &'static str,
}

/// What `agents` prints.
#[derive(Debug, Default, Serialize)]
struct List {
    agents: Vec<Listed>,
    /// Whether there may be more.
    more: bool,
}

/// Lists agents.
///
/// # Errors
/// Why it could not, with the exit code.
pub(super) async fn agents(args: AgentsArgs) -> Result<Exit, Failure> {
    not_too_many(&args.managers)?;
    let json = args.json;
    let list = Lister::new(args).list().await?;
    show(&list, json, || {
        let mut table = table(&["agent", "shard", "executor", "standing"]);
        for Listed { agent, shard, executor, standing } in &list.agents {
            table.add_row([agent.clone(), shard.to_string(), executor.clone(), (*standing).to_owned()]);
        }
        let more = if list.more { "\nthere are more: --limit, or --shard with --after" } else { "" };
        format!("{table}{more}")
    })?;
    Ok(Exit::Fine)
}

struct Lister {
    args: AgentsArgs,
    dialer: Dialer,
    managers: Managers,
    executors: BTreeMap<Address, ExecutorClient>,
    deadline: Instant,
}

impl Lister {
    fn new(args: AgentsArgs) -> Self {
        let dialer = Dialer::tcp();
        let managers = Managers::dial(dialer.clone(), &args.managers);
        let deadline = Instant::now() + args.timeout;
        Self { args, dialer, managers, executors: BTreeMap::new(), deadline }
    }

    async fn list(mut self) -> Result<List, Failure> {
        let mut routes = self.table().await?;
        let count = u32::try_from(routes.routes.len()).unwrap_or(u32::MAX);
        let shards = match self.args.shard {
            Some(shard) if shard >= count => {
                let message = format!("--shard {shard}: this cluster has shards 0 to {}", count.saturating_sub(1));
                return Err(Failure::new(Exit::Usage, message));
            }
            Some(shard) => shard..shard + 1,
            None => 0..count,
        };
        let mut list = List::default();
        for shard in shards.map(ShardId) {
            let mut after = self.args.after.clone();
            loop {
                let left = self.args.limit - u32::try_from(list.agents.len()).unwrap_or(self.args.limit);
                if left == 0 {
                    list.more = true;
                    return Ok(list);
                }
                let query = AgentQuery { shard, after: after.take(), limit: left.min(MAX_PAGE) };
                let (page, executor) = self.page(&mut routes, query).await?;
                after = page.agents.last().map(|listed| listed.agent.clone());
                list.agents.extend(page.agents.into_iter().map(|listed| Listed {
                    agent: listed.agent.to_string(),
                    shard: shard.0,
                    executor: executor.clone(),
                    standing: listed.standing.as_str(),
                }));
                if !page.more {
                    break;
                }
            }
        }
        Ok(list)
    }

    async fn table(&self) -> Result<Arc<RoutingTable>, Failure> {
        loop {
            match self.managers.routing_table().await {
                Ok(table) => return Ok(table),
                Err(error) if self.later(&error).await => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One page from the shard's owner, and the owner's name. Who owns it is looked up again after each failure.
    async fn page(
        &mut self,
        routes: &mut Arc<RoutingTable>,
        query: AgentQuery,
    ) -> Result<(AgentPage, String), Failure> {
        loop {
            let shard = query.shard;
            let error = match routes.owner(shard) {
                Some((owner, _)) => {
                    let (name, client) = (owner.name.to_string(), self.executor(&owner.address));
                    match client.list_agents(query.clone()).await {
                        Ok(page) => return Ok((page, name)),
                        Err(error) => error,
                    }
                }
                None => CallError::Unreachable(format!("shard {shard} has no owner")),
            };
            if !self.later(&error).await {
                return Err(Failure::from(error).about(&format!("shard {shard}")));
            }
            *routes = self.table().await?;
        }
    }

    fn executor(&mut self, address: &Address) -> ExecutorClient {
        let dial = || ExecutorClient::new(self.dialer.dial(address));
        self.executors.entry(address.clone()).or_insert_with(dial).clone()
    }

    /// Waits before another attempt, if that may help and there is time.
    async fn later(&self, error: &CallError) -> bool {
        let helps = match error {
            CallError::Refused(refusal) => refusal.class() == Class::Retry,
            CallError::Unreachable(_) | CallError::Unknown(_) => true,
        };
        let again = helps && Instant::now() + PAUSE < self.deadline;
        if again {
            sleep(PAUSE).await;
        }
        again
    }
}
