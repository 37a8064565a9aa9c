//! Tables: given what an agent was told, these effects.

use super::super::agent_outcome::{BACKOFF_BASE, BACKOFF_CAP};
use super::super::agent_type::Unreadable;
use super::*;
use Effect::{Answer, Claim, Find, Read, Replayed, TellFenced, Wait};
use leasehold_model::{AgentId, ExecutorId, ExecutorName, ShardEpoch, ShardId};
use leasehold_persistence::oplog::layers::{Moved, Upto};
use leasehold_persistence::oplog::{EntryKind, Writer};
use serde_json::json;
use std::time::Duration;

#[path = "agent_core_lifecycle_tests.rs"]
mod lifecycle;

/// A number with one method for each kind of decision.
struct Sum;
struct SumState(i64);

impl AgentType for Sum {
    fn name(&self) -> &str {
        "sum"
    }
    fn start(&self, _: &str) -> Box<dyn AgentState> {
        Box::new(SumState(0))
    }
}

impl AgentState for SumState {
    fn decide(&self, method: &str, payload: &Value) -> Decision {
        match (method, payload.as_i64()) {
            ("add", Some(n)) => Decision::Append { events: vec![json!(n)], answer: json!(self.0 + n) },
            ("poison", _) => Decision::Append { events: vec![json!("not a number")], answer: Value::Null },
            ("much", _) => Decision::Append { events: vec![json!("x".repeat(MAX_BODY))], answer: Value::Null },
            ("many", _) => Decision::Append { events: vec![json!(0); MAX_EVENTS + 1], answer: Value::Null },
            ("add", None) => Decision::Reject("a number is needed".into()),
            ("get", _) => Decision::Answer(json!(self.0)),
            ("outside", _) => Decision::Outside(json!(self.0)),
            _ => Decision::UnknownMethod,
        }
    }
    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        self.0 += event.as_i64().ok_or_else(|| Unreadable(event.to_string()))?;
        Ok(())
    }
    fn snapshot(&self) -> Vec<u8> {
        // Above a million it pretends to be too big.
        if self.0 > 1_000_000 { vec![b' '; MAX_BODY + 1] } else { self.0.to_string().into_bytes() }
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        self.0 = serde_json::from_slice(snapshot).map_err(|error| Unreadable(error.to_string()))?;
        Ok(())
    }
}

const OPEN: Moment = Moment { now: Tick(10), gate: Ok(()) };
const LAPSED: Moment = Moment { now: Tick(10), gate: Err(Closed::NotReady) };
const GONE: Moment = Moment { now: Tick(10), gate: Err(Closed::NotHeld) };

fn writer(epoch: u64, executor: u128) -> Writer {
    Writer { epoch: ShardEpoch::new(epoch).unwrap(), executor: ExecutorId::from_u128(executor) }
}

fn us() -> Writer {
    writer(7, 1)
}

struct Bench {
    core: AgentCore,
    last: JobId,
}

impl Bench {
    fn with(limits: AgentLimits) -> Self {
        let identity = Identity {
            agent: AgentId::new("sum/a").unwrap(),
            shard: ShardId(3),
            writer: us(),
            executor: ExecutorName::new("e1").unwrap(),
            life: 99,
        };
        Self { core: AgentCore::new(identity, Arc::new(Sum), limits), last: 0 }
    }

    fn new() -> Self {
        Self::with(AgentLimits::default())
    }

    /// An agent whose oplog is open and empty.
    fn open() -> Self {
        Self::open_with(AgentLimits::default())
    }

    fn open_with(limits: AgentLimits) -> Self {
        let mut bench = Self::with(limits);
        assert_eq!(bench.job(Work::Open), [Claim]);
        assert_eq!(bench.step(claimed(1, None)), [Answer(1, Ok(Reply::default()))]);
        bench
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.step_at(OPEN, event)
    }

    fn step_at(&mut self, moment: Moment, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.core.step(moment, event, &mut out);
        out
    }

    fn job(&mut self, work: Work) -> Vec<Effect> {
        self.job_at(OPEN, work)
    }

    fn job_at(&mut self, moment: Moment, work: Work) -> Vec<Effect> {
        self.last += 1;
        self.step_at(moment, Event::Asked(Job { id: self.last, work, until: Tick::NEVER }))
    }

    /// Adds, and gives back what is appended.
    fn add(&mut self, n: i64, key: Option<&str>) -> Append {
        appended(&self.job(call("add", &n.to_string(), key)))
    }

