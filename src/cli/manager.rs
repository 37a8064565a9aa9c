//! The command line of `shard-manager`.

use super::config::{self, ConfigCommand, ConfigOptions};
use super::target::not_too_many;
use super::wrong_port::{self, Wanted};
use super::{Exit, Failure, LogOptions, QUIET, Signal, Signals, init_logging, show, table};
use crate::serve::manager::ManagerProcess;
use crate::serve::replica::ReplicaProcess;
use chrono::{DateTime, Local};
use clap::{Parser, Subcommand};
use leasehold_actors::manager::LeadershipEnd;
use leasehold_config::ManagerConfig;
use leasehold_model::message::{ClusterStatus, ExecutorStatus, Route, RoutingTable, ShardExplanation};
use leasehold_model::routing::shard_of;
use leasehold_model::{Address, AgentId, CallError, ExecutorName, InvalidValue, ShardId};
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::managers::Managers;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Decides which executor owns which shard.
#[derive(Debug, Parser)]
#[command(name = "shard-manager", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    config: ConfigOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a manager until it is told to stop
    Serve,
    /// Run a whole cluster in this terminal, and kill parts of it
    Dev(super::dev::DevOptions),
    /// The cluster at a glance; exit code 1 if something is wrong with it
    Status(Ask),
    /// Every shard with its owner and epoch
    Shards(Ask),
    /// Every executor with its shards and its lease
    Executors(Ask),
    /// Why a shard, or the shard of an agent, is where it is
    Explain {
        /// A shard's number, or an agent as `type/id`
        what: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Ask an executor to leave: its shards are handed off, it is given no more
    Drain {
        /// Its name
        executor: ExecutorName,
        #[command(flatten)]
        ask: Ask,
    },
    /// Let a draining executor stay
    Undrain {
        /// Its name
        executor: ExecutorName,
        #[command(flatten)]
        ask: Ask,
    },
    /// The configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// Whom to ask, and how to show the answer.
#[derive(Debug, Clone, clap::Args)]
struct Ask {
    /// The managers' gRPC addresses, asked in turn until the leader is found; may be given several times
    #[arg(long = "manager", value_name = "HOST:PORT", env = "LEASEHOLD_MANAGER", value_delimiter = ',')]
    #[arg(default_value = "127.0.0.1:7470")]
    managers: Vec<Address>,
    /// How long to wait for an answer, whoever is asked
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5s")]
    timeout: Duration,
    /// For programs
    #[arg(long)]
    json: bool,
}

impl Ask {
    fn manager(&self) -> Result<Managers, Failure> {
        not_too_many(&self.managers)?;
        Ok(Managers::dial(Dialer::tcp(), &self.managers).deadline(self.timeout))
    }

    /// Awaits the managers' answer; says of whom it was asked, and whether there can be a manager at all, when there is none.
    async fn answer<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, Failure> {
        let began = Instant::now();
        let error = match call.await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let managers: Vec<_> = self.managers.iter().map(ToString::to_string).collect();
        let looks = match &error {
            CallError::Refused(_) => false,
            // Of several, the error is the last one's. Of one, no answer in time is nothing odd.
            CallError::Unknown(_) => managers.len() > 1 || began.elapsed() < self.timeout,
            CallError::Unreachable(_) => managers.len() > 1,
        };
        let failure = Failure::from(error).about(&format!("manager {}", managers.join(", ")));
        Err(if looks { wrong_port::explained(failure, &self.managers, Wanted::Manager).await } else { failure })
    }
}

/// Runs what the command line asks for.
///
/// # Errors
/// What to say and the exit code to end with.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    if let Command::Serve = cli.command {
        return serve(&cli.config, &cli.log).await;
    }
    if let Command::Dev(options) = cli.command {
        return super::dev::run(options, &cli.log).await;
    }
    init_logging(&cli.log, QUIET)?;
    match cli.command {
        Command::Serve | Command::Dev(_) => unreachable!("handled above"),
        Command::Status(ask) => status(&ask).await,
        Command::Shards(ask) => shards(&ask).await,
        Command::Executors(ask) => executors(&ask).await,
        Command::Explain { what, ask } => explain(&what, &ask).await,
        Command::Drain { executor, ask } => drain(executor, true, &ask).await,
        Command::Undrain { executor, ask } => drain(executor, false, &ask).await,
        Command::Config(command) => config::run::<ManagerConfig>(&cli.config, &command),
    }
}

