use crate::world::{LEASE, World, executor, nothing, settings};
use leasehold_model::leader::{CommitFailure, Published, Settings, routing_table};
use leasehold_model::message::{Condition, ExecutorStatus, Route, ShardTotals};
use leasehold_model::state::ShardState;
use leasehold_model::{ManagerId, Revision, ShardEpoch, ShardId, Ttl};
use std::sync::Arc;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

fn status_of(w: &World, n: u128) -> ExecutorStatus {
    let executors = w.core.status(w.now).executors;
    executors.into_iter().find(|status| status.id == executor(n)).unwrap()
}

fn trouble(w: &World, part: &str) -> bool {
    w.core.status(w.now).troubles.iter().any(|trouble| trouble.contains(part))
}

fn why_unassigned(w: &World) -> String {
    w.core.status(w.now).unassigned_because.unwrap()
}

fn why(w: &World, shard: u32) -> Vec<String> {
    w.core.explain(w.now, ShardId(shard)).unwrap().because
}

/// A pass runs every third of a lease; a push may take a sixth; a call may run for a sixth, or 5 s where that is longer.
#[test]
fn every_span_follows_from_the_lease() {
    let of = |ms| Settings { lease: Ttl::from_ms(ms).unwrap(), ..settings() };
    let spans = |of: Settings| [of.pass_interval(), of.lag_after(), of.wedged_after()].map(|span| span.as_millis());
    assert_eq!(spans(of(60_000)), [20_000, 10_000, 10_000]);
    assert_eq!(spans(of(3_000)), [1_000, 500, 5_000]);
}

#[test]
fn a_status_counts_what_is_owned_released_and_unassigned() {
    let mut w = World::new(8);
    w.now = w.now.plus(Duration::from_secs(2));
    let empty = w.core.status(w.now);
    assert_eq!(empty.totals, ShardTotals { owned: 0, releasing: 0, unassigned: 8 });
    assert_eq!((empty.leading_ms, empty.executors.len()), (2_000, 0));
    w.register(1);
    w.push_answered(1, w.claim_of_last_push(1));
    w.register(2);
    w.now = w.now.plus(Duration::from_millis(1_500));
    let status = w.core.status(w.now);
    assert_eq!(status.totals, ShardTotals { owned: 4, releasing: 4, unassigned: 0 });
    assert_eq!((status.manager, status.revision), (ManagerId::from_u128(1), w.stored.revision));
    assert_eq!(status.unassigned_because, None);
    let counts = |n| (status_of(&w, n).owned, status_of(&w, n).releasing, status_of(&w, n).lease_remaining_ms);
    assert_eq!(counts(1), (4, 4, 58_500));
    assert_eq!(counts(2), (0, 0, 58_500));
    assert_eq!(status_of(&w, 1).lagging_ms, Some(1_500));
    assert_eq!(status_of(&w, 2).lagging_ms, None);
}

/// Case 36: two lives of one name stand together, the one that counts first.
#[test]
fn executors_are_shown_by_name_and_the_superseded_last_of_its_name() {
    let mut w = World::new(8);
    w.ask_to_register(3, World::registration(3, "b", "127.0.0.1:4003"));
    w.ask_to_register(4, World::registration(4, "a", "127.0.0.1:4004"));
    w.ask_to_register(5, World::registration(5, "b", "127.0.0.1:4005"));
    let order: Vec<_> = w.core.status(w.now).executors.into_iter().map(|status| status.id).collect();
    assert_eq!(order, [executor(4), executor(5), executor(3)]);
    assert!(trouble(&w, "was superseded by a newer process"));
    w.now = w.now.plus(Duration::from_secs(59));
    assert_eq!(w.core.status(w.now).troubles.iter().filter(|trouble| trouble.starts_with("b is silent")).count(), 1);
}

