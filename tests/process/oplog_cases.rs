//! Cases that need a store on a server: held appends, lapses, wedged executors and wiped managers, on PostgreSQL and on Redis.

use crate::processes::{Place, Process, text, wait_for};
use leasehold_harness::{Postgres, Proxy, Redis, Relay, free_port};
use serde_json::Value;
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
        let before = self.proxy.held();
        self.proxy.set(relay);
        let call =
            self.place.begin(&["invoke", "counter/a", "increment", "--timeout", "50s", "--manager", &self.address]);
        wait_for("the append to be held", || (self.proxy.held() > before).then_some(()));
        call
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
    let output = scene.place.manager(&["undrain", "second", "--manager", &scene.address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut call = scene.held();
    scene.first.terminate();
    thread::sleep(Duration::from_millis(500));
    assert!(scene.first.is_running(), "it waits for its append");
    scene.proxy.set(Relay::Pass);
    assert!(call.ended().success());
    assert_eq!(scene.first.ended().code(), Some(0));
    let answer = scene.increment(before + 2);
    assert_eq!(answer["executor"], "second");
    scene.proven();
}

impl Scene<'_> {
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
    a_lapse_during_a_held_append_ends_with_one_result,
    a_sigterm_waits_for_the_append_that_is_under_way,
    a_wedged_executor_is_shown_and_can_be_drained,
    a_wiped_manager_mints_above_what_storage_recorded,
}
