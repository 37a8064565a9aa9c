//! `load` and `counts`: a real file counted by agents, and the counts read back.

use super::checkpoint::{Progress, Saved};
use super::summary::{Progressing, Summary, Tallies};
use super::target::{CallFailure, Target, TargetArgs};
use super::words::{Input, Kind, Per};
use super::{Exit, Failure, Signals, say, show};
use futures::{StreamExt, stream};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

/// The most calls under way at once.
const CONCURRENCY_MOST: u64 = 4096;
/// How often progress is shown to a program and saved.
const PACE: Duration = Duration::from_secs(2);

/// What both commands need to know.
#[derive(Debug, Clone, clap::Args)]
pub struct Counting {
    /// The file to count, at most 64 MiB
    file: PathBuf,
    /// Which agents count
    #[arg(long = "type", value_enum, default_value = "counter")]
    kind: Kind,
    /// What is counted
    #[arg(long, value_enum, default_value = "word")]
    per: Per,
    /// Calls under way at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=CONCURRENCY_MOST))]
    concurrency: u64,
    /// How long to try each call, through every move of its shard
    #[arg(long, default_value = "30s", value_parser = super::executor::within)]
    timeout: Duration,
    #[command(flatten)]
    target: TargetArgs,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Arguments of `load`.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    counting: Counting,
    /// The method to call [default: the one that counts one]
    #[arg(long)]
    method: Option<String>,
    /// Go through the file so often [default: 1; as often as --limit needs, if that is given]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: Option<u64>,
    /// Stop after so many invocations
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Names the run: the same invocation of the same run is counted once, however often it is asked for [default: a fresh one]
    #[arg(long, value_parser = run_id)]
    run_id: Option<String>,
    /// Remember here how far the run came, and go on from there
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
    /// Give up after so many failed calls (1 to 100000)
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    max_errors: u64,
}

/// The id and `:ordinal` together must fit into an idempotency key of 128 bytes.
fn run_id(text: &str) -> Result<String, String> {
    let fits = (1..=100).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err("expected 1 to 100 visible ASCII characters".to_owned()) }
}

/// One load under way.
struct Load {
    input: Arc<Input>,
    target: Target,
    within: Duration,
    concurrency: usize,
    total: u64,
    max_errors: u64,
    saved: Saved,
    file: Option<PathBuf>,
}

type Done = (u64, Duration, Result<bool, CallFailure>);

/// Runs `load`.
///
/// # Errors
/// Exit code 64 for input that cannot be used or progress that cannot be kept, 1 when that cannot be saved any more. Failed calls are no error of the command: they
/// are in the summary, and the exit code is 1 then, 75 if it was interrupted.
pub async fn load(args: LoadArgs) -> Result<Exit, Failure> {
    let json = args.counting.json;
    let load = Load::prepare(args)?;
    let summary = load.run().await?;
    show(&summary, json, || summary.render())?;
    Ok(summary.exit())
}

impl Load {
    fn prepare(args: LoadArgs) -> Result<Self, Failure> {
        let Counting { file, kind, per, concurrency, timeout, target, json: _ } = args.counting;
        let input = Input::read(&file, per)?;
        let passes = args.repeat.map(|repeat| input.len().saturating_mul(repeat));
        let total = match (passes, args.limit) {
            (None, None) => input.len(),
            (Some(all), None) | (None, Some(all)) => all,
            (Some(all), Some(limit)) => all.min(limit),
        };
        let earlier = args.progress.as_deref().map(Saved::read).transpose()?.flatten();
        let earlier_id = earlier.as_ref().map(|saved| saved.run_id.clone());
        let run_id = args.run_id.or(earlier_id).unwrap_or_else(|| Uuid::new_v4().to_string());
        let method = args.method.unwrap_or_else(|| kind.counts_with().to_owned());
        let mut saved = Saved { run_id, input: input.fingerprint(), per, kind, method, completed: 0 };
        if let Some(earlier) = earlier {
            earlier.check(&saved)?;
            saved.completed = earlier.completed;
        }
        let target = target.target()?;
        args.progress.as_deref().map_or(Ok(()), |file| saved.begin(file))?;
        Ok(Self {
            input: Arc::new(input),
            target,
            within: timeout,
            concurrency: usize::try_from(concurrency).unwrap_or(1),
            total,
            max_errors: args.max_errors,
            saved,
            file: args.progress,
        })
    }

