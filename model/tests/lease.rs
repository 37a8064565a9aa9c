//! Lease arithmetic: S5 on a grid and at random, and the table of R2 to R14.
#![allow(clippy::unwrap_used, reason = "tests")]

use leasehold_model::lease::{
    Allowance, FIRST_PAUSE, HolderLease, Jitter, LONGEST_PAUSE, LeaseTimes, Profile, attempt_deadline,
    granter_deadline, holder_deadline, renew_at, retry_pause,
};
use leasehold_model::{Tick, Ttl};
use quickcheck::quickcheck;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

fn ppm(ppm: u32) -> Allowance {
    Allowance::from_ppm(ppm).unwrap()
}

fn any_ttl(bits: u64) -> Ttl {
    ttl(1 + bits % Ttl::MAX_MS)
}

/// One renewal in real time. The executor's clock runs `slow_ppm` slower than the manager's, and both start at odd origins.
struct Exchange {
    ttl: Ttl,
    allowance: Allowance,
    slow_ppm: u32,
    request: Duration,
    store: Duration,
}

impl Exchange {
    /// Real nanoseconds after the executor noted the instant, times a million: (executor's end, manager's end). The
    /// answer's transit stands in neither: it cannot matter.
    fn ends(&self) -> (u128, u128) {
        let executor_origin = Tick(7_777);
        let manager_origin = Tick(999_000_000_000);
        let holder = holder_deadline(executor_origin, self.ttl, self.allowance);
        let granting = manager_origin.plus(self.request + self.store);
        let granter = granter_deadline(Tick::ZERO, granting, self.ttl);
        let executor_ticks = holder.since(executor_origin).as_nanos();
        // A clock that is slow by s counts (1 - s) in a second: its deadline comes 1 / (1 - s) later in real time.
        let real = executor_ticks * 1_000_000 * 1_000_000 / u128::from(1_000_000 - self.slow_ppm);
        (real, granter.since(manager_origin).as_nanos() * 1_000_000)
    }
}

/// S5, R2, R5, case 14: whatever request transit, store delay and clock-rate error within the allowance.
#[test]
fn the_executors_copy_ends_first_over_a_grid_of_delays_and_clock_errors() {
    let delays = [0, 1, 499, 500, 1_000, 7_200, 36_000, 600_000].map(Duration::from_millis);
    for ms in [1, 3, 1_000, 3_000, 12_000, 60_000, Ttl::MAX_MS] {
        for allowance in [0, 1, 200, 1_000, 100_000] {
            for slow_ppm in [0, allowance / 2, allowance] {
                for request in delays {
                    for store in delays {
                        let allowance = ppm(allowance);
                        let exchange = Exchange { ttl: ttl(ms), allowance, slow_ppm, request, store };
                        let (executor, manager) = exchange.ends();
                        assert!(
                            executor <= manager,
                            "{ms} ms, {allowance:?}, slow {slow_ppm} ppm, request {request:?}, store {store:?}: \
                             executor ends {} later",
                            executor - manager
                        );
                    }
                }
            }
        }
    }
}

/// R9: what the allowance does not cover. Shows that the grid above has teeth.
#[test]
fn a_clock_slower_than_the_allowance_outlives_the_managers_deadline() {
    let quick = Exchange {
        ttl: ttl(60_000),
        allowance: ppm(1_000),
        slow_ppm: 1_001,
        request: Duration::ZERO,
        store: Duration::ZERO,
    };
    let (executor, manager) = quick.ends();
    assert!(executor > manager);
}

