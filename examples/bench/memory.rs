//! What a shard and an executor cost a manager: the growth of the resident memory of a process that runs the manager's
//! actors, between a small cluster and a large one. Executors answer in the process: what a connection costs is the
//! transport's, and is not in it.

use crate::cluster::{Manager, folder, store};
use crate::figure::{Measured, Result};
use crate::processes::resident_kib;
use crate::rounds::median;
use leasehold_model::state::{Executor, Shard};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The first argument of the process that is measured.
pub const CHILD: &str = "measure-manager";

const FEW_SHARDS: u32 = 1024;
const MANY_SHARDS: u32 = 65_536;
const FEW_EXECUTORS: usize = 200;
const MANY_EXECUTORS: usize = 10_200;
const RUNS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves the store named by the arguments, and prints how much memory that takes, in KiB.
pub async fn child(arguments: &[&str]) -> Result<()> {
    let [path, shards] = arguments else { return Err("a store and a shard count".into()) };
    let manager = Manager::start(Path::new(path), shards.parse()?, Duration::ZERO).await?;
    // Not by asking for a status: what it allocates for a moment would be measured as well.
    let executors = manager.handle.published().state.executors().len() as u64;
    let until = Instant::now() + PATIENCE;
    while manager.pushed.load(Ordering::Relaxed) < executors {
        if Instant::now() > until {
            return Err("the pushes of the take-over do not arrive".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Routers have asked, as they do.
    drop(leasehold_rpc::api::ManagerApi::routing_table(&manager.handle).await?);
    println!("{}", resident_kib("self")?);
    manager.stop().await
}

/// Bytes that the manager of such a cluster has.
async fn resident(path: &PathBuf, shards: u32, executors: usize) -> Result<f64> {
    store(path, shards, executors).await?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let output = Command::new(std::env::current_exe()?).arg(CHILD).arg(path).arg(shards.to_string()).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let kib: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
        runs.push(kib * 1024.0);
    }
    eprintln!("  {shards} shards, {executors} executors: {runs:.0?}");
    Ok(median(runs))
}

async fn growth(more: (u32, usize)) -> Result<f64> {
    let folder = folder()?;
    let few = resident(&folder.path().join("few.db"), FEW_SHARDS, FEW_EXECUTORS).await?;
    Ok(resident(&folder.path().join("many.db"), more.0, more.1).await? - few)
}

/// `manager_bytes_per_shard`; the baseline is one row in memory.
pub async fn per_shard() -> Result<Measured> {
    let grown = growth((MANY_SHARDS, FEW_EXECUTORS)).await?;
    let baseline = size_of::<Shard>() as f64;
    Ok(Measured { value: grown / f64::from(MANY_SHARDS - FEW_SHARDS), baseline })
}

/// `manager_bytes_per_executor`; the baseline is one row in memory, its texts aside.
pub async fn per_executor() -> Result<Measured> {
    let grown = growth((FEW_SHARDS, MANY_EXECUTORS)).await?;
    let baseline = size_of::<Executor>() as f64;
    Ok(Measured { value: grown / (MANY_EXECUTORS - FEW_EXECUTORS) as f64, baseline })
}