async fn serve(options: &ConfigOptions, log: &LogOptions) -> Result<Exit, Failure> {
    let loaded = options.load::<ManagerConfig>(Vec::new())?;
    init_logging(log, loaded.config.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::listen()?;
    match &loaded.config.leadership {
        None => serve_alone(&loaded.config, &mut signals).await,
        Some(leadership) => {
            // etcd may not answer for a while.
            let replica = tokio::select! {
                replica = ReplicaProcess::start(&loaded.config, leadership) => replica?,
                signal = signals.recv() => {
                    tracing::info!(%signal, "stopped before it stood for leadership");
                    return Ok(Exit::Fine);
                }
            };
            let signal = tokio::select! {
                signal = signals.recv() => signal,
                end = replica.ended(&loaded.config) => {
                    replica.stop().await;
                    return end;
                }
            };
            stop_at(signal, replica.stop(), &mut signals).await
        }
    }
}

/// Local mode.
async fn serve_alone(config: &ManagerConfig, signals: &mut Signals) -> Result<Exit, Failure> {
    let manager = ManagerProcess::start(config).await?;
    let signal = tokio::select! {
        signal = signals.recv() => signal,
        end = manager.ended() => {
            manager.stop().await;
            return match end {
                LeadershipEnd::Stopped => Ok(Exit::Fine),
                LeadershipEnd::Lost(why) => Err(Failure::new(Exit::Failed, format!("the leadership is over: {why}"))),
            };
        }
    };
    stop_at(signal, manager.stop(), signals).await
}

/// R37: stops in order; a second signal ends that.
async fn stop_at(signal: Signal, stopped: impl Future<Output = ()>, signals: &mut Signals) -> Result<Exit, Failure> {
    tracing::info!(%signal, "stopping; a second signal stops at once");
    tokio::select! {
        () = stopped => Ok(Exit::Fine),
        signal = signals.recv() => Err(Failure::new(Exit::Failed, format!("a second signal ({signal}): stopped at once"))),
    }
}

async fn status(ask: &Ask) -> Result<Exit, Failure> {
    let status = ask.answer(ask.manager()?.status()).await?;
    show(&status, ask.json, || render_status(&status))?;
    let well = status.troubles.is_empty() && status.totals.unassigned == 0;
    Ok(if well { Exit::Fine } else { Exit::Failed })
}

fn render_status(status: &ClusterStatus) -> String {
    let totals = status.totals;
    let mut lines = vec![
        format!("cluster    {} ({} shards)", status.cluster, status.shard_count),
        format!("manager    {}, leading for {}", status.manager, span(status.leading_ms)),
        format!("revision   {}", status.revision),
        format!("shards     {} owned, {} releasing, {} unassigned", totals.owned, totals.releasing, totals.unassigned),
    ];
    if let Some(why) = &status.unassigned_because {
        lines.push(format!("           unassigned because {why}"));
    }
    lines.push(String::new());
    lines.push(render_executors(&status.executors));
    if !status.troubles.is_empty() {
        lines.push(String::new());
        lines.extend(status.troubles.iter().map(|trouble| format!("! {trouble}")));
    }
    lines.join("\n")
}

fn render_executors(executors: &[ExecutorStatus]) -> String {
    if executors.is_empty() {
        return "no executor is registered".to_owned();
    }
    let mut rows = table(&["executor", "address", "shards", "lease left", "running", "state", "since"]);
    for executor in executors {
        let shards = match executor.releasing {
            0 => executor.owned.to_string(),
            releasing => format!("{} (+{releasing} releasing)", executor.owned),
        };
        rows.add_row([
            executor.name.to_string(),
            executor.address.to_string(),
            shards,
            span(executor.lease_remaining_ms),
            executor.condition.running.to_string(),
            state_of(executor),
            when(executor.registered_at_ms),
        ]);
    }
    rows.to_string()
}

/// What an executor does, in a word or two. Without a lease it does nothing, whatever it did before.
fn state_of(executor: &ExecutorStatus) -> String {
    let state = match executor {
        ExecutorStatus { superseded: true, .. } => "superseded".to_owned(),
        ExecutorStatus { lease_remaining_ms: 0, .. } => "lapsed".to_owned(),
        ExecutorStatus { draining: true, .. } => "draining".to_owned(),
        ExecutorStatus { lagging_ms: Some(lag), .. } => format!("catching up ({})", span(*lag)),
        ExecutorStatus { lagging_ms: None, .. } => "serving".to_owned(),
    };
    match executor.condition.oplog_failing_ms {
        0 => state,
        failing => format!("{state}, oplogs fail ({})", span(failing)),
    }
}

fn span(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{} min", ms / 60_000),
    }
}

