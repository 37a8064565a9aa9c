//! Rounds of a subject and its baseline, in turns.

use crate::figure::{Measured, Result};
use std::cell::Cell;

/// The middle of `numbers`; of an even count the upper one.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs both `rounds` times after one of each to warm up, and takes the medians. Who goes first alternates, so that what drifts
/// (a growing table, a slower clock) hits both alike.
pub async fn in_turns<S, B>(rounds: usize, mut subject: S, mut baseline: B) -> Result<Measured>
where
    S: AsyncFnMut() -> Result<f64>,
    B: AsyncFnMut() -> Result<f64>,
{
    subject().await?;
    baseline().await?;
    let (mut values, mut baselines) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            values.push(subject().await?);
            baselines.push(baseline().await?);
        } else {
            baselines.push(baseline().await?);
            values.push(subject().await?);
        }
        let last = |numbers: &[f64]| numbers.last().copied().unwrap_or(f64::NAN);
        eprintln!("  round {}: {:.2} against {:.2}", round + 1, last(&values), last(&baselines));
    }
    Ok(Measured { value: median(values), baseline: median(baselines) })
}

/// The same for what neither waits nor fails.
pub async fn in_turns_sync(
    rounds: usize,
    subject: impl FnMut() -> f64,
    baseline: impl FnMut() -> f64,
) -> Result<Measured> {
    let (mut subject, mut baseline) = (subject, baseline);
    in_turns(rounds, async || Ok(subject()), async || Ok(baseline())).await
}

/// Numbers that are the same on every machine (splitmix64).
pub struct Dice(Cell<u64>);

impl Dice {
    /// From this seed on.
    pub const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// `0..sides`.
    pub fn roll(&self, sides: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}
