use super::*;
use leasehold_model::command::{Command, Draft};
use leasehold_model::message::Weight;
use leasehold_model::state::Executor;
use leasehold_model::{Address, ExecutorId, ExecutorName, LeaseKeyHash, Ttl};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn cluster() -> ClusterName {
    ClusterName::new("c").unwrap()
}

fn count() -> ShardCount {
    ShardCount::new(8).unwrap()
}

async fn load(store: &MemoryClusterStore) -> ClusterState {
    store.load(&cluster(), count()).await.unwrap()
}

/// A write tagged `tag` that registers one more executor.
fn write(state: &ClusterState, tag: u128) -> Write {
    let mut draft = Draft::on(state);
    let executor = Executor {
        name: ExecutorName::new(format!("e{tag}")).unwrap(),
        address: Address::new("localhost:1").unwrap(),
        zone: None,
        weight: Weight::default(),
        lease_length: Ttl::from_ms(1).unwrap(),
        key_hash: LeaseKeyHash([0; 32]),
        draining: false,
        superseded: false,
        registered_at_ms: 0,
    };
    let register = Command::Register { id: ExecutorId::from_u128(tag), executor, replaces: None };
    assert_eq!(draft.apply(&register), Ok(leasehold_model::command::Outcome::Changed));
    let (after, changes) = draft.finish();
    Write { tag, expected: state.revision, next: after.revision, changes }
}

/// A store with one write, and what it holds.
async fn store() -> (MemoryClusterStore, ClusterState) {
    let store = MemoryClusterStore::new();
    let empty = load(&store).await;
    store.commit(&write(&empty, 1)).await.unwrap();
    let state = load(&store).await;
    (store, state)
}

#[tokio::test(start_paused = true)]
async fn a_delay_before_is_spent_before_the_write_and_one_after_is_spent_after_it() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::DelayBefore(SECOND), Fault::DelayAfter(3 * SECOND)]);
    let begun = Instant::now();
    let second = write(&state, 2);
    let commit = store.commit(&second);
    tokio::pin!(commit);
    assert!(timeout(SECOND / 2, &mut commit).await.is_err());
    assert_eq!(store.peek().unwrap().revision, Revision(1), "not applied yet");
    assert!(timeout(SECOND, &mut commit).await.is_err());
    assert_eq!(store.peek().unwrap().revision, Revision(2), "applied, and the answer still held");
    assert_eq!(commit.await, Ok(()));
    assert_eq!(begun.elapsed(), 4 * SECOND);
}

/// Case 28
#[tokio::test(start_paused = true)]
async fn a_write_whose_caller_gave_up_is_applied_and_its_outcome_waits_for_it() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::DelayBefore(10 * SECOND)]);
    let begun = Instant::now();
    assert!(timeout(SECOND, store.commit(&write(&state, 2))).await.is_err());
    assert_eq!(store.outcome(2).await, Ok(true), "told only after the delayed write");
    assert_eq!(begun.elapsed(), 10 * SECOND);
}

/// Case 1
#[tokio::test(start_paused = true)]
async fn a_held_answer_does_not_hold_up_the_calls_behind_it() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::DelayAfter(10 * SECOND)]);
    let begun = Instant::now();
    assert!(timeout(SECOND, store.commit(&write(&state, 2))).await.is_err());
    assert_eq!(store.outcome(2).await, Ok(true));
    assert_eq!(begun.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_does_not_wait_for_a_delayed_write() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::DelayBefore(10 * SECOND)]);
    let begun = Instant::now();
    let second = write(&state, 2);
    let commit = store.commit(&second);
    tokio::pin!(commit);
    assert!(timeout(SECOND, &mut commit).await.is_err());
    assert_eq!(store.confirm_leadership().await, Ok(()));
    assert_eq!(begun.elapsed(), SECOND);
    assert_eq!(commit.await, Ok(()));
}

/// Case 3
#[tokio::test]
async fn a_lost_answer_and_a_lost_request_look_alike_and_the_tag_tells_them_apart() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::LoseAnswer]);
    assert!(matches!(store.commit(&write(&state, 2)).await, Err(Error::Unknown(_))));
    assert_eq!(store.outcome(2).await, Ok(true));
    let state = load(&store).await;
    store.inject(Op::Commit, [Fault::LoseRequest]);
    assert!(matches!(store.commit(&write(&state, 3)).await, Err(Error::Unknown(_))));
    assert_eq!(store.outcome(3).await, Ok(false));
    assert_eq!(load(&store).await, state);
}

