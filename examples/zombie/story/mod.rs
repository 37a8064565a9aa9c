//! Rounds on one backend, and what came of them. A part of `tests/process` too, which plays a few.

mod callers;
mod rounds;
mod verdict;
mod world;

pub use world::Binaries;

use comfy_table::{Table, presets};
use rounds::Rounds;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Whatever keeps a run from coming to its end.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// Its result.
pub type Result<T> = std::result::Result<T, Error>;

/// Where oplogs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// A directory that all executors share
    Sqlite,
    /// A PostgreSQL server, each executor behind a proxy
    Postgres,
    /// A Redis server, each executor behind a proxy
    Redis,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
        })
    }
}

/// What to play.
#[derive(Debug, Clone)]
pub struct Plan {
    /// On which backend.
    pub backend: Backend,
    /// How many executors to freeze.
    pub rounds: u32,
    /// With which programs.
    pub binaries: Binaries,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Summary {
    /// On which backend.
    pub backend: Backend,
    /// Executors frozen, replaced and thawed.
    pub rounds: u32,
    /// Of these, frozen with an append under way.
    pub mid_append: u32,
    /// Of these, whose next owner came to nothing before the thaw: a process frozen at the wrong instant blocks SQLite for the others.
    pub stood_still: u32,
    /// Appends that callers were answered.
    pub acknowledged: u64,
    /// Appends of unknown outcome, and how many of them had taken effect.
    pub unknown: (u64, u64),
    /// Reads that callers were answered.
    pub reads: u64,
    /// Entries in the store, snapshots included.
    pub entries: u64,
    /// Agents that storage refused as stale.
    pub fenced: u64,
    /// What must not be.
    pub violations: Vec<String>,
    /// How long it took.
    pub took: Duration,
    /// Where everything of a run that failed is kept.
    pub kept: Option<PathBuf>,
}

impl Summary {
    fn new(backend: Backend) -> Self {
        Self {
            backend,
            rounds: 0,
            mid_append: 0,
            stood_still: 0,
            acknowledged: 0,
            unknown: (0, 0),
            reads: 0,
            entries: 0,
            fenced: 0,
            violations: Vec::new(),
            took: Duration::ZERO,
            kept: None,
        }
    }

    /// Whether nothing was wrong.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Plays all plans at once; a run that does not come to its end is a violation too.
pub fn everything(plans: Vec<Plan>) -> Vec<Summary> {
    let runs: Vec<_> = plans.into_iter().map(|plan| (plan.backend, thread::spawn(move || play(&plan)))).collect();
    let end = |(backend, run): (Backend, thread::JoinHandle<Summary>)| {
        run.join().unwrap_or_else(|_| {
            let violations = vec!["the run panicked; see above".to_owned()];
            Summary { violations, ..Summary::new(backend) }
        })
    };
    runs.into_iter().map(end).collect()
}

fn play(plan: &Plan) -> Summary {
    let began = Instant::now();
    let mut summary = Summary::new(plan.backend);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.map_err(Error::from).and_then(|runtime| {
        runtime.block_on(async {
            let mut rounds = Rounds::start(plan).await?;
            let played = rounds.play(plan.rounds, &mut summary).await;
            summary.kept = rounds.end(played.is_err() || !summary.holds());
            played
        })
    });
    if let Err(error) = ended {
        summary.violations.push(format!("the run did not come to its end: {error}"));
    }
    if let Some(kept) = &summary.kept {
        summary.violations.push(format!("logs and stores are kept in {}", kept.display()));
    }
    summary.took = began.elapsed();
    summary
}

/// One row per backend.
#[must_use]
pub fn table(summaries: &[Summary]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "BACKEND",
        "ROUNDS",
        "MID-APPEND",
        "STOOD STILL",
        "ACKNOWLEDGED",
        "UNKNOWN",
        "LANDED",
        "READS",
        "ENTRIES",
        "FENCED",
        "VIOLATIONS",
        "SECONDS",
    ]);
    for summary in summaries {
        let Summary {
            rounds,
            mid_append,
            stood_still,
            acknowledged,
            unknown,
            reads,
            entries,
            fenced,
            violations,
            took,
            ..
        } = summary;
        table.add_row([
            summary.backend.to_string(),
            rounds.to_string(),
            mid_append.to_string(),
            stood_still.to_string(),
            acknowledged.to_string(),
            unknown.0.to_string(),
            unknown.1.to_string(),
            reads.to_string(),
            entries.to_string(),
            fenced.to_string(),
            violations.len().to_string(),
            took.as_secs().to_string(),
        ]);
    }
    table.to_string()
}
