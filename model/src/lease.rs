//! Lease arithmetic of both sides. Every function is total: sums stop at the ends of the clock, nothing panics (case 19).
//!
//! Both sides err on the safe side (S5). The executor counts from *before* it asked, and shortens what it was
//! granted by its [`Allowance`]; the manager counts from when it grants, and never takes time back. So whatever
//! the network and the store delay, the executor's copy ends first:
//!
//! ```text
//! executor   noted ─────────────── ttl × (1 − allowance) ──────────────▶ deadline
//! manager          ╲ request   granting ─────────────────── ttl ────────────────────────▶ deadline
//! ```

use crate::ids::InvalidValue;
use crate::time::{Tick, Ttl};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const MILLION: u32 = 1_000_000;

/// How much slower than the manager's clock an executor's may run (R9), in parts per million: `0..=100_000`, default
/// 1,000 (0.1 %).
///
/// It covers the rate errors that ntp and chrony leave while they discipline a clock (500 ppm at the most), on both
/// machines together. It does not cover a large slew under way (chrony's `makestep` aside, `maxslewrate` allows
/// 8 %), nor a virtual machine whose clock is not disciplined at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Allowance(u32);

impl Allowance {
    /// The greatest allowance: 10 %.
    pub const MAX_PPM: u32 = 100_000;

    /// An allowance of `ppm` parts per million.
    ///
    /// # Errors
    /// Names `lease.allowance` when above [`Allowance::MAX_PPM`].
    pub fn from_ppm(ppm: u32) -> Result<Self, InvalidValue> {
        if ppm <= Self::MAX_PPM {
            Ok(Self(ppm))
        } else {
            Err(InvalidValue::new("lease.allowance", ppm, "0..=100000 (10 %)"))
        }
    }

    /// In parts per million.
    #[must_use]
    pub const fn as_ppm(self) -> u32 {
        self.0
    }

    /// `span × (1 − allowance)`, rounded down to a nanosecond.
    #[must_use]
    pub fn shorten(self, span: Duration) -> Duration {
        scaled(span, MILLION - self.0, MILLION)
    }
}

impl Default for Allowance {
    fn default() -> Self {
        Self(1_000)
    }
}

impl TryFrom<u32> for Allowance {
    type Error = InvalidValue;
    fn try_from(ppm: u32) -> Result<Self, InvalidValue> {
        Self::from_ppm(ppm)
    }
}

impl From<Allowance> for u32 {
    fn from(allowance: Allowance) -> u32 {
        allowance.0
    }
}

/// A fraction in `0..1` that spreads what would otherwise happen at once. Drawn by the shell, passed into the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Jitter(u16);

impl Jitter {
    /// The fraction 0.
    pub const NONE: Self = Self(0);
    /// The greatest fraction, 65,535 / 65,536.
    pub const MOST: Self = Self(u16::MAX);

    /// Any `u16` is a fraction of 65,536.
    #[must_use]
    pub const fn new(of_65536: u16) -> Self {
        Self(of_65536)
    }

    /// This fraction of `span`, rounded down to a nanosecond; always less than a `span` above zero.
    #[must_use]
    pub fn of(self, span: Duration) -> Duration {
        scaled(span, self.0.into(), 1 << 16)
    }
}

/// `span × numerator / denominator` for a fraction of at most one.
fn scaled(span: Duration, numerator: u32, denominator: u32) -> Duration {
    let nanos = span.as_nanos().min(u64::MAX.into()) * u128::from(numerator) / u128::from(denominator);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// R2: when the executor's copy of a lease ends, on its own clock. `noted` is the instant before the attempt that
/// was answered with `ttl` was first polled.
#[must_use]
pub fn holder_deadline(noted: Tick, ttl: Ttl, allowance: Allowance) -> Tick {
    noted.plus(allowance.shorten(ttl.as_duration()))
}

/// R5: the manager's deadline for an executor after a grant, on the manager's clock. It never goes back, so a lost answer
/// and a shorter configured duration are both harmless.
#[must_use]
pub fn granter_deadline(present: Tick, granting: Tick, ttl: Ttl) -> Tick {
    present.max(granting.plus(ttl.as_duration()))
}

/// The executor's copy of its lease. The default is none: it ended at the clock's origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HolderLease {
    /// A lease that ends.
    Until {
        /// The instant noted before the attempt that was granted.
        noted: Tick,
        /// From this instant on there is no lease.
        deadline: Tick,
    },
    /// A lease without an end (R8). Exists only where manager and executor are one process, is asked for by
    /// [`HolderLease::without_expiry`] and never comes out of a grant; it is never renewed.
    WithoutExpiry,
}

impl Default for HolderLease {
    fn default() -> Self {
        Self::Until { noted: Tick::ZERO, deadline: Tick::ZERO }
    }
}

impl HolderLease {
    /// A lease without an end, for use inside a single process only: nothing outside it could ever take the shards back.
    #[must_use]
    pub const fn without_expiry() -> Self {
        Self::WithoutExpiry
    }

    /// R3: takes a grant of `ttl` that answers the attempt noted at `noted`. Returns whether it counted: of two grants the one
    /// noted later does, however late its answer came. One that counts sets the deadline, also to an earlier one. Of two noted at one
    /// instant, which of them is the newer manager's cannot be told: the sooner end holds.
    pub fn grant(&mut self, noted: Tick, ttl: Ttl, allowance: Allowance) -> bool {
        match *self {
            Self::Until { noted: present, deadline: until } if noted >= present => {
                let granted = holder_deadline(noted, ttl, allowance);
                let had_one = noted == present && until > noted;
                *self = Self::Until { noted, deadline: if had_one { granted.min(until) } else { granted } };
                true
            }
            Self::Until { .. } | Self::WithoutExpiry => false,
        }
    }

