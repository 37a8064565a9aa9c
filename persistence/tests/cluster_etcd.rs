//! The cluster store on etcd: what only etcd can do to it. Real servers, started by the harness.

#![cfg(feature = "etcd")]
#![allow(missing_docs, reason = "a test binary has no public items; the lint sees those that macros make")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod etcd_support;

use etcd_support::{Leading, assignment, cluster, count, draft, executor, id, lead, lead_on, options, register};
use leasehold_harness::{Certificates, Etcd, EtcdCluster, EtcdConfig};
use leasehold_model::command::Command;
use leasehold_model::plan::Plan;
use leasehold_model::state::{ClusterState, ShardState};
use leasehold_model::{ClusterName, Revision, ShardCount, ShardId};
use leasehold_persistence::cluster::etcd::{EtcdTraffic, check_stored};
use leasehold_persistence::cluster::{ClusterStore, Error};
use leasehold_persistence::etcd::{EtcdConnection, EtcdOptions, prefix};
use std::time::{Duration, Instant};

/// Loads and writes the first state, of `shards` shards and one executor.
async fn started(leading: &Leading, shards: u32) -> ClusterState {
    let empty = leading.store.load(&cluster(), count(shards)).await.unwrap();
    let (write, state) = draft(&empty, 1, &[register(1)]);
    leading.store.commit(&write).await.unwrap();
    state
}

async fn fenced(leading: &Leading, state: &ClusterState, how: &str) {
    let (write, _) = draft(state, 900, &[register(2)]);
    let refused = leading.store.commit(&write).await.unwrap_err();
    assert!(matches!(refused, Error::NotOwner(_)), "{how}: {refused}");
    let told = leading.store.confirm_leadership().await.unwrap_err();
    assert!(matches!(told, Error::NotOwner(_)), "{how}: {told}");
    let told = leading.store.load(&cluster(), state.shard_count).await.unwrap_err();
    assert!(matches!(told, Error::NotOwner(_)), "{how}: {told}");
}

/// Case 22.
#[tokio::test]
async fn a_leader_whose_key_was_deleted_revoked_or_made_anew_writes_and_confirms_nothing() {
    let etcd = Etcd::start();
    let first = lead(&etcd).await;
    let state = started(&first, 64).await;
    etcd.ctl(&["del", &first.key]);
    fenced(&first, &state, "deleted").await;
    etcd.ctl(&["put", &first.key, "the same key, another life"]);
    fenced(&first, &state, "made anew").await;

    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split(' ').nth(1).unwrap();
    let key = format!("{}election/leased", prefix(&cluster()));
    etcd.ctl(&["put", &key, "leader", &format!("--lease={lease}")]);
    let second = lead_on(options(etcd.endpoints()), key).await;
    assert_eq!(second.store.load(&cluster(), count(64)).await.unwrap(), state, "no shard moved, nothing was written");
    second.store.confirm_leadership().await.unwrap();
    etcd.ctl(&["lease", "revoke", lease]);
    fenced(&second, &state, "revoked").await;

    let third = lead(&etcd).await;
    assert_eq!(third.store.load(&cluster(), count(64)).await.unwrap(), state);
}

