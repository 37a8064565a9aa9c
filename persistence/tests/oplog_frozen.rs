//! Frozen and killed processes on one SQLite oplog store: this test binary runs itself again as the process that is
//! stopped.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use leasehold_persistence::oplog::audit::{self, Layers, Options, Report};
use leasehold_persistence::oplog::sqlite::{Point, Settings, SqliteAudit};
use leasehold_persistence::oplog::{
    Append, Entry, EntryIndex, EntryKind, Error, NewEntry, OplogStore, SqliteOplogStore, Writer,
};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

const FOLDER: &str = "LEASEHOLD_OPLOG_CHILD_FOLDER";
const ORDERS: &str = "LEASEHOLD_OPLOG_CHILD_ORDERS";
const SHARD: ShardId = ShardId(1);
const STEP_AROUND_AFTER: Duration = Duration::from_millis(250);
/// Far more than a step takes on a busy machine; the bound that is asserted.
const BOUND: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings { step_around_after: STEP_AROUND_AFTER, ..Settings::default() }
}

/// The generation that was read, and what was found in it.
async fn verify(folder: impl AsRef<Path>) -> Result<(u64, Report), Error> {
    let store = SqliteAudit::open(folder).await?;
    let report = audit::check(Layers::indexed(&store), &Options::default(), &mut |_| ()).await?;
    Ok((store.generation().await, report))
}

fn agent() -> AgentId {
    AgentId::new("counter/frozen").unwrap()
}

fn writer(epoch: u64) -> Writer {
    Writer { epoch: ShardEpoch::owned(epoch).unwrap(), executor: ExecutorId::from_u128(u128::from(epoch)) }
}

fn append(writer: Writer, expected: u64) -> Append {
    let body = format!("{expected} by {}", writer.epoch).into_bytes();
    let entries = vec![NewEntry { kind: EntryKind::Invocation, key: None, body }];
    Append { agent: agent(), writer, expected: EntryIndex(expected), entries }
}

async fn entries(store: &SqliteOplogStore, writer: Writer) -> Vec<Entry> {
    store.read(&agent(), writer, EntryIndex(1), u32::MAX).await.unwrap()
}

fn parse(point: &str) -> Option<Point> {
    [Point::Written, Point::Committed, Point::Marked, Point::Copied, Point::Renamed]
        .into_iter()
        .find(|known| format!("{known:?}") == point)
}

