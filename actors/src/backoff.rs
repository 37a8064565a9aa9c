//! Exponential pauses with full jitter between half and all of the step.

use std::time::Duration;

/// The next pause doubles until it reaches the greatest.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    greatest: Duration,
    step: Duration,
}

impl Backoff {
    /// Pauses from `first` up to `greatest`.
    #[must_use]
    pub fn new(first: Duration, greatest: Duration) -> Self {
        Self { first, greatest: greatest.max(first), step: first }
    }

    /// The next pause; `jitter` in `0.0..1.0` places it between half of the step and the whole.
    pub fn next(&mut self, jitter: f64) -> Duration {
        let pause = self.step.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        self.step = self.step.saturating_mul(2).min(self.greatest);
        pause
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.step = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_greatest_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(150));
        let pauses: Vec<u128> = (0..4).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 150, 150]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), Duration::from_millis(25));
    }
}