/// Case 25: kill the leader between the parts of a split write. After every part the state is sound by itself and each shard is
/// as it was or as it was to be; a successor leads on from there; the old leader writes nothing more.
#[tokio::test]
async fn a_leader_that_dies_between_the_parts_of_a_write_leaves_a_sound_state_and_no_shard_half_owned() {
    let etcd = Etcd::start();
    let shards = 8192;
    let mut parts = 0;
    while parts < 16 {
        let leading = lead(&etcd).await;
        let mut before = leading.store.load(&cluster(), count(shards)).await.unwrap();
        if before.revision == Revision(0) {
            let registered: Vec<_> = (0..300).map(register).collect();
            let (write, after) = draft(&before, 1, &registered);
            leading.store.commit(&write).await.unwrap();
            let (write, after) = draft(&after, 2, &[assignment(shards, 0..300)]);
            leading.store.commit(&write).await.unwrap();
            before = after;
        }
        // Everyone of before leaves; the names pass to new lives; what is freed goes to these.
        let lives: Vec<_> = before.executors().map(|(id, _)| id).collect();
        let generation = u128::from(parts as u32 + 1) * 1000;
        let mut commands = vec![Command::Reap(lives)];
        commands.extend((0..300).map(|number| Command::Register {
            id: id(generation + number),
            executor: executor(number),
            replaces: None,
        }));
        commands.push(assignment(shards, generation..generation + 300));
        let (write, after) = draft(&before, 100 + parts as u128, &commands);
        leading.store.interrupt_after(Some(parts));
        let answer = leading.store.commit(&write).await;

        let successor = lead(&etcd).await;
        let found = successor.store.load(&cluster(), count(shards)).await.unwrap();
        found.check().unwrap();
        for (shard, row) in found.shards() {
            let (old, new) = (before.shard(shard).unwrap(), after.shard(shard).unwrap());
            assert!(row == old || row == new, "shard {shard} after {parts} parts: {row:?}");
            assert!(row.epoch >= old.epoch, "shard {shard} after {parts} parts: its epoch fell");
            if let ShardState::Owned(owner) = row.state {
                assert!(found.executor(owner).is_some(), "shard {shard} after {parts} parts: half-owned");
            }
        }
        if answer.is_ok() {
            assert_eq!(found, after);
            assert!(parts > 3, "the write had only {parts} parts");
            return;
        }
        assert!(matches!(answer, Err(Error::Unknown(_))), "{answer:?}");
        leading.store.interrupt_after(None);
        let told = leading.store.outcome(write.tag).await;
        match parts {
            0 => assert_eq!(told, Ok(false)),
            _ => assert!(matches!(told, Err(Error::NotOwner(_))), "{told:?}"),
        }
        assert_eq!(successor.store.load(&cluster(), count(shards)).await.unwrap(), found, "the old leader wrote on");
        assert!(!successor.store.outcome(write.tag).await.unwrap(), "a write of which a part is missing was not made");
        // And the successor can write what its state asks for.
        let (write, next) = draft(&found, 500 + parts as u128, &[register(70_500)]);
        successor.store.commit(&write).await.unwrap();
        let (write, next) = draft(&next, 600 + parts as u128, &[Command::Deregister(id(70_500))]);
        successor.store.commit(&write).await.unwrap();
        assert_eq!(successor.store.load(&cluster(), count(shards)).await.unwrap(), next);
        parts += 1;
    }
    panic!("the write never came to its end");
}

/// Case 3: the outcome of a split write that stopped in its middle is found by storing the rest.
#[tokio::test]
async fn a_write_that_stopped_between_its_parts_is_completed_by_the_look_up_of_its_outcome() {
    let etcd = Etcd::start();
    for parts in 0..3 {
        let leading = lead(&etcd).await;
        let before = leading.store.load(&cluster(), count(64)).await.unwrap();
        let commands: Vec<_> = (0..300).map(|number| register(u128::from(parts as u32) * 1000 + number)).collect();
        let (write, after) = draft(&before, 10 + parts as u128, &commands);
        leading.store.interrupt_after(Some(parts));
        let answer = leading.store.commit(&write).await;
        assert!(matches!(answer, Err(Error::Unknown(_))), "after {parts} parts: {answer:?}");
        let still = leading.store.outcome(write.tag).await;
        leading.store.interrupt_after(None);
        if parts == 0 {
            assert_eq!(still, Ok(false), "nothing of it was stored");
            continue;
        }
        assert!(matches!(still, Err(Error::Unavailable(_))), "after {parts} parts: {still:?}");
        assert_eq!(leading.store.outcome(write.tag).await, Ok(true), "after {parts} parts");
        assert_eq!(leading.store.load(&cluster(), count(64)).await.unwrap(), after);
        let (write, next) = draft(&after, 20 + parts as u128, &[register(9000 + parts as u128)]);
        leading.store.commit(&write).await.unwrap();
        assert_eq!(leading.store.load(&cluster(), count(64)).await.unwrap(), next);
    }
}

/// Case 25: 300 executors lapse at once, 1024 shards are assigned for the first time.
#[tokio::test]
async fn three_hundred_executors_are_registered_given_shards_and_removed_in_one_write_each() {
    let etcd = Etcd::start();
    let leading = lead(&etcd).await;
    let empty = leading.store.load(&cluster(), count(1024)).await.unwrap();
    let mut commands: Vec<_> = (0..300).map(register).collect();
    commands.push(assignment(1024, 0..300));
    let (write, assigned) = draft(&empty, 1, &commands);
    leading.store.commit(&write).await.unwrap();
    assert_eq!(assigned.totals().owned, 1024);
    let (write, reaped) = draft(&assigned, 2, &[Command::Reap((0..300).map(id).collect())]);
    leading.store.commit(&write).await.unwrap();
    assert_eq!(leading.store.load(&cluster(), count(1024)).await.unwrap(), reaped);
    assert_eq!(reaped.executors().len(), 0);
}

