//! The command line of `shard-executor`.

use super::agents::{AgentsArgs, DeleteArgs, agents, delete};
use super::config::{self, ConfigCommand, ConfigOptions};
use super::load::{Counting, LoadArgs, counts, load};
use super::oplog::{self, OplogArgs};
use super::target::{TargetArgs, until_signal};
use super::{Exit, Failure, LogOptions, QUIET, Signals, init_logging, show};
use crate::gateway::GatewayProcess;
use crate::router::{Doubt, WITHIN_MOST};
use clap::{Parser, Subcommand};
use leasehold_config::{ExecutorConfig, GatewayConfig};
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{Address, AgentId, InvalidValue};
use serde::Serialize;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// Holds shards by lease and runs the agents on them; routes calls to whoever does.
#[derive(Debug, Parser)]
#[command(name = "shard-executor", version, max_term_width = 100)]
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
    /// Run an executor until it is told to stop
    Serve,
    /// Run a gateway: calls of any agent, over gRPC and HTTP/JSON, are routed to the owner of its shard
    Route(RouteArgs),
    /// Call an agent once
    Invoke(InvokeArgs),
    /// Delete an agent with everything it remembers; one that is not there is as good as deleted
    Delete(DeleteArgs),
    /// List agents, of one shard or of all
    Agents(AgentsArgs),
    /// Count every word or line of a file through agents, and say how that went
    Load(LoadArgs),
    /// Read back what a load counted: one line per word, `COUNT WORD`
    Counts(Counting),
    /// Read a store of oplogs from outside: check what the fence promises, dump, count
    Oplog(OplogArgs),
    /// The configuration of `serve`, or of `route` with `--route`
    Config {
        /// Of the gateway
        #[arg(long)]
        route: bool,
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// Arguments of `route`. Flags are stronger than `--set`, the environment and the file.
#[derive(Debug, Clone, clap::Args)]
struct RouteArgs {
    /// A manager to read the routing table from; may be given several times
    #[arg(long = "manager", value_name = "HOST:PORT", value_delimiter = ',')]
    managers: Vec<Address>,
    /// Where to serve gRPC
    #[arg(long, value_name = "IP:PORT")]
    grpc: Option<SocketAddr>,
    /// Where to serve HTTP
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
}

/// Arguments of `invoke`.
#[derive(Debug, Clone, clap::Args)]
struct InvokeArgs {
    /// The agent, as `type/id`
    agent: AgentId,
    /// The method
    method: String,
    /// The argument as JSON [default: null]
    argument: Option<String>,
    /// How long to try, through every move of the agent's shard
    #[arg(long, default_value = "30s", value_parser = within)]
    timeout: Duration,
    /// Run the call at most once under this key, 1 to 128 bytes [default: a fresh one]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    /// For programs: the answer with shard, epoch, executor, and whether it was replayed
    #[arg(long)]
    json: bool,
}

/// Parses the time that a call is given.
pub(super) fn within(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(within) if (Duration::from_millis(1)..=WITHIN_MOST).contains(&within) => Ok(within),
        Ok(_) | Err(_) => Err("expected a duration such as 5s or 250ms, 1ms to 1h".to_owned()),
    }
}

/// Runs the command.
///
/// # Errors
/// Why it failed, with the exit code.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    let Cli { log, config: options, command } = cli;
    if let Command::Serve = command {
        return super::serve::executor(&options, &log).await;
    }
    if let Command::Route(args) = command {
        return route(args, &options, &log).await;
    }
    init_logging(&log, QUIET)?;
    match command {
        Command::Serve | Command::Route(_) => unreachable!("handled above"),
        Command::Invoke(args) => invoke(args).await,
        Command::Delete(args) => delete(args).await,
        Command::Agents(args) => agents(args).await,
        Command::Load(args) => load(args).await,
        Command::Counts(args) => counts(args).await,
        Command::Oplog(args) => oplog::run(args, &options).await,
        Command::Config { route: true, command } => config::run::<GatewayConfig>(&options, &command),
        Command::Config { route: false, command } => config::run::<ExecutorConfig>(&options, &command),
    }
}