    /// From this instant on there is no lease; [`Tick::NEVER`] without expiry.
    #[must_use]
    pub const fn deadline(&self) -> Tick {
        match self {
            Self::Until { deadline, .. } => *deadline,
            Self::WithoutExpiry => Tick::NEVER,
        }
    }

    /// Whether work may be admitted at `now`.
    #[must_use]
    pub fn is_live(&self, now: Tick) -> bool {
        now < self.deadline()
    }

    /// When to renew next (R11), seen from `now`; `None` without expiry.
    #[must_use]
    pub fn renew_at(&self, now: Tick, jitter: Jitter) -> Option<Tick> {
        match self {
            Self::Until { deadline, .. } => Some(renew_at(now, *deadline, jitter)),
            Self::WithoutExpiry => None,
        }
    }
}

/// R11: when to renew a lease that ends at `deadline`: once a third of the time left has passed, or up to a tenth of that
/// earlier. Never later, because a lost push is repaired by the next renewal within a third of a lease (L1).
#[must_use]
pub fn renew_at(now: Tick, deadline: Tick, jitter: Jitter) -> Tick {
    let third = deadline.since(now) / 3;
    now.plus(third - jitter.of(third / 10))
}

/// R13: how long one attempt to renew may take: a sixth of the lease, and at least `floor`.
#[must_use]
pub fn attempt_deadline(ttl: Ttl, floor: Duration) -> Duration {
    (ttl.as_duration() / 6).max(floor)
}

/// The pause after the first failed attempt, before jitter.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between attempts.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// While the lease lasts, no pause takes more than one part in this many of what is left of it.
const PAUSES_THAT_FIT: u32 = 8;

/// R13: how long to wait after `failures` failed attempts in a row (at least one) with `left` of the lease left.
///
/// Doubles from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`]; while the lease lasts a pause takes at most an eighth of what is left, so
/// that several attempts fit. Jitter takes away up to half. Never below half of [`FIRST_PAUSE`]: nobody spins.
#[must_use]
pub fn retry_pause(failures: u32, left: Duration, jitter: Jitter) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let doubled = FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE);
    let pause = if left.is_zero() { doubled } else { doubled.min(left / PAUSES_THAT_FIT).max(FIRST_PAUSE) };
    pause - jitter.of(pause / 2)
}

/// Lease length and call deadline floor that fit a kind of network (R14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// 60 s, floor 10 s: across regions, or on machines that are paused now and then. The default.
    #[default]
    Wan,
    /// 12 s, floor 2 s: within one data centre.
    Lan,
    /// 3 s, floor 500 ms: one machine, tests, demonstrations.
    Fast,
}

impl Profile {
    /// How long a lease lasts.
    #[must_use]
    pub const fn duration(self) -> Duration {
        match self {
            Self::Wan => Duration::from_secs(60),
            Self::Lan => Duration::from_secs(12),
            Self::Fast => Duration::from_secs(3),
        }
    }

    /// The least time that one call is given.
    #[must_use]
    pub const fn call_deadline_floor(self) -> Duration {
        match self {
            Self::Wan => Duration::from_secs(10),
            Self::Lan => Duration::from_secs(2),
            Self::Fast => Duration::from_millis(500),
        }
    }

    /// As it stands in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wan => "wan",
            Self::Lan => "lan",
            Self::Fast => "fast",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        [Self::Wan, Self::Lan, Self::Fast]
            .into_iter()
            .find(|profile| profile.as_str() == text)
            .ok_or_else(|| InvalidValue::new("lease.profile", text, "wan, lan or fast"))
    }
}

/// A lease length and a call deadline floor that fit each other (R14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    ttl: Ttl,
    floor: Duration,
}

impl LeaseTimes {
    /// Checks that at least three calls fit into a lease.
    ///
    /// # Errors
    /// Names `lease.duration` and shows the arithmetic when it is below `3 × floor`, or not a [`Ttl`].
    pub fn new(duration: Duration, floor: Duration) -> Result<Self, InvalidValue> {
        let least = floor.saturating_mul(3);
        if duration < least {
            let accepted = format!("at least {least:?} (3 × lease.call_deadline_floor of {floor:?})");
            return Err(InvalidValue::new("lease.duration", format!("{duration:?}"), accepted));
        }
        let ttl = Ttl::from_duration(duration)
            .map_err(|_| InvalidValue::new("lease.duration", format!("{duration:?}"), "1ms to 24h"))?;
        Ok(Self { ttl, floor })
    }

    /// What to warn of at start: fewer than six calls fit into a lease.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let wanted = self.floor.saturating_mul(6);
        let duration = self.ttl.as_duration();
        (duration < wanted).then(|| {
            format!(
                "lease.duration of {duration:?} is below {wanted:?} (6 × lease.call_deadline_floor of {:?}): \
                 few attempts to renew fit into a lease",
                self.floor
            )
        })
    }

    /// How long a lease lasts.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The least time that one call is given.
    #[must_use]
    pub const fn floor(&self) -> Duration {
        self.floor
    }

    /// How long after a grant the executor renews, at the latest (R11).
    #[must_use]
    pub fn renew_after(&self, allowance: Allowance) -> Duration {
        renew_at(Tick::ZERO, holder_deadline(Tick::ZERO, self.ttl, allowance), Jitter::NONE).since(Tick::ZERO)
    }

    /// How long one attempt to renew may take (R13).
    #[must_use]
    pub fn attempt_deadline(&self) -> Duration {
        attempt_deadline(self.ttl, self.floor)
    }
}

impl From<Profile> for LeaseTimes {
    fn from(profile: Profile) -> Self {
        Self::new(profile.duration(), profile.call_deadline_floor()).expect("every profile fits six calls into a lease")
    }
}
