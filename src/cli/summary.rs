//! What became of a load: counted while it runs, shown at the end.

use super::Exit;
use super::target::CallFailure;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// The longest latency that is told apart, in microseconds: two hours.
const LATENCY_MOST_US: u64 = 2 * 60 * 60 * 1_000_000;

/// Counts of a load under way.
#[derive(Debug)]
pub struct Tallies {
    latency_us: Histogram<u64>,
    answered: u64,
    replayed: u64,
    errors: BTreeMap<&'static str, Errors>,
}

/// Failed calls of one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// How many.
    pub times: u64,
    /// What the first of them said.
    pub first: String,
}

impl Default for Tallies {
    fn default() -> Self {
        let latency_us =
            Histogram::new_with_bounds(1, LATENCY_MOST_US, 3).expect("three digits between constant bounds fit");
        Self { latency_us, answered: 0, replayed: 0, errors: BTreeMap::new() }
    }
}

impl Tallies {
    /// One call ended after `took`: answered (and whether from the oplog), or not.
    pub fn take(&mut self, took: Duration, ended: Result<bool, CallFailure>) {
        match ended {
            Ok(replayed) => {
                self.latency_us.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
                self.answered += 1;
                self.replayed += u64::from(replayed);
            }
            Err(CallFailure { reason, failure }) => {
                let errors = self.errors.entry(reason).or_insert(Errors { times: 0, first: failure.message });
                errors.times += 1;
            }
        }
    }

    /// How many calls failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.values().map(|errors| errors.times).sum()
    }

    /// The account of a load that had `resumed` invocations behind it at its start, `completed` at its end, of `total`.
    #[must_use]
    pub fn sum_up(
        self,
        run_id: &str,
        (resumed, completed, total): (u64, u64, u64),
        took: Duration,
        retries: BTreeMap<&'static str, u64>,
    ) -> Summary {
        let ms = |quantile| milliseconds(self.latency_us.value_at_quantile(quantile));
        let seconds = took.as_secs_f64();
        Summary {
            run_id: run_id.to_owned(),
            total,
            resumed_from: resumed,
            completed,
            answered: self.answered,
            replayed: self.replayed,
            failed: self.failed(),
            seconds,
            per_second: if seconds > 0.0 { self.answered as f64 / seconds } else { 0.0 },
            latency_ms: LatencyMs {
                p50: ms(0.5),
                p90: ms(0.9),
                p99: ms(0.99),
                p99_9: ms(0.999),
                max: milliseconds(self.latency_us.max()),
            },
            retries_by_reason: retries,
            errors_by_reason: self.errors,
        }
    }
}

fn milliseconds(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// The account of a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Names the run.
    pub run_id: String,
    /// How many invocations the run has in all.
    pub total: u64,
    /// How many were answered before this process began.
    pub resumed_from: u64,
    /// All below this one are answered now.
    pub completed: u64,
    /// How many this process saw answered.
    pub answered: u64,
    /// Of these, how many had run before and were answered from the oplog.
    pub replayed: u64,
    /// How many this process saw fail.
    pub failed: u64,
    /// How long it took.
    pub seconds: f64,
    /// Answered per second.
    pub per_second: f64,
    /// How long answered calls took, retries included.
    pub latency_ms: LatencyMs,
    /// Attempts that were repeated.
    pub retries_by_reason: BTreeMap<&'static str, u64>,
    /// Calls that failed.
    pub errors_by_reason: BTreeMap<&'static str, Errors>,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LatencyMs {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
}

impl Summary {
    /// 0 if everything was answered, 1 if something failed, 75 if it was stopped before its end.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        if self.failed > 0 {
            Exit::Failed
        } else if self.completed < self.total {
            Exit::TryAgain
        } else {
            Exit::Fine
        }
    }

    /// For people.
    #[must_use]
    pub fn render(&self) -> String {
        let LatencyMs { p50, p90, p99, p99_9, max } = self.latency_ms;
        let mut lines = vec![
            format!("run         {}", self.run_id),
            format!("completed   {} of {} (began at {})", self.completed, self.total, self.resumed_from),
            format!("answered    {} ({} of them replayed), {} failed", self.answered, self.replayed, self.failed),
            format!("throughput  {:.0}/s over {:.1} s", self.per_second, self.seconds),
            format!("latency     p50 {p50:.2}  p90 {p90:.2}  p99 {p99:.2}  p99.9 {p99_9:.2}  max {max:.2} ms"),
        ];
        let retries: Vec<_> = self.retries_by_reason.iter().map(|(why, times)| format!("{why} {times}")).collect();
        lines.push(format!("retries     {}", if retries.is_empty() { "none".to_owned() } else { retries.join(", ") }));
        for (reason, Errors { times, first }) in &self.errors_by_reason {
            lines.push(format!("error       {reason} x{times}; the first: {first}"));
        }
        lines.join("\n")
    }
}

