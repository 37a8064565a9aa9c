//! What every [`ClusterStore`] must do.
//!
//! Each function is one test and takes a [`Fixture`] over an empty store of its own. [`cluster_store_conformance!`] makes
//! tests of all of them:
//!
//! ```ignore
//! leasehold_persistence::cluster_store_conformance!(MyFixture::new());
//! ```

use crate::cluster::{ClusterStore, Counts, Error, Write};
use async_trait::async_trait;
use leasehold_model::command::{Changes, Command, Draft};
use leasehold_model::message::Weight;
use leasehold_model::plan::Plan;
use leasehold_model::state::{ClusterState, Executor, Shard, ShardState};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Revision, ShardCount, ShardEpoch, ShardId, Ttl,
};
use quickcheck::{Arbitrary, Gen};
use std::sync::Arc;
use std::time::Duration;

/// Access to one store, empty at first.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens the store, as a manager process does that starts.
    ///
    /// # Errors
    /// As the backend's own opening.
    async fn open(&self) -> Result<Opened, Error>;
}

/// An opened store.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn ClusterStore>,
    /// Reads its counts.
    pub counts: Box<dyn Fn() -> Counts + Send + Sync>,
}

/// Makes a tokio test of every conformance test. The argument makes a fixture over an empty store.
#[macro_export]
macro_rules! cluster_store_conformance {
    ($fixture:expr) => {
        $crate::cluster_store_conformance! { $fixture;
            an_empty_store_loads_as_the_empty_state,
            what_was_committed_is_loaded_by_the_next_process,
            a_stale_revision_is_refused_and_nothing_is_written,
            only_changed_rows_are_written,
            the_last_write_is_known_by_its_tag_and_a_refused_one_is_not,
            a_second_process_is_refused_or_ends_the_ownership_of_the_first,
            a_store_of_another_cluster_or_shard_count_is_refused_and_untouched,
            a_cancelled_write_has_one_outcome_and_leaves_the_store_usable,
            a_first_assignment_of_every_shard_is_one_write,
            the_greatest_epoch_and_revision_are_stored_and_a_greater_one_is_refused,
            confirming_the_leadership_writes_nothing,
        }
    };
    ($fixture:expr; $($test:ident,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                $crate::conformance::cluster::$test(&$fixture).await;
            }
        )*
    };
}

/// How many random histories are played.
const HISTORIES: u64 = 12;
/// How many writes are cancelled, each a little later than the one before.
const CANCELLATIONS: u64 = 40;

fn cluster() -> ClusterName {
    ClusterName::new("conformance").expect("a name")
}

fn count(shards: u32) -> ShardCount {
    ShardCount::new(shards).expect("a shard count")
}

/// The executor numbered `number`, always the same.
fn executor(number: u8) -> (ExecutorId, Executor) {
    let row = Executor {
        name: ExecutorName::new(format!("executor-{number}")).expect("a name"),
        address: Address::new(format!("[::1]:{}", 7000 + u32::from(number))).expect("an address"),
        zone: (number % 2 == 1).then(|| format!("zone \u{1f5fa} '{number}'")),
        weight: Weight::new(u32::from(number) + 1).expect("a weight"),
        lease_length: Ttl::from_ms(10_000 + u64::from(number)).expect("a ttl"),
        key_hash: LeaseKeyHash([number; 32]),
        draining: false,
        superseded: false,
        registered_at_ms: i64::from(number) - 100,
    };
    (ExecutorId::from_u128(0x1000 + u128::from(number)), row)
}

fn register(number: u8) -> Command {
    let (id, executor) = executor(number);
    Command::Register { id, executor, replaces: None }
}

/// Takes the commands to `state`; a refused one is left out. Answers the write and the state after it.
fn draft(state: &ClusterState, tag: u128, commands: &[Command]) -> (Write, ClusterState) {
    let mut draft = Draft::on(state);
    for command in commands {
        let _ = draft.apply(command);
    }
    let (mut after, changes) = draft.finish();
    let next = state.revision.next();
    // A write that changes nothing is only made to an empty store; here it is made anyway.
    after.revision = next;
    (Write { tag, expected: state.revision, next, changes }, after)
}

