//! The leader, cut off from its store or from its executors.

use crate::world::{LEADER_TTL, PATIENCE, Plan, SLACK, World, within};
use leasehold_harness::wait_until;
use rustix::process::Signal;
use std::thread::sleep;

/// After `cut` the leader's successor leads in time, the leader knows that it does not, nothing moves, callers notice nothing;
/// after healing it stands by, as the same process.
fn a_leader_is_cut_off(cut: impl Fn(&World, usize)) {
    let mut world = World::start(Plan::default());
    let before = world.owners();
    world.start_load();
    let old = world.leader_but(None);
    let pid = world.manager(old).pid();
    cut(&world, old);
    let mut new = None;
    within("a successor", LEADER_TTL + SLACK, || {
        new = (0..3).find(|manager| *manager != old && world.leads(*manager));
        new.is_some()
    });
    wait_until("the old leader to know", PATIENCE, || !world.leads(old));
    // A lease and more: the old leader grants nothing and writes nothing, the new one is heard by everybody.
    sleep(2 * LEADER_TTL);
    assert!(!world.leads(old));
    world.manager_host(old).heal();
    sleep(LEADER_TTL);
    assert!(world.manager(old).ended().unwrap().is_none(), "{}", world.logged(&format!("manager-{old}")));
    assert_eq!(world.manager(old).pid(), pid);
    world.served(2);
    assert_eq!(world.owners(), before, "a manager's trouble moved a shard");
    assert_eq!(world.reaped(), 0.0);
    assert!(world.stop_load() < SLACK, "callers noticed");
    world.write();
    assert_eq!(world.check_history(), 2, "leaderships that wrote");
}

/// Case 20: it stops by its lease, not by a TCP timeout, and none of its writes lands after its successor's election.
#[test]
fn case_20_a_leader_cut_from_etcd_both_ways_stops_by_its_lease() {
    a_leader_is_cut_off(|world, old| world.manager_host(old).cut_off_from(world.etcd_hosts()));
}

/// Cases 14 and 20: etcd hears it, so that its keepalives arrive, and it hears nothing.
#[test]
fn case_14_a_leader_that_does_not_hear_etcd_stops_though_etcd_hears_it() {
    a_leader_is_cut_off(|world, old| {
        world.etcd_hosts().iter().for_each(|host| world.manager_host(old).drop_from(host))
    });
}

/// Case 20, the other way.
#[test]
fn case_20_a_leader_that_etcd_does_not_hear_stops() {
    a_leader_is_cut_off(|world, old| world.etcd_hosts().iter().for_each(|host| world.manager_host(old).drop_to(host)));
}

/// Case 29: the member it talks to is cut off together with it; a read of that member alone would confirm anything.
#[test]
fn case_29_a_leader_isolated_with_its_etcd_member_is_not_confirmed_by_it() {
    let mut world = World::start(Plan::default());
    let before = world.owners();
    world.start_load();
    let old = world.leader_but(None);
    let others: Vec<usize> = (0..3).filter(|member| *member != old).collect();
    for other in &others {
        let host = world.etcd_host(*other);
        world.etcd_host(old).cut_off_from([host]);
        world.manager_host(old).cut_off_from([host]);
    }
    within("a successor", LEADER_TTL + 2 * SLACK, || others.iter().any(|manager| world.leads(*manager)));
    within("the old leader to know", LEADER_TTL + SLACK, || !world.leads(old));
    sleep(2 * LEADER_TTL);
    assert!(!world.leads(old));
    world.etcd_host(old).heal();
    world.manager_host(old).heal();
    world.wait_for_etcd();
    world.served(2);
    assert_eq!(world.owners(), before);
    assert!(world.stop_load() < SLACK, "callers noticed");
    world.write();
    assert_eq!(world.check_history(), 2, "leaderships that wrote");
}

/// Case 21: three managers are frozen for two ttl, and only the two that did not lead wake.
#[test]
fn case_21_of_three_frozen_managers_two_wake_and_one_leads() {
    let mut world = World::start(Plan::default());
    let old = world.leader_but(None);
    for manager in 0..3 {
        world.manager(manager).signal(Signal::STOP);
    }
    sleep(2 * LEADER_TTL);
    let others: Vec<usize> = (0..3).filter(|manager| *manager != old).collect();
    for manager in &others {
        world.manager(*manager).signal(Signal::CONT);
    }
    within("a leader", LEADER_TTL + SLACK, || others.iter().any(|manager| world.leads(*manager)));
    world.served(2);
    world.manager(old).signal(Signal::CONT);
    // Its lease is over: it may not lead for an instant, and stands by.
    wait_until("the old leader to stand by", PATIENCE, || !world.leads(old));
    world.served(2);
    world.write();
    assert_eq!(world.check_history(), 2, "leaderships that wrote");
}

/// Cases 1 and 48, on a real network: an executor cut from every manager serves until its lease ends and not longer; its
/// shards are served elsewhere; healed, it takes its share again.
fn an_executor_is_cut_off(cut: impl Fn(&World)) {
    let mut world = World::start(Plan { profile: "fast", ..Plan::default() });
    world.start_load();
    cut(&world);
    wait_until("its shards to be elsewhere", PATIENCE, || {
        let Some(status) = world.status() else { return false };
        status["executors"].as_array().is_some_and(|rows| rows.iter().any(|row| row["owned"] == 12))
    });
    world.executor_host(0).heal();
    world.served(2);
    // Two leases of 3 s, a pass, and the caller's own retries (R46).
    let longest = world.stop_load();
    assert!(longest < 2 * LEADER_TTL + 2 * SLACK, "not served for {longest:?}");
    assert_eq!(world.check_history(), 1, "leaderships that wrote");
}

#[test]
fn an_executor_cut_from_the_managers_both_ways_is_replaced_and_returns() {
    an_executor_is_cut_off(|world| world.executor_host(0).cut_off_from(world.manager_hosts()));
}

#[test]
fn case_48_an_executor_that_hears_no_manager_is_replaced_and_returns() {
    an_executor_is_cut_off(|world| {
        world.manager_hosts().iter().for_each(|host| world.executor_host(0).drop_from(host))
    });
}

#[test]
fn an_executor_that_no_manager_hears_is_replaced_and_returns() {
    an_executor_is_cut_off(|world| world.manager_hosts().iter().for_each(|host| world.executor_host(0).drop_to(host)));
}