    async fn run(mut self) -> Result<Summary, Failure> {
        let mut signals = Signals::listen()?;
        let (resumed, began) = (self.saved.completed, Instant::now());
        let mut progress = Progress::from(resumed);
        let mut shown = Progressing::start(resumed, self.total);
        let mut tallies = Tallies::default();
        let mut calls: JoinSet<Done> = JoinSet::new();
        let mut tick = interval(PACE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut interrupted = false;
        loop {
            let feeding = !interrupted && tallies.failed() < self.max_errors;
            while feeding && calls.len() < self.concurrency && progress.next() < self.total {
                self.begin(progress.begin(), &mut calls);
            }
            tokio::select! {
                done = calls.join_next() => match done {
                    None => break,
                    Some(done) => {
                        let (ordinal, took, ended) = done.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
                        if ended.is_ok() {
                            progress.answered(ordinal);
                        }
                        tallies.take(took, ended);
                        shown.show(&tallies);
                    }
                },
                _ = tick.tick() => {
                    shown.line(&tallies);
                    self.save(&progress)?;
                }
                signal = signals.recv() => {
                    if interrupted {
                        break;
                    }
                    interrupted = true;
                    shown.note(&format!("{signal}: finishing {} calls; once more to stop at once", calls.len()));
                }
            }
        }
        shown.end();
        self.save(&progress)?;
        let retries = self.target.retries();
        let completed = progress.completed();
        Ok(tallies.sum_up(&self.saved.run_id, (resumed, completed, self.total), began.elapsed(), retries))
    }

    fn begin(&self, ordinal: u64, calls: &mut JoinSet<Done>) {
        let Saved { run_id, kind, method, .. } = &self.saved;
        let invocation = kind.count(self.input.unit(ordinal), method, format!("{run_id}:{ordinal}"));
        let (target, within) = (self.target.clone(), self.within);
        calls.spawn(async move {
            let began = Instant::now();
            let ended = target.call(invocation, within).await.map(|answer| answer.replayed);
            (ordinal, began.elapsed(), ended)
        });
    }

    fn save(&mut self, progress: &Progress) -> Result<(), Failure> {
        self.saved.completed = progress.completed();
        self.file.as_deref().map_or(Ok(()), |file| self.saved.write(file))
    }
}

/// Runs `counts`: one line per distinct word or line, `COUNT WORD`, in the order of the words.
///
/// # Errors
/// The first read that failed, with its exit code.
pub async fn counts(args: Counting) -> Result<Exit, Failure> {
    let Counting { file, kind, per, concurrency, timeout: within, target, json } = args;
    let input = Input::read(&file, per)?;
    let target = target.target()?;
    let mut signals = Signals::listen()?;
    let reads = stream::iter(input.distinct().into_keys()).map(|key| {
        let target = target.clone();
        async move {
            let answer = target.call(kind.read(&key), within).await.map_err(|failed| failed.failure.about(&key))?;
            let count = kind.counted(&answer.payload).ok_or_else(|| {
                let told = String::from_utf8_lossy(&answer.payload).into_owned();
                Failure::new(Exit::Failed, format!("{key}: the agent answered {told}, which has no count"))
            })?;
            Ok::<_, Failure>((key, count))
        }
    });
    let mut reads = reads.buffered(usize::try_from(concurrency).unwrap_or(1));
    let mut all = BTreeMap::new();
    loop {
        let read = tokio::select! {
            read = reads.next() => read,
            signal = signals.recv() => return Err(Failure::new(Exit::TryAgain, format!("{signal}: stopped"))),
        };
        match read {
            None => break,
            Some(read) => {
                let (key, count) = read?;
                if json {
                    all.insert(key, count);
                } else {
                    say(&format!("{count} {key}"))?;
                }
            }
        }
    }
    if json {
        show(&all, true, String::new)?;
    }
    Ok(Exit::Fine)
}