    /// The sum as a read tells it.
    fn get(&mut self) -> i64 {
        match self.job(call("get", "", None)).as_slice() {
            [Answer(_, Ok(reply))] => serde_json::from_slice(&reply.payload).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

fn call(method: &str, payload: &str, key: Option<&str>) -> Work {
    Work::Invoke { method: method.into(), payload: payload.into(), key: key.map(str::to_owned) }
}

fn claimed(next: u64, snapshot: Option<u64>) -> Event {
    Event::Claimed(Ok(Claimed { next: EntryIndex(next), snapshot: snapshot.map(EntryIndex) }))
}

fn appended(effects: &[Effect]) -> Append {
    match effects {
        [Effect::Append(append)] => append.clone(),
        other => panic!("no append: {other:?}"),
    }
}

fn stored_at(expected: u64, entries: &[NewEntry]) -> Vec<Entry> {
    let at = |(n, entry): (usize, &NewEntry)| Entry {
        index: EntryIndex(expected + n as u64),
        writer: us(),
        entry: entry.clone(),
    };
    entries.iter().enumerate().map(at).collect()
}

/// An entry of an earlier life that added `n`.
fn old(index: u64, n: i64, key: Option<&str>) -> Entry {
    let body = Body::Invocation(Invoked { method: "add".into(), answer: b"\"old\"".to_vec(), events: vec![json!(n)] });
    let entry = NewEntry {
        kind: EntryKind::Invocation,
        key: key.map(str::to_owned),
        body: body.encode(EntryId::new(1, index)),
    };
    Entry { index: EntryIndex(index), writer: writer(6, 2), entry }
}

fn old_snapshot(index: u64, state: &str) -> Entry {
    let body = Body::Snapshot(state.into()).encode(EntryId::new(1, index));
    let entry = NewEntry { kind: EntryKind::Snapshot, key: None, body };
    Entry { index: EntryIndex(index), writer: writer(6, 2), entry }
}

fn fenced<T>(recorded: Option<Writer>) -> Result<T, Error> {
    Err(Error::Fenced { recorded, offered: us() })
}

fn unknown<T>() -> Result<T, Error> {
    Err(Error::Unknown("lost".into()))
}

fn unavailable<T>() -> Result<T, Error> {
    Err(Error::Unavailable("locked".into()))
}

fn done(job: JobId, payload: &str) -> Effect {
    Answer(job, Ok(Reply { payload: payload.into(), replayed: false }))
}

fn seen(job: JobId, payload: &str) -> Effect {
    Answer(job, Ok(Reply { payload: payload.into(), replayed: true }))
}

/// The reason of the only answer in `effects`.
fn reason(effects: &[Effect]) -> &'static str {
    let mut answers =
        effects.iter().filter_map(|effect| if let Answer(_, answer) = effect { Some(answer) } else { None });
    match (answers.next(), answers.next()) {
        (Some(Err(CallError::Refused(refusal))), None) => refusal.reason(),
        (Some(Err(CallError::Unknown(_))), None) => "unknown",
        other => panic!("{other:?} in {effects:?}"),
    }
}

fn ok(append: &Append) -> Event {
    Event::Appended(Ok(EntryIndex(append.expected.0 + append.entries.len() as u64)))
}

#[test]
fn the_first_job_opens_the_oplog_and_runs_once_it_is_open() {
    let mut bench = Bench::new();
    assert_eq!(bench.job(call("add", "5", None)), [Claim]);
    let append = appended(&bench.step(claimed(1, None)));
    assert_eq!((append.writer, append.expected, append.entries.len()), (us(), EntryIndex(1), 1));
    assert_eq!(bench.step(ok(&append)), [done(1, "5")]);
    assert_eq!(bench.get(), 5);
}

#[test]
fn the_caller_is_answered_and_the_state_changed_only_after_the_append() {
    let mut bench = Bench::open();
    let append = bench.add(5, None);
    assert_eq!(bench.job(call("get", "", None)), [], "one at a time");
    assert_eq!(bench.step(ok(&append)), [done(2, "5"), done(3, "5")]);
}

#[test]
fn a_replay_starts_at_the_newest_snapshot_and_goes_page_by_page() {
    let mut bench = Bench::with(AgentLimits { page: 2, ..AgentLimits::default() });
    bench.job(call("get", "", None));
    assert_eq!(bench.step(claimed(45, Some(41))), [Read(EntryIndex(41), 2)]);
    let page = vec![old_snapshot(41, "100"), old(42, 1, None)];
    assert_eq!(bench.step(Event::Page(Ok(page))), [Read(EntryIndex(43), 2)]);
    let page = vec![old(43, 2, None), old(44, 3, None)];
    assert_eq!(bench.step(Event::Page(Ok(page))), [Replayed(4), done(1, "106")]);
}

#[test]
fn a_replay_with_a_hole_a_wrong_kind_or_a_foreign_event_is_corrupt_and_not_retried() {
    let mut poisoned = old(2, 1, None);
    let body = Body::Invocation(Invoked { method: "x".into(), answer: vec![], events: vec![json!("?")] });
    poisoned.entry.body = body.encode(EntryId::new(1, 1));
    let mut mistaken = old(2, 1, None);
    mistaken.entry.kind = EntryKind::Snapshot;
    for page in [
        vec![old(1, 1, None), old(3, 1, None)],
        vec![old(1, 1, None), poisoned],
        vec![old(1, 1, None), mistaken],
        vec![old(1, 1, None)],
    ] {
        let mut bench = Bench::new();
        bench.job(call("get", "", None));
        bench.step(claimed(4, None));
        let effects = bench.step(Event::Page(Ok(page)));
        assert_eq!(reason(&effects), "INVOCATION_REJECTED");
        assert_eq!(bench.job(Work::Open), [Claim], "the next job looks again");
    }
}

#[test]
fn after_a_deletion_indexes_go_on_where_the_old_life_ended() {
    let mut bench = Bench::new();
    bench.job(call("add", "1", None));
    assert_eq!(bench.step(claimed(9, None)), [Read(EntryIndex(1), 256)]);
    let effects = bench.step(Event::Page(Ok(vec![])));
    assert_eq!(appended(&effects[1..]).expected, EntryIndex(9));

    let mut bench = Bench::new();
    bench.job(call("get", "", None));
    bench.step(claimed(11, None));
    let page = vec![old(9, 4, None), old(10, 5, None)];
    assert_eq!(bench.step(Event::Page(Ok(page))), [Replayed(2), done(1, "9")]);
}

#[test]
fn a_known_key_is_answered_without_running_again() {
    let mut bench = Bench::open();
    let append = bench.add(5, Some("k"));
    bench.step(ok(&append));
    assert_eq!(bench.job(call("add", "5", Some("k"))), [seen(3, "5")]);
    assert_eq!(bench.get(), 5);
}

#[test]
fn a_key_read_by_the_replay_is_known() {
    let mut bench = Bench::new();
    bench.job(call("add", "5", Some("k")));
    bench.step(claimed(2, None));
    let effects = bench.step(Event::Page(Ok(vec![old(1, 5, Some("k"))])));
    assert_eq!(effects, [Replayed(1), seen(1, "\"old\"")]);
}

#[test]
fn a_key_older_than_the_snapshot_is_looked_up_in_the_store() {
    let mut bench = Bench::new();
    bench.job(call("add", "5", Some("k")));
    bench.step(claimed(42, Some(41)));
    let effects = bench.step(Event::Page(Ok(vec![old_snapshot(41, "100")])));
    assert_eq!(effects, [Replayed(1), Find("k".into())]);
    assert_eq!(bench.step(Event::Found(Ok(Some(old(3, 5, Some("k")))))), [seen(1, "\"old\"")]);
    assert_eq!(bench.job(call("add", "6", Some("new"))), [Find("new".into())]);
    assert_eq!(appended(&bench.step(Event::Found(Ok(None)))).expected, EntryIndex(42));
}

#[test]
fn a_key_pushed_out_of_memory_is_looked_up_in_the_store() {
    let mut bench = Bench::open_with(AgentLimits { recent_keys: 2, ..AgentLimits::default() });
    for key in ["a", "b"] {
        let append = bench.add(1, Some(key));
        bench.step(ok(&append));
    }
    let append = bench.add(1, Some("c"));
    bench.step(ok(&append));
    assert_eq!(bench.job(call("add", "1", Some("a"))), [Find("a".into())]);
    bench.step(Event::Found(Ok(Some(old(1, 1, Some("a"))))));
    assert!(matches!(bench.job(call("add", "1", Some("c"))).as_slice(), [Answer(_, Ok(Reply { replayed: true, .. }))]));
}

#[test]
fn keys_in_memory_are_bounded_by_bytes_too() {
    let limits = AgentLimits { recent_bytes: 100, ..AgentLimits::default() };
    let mut recent = Recent { complete: true, ..Recent::default() };
    recent.remember("a".into(), vec![0; 60], limits);
    recent.remember("a".into(), vec![0; 70], limits);
    assert_eq!((recent.bytes, recent.complete), (71, true));
    recent.remember("b".into(), vec![0; 60], limits);
    assert_eq!((recent.bytes, recent.complete), (61, false));
    assert!(recent.find("a").is_none() && recent.find("b").is_some());
    recent.remember("c".into(), vec![0; 200], limits);
    assert_eq!((recent.bytes, recent.order.len(), recent.answers.len()), (0, 0, 0));
}

#[test]
fn a_snapshot_goes_before_the_invocation_that_follows_snapshot_every_without_one() {
    let mut bench = Bench::open_with(AgentLimits { snapshot_every: 2, ..AgentLimits::default() });
    let mut kinds = Vec::new();
    for _ in 0..5 {
        let append = bench.add(1, None);
        kinds.push(append.entries.iter().map(|entry| entry.kind).collect::<Vec<_>>());
        if let [snapshot, _] = append.entries.as_slice() {
            let state = (append.expected.0 - kinds.len() as u64 / 4 - 1).to_string();
            assert_eq!(Body::decode(snapshot.kind, &snapshot.body), Ok(Body::Snapshot(state.into())));
        }
        bench.step(ok(&append));
    }
    let (plain, with) = (vec![EntryKind::Invocation], vec![EntryKind::Snapshot, EntryKind::Invocation]);
    assert_eq!(kinds, [plain.clone(), plain.clone(), with.clone(), plain, with]);
}

#[test]
fn a_state_too_big_for_a_snapshot_is_said_so_and_does_not_stop_the_agent() {
    let mut bench = Bench::open_with(AgentLimits { snapshot_every: 1, ..AgentLimits::default() });
    let append = bench.add(2_000_000, None);
    bench.step(ok(&append));
    let effects = bench.job(call("add", "1", None));
    assert!(matches!(effects[0], Effect::SnapshotTooBig(bytes) if bytes > MAX_BODY));
    assert_eq!(appended(&effects[1..]).entries.len(), 1);
}

#[test]
fn what_is_wrong_with_a_call_is_said_and_nothing_is_stored() {
    for (method, payload, expected) in [
        ("add", "null", "INVOCATION_REJECTED"),
        ("add", "{", "INVALID_FIELD"),
        ("nothing", "", "UNKNOWN_METHOD"),
        ("much", "", "INVOCATION_REJECTED"),
        ("many", "", "INVOCATION_REJECTED"),
    ] {
        let mut bench = Bench::open();
        let effects = bench.job(call(method, payload, None));
        assert_eq!((effects.len(), reason(&effects)), (1, expected), "{method} {payload}");
    }
}

#[test]
fn a_full_queue_refuses_as_overloaded() {
    let mut bench = Bench::open_with(AgentLimits { queue: 1, ..AgentLimits::default() });
    bench.add(1, None);
    assert_eq!(bench.job(call("get", "", None)), []);
    assert_eq!(reason(&bench.job(call("get", "", None))), "OVERLOADED");
}

/// Case 34: whatever waited when the lease lapsed or the shard left is not begun; the running one is answered.
#[test]
fn nothing_queued_is_begun_once_the_fence_has_closed() {
    for (moment, expected) in [(LAPSED, "SHARDING_NOT_READY"), (GONE, "HANDOFF_IN_PROGRESS")] {
        let mut bench = Bench::open();
        let append = bench.add(5, None);
        bench.job(call("get", "", None));
        let effects = bench.step_at(moment, ok(&append));
        assert_eq!(effects[0], done(2, "5"));
        assert_eq!(reason(&effects[1..]), expected);
    }
}

#[test]
fn nothing_is_begun_for_a_caller_that_no_longer_waits() {
    let mut bench = Bench::open();
    let job = Job { id: 2, work: call("add", "1", None), until: Tick(10) };
    assert_eq!(reason(&bench.step(Event::Asked(job))), "OVERLOADED");
    let job = Job { id: 3, work: call("add", "1", None), until: Tick(11) };
    appended(&bench.step(Event::Asked(job)));
}

/// F6, case 8: on every path the first fenced answer latches, tells, and refuses the running job and the queue.
#[test]
fn being_fenced_on_any_path_latches_and_refuses_everything() {
    let newer = Some(writer(8, 2));
    let mut claiming = Bench::new();
    claiming.job(call("add", "1", None));
    let mut replaying = Bench::new();
    replaying.job(call("add", "1", None));
    replaying.step(claimed(5, None));
    let mut finding = Bench::open_with(AgentLimits { recent_keys: 0, ..AgentLimits::default() });
    let append = finding.add(1, Some("k"));
    finding.step(ok(&append));
    finding.job(call("add", "1", Some("l")));
    let mut appending = Bench::open();
    appending.add(1, None);
    for (mut bench, event) in [
        (claiming, Event::Claimed(fenced(newer))),
        (replaying, Event::Page(fenced(newer))),
        (finding, Event::Found(fenced(newer))),
        (appending, Event::Appended(fenced(newer))),
    ] {
        bench.job(call("get", "", None));
        let effects = bench.step(event.clone());
        let refusal = Refusal::EpochFenced { held: us().epoch, recorded: ShardEpoch::new(8).unwrap() };
        let last = bench.last;
        assert_eq!(
            effects,
            [
                Answer(last - 1, Err(refusal.clone().into())),
                Answer(last, Err(refusal.clone().into())),
                TellFenced(Some(ShardEpoch::new(8).unwrap()))
            ],
            "{event:?}"
        );
        assert_eq!(
            bench.job(call("get", "", None)),
            [Answer(last + 1, Err(refusal.into()))],
            "latched: not even a read"
        );
        assert_eq!(bench.step(Event::Woke), []);
        assert_eq!(bench.step(Event::Stop), [Effect::Stop]);
    }
}

#[test]
fn being_fenced_while_leaving_ends_it() {
    let mut bench = Bench::open();
    assert_eq!(bench.step(Event::Leave), [Effect::Suspend]);
    assert_eq!(bench.step(Event::Suspended(fenced(None))), [TellFenced(None), Effect::Stop]);
}

/// F7, case 3: the answer was lost, the entry is there: success, and it was written once.
#[test]
fn an_append_whose_answer_was_lost_is_found_by_reading_back() {
    let mut bench = Bench::open();
    let append = bench.add(5, Some("k"));
    assert_eq!(bench.step(Event::Appended(unknown())), [Read(EntryIndex(1), 1)]);
    assert_eq!(bench.step(Event::Page(Ok(stored_at(1, &append.entries)))), [done(2, "5")]);
    assert_eq!(bench.add(1, None).expected, EntryIndex(2));
}

/// F7: it is not there: the very same entries go out again, so that a late first attempt and the second exclude each other.
#[test]
fn an_append_that_is_not_there_is_repeated_unchanged() {
    let mut bench = Bench::open();
    let append = bench.add(5, None);
    bench.step(Event::Appended(unknown()));
    assert_eq!(bench.step(Event::Page(Ok(vec![]))), [Wait(BACKOFF_BASE)]);
    assert_eq!(bench.step(Event::Woke), [Effect::Append(append.clone())]);
    // The first attempt landed after all.
    let conflict = Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) };
    assert_eq!(bench.step(Event::Appended(Err(conflict))), [Read(EntryIndex(1), 1)]);
    assert_eq!(bench.step(Event::Page(Ok(stored_at(1, &append.entries)))), [done(2, "5")]);
    assert_eq!(bench.get(), 5);
}

