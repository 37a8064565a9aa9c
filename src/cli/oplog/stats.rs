//! `oplog stats`: how much there is, by type and by shard.

use super::shown::{Counted, HEADS, columns};
use super::{Opened, check};
use crate::cli::{Exit, Failure, show, table};
use indicatif::HumanBytes;
use leasehold_persistence::oplog::audit::{Kind, Options, Report, Usage};
use serde::Serialize;
use std::collections::BTreeMap;

/// Shards that are shown to people unless all are asked for.
const SHARDS: usize = 20;

/// Arguments of `oplog stats`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct StatsArgs {
    /// Every shard [default: the 20 with the most bytes]
    #[arg(long)]
    all: bool,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// For programs.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    store: String,
    cluster: &'a str,
    total: Counted,
    types: BTreeMap<&'a str, Counted>,
    shards: BTreeMap<u32, Counted>,
    largest: Option<Largest<'a>>,
    greatest_epoch: u64,
    /// What `oplog check` would find.
    found: u64,
}

#[derive(Debug, Serialize)]
struct Largest<'a> {
    agent: &'a str,
    bytes: u64,
}

/// Runs `oplog stats`.
///
/// # Errors
/// As the store's.
pub(super) async fn run(args: StatsArgs, opened: &Opened) -> Result<Exit, Failure> {
    let report = check::read(opened, &Options::default()).await?;
    let types: BTreeMap<_, _> = report.by.iter().filter_map(|(kind, usage)| Some((typed(kind)?, usage))).collect();
    let shards: BTreeMap<_, _> = report.by.iter().filter_map(|(kind, usage)| Some((sharded(kind)?, usage))).collect();
    let largest = report.largest.as_ref().map(|(agent, bytes)| Largest { agent, bytes: *bytes });
    let shown = Shown {
        store: opened.store.place(),
        cluster: opened.config.cluster.as_str(),
        total: (&report.total).into(),
        types: types.iter().map(|(kind, usage)| (*kind, Counted::from(*usage))).collect(),
        shards: shards.iter().map(|(shard, usage)| (*shard, Counted::from(*usage))).collect(),
        largest,
        greatest_epoch: report.greatest_epoch,
        found: report.found,
    };
    show(&shown, args.json, || render(&report, &types, &shards, args.all))?;
    Ok(Exit::Fine)
}

fn typed(kind: &Kind) -> Option<&str> {
    match kind {
        Kind::Type(name) => Some(name),
        Kind::Shard(_) => None,
    }
}

const fn sharded(kind: &Kind) -> Option<u32> {
    match kind {
        Kind::Type(_) => None,
        Kind::Shard(shard) => Some(*shard),
    }
}

type Usages<'a, K> = BTreeMap<K, &'a Usage>;

fn render(report: &Report, types: &Usages<'_, &str>, shards: &Usages<'_, u32>, all: bool) -> String {
    let headed = |first| table(&[&[first], HEADS.as_slice()].concat());
    let row = |name: String, usage: &Usage| [vec![name], columns(usage).to_vec()].concat();
    let mut by_type = headed("type");
    for (name, usage) in types {
        by_type.add_row(row((*name).to_owned(), usage));
    }
    by_type.add_row(row("all".to_owned(), &report.total));
    let mut largest: Vec<_> = shards.iter().collect();
    if !all {
        largest.sort_by_key(|(_, usage)| std::cmp::Reverse(usage.bytes));
        largest.truncate(SHARDS);
    }
    let mut by_shard = headed("shard");
    for (shard, usage) in &largest {
        by_shard.add_row(row(shard.to_string(), usage));
    }
    let mut parts = vec![by_type.to_string(), String::new(), by_shard.to_string()];
    if largest.len() < shards.len() {
        parts.push(format!("and {} more shards: --all", shards.len() - largest.len()));
    }
    parts.push(String::new());
    if let Some((agent, bytes)) = &report.largest {
        parts.push(format!("the largest oplog is {agent}'s with {}", HumanBytes(*bytes)));
    }
    parts.push(format!("the greatest epoch is {}", report.greatest_epoch));
    if report.found > 0 {
        parts.push(format!("{} findings: see `shard-executor oplog check`", report.found));
    }
    parts.join("\n")
}
