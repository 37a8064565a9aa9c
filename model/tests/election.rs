//! The candidacy: every transition as a table, then at random against a small model of the store.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests")]

use leasehold_model::election::{Call, CandidacyId, Effect, Election, End, Event, Kept, Leading, Note, Settings};
use leasehold_model::lease::Allowance;
use leasehold_model::{Address, Tick, Ttl};
use quickcheck::{QuickCheck, TestResult};
use std::time::Duration;

const TTL_MS: u64 = 10_000;
/// With a leader that answers nothing.
const PATIENCE: Duration = Duration::from_secs(5);

fn at(ms: u64) -> Tick {
    Tick(1_000_000_000_000).plus(Duration::from_millis(ms))
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

fn address(port: u16) -> Address {
    Address::new(format!("127.0.0.1:{port}")).unwrap()
}

fn place(id: i64) -> Leading {
    Leading { candidacy: CandidacyId(id), since: id, address: address(7000 + u16::try_from(id).unwrap()) }
}

const ME: CandidacyId = CandidacyId(1);

/// An election under test, and what it asked for last.
struct Bench(Election);

impl Bench {
    fn new() -> Self {
        let allowance = Allowance::from_ppm(1_000).unwrap();
        Self(Election::new(Settings { ttl: ttl(TTL_MS), allowance, patience: PATIENCE }, at(0)))
    }

    /// A leader that is asked whether it works says so.
    fn step(&mut self, ms: u64, event: Event) -> Vec<Effect> {
        let mut out = self.silently(ms, event);
        if out.contains(&Effect::AskLeader(ME)) {
            self.0.step(at(ms), Event::LeaderAnswered(ME), &mut out);
        }
        out.retain(|effect| !matches!(effect, Effect::Arm(_) | Effect::Note(_) | Effect::AskLeader(_)));
        out
    }

    /// The same with one that says nothing, and everything that was asked for.
    fn silently(&mut self, ms: u64, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.0.step(at(ms), event, &mut out);
        out
    }

    /// A candidate since 0 ms with a ttl of `granted`.
    fn candidate(granted: u64) -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.step(0, Event::Timer), [Effect::Observe(None), Effect::Join(ttl(TTL_MS))]);
        assert_eq!(bench.step(100, Event::Joined(Ok((ME, ttl(granted))))), [Effect::Enlist(ME)]);
        assert_eq!(bench.step(200, Event::Enlisted(ME, Ok(Kept::Held(())))), []);
        bench
    }

    fn leader(granted: u64) -> Self {
        let mut bench = Self::candidate(granted);
        let until = at(0).plus(Duration::from_millis(granted).mul_f64(0.999));
        let lead = [Effect::Lead(place(1), until), Effect::Observe(Some(place(1)))];
        assert_eq!(bench.step(300, Event::Observed(Ok(Some(place(1))))), lead);
        bench
    }

    fn leads(&self, ms: u64) -> bool {
        self.0.leads_until().is_some_and(|until| at(ms) < until)
    }
}

/// Cases 14, 41: the deadline counts from before the call was sent, by the ttl that was granted, less the allowance.
#[test]
fn a_leadership_lasts_from_before_the_keepalive_was_sent_by_the_ttl_that_was_granted() {
    let mut bench = Bench::leader(TTL_MS);
    assert_eq!(bench.0.leads_until(), Some(at(9_990)));
    assert_eq!(bench.step(3_400, Event::Timer), [Effect::KeepAlive(ME)]);
    // The answer takes 0.6 of a ttl: it still counts from 3,400 ms.
    let extended = [Effect::Extend(at(3_400 + 11_988)), Effect::KeepAlive(ME)];
    assert_eq!(bench.step(9_400, Event::KeptAlive(ME, Ok(Kept::Held(ttl(12_000))))), extended);
    assert!(bench.leads(15_387) && !bench.leads(15_388));
}