async fn open(fixture: &dyn Fixture) -> Opened {
    fixture.open().await.expect("the store opens")
}

async fn load(store: &Arc<dyn ClusterStore>, shards: u32) -> ClusterState {
    store.load(&cluster(), count(shards)).await.expect("the store loads")
}

/// Opens and loads an empty store, and commits `commands` as the first write.
async fn start(fixture: &dyn Fixture, shards: u32, commands: &[Command]) -> (Opened, ClusterState) {
    let opened = open(fixture).await;
    let empty = load(&opened.store, shards).await;
    let (write, state) = draft(&empty, 1, commands);
    opened.store.commit(&write).await.expect("the first write");
    (opened, state)
}

/// A command out of three random numbers, most of which fit the state.
fn random_command(state: &ClusterState, (kind, whom, shard): (u8, u8, u16)) -> Command {
    let shard = ShardId(u32::from(shard) % state.shard_count.get());
    let (id, _) = executor(whom % 5);
    let held = state.shard(shard).map_or(ShardState::Unassigned, |row| row.state);
    match kind % 8 {
        0 => register(whom % 5),
        1 if whom.is_multiple_of(3) => Command::Deregister(id),
        2 if whom.is_multiple_of(3) => Command::Reap(vec![id]),
        3 => Command::SetDraining(id, whom > 127),
        4 => Command::SetLeaseLength(id, Ttl::from_ms(u64::from(whom) + 1).expect("a ttl")),
        5 => Command::RaiseEpoch { shard, above: ShardEpoch::new(u64::from(whom) << 32).expect("an epoch") },
        6 => match held {
            ShardState::Releasing { from, .. } => {
                Command::ConfirmRelease { executor: from, applied: state.revision, shards: vec![shard] }
            }
            ShardState::Owned(owner) => {
                Command::Plan(Plan { revision: state.revision, releases: vec![(shard, owner)], grants: vec![] })
            }
            ShardState::Unassigned => register(whom % 5),
        },
        _ => Command::Plan(Plan { revision: state.revision, releases: vec![], grants: vec![(shard, id)] }),
    }
}

/// An empty store loads as the empty state, and loading writes nothing.
pub async fn an_empty_store_loads_as_the_empty_state(fixture: &dyn Fixture) {
    for _ in 0..2 {
        let opened = open(fixture).await;
        assert_eq!(load(&opened.store, 64).await, ClusterState::empty(cluster(), count(64)));
        assert!(!opened.store.outcome(7).await.expect("an outcome"), "nothing was ever written");
        assert_eq!((opened.counts)().commits, 0);
    }
}

/// Random histories of commands: after every write, and for the next process, what is loaded is what was committed.
pub async fn what_was_committed_is_loaded_by_the_next_process(fixture: &dyn Fixture) {
    let mut opened = open(fixture).await;
    let mut state = load(&opened.store, 1500).await;
    let mut tag = 0;
    for seed in 0..HISTORIES {
        let history = Vec::<Vec<(u8, u8, u16)>>::arbitrary(&mut Gen::from_size_and_seed(12, seed));
        for batch in history.iter().filter(|batch| !batch.is_empty()) {
            let mut seen = state.clone();
            let mut commands = Vec::new();
            for step in batch {
                commands.push(random_command(&seen, *step));
                seen = draft(&state, 0, &commands).1;
                seen.revision = state.revision;
            }
            tag += 1;
            let (write, after) = draft(&state, tag, &commands);
            opened.store.commit(&write).await.unwrap_or_else(|error| panic!("seed {seed}, {commands:?}: {error}"));
            assert_eq!(load(&opened.store, 1500).await, after, "seed {seed}, after {commands:?}");
            state = after;
        }
        drop(opened);
        opened = open(fixture).await;
        assert_eq!(load(&opened.store, 1500).await, state, "seed {seed}, loaded by the next process");
    }
    assert!(state.revision > Revision(HISTORIES), "the histories were not empty: {}", state.revision);
}

