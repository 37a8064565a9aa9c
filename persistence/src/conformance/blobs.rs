//! What every [`Blobs`] must do. [`blobs_conformance!`] makes tests of all of it:
//!
//! ```ignore
//! leasehold_persistence::blobs_conformance!(MyFixture::new());
//! ```

use super::oplog::{agent, writer};
use crate::oplog::layers::blobs::{Blobs, MemoryBlobs};
use crate::oplog::layers::names::{ObjectName, ObjectPath, agent_folder, shard_folder};
use crate::oplog::{EntryIndex, Error};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use leasehold_model::{AgentId, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Access to one place, empty at first.
#[async_trait]
pub trait BlobsFixture: Send + Sync {
    /// Another process's handle on the objects of this cluster.
    async fn open(&self, cluster: &str) -> Arc<dyn Blobs>;

    /// From now on the place is away from every handle, or there again.
    async fn set_away(&self, away: bool);

    /// How long a call may take.
    fn patience(&self) -> Duration;
}

/// A place in memory.
#[derive(Debug, Default)]
pub struct MemoryPlace {
    clusters: Mutex<BTreeMap<String, MemoryBlobs>>,
    handles: Mutex<Vec<Arc<MemoryBlobs>>>,
}

/// Nothing is left half changed by a panic here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl BlobsFixture for MemoryPlace {
    async fn open(&self, cluster: &str) -> Arc<dyn Blobs> {
        let handle = Arc::new(lock(&self.clusters).entry(cluster.to_owned()).or_default().handle());
        lock(&self.handles).push(Arc::clone(&handle));
        handle
    }

    async fn set_away(&self, away: bool) {
        lock(&self.handles).iter().for_each(|handle| handle.set_away(away));
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// Makes a tokio test of every test of blob storage. The argument makes a fixture over an empty place.
#[macro_export]
macro_rules! blobs_conformance {
    ($fixture:expr) => {
        $crate::blobs_conformance! { $fixture;
            an_object_is_read_as_it_was_put_by_every_handle,
            an_absent_object_is_none_and_may_be_deleted,
            an_object_is_never_replaced,
            a_deleted_object_is_gone_and_others_are_not,
            a_list_has_what_is_in_its_folder_and_nothing_else,
            more_objects_than_a_page_are_listed,
            a_large_object_is_read_as_it_was_put,
            objects_of_strange_agents_are_found_by_their_paths,
            clusters_in_one_place_do_not_see_each_other,
            many_calls_at_once_are_all_answered,
            a_place_that_is_away_is_unavailable_in_time_and_works_again_afterwards,
        }
    };
    ($fixture:expr; $($test:ident,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                $crate::conformance::blobs::$test(&$fixture).await;
            }
        )*
    };
}

/// A cluster.
const CLUSTER: &str = "first";

/// What a test may take beyond the calls it waits for.
const SLACK: Duration = Duration::from_secs(20);

/// The paths in `folder`, in order.
async fn listed(blobs: &dyn Blobs, folder: &str) -> Vec<String> {
    let paths: Vec<_> = blobs.list(folder).collect().await;
    let mut paths = paths.into_iter().collect::<Result<Vec<_>, _>>().expect("a list");
    paths.sort();
    paths
}

async fn put(blobs: &dyn Blobs, path: &str, bytes: &[u8]) {
    blobs.put(path, bytes.to_vec()).await.unwrap_or_else(|error| panic!("{path}: {error}"));
}

async fn bytes(blobs: &dyn Blobs, path: &str) -> Option<Vec<u8>> {
    blobs.get(path).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The path of a chunk.
fn path(agent: &AgentId, first: u64) -> ObjectPath {
    let name = ObjectName { first: EntryIndex(first), last: EntryIndex(first + 9), writer: writer(5, 7), nonce: 0 };
    ObjectPath { shard: ShardId(7), agent: agent.clone(), name }
}

/// What one process put, others read; also no bytes at all.
pub async fn an_object_is_read_as_it_was_put_by_every_handle(fixture: &dyn BlobsFixture) {
    let (one, other) = (fixture.open(CLUSTER).await, fixture.open(CLUSTER).await);
    let all: Vec<u8> = (0..=255).collect();
    for (path, content) in [("7/a/all", all.as_slice()), ("7/a/none", b""), ("object", b"x")] {
        put(&*one, path, content).await;
        assert_eq!(bytes(&*other, path).await.as_deref(), Some(content), "{path}");
    }
}

/// So is one in a folder that was never there.
pub async fn an_absent_object_is_none_and_may_be_deleted(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    for path in ["absent", "7/a/absent"] {
        assert_eq!(blobs.get(path).await, Ok(None), "{path}");
        assert_eq!(blobs.delete(path).await, Ok(()), "{path}");
    }
    assert_eq!(listed(&*blobs, "7/").await, <[String; 0]>::default());
}

/// Putting the same again is fine, as after an answer that was lost.
pub async fn an_object_is_never_replaced(fixture: &dyn BlobsFixture) {
    let (one, other) = (fixture.open(CLUSTER).await, fixture.open(CLUSTER).await);
    put(&*one, "7/a/object", b"first").await;
    put(&*other, "7/a/object", b"first").await;
    for second in [b"other".as_slice(), b"fir", b""] {
        let refused = other.put("7/a/object", second.to_vec()).await;
        let Err(Error::Unavailable(told)) = &refused else { panic!("{refused:?}") };
        assert!(told.contains("7/a/object") && told.contains("not replaced"), "{told}");
        assert_eq!(bytes(&*one, "7/a/object").await.as_deref(), Some(b"first".as_slice()));
    }
    let racers = (0..8_u8).map(|racer| {
        let blobs = if racer % 2 == 0 { Arc::clone(&one) } else { Arc::clone(&other) };
        async move { blobs.put("7/a/raced", vec![racer; 1000]).await.is_ok().then_some(racer) }
    });
    let won: Vec<_> = futures::future::join_all(racers).await.into_iter().flatten().collect();
    let there = bytes(&*one, "7/a/raced").await.expect("one of them");
    assert_eq!((won.as_slice(), there), (&[won[0]][..], vec![won[0]; 1000]), "one of them won");
}

/// For every handle.
pub async fn a_deleted_object_is_gone_and_others_are_not(fixture: &dyn BlobsFixture) {
    let (one, other) = (fixture.open(CLUSTER).await, fixture.open(CLUSTER).await);
    for path in ["7/a/one", "7/a/two", "8/a/one"] {
        put(&*one, path, b"x").await;
    }
    other.delete("7/a/one").await.expect("a deletion");
    assert_eq!(bytes(&*one, "7/a/one").await, None);
    assert_eq!(listed(&*one, "7/").await, ["7/a/two"]);
    other.delete("7/a/two").await.expect("a deletion");
    assert_eq!(listed(&*one, "").await, ["8/a/one"]);
    put(&*one, "7/a/three", b"x").await;
    assert_eq!(listed(&*other, "7/a/").await, ["7/a/three"], "a folder that became empty is used again");
}

/// Shard 7 is not shard 70, and agent `a` not agent `ab`.
pub async fn a_list_has_what_is_in_its_folder_and_nothing_else(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    for path in ["7/a/1", "7/a/2", "7/ab/1", "7/a=2f/1", "70/a/1", "77"] {
        put(&*blobs, path, b"x").await;
    }
    assert_eq!(listed(&*blobs, "7/").await, ["7/a/1", "7/a/2", "7/a=2f/1", "7/ab/1"]);
    assert_eq!(listed(&*blobs, "7/a/").await, ["7/a/1", "7/a/2"]);
    assert_eq!(listed(&*blobs, "").await.len(), 6);
    assert_eq!(listed(&*blobs, "8/").await, <[String; 0]>::default());
}

/// A page of S3 has 1,000.
pub async fn more_objects_than_a_page_are_listed(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    let paths: Vec<String> = (0..2100).map(|number| format!("7/a/{number:04}")).collect();
    let puts = paths.iter().map(|path| blobs.put(path, b"x".to_vec()));
    let outcomes: Vec<_> = stream::iter(puts).buffer_unordered(32).collect().await;
    assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    assert_eq!(listed(&*blobs, "7/").await, paths);
}

/// More than any chunk that a move makes of usual entries.
pub async fn a_large_object_is_read_as_it_was_put(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    let mut state = 1_u32;
    let large: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    })
    .take(8 << 20)
    .collect();
    put(&*blobs, "7/a/large", &large).await;
    assert!(bytes(&*blobs, "7/a/large").await.as_ref() == Some(&large));
}

