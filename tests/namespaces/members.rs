//! etcd's members under a cluster: killed, stopped, wiped.

use crate::world::{LEADER_TTL, PATIENCE, Plan, SLACK, World, within};
use leasehold_harness::wait_until;
use rustix::process::Signal;
use std::thread::sleep;
use std::time::Duration;

/// Where the queue of managers stands in etcd.
const ELECTION: &str = "/leasehold/leasehold/election/";

/// Case 23: etcd's leader dies; two seconds without one. The same manager leads, and nothing moves. With the ttl that is the default:
/// a vote that is split costs etcd another two seconds, which is as long as a shorter one leaves for all its keepalives.
#[test]
fn case_23_the_death_of_etcds_leader_is_a_hiccup_and_not_a_loss() {
    let mut world = World::start(Plan { leader_ttl: Duration::from_secs(10), ..Plan::default() });
    let before = world.owners();
    world.start_load();
    let leader = world.leader_but(None);
    for member in 0..3 {
        world.member(member).kill();
        sleep(Duration::from_secs(2));
        world.start_etcd(member);
        world.wait_for_etcd();
    }
    assert_eq!(world.leader_but(None), leader);
    world.served(2);
    assert_eq!(world.owners(), before);
    assert!(world.stop_load() < SLACK, "callers noticed");
    assert_eq!(world.check_history(), 1, "leaderships that wrote");
}

/// Case 27: etcd is away for less than the ttl, then for more; then twenty restarts of a member. The managers' processor rests
/// meanwhile, and one of them leads afterwards.
#[test]
fn case_27_etcd_may_be_away_for_longer_than_a_lease() {
    let mut world = World::start(Plan { profile: "wan", ..Plan::default() });
    let before = world.owners();
    for away in [Duration::from_secs(1), 3 * LEADER_TTL] {
        for member in 0..3 {
            world.member(member).kill();
        }
        let used: Vec<_> = (0..3).map(|manager| cpu(world.manager(manager).pid())).collect();
        sleep(away);
        for (manager, before) in used.into_iter().enumerate() {
            let busy = cpu(world.manager(manager).pid()) - before;
            assert!(
                busy < away / 4 + Duration::from_millis(250),
                "manager {manager} was busy for {busy:?} of {away:?}"
            );
        }
        for member in 0..3 {
            world.start_etcd(member);
        }
        world.wait_for_etcd();
        world.leader_but(None);
        world.served(2);
    }
    for _ in 0..20 {
        world.member(0).kill();
        world.start_etcd(0);
        sleep(Duration::from_millis(200));
    }
    world.wait_for_etcd();
    world.leader_but(None);
    world.served(2);
    assert_eq!(world.owners(), before);
    assert_eq!(world.reaped(), 0.0);
}

/// The processor time that a process has used, from the 14th and 15th field of its `stat`, in ticks of 10 ms.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}

/// Case 24: a standby that is asked to stop ends within seconds, also while it waits in the queue and while etcd is away.
#[test]
fn case_24_a_standby_stops_within_seconds_with_and_without_etcd() {
    let mut world = World::start(Plan::default());
    let leader = world.leader_but(None);
    let standbys: Vec<usize> = (0..3).filter(|manager| *manager != leader).collect();
    world.manager(standbys[0]).signal(Signal::TERM);
    within("a standby in the queue to end", SLACK, || world.manager(standbys[0]).ended().unwrap().is_some());
    world.manager_host(standbys[1]).cut_off_from(world.etcd_hosts());
    sleep(LEADER_TTL);
    world.manager(standbys[1]).signal(Signal::TERM);
    within("a standby without etcd to end", 2 * SLACK, || world.manager(standbys[1]).ended().unwrap().is_some());
    for standby in standbys {
        let ended = world.manager(standby).ended().unwrap().unwrap();
        assert!(ended.success(), "{ended}: {}", world.logged(&format!("manager-{standby}")));
    }
    assert!(world.leads(leader));
    assert_eq!(world.check_history(), 1, "a standby wrote");
}

/// Case 41: everything is killed and started at once; etcd's least ttl is above what is asked for.
#[test]
fn case_41_everything_killed_and_started_at_once_comes_up_unaided() {
    let etcd = &["--heartbeat-interval", "500", "--election-timeout", "4000"];
    let mut world = World::start(Plan { profile: "fast", etcd, ..Plan::default() });
    for part in 0..3 {
        world.manager(part).kill();
        world.member(part).kill();
    }
    for executor in 0..2 {
        world.executor(executor).kill();
    }
    for part in 0..3 {
        world.start_etcd(part);
        world.start_manager(part);
    }
    for executor in 0..2 {
        world.start_executor(executor);
    }
    // The dead leader's key lives on for the ttl that etcd granted: at least 1.5 election timeouts, 6 s.
    world.wait_for_etcd();
    world.served(2);
    world.start_load();
    world.stop_load();
    world.check_history();
}

/// Case 22: the key is deleted under the leader, and then the next leader's lease is revoked.
#[test]
fn case_22_a_leader_whose_key_is_gone_steps_down_and_shards_stay_put() {
    let mut world = World::start(Plan::default());
    let before = world.owners();
    world.start_load();
    for revoked in [false, true] {
        let old = world.leader_but(None);
        let pid = world.manager(old).pid();
        let lost = || world.metric_of(old, r#"leasehold_leadership_changes_total{change="lost"}"#);
        let losses = lost();
        let place = world.etcdctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--limit=1", ELECTION]);
        let place = place.trim();
        if revoked {
            world.etcdctl(&["lease", "revoke", place.rsplit('/').next().unwrap()]);
        } else {
            world.etcdctl(&["del", place]);
        }
        wait_until("the leader to step down", PATIENCE, || lost() > losses);
        world.leader_but(None);
        assert!(world.manager(old).ended().unwrap().is_none());
        assert_eq!(world.manager(old).pid(), pid);
    }
    world.served(2);
    assert_eq!(world.owners(), before);
    assert!(world.stop_load() < SLACK, "callers noticed");
    world.write();
    world.check_history();
}

/// R40, cases 4 and 5: etcd is wiped, and then restored from an older backup, under living executors. The cluster heals by
/// itself, and every count stays right.
#[test]
fn case_5_a_wiped_and_an_older_etcd_heal_by_themselves_under_living_executors() {
    let mut world = World::start(Plan { profile: "fast", ..Plan::default() });
    world.start_load();
    sleep(Duration::from_secs(2));
    for member in 0..3 {
        world.member(member).kill();
        std::fs::rename(world.folder().join(format!("etcd-{member}")), world.folder().join(format!("backup-{member}")))
            .unwrap();
    }
    for member in 0..3 {
        world.start_etcd(member);
    }
    world.wait_for_etcd();
    world.served(2);
    world.executor(0).kill();
    world.start_executor(0);
    world.served(2);
    for member in 0..3 {
        world.member(member).kill();
        std::fs::remove_dir_all(world.folder().join(format!("etcd-{member}"))).unwrap();
        std::fs::rename(world.folder().join(format!("backup-{member}")), world.folder().join(format!("etcd-{member}")))
            .unwrap();
    }
    for member in 0..3 {
        world.start_etcd(member);
    }
    world.wait_for_etcd();
    world.served(2);
    let longest = world.stop_load();
    assert!(longest < Duration::from_secs(55), "a caller waited for {longest:?}");
}
