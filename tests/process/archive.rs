//! Archives of real executors: in a folder and in S3-compatible storage, refused and away.

use crate::processes::{Place, Process, text, wait_for};
use leasehold_harness::S3;
use std::fs;
use std::path::Path;

/// Files below `folder` that are chunks.
fn chunks(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let count = |entry: fs::DirEntry| {
        let path = entry.path();
        if path.is_dir() { chunks(&path) } else { usize::from(path.extension().is_some_and(|ext| ext == "chunk")) }
    };
    entries.filter_map(Result::ok).map(count).sum()
}

fn settings(list: &[&str]) -> Vec<String> {
    list.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]).collect()
}

fn executor(place: &Place, manager: &str, name: &str, list: &[&str]) -> Process {
    let more = settings(list);
    place.executor(manager, name, &more.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Moves soon: all but one entry.
const SOON: [&str; 3] = ["oplog.archive.to=blobs", "oplog.archive.after_entries=1", "oplog.snapshot_every=1000000"];

/// An agent with ten entries and a key of the first of them.
fn filled(place: &Place, manager: &str) {
    for number in 0..10 {
        let key = format!("key-{number}");
        let args = ["invoke", "--manager", manager, "counter/a", "increment", "--idempotency-key", &key];
        let output = place.executor_command(&args);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

fn again(place: &Place, manager: &str) -> String {
    let args = ["invoke", "--manager", manager, "counter/a", "increment", "--idempotency-key", "key-0"];
    let output = place.executor_command(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// Spec "Layers": the next owner replays what another one moved, and answers a repeated call from there.
#[test]
fn an_agent_whose_entries_are_in_a_folder_is_recovered_from_there_by_the_next_owner() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let url = format!("oplog.archive.url=file://{}/archive", place.path().display());
    let list = [SOON.as_slice(), &[&url]].concat();
    let mut first = executor(&place, &address, "executor-1", &list);
    place.served(&address, 1);
    filled(&place, &address);
    let archive = place.path().join("archive");
    wait_for("chunks in the archive", || (chunks(&archive) > 0).then_some(()));
    first.kill();
    let _second = executor(&place, &address, "executor-2", &list);
    assert_eq!(place.invoke(&address, "counter/a", "increment")["payload"], serde_json::json!({"value": 11}));
    assert_eq!(again(&place, &address), r#"{"value":1}"#);
    let dump = |list: &[&str]| {
        let more = settings(list);
        let args = ["oplog", "dump", "counter/a", "--set", "oplog.url=sqlite:oplogs"].into_iter();
        place.executor_command(&args.chain(more.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    let (all, lost) = (dump(&[&url]), dump(&[]));
    assert_eq!(text(&all.stdout).lines().count(), 11, "{}", text(&all.stderr));
    assert_eq!(lost.status.code(), Some(1), "{}", text(&lost.stderr));
    assert!(text(&lost.stdout).contains("which was not named: set oplog.archive.url"), "{}", text(&lost.stdout));
}

/// A key in a file, never in a log; the storage goes away and comes back under a running executor.
#[test]
fn an_archive_on_s3_may_be_away_at_the_start_and_later() {
    let place = Place::new();
    let mut server = S3::start();
    let keys = format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n", S3::KEY, S3::SECRET);
    fs::write(place.path().join("keys"), keys).unwrap();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let endpoint = format!("oplog.archive.endpoint={}", server.endpoint());
    let more = [
        "oplog.archive.url=s3://bucket/some",
        &endpoint,
        "oplog.archive.credentials_file=keys",
        "oplog.archive.request_timeout=500ms",
    ];
    let list = [SOON.as_slice(), &more].concat();
    server.stop();
    let mut first = executor(&place, &address, "executor-1", &list);
    first.logged("the archive cannot be used now: entries stay where they are until it can be", "error");
    place.served(&address, 1);
    filled(&place, &address);
    server.start_again();
    first.kill();
    let mut second = executor(&place, &address, "executor-2", &list);
    assert_eq!(place.invoke(&address, "counter/a", "increment")["payload"], serde_json::json!({"value": 11}));
    wait_for("chunks in the bucket", || (!server.keys().is_empty()).then_some(()));
    assert!(server.keys().iter().all(|key| key.starts_with("some/leasehold/")), "{:?}", server.keys());
    server.stop();
    let output = place.executor_command(&["invoke", "--manager", &address, "counter/a", "increment"]);
    assert!(output.status.success(), "what is in memory is written: {}", text(&output.stderr));
    server.start_again();
    second.kill();
    let third = executor(&place, &address, "executor-3", &list);
    assert_eq!(again(&place, &address), r#"{"value":1}"#);
    for log in [first.log(), second.log(), third.log()] {
        assert!(!log.contains(S3::SECRET), "{log}");
    }
}

/// Spec "Backends": combinations that cannot work are refused at start.
#[test]
fn an_archive_that_cannot_work_ends_the_start_with_78_and_what_to_do() {
    let place = Place::new();
    let server = S3::start();
    let keys = |id: &str| format!("aws_access_key_id = {id}\naws_secret_access_key = {}\n", S3::SECRET);
    fs::write(place.path().join("keys"), keys(S3::KEY)).unwrap();
    fs::write(place.path().join("nobody"), keys("nobody")).unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    let endpoint = format!("oplog.archive.endpoint={}", server.endpoint());
    let below = format!("oplog.archive.url=file://{}/file/archive", place.path().display());
    let credentials = |name: &str| format!("oplog.archive.credentials_file={name}");
    let (right, nobody, absent) = (credentials("keys"), credentials("nobody"), credentials("absent"));
    let bucket = "oplog.archive.url=s3://bucket/some";
    for (list, parts) in [
        (vec![], ["oplog.archive.url: not set", "file:///FOLDER or s3://BUCKET/PREFIX"]),
        (vec![bucket, "oplog.url=memory:"], ["oplog.archive.to", "set oplog.archive.to to list or none"]),
        (vec![below.as_str()], ["oplog.archive.url = file://", "it must be one, or one that can be made"]),
        (vec![bucket, &endpoint, &nobody], ["InvalidAccessKeyId", "correct the credentials, which are from nobody"]),
        (vec![bucket, &endpoint, &absent], ["oplog.archive.url = s3://bucket/some", "the credentials in absent"]),
        (vec!["oplog.archive.url=s3://missing", &endpoint, &right], ["NoSuchBucket", "there is no bucket missing"]),
    ] {
        let list = [&["oplog.archive.to=blobs"], list.as_slice()].concat();
        let mut executor = executor(&place, "127.0.0.1:1", "executor-1", &list);
        let (ended, log) = (executor.ended(), executor.log());
        assert_eq!(ended.code(), Some(78), "{list:?}: {log}");
        assert!(parts.iter().all(|part| log.contains(part)), "{list:?}: {log}");
        assert!(!log.contains(S3::SECRET), "{log}");
    }
}
