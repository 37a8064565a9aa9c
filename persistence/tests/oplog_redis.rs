//! What only oplogs in a Redis server can suffer: settings that lose or evict, a full memory, lost and late answers.

#![cfg(feature = "redis")]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod oplogs;

use leasehold_harness::{Proxy, Redis, Relay, free_port, wait_until};
use leasehold_model::{AgentId, ClusterName};
use leasehold_persistence::oplog::redis::Settings;
use leasehold_persistence::oplog::{EntryIndex, Error, OplogStore, RedisOplogStore, Warning};
use oplogs::{
    PATIENCE, SHARD, agent, appending, cluster, fenced, fill, keys, large, one, rivals_of_one_epoch, says,
    sixteen_appenders, writer,
};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

async fn open(server: &Redis) -> Result<RedisOplogStore, Error> {
    RedisOplogStore::open(&server.url(), &cluster()).await
}

/// Through a proxy, giving up soon.
async fn hasty(server: &Redis, proxy: &Proxy) -> Arc<RedisOplogStore> {
    let settings = Settings { silence: Duration::from_millis(700), ..Settings::default() };
    let store = RedisOplogStore::open_with(&server.url_at(proxy.port()), &cluster(), settings).await;
    Arc::new(store.unwrap())
}

async fn refused(server: &Redis) -> Error {
    open(server).await.map(drop).expect_err("the server is refused")
}

