//! What only S3-compatible storage can suffer: refusals, held and lost answers, keys that are wrong, whatever else answers at its place.

#![cfg(all(feature = "files", feature = "s3"))]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod blob_places;

use blob_places::{Bucket, PATIENCE};
use futures::StreamExt;
use leasehold_harness::{Certificates, Proxy, Relay, S3, Strike, wait_until};
use leasehold_model::archive::{ArchiveUrl, Endpoint};
use leasehold_model::{AgentId, ClusterName, ExecutorId, ShardEpoch, ShardId};
use leasehold_persistence::oplog::layers::blobs::Blobs;
use leasehold_persistence::oplog::layers::names::ObjectPath;
use leasehold_persistence::oplog::layers::objects::{Credentials, MAX_CALLS, MAX_RETRIES, ObjectBlobs, Settings};
use leasehold_persistence::oplog::layers::{Archive, Layered, Upto};
use leasehold_persistence::oplog::{
    Append, EntryIndex, EntryKind, Error, MemoryOplogStore, NewEntry, OplogStore, Writer,
};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHARD: ShardId = ShardId(7);

async fn opened(url: &ArchiveUrl, settings: &Settings) -> ObjectBlobs {
    ObjectBlobs::open(url, &ClusterName::new("c").unwrap(), settings).await.unwrap()
}

async fn at(endpoint: &str) -> ObjectBlobs {
    opened(&Bucket::url(), &Bucket::settings(endpoint)).await
}

async fn list(blobs: &ObjectBlobs, folder: &str) -> Result<Vec<String>, Error> {
    blobs.list(folder).collect::<Vec<_>>().await.into_iter().collect()
}

/// What each sort of call says when it is unavailable.
async fn told(blobs: &ObjectBlobs) -> Vec<String> {
    let outcomes = [
        blobs.put("7/a/new", b"x".to_vec()).await,
        blobs.get("7/a/object").await.map(drop),
        blobs.delete("7/a/object").await,
        list(blobs, "7/").await.map(drop),
    ];
    let text = |outcome| match outcome {
        Err(Error::Unavailable(told)) => told,
        outcome => panic!("{outcome:?}"),
    };
    outcomes.into_iter().map(text).collect()
}

#[tokio::test]
async fn what_is_refused_for_good_is_told_with_what_to_do_and_without_secrets() {
    let server = S3::start();
    let right = Bucket::settings(&server.endpoint());
    let keys = |id: &str, secret: &str| Settings {
        credentials: Credentials::Keys { id: id.into(), secret: secret.into(), token: None },
        ..right.clone()
    };
    let absent = ArchiveUrl::parse("s3://absent/x").unwrap();
    let wrong = "wrong-secret-1";
    for (url, settings, parts) in [
        (Bucket::url(), keys("nobody", wrong), ["InvalidAccessKeyId", "correct the credentials", "access key nobody"]),
        (Bucket::url(), keys(S3::KEY, wrong), ["SignatureDoesNotMatch", "correct the credentials", "access key key"]),
        (
            Bucket::url(),
            keys(S3::STRANGER, S3::SECRET),
            ["AccessDenied", "access key stranger", "put, get, delete and list"],
        ),
        (absent, right.clone(), ["NoSuchBucket", "no bucket absent at http://127.0.0.1:", "create it"]),
    ] {
        let blobs = opened(&url, &settings).await;
        let began = Instant::now();
        let mut all = told(&blobs).await;
        assert!(began.elapsed() < PATIENCE, "none was repeated: {:?}", began.elapsed());
        let Err(Error::Invalid(checked)) = blobs.check().await else { panic!("{parts:?}") };
        all.push(checked);
        for told in all {
            let place = format!("archive {url}/c: ");
            for part in [place.as_str()].iter().chain(&parts) {
                assert!(told.contains(part), "{part}: {told}");
            }
            assert!(!told.contains(wrong) && !told.contains(S3::SECRET), "{told}");
        }
        assert!(!format!("{blobs:?} {settings:?}").contains("secret-"), "{blobs:?} {settings:?}");
    }
    assert_eq!(server.keys(), <[String; 0]>::default());
    assert_eq!(at(&server.endpoint()).await.check().await, Ok(()));
    assert_eq!(server.keys(), <[String; 0]>::default(), "the check leaves nothing behind");
}

