//! A full disk under the oplogs: an executor whose oplog folder is a small file system of its own, in a mount namespace.

use crate::processes::{Place, executor_binary, text, wait_for};
use leasehold_harness::Process;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

struct Small {
    executor: Process,
    log: PathBuf,
    /// The executor's oplog folder as only it sees it.
    oplogs: PathBuf,
}

impl Small {
    fn start(place: &Place, manager: &str) -> Self {
        let folder = place.path().join("small");
        fs::create_dir(&folder).unwrap();
        let log = place.path().join("small.log");
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c"]);
        command.arg("mount -t tmpfs -o size=2m tmpfs small && exec \"$0\" \"$@\"").arg(executor_binary());
        command.args(["--log-format", "json", "--log", "info", "serve"]);
        let managers = format!("executor.managers={manager}");
        for setting in [
            managers.as_str(),
            "executor.name=small",
            "lease.profile=fast",
            "listen.grpc=127.0.0.1:0",
            "listen.http=127.0.0.1:0",
            "oplog.url=sqlite:small/oplogs",
        ] {
            command.args(["--set", setting]);
        }
        command.current_dir(place.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let executor = Process::start("small", command.stderr(File::create(&log).unwrap()));
        let seen = PathBuf::from(format!("/proc/{}/root", executor.pid()));
        let oplogs = seen.join(folder.strip_prefix("/").unwrap()).join("oplogs");
        Self { executor, log, oplogs }
    }

    fn fill(&self) {
        let mut filler = File::create(self.oplogs.join("filler")).unwrap();
        for block in [4096, 1] {
            // At most what the file system has.
            for _ in 0..2 << 20 {
                match filler.write_all(&vec![7; block]) {
                    Ok(()) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.oplogs.join("filler")).unwrap();
    }

    fn lines(&self, message: &str) -> Vec<Value> {
        let log = fs::read_to_string(&self.log).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"].as_str().is_some_and(|said| said.starts_with(message))).collect()
    }
}

/// Callers hear what the disk says, operators see it in `status`, `executors`, `explain` and the log; an agent in memory can be
/// read; with room again all goes on by itself.
#[test]
fn a_full_oplog_disk_is_seen_by_callers_and_operators_and_heals_by_itself() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let mut small = Small::start(&place, &address);
    place.served(&address, 1);
    let invoke = |agent: &str, method: &str| -> Output {
        place.executor_command(&["invoke", agent, method, "--timeout", "3s", "--manager", &address])
    };
    assert!(invoke("counter/live", "increment").status.success());
    small.fill();

    let failed = invoke("counter/live", "increment");
    assert_eq!(failed.status.code(), Some(75), "{}", text(&failed.stderr));
    assert!(text(&failed.stderr).contains("disk is full"), "{}", text(&failed.stderr));
    let read = invoke("counter/live", "get");
    assert!(read.status.success() && text(&read.stdout).contains('1'), "{}", text(&read.stderr));
    let new = invoke("counter/new", "get");
    assert!(
        text(&new.stderr).contains("disk is full"),
        "it has to be claimed, which is a write: {}",
        text(&new.stderr)
    );

    let trouble = "small cannot use its oplog store";
    let output = wait_for("the trouble", || {
        drop(invoke("counter/live", "increment"));
        let output = place.manager(&["status", "--manager", &address]);
        text(&output.stdout).contains(trouble).then_some(output)
    });
    assert_eq!(output.status.code(), Some(1));
    let explained = place.manager(&["explain", "counter/live", "--manager", &address]);
    assert!(text(&explained.stdout).contains(trouble), "{}", text(&explained.stdout));
    let executors = place.manager(&["executors", "--manager", &address]);
    assert!(text(&executors.stdout).contains("oplogs fail"), "{}", text(&executors.stdout));
    let warned = small.lines("the oplog store fails");
    let first = &warned[0];
    assert_eq!((first["level"].as_str(), first["agent"].as_str()), (Some("WARN"), Some("counter/live")));
    assert!(first["error"].as_str().unwrap().contains("disk is full") && first["shard"].is_string(), "{first}");

    small.make_room();
    assert!(invoke("counter/new", "get").status.success());
    let healed = place.executor_command(&["invoke", "counter/live", "increment", "--manager", &address]);
    assert!(healed.status.success(), "{}", text(&healed.stderr));
    assert_eq!(small.lines("the oplog store works again").len(), 1);
    wait_for("a status without trouble", || {
        let output = place.manager(&["status", "--manager", &address]);
        output.status.success().then_some(())
    });
    assert!(small.executor.ended().unwrap().is_none());
}