#[tokio::test]
async fn two_owners_at_one_epoch_never_both_write() {
    let server = Redis::start();
    rivals_of_one_epoch(&open(&server).await.unwrap(), &open(&server).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_appenders_of_one_owner_on_two_handles_leave_no_gap() {
    let server = Redis::start();
    let stores: [Arc<dyn OplogStore>; 2] =
        [Arc::new(open(&server).await.unwrap()), Arc::new(open(&server).await.unwrap())];
    sixteen_appenders(&stores).await;
}

/// Case 31: the append is on its way while the next owner takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_held_in_the_network_is_fenced_once_the_next_owner_took_over() {
    let (server, agent) = (Redis::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let old = Arc::new(RedisOplogStore::open(&server.url_at(proxy.port()), &cluster()).await.unwrap());
    let next = open(&server).await.unwrap();
    fill(&*old, &agent, writer(5), 2).await;
    proxy.set(Relay::HoldRequests);
    let slow = appending(&old, one(&agent, writer(5), 3, "slow"));
    wait_until("it is held", PATIENCE, || proxy.held() > 0);
    assert_eq!(next.claim(&agent, SHARD, writer(6)).await.unwrap().next, EntryIndex(3));
    assert_eq!(next.append(one(&agent, writer(6), 3, "next")).await, Ok(EntryIndex(4)));
    proxy.set(Relay::Pass);
    assert_eq!(timeout(PATIENCE, slow).await.unwrap().unwrap(), fenced(Some(writer(6)), writer(5)));
    assert_eq!(keys(&next, &agent, writer(6)).await, ["1", "2", "next"]);
}

/// Case 31, the other way round: it was carried out, and only its answer is late. The next owner has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_whose_answer_is_held_is_the_next_owners_too() {
    let (server, agent) = (Redis::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let old = Arc::new(RedisOplogStore::open(&server.url_at(proxy.port()), &cluster()).await.unwrap());
    let next = open(&server).await.unwrap();
    fill(&*old, &agent, writer(5), 2).await;
    proxy.set(Relay::HoldAnswers);
    let slow = appending(&old, one(&agent, writer(5), 3, "slow"));
    wait_until("its answer is held", PATIENCE, || proxy.held() > 0);
    assert_eq!(next.claim(&agent, SHARD, writer(6)).await.unwrap().next, EntryIndex(4));
    proxy.set(Relay::Pass);
    assert_eq!(timeout(PATIENCE, slow).await.unwrap().unwrap(), Ok(EntryIndex(4)), "it was written before the claim");
    assert_eq!(keys(&next, &agent, writer(6)).await, ["1", "2", "slow"]);
}

/// F7, case 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_whose_answer_is_lost_is_unknown_and_found_by_reading_back() {
    let (server, agent) = (Redis::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let store = hasty(&server, &proxy).await;
    fill(&*store, &agent, writer(5), 2).await;
    proxy.set(Relay::LoseAnswers);
    let told = store.append(one(&agent, writer(5), 3, "lost")).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    proxy.set(Relay::Pass);
    assert_eq!(keys(&*store, &agent, writer(5)).await, ["1", "2", "lost"]);
    assert_eq!(store.append(one(&agent, writer(5), 4, "4")).await, Ok(EntryIndex(5)));
}

/// F7, case 28: what was read back as absent stays absent, however late the network delivers it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_was_given_up_and_read_back_as_absent_never_lands_later() {
    let (server, agent) = (Redis::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let store = hasty(&server, &proxy).await;
    fill(&*store, &agent, writer(5), 2).await;
    proxy.set(Relay::HoldRequests);
    let told = store.append(one(&agent, writer(5), 3, "late")).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    assert_eq!(keys(&*store, &agent, writer(5)).await, ["1", "2"], "read back on a new connection");
    proxy.set(Relay::Pass);
    wait_until("what was held has arrived", PATIENCE, || proxy.let_go() == proxy.held());
    assert_eq!(keys(&*store, &agent, writer(5)).await, ["1", "2"]);
    assert_eq!(store.append(one(&agent, writer(5), 3, "3")).await, Ok(EntryIndex(4)));
}

/// Case 12: the server stands still for longer than anybody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_leaves_an_append_unknown_and_the_oplog_whole() {
    let (server, agent) = (Redis::start(), agent("a"));
    let proxy = Proxy::before(server.port());
    let store = hasty(&server, &proxy).await;
    fill(&*store, &agent, writer(5), 2).await;
    server.signal(Signal::STOP);
    let told = store.append(one(&agent, writer(5), 3, "3")).await;
    server.signal(Signal::CONT);
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    let found = keys(&*store, &agent, writer(5)).await;
    let again = store.append(one(&agent, writer(5), 3, "3")).await;
    match found.len() {
        2 => assert_eq!(again, Ok(EntryIndex(4)), "absent stays absent"),
        _ => assert_eq!(again, Err(Error::IndexConflict { expected: EntryIndex(3), found: EntryIndex(4) })),
    }
    assert_eq!(keys(&*store, &agent, writer(5)).await, ["1", "2", "3"]);
}

/// Case 26: Redis' disk is its memory.
#[tokio::test]
async fn a_full_server_refuses_appends_before_they_write_and_takes_deletions() {
    let server = Redis::start_with(&[("maxmemory", "6mb"), ("maxmemory-policy", "noeviction")]);
    let store = open(&server).await.unwrap();
    let (full, other) = (agent("full"), agent("other"));
    fill(&store, &other, writer(5), 1).await;
    store.claim(&full, SHARD, writer(5)).await.unwrap();
    let mut next = 1;
    // A call takes memory itself while it is under way: what is left for smaller ones is taken by smaller ones.
    for size in [100_000, 10_000, 1000, 10] {
        let error = loop {
            match store.append(large(&full, writer(5), next, size)).await {
                Ok(told) => next = told.0,
                Err(error) => break error,
            }
            assert!(next < 10_000, "it never fills up");
        };
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        says(&error, &["OOM", "counter/full"]);
    }
    let entries = store.read(&full, writer(5), EntryIndex(1), 10_000).await.unwrap();
    assert_eq!(entries.len() as u64, next - 1, "nothing of it was written");
    assert_eq!(store.suspend(&other, writer(5)).await, Ok(()));
    assert_eq!(store.delete(&full, writer(5), EntryIndex(next)).await, Ok(()), "which makes room");
    wait_until("the memory is free", PATIENCE, || {
        server.command(&["INFO", "memory"]).lines().any(|line| {
            line.strip_prefix("used_memory:").is_some_and(|bytes| bytes.trim().parse::<u64>().unwrap() < 4_000_000)
        })
    });
    assert_eq!(store.append(one(&other, writer(5), 2, "2")).await, Ok(EntryIndex(3)));
    assert_eq!(store.claim(&full, SHARD, writer(5)).await.unwrap().next, EntryIndex(next));
}

#[tokio::test]
async fn a_server_in_cluster_mode_is_refused_at_the_opening() {
    let server = Redis::start_with(&[("cluster-enabled", "yes")]);
    let error = refused(&server).await;
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    says(&error, &["Cluster mode", "127.0.0.1", "name one Redis server"]);
}

#[tokio::test]
async fn a_server_that_would_evict_records_is_refused_at_the_opening() {
    let server = Redis::start_with(&[("maxmemory-policy", "allkeys-lru")]);
    let error = refused(&server).await;
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    says(&error, &["maxmemory-policy is allkeys-lru", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    assert_eq!(open(&server).await.unwrap().warnings(), [Warning::RedisEviction("volatile-ttl".into())]);
}

#[tokio::test]
async fn a_replica_and_a_server_that_is_away_are_unavailable() {
    let primary = Redis::start();
    let port = primary.port().to_string();
    let replica = Redis::start_with(&[("replicaof", &format!("127.0.0.1 {port}"))]);
    let error = refused(&replica).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    says(&error, &["it is a replica", "name the primary"]);
    let away = RedisOplogStore::open(&format!("redis://:secret@127.0.0.1:{}", free_port()), &cluster()).await;
    let error = away.map(drop).expect_err("nobody is there");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn wrong_credentials_and_urls_are_refused_without_showing_them() {
    let server = Redis::start_with(&[("requirepass", "right")]);
    let at = format!("127.0.0.1:{}", server.port());
    for url in [format!("redis://{at}"), format!("redis://:secret@{at}"), "http://x".into()] {
        let error = RedisOplogStore::open(&url, &cluster()).await.map(drop).expect_err("refused");
        assert!(matches!(error, Error::Invalid(_)), "{url}: {error}");
        assert!(!error.to_string().contains("secret") && !error.to_string().contains("right@"), "{error}");
    }
    RedisOplogStore::open(&format!("redis://:right@{at}/3"), &cluster()).await.unwrap();
}

#[tokio::test]
async fn settings_that_lose_what_was_acknowledged_are_warned_about() {
    let server = Redis::start();
    assert_eq!(open(&server).await.unwrap().warnings(), []);
    server.command(&["CONFIG", "SET", "appendfsync", "everysec"]);
    let warnings = open(&server).await.unwrap().warnings().to_vec();
    assert_eq!(warnings, [Warning::RedisFsync("everysec".into())]);
    assert!(warnings[0].to_string().contains("set appendfsync always"));
    server.command(&["CONFIG", "SET", "appendonly", "no"]);
    server.command(&["CONFIG", "SET", "save", "60 1000"]);
    let warnings = open(&server).await.unwrap().warnings().to_vec();
    assert_eq!(warnings, [Warning::RedisNoAppendOnly { save: "60 1000".into() }]);
    let rules = ["ACL", "SETUSER", "agents", "on", ">pw", "~*", "+@all", "-config"];
    server.command(&rules);
    let url = format!("redis://agents:pw@127.0.0.1:{}", server.port());
    let store = RedisOplogStore::open(&url, &cluster()).await.unwrap();
    assert!(matches!(store.warnings(), [Warning::SettingsUnreadable(_)]), "{:?}", store.warnings());
}

#[tokio::test]
async fn a_store_that_another_build_has_written_is_refused() {
    let server = Redis::start();
    for (version, told) in [("4711", ["up to 3", "newer build"]), ("2", ["this build reads 3", "use the older build"])]
    {
        server.command(&["SET", "leasehold:c:schema", version]);
        let error = refused(&server).await;
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        says(&error, &[version, told[0], told[1]]);
    }
    server.command(&["SET", "leasehold:c:schema", "x"]);
    says(&refused(&server).await, &["leasehold:c:schema is \"x\""]);
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_the_server_was_killed() {
    let (mut server, agent) = (Redis::start(), agent("a"));
    let store = open(&server).await.unwrap();
    fill(&store, &agent, writer(5), 3).await;
    server.kill();
    let away = store.append(one(&agent, writer(5), 4, "4")).await;
    assert!(matches!(away, Err(Error::Unavailable(_) | Error::Unknown(_))), "{away:?}");
    assert!(matches!(store.append(one(&agent, writer(5), 4, "4")).await, Err(Error::Unavailable(_))), "nobody took it");
    server.start_again();
    assert_eq!(keys(&store, &agent, writer(5)).await, ["1", "2", "3"]);
    assert_eq!(store.append(one(&agent, writer(5), 4, "4")).await, Ok(EntryIndex(5)));
}

/// F2: a server that lost everything has no record, so nobody's oplog goes on as if nothing had happened.
#[tokio::test]
async fn a_server_that_forgot_everything_fences_whoever_had_an_oplog_open() {
    let mut server = Redis::start_with(&[("appendonly", "no")]);
    let (store, agent) = (open(&server).await.unwrap(), agent("a"));
    assert_eq!(store.warnings(), [Warning::RedisNoAppendOnly { save: String::new() }]);
    fill(&store, &agent, writer(5), 3).await;
    server.restart();
    let mut told = store.append(one(&agent, writer(5), 4, "4")).await;
    if matches!(told, Err(Error::Unknown(_))) {
        told = store.append(one(&agent, writer(5), 4, "4")).await;
    }
    assert_eq!(told, fenced(None, writer(5)));
}

#[tokio::test]
async fn scripts_that_the_server_has_forgotten_are_told_it_again() {
    let (server, agent) = (Redis::start(), agent("a"));
    let store = open(&server).await.unwrap();
    fill(&store, &agent, writer(5), 1).await;
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.append(one(&agent, writer(5), 2, "2")).await, Ok(EntryIndex(3)));
}

#[tokio::test]
async fn clusters_on_one_server_do_not_see_each_other() {
    let (server, agent) = (Redis::start(), agent("a"));
    let store = open(&server).await.unwrap();
    let other = RedisOplogStore::open(&server.url(), &ClusterName::new("c2").unwrap()).await.unwrap();
    fill(&store, &agent, writer(5), 2).await;
    assert_eq!(other.recorded(&agent).await, Ok(None));
    assert_eq!(other.running(SHARD, None, 10).await, Ok(vec![]));
    fill(&other, &agent, writer(4), 1).await;
    assert_eq!(other.delete(&agent, writer(4), EntryIndex(2)).await, Ok(()));
    assert_eq!(keys(&store, &agent, writer(5)).await, ["1", "2"]);
}

/// An agent's keys share a hash tag, whatever its name.
#[tokio::test]
async fn agents_with_braces_in_their_names_are_told_apart() {
    let server = Redis::start();
    let store = open(&server).await.unwrap();
    let names = ["k/{", "k/}", "k/{}", "k/a}:oplog", "k/a}:keys", "k/a", "k/*"].map(|name| AgentId::new(name).unwrap());
    for name in &names {
        fill(&store, name, writer(5), 1).await;
    }
    for name in &names {
        assert_eq!(keys(&store, name, writer(5)).await, ["1"]);
    }
}

#[tokio::test]
async fn what_cannot_be_right_is_told_with_its_place() {
    let server = Redis::start();
    let store = open(&server).await.unwrap();
    let key = |name: &str, what: &str| format!("leasehold:c:{{counter/{name}}}:{what}");
    for name in ["hole", "entry", "epoch", "type", "index"] {
        fill(&store, &agent(name), writer(5), 2).await;
    }
    server.command(&["HDEL", &key("hole", "oplog"), "1"]);
    server.command(&["HSET", &key("entry", "oplog"), "1", "nonsense"]);
    server.command(&["HSET", &key("epoch", "oplog"), "epoch", "nonsense"]);
    server.command(&["DEL", &key("type", "oplog")]);
    server.command(&["SET", &key("type", "oplog"), "text"]);
    server.command(&["HSET", &key("index", "oplog"), "next", "nonsense"]);
    for (name, part) in [
        ("hole", "entry 1 is missing"),
        ("entry", "8 bytes are no entry"),
        ("epoch", "\"nonsense\" is no number"),
        ("type", "WRONGTYPE"),
        ("index", "counter/index"),
    ] {
        let error = store.read(&agent(name), writer(5), EntryIndex(1), 10).await.expect_err("damage");
        assert!(matches!(error, Error::Corrupt { .. }), "{name}: {error}");
        says(&error, &[name, part]);
    }
    let error = store.append(one(&agent("index"), writer(5), 3, "3")).await.expect_err("damage");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