/// R45: whoever keeps the lease alive keeps no leader in office that works for nobody; nor waits until that has ended.
#[test]
fn a_leader_that_does_not_say_that_it_works_is_given_up() {
    let kept = || Event::KeptAlive(ME, Ok(Kept::Held(ttl(TTL_MS))));
    let silent = |out: &[Effect]| {
        out.iter().any(|effect| matches!(effect, Effect::TakeDown(End::Silent(why)) if why.contains("5s")))
    };
    let mut bench = Bench::leader(TTL_MS);
    assert!(bench.silently(3_400, Event::Timer).contains(&Effect::AskLeader(ME)), "with the keepalive");
    bench.silently(3_500, kept());
    let out = bench.silently(8_399, Event::LeaderAnswered(ME));
    assert!(out.contains(&Effect::AskLeader(ME)) && !silent(&out), "just in time, and asked again: {out:?}");
    bench.silently(8_400, kept());
    bench.silently(8_500, Event::LeaderAnswered(CandidacyId(9)));
    assert!(!silent(&bench.silently(13_398, Event::Timer)), "it has a millisecond left");
    assert!(silent(&bench.silently(13_399, Event::Timer)), "another one's answer is none");
    assert!(!bench.leads(13_399), "whatever the lease says");
    assert_eq!(bench.step(13_399, Event::Ended(ME, "silent".into())), [Effect::Leave(ME)]);
}

#[test]
fn a_leader_is_asked_once_at_a_time_by_a_timer_of_its_own_and_a_candidate_is_not() {
    let mut bench = Bench::leader(TTL_MS);
    let mut out = bench.silently(3_400, Event::Timer);
    out.extend(bench.silently(3_500, Event::KeptAlive(ME, Err("away".into()))));
    out.extend(bench.silently(3_550, Event::Timer));
    assert_eq!(out.iter().filter(|effect| **effect == Effect::AskLeader(ME)).count(), 1, "{out:?}");
    let armed = out.iter().rev().find(|effect| matches!(effect, Effect::Arm(_)));
    assert_eq!(armed, Some(&Effect::Arm(at(8_400))), "while the keepalive is under way");
    let asked = Bench::candidate(TTL_MS).silently(3_400, Event::Timer);
    assert!(asked.contains(&Effect::KeepAlive(ME)) && !asked.contains(&Effect::AskLeader(ME)), "{asked:?}");
}

/// Case 14: an answer that comes after the deadline revives nothing.
#[test]
fn an_answer_after_the_deadline_comes_too_late() {
    let mut bench = Bench::leader(TTL_MS);
    assert_eq!(bench.step(3_400, Event::Timer), [Effect::KeepAlive(ME)]);
    let out = bench.step(9_990, Event::KeptAlive(ME, Ok(Kept::Held(ttl(TTL_MS)))));
    assert!(matches!(&out[..], [Effect::TakeDown(End::Lost(why))] if why.contains("10s")), "{out:?}");
    assert_eq!(bench.step(9_995, Event::Ended(ME, "lost".into())), [Effect::Leave(ME)]);
}

/// Cases 23, 27: calls that fail are repeated and lose nothing while the lease lasts.
#[test]
fn failed_calls_lose_nothing_while_the_lease_lasts() {
    let mut bench = Bench::leader(TTL_MS);
    assert_eq!(bench.step(3_400, Event::Timer), [Effect::KeepAlive(ME)]);
    let failed = || "unavailable".to_owned();
    assert_eq!(bench.step(6_000, Event::KeptAlive(ME, Err(failed()))), []);
    assert_eq!(bench.step(6_100, Event::Observed(Err(failed()))), [Effect::KeepAlive(ME)], "50 ms later");
    assert_eq!(bench.step(6_150, Event::Timer), [Effect::Observe(Some(place(1)))]);
    assert_eq!(
        bench.step(9_000, Event::KeptAlive(ME, Ok(Kept::Held(ttl(TTL_MS))))),
        [Effect::Extend(at(6_100 + 9_990))]
    );
}

/// Case 22
#[test]
fn a_lease_that_is_gone_ends_the_leadership_and_is_not_left() {
    let mut bench = Bench::leader(TTL_MS);
    bench.step(3_400, Event::Timer);
    let out = bench.step(3_500, Event::KeptAlive(ME, Ok(Kept::Gone)));
    assert!(matches!(&out[..], [Effect::TakeDown(End::Lost(_))]), "{out:?}");
    assert_eq!(bench.step(3_510, Event::Ended(ME, "lost".into())), []);
    assert_eq!(bench.step(3_560, Event::Timer), [Effect::Join(ttl(TTL_MS))], "a standby again after 50 ms");
}