/// A child's orders: `epoch point signal`: who it is, and where the signal hits it (nowhere: `-`). It claims, says `claimed`, and
/// appends until it is refused; each acknowledgement and the refusal is a line.
async fn be_a_child(folder: &str, orders: &str) {
    let orders: Vec<&str> = orders.split(' ').collect();
    let (epoch, point) = (orders[0].parse().unwrap(), parse(orders[1]));
    let signal = if orders[2] == "kill" { Signal::KILL } else { Signal::STOP };
    let armed = Arc::new(std::sync::atomic::AtomicBool::new(matches!(
        point,
        Some(Point::Marked | Point::Copied | Point::Renamed)
    )));
    let probe = {
        let armed = Arc::clone(&armed);
        move |at| {
            if Some(at) == point && armed.swap(false, std::sync::atomic::Ordering::SeqCst) {
                kill_process(getpid(), signal).unwrap();
                // Another thread may take the signal: this one must not run on until it has reached them all.
                std::thread::sleep(Duration::from_millis(50));
            }
            Box::pin(std::future::ready(())) as futures::future::BoxFuture<'static, ()>
        }
    };
    let settings = Settings { probe: Some(Arc::new(probe)), ..settings() };
    let store = SqliteOplogStore::open_with(folder, settings).await.unwrap();
    let ours = writer(epoch);
    let mut next = match store.claim(&agent(), SHARD, ours).await {
        Ok(claimed) => claimed.next.0,
        Err(error) => return println!("refused {error:?}"),
    };
    println!("claimed {next}");
    let armed_at = next + 3;
    loop {
        if next == armed_at {
            armed.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        match store.append(append(ours, next)).await {
            Ok(after) => {
                println!("acknowledged {next}");
                next = after.0;
            }
            Err(error) => return println!("refused {error:?}"),
        }
    }
}

/// No-op unless this process was started by [`Process::start`].
#[tokio::test]
async fn a_child_process_does_as_it_is_told() {
    if let (Ok(folder), Ok(orders)) = (std::env::var(FOLDER), std::env::var(ORDERS)) {
        be_a_child(&folder, &orders).await;
    }
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(folder: &Path, orders: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_child_process_does_as_it_is_told", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder)
            .env(ORDERS, orders)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The next line of the child's own.
    async fn line(&mut self) -> Option<String> {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await.expect("the child says something").unwrap()?;
            // The harness prints the test's name without a line end before the first line.
            let said = line.rsplit("... ").next().unwrap_or_default().to_owned();
            if ["claimed", "acknowledged", "refused"].iter().any(|word| said.starts_with(word)) {
                return Some(said);
            }
        }
    }

    async fn claimed(&mut self) {
        assert!(self.line().await.unwrap().starts_with("claimed"));
    }

    /// Reads to the refusal; returns the last acknowledged index and the refusal.
    async fn rest(&mut self) -> (u64, Option<String>) {
        let mut last = 0;
        while let Some(line) = self.line().await {
            match line.strip_prefix("acknowledged ") {
                Some(index) => last = index.parse().unwrap(),
                None => return (last, Some(line)),
            }
        }
        (last, None)
    }

    /// Waits until the child has stopped itself.
    async fn stopped(&self) {
        let path = format!("/proc/{}/stat", self.child.id().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let stat = std::fs::read_to_string(&path).unwrap();
            if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
        panic!("the child did not stop");
    }
}

/// Takes over at `epoch` and appends, within the bound.
async fn take_over(store: &SqliteOplogStore, epoch: u64) -> u64 {
    let began = Instant::now();
    let found = store.claim(&agent(), SHARD, writer(epoch)).await.unwrap().next.0;
    assert_eq!(store.append(append(writer(epoch), found)).await, Ok(EntryIndex(found + 1)));
    assert!(began.elapsed() < BOUND, "took {:?}", began.elapsed());
    found
}

/// Every index once, in order; whoever wrote it, epochs never fall, and the new owner's begin at `taken_over_at`.
fn check(entries: &[Entry], owner: Writer, taken_over_at: u64) {
    assert!(entries.iter().zip(1..).all(|(entry, index)| entry.index.0 == index));
    assert!(entries.is_sorted_by_key(|entry| entry.writer.epoch));
    assert!(entries.iter().all(|entry| (entry.writer == owner) == (entry.index.0 >= taken_over_at)));
}

/// The child freezes itself at `point`; the parent takes over; the child thaws and must not acknowledge anything.
async fn frozen_at(point: Point) {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let mut child = Process::start(folder.path(), &format!("5 {point:?} stop"));
    child.claimed().await;
    child.stopped().await;
    let found = take_over(&store, 6).await;
    child.signal(Signal::CONT);
    let (last, refusal) = child.rest().await;
    assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains("Fenced")), "{refusal:?}");
    assert!(last < found, "acknowledged {last}, the next owner found {found}");
    check(&entries(&store, writer(6)).await, writer(6), found);
    let (_, report) = verify(folder.path()).await.unwrap();
    assert!(report.proven(), "{report:?}");
}

/// Case 31, case 30, S5 in storage: the write lock is held by a stopped process.
#[tokio::test]
async fn a_writer_frozen_inside_its_transaction_is_stepped_around_and_fenced_when_it_wakes() {
    frozen_at(Point::Written).await;
}

/// F7: the commit happened, nobody was told; the next owner sees it, or nobody ever does.
#[tokio::test]
async fn a_writer_frozen_after_its_commit_is_fenced_when_it_wakes() {
    frozen_at(Point::Committed).await;
}

/// Case 31, at random moments: wherever the signal hits, also inside SQLite.
#[tokio::test]
async fn wherever_a_writer_is_frozen_the_next_owner_gets_on_and_nothing_acknowledged_is_lost() {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut epoch = 0;
    for _ in 0..24 {
        epoch += 2;
        let mut child = Process::start(folder.path(), &format!("{} - stop", epoch - 1));
        child.claimed().await;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_micros(random >> 33 & 0x7fff)).await;
        child.signal(Signal::STOP);
        let found = take_over(&store, epoch).await;
        child.signal(Signal::CONT);
        let (last, refusal) = child.rest().await;
        assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains("Fenced")), "{refusal:?}");
        assert!(last < found, "epoch {epoch}: acknowledged {last}, the next owner found {found}");
        check(&entries(&store, writer(epoch)).await, writer(epoch), found);
    }
    let (_, report) = verify(folder.path()).await.unwrap();
    assert!(report.proven(), "{report:?}");
}

/// A holder of the lock that stays frozen, and a stepper that is hit at `point` while it steps around it.
async fn stepper_hit_at(point: Point, signal: &str) {
    let folder = TempDir::new().unwrap();
    let first = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let mut holder = Process::start(folder.path(), "5 Written stop");
    holder.claimed().await;
    holder.stopped().await;
    let mut stepper = Process::start(folder.path(), &format!("6 {point:?} {signal}"));
    if signal == "kill" {
        timeout(PATIENCE, stepper.child.wait()).await.expect("the stepper dies").unwrap();
    } else {
        stepper.stopped().await;
    }
    let found = take_over(&first, 7).await;
    holder.signal(Signal::CONT);
    let (_, refusal) = holder.rest().await;
    assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains("Fenced")), "{refusal:?}");
    if signal == "stop" {
        stepper.signal(Signal::CONT);
        let (_, refusal) = stepper.rest().await;
        assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains("Fenced")), "{refusal:?}");
    }
    assert_eq!(first.append(append(writer(7), found + 1)).await, Ok(EntryIndex(found + 2)));
    check(&entries(&first, writer(7)).await, writer(7), found);
    let (_, report) = verify(folder.path()).await.unwrap();
    assert!(report.proven(), "{report:?}");
}