/// F7: while nobody can say, nothing else is done; then the caller is told so and the oplog is read anew, without a write: a
/// disk may be full.
#[test]
fn an_outcome_that_cannot_be_read_for_long_is_unknown_and_the_agent_starts_over() {
    let mut bench = Bench::open();
    bench.add(5, None);
    bench.step(Event::Appended(unknown()));
    assert_eq!(bench.job(call("get", "", None)), []);
    for _ in 1..READ_BACK_ATTEMPTS {
        assert!(matches!(bench.step(Event::Page(unavailable())).as_slice(), [Wait(_)]));
        assert_eq!(bench.step(Event::Woke), [Read(EntryIndex(1), 1)]);
    }
    let effects = bench.step(Event::Page(unavailable()));
    assert_eq!((reason(&effects), &effects[1..]), ("unknown", &[Read(EntryIndex(1), 256)][..]));
    // It had landed: the agent knows.
    assert_eq!(bench.step(Event::Page(Ok(vec![old(1, 5, None)]))), [Replayed(1), done(3, "5")]);
}

/// F7: a store that says "unknown" to each write and reads well (a full disk): the caller hears what it said, readers go on.
#[test]
fn an_append_that_is_never_there_quotes_the_store_and_leaves_the_agent_readable() {
    let mut bench = Bench::open();
    let append = bench.add(5, Some("k"));
    let full = || Event::Appended(Err(Error::Unknown("gen-000001.db: commit: disk is full".into())));
    for _ in 1..APPEND_ATTEMPTS {
        assert_eq!(bench.step(full()), [Read(EntryIndex(1), 1)]);
        assert!(matches!(bench.step(Event::Page(Ok(vec![]))).as_slice(), [Wait(_)]));
        assert_eq!(bench.step(Event::Woke), [Effect::Append(append.clone())]);
    }
    bench.step(full());
    let effects = bench.step(Event::Page(Ok(vec![])));
    let Answer(2, Err(CallError::Unknown(why))) = &effects[0] else { panic!("{effects:?}") };
    assert!(why.contains("not there yet") && why.contains("commit: disk is full"), "{why}");
    assert_eq!(effects[1..], [Read(EntryIndex(1), 256)], "nothing is written in order to read on");
    assert_eq!(bench.step(Event::Page(Ok(vec![]))), [Replayed(0)]);
    assert_eq!(bench.get(), 0);
    // One of the attempts was written late after all: the repeated key finds it.
    let again = appended(&bench.job(call("add", "5", Some("k"))));
    assert_eq!(again.expected, EntryIndex(1));
    let conflict = Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) };
    bench.step(Event::Appended(Err(conflict)));
    let late = || Event::Page(Ok(stored_at(1, &append.entries)));
    assert_eq!(bench.step(late()), [Read(EntryIndex(1), 256)]);
    assert_eq!(bench.step(late()), [Replayed(1), seen(4, "5")]);
    assert_eq!(bench.get(), 5);
}