/// Case 9: an executor that does not renew is named once half its lease is gone.
#[test]
fn whoever_has_less_than_half_its_lease_left_is_silent() {
    let mut w = World::new(8);
    w.register(1);
    w.push_answered(1, w.claim_of_last_push(1));
    w.now = w.now.plus(LEASE / 2);
    assert_eq!(w.core.status(w.now).troubles, Vec::<String>::new());
    w.now = w.now.plus(MILLISECOND);
    assert!(trouble(&w, "e1 is silent: its lease ends in 29999 ms"));
}

/// Case 9
#[test]
fn whoever_does_not_acknowledge_for_a_sixth_of_a_lease_is_lagging() {
    let mut w = World::new(8);
    w.register(1);
    w.now = w.now.plus(LEASE / 6);
    assert_eq!(w.core.status(w.now).troubles, Vec::<String>::new());
    w.now = w.now.plus(MILLISECOND);
    assert!(trouble(&w, "e1 is lagging: it has not acknowledged its newest set for 10001 ms"));
    w.push_answered(1, nothing(w.core.manager(), Revision(0)));
    assert!(trouble(&w, "e1 is lagging"), "an older claim acknowledges nothing");
    w.push_answered(1, w.claim_of_last_push(1));
    assert_eq!(w.core.status(w.now).troubles, Vec::<String>::new());
}

/// Case 35
#[test]
fn an_invocation_that_runs_for_a_sixth_of_a_lease_is_shown_as_trouble() {
    let mut w = World::new(8);
    w.register(1);
    for (oldest_running_ms, shown) in [(10_000, false), (10_001, true)] {
        let mut facts = w.facts(1, w.claim_of_last_push(1), 1);
        facts.condition = Condition { oldest_running_ms, ..Condition::default() };
        w.renew_with(facts);
        assert_eq!(status_of(&w, 1).condition.oldest_running_ms, oldest_running_ms);
        assert_eq!(trouble(&w, "e1 looks wedged"), shown);
    }
}

/// A full oplog disk is seen where operators look.
#[test]
fn an_executor_whose_oplog_store_fails_is_shown_as_trouble_until_it_works_again() {
    let mut w = World::new(8);
    w.register(1);
    let said = "e1 cannot use its oplog store: it has been failing for 12000 ms, and calls fail with it; see e1's log";
    for (oplog_failing_ms, shown) in [(12_000, true), (0, false)] {
        let mut facts = w.facts(1, w.claim_of_last_push(1), 1);
        facts.condition = Condition { oplog_failing_ms, ..Condition::default() };
        w.renew_with(facts);
        assert_eq!(status_of(&w, 1).condition.oplog_failing_ms, oplog_failing_ms);
        assert_eq!(trouble(&w, said), shown);
        assert_eq!(why(&w, 0).contains(&said.to_owned()), shown);
    }
}

/// R46, case 48: it is not silent, and an operator who is told so looks in the wrong place.
#[test]
fn whoever_talks_but_does_not_hear_is_shown_as_that() {
    let mut w = World::new(8);
    w.register(1);
    let claim = w.claim_of_last_push(1);
    for seconds in [15, 30, 45, 60, 75] {
        w.pass_time(Duration::from_secs(15));
        w.renew_with(w.facts(1, claim.clone(), 0));
        assert_eq!(trouble(&w, "e1 talks but does not hear"), seconds > 30, "after {seconds} s");
        assert!(!trouble(&w, "silent"), "after {seconds} s");
    }
    w.now = w.now.plus(LEASE / 2);
    assert!(trouble(&w, "e1 talks but does not hear"));
    w.now = w.now.plus(MILLISECOND);
    assert!(trouble(&w, "e1 is silent") && !trouble(&w, "does not hear"), "and when it falls silent, as that");
}