/// Case 25, and what the bench `first_assignment_*` measures, in a debug build.
#[tokio::test]
async fn a_first_assignment_of_65536_shards_writes_hardly_more_than_what_changed() {
    let etcd = Etcd::start();
    let leading = lead(&etcd).await;
    let empty = leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap();
    let mut commands: Vec<_> = (0..200).map(register).collect();
    commands.push(assignment(ShardCount::MAX, 0..200));
    let (write, assigned) = draft(&empty, 1, &commands);
    let began = Instant::now();
    leading.store.commit(&write).await.unwrap();
    let took = began.elapsed();
    let sent = leading.store.traffic();
    // What changed, each key once: as it lies in etcd now.
    let stored: usize = etcd.ctl(&["get", "--prefix", &prefix(&cluster())]).len();
    // And the rows themselves, as plain as can be: a shard's number, epoch and owner.
    let rows = ShardCount::MAX as usize * (5 + 1 + 36);
    let bare = bare_loop(&etcd, sent).await;
    println!("{took:?} for {sent:?}, bare {bare:?}; {stored} bytes lie in etcd, {rows} are the shards' rows");
    assert!(sent.bytes as f64 <= 1.5 * stored as f64, "{sent:?}, stored {stored}");
    assert!(sent.bytes as usize <= rows, "{sent:?}, rows {rows}");
    assert!(sent.transactions <= 6, "{sent:?}");
    assert_eq!(leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap(), assigned);
}

/// As many transactions with as many bytes, one after the other. Only shown: the bench compares, in a release build.
async fn bare_loop(etcd: &Etcd, sent: EtcdTraffic) -> Duration {
    let mut client = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
    let value = vec![b'x'; usize::try_from(sent.bytes / sent.transactions).unwrap()];
    let began = Instant::now();
    for number in 0..sent.transactions {
        let put = etcd_client::TxnOp::put(format!("/bare/{number}"), value.clone(), None);
        client.txn(etcd_client::Txn::new().and_then([put])).await.unwrap();
    }
    began.elapsed()
}

/// Case 25: an etcd whose flags are set below its defaults is written in smaller parts, and what cannot be split names the flag. The first
/// write is refused at its first part; the second at its last, which has the most operations.
#[tokio::test]
async fn an_etcd_that_takes_smaller_transactions_is_written_in_smaller_parts() {
    let flags = ["--max-txn-ops=64", "--max-request-bytes=524288"];
    let etcd = Etcd::start_with(&EtcdConfig::default().with_args(flags));
    let leading = lead(&etcd).await;
    let empty = leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap();
    let mut commands: Vec<_> = (0..300).map(register).collect();
    commands.push(assignment(ShardCount::MAX, 0..200));
    let (write, state) = draft(&empty, 1, &commands);
    leading.store.commit(&write).await.unwrap();
    assert_eq!(leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap(), state);

    // A fresh leadership knows nothing of the limits.
    let leading = lead(&etcd).await;
    let state = leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap();
    let freed = (0..ShardCount::MAX).filter(|shard| shard % 200 >= 100);
    let grants = freed.map(|shard| (ShardId(shard), id(200 + u128::from(shard) % 100))).collect();
    let reaped = Command::Reap((100..200).map(id).collect());
    let (write, after) = draft(&state, 2, &[reaped, Command::Plan(Plan { grants, ..Plan::default() })]);
    leading.store.commit(&write).await.unwrap();
    assert_eq!(leading.store.outcome(2).await, Ok(true));
    assert_eq!(leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap(), after);
    let before = leading.store.traffic().transactions;
    let (write, after) = draft(&after, 3, &(300..400).map(register).collect::<Vec<_>>());
    leading.store.commit(&write).await.unwrap();
    assert_eq!(leading.store.traffic().transactions - before, 2, "what was learnt is kept");
    assert_eq!(leading.store.load(&cluster(), count(ShardCount::MAX)).await.unwrap(), after);
}

