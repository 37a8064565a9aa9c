//! Oplogs for the tests of stores on a server.

#![allow(dead_code, reason = "each test binary uses some of it")]

use leasehold_model::{AgentId, ClusterName, ExecutorId, ShardEpoch, ShardId};
use leasehold_persistence::oplog::{Append, EntryIndex, EntryKind, Error, NewEntry, OplogStore, Writer};
use std::sync::Arc;
use std::time::Duration;

pub const SHARD: ShardId = ShardId(1);
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn cluster() -> ClusterName {
    ClusterName::new("c").unwrap()
}

pub fn agent(key: impl std::fmt::Display) -> AgentId {
    AgentId::new(format!("counter/{key}")).unwrap()
}

/// The writer of `epoch`, another executor for each.
pub fn writer(epoch: u64) -> Writer {
    rival(epoch, u128::from(epoch))
}

pub fn rival(epoch: u64, executor: u128) -> Writer {
    Writer { epoch: ShardEpoch::owned(epoch).unwrap(), executor: ExecutorId::from_u128(executor) }
}

pub fn keyed(key: &str) -> NewEntry {
    NewEntry { kind: EntryKind::Invocation, key: Some(key.into()), body: key.as_bytes().to_vec() }
}

/// One entry whose key is `key`.
pub fn one(agent: &AgentId, writer: Writer, expected: u64, key: &str) -> Append {
    Append { agent: agent.clone(), writer, expected: EntryIndex(expected), entries: vec![keyed(key)] }
}

pub fn large(agent: &AgentId, writer: Writer, expected: u64, size: usize) -> Append {
    let entries = vec![NewEntry { kind: EntryKind::Invocation, key: None, body: vec![1; size] }];
    Append { agent: agent.clone(), writer, expected: EntryIndex(expected), entries }
}

/// Claims, and appends entries with the keys 1 to `count`.
pub async fn fill(store: &dyn OplogStore, agent: &AgentId, writer: Writer, count: u64) {
    assert_eq!(store.claim(agent, SHARD, writer).await.unwrap().next, EntryIndex(1));
    for index in 1..=count {
        assert_eq!(store.append(one(agent, writer, index, &index.to_string())).await, Ok(EntryIndex(index + 1)));
    }
}

/// The keys in the oplog, in order.
pub async fn keys(store: &dyn OplogStore, agent: &AgentId, writer: Writer) -> Vec<String> {
    let entries = store.read(agent, writer, EntryIndex(1), u32::MAX).await.unwrap();
    assert!(entries.iter().zip(1..).all(|(entry, index)| entry.index == EntryIndex(index)), "no gap: {entries:?}");
    entries.into_iter().map(|entry| entry.entry.key.unwrap_or_default()).collect()
}

pub fn fenced<T>(recorded: Option<Writer>, offered: Writer) -> Result<T, Error> {
    Err(Error::Fenced { recorded, offered })
}

pub fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in: {text}");
}

/// An append in a task of its own.
pub fn appending<S: OplogStore>(store: &Arc<S>, append: Append) -> tokio::task::JoinHandle<Result<EntryIndex, Error>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.append(append).await })
}

/// Two executors of one epoch, which is what a manager that lost its state makes: of each pair exactly one gets the record, and all of
/// the entries are its own.
pub async fn rivals_of_one_epoch(one: &dyn OplogStore, other: &dyn OplogStore) {
    for round in 0..40 {
        let (agent, ours, theirs) = (agent(format!("rival-{round}")), rival(5, 1), rival(5, 2));
        let (first, second) = tokio::join!(one.claim(&agent, SHARD, ours), other.claim(&agent, SHARD, theirs));
        let (winner, loser, refused) = match (first, second) {
            (Ok(_), Err(refused)) => (ours, theirs, refused),
            (Err(refused), Ok(_)) => (theirs, ours, refused),
            both => panic!("round {round}: {both:?}"),
        };
        assert_eq!(Err(refused), fenced::<()>(Some(winner), loser), "round {round}");
        let (first, second) = tokio::join!(
            one.append(self::one(&agent, winner, 1, "winner")),
            other.append(self::one(&agent, loser, 1, "loser"))
        );
        assert_eq!(first, Ok(EntryIndex(2)));
        assert_eq!(second, fenced(Some(winner), loser));
        assert_eq!(keys(one, &agent, winner).await, ["winner"]);
    }
}

/// Sixteen callers of one owner, through several handles: no index twice, none left out, every acknowledged entry there.
pub async fn sixteen_appenders(stores: &[Arc<dyn OplogStore>]) {
    let (agent, ours) = (agent("sixteen"), writer(5));
    stores[0].claim(&agent, SHARD, ours).await.unwrap();
    let appenders = (0..16).map(|who| {
        let (store, agent) = (Arc::clone(&stores[who % stores.len()]), agent.clone());
        tokio::spawn(async move {
            let (mut expected, mut done) = (1, 0);
            while done < 6 {
                match store.append(one(&agent, ours, expected, &format!("{who}/{done}"))).await {
                    Ok(next) => (expected, done) = (next.0, done + 1),
                    Err(Error::IndexConflict { found, .. }) => expected = found.0,
                    Err(other) => panic!("{other}"),
                }
            }
        })
    });
    for appender in appenders.collect::<Vec<_>>() {
        tokio::time::timeout(PATIENCE, appender).await.expect("in time").unwrap();
    }
    let mut found = keys(&*stores[0], &agent, ours).await;
    assert_eq!(found.len(), 96);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 96, "each once");
}
