//! `oplog check`: a verdict, and every finding with agent, index, epoch and writer.

use super::shown::{Counted, Progress};
use super::{Opened, clear};
use crate::cli::{Exit, Failure, show, table};
use indicatif::HumanBytes;
use leasehold_model::AgentId;
use leasehold_persistence::oplog::EntryIndex;
use leasehold_persistence::oplog::audit::{Depth, Finding, Options, Report, check};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Oplogs that changed too often, as many as are named.
const NAMED: usize = 5;

/// Arguments of `oplog check`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct CheckArgs {
    /// Only these agents' oplogs, as `type/id` [default: all]
    agents: Vec<AgentId>,
    /// What `oplog clear-epochs` printed: there epochs may begin anew; may be given several times
    #[arg(long, value_name = "FILE")]
    cleared: Vec<PathBuf>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// For programs.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    store: String,
    cluster: &'a str,
    verdict: &'static str,
    #[serde(flatten)]
    total: Counted,
    greatest_epoch: u64,
    /// All findings; the first hundred follow.
    found: u64,
    findings: Vec<ShownFinding<'a>>,
    /// Oplogs of which nothing can be said: they changed whenever they were read.
    unsettled: &'a [String],
    /// Oplogs of which a part could not be read: their archive is in blob storage that is away; the first hundred.
    unread: BTreeMap<&'a str, &'a str>,
    left_unread: u64,
}

#[derive(Debug, Serialize)]
struct ShownFinding<'a> {
    rule: &'static str,
    agent: Option<&'a str>,
    index: Option<u64>,
    epoch: Option<u64>,
    executor: Option<String>,
    what: &'a str,
}

impl<'a> From<&'a Finding> for ShownFinding<'a> {
    fn from(finding: &'a Finding) -> Self {
        Self {
            rule: finding.rule.as_str(),
            agent: finding.agent.as_deref(),
            index: finding.index,
            epoch: finding.writer.map(|writer| writer.epoch.get()),
            executor: finding.writer.map(|writer| writer.executor.to_string()),
            what: &finding.what,
        }
    }
}

const fn verdict(report: &Report) -> (&'static str, Exit) {
    if report.found > 0 {
        ("refuted", Exit::Failed)
    } else if report.proven() {
        ("proven", Exit::Fine)
    } else {
        ("undecided", Exit::TryAgain)
    }
}

/// Runs `oplog check`.
///
/// # Errors
/// As the store's; 1 when an agent that was named has no oplog. Findings are no error: they are shown, and the exit code is 1.
pub(super) async fn run(args: CheckArgs, opened: &Opened) -> Result<Exit, Failure> {
    let CheckArgs { agents, cleared, json } = args;
    let options = Options { only: agents.iter().map(AgentId::to_string).collect(), cleared: clear::told(&cleared)? };
    for name in &options.only {
        exists(opened, name).await?;
    }
    let report = read(opened, &options).await?;
    let (verdict, exit) = verdict(&report);
    let shown = Shown {
        store: opened.store.place(),
        cluster: opened.config.cluster.as_str(),
        verdict,
        total: (&report.total).into(),
        greatest_epoch: report.greatest_epoch,
        found: report.found,
        findings: report.findings.iter().map(ShownFinding::from).collect(),
        unsettled: &report.unsettled,
        unread: report.unread.iter().map(|(agent, why)| (agent.as_str(), why.as_str())).collect(),
        left_unread: report.left_unread,
    };
    show(&shown, json, || render(&report, &opened.store.place()))?;
    Ok(exit)
}

/// Whether there is such an oplog; a failure that says so otherwise.
pub(super) async fn exists(opened: &Opened, name: &str) -> Result<(), Failure> {
    let page = opened.store.page(name, EntryIndex(1), Depth::Heads, 1).await.map_err(|error| opened.failed(&error))?;
    let absent = || {
        let cluster = &opened.config.cluster;
        format!(
            "{}: cluster {cluster} has no oplog of {name}; an agent that never changed anything has none",
            opened.named
        )
    };
    page.map(drop).ok_or_else(|| Failure::new(Exit::Failed, absent()))
}

/// Reads the store and shows how far it is.
pub(super) async fn read(opened: &Opened, options: &Options) -> Result<Report, Failure> {
    let count = match options.only.len() {
        0 => opened.store.count().await.map_err(|error| opened.failed(&error))?,
        some => some as u64,
    };
    let mut progress = Progress::start(count);
    let report = check(opened.layers(), options, &mut |report| progress.show(report)).await;
    progress.end();
    report.map_err(|error| opened.failed(&error))
}

fn render(report: &Report, place: &str) -> String {
    let mut lines = Vec::new();
    if report.found > 0 {
        let mut rows = table(&["rule", "agent", "index", "epoch", "executor", "what"]);
        for Finding { rule, agent, index, writer, what } in &report.findings {
            let none = || "-".to_owned();
            rows.add_row([
                rule.to_string(),
                agent.clone().unwrap_or_else(none),
                index.map_or_else(none, |index| index.to_string()),
                writer.map_or_else(none, |writer| writer.epoch.to_string()),
                writer.map_or_else(none, |writer| writer.executor.to_string()),
                what.clone(),
            ]);
        }
        lines.push(rows.to_string());
        let untold = report.found - report.findings.len() as u64;
        if untold > 0 {
            lines.push(format!("and {untold} more findings"));
        }
        lines.push(String::new());
    }
    let total = &report.total;
    lines.push(format!("store     {place}"));
    lines.push(format!("oplogs    {} ({} running), and {} deleted", total.oplogs, total.running, total.deleted));
    let bytes = HumanBytes(total.bytes);
    lines.push(format!("entries   {} ({} snapshots), {bytes}", total.entries, total.snapshots));
    if total.archived > 0 {
        let (chunks, stored) = (total.chunks, HumanBytes(total.stored));
        lines.push(format!("archived  {} of the entries, in {chunks} chunks of {stored}", total.archived));
    }
    lines.push(format!("epochs    up to {}", report.greatest_epoch));
    lines.push(judged(report));
    lines.join("\n")
}

fn judged(report: &Report) -> String {
    if report.found > 0 {
        return format!("refuted   {} findings", report.found);
    }
    if let Some((agent, why)) = report.unread.first() {
        let count = report.left_unread;
        return format!("undecided {count} oplogs have entries in an archive that could not be read ({agent}: {why})");
    }
    match report.unsettled.as_slice() {
        [] => "proven    indexes contiguous, epochs never fall, one writer per epoch, no entry above its record, keys unique".into(),
        names => {
            let told = names[..names.len().min(NAMED)].join(", ");
            format!("undecided {} oplogs changed whenever they were read ({told}): try again", names.len())
        }
    }
}