#[tokio::test]
async fn an_etcd_that_does_not_even_take_one_key_is_refused_with_the_flag_that_is_to_be_raised() {
    let etcd = Etcd::start_with(&EtcdConfig::default().with_args(["--max-request-bytes=4096"]));
    let leading = lead(&etcd).await;
    let state = started(&leading, 1024).await;
    let (write, _) = draft(&state, 2, &[register(2), assignment(1024, 1..3)]);
    let refused = leading.store.commit(&write).await.unwrap_err();
    let says = ["request is too large", "2 keys", "--max-request-bytes (1572864 by default)"];
    assert!(matches!(&refused, Error::Incompatible(why) if says.iter().all(|what| why.contains(what))), "{refused}");
    let found = leading.store.load(&cluster(), count(1024)).await.unwrap();
    assert_eq!(found.totals().owned, 0, "no shard is owned by halves");
    found.check().unwrap();
}

/// Case 26.
#[tokio::test]
async fn a_full_etcd_takes_nothing_and_is_written_again_once_it_has_room() {
    let etcd = Etcd::start_with(&EtcdConfig::default().with_args(["--quota-backend-bytes=16777216"]));
    let leading = lead(&etcd).await;
    let mut state = started(&leading, 1024).await;
    let filling = "x".repeat(1 << 20);
    let mut client = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
    let mut fill = 0;
    while client.put(format!("/filling/{fill}"), filling.as_str(), None).await.is_ok() {
        fill += 1;
        assert!(fill < 64, "the quota does not bite");
    }
    for tag in 10..13 {
        let (write, _) = draft(&state, tag, &[register(tag)]);
        let refused = leading.store.commit(&write).await.unwrap_err();
        let what = ["space exceeded", "--quota-backend-bytes", "compact", "defragment", "etcdctl alarm disarm"];
        assert!(matches!(&refused, Error::Unavailable(why) if what.iter().all(|what| why.contains(what))), "{refused}");
        assert_eq!(leading.store.outcome(tag).await, Ok(false));
        assert_eq!(leading.store.load(&cluster(), count(1024)).await.unwrap(), state, "something was written");
        leading.store.confirm_leadership().await.unwrap();
    }
    etcd.ctl(&["del", "--prefix", "/filling/"]);
    let now = leading.connection.revision().await.unwrap();
    etcd.ctl(&["compact", "--physical", &now.to_string()]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    let (write, after) = draft(&state, 20, &[register(20)]);
    leading.store.commit(&write).await.unwrap();
    state = after;
    assert_eq!(leading.store.load(&cluster(), count(1024)).await.unwrap(), state);
}

/// Case 5, R40, as far as the store goes: a wiped etcd ends the leadership, and the next leader finds an empty store.
#[tokio::test]
async fn a_wiped_etcd_ends_the_leadership_and_is_a_new_world_to_the_next_leader() {
    let mut etcd = Etcd::start();
    let leading = lead(&etcd).await;
    let state = started(&leading, 64).await;
    etcd.wipe();
    fenced_after_restart(&leading, &state).await;
    let next = lead(&etcd).await;
    let empty = next.store.load(&cluster(), count(64)).await.unwrap();
    assert_eq!(empty, ClusterState::empty(cluster(), count(64)));
    started(&next, 64).await;
}

/// Case 5: restored behind a living manager, with the election's key in the backup. The first write meets the old head.
#[tokio::test]
async fn a_restored_backup_is_a_conflict_to_the_living_leader_and_loads_for_the_next() {
    let mut etcd = Etcd::start();
    let leading = lead(&etcd).await;
    let early = started(&leading, 64).await;
    let backup = etcd.backup();
    let (write, late) = draft(&early, 2, &[register(2)]);
    leading.store.commit(&write).await.unwrap();
    etcd.restore(&backup);
    let (write, _) = draft(&late, 3, &[register(3)]);
    let refused = settled(async || leading.store.commit(&write).await).await.unwrap_err();
    assert_eq!(refused, Error::Conflict { expected: late.revision, found: early.revision });
    let next = lead(&etcd).await;
    assert_eq!(next.store.load(&cluster(), count(64)).await.unwrap(), early);
}

/// After a restart of etcd the first calls meet a broken connection: asks until there is another answer.
async fn settled<T>(ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match ask().await {
            Err(Error::Unavailable(_) | Error::Unknown(_)) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            answer => return answer,
        }
    }
}

async fn fenced_after_restart(leading: &Leading, state: &ClusterState) {
    let told = settled(async || leading.store.confirm_leadership().await).await.unwrap_err();
    assert!(matches!(told, Error::NotOwner(_)), "{told}");
    fenced(leading, state, "wiped").await;
}