/// Case 22
#[test]
fn a_key_that_is_gone_ends_the_leadership_and_the_lease_is_left() {
    for observed in [None, Some(place(2))] {
        let mut bench = Bench::leader(TTL_MS);
        let out = bench.step(400, Event::Observed(Ok(observed.clone())));
        assert!(matches!(&out[0], Effect::TakeDown(End::Lost(why)) if why.contains("key")), "{out:?}");
        assert_eq!(out[1], Effect::Observe(observed));
        assert_eq!(bench.step(410, Event::Ended(ME, "lost".into())), [Effect::Leave(ME)]);
        assert_eq!(bench.step(420, Event::Left(ME, Ok(()))), []);
        assert_eq!(bench.step(470, Event::Timer), [Effect::Join(ttl(TTL_MS))]);
    }
}

/// Case 27: a candidate whose lease is gone joins anew.
#[test]
fn a_candidate_whose_lease_is_gone_joins_anew() {
    let mut bench = Bench::candidate(TTL_MS);
    bench.step(3_400, Event::Timer);
    assert_eq!(bench.step(3_450, Event::KeptAlive(ME, Ok(Kept::Gone))), []);
    assert_eq!(bench.step(3_500, Event::Timer), [Effect::Join(ttl(TTL_MS))]);
    let mut bench = Bench::new();
    bench.step(0, Event::Timer);
    bench.step(100, Event::Joined(Ok((ME, ttl(TTL_MS)))));
    assert_eq!(bench.step(120, Event::Enlisted(ME, Ok(Kept::Gone))), []);
    assert_eq!(bench.step(170, Event::Timer), [Effect::Join(ttl(TTL_MS))]);
}

/// Case 21: a candidate that was frozen past its lease leaves its place and joins anew at once.
#[test]
fn a_candidate_that_slept_past_its_lease_joins_anew() {
    let mut bench = Bench::candidate(TTL_MS);
    assert_eq!(bench.step(25_000, Event::Timer), [Effect::Leave(ME)]);
    assert_eq!(bench.step(25_010, Event::Left(ME, Ok(()))), []);
    assert_eq!(bench.step(25_060, Event::Timer), [Effect::Join(ttl(TTL_MS))]);
}

/// Case 21: its place may have been deleted under it, so a candidate asks for it with every keepalive.
#[test]
fn a_candidate_makes_sure_of_its_place_with_every_keepalive() {
    let mut bench = Bench::candidate(TTL_MS);
    bench.step(3_400, Event::Timer);
    assert_eq!(bench.step(3_500, Event::KeptAlive(ME, Ok(Kept::Held(ttl(TTL_MS))))), [Effect::Enlist(ME)]);
}

/// Case 21: two calls for one place would race each other.
#[test]
fn a_place_that_is_being_asked_for_is_not_asked_for_twice() {
    let mut bench = Bench::new();
    bench.step(0, Event::Timer);
    bench.step(100, Event::Joined(Ok((ME, ttl(TTL_MS)))));
    assert_eq!(bench.step(3_400, Event::Timer), [Effect::KeepAlive(ME)]);
    assert_eq!(bench.step(3_500, Event::KeptAlive(ME, Ok(Kept::Held(ttl(TTL_MS))))), []);
}

/// Case 21: late answers to calls of a candidacy that is over say nothing of the one that followed it.
#[test]
fn what_is_heard_of_a_former_candidacy_changes_nothing() {
    let mut bench = Bench::candidate(TTL_MS);
    let second = CandidacyId(2);
    bench.step(25_000, Event::Timer);
    bench.step(25_010, Event::Left(ME, Ok(())));
    bench.step(25_060, Event::Timer);
    assert_eq!(bench.step(25_100, Event::Joined(Ok((second, ttl(TTL_MS))))), [Effect::Enlist(second)]);
    assert_eq!(bench.step(25_200, Event::Enlisted(ME, Ok(Kept::Gone))), []);
    assert_eq!(bench.step(29_000, Event::Timer), [Effect::KeepAlive(second)]);
    assert_eq!(bench.step(29_010, Event::KeptAlive(ME, Ok(Kept::Gone))), []);
    let led = bench.step(29_020, Event::Observed(Ok(Some(place(2)))));
    assert!(matches!(led[..], [Effect::Lead(..), Effect::Observe(_)]), "{led:?}");
}