#[tokio::test]
async fn a_refused_call_says_why_and_writes_nothing() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::Refuse("disk full".into())]);
    assert_eq!(store.commit(&write(&state, 2)).await, Err(Error::Unavailable("disk full".into())));
    assert_eq!(store.outcome(2).await, Ok(false));
    let counts = store.counters().read();
    assert_eq!((counts.commits, counts.refused), (1, 1));
}

#[tokio::test]
async fn only_a_write_can_have_an_unknown_outcome() {
    let (store, _) = store().await;
    for op in [Op::Load, Op::Outcome, Op::Confirm] {
        store.inject(op, [Fault::LoseAnswer]);
    }
    assert!(matches!(store.load(&cluster(), count()).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.outcome(1).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.confirm_leadership().await, Err(Error::Unavailable(_))));
}

/// Case 3
#[tokio::test]
async fn a_foreign_write_makes_the_next_one_conflict() {
    let (store, state) = store().await;
    store.inject(Op::Commit, [Fault::ForeignWrite]);
    let conflict = Error::Conflict { expected: Revision(1), found: Revision(2) };
    assert_eq!(store.commit(&write(&state, 2)).await, Err(conflict));
    assert_eq!(store.outcome(2).await, Ok(false));
    assert_eq!(load(&store).await.revision, Revision(2));
}

/// Case 5, R40
#[tokio::test]
async fn a_wiped_or_restored_store_makes_the_next_write_conflict() {
    let (store, state) = store().await;
    let early = store.snapshot();
    store.commit(&write(&state, 2)).await.unwrap();
    let state = load(&store).await;
    store.inject(Op::Commit, [Fault::Restore(early.clone())]);
    let conflict = Error::Conflict { expected: Revision(2), found: Revision(1) };
    assert_eq!(store.commit(&write(&state, 3)).await, Err(conflict));
    store.inject(Op::Commit, [Fault::Wipe]);
    let conflict = Error::Conflict { expected: Revision(2), found: Revision(0) };
    assert_eq!(store.commit(&write(&state, 4)).await, Err(conflict));
    assert_eq!(load(&store).await, ClusterState::empty(cluster(), count()));
    store.restore(&early);
    assert_eq!(load(&store).await.revision, Revision(1));
    store.wipe();
    assert_eq!(store.peek(), None);
}

/// Case 36
#[tokio::test]
async fn a_deposed_manager_can_not_take_the_store_back() {
    let (first, state) = store().await;
    let second = first.another();
    assert_eq!(first.confirm_leadership().await, Ok(()), "opening alone deposes nobody");
    assert!(matches!(second.commit(&write(&state, 2)).await, Err(Error::NotOwner(_))), "it has not loaded");
    load(&second).await;
    assert!(matches!(first.load(&cluster(), count()).await, Err(Error::NotOwner(_))));
    assert!(matches!(first.take_over(), Err(Error::NotOwner(_))));
    assert_eq!(second.commit(&write(&state, 2)).await, Ok(()));
    second.inject(Op::Confirm, [Fault::Depose]);
    assert!(matches!(second.confirm_leadership().await, Err(Error::NotOwner(_))));
}

#[tokio::test]
async fn faults_are_chosen_by_call_unless_one_was_injected() {
    let (store, state) = store().await;
    store.inject_when(|call| match call.write {
        Some(write) if write.tag == 2 => {
            vec![Fault::Refuse(format!("{:?} {} of {}", call.op, call.number, call.handle))]
        }
        _ => vec![],
    });
    assert_eq!(store.commit(&write(&state, 2)).await, Err(Error::Unavailable("Commit 1 of 1".into())));
    store.inject(Op::Commit, []);
    assert_eq!(store.commit(&write(&state, 2)).await, Ok(()), "an injected empty list lets the call pass");
    let state = load(&store).await;
    store.inject(Op::Commit, [Fault::LoseRequest]);
    store.heal();
    assert_eq!(store.commit(&write(&state, 3)).await, Ok(()));
}