/// R7: the backup brings the election's key back, so that alone proves nothing.
#[tokio::test]
async fn a_leader_under_which_a_backup_was_restored_confirms_and_writes_nothing() {
    let mut etcd = Etcd::start();
    let leading = lead(&etcd).await;
    let state = started(&leading, 64).await;
    let backup = etcd.backup();
    let (write, after) = draft(&state, 2, &[register(7)]);
    leading.store.commit(&write).await.unwrap();
    etcd.restart();
    settled(async || leading.store.confirm_leadership().await).await.expect("nothing was lost");
    etcd.restore(&backup);
    let told = settled(async || leading.store.confirm_leadership().await).await.unwrap_err();
    assert!(matches!(&told, Error::NotOwner(why) if why.contains("restored")), "{told}");
    let (write, _) = draft(&after, 3, &[register(8)]);
    let refused = leading.store.commit(&write).await.unwrap_err();
    assert!(matches!(refused, Error::Conflict { .. }), "{refused}");
}

/// Where nothing was written after the backup, nothing is lost by it.
#[tokio::test]
async fn a_leader_under_which_its_own_state_was_restored_leads_on() {
    let mut etcd = Etcd::start();
    let leading = lead(&etcd).await;
    let state = started(&leading, 64).await;
    let backup = etcd.backup();
    etcd.restore(&backup);
    settled(async || leading.store.confirm_leadership().await).await.unwrap();
    let (write, _) = draft(&state, 2, &[register(7)]);
    leading.store.commit(&write).await.unwrap();
}

#[tokio::test]
async fn two_clusters_in_one_etcd_know_nothing_of_each_other() {
    let etcd = Etcd::start();
    let names = ["a", "a.", "a.b"].map(|name| ClusterName::new(name).unwrap());
    let mut states = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let leading = etcd_support::lead_cluster(&etcd, name).await;
        let empty = leading.store.load(name, count(64)).await.unwrap();
        assert_eq!(empty, ClusterState::empty(name.clone(), count(64)));
        let (write, state) = draft(&empty, 1, &[register(at as u128)]);
        leading.store.commit(&write).await.unwrap();
        states.push((leading, state));
    }
    for (name, (leading, state)) in names.iter().zip(&states) {
        assert_eq!(leading.store.load(name, count(64)).await.unwrap(), *state);
        let other = ClusterName::new("b").unwrap();
        assert!(matches!(leading.store.load(&other, count(64)).await, Err(Error::Incompatible(_))));
    }
}

/// Case 37, for a standby: it asks without leading, and writes nothing.
#[tokio::test]
async fn a_standby_with_another_shard_count_is_told_before_it_leads() {
    let etcd = Etcd::start();
    let leading = lead(&etcd).await;
    check_stored(&leading.connection, &cluster(), count(128)).await.unwrap();
    started(&leading, 64).await;
    let before = leading.connection.revision().await.unwrap();
    check_stored(&leading.connection, &cluster(), count(64)).await.unwrap();
    let refused = check_stored(&leading.connection, &cluster(), count(128)).await.unwrap_err();
    assert!(matches!(&refused, Error::Incompatible(why) if why.contains("64") && why.contains("128")), "{refused}");
    assert_eq!(leading.connection.revision().await.unwrap(), before);
}

/// "etcd compacted underneath a reader": states are loaded while every revision is compacted as soon as it is not the newest.
#[tokio::test]
async fn a_load_lives_with_compaction_under_it_and_is_of_one_revision() {
    let etcd = Etcd::start();
    let options = EtcdOptions { compaction_retention_revisions: 1, ..options(etcd.endpoints()) };
    let leading = etcd_support::lead_options(&etcd, &cluster(), options).await;
    let empty = leading.store.load(&cluster(), count(20_000)).await.unwrap();
    let mut commands: Vec<_> = (0..100).map(register).collect();
    commands.push(assignment(20_000, 0..100));
    let (write, mut state) = draft(&empty, 1, &commands);
    leading.store.commit(&write).await.unwrap();
    let reader = leading.another();
    let reading = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.last() != Some(&Revision(40)) {
            match reader.load(&cluster(), count(20_000)).await {
                Ok(state) => {
                    state.check().unwrap();
                    seen.push(state.revision);
                }
                // Compacted eight times under one load: the next begins anew.
                Err(Error::Unavailable(why)) => assert!(why.contains("compacted under"), "{why}"),
                Err(other) => panic!("{other}"),
            }
        }
        seen
    });
    while state.revision < Revision(40) {
        let releases = vec![(ShardId(state.revision.0 as u32 * 400), id(u128::from(state.revision.0 * 400 % 100)))];
        let command = Command::Plan(Plan { releases, ..Plan::default() });
        let (write, after) = draft(&state, u128::from(state.revision.0) + 1, &[command]);
        leading.store.commit(&write).await.unwrap();
        leading.store.compact(after.revision).await.unwrap();
        state = after;
    }
    let seen = tokio::time::timeout(Duration::from_secs(60), reading).await.unwrap().unwrap();
    assert!(seen.is_sorted() && seen.len() > 1, "{seen:?}");
    let gone = etcd.ctl(&["get", "/leasehold/", "--prefix", "--keys-only"]);
    assert!(gone.contains("/head"), "{gone}");
}

