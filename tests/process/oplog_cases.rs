//! Cases that need a store on a server: held appends, lapses, wedged executors, wiped managers, lost pushes and joins under load, on
//! PostgreSQL and on Redis.

use crate::processes::{Place, Process, text, wait_for};
use leasehold_harness::{Postgres, Proxy, Redis, Relay, free_port};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

/// A server that keeps oplogs.
trait Server {
    fn at(&self, port: u16) -> String;
    fn own_port(&self) -> u16;
}

impl Server for Postgres {
    fn at(&self, port: u16) -> String {
        self.url_at(port)
    }
    fn own_port(&self) -> u16 {
        self.port()
    }
}

impl Server for Redis {
    fn at(&self, port: u16) -> String {
        self.url_at(port)
    }
    fn own_port(&self) -> u16 {
        self.port()
    }
}

/// One executor behind a proxy before the store, which owns everything.
struct Scene<'a> {
    server: &'a dyn Server,
    manager: Process,
    address: String,
    proxy: Proxy,
    first: Process,
    /// The last to go: the processes' logs are in it.
    place: Place,
}

impl<'a> Scene<'a> {
    fn new(server: &'a dyn Server) -> Self {
        Self::through(server, |manager| manager.to_owned())
    }

    /// `route` says where the first executor finds the manager.
    fn through(server: &'a dyn Server, route: impl FnOnce(&str) -> String) -> Self {
        let place = Place::new();
        // A fixed address, for a manager that is started again.
        let mut manager = place.manager_at(&format!("127.0.0.1:{}", free_port()), &[]);
        let address = manager.address();
        let proxy = Proxy::before(server.own_port());
        let url = format!("oplog.url={}", server.at(proxy.port()));
        let first = place.executor(&route(&address), "first", &["--set", &url]);
        place.served(&address, 1);
        let scene = Self { place, server, manager, address, proxy, first };
        scene.increment(1);
        scene
    }

    fn second(&self) -> Process {
        let url = format!("oplog.url={}", self.server.at(self.server.own_port()));
        self.place.executor(&self.address, "second", &["--set", &url])
    }

    fn increment(&self, expected: u64) -> Value {
        let answer = self.place.invoke(&self.address, "counter/a", "increment");
        assert_eq!(answer["payload"]["value"], expected, "{answer}");
        answer
    }

    /// An increment whose append the proxy holds.
    fn held(&self) -> Process {
        self.held_by(Relay::HoldRequests)
    }

    fn held_by(&self, relay: Relay) -> Process {
        self.held_under("held", relay)
    }

    /// The same, called under this idempotency key.
    fn held_under(&self, key: &str, relay: Relay) -> Process {
        let before = self.proxy.held();
        self.proxy.set(relay);
        let call = ["invoke", "counter/a", "increment", "--idempotency-key", key, "--json", "--timeout", "50s"];
        let call = self.place.begin(&[&call[..], &["--manager", &self.address]].concat());
        wait_for("the append to be held", || (self.proxy.held() > before).then_some(()));
        call
    }