/// F7: refused for sure and never in doubt is a refusal; once in doubt it can only be unknown.
#[test]
fn an_unavailable_store_is_a_refusal_unless_an_earlier_attempt_is_in_doubt() {
    for (first, expected) in [(unavailable(), "STORE_UNAVAILABLE"), (unknown(), "unknown")] {
        let mut bench = Bench::open();
        let append = bench.add(5, None);
        let mut effects = bench.step(Event::Appended(first));
        for attempt in 1..=APPEND_ATTEMPTS {
            if effects == [Read(EntryIndex(1), 1)] {
                effects = bench.step(Event::Page(Ok(vec![])));
            }
            if attempt == APPEND_ATTEMPTS {
                break;
            }
            assert!(matches!(effects.as_slice(), [Wait(_)]), "{effects:?}");
            assert_eq!(bench.step(Event::Woke), [Effect::Append(append.clone())]);
            effects = bench.step(Event::Appended(unavailable()));
        }
        assert_eq!(reason(&effects), expected);
    }
}

#[test]
fn a_fenced_read_back_cannot_deny_what_may_have_been_written() {
    let mut bench = Bench::open();
    bench.add(5, None);
    bench.step(Event::Appended(unknown()));
    let effects = bench.step(Event::Page(fenced(Some(writer(8, 2)))));
    assert_eq!(reason(&effects), "unknown");
    assert_eq!(effects[1], TellFenced(Some(ShardEpoch::new(8).unwrap())));
}