#[tokio::test]
async fn compaction_keeps_what_is_asked_for_and_never_compacts_when_that_is_zero() {
    let etcd = Etcd::start();
    let mut client = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
    for (retention, name) in [(0, "never"), (5, "five")] {
        let options = EtcdOptions { compaction_retention_revisions: retention, ..options(etcd.endpoints()) };
        let name = ClusterName::new(name).unwrap();
        let leading = etcd_support::lead_options(&etcd, &name, options).await;
        let mut state = leading.store.load(&name, count(64)).await.unwrap();
        for tag in 0..20 {
            let (write, after) = draft(&state, tag, &[register(tag)]);
            leading.store.commit(&write).await.unwrap();
            state = after;
        }
        leading.store.compact(state.revision).await.unwrap();
        let head = format!("{}head", prefix(&name));
        let now = client.get(head.as_str(), None).await.unwrap().header().unwrap().revision();
        let mut at = async |revision: i64| {
            let options = etcd_client::GetOptions::new().with_revision(revision);
            client.get(head.as_str(), Some(options)).await
        };
        assert_eq!(at(1).await.is_ok(), retention == 0, "retention {retention}: the first revision");
        assert!(at(now - 5).await.is_ok(), "retention {retention}: what was to be kept");
        assert_eq!(at(now - 7).await.is_ok(), retention == 0, "retention {retention}: what was not");
    }
}

#[tokio::test]
async fn a_dead_endpoint_costs_at_most_one_request_timeout_and_only_once() {
    let etcd = Etcd::start();
    let frozen = Etcd::start();
    frozen.stop();
    let refused = format!("http://127.0.0.1:{}", leasehold_harness::free_port());
    let (key, _) = etcd_support::election(&etcd, &cluster());
    let timeout = Duration::from_millis(1500);
    let endpoints = vec![refused, frozen.endpoint(), etcd.endpoint()];
    let began = Instant::now();
    let leading = lead_on(EtcdOptions { request_timeout: timeout, ..options(endpoints) }, key).await;
    started(&leading, 64).await;
    let took = began.elapsed();
    assert!(took < timeout * 2, "opening and three calls beside a dead endpoint took {took:?}");
    let began = Instant::now();
    for _ in 0..20 {
        leading.store.confirm_leadership().await.unwrap();
    }
    assert!(began.elapsed() < timeout, "it cost again");
    frozen.cont();
}

/// Case 29: the member that the manager talks to is cut off with it. (The other members are frozen: to this one, the same.)
#[tokio::test]
async fn leadership_is_never_confirmed_by_a_member_without_a_quorum() {
    let etcd = EtcdCluster::start();
    let endpoint = etcd.endpoints()[0].clone();
    let key = format!("{}election/0", prefix(&cluster()));
    etcd.ctl(0, &["put", &key, "leader"]).unwrap();
    let timeout = Duration::from_millis(500);
    let leading = lead_on(EtcdOptions { request_timeout: timeout, ..options(vec![endpoint]) }, key).await;
    let state = started(&leading, 64).await;
    etcd.stop(1);
    etcd.stop(2);
    let mut confirmed = 0;
    // A read that was under way when they froze may still be answered by what they said before.
    for _ in 0..6 {
        let began = Instant::now();
        confirmed += u32::from(leading.store.confirm_leadership().await.is_ok());
        assert!(began.elapsed() < timeout * 2, "a call takes longer than its time");
    }
    assert_eq!(confirmed, 0);
    let (write, after) = draft(&state, 2, &[register(2)]);
    let answer = leading.store.commit(&write).await.unwrap_err();
    assert!(matches!(answer, Error::Unknown(_) | Error::Unavailable(_)), "{answer}");
    etcd.cont(1);
    etcd.cont(2);
    // Whatever became of it is found out, and is final.
    let landed = settled(async || leading.store.outcome(2).await).await.unwrap();
    let stored = settled(async || leading.store.load(&cluster(), count(64)).await).await.unwrap();
    assert_eq!(stored, if landed { after } else { state });
}

