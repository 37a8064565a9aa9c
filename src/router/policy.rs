//! What to do after an attempt: a table, and the arithmetic of waiting. Pure; the randomness comes in as an argument.

use leasehold_model::refusal::{Class, OUTCOME_UNKNOWN, UNREACHABLE};
use leasehold_model::{ExecutorId, Refusal};
use std::time::Duration;

/// How many hints in a row one call follows before it trusts the table again: two executors that each believe the other
/// to be the owner must not keep a call spinning.
pub const MAX_HINTS: u32 = 3;

/// How an attempt ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The executor refused: nothing was done.
    Refused(Refusal),
    /// The call never left this process.
    Unreachable(String),
    /// The executor or the connection failed: it may have run.
    Unknown(String),
    /// The attempt's own deadline passed: it may have run.
    TimedOut,
    /// The table named another owner while the attempt waited: it may have run.
    Moved,
    /// The table knows no owner that may admit work.
    NoOwner,
    /// No table was ever heard.
    NoTable,
}

impl Outcome {
    /// The machine-readable reason, for metrics and for the list of what was tried.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::Unreachable(_) => UNREACHABLE,
            Self::Unknown(_) => OUTCOME_UNKNOWN,
            Self::TimedOut => "TIMED_OUT",
            Self::Moved => "MOVED",
            Self::NoOwner => "NO_OWNER",
            Self::NoTable => "NO_TABLE",
        }
    }

    /// What was said, where anybody said anything.
    #[must_use]
    pub fn words(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => Some(refusal.to_string()),
            Self::Unreachable(why) | Self::Unknown(why) => Some(why.clone()),
            Self::TimedOut | Self::Moved | Self::NoOwner | Self::NoTable => None,
        }
    }

    /// Whether the call may have run in spite of this outcome.
    #[must_use]
    pub const fn may_have_run(&self) -> bool {
        match self {
            Self::Unknown(_) | Self::TimedOut | Self::Moved => true,
            Self::Refused(_) | Self::Unreachable(_) | Self::NoOwner | Self::NoTable => false,
        }
    }
}

/// What the decision depends on besides the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether the call carries an idempotency key.
    pub keyed: bool,
    /// Which executor life was asked, if any.
    pub asked: Option<ExecutorId>,
    /// Hints followed in a row up to now.
    pub hints: u32,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Ask the owner that the refusal named, at once.
    FollowHint,
    /// Ask whom the table names, after the back-off and no sooner than this; at once when the table changes.
    Wait(Duration),
    /// The outcome is final.
    GiveUp,
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Whether the table is to be refreshed (without waiting for it).
    pub refresh: bool,
    /// What the call does.
    pub next: Next,
}

/// Decides what follows an attempt that ended with `outcome`.
#[must_use]
pub fn decide(outcome: &Outcome, facts: Facts) -> Step {
    let again = Step { refresh: true, next: Next::Wait(Duration::ZERO) };
    match outcome {
        Outcome::Refused(refusal) => after_refusal(refusal, facts),
        Outcome::Unreachable(_) | Outcome::NoOwner | Outcome::NoTable => again,
        Outcome::Unknown(_) | Outcome::TimedOut | Outcome::Moved if facts.keyed => again,
        Outcome::Unknown(_) | Outcome::TimedOut | Outcome::Moved => Step { refresh: true, next: Next::GiveUp },
    }
}

fn after_refusal(refusal: &Refusal, facts: Facts) -> Step {
    let wait = Next::Wait(refusal.retry_after().unwrap_or(Duration::ZERO));
    match (refusal, refusal.class()) {
        (_, Class::Rejected | Class::Fatal) => Step { refresh: false, next: Next::GiveUp },
        (Refusal::WrongOwner { owner: Some(owner), .. }, Class::Retry)
            if facts.hints < MAX_HINTS && facts.asked != Some(owner.executor) =>
        {
            Step { refresh: true, next: Next::FollowHint }
        }
        // The owner is right, it just cannot now: another table would say the same.
        (
            Refusal::Overloaded { .. } | Refusal::StoreUnavailable { .. } | Refusal::AppUnavailable { .. },
            Class::Retry,
        ) => Step { refresh: false, next: wait },
        (_, Class::Retry) => Step { refresh: true, next: wait },
    }
}

