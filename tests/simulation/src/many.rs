//! Many seeds, each in a process of its own, as many at a time as there are processors.

use crate::coverage;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A seed that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(240);
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(3);
/// Failing seeds that are shown one by one.
const SHOWN: usize = 20;

/// What a seed's process said.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub seed: u64,
    /// Which invariant, and how.
    pub violation: Option<(String, String)>,
    pub reached: BTreeMap<String, u64>,
    pub checks: u64,
    pub lasted_ms: u64,
}

/// Runs one seed, with this bug planted if one is named, in a process of its own.
pub fn run_one(seed: u64, bug: Option<&str>) -> Report {
    let failed = |what: String| Report { seed, violation: Some(("the process".to_owned(), what)), ..Report::default() };
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg("one").arg(seed.to_string()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(bug) = bug {
        command.args(["--bug", bug]);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(format!("it does not start: {error}")),
    };
    let mut output = child.stdout.take().expect("its output is piped");
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let began = Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if began.elapsed() > PATIENCE {
            // An error means that it ended this moment.
            let _ = child.kill();
            let _ = child.wait();
            return failed(format!("it hangs: not done within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = reading.join().ok().and_then(Result::ok).unwrap_or_default();
    parse(seed, &text).unwrap_or_else(|| failed(format!("it ended without a report: {text:?}")))
}

fn parse(seed: u64, text: &str) -> Option<Report> {
    let report: Value = serde_json::from_str(text.lines().last()?).ok()?;
    let violation = report["violation"].as_array().and_then(|pair| match pair.as_slice() {
        [id, what] => Some((id.as_str()?.to_owned(), what.as_str()?.to_owned())),
        _ => None,
    });
    let reached = report["reached"].as_object()?.iter();
    Some(Report {
        seed,
        violation,
        reached: reached.map(|(what, times)| (what.clone(), times.as_u64().unwrap_or_default())).collect(),
        checks: report["checks"].as_u64()?,
        lasted_ms: report["lasted_ms"].as_u64()?,
    })
}

/// Runs `seeds`, `jobs` at a time; `each` hears of each as it ends and says whether to go on.
pub fn run_all(
    seeds: std::ops::Range<u64>,
    jobs: usize,
    bug: Option<&str>,
    mut each: impl FnMut(Option<Report>) -> bool,
) {
    let next = AtomicU64::new(seeds.start);
    let (reports, arriving) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (next, reports) = (&next, reports.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end || reports.send(run_one(seed, bug)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(reports);
        loop {
            let heard = match arriving.recv_timeout(Duration::from_millis(200)) {
                Ok(report) => Some(report),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            if !each(heard) {
                next.store(seeds.end, Ordering::SeqCst);
            }
        }
    });
}

/// The command that shows a seed.
pub fn command(seed: u64) -> String {
    format!("make sim SEED={seed}")
}

/// Runs `seeds`, shows how it goes, and says whether all was well.
pub fn many(seeds: std::ops::Range<u64>, jobs: usize, complete: bool) -> bool {
    let (began, count) = (Instant::now(), seeds.end.saturating_sub(seeds.start));
    let (mut done, mut checks, mut lasted_ms, mut shown) = (0_u64, 0, 0, Instant::now());
    let mut failures: Vec<Report> = Vec::new();
    let mut reached: BTreeMap<String, u64> = BTreeMap::new();
    run_all(seeds, jobs, None, |report| {
        if let Some(report) = report {
            done += 1;
            checks += report.checks;
            lasted_ms += report.lasted_ms;
            for (what, times) in &report.reached {
                *reached.entry(what.clone()).or_default() += times;
            }
            if let Some((id, what)) = &report.violation {
                println!("FAILED seed {}: {id}: {what}\n       {}", report.seed, command(report.seed));
                failures.push(report);
            }
        }
        if shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            let left = began.elapsed().as_secs_f64() / done.max(1) as f64 * (count - done) as f64;
            let missing = coverage::missing(&reached).len();
            println!("{done} of {count} seeds, {} failed, {missing} not reached yet, {left:.0} s left", failures.len());
        }
        true
    });
    println!("\n{}", coverage::table(&reached));
    let simulated = Duration::from_millis(lasted_ms);
    println!(
        "{done} seeds, {} failed, {checks} times every invariant was looked at, {:.1} h simulated in {:.0} s",
        failures.len(),
        simulated.as_secs_f64() / 3600.0,
        began.elapsed().as_secs_f64()
    );
    failures.sort_by_key(|report| report.seed);
    for Report { seed, violation, .. } in failures.iter().take(SHOWN) {
        let (id, what) = violation.clone().unwrap_or_default();
        println!("  seed {seed}: {id}: {what}\n    {}", command(*seed));
    }
    let missing = coverage::missing(&reached);
    for what in &missing {
        println!("NOT REACHED: {what}");
    }
    failures.is_empty() && (missing.is_empty() || !complete)
}