/// A late write of an earlier incarnation took the place: it is taken in and the job decided anew, once.
#[test]
fn an_index_conflict_with_other_entries_replays_and_decides_anew_once() {
    let conflict =
        |at: u64| Event::Appended(Err(Error::IndexConflict { expected: EntryIndex(at), found: EntryIndex(at + 1) }));
    let mut bench = Bench::open();
    bench.add(5, Some("k"));
    assert_eq!(bench.step(conflict(1)), [Read(EntryIndex(1), 1)]);
    assert_eq!(bench.step(Event::Page(Ok(vec![old(1, 10, None)]))), [Read(EntryIndex(1), 256)]);
    let effects = bench.step(Event::Page(Ok(vec![old(1, 10, None)])));
    assert_eq!(effects[0], Replayed(1));
    let append = appended(&effects[1..]);
    assert_eq!(append.expected, EntryIndex(2));
    bench.step(conflict(2));
    let effects = bench.step(Event::Page(Ok(vec![old(2, 10, None)])));
    assert_eq!(reason(&effects), "STORE_UNAVAILABLE");
    assert_eq!(effects[1], Read(EntryIndex(2), 256));
    bench.step(Event::Page(Ok(vec![old(2, 10, None)])));
    assert_eq!(bench.get(), 20);
}