/// As operators read them in logs, metrics and etcd's own tools.
#[test]
fn calls_and_candidacies_are_named_as_etcd_names_them() {
    assert_eq!(CandidacyId(0x1d_2f).to_string(), "1d2f");
    let calls = [Call::Join, Call::Enlist, Call::KeepAlive, Call::Observe, Call::Leave].map(Call::as_str);
    assert_eq!(calls, ["join", "enlist", "keep_alive", "observe", "leave"]);
}

/// Case 41: a place that cannot be left is asked to be left until it must be gone by itself, then a new one is taken.
#[test]
fn a_place_that_cannot_be_left_holds_nobody_up_for_longer_than_a_ttl() {
    let mut bench = Bench::candidate(TTL_MS);
    assert_eq!(bench.step(9_990, Event::Timer), [Effect::Leave(ME)]);
    let failed = || "unavailable".to_owned();
    let mut now = 9_990;
    let mut attempts = 0;
    loop {
        now += 1;
        if let Effect::Join(_) = match bench.step(now, Event::Left(ME, Err(failed()))).first() {
            Some(effect) => effect.clone(),
            None => {
                now += 1_000;
                let out = bench.step(now, Event::Timer);
                let [effect] = &out[..] else { panic!("{out:?}") };
                effect.clone()
            }
        } {
            break;
        }
        attempts += 1;
        assert!(attempts < 100);
    }
    assert!((19_990..=22_000).contains(&now), "{now}");
}

/// Case 24: a stop in every stage; nobody waits for a store that does not answer.
#[test]
fn a_stop_leaves_the_queue_at_once_in_every_stage() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(0, Event::Stop), [Effect::Exit], "before anything");
    let mut bench = Bench::new();
    bench.step(0, Event::Timer);
    assert_eq!(bench.step(10, Event::Stop), [Effect::Exit], "while it joins");
    assert_eq!(bench.step(20, Event::Joined(Ok((ME, ttl(TTL_MS))))), [], "a lease without a place ends by itself");
    let mut bench = Bench::candidate(TTL_MS);
    assert_eq!(bench.step(300, Event::Stop), [Effect::Leave(ME)]);
    assert_eq!(bench.step(400, Event::Left(ME, Err("unreachable".into()))), [Effect::Exit], "one attempt");
    let mut bench = Bench::leader(TTL_MS);
    assert_eq!(bench.step(400, Event::Stop), [Effect::TakeDown(End::Asked)]);
    assert_eq!(bench.step(3_400, Event::Timer), [Effect::KeepAlive(ME)], "the last write needs the lease");
    assert_eq!(bench.step(3_500, Event::Ended(ME, "asked".into())), [Effect::Leave(ME)]);
    assert_eq!(bench.step(3_510, Event::Left(ME, Ok(()))), [Effect::Exit]);
    assert_eq!(bench.step(99_000, Event::Timer), []);
}

#[test]
fn callers_are_sent_to_the_leader_and_never_to_oneself() {
    let mut bench = Bench::candidate(TTL_MS);
    let follow = |id: i64| Effect::Follow(Some(place(id).address));
    assert_eq!(bench.step(300, Event::Observed(Ok(Some(place(2))))), [Effect::Observe(Some(place(2))), follow(2)]);
    let out = bench.step(400, Event::Observed(Ok(Some(place(1)))));
    assert!(matches!(out[0], Effect::Lead(..)) && out.contains(&Effect::Follow(None)), "{out:?}");
    let out = bench.step(500, Event::Observed(Ok(Some(place(3)))));
    assert!(out.contains(&follow(3)), "{out:?}");
}

/// Without the store's majority nobody hears who leads: a leader that nobody has seen for a lease is named no longer.
#[test]
fn a_leader_that_was_observed_a_lease_ago_is_named_no_longer_while_the_store_says_nothing() {
    let follow = |id: i64| Effect::Follow(Some(place(id).address));
    let fails = |bench: &mut Bench, ms| bench.step(ms, Event::Observed(Err("no leader".into())));
    let mut bench = Bench::candidate(TTL_MS);
    assert!(bench.step(300, Event::Observed(Ok(Some(place(2))))).contains(&follow(2)));
    // Heard again in between: it begins anew.
    assert_eq!(fails(&mut bench, 1_000), []);
    assert_eq!(bench.step(1_050, Event::Timer), [Effect::Observe(Some(place(2)))]);
    bench.step(1_100, Event::Observed(Ok(Some(place(3)))));
    assert_eq!(fails(&mut bench, 2_000), []);
    let told = |bench: &mut Bench, ms| bench.step(ms, Event::Timer).contains(&Effect::Follow(None));
    assert!(!told(&mut bench, 2_000 + TTL_MS - 1), "it may lead still");
    assert!(told(&mut bench, 2_000 + TTL_MS), "by its timer alone");
    let heard = bench.step(3_000 + TTL_MS, Event::Observed(Ok(Some(place(3)))));
    assert!(heard.contains(&follow(3)), "{heard:?}");
}

