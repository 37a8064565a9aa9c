//! The archive layer while the generations of a SQLite store change.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod oplogs;

use leasehold_persistence::oplog::audit::{Layers, Options, check};
use leasehold_persistence::oplog::layers::{Archive, Layered, Upto};
use leasehold_persistence::oplog::sqlite::{Point, Settings, SqliteAudit};
use leasehold_persistence::oplog::{
    Append, EntryIndex, EntryKind, Error, Gate, NewEntry, OplogStore, SqliteOplogStore,
};
use oplogs::{PATIENCE, SHARD, agent, fill, keys, one, says, writer};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// All that there is.
const EVERYTHING: Upto = Upto { index: EntryIndex(i64::MAX as u64), least: 1 };

fn prompt() -> Settings {
    Settings { step_around_after: Duration::from_millis(200), ..Settings::default() }
}

async fn open(folder: &Path, settings: Settings) -> Arc<SqliteOplogStore> {
    Arc::new(SqliteOplogStore::open_with(folder, settings).await.unwrap())
}

/// Whoever holds the write lock of generation 1 without ever committing.
async fn frozen(folder: &Path) -> SqliteConnection {
    let mut lock = SqliteConnectOptions::new().filename(folder.join("gen-000001.db")).connect().await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut lock).await.unwrap();
    lock
}

/// What `append` came to, stopped between its commit to generation 1 and its check until the gate opens.
async fn committed_and_not_checked(
    folder: &Path,
    append: Append,
) -> (Gate, Arc<SqliteOplogStore>, JoinHandle<Result<EntryIndex, Error>>) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let probe = move |point| {
        let gate = at_gate.clone();
        Box::pin(async move {
            if point == Point::Committed {
                gate.pass().await;
            }
        }) as futures::future::BoxFuture<'static, ()>
    };
    let slow = open(folder, Settings { probe: Some(Arc::new(probe)), ..Settings::default() }).await;
    let held = oplogs::appending(&slow, append);
    timeout(PATIENCE, gate.reached()).await.unwrap();
    (gate, slow, held)
}

/// The copy has the list of chunks, the stubs and where the layers meet, and the schema that writes them.
#[tokio::test]
async fn a_new_generation_has_the_archive_layer_too_and_goes_on_with_it() {
    let (folder, a, ours) = (TempDir::new().unwrap(), agent("a"), writer(5));
    let layered = Layered::in_list(open(folder.path(), prompt()).await);
    fill(&layered, &a, ours, 6).await;
    let upto = Upto { index: EntryIndex(5), least: 1 };
    assert_eq!(layered.archive(&a, SHARD, ours, upto).await.unwrap().entries, 4);
    let _lock = frozen(folder.path()).await;
    assert_eq!(layered.append(one(&a, ours, 7, "7")).await, Ok(EntryIndex(8)), "steps around the lock");
    assert!(folder.path().join("gen-000002.db").exists());
    let fresh = Layered::in_list(open(folder.path(), prompt()).await);
    assert_eq!(keys(&fresh, &a, ours).await, ["1", "2", "3", "4", "5", "6", "7"]);
    says(&fresh.append(one(&a, ours, 8, "2")).await.unwrap_err(), &["\"2\"", "already"]);
    assert_eq!(fresh.archive(&a, SHARD, ours, EVERYTHING).await.unwrap().entries, 3);
    assert_eq!(keys(&fresh, &a, ours).await.len(), 7);
    let audit = SqliteAudit::open(folder.path()).await.unwrap();
    let report = check(Layers::indexed(&audit), &Options::default(), &mut |_| ()).await.unwrap();
    assert_eq!((audit.generation().await, report.proven(), report.total.archived), (2, true, 7), "{report:#?}");
}

/// F7: it was committed, copied, and archived before its owner could look: it is neither refused nor written twice.
#[tokio::test]
async fn an_append_that_was_archived_before_it_was_checked_is_unknown_and_found_by_reading_back() {
    for key in [Some("4".to_owned()), None] {
        let (folder, a, ours) = (TempDir::new().unwrap(), agent("a"), writer(5));
        let other = Layered::in_list(open(folder.path(), prompt()).await);
        fill(&other, &a, ours, 3).await;
        let entries = vec![NewEntry { kind: EntryKind::Invocation, key, body: b"4".to_vec() }];
        let append = Append { agent: a.clone(), writer: ours, expected: EntryIndex(4), entries: entries.clone() };
        let (gate, slow, held) = committed_and_not_checked(folder.path(), append).await;
        let _lock = frozen(folder.path()).await;
        assert_eq!(other.archive(&a, SHARD, ours, EVERYTHING).await.unwrap().entries, 4, "steps around the lock");
        gate.release();
        let told = timeout(PATIENCE, held).await.unwrap().unwrap();
        assert!(matches!(&told, Err(Error::Unknown(what)) if what.contains("read them back")), "{told:?}");
        let stored = Layered::in_list(slow).read(&a, ours, EntryIndex(4), 9).await.unwrap();
        assert_eq!(
            stored.into_iter().map(|entry| (entry.writer, entry.entry)).collect::<Vec<_>>(),
            [(ours, entries[0].clone())]
        );
    }
}
