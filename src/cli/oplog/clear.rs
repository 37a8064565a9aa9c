//! `oplog clear-epochs`: the last resort.
//!
//! It takes the fence down for a moment, so it is refused while anybody could need it: whoever holds a lease.

use super::{Opened, check};
use crate::cli::target::not_too_many;
use crate::cli::{Exit, Failure, say};
use leasehold_config::ExecutorConfig;
use leasehold_model::message::ClusterStatus;
use leasehold_model::{Address, AgentId, CallError, ExecutorId, ShardEpoch};
use leasehold_persistence::oplog::audit::{Depth, Record};
use leasehold_persistence::oplog::{EntryIndex, Writer};
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::managers::Managers;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// Names in one page.
const PAGE: u32 = 1024;
/// What has to be typed.
const WORD: &str = "clear";
/// How long managers may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `oplog clear-epochs`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ClearArgs {
    /// Only these agents' records, as `type/id` [default: all]
    agents: Vec<AgentId>,
    /// A manager to ask whether anybody holds a lease; may be given several times [default: `executor.managers`]
    #[arg(long = "manager", value_name = "HOST:PORT", env = "LEASEHOLD_MANAGER", value_delimiter = ',')]
    managers: Vec<Address>,
    /// Go on although no manager answers: you have seen to it yourself that no executor of this cluster runs, or is frozen, anywhere
    #[arg(long)]
    no_executor_runs: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// One line of the output, which `oplog check --cleared` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cleared {
    agent: String,
    /// What the record held.
    epoch: u64,
    executor: String,
    /// The next index: what is written from there on is of another count of epochs.
    next: u64,
}