/// Case 28 and case 3, with etcd itself holding the answer: a write that etcd carries out only after its writer was told "no" never lands.
#[tokio::test]
async fn a_write_that_was_given_up_while_etcd_was_frozen_has_one_outcome_for_good() {
    let etcd = Etcd::start();
    let timeout = Duration::from_millis(300);
    let (key, _) = etcd_support::election(&etcd, &cluster());
    let leading = lead_on(EtcdOptions { request_timeout: timeout, ..options(etcd.endpoints()) }, key).await;
    let mut state = started(&leading, 64).await;
    for tag in 10..20 {
        etcd.stop();
        let (write, after) = draft(&state, tag, &[register(tag)]);
        let answer = leading.store.commit(&write).await.unwrap_err();
        assert!(matches!(answer, Error::Unknown(_)), "{answer}");
        etcd.cont();
        let landed = settled(async || leading.store.outcome(tag).await).await.unwrap();
        let expected = if landed { after } else { state };
        for _ in 0..3 {
            let stored = settled(async || leading.store.load(&cluster(), count(64)).await).await.unwrap();
            assert_eq!(stored, expected, "write {tag}, landed: {landed}");
        }
        state = expected;
    }
}

/// The same, as it lies in etcd: before a write in doubt is said not to be there, the head is changed in front of it.
#[tokio::test]
async fn a_write_that_is_said_not_to_have_landed_can_never_land() {
    let mut etcd = Etcd::start();
    let head = format!("{}head", prefix(&cluster()));
    let leading = lead(&etcd).await;
    let mut state = leading.store.load(&cluster(), count(64)).await.unwrap();
    // The first write of all, and a later one.
    for tag in [0xabcd, 0xabce] {
        let mut client = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
        let before = client.get(head.as_str(), None).await.unwrap();
        let before = before.kvs().first().map_or(0, etcd_client::KeyValue::mod_revision);
        let (write, _) = draft(&state, tag, &[register(1)]);
        // etcd dies with the request in its socket, and nobody knows that it was never read.
        etcd.stop();
        tokio::time::timeout(Duration::from_millis(50), leading.store.commit(&write)).await.unwrap_err();
        etcd.kill();
        etcd.restart();
        assert_eq!(settled(async || leading.store.outcome(tag).await).await, Ok(false));
        let fenced = etcd.ctl(&["get", &head, "--print-value-only"]);
        assert!(fenced.contains(&format!("\"fenced\":\"{tag:032x}\"")), "{fenced}");
        // As if it still lay somewhere and arrived now.
        let mut client = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
        let condition = etcd_client::Compare::mod_revision(head.as_str(), etcd_client::CompareOp::Equal, before);
        let late = etcd_client::TxnOp::put(head.as_str(), "late", None);
        let late = client.txn(etcd_client::Txn::new().when([condition]).and_then([late])).await.unwrap();
        assert!(!late.succeeded(), "a write landed of which it was said that it did not");
        assert_eq!(leading.store.load(&cluster(), count(64)).await.unwrap(), state);
        let (write, after) = draft(&state, tag + 0x1000, &[register(tag)]);
        leading.store.commit(&write).await.unwrap();
        state = after;
    }
    assert_eq!(lead(&etcd).await.store.load(&cluster(), count(64)).await.unwrap(), state);
}

/// "etcd leader killed (three members)".
#[tokio::test]
async fn a_killed_raft_leader_ends_no_leadership_and_loses_no_write() {
    let mut etcd = EtcdCluster::start();
    let key = format!("{}election/0", prefix(&cluster()));
    etcd.ctl(0, &["put", &key, "leader"]).unwrap();
    let victim = etcd.leader();
    // The one that is talked to.
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(victim);
    let leading = lead_on(options(endpoints), key).await;
    let mut state = started(&leading, 64).await;
    etcd.kill(victim);
    for tag in 10..20 {
        let (write, after) = draft(&state, tag, &[register(tag)]);
        let mut landed = leading.store.commit(&write).await.is_ok();
        while !landed {
            landed = settled(async || leading.store.outcome(tag).await).await.unwrap()
                || settled(async || leading.store.commit(&write).await).await.is_ok();
        }
        state = after;
    }
    leading.store.confirm_leadership().await.unwrap();
    assert_eq!(leading.store.load(&cluster(), count(64)).await.unwrap(), state);
}

