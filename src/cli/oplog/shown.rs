//! How far a walk through a store is, on standard error, and how its numbers look.

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use leasehold_persistence::oplog::audit::{Report, Usage};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a line is written where there is no bar.
const PACE: Duration = Duration::from_secs(2);

/// A bar on a terminal, a line now and then elsewhere.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    told: Instant,
}

impl Progress {
    /// Of about `total` oplogs.
    pub fn start(total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let looks = "{bar:40} {human_pos}/{human_len} oplogs  {per_sec}  {eta} left  {msg}";
            let style = ProgressStyle::with_template(looks).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style)
        });
        Self { bar, total, told: Instant::now() }
    }

    /// Takes note of what was read.
    pub fn show(&mut self, report: &Report) {
        if let Some(bar) = &self.bar {
            bar.set_position(report.seen());
            if report.found > 0 {
                bar.set_message(format!("{} findings", report.found));
            }
        } else if self.told.elapsed() >= PACE {
            self.told = Instant::now();
            let (seen, entries) = (report.seen(), report.total.entries);
            let line = format!("{seen} of {} oplogs, {entries} entries, {} findings", self.total, report.found);
            // Nobody reads standard error: nothing is lost.
            drop(writeln!(io::stderr(), "{line}"));
        }
    }

    /// Takes the bar away.
    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// For programs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Counted {
    oplogs: u64,
    running: u64,
    deleted: u64,
    entries: u64,
    snapshots: u64,
    bytes: u64,
    /// Of the entries, and where they are.
    archived: u64,
    chunks: u64,
    chunk_bytes: u64,
}

impl From<&Usage> for Counted {
    fn from(usage: &Usage) -> Self {
        let Usage { oplogs, running, deleted, entries, snapshots, bytes, archived, chunks, stored } = *usage;
        Self { oplogs, running, deleted, entries, snapshots, bytes, archived, chunks, chunk_bytes: stored }
    }
}

pub(super) const HEADS: [&str; 7] = ["oplogs", "running", "deleted", "entries", "archived", "snapshots", "bytes"];

/// The columns of [`HEADS`].
pub(super) fn columns(usage: &Usage) -> [String; 7] {
    let counts = [usage.oplogs, usage.running, usage.deleted, usage.entries, usage.archived, usage.snapshots];
    let [oplogs, running, deleted, entries, archived, snapshots] = counts.map(|count| count.to_string());
    [oplogs, running, deleted, entries, archived, snapshots, HumanBytes(usage.bytes).to_string()]
}