#[tokio::test]
async fn a_stepper_killed_after_its_marker_is_replaced() {
    stepper_hit_at(Point::Marked, "kill").await;
}

#[tokio::test]
async fn a_stepper_killed_after_its_copy_is_replaced() {
    stepper_hit_at(Point::Copied, "kill").await;
}

#[tokio::test]
async fn a_stepper_killed_after_its_rename_has_made_the_generation() {
    stepper_hit_at(Point::Renamed, "kill").await;
}

#[tokio::test]
async fn a_stepper_frozen_after_its_marker_is_stepped_around() {
    stepper_hit_at(Point::Marked, "stop").await;
}

#[tokio::test]
async fn a_stepper_frozen_after_its_copy_is_stepped_around() {
    stepper_hit_at(Point::Copied, "stop").await;
}

#[tokio::test]
async fn a_stepper_frozen_after_its_rename_does_no_harm() {
    stepper_hit_at(Point::Renamed, "stop").await;
}

/// Four processes' worth of handles find the lock frozen at the same moment.
#[tokio::test]
async fn steppers_at_the_same_moment_end_in_one_generation() {
    let folder = TempDir::new().unwrap();
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(Arc::new(SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap()));
    }
    let mut holder = Process::start(folder.path(), "5 Written stop");
    holder.claimed().await;
    holder.stopped().await;
    let mut tasks = Vec::new();
    for (number, store) in (0_u64..).zip(&stores) {
        let store = Arc::clone(store);
        tasks.push(tokio::spawn(async move {
            let agent = AgentId::new(format!("counter/{number}")).unwrap();
            let ours = writer(6 + number);
            let next = store.claim(&agent, SHARD, ours).await.unwrap().next;
            let append = Append { agent: agent.clone(), ..append(ours, next.0) };
            store.append(append).await.unwrap();
            (agent, ours)
        }));
    }
    let mut written = Vec::new();
    for task in tasks {
        written.push(timeout(BOUND, task).await.expect("in time").unwrap());
    }
    holder.signal(Signal::CONT);
    let line = holder.line().await.unwrap();
    assert!(line.starts_with("acknowledged"), "nobody took this one's oplog: {line}");
    for store in &stores {
        for (agent, ours) in &written {
            let entries = store.read(agent, *ours, EntryIndex(1), 10).await.unwrap();
            assert_eq!(entries.len(), 1, "every handle sees every write");
        }
    }
    assert!(verify(folder.path()).await.unwrap().1.proven());
}

/// Old files go once nobody has them open.
#[tokio::test]
async fn generations_that_nobody_has_open_are_deleted() {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let mut holder = Process::start(folder.path(), "5 Written stop");
    holder.claimed().await;
    holder.stopped().await;
    take_over(&store, 6).await;
    entries(&store, writer(6)).await;
    assert!(folder.path().join("gen-000001.db").exists(), "the frozen process has it open");
    holder.signal(Signal::CONT);
    drop(holder.rest().await);
    timeout(PATIENCE, holder.child.wait()).await.unwrap().unwrap();
    let next = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().starts_with("gen-000002")), "{left:?}");
    assert_eq!(entries(&next, writer(6)).await, entries(&store, writer(6)).await);
}

/// Case 8: a stale owner that only reads.
#[tokio::test]
async fn a_read_in_an_old_generation_is_not_answered_from_it() {
    let folder = TempDir::new().unwrap();
    let store = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let stale = SqliteOplogStore::open_with(folder.path(), settings()).await.unwrap();
    let mut holder = Process::start(folder.path(), "5 Written stop");
    holder.claimed().await;
    holder.stopped().await;
    assert!(stale.read(&agent(), writer(5), EntryIndex(1), 10).await.is_ok(), "still the owner");
    take_over(&store, 6).await;
    let fenced = Error::Fenced { recorded: Some(writer(6)), offered: writer(5) };
    assert_eq!(stale.read(&agent(), writer(5), EntryIndex(1), 10).await, Err(fenced.clone()));
    assert_eq!(stale.find(&agent(), writer(5), "k").await, Err(fenced));
    assert_eq!(stale.recorded(&agent()).await, Ok(Some(writer(6))));
}