#[tokio::test]
async fn what_is_damaged_or_of_a_newer_build_is_refused_with_its_key() {
    let etcd = Etcd::start();
    let leading = lead(&etcd).await;
    started(&leading, 64).await;
    let prefix = prefix(&cluster());
    let owner = id(77);
    let chunk = format!("{{\"schema\":1,\"first\":0,\"owned\":{{\"{owner}\":{{\"3\":1}}}}}}");
    let beyond = "{\"schema\":1,\"first\":0,\"owned\":{},\"unassigned\":{\"64\":1}}";
    let cases = [
        ("shards/00", chunk.as_str(), "is not stored"),
        ("shards/00", "{\"schema\":2}", "newer build"),
        ("shards/00", beyond, "64"),
        ("shards/00", "rubbish", "expected value"),
        ("shards/7", "{}", "no chunk"),
        ("executors/exec-1", "{}", "no executor"),
        ("head", "{\"schema\":1}", "missing field"),
    ];
    for (key, value, why) in cases {
        let key = format!("{prefix}{key}");
        let before = etcd.ctl(&["get", &key, "--print-value-only"]);
        etcd.ctl(&["put", &key, value]);
        let refused = leading.store.load(&cluster(), count(64)).await.unwrap_err();
        let fatal = matches!(refused, Error::Corrupt { .. } | Error::Incompatible(_));
        let text = refused.to_string();
        assert!(fatal && text.contains(&key) && text.contains(why), "{key} = {value}: {text}");
        match before.trim_end() {
            "" => etcd.ctl(&["del", &key]),
            before => etcd.ctl(&["put", &key, before]),
        };
    }
    leading.store.load(&cluster(), count(64)).await.unwrap();
    etcd.ctl(&["del", &format!("{prefix}head")]);
    let refused = leading.store.load(&cluster(), count(64)).await.unwrap_err().to_string();
    assert!(refused.contains("head") && refused.contains("executors/"), "{refused}");
}

#[tokio::test]
async fn user_password_and_certificates_are_used_and_their_absence_is_said_at_once() {
    let certificates = Certificates::make("etcd");
    let files = certificates.files();
    let config = EtcdConfig { tls: Some(files.clone()), ..EtcdConfig::default() };
    let etcd = Etcd::start_with(&config.with_args(["--auth-token-ttl=1"]));
    let (key, _) = etcd_support::election(&etcd, &cluster());
    etcd.ctl(&["role", "add", "leasehold"]);
    etcd.ctl(&["role", "grant-permission", "leasehold", "readwrite", "--prefix=true", "/leasehold/"]);
    for user in ["root:hunter2", "manager:hunter3"] {
        etcd.ctl(&["user", "add", user]);
    }
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["user", "grant-role", "manager", "leasehold"]);
    etcd.ctl(&["auth", "enable"]);
    let with = |user: &str, password: &str| EtcdOptions {
        user: Some(user.into()),
        password: Some(password.into()),
        tls: Some(etcd_support::tls(&files)),
        ..options(etcd.endpoints())
    };
    let leading = lead_on(with("manager", "hunter3"), key).await;
    let mut state = started(&leading, 64).await;
    for tag in 10..16 {
        let (write, after) = draft(&state, tag, &[register(tag)]);
        leading.store.commit(&write).await.unwrap();
        leading.store.confirm_leadership().await.unwrap();
        state = after;
        if tag % 3 == 0 {
            // Tokens live for a second here, and once a second those that have ended are thrown away.
            tokio::time::sleep(Duration::from_millis(2500)).await;
        }
    }
    let refused = EtcdConnection::open(with("manager", "wrong")).await.unwrap_err();
    assert!(matches!(refused, Error::Incompatible(_)), "{refused}");
    assert!(!format!("{refused} {leading:?}").contains("hunter"));
    let nobody = EtcdOptions { tls: Some(etcd_support::tls(&files)), ..options(etcd.endpoints()) };
    let nobody = EtcdConnection::open(nobody).await;
    if let Ok(connection) = nobody {
        let refused = check_stored(&connection, &cluster(), count(64)).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    }
    let stranger = Certificates::make("etcd");
    let stranger = Some(etcd_support::tls(&stranger.files()));
    let refused = EtcdConnection::open(EtcdOptions { tls: stranger, ..with("manager", "hunter3") }).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
}