/// Never "unassigned" without a reason: R33.
#[test]
fn a_new_cluster_says_how_long_it_waits() {
    let mut w = World::with(8, Settings { settle: Duration::from_secs(3), ..settings() });
    w.register(1);
    w.now = w.now.plus(Duration::from_secs(1));
    assert_eq!(why_unassigned(&w), "the cluster is new and waits 2000 ms for more executors");
    assert_eq!(why(&w, 0), [why_unassigned(&w)]);
    w.now = w.now.plus(Duration::from_secs(2));
    assert_eq!(why_unassigned(&w), "the next pass assigns it");
}

/// Never "unassigned" without a reason: case 11.
#[test]
fn with_nobody_left_to_take_a_shard_that_is_the_reason() {
    let mut w = World::with(8, Settings { settle: Duration::from_secs(3), ..settings() });
    w.register(1);
    w.drain("e1", true);
    w.pass_time(Duration::from_secs(4));
    assert_eq!(why_unassigned(&w), "every registered executor is draining or superseded");
}

/// Never "unassigned" without a reason: case 9.
#[test]
fn with_everybody_silent_that_is_the_reason() {
    let mut w = World::new(8);
    w.settle(&[1, 2]);
    w.pass_time(LEASE / 2 + MILLISECOND);
    w.deregister(1);
    assert_eq!(w.core.status(w.now).totals.unassigned, 4);
    assert_eq!(why_unassigned(&w), "every executor that could take it is silent or lagging");
    w.prompt = false;
    w.register(3);
    w.commit_next();
    assert_eq!(why_unassigned(&w), "the next pass assigns it", "one that listens is enough");
}

/// Case 26: a write that an executor or an operator asked for, while no pass has anything to write.
#[test]
fn a_write_that_was_refused_is_shown_until_one_is_taken_or_for_a_minute() {
    let refused = || {
        let mut w = World::new(4);
        w.settle(&[1]);
        w.prompt = false;
        w.drain("e1", true);
        w.fail_next(CommitFailure::Unavailable("read-only".to_owned()));
        assert!(
            trouble(&w, "the store did not take a write 0 ms ago: read-only"),
            "{:?}",
            w.core.status(w.now).troubles
        );
        w
    };
    let mut w = refused();
    w.drain("e1", true);
    w.commit_next();
    assert!(!trouble(&w, "read-only"), "it takes writes");
    let mut w = refused();
    w.now = w.now.plus(Duration::from_secs(60));
    assert!(!trouble(&w, "read-only"), "nothing is known of it any more");
}

/// Never "unassigned" without a reason: case 5.
#[test]
fn a_store_that_takes_no_writes_is_the_reason() {
    let mut w = World::new(8);
    w.prompt = false;
    w.register(1);
    w.commit_next();
    w.fail_next(CommitFailure::Unavailable("disk full".to_owned()));
    assert_eq!(why_unassigned(&w), "the store does not take the assignment: disk full");
    assert_eq!(w.core.status(w.now).troubles[0], "the store does not take writes: disk full");
}

/// Case 26: nobody is removed while the store takes no writes, and a dead executor does not look as if it served.
#[test]
fn whoever_has_lapsed_is_shown_as_that_with_what_keeps_it_from_being_removed() {
    let mut w = World::new(8);
    w.settle(&[1, 2]);
    w.register(3);
    w.prompt = false;
    let ends = w.deadline(1);
    w.pass_time(ends.since(w.now));
    let releasing = w.releasing(1)[0];
    let owned = w.core.state().shards().find(|(_, row)| row.state == ShardState::Owned(executor(1))).unwrap().0.0;
    let shown = |w: &World, removal: &str| {
        assert_eq!(status_of(w, 1).lease_remaining_ms, 0);
        assert!(trouble(w, &format!("e1 is silent: its lease has lapsed; {removal}")));
        assert_eq!(why(w, owned)[0], format!("e1 owns it at epoch 1; its lease has lapsed; {removal}"));
        assert_eq!(why(w, releasing.0)[1], format!("the lease of e1 has lapsed; {removal}"));
    };
    shown(&w, "it is about to be removed, and its shards go to others");
    w.fail_next(CommitFailure::Unavailable("disk full".to_owned()));
    shown(&w, "it is removed, and its shards go to others, once the store takes writes again");
}