fn when(unix_ms: i64) -> String {
    DateTime::from_timestamp_millis(unix_ms)
        .map_or_else(String::new, |at| at.with_timezone(&Local).format("%F %T").to_string())
}

/// One row of `shards`.
#[derive(Serialize)]
struct ShardRow {
    shard: u32,
    state: &'static str,
    epoch: Option<u64>,
    owner: Option<String>,
    address: Option<String>,
}

fn shard_rows(table: &RoutingTable) -> Vec<ShardRow> {
    let row = |(shard, route): (u32, &Route)| {
        let (state, owner, epoch) = match route {
            Route::Unassigned => ("unassigned", None, None),
            Route::Owned(owner, epoch) => ("owned", table.owners.get(*owner as usize), Some(epoch.get())),
            Route::Releasing(owner) => ("releasing", table.owners.get(*owner as usize), None),
        };
        let (name, address) = owner.map(|owner| (owner.name.to_string(), owner.address.to_string())).unzip();
        ShardRow { shard, state, epoch, owner: name, address }
    };
    (0..).zip(&table.routes).map(row).collect()
}

async fn shards(ask: &Ask) -> Result<Exit, Failure> {
    let routing = ask.answer(ask.manager()?.routing_table()).await?;
    let rows = shard_rows(&routing);
    show(&rows, ask.json, || {
        let mut shown = table(&["shard", "state", "epoch", "owner", "address"]);
        for row in &rows {
            let epoch = row.epoch.map(|epoch| epoch.to_string());
            let cells = [
                Some(row.shard.to_string()),
                Some(row.state.to_owned()),
                epoch,
                row.owner.clone(),
                row.address.clone(),
            ];
            shown.add_row(cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())));
        }
        shown.to_string()
    })?;
    Ok(Exit::Fine)
}

async fn executors(ask: &Ask) -> Result<Exit, Failure> {
    let status = ask.answer(ask.manager()?.status()).await?;
    show(&status.executors, ask.json, || render_executors(&status.executors))?;
    Ok(Exit::Fine)
}

/// What `explain` answers.
#[derive(Serialize)]
struct Explained {
    agent: Option<AgentId>,
    #[serde(flatten)]
    explanation: ShardExplanation,
}

async fn explain(what: &str, ask: &Ask) -> Result<Exit, Failure> {
    let manager = ask.manager()?;
    let (agent, shard) = if let Ok(number) = what.parse::<u32>() {
        (None, ShardId(number))
    } else {
        let agent: AgentId = what.parse().map_err(|error: InvalidValue| Failure::from(error))?;
        let count = ask.answer(manager.status()).await?.shard_count;
        let shard = shard_of(&agent, count);
        (Some(agent), shard)
    };
    let explanation = ask.answer(manager.explain(shard)).await?;
    let explained = Explained { agent, explanation };
    show(&explained, ask.json, || {
        let ShardExplanation { shard, epoch, state, owner, because, .. } = &explained.explanation;
        let agent = explained.agent.as_ref().map(|agent| format!("{agent} is on ")).unwrap_or_default();
        let owner = owner.as_ref().map(|owner| format!(" by {} ({})", owner.name, owner.address)).unwrap_or_default();
        let because: String = because.iter().map(|line| format!("\n  {line}")).collect();
        format!("{agent}shard {shard}: {state}{owner}, epoch {epoch}{because}")
    })?;
    Ok(Exit::Fine)
}

async fn drain(executor: ExecutorName, draining: bool, ask: &Ask) -> Result<Exit, Failure> {
    ask.answer(ask.manager()?.set_draining(executor.clone(), draining)).await?;
    let what = if draining { "is asked to leave" } else { "stays" };
    show(&serde_json::json!({ "executor": executor, "draining": draining }), ask.json, || {
        format!("{executor} {what}")
    })?;
    Ok(Exit::Fine)
}
