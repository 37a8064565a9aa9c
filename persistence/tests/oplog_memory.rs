//! The scriptable faults of the memory store, which other crates' tests rely on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use leasehold_persistence::oplog::memory::{Call, Fault};
use leasehold_persistence::oplog::{
    Append, EntryIndex, EntryKind, Error, Gate, MemoryOplogStore, NewEntry, OplogStore, Writer,
};
use std::time::Duration;
use tokio::time::Instant;

fn writer() -> Writer {
    Writer { epoch: ShardEpoch::owned(5).unwrap(), executor: ExecutorId::from_u128(1) }
}

fn agent() -> AgentId {
    AgentId::new("counter/a").unwrap()
}

fn append(expected: u64) -> Append {
    let entries = vec![NewEntry { kind: EntryKind::Invocation, key: None, body: vec![1] }];
    Append { agent: agent(), writer: writer(), expected: EntryIndex(expected), entries }
}

async fn store() -> MemoryOplogStore {
    let store = MemoryOplogStore::new();
    store.claim(&agent(), ShardId(1), writer()).await.unwrap();
    store
}

async fn written(store: &MemoryOplogStore) -> usize {
    store.read(&agent(), writer(), EntryIndex(1), 10).await.unwrap().len()
}

/// F7: three outcomes, told apart by reading back.
#[tokio::test]
async fn a_refusal_and_a_lost_request_write_nothing_and_a_lost_answer_writes_once() {
    let store = store().await;
    store.script(Call::Append, Fault::Refuse);
    store.script(Call::Append, Fault::LoseRequest);
    store.script(Call::Append, Fault::LoseAnswer);
    assert!(matches!(store.append(append(1)).await, Err(Error::Unavailable(_))));
    assert_eq!(written(&store).await, 0);
    assert!(matches!(store.append(append(1)).await, Err(Error::Unknown(_))));
    assert_eq!(written(&store).await, 0);
    assert!(matches!(store.append(append(1)).await, Err(Error::Unknown(_))));
    assert_eq!(written(&store).await, 1);
    assert_eq!(store.append(append(2)).await, Ok(EntryIndex(3)), "one call each");
    let counts = store.counts();
    assert_eq!((counts.calls[&Call::Append], counts.faults, counts.entries, counts.fenced), (4, 3, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn delays_run_on_virtual_time_on_either_side_of_the_write() {
    let store = store().await;
    let hour = Duration::from_secs(3600);
    for (fault, written_meanwhile) in [(Fault::DelayBefore(hour), 0), (Fault::DelayAfter(hour), 1)] {
        store.script(Call::Append, fault);
        let next = written(&store).await as u64 + 1;
        let began = Instant::now();
        let outcome = tokio::time::timeout(hour / 2, store.append(append(next))).await;
        assert!(outcome.is_err(), "it takes an hour");
        assert_eq!(written(&store).await as u64, next - 1 + written_meanwhile, "cancelled in its delay");
        assert!(began.elapsed() < hour);
    }
}

#[tokio::test]
async fn a_gate_holds_one_handle_and_not_the_others() {
    let store = store().await;
    let other = store.handle();
    for (number, before) in [(1, true), (3, false)] {
        let gate = Gate::default();
        let fault = if before { Fault::HoldBefore(gate.clone()) } else { Fault::HoldAfter(gate.clone()) };
        store.script(Call::Append, fault);
        let held = async { store.append(append(number)).await };
        let meanwhile = async {
            gate.reached().await;
            let outcome = other.append(append(if before { number } else { number + 1 })).await;
            gate.release();
            outcome
        };
        let (held, outcome) = tokio::join!(held, meanwhile);
        if before {
            assert_eq!(outcome, Ok(EntryIndex(2)), "the other was first");
            assert_eq!(held, Err(Error::IndexConflict { expected: EntryIndex(1), found: EntryIndex(2) }));
            assert_eq!(other.append(append(2)).await, Ok(EntryIndex(3)));
        } else {
            assert_eq!((held, outcome), (Ok(EntryIndex(4)), Ok(EntryIndex(5))));
        }
    }
}
