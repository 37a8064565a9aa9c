//! What each target does with bytes. The corpus is played through the same functions by `tests/corpus`, without the fuzzer.
#![allow(dead_code, reason = "each target uses one of them")]

use leasehold::agents::{Decision, shipped};
use leasehold_actors::executor::oplog_entry::{Body, EntryId};
use leasehold_config::{Configuration, ExecutorConfig, GatewayConfig, ManagerConfig, Sources, load};
use leasehold_model::archive::{ArchiveUrl, Endpoint};
use leasehold_persistence::oplog::EntryKind;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

/// Does what it does with bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is its corpus' too.
pub const ALL: [(&str, Target); 6] = [
    ("messages", messages),
    ("stored", stored),
    ("archive", archive),
    ("entries", entries),
    ("configuration", configuration),
    ("agents", agents),
];

/// Bytes as any message of `leasehold.v1`, the first of them says which.
pub fn messages(bytes: &[u8]) {
    leasehold_rpc::fuzzing::decode_any(bytes);
}

/// Bytes as any value in etcd or Redis, the first of them says which.
pub fn stored(bytes: &[u8]) {
    leasehold_persistence::fuzzing::decode_any(bytes);
}

/// Bytes as a chunk of archived entries, as an object's path, and as the URL and the endpoint of an archive.
pub fn archive(bytes: &[u8]) {
    leasehold_persistence::fuzzing::decode_archive(bytes);
    let text = String::from_utf8_lossy(bytes);
    if let Ok(url) = ArchiveUrl::parse(&text) {
        assert_eq!(ArchiveUrl::parse(&url.to_string()), Ok(url));
    }
    if let Ok(endpoint) = Endpoint::parse(&text) {
        assert_eq!(Endpoint::parse(&endpoint.to_string()), Ok(endpoint));
    }
}

/// Bytes as the body of an oplog's entry.
pub fn entries(bytes: &[u8]) {
    for kind in [EntryKind::Invocation, EntryKind::Snapshot] {
        let Ok(body) = Body::decode(kind, bytes) else { continue };
        assert_eq!(body.kind(), kind);
        assert_eq!(Body::decode(kind, &body.encode(EntryId::new(1, 2))), Ok(body));
    }
}

/// Bytes as a configuration: as a file, each line as a flag, the whole as a variable of the environment.
pub fn configuration(bytes: &[u8]) {
    loaded::<ManagerConfig>(bytes);
    loaded::<ExecutorConfig>(bytes);
    loaded::<GatewayConfig>(bytes);
}

fn loaded<T: Configuration>(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in memory");
    file.write_all(bytes).expect("room in memory");
    let text = String::from_utf8_lossy(bytes);
    let flags: Vec<String> = text.lines().take(64).map(str::to_owned).collect();
    let variable = |name: &str| (OsString::from(name), OsString::from_vec(bytes.to_vec()));
    let sources = [
        Sources { file: Some(file.path().to_owned()), ..Sources::default() },
        Sources { overrides: flags, ..Sources::default() },
        Sources {
            env: vec![variable("LEASEHOLD__LEASE__DURATION"), variable("LEASEHOLD__STORE__URL")],
            ..Sources::default()
        },
    ];
    for source in sources {
        match load::<T>(&source) {
            Ok(loaded) => assert!(!loaded.render_show().is_empty()),
            Err(error) => assert!(!error.to_string().is_empty(), "a refusal says what is wrong"),
        }
    }
}

/// Lines as calls of an agent (`METHOD JSON`), as events and as snapshots of its type, which the first byte chooses; and the whole
/// as the answer of an application behind the bridge.
pub fn agents(bytes: &[u8]) {
    let _ = leasehold::bridge::decision(bytes);
    let Some((first, rest)) = bytes.split_first() else { return };
    let types = shipped();
    let kind = &types[usize::from(*first) % types.len()];
    let mut state = kind.start("key");
    for line in rest.split(|byte| *byte == b'\n').take(64) {
        let (method, payload) = match line.iter().position(|byte| *byte == b' ') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &line[line.len()..]),
        };
        let Ok(payload) = serde_json::from_slice(payload) else {
            // As a snapshot: refused ones may leave anything, so it is tried on another.
            let _ = kind.start("key").restore(line);
            continue;
        };
        let _ = kind.start("key").apply(&payload);
        let Decision::Append { events, .. } = state.decide(&String::from_utf8_lossy(method), &payload) else {
            continue;
        };
        for event in &events {
            state.apply(event).expect("what was decided can be applied");
        }
        let snapshot = state.snapshot();
        let mut again = kind.start("key");
        again.restore(&snapshot).expect("what was written is read");
        assert_eq!(again.snapshot(), snapshot);
    }
}