    /// The counter's values in the order in which they were stored.
    fn stored(&self) -> Vec<u64> {
        let url = self.server.at(self.server.own_port());
        let output = self.place.executor_command(&["oplog", "dump", "counter/a", "--url", &url]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        let entries = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        entries
            .filter(|entry| entry["kind"] == "invocation")
            .map(|entry| entry["answer"]["value"].as_u64().unwrap())
            .collect()
    }

    fn proven(&self) {
        let url = self.server.at(self.server.own_port());
        let output = self.place.executor_command(&["oplog", "check", "--url", &url]);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
}

/// Case 32: the last write, then the release, then the successor's first write.
fn a_sigterm_waits_for_the_append_that_is_under_way(server: &dyn Server) {
    let mut scene = Scene::new(server);
    let _second = scene.second();
    scene.place.served(&scene.address, 2);
    // Whoever has the agent now: only the first is behind the proxy.
    let output = scene.place.manager(&["drain", "second", "--manager", &scene.address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    wait_for("the first one to have everything", || (scene.answered_by() == "first").then_some(()));
    let before = scene.value();
    let mut call = scene.held();
    scene.first.terminate();
    scene.first.logged("sweeping", "agents");
    scene.renewed("first");
    assert!(call.is_running() && scene.first.is_running(), "it waits for its append");
    // Not before: it would take the agent over for balance.
    let output = scene.place.manager(&["undrain", "second", "--manager", &scene.address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    scene.proxy.set(Relay::Pass);
    assert!(call.ended().success());
    let last = call.said();
    assert_eq!((&last["executor"], &last["replayed"]), (&"first".into(), &false.into()), "its own append: {last}");
    assert_eq!(scene.first.ended().code(), Some(0));
    let answer = scene.increment(before + 2);
    assert_eq!(answer["executor"], "second");
    scene.proven();
}

impl Scene<'_> {
    /// Waits until the manager has heard a renewal of `name`, which holds its shards as long as it sends them.
    fn renewed(&self, name: &str) {
        let mut least = u64::MAX;
        wait_for(&format!("a renewal of {name}"), || {
            let status = self.place.status(&self.address)?;
            let row = status["executors"].as_array()?.iter().find(|row| row["name"] == name)?;
            let left = row["lease_remaining_ms"].as_u64()?;
            let renewed = left > least;
            least = left;
            renewed.then_some(())
        });
    }

    /// What the counter says.
    fn value(&self) -> u64 {
        self.place.invoke(&self.address, "counter/a", "get")["payload"]["value"].as_u64().unwrap()
    }

    /// Who answers.
    fn answered_by(&self) -> String {
        let answer = self.place.invoke(&self.address, "counter/a", "get");
        answer["executor"].as_str().unwrap_or_default().to_owned()
    }
}

/// Case 34, S6: renewals vanish during one long invocation; its late append is fenced, and the call counts once.
fn a_lapse_during_a_held_append_ends_with_one_result(server: &dyn Server) {
    let mut to_manager = None;
    let scene = Scene::through(server, |manager| {
        let port = manager.rsplit(':').next().unwrap().parse().unwrap();
        let proxy = to_manager.insert(Proxy::before(port));
        format!("127.0.0.1:{}", proxy.port())
    });
    let to_manager = to_manager.unwrap();
    let mut call = scene.held();
    to_manager.set(Relay::HoldRequests);
    let _second = scene.second();
    assert!(call.ended().success(), "the router went to the next owner");
    scene.proxy.set(Relay::Pass);
    to_manager.set(Relay::Pass);
    scene.place.served(&scene.address, 2);
    scene.increment(3);
    scene.proven();
}

/// Case 35: wedged on its storage while renewals go on: status says so, and a drain moves the shards.
fn a_wedged_executor_is_shown_and_can_be_drained(server: &dyn Server) {
    let scene = Scene::new(server);
    // A store that a new connection mends is no trouble for long.
    let mut call = scene.held_by(Relay::StopRequests);
    wait_for("the trouble in status", || {
        let status = scene.place.status(&scene.address)?;
        let told = |trouble: &Value| {
            let told = trouble.as_str().unwrap_or_default();
            told.contains("first") && (told.contains("wedged") || told.contains("cannot use its oplog store"))
        };
        status["troubles"].as_array()?.iter().any(told).then_some(())
    });
    let _second = scene.second();
    let output = scene.place.manager(&["drain", "first", "--manager", &scene.address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(call.ended().success(), "it counted at the next owner");
    scene.proxy.set(Relay::Pass);
    assert_eq!(scene.increment(3)["executor"], "second");
    scene.proven();
}

/// Cases 4, 5, R40: the manager's store is wiped: epochs are minted above what storage recorded, and every count goes on.
fn a_wiped_manager_mints_above_what_storage_recorded(server: &dyn Server) {
    let mut scene = Scene::new(server);
    let _second = scene.second();
    scene.place.served(&scene.address, 2);
    let before = scene.increment(2)["epoch"].as_u64().unwrap();
    scene.manager.kill();
    for file in fs::read_dir(scene.place.path()).unwrap().map(|file| file.unwrap().path()) {
        if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("manager.db")) {
            fs::remove_file(file).unwrap();
        }
    }
    let mut again = scene.place.manager_at(&scene.address, &[]);
    assert_eq!(again.address(), scene.address);
    scene.place.served(&scene.address, 2);
    let after = scene.increment(3);
    assert!(after["epoch"].as_u64().unwrap() >= before, "{after}");
    scene.increment(4);
    scene.proven();
}

/// Case 8: shards whose agents only read move away, and their old owner hears of it by no push: it lets go at a renewal.
fn a_shard_that_only_reads_is_let_go_of_though_no_push_arrives(server: &dyn Server) {
    const AGENTS: usize = 8;
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let url = format!("oplog.url={}", server.at(server.own_port()));
    let own = free_port();
    let pushes = Proxy::before(own);
    let (listen, told) =
        (format!("listen.grpc=127.0.0.1:{own}"), format!("executor.address=127.0.0.1:{}", pushes.port()));
    let mut first = place.executor(&address, "first", &["--set", &url, "--set", &listen, "--set", &told]);
    place.served(&address, 1);
    let everybody = |method: &str, by: Option<&str>| {
        for number in 0..AGENTS {
            let answer = place.invoke(&address, &format!("counter/{number}"), method);
            assert_eq!(answer["payload"]["value"], 1, "counter/{number}: {answer}");
            assert!(by.is_none_or(|by| answer["executor"] == by), "counter/{number}: {answer}");
        }
    };
    everybody("increment", Some("first"));
    let mut second = place.executor(&address, "second", &["--set", &url]);
    place.served(&address, 2);
    pushes.set(Relay::StopRequests);
    let output = place.manager(&["drain", "first", "--manager", &address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    wait_for("every shard to be at the second one", || {
        let owners = place.owners(&address);
        let all = owners.as_array()?.iter().all(|row| row["state"] == "owned" && row["owner"] == "second");
        all.then_some(())
    });
    everybody("get", Some("second"));
    assert!(pushes.held() > 0, "a push was on its way");
    assert_eq!(pushes.let_go(), 0, "and did not arrive");
    let log = first.log();
    assert!(!log.contains("lease lapsed"), "it let go at a renewal, and not because its lease ended:\n{log}");
    assert!(!manager.log().contains("a lease has ended"), "{}", manager.log());
    let (lost, told) = (first.every("shard not admitted any more", "shard").len(), log.lines().count());
    assert!(lost >= 16 && told < 200, "{lost} shards let go of, and no loop: {told} lines\n{log}");
    pushes.set(Relay::Pass);
    let output = place.manager(&["undrain", "first", "--manager", &address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    wait_for("the first one to have its share again", || {
        let owners = place.owners(&address);
        let its = owners.as_array()?.iter().filter(|row| row["state"] == "owned" && row["owner"] == "first");
        (its.count() == 8).then_some(())
    });
    everybody("get", None);
    assert!(first.is_running() && second.is_running());
    let output = place.executor_command(&["oplog", "check", "--url", &server.at(server.own_port())]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Case 12: two executors under write load, a third joins: calls of moved shards are retried and nobody sees an error, nothing ends, only
/// the third one's share moves, and then nothing does.
fn a_third_executor_joins_two_under_load_and_moves_stop(server: &dyn Server) {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let url = format!("oplog.url={}", server.at(server.own_port()));
    let start = |name: &str| place.executor(&address, name, &["--set", &url]);
    let mut executors = vec![start("first"), start("second")];
    place.served(&address, 2);
    even(&place, &address, 2);
    let letters = 'a'..='z';
    let words: Vec<_> =
        letters.clone().flat_map(|one| letters.clone().map(move |other| format!("{one}{other}"))).collect();
    fs::write(place.path().join("words"), words[..64].join("\n")).unwrap();
    let load = ["load", "words", "--repeat", "1000000", "--concurrency", "16", "--json", "--progress", "progress.json"];
    let mut load = place.begin(&[&load[..], &["--manager", &address]].concat());
    let counted = || {
        let progress = fs::read_to_string(place.path().join("progress.json")).ok()?;
        serde_json::from_str::<Value>(&progress).ok()?["completed"].as_u64()
    };
    let more = || {
        let before = counted().unwrap_or(0);
        wait_for("more to be counted", || counted().filter(|counted| *counted > before));
    };
    more();
    let before = place.owners(&address);
    executors.push(start("third"));
    place.served(&address, 3);
    even(&place, &address, 3);
    let (after, revision) = (place.owners(&address), place.status(&address).unwrap()["revision"].clone());
    let rows = before.as_array().unwrap().iter().zip(after.as_array().unwrap());
    let moved: Vec<_> =
        rows.filter(|(before, after)| before["owner"] != after["owner"]).map(|(_, after)| after).collect();
    assert!(moved.iter().all(|row| row["owner"] == "third"), "only to the third: {moved:?}");
    assert!((5..=6).contains(&moved.len()), "its share of 16: {moved:?}");
    // Each is two seconds of load at least.
    (0..3).for_each(|_| more());
    assert_eq!(place.owners(&address), after, "the same owners at the same epochs");
    assert_eq!(place.status(&address).unwrap()["revision"], revision, "nothing was written");
    load.signal(Signal::INT);
    load.ended();
    let summary = load.said();
    assert_eq!(summary["failed"], 0, "{summary}");
    assert!(executors.iter_mut().all(Process::is_running));
    let output = place.executor_command(&["counts", "words", "--json", "--manager", &address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let counts: BTreeMap<String, u64> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts.values().sum::<u64>(), summary["answered"].as_u64().unwrap(), "{summary}");
}

/// Waits until `executors` have even shares of the sixteen shards.
fn even(place: &Place, address: &str, executors: usize) {
    wait_for("even shares", || {
        let owners = place.owners(address);
        let mut shares = BTreeMap::<&str, usize>::new();
        for row in owners.as_array()? {
            *shares.entry(row["owner"].as_str()?).or_default() += usize::from(row["state"] == "owned");
        }
        let settled =
            shares.values().sum::<usize>() == 16 && shares.values().all(|share| share.abs_diff(16 / executors) <= 1);
        (shares.len() == executors && settled).then_some(())
    });
}

/// Case 28: store calls take half as long again as their timeout, their answers are held or lost, and their callers go away at once: each
/// counts once whenever it is asked for again, and memory, store and a cold replay agree.
fn calls_of_a_slow_store_whose_callers_went_away_count_once(server: &dyn Server) {
    // Of an executor's calls of its store (`HostLimits`).
    const TIMEOUT: Duration = Duration::from_secs(5);
    let mut scene = Scene::new(server);
    let held = [
        (Relay::HoldRequests, TIMEOUT * 3 / 2),
        (Relay::HoldAnswers, TIMEOUT / 10),
        (Relay::LoseAnswers, Duration::ZERO),
        (Relay::HoldAnswers, TIMEOUT * 3 / 2),
        (Relay::HoldRequests, TIMEOUT / 10),
    ];
    for (number, (relay, time)) in held.into_iter().enumerate() {
        let mut call = scene.held_under(&format!("call-{number}"), relay);
        call.kill();
        // Not a wait for anything: it is how slow the store is.
        thread::sleep(time);
        scene.proxy.set(Relay::Pass);
        // A newer one, which finds a connection for the next one to be held on.
        scene.place.invoke(&scene.address, "counter/a", "increment");
    }
    for number in 0..held.len() {
        let key = format!("call-{number}");
        let call = ["invoke", "counter/a", "increment", "--idempotency-key", &key, "--manager", &scene.address];
        let output = scene.place.executor_command(&call);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let all = 1 + 2 * held.len() as u64;
    assert_eq!(scene.value(), all, "what is in memory");
    assert_eq!(scene.stored(), (1..=all).collect::<Vec<_>>(), "what is stored");
    let _second = scene.second();
    scene.first.kill();
    wait_for("the second one to have everything", || (scene.answered_by() == "second").then_some(()));
    assert_eq!(scene.value(), all, "a cold replay");
    scene.increment(all + 1);
    scene.proven();
}

macro_rules! on_both_servers {
    ($($case:ident,)*) => {
        $(
            mod $case {
                #[test]
                fn on_postgresql() {
                    super::$case(&leasehold_harness::Postgres::start());
                }

                #[test]
                fn on_redis() {
                    super::$case(&leasehold_harness::Redis::start());
                }
            }
        )*
    };
}

on_both_servers! {
    a_shard_that_only_reads_is_let_go_of_though_no_push_arrives,
    a_third_executor_joins_two_under_load_and_moves_stop,
    calls_of_a_slow_store_whose_callers_went_away_count_once,
    a_lapse_during_a_held_append_ends_with_one_result,
    a_sigterm_waits_for_the_append_that_is_under_way,
    a_wedged_executor_is_shown_and_can_be_drained,
    a_wiped_manager_mints_above_what_storage_recorded,
}
