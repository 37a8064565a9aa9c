//! Tables of deleting and of deciding outside.

use super::super::super::agent_type::{Question, Undecided};
use super::*;
use Effect::{Consult, DropConsultation};

const UNTIL: Tick = Tick(10_000_000_000);

/// Now, `ms` milliseconds later.
fn later(ms: u64) -> Moment {
    Moment { now: Tick(ms * 1_000_000), ..OPEN }
}

fn delete(expected: u64) -> Effect {
    Effect::Delete(EntryIndex(expected))
}

fn deleted() -> Event {
    Event::Deleted(Ok(()))
}

fn gone(job: JobId) -> Effect {
    Answer(job, Ok(Reply::default()))
}

/// F5: and what comes after it begins anew.
#[test]
fn a_deletion_waits_for_what_was_asked_before_and_what_comes_after_begins_anew() {
    let mut bench = Bench::open();
    let append = bench.add(5, None);
    assert_eq!(bench.job(Work::Delete), []);
    let after = bench.job(call("add", "1", None));
    assert_eq!(after, []);
    assert_eq!(bench.step(ok(&append)), [done(2, "5"), delete(2)]);
    assert_eq!(bench.step(deleted()), [gone(3), Claim]);
    assert_eq!(bench.step(claimed(2, None)), [Read(EntryIndex(1), 256)]);
    let effects = bench.step(Event::Page(Ok(vec![])));
    assert_eq!(effects[0], Replayed(0));
    let append = appended(&effects[1..]);
    assert_eq!(append.expected, EntryIndex(2), "the indexes go on");
    assert_eq!(bench.step(ok(&append)), [done(4, "1")]);
    assert_eq!(bench.get(), 1);
}

#[test]
fn a_deletion_reads_nothing_and_so_needs_no_readable_oplog() {
    let mut bench = Bench::new();
    assert_eq!(bench.job(Work::Delete), [Claim]);
    assert_eq!(bench.step(claimed(100_001, Some(50_000))), [delete(100_001)]);
    assert_eq!(bench.step(deleted()), [gone(1)]);
    // Behind a call that cannot read the oplog it is not lost with it.
    assert_eq!(bench.job(call("get", "", None)), [Claim]);
    assert_eq!(bench.step(claimed(100_003, None)), [Read(EntryIndex(1), 256)]);
    bench.job(Work::Delete);
    let damaged =
        Entry { entry: NewEntry { body: b"?".to_vec(), ..old(100_001, 1, None).entry }, ..old(100_001, 1, None) };
    let effects = bench.step(Event::Page(Ok(vec![damaged])));
    assert_eq!(reason(&effects[..1]), "INVOCATION_REJECTED");
    assert_eq!(effects[1..], [Claim]);
    assert_eq!(bench.step(claimed(100_003, None)), [delete(100_003)]);
    assert_eq!(bench.step(deleted()), [gone(3)]);
}

/// An oplog that cannot even be claimed is not claimed for ever.
#[test]
fn a_deletion_of_an_oplog_whose_record_is_damaged_is_refused() {
    let mut bench = Bench::new();
    bench.job(Work::Delete);
    let damaged = Error::Corrupt { place: "p".into(), what: "w".into() };
    assert_eq!(reason(&bench.step(Event::Claimed(Err(damaged)))), "INVOCATION_REJECTED");
}

/// F7: the same deletion again does no harm, because it is of one index.
#[test]
fn a_deletion_of_unknown_outcome_is_repeated_at_the_same_index_and_then_admitted_to_be_unknown() {
    let mut bench = Bench::new();
    bench.job(Work::Delete);
    bench.step(claimed(7, None));
    assert_eq!(bench.step(Event::Deleted(unknown())), [Wait(BACKOFF_BASE)]);
    assert_eq!(bench.step(Event::Woke), [delete(7)]);
    assert_eq!(bench.step(deleted()), [gone(1)]);
    bench.job(Work::Delete);
    bench.step(claimed(7, None));
    for outcome in [unknown(), unavailable()] {
        assert!(matches!(bench.step(Event::Deleted(outcome)).as_slice(), [Wait(_)]));
        assert_eq!(bench.step(Event::Woke), [delete(7)]);
    }
    assert_eq!(reason(&bench.step(Event::Deleted(unavailable()))), "unknown");
    assert_eq!(bench.job(call("get", "", None)), [Claim], "nothing that was known is trusted");
}