#[test]
fn a_shard_is_explained_by_who_has_it_and_until_when() {
    let mut w = World::new(8);
    w.register(1);
    w.now = w.now.plus(Duration::from_secs(1));
    let owned = w.core.explain(w.now, ShardId(0)).unwrap();
    assert_eq!(
        (owned.state.as_str(), owned.epoch, owned.lease_remaining_ms),
        ("owned", ShardEpoch::new(1).unwrap(), Some(59_000))
    );
    assert_eq!(owned.owner, w.stored.owner(executor(1)));
    assert_eq!(
        owned.because,
        [
            "e1 owns it at epoch 1; its lease ends in 59000 ms unless renewed",
            "e1 has not acknowledged its newest set yet"
        ]
    );
    w.push_answered(1, w.claim_of_last_push(1));
    assert_eq!(why(&w, 0).len(), 1);
    w.register(2);
    let shard = w.releasing(1)[0];
    let ShardState::Releasing { since, .. } = w.stored.shard(shard).unwrap().state else { panic!("not releasing") };
    let releasing = w.core.explain(w.now, shard).unwrap();
    assert_eq!((releasing.state.as_str(), releasing.owner), ("releasing", w.stored.owner(executor(1))));
    assert_eq!(releasing.because[0], format!("e1 was told at revision {since} to let go"));
    assert!(releasing.because[1].contains("or in 59000 ms when its lease ends"));
}

#[test]
fn a_routing_table_names_every_shards_owner_as_committed() {
    let mut w = World::new(4);
    assert_eq!(routing_table(&w.stored, w.core.manager()).routes, vec![Route::Unassigned; 4]);
    w.register(1);
    w.push_answered(1, w.claim_of_last_push(1));
    w.register(2);
    w.deregister(2);
    w.register(3);
    let published = Published::new(w.core.manager(), Arc::clone(w.core.state()));
    let table = published.table();
    assert_eq!(*table, routing_table(&w.stored, ManagerId::from_u128(1)));
    assert!(Arc::ptr_eq(&table, &published.table()), "made once for all who use it");
    assert_eq!((table.manager, table.revision), (ManagerId::from_u128(1), w.stored.revision));
    assert_eq!(table.owners.iter().map(|owner| owner.executor).collect::<Vec<_>>(), [executor(1), executor(3)]);
    for (route, (shard, row)) in table.routes.iter().zip(w.stored.shards()) {
        let expected = match row.state {
            ShardState::Owned(_) => Route::Owned(0, row.epoch),
            ShardState::Releasing { .. } => Route::Releasing(0),
            ShardState::Unassigned => Route::Unassigned,
        };
        assert_eq!(*route, expected, "shard {shard}");
    }
    assert_eq!(table.routes.iter().filter(|route| **route == Route::Releasing(0)).count(), 2);
}

#[test]
fn the_worst_trouble_is_told_first() {
    let mut w = World::new(9);
    w.settle(&[1, 2, 3]);
    w.ask_to_register(4, World::registration(4, "e1", "127.0.0.1:5000"));
    w.pass_time(LEASE / 2 + MILLISECOND);
    let mut facts = w.facts(3, w.up_to_date_claim(3), 9);
    facts.condition = Condition { oldest_running_ms: 20_000, ..Condition::default() };
    w.renew_with(facts);
    w.push_answered(4, w.up_to_date_claim(4));
    let troubles = w.core.status(w.now).troubles;
    let kinds = ["silent", "lagging", "wedged", "superseded"];
    let rank = |trouble: &String| kinds.iter().position(|kind| trouble.contains(kind)).expect(trouble);
    let order: Vec<usize> = troubles.iter().map(rank).collect();
    assert!(order.is_sorted(), "{troubles:?}");
    assert!([0, 2, 3].iter().all(|kind| order.contains(kind)), "{troubles:?}");
}