/// A write on another revision than the stored one conflicts, says which is stored, and changes nothing.
pub async fn a_stale_revision_is_refused_and_nothing_is_written(fixture: &dyn Fixture) {
    let (opened, first) = start(fixture, 64, &[register(1)]).await;
    let store = &opened.store;
    let (write, second) = draft(&first, 2, &[register(2)]);
    store.commit(&write).await.expect("the second write");

    let (stale, _) = draft(&first, 3, &[register(3), Command::Deregister(executor(1).0)]);
    let conflict = Error::Conflict { expected: first.revision, found: second.revision };
    assert_eq!(store.commit(&stale).await, Err(conflict));
    let (again_first, _) = draft(&ClusterState::empty(cluster(), count(64)), 4, &[register(4)]);
    let conflict = Error::Conflict { expected: Revision(0), found: second.revision };
    assert_eq!(store.commit(&again_first).await, Err(conflict));
    let mut ahead = draft(&second, 5, &[register(5)]).0;
    (ahead.expected, ahead.next) = (Revision(40), Revision(41));
    let conflict = Error::Conflict { expected: Revision(40), found: second.revision };
    assert_eq!(store.commit(&ahead).await, Err(conflict));

    assert_eq!(load(store, 64).await, second);
    assert_eq!((opened.counts)().commits, 2);
    let (write, third) = draft(&second, 6, &[register(6)]);
    store.commit(&write).await.expect("a fresh write after the refused ones");
    assert_eq!(load(store, 64).await, third);
}

/// A write costs its head and the rows that it changes, however large the state is.
pub async fn only_changed_rows_are_written(fixture: &dyn Fixture) {
    let grants = (0..1024).map(|shard| (ShardId(shard), executor(1).0)).collect();
    let assignment = Command::Plan(Plan { grants, ..Plan::default() });
    let (opened, state) = start(fixture, 1024, &[register(1), assignment]).await;
    let first = (opened.counts)();
    assert_eq!(first.rows, 1 + 1 + 1024, "the head, an executor, its shards");

    let plan = Plan { releases: vec![(ShardId(7), executor(1).0)], ..Plan::default() };
    let (write, state) = draft(&state, 2, &[Command::Plan(plan), register(2)]);
    opened.store.commit(&write).await.expect("a small write");
    let second = (opened.counts)();
    assert_eq!(second.rows - first.rows, 1 + 1 + 1, "the head, a shard, an executor");
    assert!(second.bytes - first.bytes < first.bytes / 10, "{first:?}, then {second:?}");

    let (write, after) = draft(&state, 3, &[Command::Deregister(executor(2).0)]);
    opened.store.commit(&write).await.expect("a removal");
    assert_eq!((opened.counts)().rows - second.rows, 1 + 1, "the head, a removed executor");
    assert_eq!(load(&opened.store, 1024).await, after);
}

/// Case 3: a writer recognises its own write by the tag, in this process and in the next; a refused write was not made.
pub async fn the_last_write_is_known_by_its_tag_and_a_refused_one_is_not(fixture: &dyn Fixture) {
    let (opened, first) = start(fixture, 64, &[register(1)]).await;
    let store = &opened.store;
    assert!(store.outcome(1).await.expect("an outcome"));
    let giant_tag = u128::MAX - 1;
    let (write, second) = draft(&first, giant_tag, &[register(2)]);
    store.commit(&write).await.expect("the second write");
    assert!(store.outcome(giant_tag).await.expect("an outcome"));
    assert!(!store.outcome(1).await.expect("an outcome"), "1 is not the last write any more");

    let (stale, _) = draft(&first, 3, &[register(3)]);
    assert!(store.commit(&stale).await.is_err());
    assert!(!store.outcome(3).await.expect("an outcome"), "3 was refused");
    assert!(store.outcome(giant_tag).await.expect("an outcome"), "2 is still the last write");
    // The same write once more: it does not land twice, and its writer finds that it had landed.
    let conflict = Error::Conflict { expected: first.revision, found: second.revision };
    assert_eq!(store.commit(&write).await, Err(conflict));
    assert!(store.outcome(giant_tag).await.expect("an outcome"));

    drop(opened);
    let opened = open(fixture).await;
    assert!(opened.store.outcome(giant_tag).await.expect("an outcome"), "asked by the next process");
}