/// A recovery may have found it running before; only a call begins it anew.
#[test]
fn a_deleted_agent_is_opened_or_deleted_again_without_beginning_anew() {
    let mut bench = Bench::open();
    assert_eq!(bench.job(Work::Delete), [delete(1)]);
    assert_eq!(bench.job(Work::Open), []);
    assert_eq!(bench.step(deleted()), [gone(2), gone(3)]);
    assert_eq!(bench.job(Work::Open), [gone(4)]);
    assert_eq!(bench.job(Work::Delete), [delete(1)], "storage is asked: it may have another owner");
    assert_eq!(bench.step(deleted()), [gone(5)]);
    assert_eq!(reason(&bench.job_at(LAPSED, Work::Delete)), "SHARDING_NOT_READY");
    assert_eq!(bench.job(call("get", "", None)), [Claim]);
    assert_eq!(bench.step(claimed(1, None)), [done(7, "0")]);
    assert_eq!(bench.job(Work::Open), [gone(8)]);
}

#[test]
fn a_store_that_takes_no_deletion_is_a_refusal() {
    let mut bench = Bench::open();
    assert_eq!(bench.job(Work::Delete), [delete(1)]);
    for _ in 1..APPEND_ATTEMPTS {
        assert!(matches!(bench.step(Event::Deleted(unavailable())).as_slice(), [Wait(_)]));
        assert_eq!(bench.step(Event::Woke), [delete(1)]);
    }
    assert_eq!(reason(&bench.step(Event::Deleted(unavailable()))), "STORE_UNAVAILABLE");
}

#[test]
fn a_deletion_that_meets_a_late_append_is_made_anew_once() {
    let mut bench = Bench::open();
    let conflict = || Event::Deleted(Err(Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) }));
    assert_eq!(bench.job(Work::Delete), [delete(1)]);
    assert_eq!(bench.step(conflict()), [Claim]);
    assert_eq!(bench.step(claimed(2, None)), [delete(2)]);
    assert_eq!(reason(&bench.step(conflict())), "STORE_UNAVAILABLE");
}

/// F5, F6: a newer owner is found, nothing is removed, the caller goes there.
#[test]
fn a_fenced_deletion_latches_the_agent_and_sends_the_caller_on() {
    let mut bench = Bench::open();
    bench.job(Work::Delete);
    bench.job(call("get", "", None));
    let newer = ShardEpoch::new(8).unwrap();
    let refusal = Refusal::EpochFenced { held: us().epoch, recorded: newer };
    let refused = |job| Answer(job, Err(refusal.clone().into()));
    assert_eq!(
        bench.step(Event::Deleted(fenced(Some(writer(8, 2))))),
        [refused(2), refused(3), TellFenced(Some(newer))]
    );
    assert_eq!(bench.job(Work::Delete), [refused(4)]);
}

#[test]
fn a_deletion_ends_within_the_grace_or_its_outcome_is_unknown() {
    let mut bench = Bench::open();
    bench.job(Work::Delete);
    assert_eq!(bench.step(Event::Stop), []);
    assert_eq!(bench.step(deleted()), [gone(2), Effect::Stop]);
    let mut bench = Bench::open();
    bench.job(Work::Delete);
    let effects = bench.step(Event::StopNow);
    assert_eq!(reason(&effects), "unknown");
    assert_eq!(effects.last(), Some(&Effect::Stop));
}

#[test]
fn a_deletion_begins_only_under_an_open_gate() {
    let mut bench = Bench::open();
    assert_eq!(reason(&bench.job_at(LAPSED, Work::Delete)), "SHARDING_NOT_READY");
    assert_eq!(reason(&bench.job_at(GONE, Work::Delete)), "HANDOFF_IN_PROGRESS");
    let mut unread = Bench::new();
    unread.job(Work::Delete);
    assert_eq!(reason(&unread.step_at(LAPSED, claimed(3, None))), "SHARDING_NOT_READY");
}