/// Whatever stands in an agent's id, and however long it is.
pub async fn objects_of_strange_agents_are_found_by_their_paths(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    let long = "x".repeat(500);
    let ids = ["a", "A", "..", "a/../b", "a b", "a%2fb", "a#1", "ü€😀", "a+b=c&d?e", "*", "\\", &long];
    let agents: Vec<_> = ids.iter().map(agent).collect();
    for agent in &agents {
        put(&*blobs, &path(agent, 1).to_string(), agent.as_str().as_bytes()).await;
    }
    for agent in &agents {
        let own = path(agent, 1);
        let found = bytes(&*blobs, &own.to_string()).await;
        assert_eq!(found.as_deref(), Some(agent.as_str().as_bytes()), "{own}");
        assert_eq!(listed(&*blobs, &agent_folder(own.shard, agent)).await, [own.to_string()]);
    }
    let all = listed(&*blobs, &shard_folder(ShardId(7))).await;
    let parsed: Option<BTreeSet<_>> = all.iter().map(|path| Some(ObjectPath::parse(path)?.agent)).collect();
    assert_eq!(parsed, Some(agents.into_iter().collect()));
}

/// Not even when their objects have the same paths.
pub async fn clusters_in_one_place_do_not_see_each_other(fixture: &dyn BlobsFixture) {
    let names = [CLUSTER, "second", "first.2", "f"];
    let mut handles = Vec::new();
    for name in names {
        let blobs = fixture.open(name).await;
        put(&*blobs, "7/a/object", name.as_bytes()).await;
        put(&*blobs, &format!("7/a/{name}"), b"x").await;
        handles.push(blobs);
    }
    for (name, blobs) in names.iter().zip(&handles) {
        assert_eq!(bytes(&**blobs, "7/a/object").await.as_deref(), Some(name.as_bytes()));
        let mut expected = [format!("7/a/{name}"), "7/a/object".to_owned()];
        expected.sort();
        assert_eq!(listed(&**blobs, "").await, expected);
    }
    handles[0].delete("7/a/object").await.expect("a deletion");
    for (name, blobs) in names.iter().zip(&handles).skip(1) {
        assert_eq!(bytes(&**blobs, "7/a/object").await.as_deref(), Some(name.as_bytes()));
    }
}