#[tokio::test]
async fn a_slow_server_is_waited_for_until_the_deadline_and_no_longer() {
    let server = S3::start();
    server.insert("pre/fix/c/7/a/object", b"x");
    let span = Duration::from_millis(600);
    let settings = Settings { request_timeout: span, ..Bucket::settings(&server.endpoint()) };
    let blobs = opened(&Bucket::url(), &settings).await;
    for call in ["PutObject", "GetObject", "DeleteObject", "ListObjectsV2"] {
        // Each attempt.
        (0..=MAX_RETRIES).for_each(|_| server.strike(call, Strike::Hold));
    }
    let began = Instant::now();
    for told in told(&blobs).await {
        assert!(
            told.contains("within the request timeout of 600ms") || told.contains("no answer within 300ms"),
            "{told}"
        );
    }
    assert!((4 * span / 2..4 * span + Duration::from_secs(3)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// A connection that went dead unseen costs half of the deadline, not all of it.
#[tokio::test]
async fn a_read_that_hangs_is_tried_again_within_the_deadline() {
    let server = S3::start();
    server.insert("pre/fix/c/7/a/object", b"x");
    let blobs = at(&server.endpoint()).await;
    server.strike("GetObject", Strike::Hold);
    assert_eq!(blobs.get("7/a/object").await, Ok(Some(b"x".to_vec())));
    assert_eq!(server.calls("GetObject"), 2);
}

/// Case 26: what is overloaded is asked again, a bounded number of times.
#[tokio::test]
async fn a_busy_server_is_asked_again_and_given_up_after_a_few_times() {
    let server = S3::start();
    let blobs = at(&server.endpoint()).await;
    (0..2).for_each(|_| server.strike("PutObject", Strike::Refuse("SlowDown")));
    assert_eq!(blobs.put("7/a/object", b"x".to_vec()).await, Ok(()));
    assert_eq!(server.calls("PutObject"), 3);
    (0..100).for_each(|_| server.strike("GetObject", Strike::Refuse("InternalError")));
    let refused = blobs.get("7/a/object").await;
    assert!(matches!(&refused, Err(Error::Unavailable(told)) if told.contains("InternalError")), "{refused:?}");
    assert_eq!(server.calls("GetObject"), 1 + MAX_RETRIES);
}

/// Whoever waits for a place waits within its deadline. An attempt takes half of it: so each place is used twice, or once more at the very end.
#[tokio::test]
async fn no_more_calls_than_allowed_are_under_way_at_once() {
    let server = S3::start();
    let settings = Settings { request_timeout: Duration::from_millis(800), ..Bucket::settings(&server.endpoint()) };
    let blobs = opened(&Bucket::url(), &settings).await;
    (0..100).for_each(|_| server.strike("PutObject", Strike::Hold));
    let paths: Vec<_> = (0..100).map(|number| format!("7/a/{number}")).collect();
    let puts = paths.iter().map(|path| blobs.put(path, b"x".to_vec()));
    for outcome in futures::future::join_all(puts).await {
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    }
    let calls = server.calls("PutObject");
    assert!((MAX_CALLS..=3 * MAX_CALLS).contains(&calls), "{calls}");
}

#[tokio::test]
async fn an_answer_that_is_lost_is_asked_for_again_and_the_object_is_its_own() {
    let server = S3::start();
    let proxy = Proxy::before(server.port());
    let blobs = at(&format!("http://127.0.0.1:{}", proxy.port())).await;
    assert_eq!(blobs.get("7/a/object").await, Ok(None), "there is a connection");
    proxy.set(Relay::LoseAnswers);
    assert_eq!(blobs.put("7/a/object", b"mine".to_vec()).await, Ok(()));
    assert_eq!((proxy.held(), server.calls("PutObject")), (1, 2));
    assert_eq!(blobs.get("7/a/object").await, Ok(Some(b"mine".to_vec())));
}

#[tokio::test]
async fn storage_without_conditional_puts_is_used_all_the_same() {
    let server = S3::start();
    server.set_conditional(false);
    let blobs = at(&server.endpoint()).await;
    for path in ["7/a/one", "7/a/two"] {
        assert_eq!(blobs.put(path, path.into()).await, Ok(()));
        assert_eq!(blobs.get(path).await, Ok(Some(path.into())));
    }
    assert_eq!(server.calls("PutObject"), 3, "it is found out once");
}

#[tokio::test]
async fn keys_outside_of_the_cluster_s_folder_are_never_seen_or_changed() {
    let server = S3::start();
    let others =
        ["7/a/object", "pre/fix", "pre/fix/7/a/object", "pre/fix/c2/7/a/object", "pre/fixed/c/7/a/object", "z"];
    others.iter().for_each(|key| server.insert(key, b"other"));
    let blobs = at(&server.endpoint()).await;
    assert_eq!(list(&blobs, "").await, Ok(Vec::new()));
    blobs.put("7/a/object", b"own".to_vec()).await.unwrap();
    assert_eq!(list(&blobs, "").await, Ok(vec!["7/a/object".to_owned()]));
    blobs.delete("7/a/object").await.unwrap();
    let calls = server.calls("DeleteObject") + server.calls("PutObject");
    for path in ["", "/", "..", "../c2/7/a/object", "7/../../x", "a//b", "/7/a/object", "7/a/", "7/\0"] {
        for outcome in [blobs.put(path, b"x".to_vec()).await, blobs.get(path).await.map(drop), blobs.delete(path).await]
        {
            let told = format!("{:?}", outcome.unwrap_err());
            assert!(told.contains("is no object's path"), "{path:?}: {told}");
        }
    }
    for folder in ["../", "7", "/", "7//"] {
        assert!(list(&blobs, folder).await.is_err(), "{folder}");
    }
    assert_eq!(server.calls("DeleteObject") + server.calls("PutObject"), calls);
    let mut expected = others.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(server.keys(), expected);
    let (parent, settings) = (ClusterName::new("..").unwrap(), Bucket::settings(&server.endpoint()));
    let named = ObjectBlobs::open(&Bucket::url(), &parent, &settings).await;
    assert!(matches!(&named, Err(Error::Invalid(told)) if told.contains("cluster's name makes no path")));
}

/// Answers every request with a page of its own.
fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream
                .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 13\r\nconnection: close\r\n\r\n<h1>Hi</h1>\r\n");
        }
    });
    format!("http://127.0.0.1:{port}")
}