// --- Deciding outside ---

fn ask(bench: &mut Bench, key: Option<&str>) -> Vec<Effect> {
    bench.last += 1;
    let work = call("outside", "[1]", key);
    bench.step(Event::Asked(Job { id: bench.last, work, until: UNTIL }))
}

fn question(state: i64, key: Option<&str>) -> Question {
    Question {
        agent: AgentId::new("sum/a").unwrap(),
        method: "outside".into(),
        payload: json!([1]),
        state: json!(state),
        idempotency_key: key.map(str::to_owned),
        epoch: us().epoch,
    }
}

fn decided(decision: Decision) -> Event {
    Event::Decided(Ok(decision))
}

fn away() -> Event {
    Event::Decided(Err(Undecided::Away("refused".into())))
}

fn adds(n: i64) -> Decision {
    Decision::Append { events: vec![json!(n)], answer: json!("added") }
}

#[test]
fn what_is_decided_outside_is_stored_once_and_then_answered_from_the_oplog() {
    let mut bench = Bench::open();
    assert_eq!(ask(&mut bench, Some("k")), [Consult(question(0, Some("k")))]);
    assert_eq!(bench.job(call("get", "", None)), [], "one at a time");
    let append = appended(&bench.step(decided(adds(7))));
    assert_eq!(bench.step(ok(&append)), [done(2, "\"added\""), done(3, "7")]);
    assert_eq!(ask(&mut bench, Some("k")), [seen(4, "\"added\"")], "nobody is asked again");
    assert_eq!(ask(&mut bench, None), [Consult(question(7, None))]);
    assert_eq!(bench.step(decided(Decision::Answer(json!(1)))), [done(5, "1")]);
    for (decision, expected) in
        [(Decision::Reject("no".into()), "INVOCATION_REJECTED"), (Decision::UnknownMethod, "UNKNOWN_METHOD")]
    {
        ask(&mut bench, None);
        assert_eq!(reason(&bench.step(decided(decision))), expected);
    }
}

#[test]
fn replaying_asks_nobody() {
    let mut bench = Bench::new();
    bench.job(Work::Open);
    assert_eq!(bench.step(claimed(2, None)), [Read(EntryIndex(1), 256)]);
    let entry = Entry {
        entry: NewEntry {
            body: Body::Invocation(Invoked { method: "outside".into(), answer: b"1".to_vec(), events: vec![json!(7)] })
                .encode(EntryId::new(1, 1)),
            ..old(1, 0, None).entry
        },
        ..old(1, 0, None)
    };
    assert_eq!(bench.step(Event::Page(Ok(vec![entry]))), [Replayed(1), Answer(1, Ok(Reply::default()))]);
    assert_eq!(bench.get(), 7);
}

#[test]
fn an_application_that_is_away_is_asked_again_within_its_callers_patience_and_not_beyond() {
    let mut bench = Bench::open();
    ask(&mut bench, Some("k"));
    assert_eq!(bench.step_at(later(100), away()), [Wait(BACKOFF_BASE)]);
    assert_eq!(bench.step_at(later(150), Event::Woke), [Consult(question(0, Some("k")))]);
    assert_eq!(bench.step_at(later(200), away()), [Wait(2 * BACKOFF_BASE)]);
    bench.step_at(later(300), Event::Woke);
    let effects = bench.step_at(later(9_900), away());
    assert_eq!(reason(&effects), "APP_UNAVAILABLE");
    assert_eq!(bench.get(), 0);
}

#[test]
fn an_answer_that_cannot_be_used_is_refused_at_once() {
    let mut bench = Bench::open();
    ask(&mut bench, None);
    assert_eq!(reason(&bench.step(Event::Decided(Err(Undecided::Unusable("entries".into()))))), "APP_FAULT");
    ask(&mut bench, None);
    assert_eq!(reason(&bench.step(decided(Decision::Outside(json!(1))))), "APP_FAULT");
}