/// A leadership that ended by itself (another process wrote, the state could not be read) is left, and stood for again.
#[test]
fn a_leadership_that_ends_by_itself_is_resigned() {
    let mut bench = Bench::leader(TTL_MS);
    assert_eq!(bench.step(500, Event::Ended(ME, "another process wrote".into())), [Effect::Leave(ME)]);
    assert_eq!(bench.0.leads_until(), None);
}

/// Failures in a row are spread out: nobody spins while the store is away.
#[test]
fn pauses_between_failures_double_up_to_a_second() {
    let mut bench = Bench::new();
    let mut now = 0;
    let mut pauses = Vec::new();
    bench.step(0, Event::Timer);
    for _ in 0..8 {
        let mut out = Vec::new();
        bench.0.step(at(now), Event::Joined(Err("away".into())), &mut out);
        assert!(out.contains(&Effect::Note(Note::Failed(Call::Join, "away".into()))));
        let Some(Effect::Arm(next)) = out.last() else { panic!("{out:?}") };
        let pause = next.since(at(now));
        pauses.push(u64::try_from(pause.as_millis()).unwrap());
        now += pauses.last().unwrap();
        assert_eq!(bench.step(now, Event::Timer), [Effect::Join(ttl(TTL_MS))]);
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
}

/// A store with one queue, a competitor that comes and goes, a network that holds and loses answers; time in steps of 10 ms.
struct World {
    election: Election,
    now: u64,
    /// (id, lease end in the store's time, has a place)
    leases: Vec<(i64, u64, bool)>,
    next: i64,
    granted: u64,
    /// (delivered at, event)
    answers: Vec<(u64, Event)>,
    observing: Option<Option<Leading>>,
    timer: Option<Tick>,
    leading: Option<i64>,
    exited: bool,
    /// Every call is answered soon, and none fails.
    calm: bool,
    seed: u64,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn first(&self) -> Option<i64> {
        self.leases.iter().find(|(_, ends, placed)| *placed && *ends > self.now).map(|(id, ..)| *id)
    }

    fn lease(&mut self, id: CandidacyId) -> Option<&mut (i64, u64, bool)> {
        let now = self.now;
        self.leases.iter_mut().find(|(lease, ends, _)| *lease == id.0 && *ends > now)
    }

    fn answer(&mut self, answer: impl FnOnce(bool) -> Event) {
        let delay = self.random(if self.calm { 5 } else { 400 }) * 10;
        let fails = !self.calm && self.random(4) == 0;
        let at = self.now + delay;
        self.answers.push((at, answer(fails)));
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let ends = self.now + self.granted;
            match effect {
                Effect::Join(_) => {
                    self.next += 1;
                    let (id, granted) = (self.next, self.granted);
                    self.leases.push((id, ends, false));
                    self.answer(|fails| {
                        Event::Joined(if fails { Err("?".into()) } else { Ok((CandidacyId(id), ttl(granted))) })
                    });
                }
                Effect::Enlist(id) => {
                    let kept = self.lease(id).map(|lease| lease.2 = true);
                    let kept = kept.map_or(Kept::Gone, Kept::Held);
                    self.answer(|fails| Event::Enlisted(id, if fails { Err("?".into()) } else { Ok(kept) }));
                }
                Effect::KeepAlive(id) => {
                    let granted = ttl(self.granted);
                    let kept = self.lease(id).map(|lease| lease.1 = ends).map_or(Kept::Gone, |()| Kept::Held(granted));
                    self.answer(|fails| Event::KeptAlive(id, if fails { Err("?".into()) } else { Ok(kept) }));
                }
                // Some leaders never answer.
                Effect::AskLeader(id) => {
                    self.answer(|fails| if fails { Event::Timer } else { Event::LeaderAnswered(id) });
                }
                Effect::Leave(id) => {
                    assert_ne!(self.leading, Some(id.0), "left while it leads");
                    self.leases.retain(|(lease, ..)| *lease != id.0);
                    self.answer(|fails| Event::Left(id, if fails { Err("?".into()) } else { Ok(()) }));
                }
                Effect::Observe(known) => {
                    assert!(self.observing.is_none(), "two observations at once");
                    self.observing = Some(known);
                }
                Effect::Lead(leading, _) => {
                    assert_eq!(self.leading.replace(leading.candidacy.0), None, "two leaderships at once");
                }
                Effect::TakeDown(_) => {
                    let id = CandidacyId(self.leading.expect("a leadership to take down"));
                    self.leading = None;
                    let at = self.now + self.random(50) * 10;
                    self.answers.push((at, Event::Ended(id, "taken down".into())));
                }
                Effect::Arm(when) => {
                    assert!(when > at(self.now), "armed for the past: it would spin");
                    self.timer = Some(when);
                }
                Effect::Exit => self.exited = true,
                Effect::Extend(_) | Effect::Follow(_) | Effect::Note(_) => {}
            }
        }
    }

    fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.election.step(at(self.now), event, &mut out);
        self.perform(out);
        if let (Some(leading), Some(until)) = (self.leading, self.election.leads_until())
            && at(self.now) < until
        {
            // What it believes is never longer than what the store granted, whatever was lost or late.
            let lease = self.leases.iter().find(|(id, ..)| *id == leading);
            assert!(lease.is_none_or(|(_, ends, _)| until <= at(*ends)), "it would outlast its lease");
        }
    }

    fn tick(&mut self) {
        self.now += 10;
        if self.timer.is_some_and(|timer| timer <= at(self.now)) {
            self.timer = None;
            self.step(Event::Timer);
        }
        while let Some(due) = self.answers.iter().position(|(when, _)| *when <= self.now) {
            let (_, event) = self.answers.remove(due);
            self.step(event);
        }
        let (first, breaks) = (self.first(), !self.calm && self.seed.is_multiple_of(50));
        if let Some(known) = &self.observing
            && (known.as_ref().map(|leading| leading.candidacy.0) != first || breaks)
        {
            if breaks {
                self.observing = None;
                return self.step(Event::Observed(Err("the stream ended".into())));
            }
            self.observing = None;
            let leading = first.map(|id| Leading { address: address(7000), ..place_of(id) });
            self.step(Event::Observed(Ok(leading)));
        }
    }
}