/// Case 36: of two processes on one store at most one can write and confirm its leadership, and the other is told.
pub async fn a_second_process_is_refused_or_ends_the_ownership_of_the_first(fixture: &dyn Fixture) {
    let (first, state) = start(fixture, 64, &[register(1)]).await;
    let (write, after) = draft(&state, 2, &[register(2)]);
    first.store.confirm_leadership().await.expect("the only process leads");
    match fixture.open().await {
        Err(error) => {
            assert!(matches!(error, Error::NotOwner(_)), "{error}");
            first.store.confirm_leadership().await.expect("the first is not disturbed");
            first.store.commit(&write).await.expect("the first still writes");
        }
        Ok(second) => {
            assert_eq!(load(&second.store, 64).await, state);
            second.store.confirm_leadership().await.expect("the second leads");
            let told = first.store.confirm_leadership().await.expect_err("the first must not lead any more");
            assert!(matches!(told, Error::NotOwner(_)), "{told}");
            let told = first.store.commit(&write).await.expect_err("the first must not write any more");
            assert!(matches!(told, Error::NotOwner(_) | Error::Conflict { .. }), "{told}");
            assert_eq!(load(&second.store, 64).await, state, "the first wrote nothing");
            second.store.commit(&write).await.expect("the second writes");
            assert_eq!(load(&second.store, 64).await, after);
        }
    }
}

/// Case 37: another shard count or cluster name is refused, saying both, and the store stays as it was.
pub async fn a_store_of_another_cluster_or_shard_count_is_refused_and_untouched(fixture: &dyn Fixture) {
    let (opened, state) = start(fixture, 64, &[register(1)]).await;
    for _ in 0..2 {
        let error = opened.store.load(&cluster(), count(128)).await.expect_err("another shard count");
        let Error::Incompatible(text) = &error else { panic!("{error}") };
        assert!(text.contains("64") && text.contains("128"), "{text}");
        let other = ClusterName::new("somebody-else").expect("a name");
        let error = opened.store.load(&other, count(64)).await.expect_err("another cluster");
        let Error::Incompatible(text) = &error else { panic!("{error}") };
        assert!(text.contains("conformance") && text.contains("somebody-else"), "{text}");
    }
    assert_eq!(load(&opened.store, 64).await, state);
    assert_eq!((opened.counts)().commits, 1);
}

/// Case 28: a write whose caller gave up, however early or late, was made or not; the tag says which, the loaded state
/// agrees, and the next write goes through.
pub async fn a_cancelled_write_has_one_outcome_and_leaves_the_store_usable(fixture: &dyn Fixture) {
    let (opened, mut state) = start(fixture, 4096, &[register(1), register(2)]).await;
    let mut cancelled = 0;
    for attempt in 0..CANCELLATIONS {
        let above = ShardEpoch::new(attempt).expect("an epoch");
        let raise = |shard| Command::RaiseEpoch { shard: ShardId(shard), above };
        let commands: Vec<_> = (0..1024).map(raise).collect();
        let (write, after) = draft(&state, 100 + u128::from(attempt), &commands);
        let patience = Duration::from_micros(attempt * attempt * 4);
        let answer = tokio::time::timeout(patience, opened.store.commit(&write)).await;
        cancelled += u32::from(answer.is_err());
        let landed = opened.store.outcome(write.tag).await.expect("an outcome");
        if let Ok(answer) = answer {
            assert_eq!(answer, Ok(()));
            assert!(landed, "attempt {attempt} was acknowledged");
        }
        let expected = if landed { after } else { state };
        let loaded = load(&opened.store, 4096).await;
        assert_eq!(loaded, expected, "attempt {attempt}, landed: {landed}");
        let (write, after) = draft(&loaded, u128::from(attempt), &[raise(4000)]);
        opened.store.commit(&write).await.expect("the next write");
        state = after;
    }
    // The first patience is zero, so at least that one is cancelled by any store that does not answer at once.
    assert!(cancelled > 0 || (opened.counts)().commits == 1 + 2 * CANCELLATIONS);
}