/// An object that "is not there" would be an archive that lost it.
#[tokio::test]
async fn something_else_at_the_endpoint_is_not_taken_for_empty_storage() {
    let endpoint = web_server();
    for told in told(&at(&endpoint).await).await {
        let hint = format!("is {endpoint} S3-compatible storage?");
        assert!(told.contains(&hint) && told.contains("status 404"), "{told}");
    }
}

#[tokio::test]
async fn an_object_that_is_too_large_for_a_chunk_is_not_read() {
    let server = S3::start();
    let large = usize::try_from(leasehold_persistence::oplog::layers::objects::MAX_OBJECT).unwrap() + 1;
    server.insert("pre/fix/c/7/a/large", &vec![0; large]);
    let read = at(&server.endpoint()).await.get("7/a/large").await;
    assert!(matches!(&read, Err(Error::Corrupt { place, .. }) if place.contains("7/a/large")), "{read:?}");
}

/// A terminator before the server.
async fn encrypted(certificates: &Certificates, port: u16) -> String {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{ServerConfig, crypto::ring};
    let files = certificates.files();
    let chain = vec![CertificateDer::from_pem_file(files.cert).unwrap()];
    let key = PrivateKeyDer::from_pem_file(files.key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(stream).await else { return };
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    format!("https://127.0.0.1:{own}")
}

#[tokio::test]
async fn certificates_are_checked_against_the_file_that_the_settings_name() {
    let server = S3::start();
    let certificates = Certificates::make("s3");
    let endpoint = encrypted(&certificates, server.port()).await;
    let trusted = Settings { ca_file: Some(certificates.files().ca), ..Bucket::settings(&endpoint) };
    assert_eq!(opened(&Bucket::url(), &trusted).await.check().await, Ok(()));
    let other = Certificates::make("other");
    let strange = Settings { ca_file: Some(other.files().ca), ..trusted };
    for told in told(&opened(&Bucket::url(), &strange).await).await {
        assert!(told.contains("certificate"), "{told}");
    }
}

#[tokio::test]
async fn keys_in_a_file_are_as_good_as_others() {
    let server = S3::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    fs::write(&path, format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n", S3::KEY, S3::SECRET))
        .unwrap();
    let settings = Settings { credentials: Credentials::File(path.clone()), ..Bucket::settings(&server.endpoint()) };
    assert_eq!(opened(&Bucket::url(), &settings).await.check().await, Ok(()));
    fs::write(&path, format!("[default]\naws_access_key_id = {}\naws_secret_access_key = wrong\n", S3::KEY)).unwrap();
    for told in told(&opened(&Bucket::url(), &settings).await).await {
        assert!(told.contains(&path.display().to_string()), "{told}");
    }
}

fn writer() -> Writer {
    Writer { epoch: ShardEpoch::owned(5).unwrap(), executor: ExecutorId::from_u128(7) }
}

async fn filled(store: &MemoryOplogStore, agent: &AgentId) {
    store.claim(agent, SHARD, writer()).await.unwrap();
    let entry = |number: u8| NewEntry { kind: EntryKind::Invocation, key: None, body: vec![number; 100] };
    let entries = (0..20).map(entry).collect();
    store.append(Append { agent: agent.clone(), writer: writer(), expected: EntryIndex(1), entries }).await.unwrap();
}

/// F7, case 26: a put whose outcome is unknown may land at any later time; nobody will ever name it, and a sweep finds it.
#[tokio::test]
async fn a_put_that_lands_after_it_was_given_up_does_no_harm_and_is_swept() {
    let server = S3::start();
    let settings = Settings { request_timeout: Duration::from_millis(500), ..Bucket::settings(&server.endpoint()) };
    let (store, agent) = (MemoryOplogStore::new(), AgentId::new("counter/a").unwrap());
    filled(&store, &agent).await;
    let blobs = Arc::new(opened(&Bucket::url(), &settings).await);
    let layered = Layered::in_blobs(Arc::new(store.handle()), Arc::clone(&blobs) as Arc<dyn Blobs>);
    let move_all = async || layered.archive(&agent, SHARD, writer(), Upto { index: EntryIndex(11), least: 1 }).await;
    server.strike("PutObject", Strike::Hold);
    let given_up = move_all().await;
    assert!(matches!(given_up, Err(Error::Unavailable(_))), "{given_up:?}");
    assert_eq!(move_all().await.unwrap().entries, 10);
    let named = list(&blobs, "").await.unwrap();
    assert_eq!(named.len(), 1);
    server.release();
    wait_until("the put has landed", PATIENCE, || server.keys().len() == 2);
    let entries = layered.read(&agent, writer(), EntryIndex(1), 100).await.unwrap();
    assert!(entries.iter().zip(1..).all(|(entry, at)| entry.index == EntryIndex(at)) && entries.len() == 20);
    let objects = list(&blobs, "").await.unwrap();
    assert!(objects.iter().all(|path| ObjectPath::parse(path).is_some()), "{objects:?}");
    let swept = layered.sweep_shard(SHARD).await.unwrap();
    assert_eq!((swept.seen, swept.deleted), (2, 1));
    assert_eq!(list(&blobs, "").await.unwrap(), named, "the one that the list names is left");
}

/// The entries stay where they are, and are read; what is archived already is not.
#[tokio::test]
async fn an_agent_whose_archive_is_away_can_still_be_written() {
    let mut server = S3::start();
    let settings = Settings { request_timeout: Duration::from_millis(500), ..Bucket::settings(&server.endpoint()) };
    let (store, agent) = (MemoryOplogStore::new(), AgentId::new("counter/a").unwrap());
    filled(&store, &agent).await;
    let blobs = Arc::new(opened(&Bucket::url(), &settings).await);
    let layered = || Layered::in_blobs(Arc::new(store.handle()), Arc::clone(&blobs) as Arc<dyn Blobs>);
    let upto = |index| Upto { index: EntryIndex(index), least: 1 };
    layered().archive(&agent, SHARD, writer(), upto(6)).await.unwrap();
    server.stop();
    let away = layered();
    assert!(away.archive(&agent, SHARD, writer(), upto(11)).await.is_err());
    let entry = NewEntry { kind: EntryKind::Invocation, key: None, body: b"x".to_vec() };
    let append = Append { agent: agent.clone(), writer: writer(), expected: EntryIndex(21), entries: vec![entry] };
    assert_eq!(away.append(append).await, Ok(EntryIndex(22)));
    assert_eq!(away.read(&agent, writer(), EntryIndex(6), 100).await.unwrap().len(), 16);
    assert!(matches!(away.read(&agent, writer(), EntryIndex(1), 100).await, Err(Error::Unavailable(_))));
    server.start_again();
    assert_eq!(away.read(&agent, writer(), EntryIndex(1), 100).await.unwrap().len(), 21);
    assert_eq!(away.archive(&agent, SHARD, writer(), upto(11)).await.unwrap().entries, 5);
}

/// Settings that cannot work are refused before anything is called.
#[tokio::test]
async fn a_deadline_must_be_one() {
    let endpoint = Some(Endpoint::parse("http://127.0.0.1:1").unwrap());
    for span in [Duration::ZERO, Duration::from_secs(301)] {
        let settings = Settings { endpoint: endpoint.clone(), request_timeout: span, ..Settings::default() };
        let refused = ObjectBlobs::open(&Bucket::url(), &ClusterName::new("c").unwrap(), &settings).await;
        assert!(matches!(&refused, Err(Error::Invalid(told)) if told.contains("request timeout")), "{refused:?}");
    }
}