#[test]
fn a_late_write_of_the_same_key_is_recognised_when_it_took_the_place() {
    let mut bench = Bench::open();
    bench.add(5, Some("k"));
    bench.step(Event::Appended(Err(Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) })));
    bench.step(Event::Page(Ok(vec![old(1, 5, Some("k"))])));
    let effects = bench.step(Event::Page(Ok(vec![old(1, 5, Some("k"))])));
    assert_eq!(effects, [Replayed(1), seen(2, "\"old\"")]);
    assert_eq!(bench.get(), 5);
}

#[test]
fn an_event_that_its_own_type_cannot_apply_makes_the_agent_start_over() {
    let mut bench = Bench::open();
    let append = appended(&bench.job(call("poison", "", None)));
    assert_eq!(reason(&bench.step(ok(&append))), "unknown");
    assert_eq!(bench.job(Work::Open), [Claim]);
}

#[test]
fn a_call_that_waits_for_an_oplog_that_cannot_be_opened_hears_why_after_three_attempts() {
    let mut bench = Bench::new();
    bench.job(Work::Open);
    bench.job(call("get", "", None));
    for _ in 1..APPEND_ATTEMPTS {
        assert!(matches!(bench.step(Event::Claimed(unavailable())).as_slice(), [Wait(_)]));
        assert_eq!(bench.step(Event::Woke), [Claim]);
    }
    let effects = bench.step(Event::Claimed(unavailable()));
    assert_eq!((reason(&effects), effects.len()), ("STORE_UNAVAILABLE", 2), "{effects:?}");
    assert!(matches!(effects[1], Wait(_)), "the recovery goes on");
    assert_eq!(bench.step(Event::Woke), [Claim]);
    assert!(matches!(bench.step(claimed(1, None)).as_slice(), [Answer(1, Ok(_))]));
}

