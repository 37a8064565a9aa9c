//! What is archived is proven or refuted like the rest, on every backend that keeps anything.

#![cfg(all(feature = "sqlite", feature = "postgres", feature = "redis"))]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod backends;
mod oplogs;

use backends::{Backend, Change, checked, on_every_backend};
use leasehold_model::AgentId;
use leasehold_persistence::oplog::audit::{Depth, Layers, Options, Report, Rule, check};
use leasehold_persistence::oplog::layers::blobs::{BlobCall, MemoryBlobs};
use leasehold_persistence::oplog::layers::{Archive, Chunk, Content, Layered, Upto, chunk};
use leasehold_persistence::oplog::memory::Fault;
use leasehold_persistence::oplog::{Append, EntryIndex, EntryKind, Error, NewEntry, OplogStore, Writer};
use oplogs::{SHARD, agent, fill, keyed, one, writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

on_every_backend! {
    an_oplog_in_two_layers_is_proven_and_counted_and_dumped_as_one;
    /// F3, F4 in the archive layer.
    each_harm_to_the_archive_layer_is_found;
    /// F1, F4.
    an_archived_entry_above_its_record_or_of_a_rival_is_found;
    objects_that_are_lost_are_found_and_those_that_are_away_leave_it_undecided;
    a_store_that_archives_while_it_is_read_is_proven;
}

async fn move_upto(layered: &Layered, agent: &AgentId, writer: Writer, index: u64) -> u64 {
    let upto = Upto { index: EntryIndex(index), least: 1 };
    layered.archive(agent, SHARD, writer, upto).await.unwrap().entries
}

/// Six entries of epoch 5 with the keys 1 to 6, of which 1, 2 and 3, 4 are archived.
async fn half_archived(layered: &Layered, agent: &AgentId) {
    fill(layered, agent, writer(5), 6).await;
    assert_eq!(move_upto(layered, agent, writer(5), 3).await, 2);
    assert_eq!(move_upto(layered, agent, writer(5), 5).await, 2);
}

async fn an_oplog_in_two_layers_is_proven_and_counted_and_dumped_as_one(backend: &dyn Backend) {
    let layered = Layered::in_list(backend.store().await);
    half_archived(&layered, &agent("a")).await;
    let snapshot = NewEntry { kind: EntryKind::Snapshot, key: None, body: vec![7; 10] };
    let append = Append { agent: agent("a"), writer: writer(5), expected: EntryIndex(7), entries: vec![snapshot] };
    layered.append(append).await.unwrap();
    fill(&layered, &agent("whole"), writer(5), 9).await;
    assert_eq!(move_upto(&layered, &agent("whole"), writer(5), 99).await, 9);
    fill(&layered, &agent("gone"), writer(5), 3).await;
    assert_eq!(move_upto(&layered, &agent("gone"), writer(5), 3).await, 2);
    layered.delete(&agent("gone"), writer(5), EntryIndex(4)).await.unwrap();
    for moved in [0, 3] {
        assert_eq!(move_upto(&layered, &agent("a"), writer(5), 5 + moved).await, moved);
        let report = checked(backend, &Options::default()).await;
        assert!(report.proven(), "{report:#?}");
        let total = report.total;
        assert_eq!((total.oplogs, total.deleted, total.entries, total.snapshots), (2, 1, 16, 1));
        assert_eq!((total.bytes, total.archived, total.chunks), (25, 13 + moved, 3 + moved / 3));
        assert!(total.stored > 3 * 40, "{total:?}");
        let audit = backend.audit().await;
        for from in 1..=7_u64 {
            let mut reader = Layers::indexed(&*audit).read("counter/a", EntryIndex(from), Depth::Bodies);
            let mut bodies = Vec::new();
            while let Some(part) = reader.part(2).await.unwrap() {
                let archived = part.chunks.into_iter().flat_map(|chunk| chunk.unwrap().entries.unwrap());
                let read = archived.chain(part.entries.into_iter().map(|read| read.unwrap()));
                bodies.extend(read.map(|read| (read.entry.index.0, read.entry.entry.body)));
            }
            let body = |at: u64| if at == 7 { vec![7; 10] } else { at.to_string().into_bytes() };
            assert_eq!(bodies, (from..=7).map(|at| (at, body(at))).collect::<Vec<_>>(), "from {from}");
        }
    }
}

const CHUNKS: &str = "leasehold:c:{counter/a}:chunks";
const ORDER: &str = "leasehold:c:{counter/a}:chunk-order";
const OPLOG: &str = "leasehold:c:{counter/a}:oplog";

/// The same statement for both databases.
fn sql(what: &'static str, both: &'static str, redis: &[&str]) -> Change {
    Change { what, sqlite: both, postgres: both, redis: Change::words(redis) }
}

/// A chunk that is not what it was.
fn harms_to_a_chunk() -> Vec<(Change, Rule, u64)> {
    let damaged = "local v = redis.call('HGET', KEYS[1], '1') redis.call('HSET', KEYS[1], '1', v .. 'x')";
    let swapped = "local v = redis.call('HGET', KEYS[1], '1') redis.call('HSET', KEYS[1], '3', v)";
    let anothers =
        "local v = redis.call('HGET', 'leasehold:c:{counter/b}:chunks', '1') redis.call('HSET', KEYS[1], '1', v)";
    vec![
        (
            Change {
                what: "a chunk is damaged",
                sqlite: "UPDATE chunks SET content = CAST(content || x'00' AS BLOB) WHERE first = 1",
                postgres: "UPDATE chunks SET content = content || '\\x00' WHERE first = 1",
                redis: Change::words(&["EVAL", damaged, "1", CHUNKS]),
            },
            Rule::Readable,
            1,
        ),
        (
            sql(
                "a chunk is another one of the same oplog",
                "UPDATE chunks SET content = (SELECT o.content FROM chunks o WHERE o.oplog = chunks.oplog AND o.first = 1) \
                 WHERE first = 3",
                &["EVAL", swapped, "1", CHUNKS],
            ),
            Rule::Readable,
            3,
        ),
        (
            sql(
                "a chunk is another agent's",
                "UPDATE chunks SET content = (SELECT o.content FROM chunks o JOIN records r ON r.id = o.oplog \
                 WHERE r.agent = 'counter/b' AND o.first = 1) WHERE first = 1",
                &["EVAL", anothers, "1", CHUNKS],
            ),
            Rule::Readable,
            1,
        ),
    ]
}

/// A list, a seam or a key that is not what it was.
fn harms_to_the_list() -> Vec<(Change, Rule, u64)> {
    vec![
        (
            sql("the first chunk is not in the list", "DELETE FROM chunks WHERE first = 1", &["ZREM", ORDER, "1"]),
            Rule::Contiguous,
            3,
        ),
        (
            sql("the last chunk is not in the list", "DELETE FROM chunks WHERE first = 3", &["ZREM", ORDER, "3"]),
            Rule::Contiguous,
            3,
        ),
        (
            sql(
                "the primary layer begins behind the list's end",
                "UPDATE records SET primary_from = 6",
                &["HSET", OPLOG, "primary", "6"],
            ),
            Rule::Contiguous,
            5,
        ),
        (
            sql(
                "the primary layer begins before the list's end",
                "UPDATE records SET primary_from = 4",
                &["HSET", OPLOG, "primary", "4"],
            ),
            Rule::Contiguous,
            5,
        ),
        (
            sql(
                "an archived entry's key leads nowhere",
                "DELETE FROM entries WHERE idx = 2",
                &["HDEL", "leasehold:c:{counter/a}:keys", "2"],
            ),
            Rule::KeysFound,
            2,
        ),
    ]
}

/// As if nobody had ever written.
fn everything_gone() -> Change {
    let script = "for _, key in ipairs(redis.call('KEYS', 'leasehold:c:[{r]*')) do redis.call('DEL', key) end";
    let all = "DELETE FROM records; DELETE FROM entries; DELETE FROM chunks";
    sql("everything is gone", all, &["EVAL", script, "0"])
}

async fn each_harm_to_the_archive_layer_is_found(backend: &dyn Backend) {
    let (a, b) = (agent("a"), agent("b"));
    for (harm, rule, index) in harms_to_a_chunk().into_iter().chain(harms_to_the_list()) {
        // Its cache and its connections know nothing of what is gone.
        let layered = Layered::in_list(backend.store().await);
        half_archived(&layered, &a).await;
        half_archived(&layered, &b).await;
        assert!(checked(backend, &Options::default()).await.proven(), "before {}", harm.what);
        backend.suffer(&harm).await;
        let report = checked(backend, &Options::default()).await;
        let wanted = (rule, Some(index), Some(a.as_str()));
        let found = report.findings.iter().any(|found| (found.rule, found.index, found.agent.as_deref()) == wanted);
        assert!(found, "{}: {report:#?}", harm.what);
        backend.suffer(&everything_gone()).await;
    }
}

async fn an_archived_entry_above_its_record_or_of_a_rival_is_found(backend: &dyn Backend) {
    let store = backend.store().await;
    for (name, writers, rule) in [
        ("fallen", [writer(5), writer(4)], Rule::EpochsNeverFall),
        ("above", [writer(5), writer(9)], Rule::RecordNotBelow),
        ("rival", [writer(5), oplogs::rival(5, 99)], Rule::OneWriterPerEpoch),
    ] {
        let agent = agent(name);
        fill(&*store, &agent, writer(5), 3).await;
        let entries = [keyed("1"), keyed("2")];
        let bytes = chunk::encode(&agent, EntryIndex(1), writers.into_iter().zip(&entries));
        let forged = Chunk { first: EntryIndex(1), last: EntryIndex(2), content: Content::Inline(bytes) };
        assert_eq!(store.move_out(&agent, writer(5), forged).await, Ok(()));
        let options = Options { only: vec![agent.to_string()], ..Options::default() };
        let report = checked(backend, &options).await;
        let found = report.findings.iter().find(|finding| finding.rule == rule);
        assert!(found.is_some_and(|found| found.index == Some(2)), "{name}: {report:#?}");
    }
}

async fn objects_that_are_lost_are_found_and_those_that_are_away_leave_it_undecided(backend: &dyn Backend) {
    let blobs = Arc::new(MemoryBlobs::default());
    let layered = Layered::in_blobs(backend.store().await, Arc::clone(&blobs) as _);
    half_archived(&layered, &agent("a")).await;
    let audit = backend.audit().await;
    let proven = async |blobs: Option<&MemoryBlobs>| -> Report {
        let layers = Layers { store: &*audit, blobs: blobs.map(|blobs| blobs as _) };
        check(layers, &Options::default(), &mut |_| ()).await.unwrap()
    };
    assert!(proven(Some(&blobs)).await.proven());
    let unnamed = proven(None).await;
    assert_eq!((unnamed.found, unnamed.proven(), unnamed.left_unread), (0, false, 1), "{unnamed:#?}");
    assert_eq!((unnamed.unread[0].0.as_str(), unnamed.total.entries), ("counter/a", 6));
    assert!(unnamed.unread[0].1.contains("not named"), "{unnamed:#?}");
    blobs.script(BlobCall::Get, Fault::Refuse);
    let away = proven(Some(&blobs)).await;
    assert_eq!((away.found, away.proven(), away.left_unread), (0, false, 1), "{away:#?}");
    let lost = proven(Some(&MemoryBlobs::default())).await;
    assert_eq!((lost.found, lost.left_unread), (2, 0), "{lost:#?}");
    let told = &lost.findings[1];
    assert_eq!((told.rule, told.index), (Rule::Readable, Some(3)));
    assert!(told.what.contains("is not there"), "{told:?}");
}

/// What a move, a deletion and a change of owners do under the reader is never taken for damage.
async fn a_store_that_archives_while_it_is_read_is_proven(backend: &dyn Backend) {
    let layered = Arc::new(Layered::in_list(backend.store().await));
    let stop = Arc::new(AtomicBool::new(false));
    let at_work: Vec<_> = (0..4)
        .map(|who| {
            let (layered, stop, busy) = (Arc::clone(&layered), Arc::clone(&stop), agent(format!("busy-{who}")));
            tokio::spawn(async move {
                let mut epoch = 1;
                while !stop.load(Ordering::SeqCst) {
                    epoch += 1;
                    let mut next = layered.claim(&busy, SHARD, writer(epoch)).await.unwrap().next;
                    for _ in 0..8 {
                        let entries = (0..100).map(|n| keyed(&format!("{}-{n}", next.0))).collect();
                        let append = Append { agent: busy.clone(), writer: writer(epoch), expected: next, entries };
                        next = layered.append(append).await.unwrap();
                        let upto = Upto { index: EntryIndex(next.0 - 20), least: 30 };
                        layered.archive(&busy, SHARD, writer(epoch), upto).await.unwrap();
                    }
                    if epoch % 3 == who % 3 {
                        layered.delete(&busy, writer(epoch), next).await.unwrap();
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
    let report = checked(backend, &Options::default()).await;
    assert!(report.proven(), "{report:#?}");
    let stale = layered.append(one(&agent("busy-0"), writer(1), 1, "x")).await;
    assert!(matches!(stale, Err(Error::Fenced { .. })));
}