/// More than are let through at once.
pub async fn many_calls_at_once_are_all_answered(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    let calls = (0..100_u8).map(|number| {
        let blobs = Arc::clone(&blobs);
        async move {
            let path = format!("7/{number}/object");
            put(&*blobs, &path, &[number; 100]).await;
            assert_eq!(bytes(&*blobs, &path).await, Some(vec![number; 100]));
            if number % 2 == 0 {
                blobs.delete(&path).await.expect("a deletion");
            }
        }
    });
    futures::future::join_all(calls).await;
    assert_eq!(listed(&*blobs, "7/").await.len(), 50);
}

/// Each call ends within its deadline, and says which place it is.
pub async fn a_place_that_is_away_is_unavailable_in_time_and_works_again_afterwards(fixture: &dyn BlobsFixture) {
    let blobs = fixture.open(CLUSTER).await;
    put(&*blobs, "7/a/before", b"x").await;
    fixture.set_away(true).await;
    let began = Instant::now();
    let list = async {
        let mut paths = blobs.list("7/").collect::<Vec<_>>().await.into_iter();
        paths.try_for_each(|path| path.map(drop))
    };
    let outcomes: [Result<(), Error>; 4] = [
        blobs.put("7/a/object", b"x".to_vec()).await,
        blobs.get("7/a/before").await.map(|found| panic!("{found:?}")),
        blobs.delete("7/a/before").await,
        list.await,
    ];
    for outcome in outcomes {
        let Err(Error::Unavailable(told)) = &outcome else { panic!("{outcome:?}") };
        assert!(told.contains(&format!("archive {}", blobs.place())), "{told}");
    }
    assert!(began.elapsed() < 4 * fixture.patience() + SLACK, "{:?}", began.elapsed());
    fixture.set_away(false).await;
    assert_eq!(bytes(&*blobs, "7/a/before").await.as_deref(), Some(b"x".as_slice()));
    put(&*blobs, "7/a/object", b"x").await;
    assert_eq!(listed(&*blobs, "7/").await, ["7/a/before", "7/a/object"]);
}