fn place_of(id: i64) -> Leading {
    Leading { candidacy: CandidacyId(id), since: id, address: address(7000) }
}

/// Whatever is lost, late, revoked or deleted: never two leaderships, never one past its lease; and once faults stop, it leads.
#[test]
fn whatever_is_lost_or_late_it_never_outlasts_its_lease_and_leads_again_once_faults_stop() {
    fn holds(seed: u64, granted: u64) -> TestResult {
        let granted = 2_000 + granted % 20_000;
        let settings =
            Settings { ttl: ttl(TTL_MS), allowance: Allowance::from_ppm(1_000).unwrap(), patience: PATIENCE };
        let mut w = World {
            election: Election::new(settings, at(0)),
            now: 0,
            leases: Vec::new(),
            next: 0,
            granted,
            answers: Vec::new(),
            observing: None,
            timer: Some(at(0)),
            leading: None,
            exited: false,
            calm: false,
            seed: seed | 1,
        };
        for _ in 0..6_000 {
            w.tick();
            match w.random(2_000) {
                0 => w.leases.clear(),
                1 => w.leases.iter_mut().for_each(|lease| lease.2 = false),
                2 => {
                    w.next += 1;
                    let (id, ends) = (w.next, w.now + 3_000);
                    w.leases.insert(0, (id, ends, true));
                }
                // Frozen for a while.
                3 => w.now += w.seed % 30_000,
                _ => {}
            }
        }
        w.calm = true;
        let mut led = 0;
        for _ in 0..6_000 {
            w.tick();
            led += u32::from(w.leading.is_some());
        }
        assert!(led > 3_000, "it leads for {led} of 6000 ticks without a fault");
        w.step(Event::Stop);
        for _ in 0..2_000 {
            w.tick();
        }
        assert!(w.exited && w.leading.is_none());
        TestResult::passed()
    }
    QuickCheck::new().tests(200).quickcheck(holds as fn(u64, u64) -> TestResult);
}
