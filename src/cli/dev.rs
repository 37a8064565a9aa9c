//! `shard-manager dev`: the first minute.

use super::{Exit, Failure, LogOptions, QUIET, Signals, init_logging, say, show};
use crate::dev::{Cluster, Control, Killed, Plan, Reply, Request, ask};
use leasehold_model::{Address, ExecutorName};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;

/// What to run.
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DevOptions {
    /// How many executors
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    executors: u8,
    /// How many shards
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    shards: u32,
    /// Keep the data here [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    #[command(subcommand)]
    ask: Option<Ask>,
}

/// What to ask of the `dev` that runs in another terminal.
#[derive(Debug, Clone, clap::Subcommand)]
enum Ask {
    /// Kill an executor of the running dev, as a crash would, and watch its shards move
    Kill {
        /// `executor-2`
        executor: ExecutorName,
        /// Of the dev whose manager is there; needed when several of yours run
        #[arg(long, value_name = "HOST:PORT")]
        manager: Option<Address>,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Start a killed executor again
    Start {
        /// `executor-2`
        executor: ExecutorName,
        /// Of the dev whose manager is there; needed when several of yours run
        #[arg(long, value_name = "HOST:PORT")]
        manager: Option<Address>,
    },
}

/// Runs `dev`, or asks the one that runs.
///
/// # Errors
/// What could not start, or what the running `dev` refused.
pub(super) async fn run(options: DevOptions, log: &LogOptions) -> Result<Exit, Failure> {
    init_logging(log, QUIET)?;
    match options.ask {
        None => serve(options).await,
        Some(Ask::Kill { executor, manager, json }) => {
            match ask(&Request::Kill(executor.clone()), manager.as_ref()).await? {
                Reply::Killed(killed) => {
                    show(&killed, json, || render(&executor, &killed))?;
                    Ok(Exit::Fine)
                }
                Reply::Started => Err(Failure::new(Exit::Failed, "dev answered something else")),
                Reply::Failed(code, why) => Err(refused(code, why)),
            }
        }
        Some(Ask::Start { executor, manager }) => match ask(&Request::Start(executor.clone()), manager.as_ref()).await?
        {
            Reply::Started => {
                say(&format!("{executor} is starting; `shard-manager status` shows it take its share"))?;
                Ok(Exit::Fine)
            }
            Reply::Killed(_) => Err(Failure::new(Exit::Failed, "dev answered something else")),
            Reply::Failed(code, why) => Err(refused(code, why)),
        },
    }
}

fn refused(code: u8, why: String) -> Failure {
    Failure::new(if code == Exit::Usage.code() { Exit::Usage } else { Exit::Failed }, why)
}

fn render(executor: &ExecutorName, killed: &Killed) -> String {
    let Killed { shards, served_again_ms, example } = killed;
    let seconds = format!("{}.{} s", served_again_ms / 1000, served_again_ms % 1000 / 100);
    let example = example.as_ref().map_or_else(String::new, |(shard, before, owner, after)| {
        format!("\nfor example shard {shard}: {executor} at epoch {before} -> {owner} at epoch {after}")
    });
    format!("{executor} killed; its {shards} shards were served elsewhere after {seconds} (the lease is 3 s){example}")
}

async fn serve(options: DevOptions) -> Result<Exit, Failure> {
    let began = Instant::now();
    let temporary = tempfile::Builder::new()
        .prefix("leasehold-dev-")
        .tempdir()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot make a temporary folder: {error}")))?;
    let folder = options.keep.unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::new(Exit::Failed, format!("--keep {}: {error}", folder.display())))?;
    let plan = Plan { executors: options.executors.into(), shards: options.shards, folder };
    let mut signals = Signals::listen()?;
    let cluster = tokio::select! {
        cluster = Cluster::start(&plan) => cluster?,
        signal = signals.recv() => return Err(Failure::new(Exit::Failed, format!("{signal} while starting"))),
    };
    let (banner, manager) = (banner(&plan, &cluster, began), cluster.manager.grpc);
    let cluster = Arc::new(Mutex::new(Some(cluster)));
    let _control = Control::listen(Arc::clone(&cluster), manager, plan.executors).await?;
    say(&banner)?;
    let signal = signals.recv().await;
    say(&format!("{signal}: stopping"))?;
    let stopping = async {
        if let Some(cluster) = cluster.lock().await.take() {
            cluster.stop().await;
        }
    };
    tokio::select! {
        () = stopping => Ok(Exit::Fine),
        signal = signals.recv() => Err(Failure::new(Exit::Failed, format!("a second signal ({signal}): stopped at once"))),
    }
}

fn banner(plan: &Plan, cluster: &Cluster, began: Instant) -> String {
    let Plan { executors, shards, folder } = plan;
    let (manager, gateway) = (&cluster.manager, &cluster.gateway);
    let me = invoked_as();
    // Each names its cluster: others may run beside it, or be started later.
    let at = format!("--manager {}", manager.grpc);
    format!(
        "a manager, {executors} executors and a gateway serve {shards} shards (ready in {:.1} s)\n\
         \n  manager  gRPC {}, HTTP http://{}\n  gateway  gRPC {}, HTTP http://{}\n  data     {}\n\
         \nTry, in another terminal:\n\
         \n  curl -X POST http://{}/v1/agents/counter/hello/increment\n  {me} explain counter/hello {at}\
         \n  {me} dev kill executor-2 {at}\n  {me} status {at}\n\
         \nCtrl-C ends everything.",
        began.elapsed().as_secs_f64(),
        manager.grpc,
        manager.http,
        gateway.grpc,
        gateway.http,
        folder.display(),
        gateway.http,
    )
}

/// How this binary is called from here: by its name if it is on the path, otherwise by where it is.
fn invoked_as() -> String {
    let name = "shard-manager";
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|folder| folder.join(name).is_file()) {
        return name.to_owned();
    }
    let exe = std::env::current_exe().unwrap_or_else(|_| name.into());
    let here = std::env::current_dir().unwrap_or_default();
    exe.strip_prefix(&here).unwrap_or(&exe).display().to_string()
}