#[test]
fn opening_is_retried_with_backoff_and_then_refused_retryably() {
    let mut bench = Bench::new();
    bench.job(Work::Open);
    let mut waits = Vec::new();
    for _ in 1..OPEN_ATTEMPTS {
        match bench.step(Event::Claimed(unavailable())).as_slice() {
            [Wait(span)] => waits.push(*span),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.step(Event::Woke), [Claim]);
    }
    assert!(waits.is_sorted() && waits.iter().all(|wait| *wait <= BACKOFF_CAP), "{waits:?}");
    assert_eq!(reason(&bench.step(Event::Claimed(unavailable()))), "STORE_UNAVAILABLE");
    assert_eq!(bench.job(call("get", "", None)), [Claim], "the next job tries again");
}

#[test]
fn a_stop_lets_the_running_invocation_finish_and_refuses_the_rest() {
    let mut bench = Bench::open();
    let append = bench.add(5, None);
    bench.job(call("get", "", None));
    assert_eq!(reason(&bench.step(Event::Stop)), "HANDOFF_IN_PROGRESS");
    assert_eq!(reason(&bench.job(call("get", "", None))), "HANDOFF_IN_PROGRESS");
    assert_eq!(bench.step(ok(&append)), [done(2, "5"), Effect::Stop]);
    assert_eq!(bench.step(Event::StopNow), [], "it has ended");
}

#[test]
fn a_stop_at_once_claims_nothing_about_a_write_under_way() {
    let mut appending = Bench::open();
    appending.add(5, None);
    let mut reading_back = Bench::open();
    reading_back.add(5, None);
    reading_back.step(Event::Appended(unknown()));
    for mut bench in [appending, reading_back] {
        assert_eq!(bench.step(Event::Stop), []);
        let effects = bench.step(Event::StopNow);
        assert_eq!((reason(&effects), &effects[1..]), ("unknown", &[Effect::Stop][..]));
    }
    let mut finding = Bench::open_with(AgentLimits { recent_keys: 0, ..AgentLimits::default() });
    let append = finding.add(1, Some("k"));
    finding.step(ok(&append));
    finding.job(call("add", "1", Some("l")));
    finding.step(Event::Stop);
    assert_eq!(reason(&finding.step(Event::StopNow)), "HANDOFF_IN_PROGRESS");
}

#[test]
fn a_stop_while_opening_ends_at_once_and_refuses_who_waits() {
    let mut claiming = Bench::new();
    claiming.job(call("get", "", None));
    let mut replaying = Bench::new();
    replaying.job(call("get", "", None));
    replaying.step(claimed(500, None));
    for mut bench in [claiming, replaying] {
        let effects = bench.step(Event::Stop);
        assert_eq!((reason(&effects), &effects[1..]), ("HANDOFF_IN_PROGRESS", &[Effect::Stop][..]));
        assert_eq!(bench.step(Event::Page(Ok(vec![old(1, 1, None)]))), []);
    }
    assert_eq!(Bench::new().step(Event::Stop), [Effect::Stop]);
    assert_eq!(Bench::open().step(Event::Stop), [Effect::Stop]);
}

#[test]
fn leaving_marks_the_idle_agent_and_ends_even_if_the_mark_fails() {
    for answer in [Ok(()), unavailable(), unknown()] {
        let mut bench = Bench::open();
        assert_eq!(bench.step(Event::Leave), [Effect::Suspend]);
        assert_eq!(bench.step(Event::Suspended(answer)), [Effect::Stop]);
    }
    assert_eq!(Bench::new().step(Event::Leave), [Effect::Stop]);
}