quickcheck! {
    /// S5.
    fn the_executors_copy_ends_first_whatever_happens(ms: u64, allowance: u32, slow: u32, request: u32, store: u32) -> bool {
        let allowance = allowance % (Allowance::MAX_PPM + 1);
        let exchange = Exchange {
            ttl: any_ttl(ms),
            allowance: ppm(allowance),
            slow_ppm: slow % (allowance + 1),
            request: Duration::from_micros(request.into()),
            store: Duration::from_micros(store.into()),
        };
        let (executor, manager) = exchange.ends();
        executor <= manager
    }

    /// S5, R3, R5: renewals whose answers arrive late, out of order or never, with lease lengths that change in between.
    fn over_any_history_of_grants_the_executors_copy_ends_first(grants: Vec<(u16, u16, u16, bool)>) -> bool {
        let mut lease = HolderLease::default();
        let mut granter = Tick::ZERO;
        let mut noted = Tick(1);
        let mut held_back = None;
        grants.into_iter().all(|(gap, delay, ms, held)| {
            noted = noted.plus(Duration::from_millis(gap.into()));
            let ttl = ttl(u64::from(ms) + 1);
            granter = granter_deadline(granter, noted.plus(Duration::from_millis(delay.into())), ttl);
            if held {
                held_back = Some((noted, ttl));
            } else {
                let counted = lease.grant(noted, ttl, Allowance::default());
                assert!(counted, "it was noted last");
                if let Some((noted, ttl)) = held_back.take() {
                    let before = lease;
                    let counted = lease.grant(noted, ttl, Allowance::default());
                    assert!(counted == (lease != before) || before == lease, "a grant that does not count changes nothing");
                }
            }
            lease.deadline() <= granter
        })
    }

    /// R5, case 15.
    fn the_managers_deadline_never_goes_back(present: u64, granting: u64, ms: u64) -> bool {
        let deadline = granter_deadline(Tick(present), Tick(granting), any_ttl(ms));
        deadline >= Tick(present) && deadline >= Tick(granting).plus(any_ttl(ms).as_duration())
            && (deadline == Tick(present) || deadline == Tick(granting).plus(any_ttl(ms).as_duration()))
    }

    /// R11, L1.
    fn a_renewal_is_due_within_the_first_third_of_what_is_left(now: u64, left: u64, jitter: u16) -> bool {
        let now = Tick(now % (1 << 62));
        let left = Duration::from_nanos(left % (1 << 62));
        let due = renew_at(now, now.plus(left), Jitter::new(jitter)).since(now);
        due <= left / 3 && due >= left / 3 - left / 30
    }

    /// R13.
    fn pauses_stay_within_their_bounds(failures: u32, left_ms: u64, jitter: u16) -> bool {
        let left = Duration::from_millis(left_ms);
        let pause = retry_pause(failures, left, Jitter::new(jitter));
        pause >= FIRST_PAUSE / 2 && pause <= LONGEST_PAUSE && (left.is_zero() || pause <= (left / 8).max(FIRST_PAUSE))
    }
}

/// R2: from the noted instant, shortened, rounded down.
#[test]
fn the_executors_copy_is_shortened_by_the_allowance() {
    let ends = |ms, part| holder_deadline(Tick(100), ttl(ms), ppm(part));
    assert_eq!(ends(60_000, 0), Tick(100 + 60_000_000_000));
    assert_eq!(ends(60_000, 1_000), Tick(100 + 59_940_000_000));
    assert_eq!(ends(60_000, 100_000), Tick(100 + 54_000_000_000));
    assert_eq!(ends(1, 1), Tick(100 + 999_999));
    assert_eq!(ends(Ttl::MAX_MS, 1_000), Tick(100 + 86_313_600_000_000));
    assert_eq!(ppm(333_333 / 10).shorten(Duration::from_nanos(1)), Duration::ZERO, "down, never up");
}

/// R9.
#[test]
fn the_allowance_is_a_tenth_of_a_percent_unless_configured_and_at_most_ten_percent() {
    assert_eq!(Allowance::default().as_ppm(), 1_000);
    assert_eq!(Allowance::from_ppm(100_000).unwrap().as_ppm(), 100_000);
    let refused = Allowance::from_ppm(100_001).unwrap_err();
    assert_eq!(refused.field, "lease.allowance");
    assert_eq!(refused.value, "100001");
    assert_eq!(serde_json::from_str::<Allowance>("250").unwrap(), ppm(250));
    assert_eq!(serde_json::to_string(&ppm(250)).unwrap(), "250");
    assert!(serde_json::from_str::<Allowance>("100001").is_err());
}

/// R3, case 7: the held answer of an earlier attempt must not undo a later one; the later one counts also when it is shorter.
#[test]
fn of_two_grants_the_one_noted_later_counts_and_sets_the_deadline() {
    let none = ppm(0);
    let mut lease = HolderLease::default();
    assert!(!lease.is_live(Tick::ZERO));
    assert!(lease.grant(Tick(1_000), ttl(60_000), none));
    assert_eq!(lease, HolderLease::Until { noted: Tick(1_000), deadline: Tick(60_000_001_000) });
    assert!(lease.grant(Tick(2_000), ttl(1), none), "a shorter lease than before");
    assert_eq!(lease.deadline(), Tick(1_002_000));
    assert!(!lease.grant(Tick(1_999), ttl(60_000), none), "noted earlier, answered later");
    assert_eq!(lease.deadline(), Tick(1_002_000));
    assert!(lease.is_live(Tick(1_001_999)));
    assert!(!lease.is_live(Tick(1_002_000)));
    assert_eq!(lease.renew_at(Tick(2_000), Jitter::NONE), Some(Tick(2_000 + 333_333)));
}

