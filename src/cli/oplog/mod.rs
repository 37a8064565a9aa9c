//! `shard-executor oplog …`: what stands in a store of oplogs, read without a fence.
//!
//! Executors may be at work meanwhile; each page of an oplog is one moment of the store (`leasehold_persistence::oplog::audit`).

mod check;
mod clear;
mod dump;
mod shown;
mod stats;

use super::config::ConfigOptions;
use super::{Exit, Failure};
use crate::serve::archive::open_blobs;
use crate::serve::store_url;
use clap::Subcommand;
use leasehold_config::ExecutorConfig;
use leasehold_persistence::oplog::Error;
use leasehold_persistence::oplog::audit::{self, Layers, OplogAudit};
use leasehold_persistence::oplog::layers::blobs::Blobs;
use std::sync::Arc;

/// Arguments of `oplog`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct OplogArgs {
    /// The store [default: `oplog.url` of the configuration]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    #[command(subcommand)]
    command: OplogCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum OplogCommand {
    /// Prove or refute what the fence promises: no gap, no stale entry, one writer per epoch; exit code 1 if refuted
    Check(check::CheckArgs),
    /// Print an agent's entries, one JSON object per line
    Dump(dump::DumpArgs),
    /// How much the store holds, by agent type and by shard
    Stats(stats::StatsArgs),
    /// The last resort: lower every record's epoch, so that a manager that counts from 1 again is let in; touches no entry
    ClearEpochs(clear::ClearArgs),
}

/// A store that was opened, and how its configuration names it.
struct Opened {
    store: Box<dyn OplogAudit>,
    /// Blob storage of the archive, if one is configured.
    blobs: Option<Arc<dyn Blobs>>,
    named: String,
    config: ExecutorConfig,
}

impl Opened {
    /// The store with its archive.
    fn layers(&self) -> Layers<'_> {
        Layers { store: &*self.store, blobs: self.blobs.as_deref() }
    }

    /// What an error of the store means to a command.
    fn failed(&self, error: &Error) -> Failure {
        failed(&self.named, error)
    }
}

fn failed(named: &str, error: &Error) -> Failure {
    let exit = match error {
        Error::Corrupt { .. } => Exit::Failed,
        Error::Invalid(_) => Exit::BadConfiguration,
        Error::Fenced { .. } | Error::IndexConflict { .. } | Error::Unavailable(_) | Error::Unknown(_) => {
            Exit::TryAgain
        }
    };
    Failure::new(exit, format!("{named}: {error}"))
}

/// Runs `oplog …`.
///
/// # Errors
/// The store cannot be read (75), is not the one that was meant (78), or is no store (1).
pub(super) async fn run(args: OplogArgs, options: &ConfigOptions) -> Result<Exit, Failure> {
    let OplogArgs { url, command } = args;
    let config =
        options.load::<ExecutorConfig>(url.map(|url| format!("oplog.url={url}")).into_iter().collect())?.config;
    let named = format!("oplog.url = {}", config.oplog.url);
    let store = audit::open(&store_url(&config.oplog.url), &config.cluster).await;
    let store = store.map_err(|error| failed(&named, &error))?;
    let blobs = match &config.oplog.archive.blobs {
        Some(storage) => Some(Arc::new(open_blobs(&config.cluster, storage).await?) as Arc<dyn Blobs>),
        None => None,
    };
    let opened = Opened { store, blobs, named, config };
    match command {
        OplogCommand::Check(args) => check::run(args, &opened).await,
        OplogCommand::Dump(args) => dump::run(args, &opened).await,
        OplogCommand::Stats(args) => stats::run(args, &opened).await,
        OplogCommand::ClearEpochs(args) => clear::run(args, &opened).await,
    }
}