/// The back-off before try number `tries` (from 0): doubles from `first` up to `most`, and of that a share between a half and
/// the whole, by `draw` (any number; its uniform distribution is what spreads the callers).
#[must_use]
pub fn back_off(tries: u32, first: Duration, most: Duration, draw: u32) -> Duration {
    let full = first.saturating_mul(2_u32.saturating_pow(tries.min(20))).min(most);
    full / 2 + (full / 2).mul_f64(f64::from(draw) / f64::from(u32::MAX))
}

/// How long a call with `remaining` time pauses that would like to pause for `wish`. `None`: there is no time left for another
/// try after any pause worth the name (`least`).
#[must_use]
pub fn pause(wish: Duration, remaining: Duration, least: Duration) -> Option<Duration> {
    if wish < remaining / 2 {
        Some(wish)
    } else if remaining / 2 >= least {
        Some(remaining / 2)
    } else {
        None
    }
}

/// How long one attempt may take. `timeouts` counts attempts in a row that timed out at this owner: a frozen executor costs a
/// third of the remaining time at most, but a slow method of a healthy one gets twice the time at each try.
#[must_use]
pub fn attempt_bound(remaining: Duration, most: Duration, timeouts: u32) -> Duration {
    let share = remaining / 3_u32.saturating_sub(timeouts).max(1);
    share.min(most.saturating_mul(2_u32.saturating_pow(timeouts.min(20))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_model::message::Owner;
    use leasehold_model::refusal::Credential;
    use leasehold_model::{Address, ExecutorName, InvalidValue, Revision, ShardEpoch, ShardId};
    use quickcheck::quickcheck;

    const ASKED: ExecutorId = ExecutorId::from_u128(1);
    const SHARD: ShardId = ShardId(5);

    fn facts() -> Facts {
        Facts { keyed: true, asked: Some(ASKED), hints: 0 }
    }

    fn wrong_owner(owner: Option<u128>) -> Refusal {
        let owner = owner.map(|id| Owner {
            executor: ExecutorId::from_u128(id),
            name: ExecutorName::new("b").unwrap(),
            address: Address::new("b:1").unwrap(),
        });
        Refusal::WrongOwner { shard: SHARD, owner, revision: Revision(3) }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Case 40: every outcome has its row, and connection error, timeout and refusal correct the route alike.
    #[test]
    fn each_outcome_refreshes_and_retries_as_the_table_says() {
        let epoch = |epoch| ShardEpoch::new(epoch).unwrap();
        let why = || String::from("why");
        let executor = || String::from("a");
        let (again, refused) = (|wait| (true, Next::Wait(ms(wait))), (false, Next::GiveUp));
        let table = [
            (Outcome::Unreachable(why()), again(0)),
            (Outcome::Unknown(why()), again(0)),
            (Outcome::TimedOut, again(0)),
            (Outcome::Moved, again(0)),
            (Outcome::NoOwner, again(0)),
            (Outcome::NoTable, again(0)),
            (Outcome::Refused(Refusal::ShardingNotReady { executor: executor() }), again(50)),
            (Outcome::Refused(Refusal::HandoffInProgress { shard: SHARD, why: why() }), again(50)),
            (Outcome::Refused(Refusal::ShardUnassigned { shard: SHARD, why: why() }), again(50)),
            (Outcome::Refused(Refusal::Draining { executor: executor() }), again(0)),
            (Outcome::Refused(Refusal::EpochFenced { held: epoch(2), recorded: epoch(3) }), again(0)),
            (Outcome::Refused(Refusal::NotLeader { leader: None }), again(0)),
            (Outcome::Refused(Refusal::LeadershipUnconfirmed { why: why() }), again(200)),
            (Outcome::Refused(wrong_owner(None)), again(0)),
            (Outcome::Refused(wrong_owner(Some(2))), (true, Next::FollowHint)),
            (Outcome::Refused(Refusal::StoreUnavailable { why: why() }), (false, Next::Wait(ms(200)))),
            (
                Outcome::Refused(Refusal::Overloaded { resource: why(), used: 9, limit: 9 }),
                (false, Next::Wait(ms(200))),
            ),
            (Outcome::Refused(Refusal::InvalidField(InvalidValue::new("agent", "", "type/id"))), refused),
            (Outcome::Refused(Refusal::UnknownMethod { what: why() }), refused),
            (Outcome::Refused(Refusal::InvocationRejected { why: why() }), refused),
            (Outcome::Refused(Refusal::AppUnavailable { kind: why(), why: why() }), (false, Next::Wait(ms(200)))),
            (Outcome::Refused(Refusal::AppFault { kind: why(), why: why() }), refused),
            (Outcome::Refused(Refusal::BadCredential(Credential::AdminToken)), refused),
            (Outcome::Refused(Refusal::Superseded), refused),
        ];
        for (outcome, (refresh, next)) in table {
            assert_eq!(decide(&outcome, facts()), Step { refresh, next }, "{outcome:?}");
        }
    }

    #[test]
    fn what_may_have_run_is_repeated_only_under_an_idempotency_key() {
        for outcome in [Outcome::Unknown(String::new()), Outcome::TimedOut, Outcome::Moved] {
            assert!(outcome.may_have_run());
            let unkeyed = Facts { keyed: false, ..facts() };
            assert_eq!(decide(&outcome, unkeyed), Step { refresh: true, next: Next::GiveUp }, "{outcome:?}");
        }
    }

    /// Case 12: two executors naming each other.
    #[test]
    fn hints_are_followed_only_so_often_and_never_back_to_who_gave_them() {
        let hint = Outcome::Refused(wrong_owner(Some(2)));
        let waits = Step { refresh: true, next: Next::Wait(Duration::ZERO) };
        assert_eq!(decide(&hint, Facts { hints: MAX_HINTS - 1, ..facts() }).next, Next::FollowHint);
        assert_eq!(decide(&hint, Facts { hints: MAX_HINTS, ..facts() }), waits);
        let itself = Outcome::Refused(wrong_owner(Some(1)));
        assert_eq!(decide(&itself, facts()), waits);
    }

    #[test]
    fn back_off_doubles_up_to_its_bound_and_keeps_at_least_half() {
        let rows = [(0, 0, 5), (0, u32::MAX, 10), (3, 0, 40), (3, u32::MAX, 80), (6, u32::MAX, 500), (99, 0, 250)];
        for (tries, draw, expected) in rows {
            assert_eq!(back_off(tries, ms(10), ms(500), draw), ms(expected), "{tries} {draw}");
        }
    }

    #[test]
    fn a_pause_leaves_time_for_another_try_or_there_is_none() {
        assert_eq!(pause(ms(100), ms(1000), ms(10)), Some(ms(100)));
        assert_eq!(pause(ms(900), ms(1000), ms(10)), Some(ms(500)));
        assert_eq!(pause(ms(900), ms(20), ms(10)), Some(ms(10)));
        assert_eq!(pause(ms(900), ms(19), ms(10)), None);
        assert_eq!(pause(ms(0), ms(0), ms(10)), None);
    }

    /// Case 9: the silent target.
    #[test]
    fn a_silent_owner_costs_a_bounded_share_and_a_slow_one_gets_more_time() {
        assert_eq!(attempt_bound(ms(30_000), ms(2000), 0), ms(2000));
        assert_eq!(attempt_bound(ms(900), ms(2000), 0), ms(300));
        assert_eq!(attempt_bound(ms(28_000), ms(2000), 1), ms(4000));
        assert_eq!(attempt_bound(ms(900), ms(2000), 1), ms(450));
        assert_eq!(attempt_bound(ms(900), ms(2000), 2), ms(900));
        assert_eq!(attempt_bound(ms(900_000), ms(2000), 3), ms(16_000));
        assert_eq!(attempt_bound(ms(900), ms(2000), u32::MAX), ms(900));
    }

    quickcheck! {
        fn a_back_off_is_never_above_its_bound_nor_below_half_of_it_in_the_end(tries: u32, draw: u32) -> bool {
            let wait = back_off(tries, ms(10), ms(500), draw);
            wait <= ms(500) && wait >= ms(5) && (tries < 6 || wait >= ms(250))
        }

        fn a_pause_always_ends_before_the_deadline(wish: u32, remaining: u32) -> bool {
            let remaining = ms(remaining.into());
            pause(ms(wish.into()), remaining, ms(10)).is_none_or(|wait| wait < remaining)
        }

        fn an_attempt_never_outlasts_the_call(remaining: u32, timeouts: u32) -> bool {
            let remaining = ms(remaining.into());
            attempt_bound(remaining, ms(2000), timeouts) <= remaining
        }
    }
}