/// R3: two managers may answer attempts that were noted at one instant, and nothing tells which is the newer one's.
#[test]
fn of_two_grants_noted_at_one_instant_the_sooner_end_holds() {
    for ends in [[3, 5], [5, 3]] {
        let mut lease = HolderLease::default();
        for ms in ends {
            assert!(lease.grant(Tick(2_000), ttl(ms), ppm(0)));
        }
        assert_eq!(lease.deadline(), Tick(3_002_000));
    }
    let mut first = HolderLease::default();
    assert!(first.grant(Tick::ZERO, ttl(3), ppm(0)), "the first of a clock that has just begun");
    assert_eq!(first.deadline(), Tick(3_000_000));
}

/// R8: it exists for a single process only.
#[test]
fn a_lease_without_expiry_never_ends_and_is_never_renewed() {
    let mut lease = HolderLease::without_expiry();
    assert_eq!(lease.deadline(), Tick::NEVER);
    assert!(lease.is_live(Tick(u64::MAX - 1)));
    assert_eq!(lease.renew_at(Tick(5), Jitter::MOST), None);
    assert!(!lease.grant(Tick(u64::MAX - 1), ttl(1), Allowance::default()), "a grant does not give it an end");
    assert_eq!(lease, HolderLease::WithoutExpiry);
}

/// Case 19: a lease longer than the machine has been up, and sums past the end of the clock.
#[test]
fn arithmetic_stops_at_the_ends_of_the_clock() {
    let day = ttl(Ttl::MAX_MS);
    assert_eq!(holder_deadline(Tick::NEVER, day, ppm(0)), Tick::NEVER);
    assert_eq!(holder_deadline(Tick(u64::MAX - 5), day, ppm(100_000)), Tick::NEVER);
    assert_eq!(granter_deadline(Tick::ZERO, Tick::NEVER, day), Tick::NEVER);
    assert_eq!(granter_deadline(Tick::NEVER, Tick::ZERO, day), Tick::NEVER);
    assert_eq!(Tick(5).minus(day.as_duration()), Tick::ZERO);
    assert_eq!(Tick(5).minus(Duration::MAX), Tick::ZERO);
    assert_eq!(Tick(5).plus(Duration::MAX), Tick::NEVER);
    assert_eq!(Tick(5).since(Tick::NEVER), Duration::ZERO);
    assert_eq!(ppm(0).shorten(Duration::MAX), Duration::from_nanos(u64::MAX));
    assert_eq!(Jitter::MOST.of(Duration::MAX), Duration::from_nanos(u64::MAX - (u64::MAX >> 16) - 1));
    assert_eq!(renew_at(Tick::NEVER, Tick::NEVER, Jitter::MOST), Tick::NEVER);
    assert_eq!(renew_at(Tick(9), Tick::ZERO, Jitter::MOST), Tick(9), "a lease that is over is renewed at once");
    assert_eq!(retry_pause(u32::MAX, Duration::MAX, Jitter::NONE), LONGEST_PAUSE);
    let longest = Duration::from_millis(u64::MAX);
    assert!(LeaseTimes::new(longest, SECOND).is_err());
    assert!(LeaseTimes::new(SECOND, longest).is_err());
    assert!(LeaseTimes::new(Duration::MAX, Duration::MAX).is_err());
}

/// R11.
#[test]
fn a_renewal_is_due_when_a_third_of_the_time_left_has_passed_or_a_little_earlier() {
    let (now, end) = (Tick(1_000), Tick(1_000 + 60_000_000_000));
    assert_eq!(renew_at(now, end, Jitter::NONE), Tick(1_000 + 20_000_000_000));
    assert_eq!(renew_at(now, end, Jitter::new(1 << 15)), Tick(1_000 + 19_000_000_000));
    assert!(renew_at(now, end, Jitter::MOST) < Tick(1_000 + 18_001_000_000));
    assert!(renew_at(now, end, Jitter::MOST) > Tick(1_000 + 18_000_000_000));
}

/// R13.
#[test]
fn an_attempt_may_take_a_sixth_of_the_lease_and_at_least_the_floor() {
    assert_eq!(attempt_deadline(ttl(60_000), 10 * SECOND), 10 * SECOND);
    assert_eq!(attempt_deadline(ttl(30_000), 10 * SECOND), 10 * SECOND);
    assert_eq!(attempt_deadline(ttl(120_000), 10 * SECOND), 20 * SECOND);
    assert_eq!(attempt_deadline(ttl(1), Duration::ZERO), Duration::from_nanos(166_666));
}