/// The next index of every oplog that `files` say was cleared.
///
/// # Errors
/// Exit code 64 when a file is not the output of `oplog clear-epochs`.
pub(super) fn told(files: &[PathBuf]) -> Result<BTreeMap<String, u64>, Failure> {
    let mut all = BTreeMap::new();
    for file in files {
        let refuse = |why: String| Failure::new(Exit::Usage, format!("--cleared {}: {why}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| refuse(error.to_string()))?;
        for (line, number) in text.lines().zip(1..) {
            let wrong = |error| refuse(format!("line {number} is none that `oplog clear-epochs` prints: {error}"));
            let cleared: Cleared = serde_json::from_str(line).map_err(wrong)?;
            all.insert(cleared.agent, cleared.next);
        }
    }
    Ok(all)
}

/// Runs `oplog clear-epochs`.
///
/// # Errors
/// 1 while somebody holds a lease; 69 when no manager answers and nobody vouches; 64 without a confirmation; otherwise as the store's. What
/// was cleared until then has been said.
pub(super) async fn run(args: ClearArgs, opened: &Opened) -> Result<Exit, Failure> {
    for agent in &args.agents {
        check::exists(opened, agent.as_str()).await?;
    }
    nobody_holds_a_lease(&args, &opened.config).await?;
    if !args.yes {
        confirm(&args, opened).await?;
    }
    let to = Writer { epoch: ShardEpoch::owned(1)?, executor: ExecutorId(Uuid::new_v4()) };
    let mut counts = (0_u64, 0_u64);
    if args.agents.is_empty() {
        let mut after = None;
        loop {
            let names = opened.store.names(after.as_deref(), PAGE).await.map_err(|error| opened.failed(&error))?;
            let Some(last) = names.last().cloned() else { break };
            for name in &names {
                clear(name, to, opened, &mut counts).await?;
            }
            after = Some(last);
        }
    } else {
        for agent in &args.agents {
            clear(agent.as_str(), to, opened, &mut counts).await?;
        }
    }
    let (cleared, left) = counts;
    drop(writeln!(
        io::stderr(),
        "{cleared} records cleared, {left} left as they were; keep the lines above for `shard-executor oplog check --cleared FILE`"
    ));
    Ok(if left == 0 { Exit::Fine } else { Exit::Failed })
}

async fn clear(name: &str, to: Writer, opened: &Opened, counts: &mut (u64, u64)) -> Result<(), Failure> {
    let page = opened.store.page(name, EntryIndex(1), Depth::Heads, 1).await.map_err(|error| opened.failed(&error))?;
    let Some(page) = page else { return Ok(()) };
    let left = |counts: &mut (u64, u64), why: &str| {
        counts.1 += 1;
        drop(writeln!(io::stderr(), "{name}: left as it is: {why}"));
    };
    let Record { writer, next, .. } = match page.record {
        Ok(record) => record,
        Err(damage) => {
            left(counts, &format!("its record cannot be read: {}", damage.what));
            return Ok(());
        }
    };
    if !opened.store.clear(name, writer, to).await.map_err(|error| opened.failed(&error))? {
        left(counts, "somebody claimed it meanwhile: an executor is at work");
        return Ok(());
    }
    counts.0 += 1;
    let (epoch, executor) = (writer.epoch.get(), writer.executor.to_string());
    let line = serde_json::to_string(&Cleared { agent: name.to_owned(), epoch, executor, next: next.0 });
    say(&line.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?)
}

async fn nobody_holds_a_lease(args: &ClearArgs, config: &ExecutorConfig) -> Result<(), Failure> {
    let managers = if args.managers.is_empty() { &config.executor.managers } else { &args.managers };
    not_too_many(managers)?;
    let named = managers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match Managers::dial(Dialer::tcp(), managers).deadline(PATIENCE).status().await {
        Ok(status) => judge(&status, config, &named),
        Err(CallError::Refused(refusal)) => Err(Failure::from(CallError::Refused(refusal)).about(&named)),
        Err(CallError::Unreachable(_) | CallError::Unknown(_)) if args.no_executor_runs => Ok(()),
        Err(error) => Err(Failure::new(
            Exit::NobodyAnswers,
            format!(
                "manager {named}: {error}\nwithout a manager nobody can say whether an executor holds a lease, and one that does would \
                 go on writing beside the next owner; nothing was cleared. Start the manager, name it with --manager, or, once no executor of \
                 this cluster runs or is frozen anywhere, say so with --no-executor-runs"
            ),
        )),
    }
}

fn judge(status: &ClusterStatus, config: &ExecutorConfig, named: &str) -> Result<(), Failure> {
    let refuse = |exit, why: String| Err(Failure::new(exit, format!("manager {named}: {why}; nothing was cleared")));
    if status.cluster != config.cluster {
        let why =
            format!("it keeps cluster {}, the store is read for cluster.name = {}", status.cluster, config.cluster);
        return refuse(Exit::BadConfiguration, why);
    }
    let holders: Vec<_> = status.executors.iter().filter(|executor| executor.lease_remaining_ms > 0).collect();
    if let Some(first) = holders.first() {
        let (count, name, left) = (holders.len(), &first.name, Duration::from_millis(first.lease_remaining_ms));
        let why = format!(
            "{count} executors hold a lease (the first: {name}, for {} more); stop every executor first",
            humantime::format_duration(left)
        );
        return refuse(Exit::Failed, why);
    }
    // Of leases that another manager's life or another store granted, this one knows nothing.
    let (led, lease) = (Duration::from_millis(status.leading_ms), config.lease.times.ttl().as_duration());
    if led < lease {
        let why = format!(
            "it leads for {} only, and a lease of before may run for lease.duration = {}; try again then",
            humantime::format_duration(led),
            humantime::format_duration(lease)
        );
        return refuse(Exit::TryAgain, why);
    }
    Ok(())
}

async fn confirm(args: &ClearArgs, opened: &Opened) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let why = "clear-epochs asks before it clears, and standard input is no terminal; say --yes if you mean it";
        return Err(Failure::new(Exit::Usage, why));
    }
    let what = match args.agents.len() {
        0 => format!("every record, about {},", opened.store.count().await.map_err(|error| opened.failed(&error))?),
        some => format!("{some} records"),
    };
    let mut out = io::stderr();
    drop(writeln!(
        out,
        "This lowers {what} of {} to epoch 1: an executor of before that is frozen somewhere could take its oplogs again\n\
         when it wakes. Entries stay as they are. Type {WORD} to go on:",
        opened.named
    ));
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    if read.is_ok() && answer.trim() == WORD {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("{WORD} was not typed; nothing was cleared")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_is_read_back_and_anything_else_is_refused_by_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cleared");
        let line = |agent: &str, next| {
            let (epoch, executor) = (9, ExecutorId::from_u128(1).to_string());
            serde_json::to_string(&Cleared { agent: agent.into(), epoch, executor, next }).unwrap()
        };
        fs::write(&file, format!("{}\n{}\n", line("counter/a", 4), line("kv/b", 1))).unwrap();
        let expected = BTreeMap::from([("counter/a".to_owned(), 4), ("kv/b".to_owned(), 1)]);
        assert_eq!(told(std::slice::from_ref(&file)), Ok(expected));
        fs::write(&file, format!("{}\nnonsense\n", line("counter/a", 4))).unwrap();
        let refused = told(&[file]).unwrap_err();
        assert!(refused.exit == Exit::Usage && refused.message.contains("line 2"), "{refused}");
    }
}