/// Case 25: 65,536 shards and 200 executors with long names are written and read back at once.
pub async fn a_first_assignment_of_every_shard_is_one_write(fixture: &dyn Fixture) {
    let executors: Vec<_> = (0..200).map(executor).collect();
    let mut commands: Vec<_> = (executors.iter())
        .map(|(id, row)| {
            let name = ExecutorName::new(format!("{:x<128}", row.name.as_str())).expect("a long name");
            Command::Register { id: *id, executor: Executor { name, ..row.clone() }, replaces: None }
        })
        .collect();
    let owner = |shard: u32| executors[shard as usize % executors.len()].0;
    let grants = (0..ShardCount::MAX).map(|shard| (ShardId(shard), owner(shard))).collect();
    commands.push(Command::Plan(Plan { grants, ..Plan::default() }));
    let (opened, state) = start(fixture, ShardCount::MAX, &commands).await;
    assert_eq!(state.totals().owned, ShardCount::MAX);
    assert_eq!(load(&opened.store, ShardCount::MAX).await, state);
    assert_eq!((opened.counts)().commits, 1);
    assert_eq!((opened.counts)().rows, 1 + 200 + u64::from(ShardCount::MAX));
}

/// Case 33: no column wraps. The greatest epoch and revision come back; a greater revision is refused and nothing written.
pub async fn the_greatest_epoch_and_revision_are_stored_and_a_greater_one_is_refused(fixture: &dyn Fixture) {
    let (opened, state) = start(fixture, 64, &[register(1)]).await;
    let store = &opened.store;
    let (id, _) = executor(1);
    let write = |expected: Revision, next: Revision, since: Revision| {
        let mut changes = Changes::default();
        changes.shards.insert(ShardId(0), Shard { epoch: ShardEpoch::MAX, state: ShardState::Owned(id) });
        let releasing = ShardState::Releasing { from: id, since };
        changes.shards.insert(ShardId(1), Shard { epoch: ShardEpoch::MAX, state: releasing });
        Write { tag: 2, expected, next, changes }
    };
    let giants = [
        write(state.revision, Revision(u64::MAX), Revision(1)),
        write(Revision(1 << 63), Revision(u64::MAX), Revision(1)),
        write(state.revision, Revision(2), Revision(1 << 63)),
    ];
    for giant in &giants {
        let error = store.commit(giant).await.expect_err("above the greatest revision");
        assert!(matches!(error, Error::Incompatible(_)), "{error}");
        assert!(!store.outcome(2).await.expect("an outcome"));
        assert_eq!(load(store, 64).await, state);
    }
    store.commit(&write(state.revision, Revision::MAX, Revision::MAX)).await.expect("the greatest values");
    let loaded = load(store, 64).await;
    assert_eq!(loaded.revision, Revision::MAX);
    assert_eq!(loaded.shard(ShardId(0)).map(|row| row.epoch), Some(ShardEpoch::MAX));
    let releasing = ShardState::Releasing { from: id, since: Revision::MAX };
    assert_eq!(loaded.shard(ShardId(1)).map(|row| row.state), Some(releasing));
}

/// R7: renewals are answered on a confirmation, which costs no durable write.
pub async fn confirming_the_leadership_writes_nothing(fixture: &dyn Fixture) {
    let (opened, state) = start(fixture, 64, &[register(1)]).await;
    let before = (opened.counts)();
    for _ in 0..100 {
        opened.store.confirm_leadership().await.expect("the only process leads");
    }
    opened.store.compact(state.revision).await.expect("compaction");
    let after = (opened.counts)();
    assert_eq!((after.commits, after.rows), (before.commits, before.rows));
    assert_eq!(after.confirmations, 100);
    assert_eq!(load(&opened.store, 64).await, state, "compaction forgets nothing of the present state");
}
