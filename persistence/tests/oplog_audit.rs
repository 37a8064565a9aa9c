//! A store is read from outside the fence and proven or refuted: one suite, on every backend that keeps anything.

#![cfg(all(feature = "sqlite", feature = "postgres", feature = "redis"))]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod backends;
mod oplogs;

use backends::{Backend, Change, checked, on_every_backend};
use leasehold_model::ClusterName;
use leasehold_persistence::StoreUrl;
use leasehold_persistence::oplog::audit::{self, Depth, Kind, Layers, Options, Rule, check};
use leasehold_persistence::oplog::{Append, EntryIndex, EntryKind, Error, NewEntry, OplogStore, Writer};
use oplogs::{SHARD, agent, cluster, fill, keyed, one, writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

on_every_backend! {
    a_sound_store_is_proven_and_its_contents_are_counted;
    /// F1, F3, F4.
    each_broken_promise_is_found_with_agent_index_and_writer;
    a_store_at_work_is_proven_while_it_changes;
    /// R40's last resort.
    cleared_epochs_let_a_low_owner_in_keep_the_entries_and_are_allowed_for_once_told;
    a_cluster_without_oplogs_is_refused_and_nothing_is_made;
}

/// An entry's bytes begin with format, kind, epoch (8, big-endian) and executor (16).
fn byte(index: u8, at: usize, byte: u8) -> Vec<String> {
    let script = format!(
        "local v = redis.call('HGET', KEYS[1], '{index}') \
         redis.call('HSET', KEYS[1], '{index}', string.sub(v, 1, {at}) .. string.char({byte}) .. string.sub(v, {}))",
        at + 2
    );
    ["EVAL", &script, "1", "leasehold:c:{counter/a}:oplog"].map(str::to_owned).to_vec()
}

/// Damage that the fence never does, to the oplog `counter/a`; what is to be found, and where.
fn harms() -> Vec<(Change, Rule, Option<u64>, Option<Writer>)> {
    let oplog = "leasehold:c:{counter/a}:oplog";
    vec![
        (
            Change {
                what: "the third entry goes",
                sqlite: "DELETE FROM entries WHERE idx = 3",
                postgres: "DELETE FROM entries WHERE idx = 3",
                redis: Change::words(&["HDEL", oplog, "3"]),
            },
            Rule::Contiguous,
            Some(4),
            Some(writer(6)),
        ),
        (
            Change {
                what: "the record falls below what is written",
                sqlite: "UPDATE records SET epoch = 2",
                postgres: "UPDATE records SET epoch = 2",
                redis: Change::words(&["HSET", oplog, "epoch", "0000000000000000002"]),
            },
            Rule::RecordNotBelow,
            Some(4),
            Some(writer(6)),
        ),
        (
            Change {
                what: "the second entry is of another writer of its epoch",
                sqlite: "INSERT INTO writers (executor) VALUES (x'00000000000000000000000000000009'); \
                         UPDATE entries SET writer = (SELECT max(id) FROM writers) WHERE idx = 2",
                postgres: "UPDATE entries SET executor = '\\x00000000000000000000000000000009' WHERE idx = 2",
                redis: byte(2, 25, 9),
            },
            Rule::OneWriterPerEpoch,
            Some(2),
            None,
        ),
        (
            Change {
                what: "the last entry is of an epoch before that of the others",
                sqlite: "UPDATE entries SET epoch = 4 WHERE idx = 4",
                postgres: "UPDATE entries SET epoch = 4 WHERE idx = 4",
                redis: byte(4, 9, 4),
            },
            Rule::EpochsNeverFall,
            Some(4),
            None,
        ),
        (
            Change {
                what: "the second entry cannot be read",
                sqlite: "PRAGMA ignore_check_constraints = ON; UPDATE entries SET kind = 9 WHERE idx = 2",
                postgres: "ALTER TABLE entries DROP CONSTRAINT entries_kind_check; \
                           UPDATE entries SET kind = 9 WHERE idx = 2",
                redis: byte(2, 1, 9),
            },
            Rule::Readable,
            Some(2),
            None,
        ),
    ]
}

/// `counter/a`: three entries of epoch 5, one of epoch 6.
async fn two_owners(store: &dyn OplogStore) {
    fill(store, &agent("a"), writer(5), 3).await;
    store.claim(&agent("a"), SHARD, writer(6)).await.unwrap();
    assert_eq!(store.append(one(&agent("a"), writer(6), 4, "4")).await, Ok(EntryIndex(5)));
}

async fn a_sound_store_is_proven_and_its_contents_are_counted(backend: &dyn Backend) {
    let store = backend.store().await;
    two_owners(&*store).await;
    let (long, gone, idle) = (agent("long"), agent("gone"), agent("idle"));
    fill(&*store, &gone, writer(7), 2).await;
    store.delete(&gone, writer(7), EntryIndex(3)).await.unwrap();
    store.claim(&idle, SHARD, writer(3)).await.unwrap();
    store.suspend(&idle, writer(3)).await.unwrap();
    store.claim(&long, SHARD, writer(5)).await.unwrap();
    for from in (1..1100).step_by(100) {
        let snapshot = NewEntry { kind: EntryKind::Snapshot, key: None, body: vec![7; 10] };
        let entries = (1..100).map(|at| keyed(&format!("{from}-{at:02}"))).chain([snapshot]).collect();
        let append = Append { agent: long.clone(), writer: writer(5), expected: EntryIndex(from), entries };
        store.append(append).await.unwrap();
    }
    let audit = backend.audit().await;
    assert_eq!(audit.count().await, Ok(4));
    let mut told = 0;
    let report = check(Layers::indexed(&*audit), &Options::default(), &mut |_| told += 1).await.unwrap();
    assert!(report.proven(), "{report:#?}");
    let total = report.total;
    assert_eq!((total.oplogs, total.running, total.deleted), (3, 2, 1));
    assert_eq!((total.entries, total.snapshots), (1104, 11));
    assert_eq!((told, report.seen(), report.greatest_epoch), (4, 4, 7));
    let size: usize = (1..1100).step_by(100).map(|from: usize| 99 * (from.to_string().len() + 3) + 10).sum();
    assert_eq!(report.largest, Some(("counter/long".into(), size as u64)));
    assert_eq!(report.by[&Kind::Type("counter".into())], total);
    assert_eq!(report.by[&Kind::Shard(SHARD.0)], total);
    let page = audit.page("counter/a", EntryIndex(2), Depth::Bodies, 2).await.unwrap().unwrap();
    let bodies: Vec<_> = page.entries.into_iter().map(|read| read.unwrap().entry.entry.body).collect();
    assert_eq!((bodies, page.more), (vec![b"2".to_vec(), b"3".to_vec()], Some(EntryIndex(4))));
    assert_eq!(audit.page("counter/nobody", EntryIndex(1), Depth::Heads, 2).await, Ok(None));
}

async fn each_broken_promise_is_found_with_agent_index_and_writer(backend: &dyn Backend) {
    let store = backend.store().await;
    let a = agent("a");
    two_owners(&*store).await;
    for (harm, rule, index, by) in harms() {
        let before = checked(backend, &Options::default()).await;
        backend.suffer(&harm).await;
        let report = checked(backend, &Options::default()).await;
        let new: Vec<_> = report.findings.iter().filter(|finding| !before.findings.contains(finding)).collect();
        let found = new.iter().find(|finding| finding.rule == rule && finding.index == index);
        let found = found.unwrap_or_else(|| panic!("{}: {report:#?}", harm.what));
        assert_eq!(found.agent.as_deref(), Some(a.as_str()), "{}", harm.what);
        assert!(by.is_none() || found.writer == by, "{}: {found:?}", harm.what);
        assert!(!report.proven());
    }
}

/// What an appender, a deletion and a change of owners do under the reader is never taken for damage.
async fn a_store_at_work_is_proven_while_it_changes(backend: &dyn Backend) {
    let (store, stop) = (backend.store().await, Arc::new(AtomicBool::new(false)));
    two_owners(&*store).await;
    let at_work: Vec<_> = (0..4)
        .map(|who| {
            let (store, stop, busy) = (Arc::clone(&store), Arc::clone(&stop), agent(format!("busy-{who}")));
            tokio::spawn(async move {
                let mut epoch = 1;
                while !stop.load(Ordering::SeqCst) {
                    epoch += 1;
                    let mut next = store.claim(&busy, SHARD, writer(epoch)).await.unwrap().next;
                    for _ in 0..8 {
                        let entries = (0..100).map(|n| keyed(&format!("{}-{n}", next.0))).collect();
                        let append = Append { agent: busy.clone(), writer: writer(epoch), expected: next, entries };
                        next = store.append(append).await.unwrap();
                    }
                    if epoch % 3 == who % 3 {
                        store.delete(&busy, writer(epoch), next).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for round in 0..15 {
        let report = checked(backend, &Options::default()).await;
        assert!(report.found == 0, "round {round}: {report:#?}");
    }
    stop.store(true, Ordering::SeqCst);
    for worker in at_work {
        worker.await.unwrap();
    }
    assert!(checked(backend, &Options::default()).await.proven());
}

async fn cleared_epochs_let_a_low_owner_in_keep_the_entries_and_are_allowed_for_once_told(backend: &dyn Backend) {
    let (store, a) = (backend.store().await, agent("a"));
    let (giant, low, cleared) = (writer(1 << 60), writer(2), Writer { epoch: writer(1).epoch, ..writer(99) });
    fill(&*store, &a, giant, 3).await;
    assert!(matches!(store.claim(&a, SHARD, low).await, Err(Error::Fenced { .. })));
    let audit = backend.audit().await;
    assert_eq!(audit.clear("counter/a", low, cleared).await, Ok(false), "it is not what was found");
    assert_eq!(audit.clear("counter/a", giant, cleared).await, Ok(true));
    assert_eq!(store.recorded(&a).await, Ok(Some(cleared)));
    let options = Options { cleared: [("counter/a".to_owned(), 4)].into(), ..Options::default() };
    assert!(checked(backend, &options).await.proven());
    assert_eq!(store.claim(&a, SHARD, low).await.unwrap().next, EntryIndex(4), "no entry went");
    assert_eq!(store.append(one(&a, low, 4, "4")).await, Ok(EntryIndex(5)));
    let untold = checked(backend, &Options::default()).await;
    assert!(untold.findings.iter().any(|finding| finding.rule == Rule::EpochsNeverFall), "{untold:#?}");
    assert!(checked(backend, &options).await.proven());
}

async fn a_cluster_without_oplogs_is_refused_and_nothing_is_made(backend: &dyn Backend) {
    let url = backend.url();
    let refused = audit::open(&url, &cluster()).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_) | Error::Unavailable(_)), "{refused}");
    let again = audit::open(&url, &cluster()).await.map(drop).unwrap_err();
    assert_eq!(again, refused, "the first one made nothing");
    if matches!(url, StoreUrl::Sqlite(_)) {
        return;
    }
    drop(backend.store().await);
    assert!(audit::open(&url, &cluster()).await.is_ok());
    let other = ClusterName::new("other").unwrap();
    let refused = audit::open(&url, &other).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("has no oplogs here"), "{refused}");
}