#[test]
fn leaving_waits_for_work_and_is_called_off_by_new_work() {
    let mut bench = Bench::open();
    let append = bench.add(5, None);
    assert_eq!(bench.step(Event::Leave), []);
    assert_eq!(bench.step(ok(&append)), [done(2, "5"), Effect::Suspend]);
    assert_eq!(bench.job(call("get", "", None)), []);
    assert_eq!(bench.step(Event::Suspended(Ok(()))), [Claim]);
}

#[test]
fn a_late_answer_to_a_call_that_is_over_changes_nothing() {
    let mut bench = Bench::open();
    for event in [
        claimed(9, None),
        Event::Page(Ok(vec![old(1, 1, None)])),
        Event::Found(Ok(None)),
        Event::Appended(Ok(EntryIndex(3))),
        Event::Suspended(Ok(())),
        Event::Woke,
    ] {
        assert_eq!(bench.step(event), []);
    }
    assert_eq!(bench.get(), 0);
}

// --- The archive layer ---

/// Two entries stay.
fn archiving() -> Bench {
    let archive = Some(ArchivePolicy { after_entries: 2, after_age: Duration::from_secs(100) });
    Bench::open_with(AgentLimits { archive, ..AgentLimits::default() })
}

fn archive(index: u64) -> Effect {
    Effect::Archive(Upto { index: EntryIndex(index), least: 1 })
}

fn moved(primary_from: u64) -> Event {
    Event::Archived(Ok(Moved { entries: 1, raw: 1, stored: 1, primary_from: EntryIndex(primary_from) }))
}

/// Adds three entries, the last of which is one too many.
fn with_a_move_under_way() -> Bench {
    let mut bench = archiving();
    for next in 2..=3 {
        bench.add(1, None);
        let effects = bench.step(Event::Appended(Ok(EntryIndex(next))));
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Archive(_))), "{effects:?}");
    }
    bench.add(1, None);
    let effects = bench.step(Event::Appended(Ok(EntryIndex(4))));
    assert_eq!(effects.last(), Some(&archive(2)));
    bench
}

#[test]
fn a_move_begins_once_there_are_too_many_entries_and_the_next_one_when_it_has_ended() {
    let mut bench = with_a_move_under_way();
    bench.add(1, None);
    assert_eq!(bench.step(Event::Appended(Ok(EntryIndex(5)))).len(), 1, "one at a time");
    assert_eq!(bench.step(moved(2)), [archive(3)]);
    assert_eq!(bench.step(moved(3)), []);
}

#[test]
fn a_move_that_is_fenced_latches_wherever_no_call_of_the_store_would_tell() {
    let fenced = || Event::Archived(Err(Error::Fenced { recorded: Some(writer(8, 2)), offered: us() }));
    let mut idle = with_a_move_under_way();
    assert_eq!(idle.step(fenced()), [TellFenced(Some(ShardEpoch::new(8).unwrap()))]);
    assert!(matches!(idle.job(call("get", "", None)).as_slice(), [Answer(_, Err(_))]), "latched");
    let mut outside = with_a_move_under_way();
    assert!(matches!(outside.job(call("outside", "", None)).as_slice(), [Effect::Consult(_)]));
    let effects = outside.step(fenced());
    assert!(matches!(effects.as_slice(), [Effect::DropConsultation, Answer(_, Err(_)), TellFenced(_)]), "{effects:?}");
    let mut appending = with_a_move_under_way();
    let append = appending.add(1, None);
    assert_eq!(appending.step(fenced()), [], "the append hears the same");
    let refused = Error::Fenced { recorded: Some(writer(8, 2)), offered: us() };
    let effects = appending.step(Event::Appended(Err(refused)));
    assert!(matches!(effects.as_slice(), [Answer(_, Err(_)), TellFenced(_)]), "{append:?}: {effects:?}");
}

#[test]
fn a_move_that_finds_the_agent_deleted_or_fails_changes_nothing() {
    for error in [
        Error::Fenced { recorded: None, offered: us() },
        Error::Unavailable("away".into()),
        Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) },
    ] {
        let mut bench = with_a_move_under_way();
        let effects = bench.step(Event::Archived(Err(error)));
        assert!(matches!(effects.as_slice(), [Effect::ArchiveLater(_)] | []), "{effects:?}");
        assert_eq!(bench.get(), 3);
    }
}

#[test]
fn nothing_moves_once_the_agent_is_to_end() {
    for (closed, expected) in [(false, vec![archive(3)]), (true, vec![])] {
        let mut bench = with_a_move_under_way();
        bench.add(1, None);
        bench.step(Event::Appended(Ok(EntryIndex(5))));
        bench.add(1, None);
        if closed {
            assert_eq!(bench.step(Event::Stop), []);
        }
        assert_eq!(bench.step(moved(2)), expected, "its append is under way");
    }
}