/// F6: before each call that leaves, and before what came of it is stored.
#[test]
fn no_call_leaves_and_nothing_is_stored_once_the_lease_is_over_or_the_shard_is_lost() {
    for (gate, expected) in [(LAPSED, "SHARDING_NOT_READY"), (GONE, "HANDOFF_IN_PROGRESS")] {
        let mut bench = Bench::open();
        assert_eq!(reason(&bench.job_at(gate, call("outside", "", None))), expected);
        ask(&mut bench, None);
        assert_eq!(bench.step(away()), [Wait(BACKOFF_BASE)]);
        assert_eq!(reason(&bench.step_at(gate, Event::Woke)), expected, "not asked again");
    }
    let mut bench = Bench::open();
    ask(&mut bench, None);
    assert_eq!(reason(&bench.step_at(LAPSED, decided(adds(1)))), "SHARDING_NOT_READY");
    assert_eq!(bench.get(), 0);
    // The key was looked up, and meanwhile the shard went.
    let mut bench = Bench::open_with(AgentLimits { recent_keys: 0, ..AgentLimits::default() });
    let append = bench.add(1, Some("old"));
    bench.step(ok(&append));
    assert_eq!(ask(&mut bench, Some("k")), [Find("k".into())]);
    assert_eq!(reason(&bench.step_at(GONE, Event::Found(Ok(None)))), "HANDOFF_IN_PROGRESS");
}

/// F6: the latch.
#[test]
fn a_fenced_agent_makes_no_outgoing_call() {
    let mut bench = Bench::open();
    let append = bench.add(1, None);
    let waiting = ask(&mut bench, None);
    assert_eq!(waiting, []);
    let effects = bench.step(Event::Appended(fenced(Some(writer(8, 2)))));
    assert!(!effects.iter().any(|effect| matches!(effect, Consult(_))), "{effects:?}");
    assert_eq!(reason(&ask(&mut bench, None)), "EPOCH_FENCED");
    for event in [Event::Woke, decided(adds(1)), ok(&append)] {
        assert_eq!(bench.step(event), []);
    }
}

/// R20: what runs may finish within the grace, and is broken off after it.
#[test]
fn a_call_outside_may_finish_within_the_grace_and_is_broken_off_after_it() {
    let mut bench = Bench::open();
    ask(&mut bench, None);
    assert_eq!(bench.step_at(GONE, Event::Stop), []);
    let append = appended(&bench.step_at(GONE, decided(adds(1))));
    assert_eq!(bench.step_at(GONE, ok(&append)), [done(2, "\"added\""), Effect::Stop]);

    let mut bench = Bench::open();
    ask(&mut bench, None);
    bench.step_at(GONE, Event::Stop);
    let effects = bench.step_at(GONE, away());
    assert_eq!((reason(&effects), effects.last()), ("HANDOFF_IN_PROGRESS", Some(&Effect::Stop)), "not asked again");

    let mut bench = Bench::open();
    ask(&mut bench, None);
    let effects = bench.step_at(GONE, Event::StopNow);
    assert_eq!((&effects[0], reason(&effects)), (&DropConsultation, "HANDOFF_IN_PROGRESS"));
    assert_eq!(bench.step(decided(adds(1))), []);

    let mut bench = Bench::open();
    ask(&mut bench, None);
    bench.step(away());
    assert_eq!(reason(&bench.step(Event::Stop)), "HANDOFF_IN_PROGRESS", "between two calls it ends at once");
}

#[test]
fn a_decision_whose_place_was_taken_is_asked_for_anew() {
    let mut bench = Bench::open();
    ask(&mut bench, None);
    bench.step(decided(adds(1)));
    let taken = Event::Appended(Err(Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) }));
    assert_eq!(bench.step(taken), [Read(EntryIndex(1), 1)]);
    assert_eq!(bench.step(Event::Page(Ok(vec![old(1, 5, None)]))), [Read(EntryIndex(1), 256)]);
    let effects = bench.step(Event::Page(Ok(vec![old(1, 5, None)])));
    assert_eq!(effects, [Replayed(1), Consult(question(5, None))]);
}