/// Shows on standard error how far a load is: a bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub struct Progressing {
    bar: Option<ProgressBar>,
    from: u64,
    total: u64,
    began: Instant,
}

impl Progressing {
    /// From `from` to `total`.
    #[must_use]
    pub fn start(from: u64, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let looks = "{bar:40} {human_pos}/{human_len}  {per_sec}  {eta} left  {msg}";
            let style = ProgressStyle::with_template(looks).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style).with_position(from)
        });
        Self { bar, from, total, began: Instant::now() }
    }

    /// Moves the bar.
    pub fn show(&mut self, tallies: &Tallies) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.from + tallies.answered);
            if tallies.failed() > 0 {
                bar.set_message(format!("{} failed", tallies.failed()));
            }
        }
    }

    /// Writes a line, where there is no bar.
    pub fn line(&mut self, tallies: &Tallies) {
        if self.bar.is_none() {
            let (done, seconds) = (self.from + tallies.answered, self.began.elapsed().as_secs_f64());
            let rate = if seconds > 0.0 { tallies.answered as f64 / seconds } else { 0.0 };
            self.note(&format!("{done} of {} answered, {} failed, {rate:.0}/s", self.total, tallies.failed()));
        }
    }

    /// Writes `text` without disturbing the bar.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            // Nobody reads standard error: nothing is lost.
            None => drop(writeln!(io::stderr(), "{text}")),
        }
    }

    /// Takes the bar away.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Failure;

    fn failed(reason: &'static str, text: &str) -> Result<bool, CallFailure> {
        Err(CallFailure { reason, failure: Failure::new(Exit::TryAgain, text) })
    }

    #[test]
    fn a_summary_counts_answers_replays_and_errors_by_reason() {
        let mut tallies = Tallies::default();
        for ms in 1..=98 {
            tallies.take(Duration::from_millis(ms), Ok(ms % 2 == 0));
        }
        tallies.take(Duration::from_secs(30), failed("DEADLINE_EXCEEDED", "first"));
        tallies.take(Duration::from_secs(30), failed("DEADLINE_EXCEEDED", "second"));
        let retries = BTreeMap::from([("UNREACHABLE", 3)]);
        let summary = tallies.sum_up("run", (0, 50, 100), Duration::from_secs(2), retries);
        assert_eq!((summary.answered, summary.replayed, summary.failed), (98, 49, 2));
        assert!((summary.per_second - 49.0).abs() < 0.1, "{summary:?}");
        assert!(
            (summary.latency_ms.p50 - 49.0).abs() < 0.1 && (summary.latency_ms.max - 98.0).abs() < 0.2,
            "{summary:?}"
        );
        let expected = Errors { times: 2, first: "first".into() };
        assert_eq!(summary.errors_by_reason, BTreeMap::from([("DEADLINE_EXCEEDED", expected)]));
        let text = summary.render();
        for part in ["50 of 100", "98 (49 of them replayed), 2 failed", "UNREACHABLE 3", "DEADLINE_EXCEEDED x2"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn only_a_whole_load_without_an_error_ends_with_0() {
        let sum_up = |completed, failure: Option<()>| {
            let mut tallies = Tallies::default();
            if failure.is_some() {
                tallies.take(Duration::ZERO, failed("UNREACHABLE", "x"));
            }
            tallies.sum_up("run", (0, completed, 10), Duration::from_secs(1), BTreeMap::new()).exit()
        };
        assert_eq!(sum_up(10, None), Exit::Fine);
        assert_eq!(sum_up(9, None), Exit::TryAgain);
        assert_eq!(sum_up(9, Some(())), Exit::Failed);
    }
}