async fn route(args: RouteArgs, config: &ConfigOptions, log: &LogOptions) -> Result<Exit, Failure> {
    let managers: Vec<_> = args.managers.iter().map(Address::to_string).collect();
    let flags = [
        (!managers.is_empty()).then(|| format!("route.managers={}", managers.join(","))),
        args.grpc.map(|grpc| format!("listen.grpc={grpc}")),
        args.http.map(|http| format!("listen.http={http}")),
    ];
    let loaded = config.load::<GatewayConfig>(flags.into_iter().flatten().collect())?;
    init_logging(log, loaded.config.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::listen()?;
    let gateway = GatewayProcess::start(&loaded.config).await?;
    tracing::info!(grpc = %gateway.grpc, http = %gateway.http, "routing");
    let signal = signals.recv().await;
    tracing::info!(%signal, "stopping; a second signal stops at once");
    tokio::select! {
        () = gateway.stop() => Ok(Exit::Fine),
        signal = signals.recv() => Err(Failure::new(Exit::Failed, format!("a second signal ({signal}): stopped at once"))),
    }
}

async fn invoke(args: InvokeArgs) -> Result<Exit, Failure> {
    let InvokeArgs { agent, method, argument, timeout, idempotency_key, target, json } = args;
    if let Some(argument) = &argument {
        serde_json::from_str::<serde::de::IgnoredAny>(argument)
            .map_err(|error| InvalidValue::new("argument", argument, format!("one JSON value ({error})")))?;
    }
    let payload = argument.map(String::into_bytes).unwrap_or_default();
    let invocation = Invocation { agent, method, payload, idempotency_key };
    let target = target.target()?;
    let mut signals = Signals::listen()?;
    let doubt = Doubt::default();
    let call = target.call_in_doubt(invocation, timeout, &doubt);
    let told = ("the call may have run", "the call has not run: nobody took it");
    let answer = until_signal(call, &mut signals, &doubt, told).await?;
    show(&Answered::from(&answer), json, || String::from_utf8_lossy(&answer.payload).into_owned())?;
    Ok(Exit::Fine)
}

/// An answer for programs.
#[derive(Debug, Serialize)]
struct Answered {
    payload: Value,
    shard: u32,
    epoch: u64,
    executor: String,
    replayed: bool,
}

impl From<&InvocationAnswer> for Answered {
    fn from(answer: &InvocationAnswer) -> Self {
        // An agent answers JSON; if it ever does not, its text is more use than an error.
        let payload = serde_json::from_slice(&answer.payload)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&answer.payload).into_owned()));
        let (shard, epoch, executor) = (answer.shard.0, answer.epoch.get(), answer.executor.to_string());
        Self { payload, shard, epoch, executor, replayed: answer.replayed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_arguments_are_refused_and_good_ones_are_not() {
        let rows = [
            ("invoke counter/a increment", true),
            ("invoke counter/a increment {} --timeout 5s --idempotency-key k --json --manager a:1 --manager b:2", true),
            ("invoke counter/a increment --gateway 127.0.0.1:7490", true),
            ("invoke counter increment", false),
            ("invoke counter/a increment --timeout 5", false),
            ("invoke counter/a increment --timeout 2h", false),
            ("invoke counter/a increment --manager nowhere", false),
            ("delete counter/a --timeout 5s --json --manager a:1 --manager b:2", true),
            ("delete counter/a --gateway 127.0.0.1:7490", true),
            ("delete counter", false),
            ("agents", true),
            ("agents --shard 3 --after counter/a --limit 10 --json --manager a:1", true),
            ("agents --after counter/a", false),
            ("agents --limit 0", false),
            ("route --manager a:1 --grpc 127.0.0.1:0 --http 127.0.0.1:0", true),
            ("route --grpc 7490", false),
            ("load file --per word --type tally --concurrency 8 --limit 10 --run-id r --progress p", true),
            ("load file --concurrency 0", false),
            ("load file --concurrency 4097", false),
            ("load file --repeat 0", false),
            ("load file --per letter", false),
            ("counts file --type tally --json", true),
        ];
        for (line, accepted) in rows {
            let parsed = Cli::try_parse_from(std::iter::once("shard-executor").chain(line.split(' ')));
            assert_eq!(parsed.is_ok(), accepted, "{line}: {:?}", parsed.err().map(|error| error.to_string()));
        }
    }
}