/// R13.
#[test]
fn pauses_double_and_leave_room_for_several_attempts() {
    let pause = |failures, left: Duration| retry_pause(failures, left, Jitter::NONE).as_millis();
    let left = 40 * SECOND;
    assert_eq!(
        [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| pause(n, left)),
        [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    );
    assert_eq!(pause(0, left), 50);
    assert_eq!(pause(17, Duration::ZERO), 5_000);
    assert_eq!(pause(8, 8 * SECOND), 1_000, "an eighth of what is left");
    assert_eq!(pause(8, Duration::from_millis(1)), 50, "never a spin");
    assert_eq!(pause(8, Duration::ZERO), 5_000, "nothing left to fit into");
    let jittered = retry_pause(8, left, Jitter::MOST);
    assert!(jittered > Duration::from_millis(2_500) && jittered < Duration::from_millis(2_501));
}

/// R13: calls that are refused at once; each pause is counted against what is left.
#[test]
fn at_least_eight_attempts_fit_into_the_rest_of_any_lease_that_is_not_tiny() {
    for lease_ms in [3_000, 12_000, 60_000, 600_000] {
        let mut left = Duration::from_millis(lease_ms) * 2 / 3;
        let mut attempts = 0;
        while !left.is_zero() && attempts < 1_000 {
            attempts += 1;
            left = left.saturating_sub(retry_pause(attempts, left, Jitter::NONE));
        }
        assert!(attempts >= 8, "{attempts} attempts in a lease of {lease_ms} ms");
    }
}

/// R14.
#[test]
fn profiles_set_duration_and_floor_and_need_no_warning() {
    let figures = |profile: Profile| (profile.duration().as_millis(), profile.call_deadline_floor().as_millis());
    assert_eq!(figures(Profile::Wan), (60_000, 10_000));
    assert_eq!(figures(Profile::Lan), (12_000, 2_000));
    assert_eq!(figures(Profile::Fast), (3_000, 500));
    assert_eq!(Profile::default(), Profile::Wan);
    for profile in [Profile::Wan, Profile::Lan, Profile::Fast] {
        let times = LeaseTimes::from(profile);
        assert_eq!(times.warning(), None);
        assert_eq!((times.ttl().as_duration(), times.floor()), (profile.duration(), profile.call_deadline_floor()));
        assert_eq!(profile.to_string().parse::<Profile>().unwrap(), profile);
        assert_eq!(serde_json::to_string(&profile).unwrap(), format!("{:?}", profile.as_str()));
    }
    assert_eq!("lna".parse::<Profile>().unwrap_err().accepted, "wan, lan or fast");
}

/// R14: the message shows the arithmetic.
#[test]
fn a_lease_that_three_calls_do_not_fit_into_is_refused_and_one_for_less_than_six_warned_about() {
    let floor = 10 * SECOND;
    let refused = LeaseTimes::new(5 * SECOND, floor).unwrap_err().to_string();
    assert_eq!(
        refused,
        "lease.duration: \"5s\" is not accepted; expected at least 30s (3 × lease.call_deadline_floor of 10s)"
    );
    assert!(LeaseTimes::new(30 * SECOND - Duration::from_millis(1), floor).is_err());
    let short = LeaseTimes::new(30 * SECOND, floor).unwrap();
    let warning = short.warning().unwrap();
    assert!(warning.contains("30s") && warning.contains("60s (6 × lease.call_deadline_floor of 10s)"), "{warning}");
    assert!(LeaseTimes::new(Duration::from_millis(59_999), floor).unwrap().warning().is_some());
    assert_eq!(LeaseTimes::new(60 * SECOND, floor).unwrap().warning(), None);
    let tiny = LeaseTimes::new(Duration::from_nanos(1), Duration::ZERO).unwrap_err();
    assert_eq!((tiny.field.as_str(), tiny.accepted.as_str()), ("lease.duration", "1ms to 24h"));
    assert!(LeaseTimes::new(24 * 3_600 * SECOND + Duration::from_millis(1), floor).is_err());
}

#[test]
fn derived_times_can_be_shown() {
    let wan = LeaseTimes::from(Profile::Wan);
    assert_eq!(wan.renew_after(ppm(1_000)), Duration::from_millis(19_980));
    assert_eq!(wan.renew_after(ppm(0)), 20 * SECOND);
    assert_eq!(wan.attempt_deadline(), 10 * SECOND);
}
