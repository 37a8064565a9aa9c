//! What only a store in a file can suffer: other processes, damage, full disks, kills.

#![cfg(feature = "sqlite")]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use leasehold_model::Revision;
use leasehold_model::state::ClusterState;
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::sqlite::Options;
use leasehold_persistence::cluster::{Error, SqliteClusterStore};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, raw_sql};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use writes::{SHARDS, cluster, count, first_write, raise};

mod writes;

async fn load(store: &SqliteClusterStore) -> ClusterState {
    store.load(&cluster(), count(SHARDS)).await.unwrap()
}

fn text(error: &Error) -> String {
    error.to_string()
}

/// A folder for one store.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn db(&self) -> PathBuf {
        self.0.path().join("manager.db")
    }

    async fn open(&self) -> Result<SqliteClusterStore, Error> {
        let options = Options { busy_timeout: Duration::from_millis(20), address: Some("127.0.0.1:7470".into()) };
        SqliteClusterStore::open_with(self.db(), options).await
    }

    /// A place with a closed store that holds the first write.
    async fn filled() -> (Self, ClusterState) {
        let place = Self::new();
        let store = place.open().await.unwrap();
        let (write, state) = first_write();
        store.commit(&write).await.unwrap();
        (place, state)
    }

    /// Another application's connection.
    async fn connect(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.db()).create_if_missing(true).connect().await.unwrap()
    }

    /// Lets another application do `sql` to the closed file.
    async fn tamper(&self, sql: &'static str) {
        let mut connection = self.connect().await;
        raw_sql("PRAGMA ignore_check_constraints = ON").execute(&mut connection).await.unwrap();
        raw_sql(sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Opening or loading must find the damage; answers where and what.
    async fn damage(&self) -> (String, String) {
        let error = match self.open().await {
            Err(error) => error,
            // Without the state in the message: it is long.
            Ok(store) => store.load(&cluster(), count(SHARDS)).await.map(drop).expect_err("the damage was not found"),
        };
        let Error::Corrupt { place, what } = error else { panic!("{error}") };
        assert!(place.contains("manager.db"), "{place}");
        (place, what)
    }
}

#[tokio::test]
async fn a_manager_that_finds_the_store_taken_is_told_by_whom() {
    let (place, state) = Place::filled().await;
    let mut child = ChildManager::start("hold", &place.db());
    assert_eq!(child.line(), "opened");
    let error = place.open().await.expect_err("the store is taken");
    let Error::NotOwner(why) = &error else { panic!("{error}") };
    for part in [&*place.db().to_string_lossy(), &child.process.id().to_string(), "since 20", "gRPC child:1"] {
        assert!(why.contains(part), "{part} is missing in: {why}");
    }
    child.kill();
    assert!(place.db().with_extension("db.owner").exists(), "the killed process left its note");
    let store = place.open().await.expect("a killed process holds nothing");
    assert_eq!(load(&store).await, state);
}

/// The note is found beside the file itself, by whatever name either of the two came to it.
#[tokio::test]
async fn a_manager_that_comes_through_a_link_is_told_by_whom_the_store_is_held() {
    let (place, _) = Place::filled().await;
    let link = place.0.path().join("link.db");
    std::os::unix::fs::symlink(place.db(), &link).unwrap();
    for (holds, asks) in [(place.db(), link.clone()), (link, place.db())] {
        let mut child = ChildManager::start("hold", &holds);
        assert_eq!(child.line(), "opened");
        let error = SqliteClusterStore::open(&asks).await.expect_err("the store is taken");
        for part in [&*asks.to_string_lossy(), "manager.db", &format!("process {}", child.process.id()), "child:1"] {
            assert!(text(&error).contains(part), "{part} is missing in: {error}");
        }
        child.kill();
    }
}

/// Closing a second descriptor of the file would drop SQLite's locks: so the second opening must not touch it.
#[tokio::test]
async fn a_second_opening_in_the_same_process_is_refused_and_the_first_goes_on() {
    let (place, state) = Place::filled().await;
    let store = place.open().await.unwrap();
    for _ in 0..3 {
        let error = place.open().await.expect_err("the store is taken");
        assert!(text(&error).contains(&format!("process {}", std::process::id())), "{error}");
    }
    fs::create_dir(place.0.path().join("sub")).unwrap();
    let roundabout = place.0.path().join("sub/../manager.db");
    assert!(matches!(SqliteClusterStore::open(roundabout).await, Err(Error::NotOwner(_))));
    let (write, after) = raise(&state);
    store.commit(&write).await.unwrap();
    // SQLite's locks are still there: a child that respects only them, and not ours, sees a database in use.
    let mut child = ChildManager::start("delete-log", &place.db());
    assert_eq!(child.line(), "in use");
    child.wait();
    drop(store);
    assert!(!place.db().with_extension("db.owner").exists(), "the note goes with the ownership");
    assert_eq!(load(&place.open().await.unwrap()).await, after);
}

/// Case 45
#[tokio::test]
async fn a_lock_held_for_longer_than_the_timeout_makes_the_store_unavailable_until_it_is_released() {
    let (place, state) = Place::filled().await;
    let store = place.open().await.unwrap();
    let mut other = place.connect().await;
    raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let (write, after) = raise(&state);
    for _ in 0..3 {
        let error = store.commit(&write).await.expect_err("the database is locked");
        assert!(matches!(&error, Error::Unavailable(why) if why.contains("locked")), "{error}");
    }
    // Reading and leading are not disturbed.
    assert_eq!(load(&store).await, state);
    assert_eq!(store.outcome(write.tag).await, Ok(false));
    assert_eq!(store.confirm_leadership().await, Ok(()));
    raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
}

/// Case 3: somebody who does not respect the lock wrote.
#[tokio::test]
async fn a_foreign_write_to_the_file_ends_in_a_conflict() {
    let (place, state) = Place::filled().await;
    let store = place.open().await.unwrap();
    let mut other = place.connect().await;
    raw_sql("UPDATE head SET revision = 41").execute(&mut other).await.unwrap();
    let (write, _) = raise(&state);
    let conflict = Error::Conflict { expected: Revision(1), found: Revision(41) };
    assert_eq!(store.commit(&write).await, Err(conflict));
}

/// Case 26
#[tokio::test]
async fn a_full_store_refuses_the_whole_write_and_takes_it_when_there_is_room() {
    let place = Place::new();
    let store = place.open().await.unwrap();
    store.execute("PRAGMA max_page_count = 8").await.unwrap();
    let empty = load(&store).await;
    let (write, state) = first_write();
    let error = store.commit(&write).await.expect_err("it does not fit");
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("full")), "{error}");
    assert_eq!(store.outcome(write.tag).await, Ok(false));
    assert_eq!(load(&store).await, empty);
    store.execute("PRAGMA max_page_count = 100000").await.unwrap();
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, state);
}

/// Case 26
#[tokio::test]
async fn a_store_that_became_read_only_is_unavailable_until_it_can_be_written_again() {
    let (place, state) = Place::filled().await;
    let store = place.open().await.unwrap();
    store.execute("PRAGMA query_only = ON").await.unwrap();
    let (write, after) = raise(&state);
    let error = store.commit(&write).await.expect_err("read-only");
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("readonly")), "{error}");
    assert_eq!(load(&store).await, state);
    store.execute("PRAGMA query_only = OFF").await.unwrap();
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
}

/// Case 26: the disk refuses the bytes while COMMIT writes them. The child lives under a limit on the size of files.
#[tokio::test]
async fn a_commit_that_the_disk_refuses_is_unknown_then_found_not_to_be_made_and_can_be_repeated() {
    let (place, state) = Place::filled().await;
    let mut child = ChildManager::start("small-disk", &place.db());
    for expected in ["unknown", "outcome false", "unknown", "outcome false", "committed 2"] {
        assert_eq!(child.line(), expected);
    }
    child.wait();
    assert_eq!(load(&place.open().await.unwrap()).await.revision, state.revision.next());
}

/// Case 26: a disk that is really full. SQLite takes the transaction back by itself, so that nothing is in doubt. Needs root or
/// user namespaces, for a small file system of the child's own.
#[tokio::test]
async fn a_commit_on_a_full_disk_has_surely_not_been_made_and_can_be_repeated_once_there_is_room() {
    let place = Place::new();
    let disk = place.0.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = format!("mount -t tmpfs -o size=512k none '{}'", disk.display());
    let mut child = ChildManager::start_in(&mount, "full-disk", &disk.join("manager.db"));
    for expected in ["unavailable", "outcome false", "unavailable", "outcome false", "committed 2"] {
        assert_eq!(child.line(), expected);
    }
    child.wait();
}

/// S1, S4: a transaction whose sync failed stands in the log, and a crash would bring it back: whatever is said of it is what whoever opens the
/// file next finds. The child's syncs of the log fail while a file says so.
#[tokio::test]
async fn what_is_said_of_a_commit_whose_sync_failed_is_what_a_crash_leaves() {
    let (place, state) = Place::filled().await;
    let mut child = ChildManager::start_with_failing_syncs("failing-sync", &place);
    assert_eq!(child.line(), "unknown");
    assert_eq!(child.line(), "unavailable", "nothing can be said while the disk fails");
    let said = child.line();
    child.kill();
    let left = load(&place.open().await.unwrap()).await.revision;
    let acknowledged = state.revision.next();
    let applied = left == acknowledged.next();
    assert!(applied || left == acknowledged, "{left:?}");
    assert_eq!(said, format!("outcome {applied}"));
}

#[tokio::test]
async fn a_file_that_was_deleted_or_replaced_ends_the_leadership() {
    let (place, state) = Place::filled().await;
    let store = place.open().await.unwrap();
    let away = place.0.path().join("away.db");
    fs::rename(place.db(), &away).unwrap();
    let (write, _) = raise(&state);
    for told in [store.confirm_leadership().await, store.commit(&write).await, store.outcome(1).await.map(drop)] {
        assert!(matches!(&told, Err(Error::NotOwner(why)) if why.contains("deleted")), "{told:?}");
    }
    File::create(place.db()).unwrap();
    let told = store.confirm_leadership().await;
    assert!(matches!(&told, Err(Error::NotOwner(why)) if why.contains("replaced")), "{told:?}");
    fs::rename(&away, place.db()).unwrap();
    assert_eq!(store.confirm_leadership().await, Ok(()), "its own file is back");
    assert_eq!(store.commit(&write).await, Ok(()));
}

/// S4: whatever was acknowledged survives `kill -9` in the middle of commits.
#[tokio::test]
async fn a_kill_in_the_middle_of_commits_loses_nothing_acknowledged() {
    let (place, state) = Place::filled().await;
    let mut acknowledged = state.revision.0;
    for round in 1..=4 {
        let mut child = ChildManager::start("commits", &place.db());
        assert_eq!(child.line(), "opened");
        for _ in 0..25 * round {
            acknowledged = child.line().parse().unwrap();
        }
        // What the pipe still holds was acknowledged before the kill; a line cut in half was not.
        let rest = child.kill();
        if let Some((whole, _)) = rest.rsplit_once('\n') {
            acknowledged = whole.lines().last().map_or(acknowledged, |line| line.parse().unwrap());
        }
        let stored = load(&place.open().await.unwrap()).await;
        assert!((acknowledged..=acknowledged + 1).contains(&stored.revision.0), "{acknowledged}, {}", stored.revision);
        let mut expected = state.clone();
        while expected.revision < stored.revision {
            expected = raise(&expected).1;
        }
        assert_eq!(stored, expected);
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_corrupt_and_stays_as_it_is() {
    let (place, _) = Place::filled().await;
    File::options().write(true).open(place.db()).unwrap().write_all_at(b"not a database", 0).unwrap();
    let before = fs::read(place.db()).unwrap();
    let (_, what) = place.damage().await;
    assert!(what.contains("not a database"), "{what}");
    assert_eq!(fs::read(place.db()).unwrap(), before);
    fs::write(place.db(), "short").unwrap();
    place.damage().await;
    assert_eq!(fs::read(place.db()).unwrap(), b"short");
}

#[tokio::test]
async fn a_file_cut_short_is_corrupt() {
    let (place, _) = Place::filled().await;
    let size = fs::metadata(place.db()).unwrap().len();
    for kept in [size - 4096, size / 2, 4096, 4000] {
        File::options().write(true).open(place.db()).unwrap().set_len(kept).unwrap();
        place.damage().await;
    }
}

#[tokio::test]
async fn a_page_of_nonsense_is_corrupt() {
    let (place, _) = Place::filled().await;
    let pristine = fs::read(place.db()).unwrap();
    let pages = pristine.len() / 4096;
    assert!(pages > 10);
    for page in 1..pages {
        let mut damaged = pristine.clone();
        damaged[page * 4096..][..4096].fill(0xff);
        fs::write(place.db(), damaged).unwrap();
        place.damage().await;
    }
}

#[tokio::test]
async fn a_row_that_decodes_to_nonsense_is_named() {
    const NONSENSE: [(&str, &[&str]); 14] = [
        ("UPDATE shards SET epoch = -1 WHERE shard = 17", &["table shards", "row 17", "column epoch"]),
        ("UPDATE shards SET state = 'own' WHERE shard = 17", &["table shards", "row 17", "column state"]),
        ("UPDATE shards SET state = 'releasing' WHERE shard = 17", &["table shards", "row 17", "column since"]),
        ("UPDATE shards SET executor = NULL WHERE shard = 17", &["table shards", "row 17", "column executor"]),
        ("UPDATE shards SET executor = 'x' WHERE shard = 17", &["table shards", "row 17", "column executor"]),
        ("DELETE FROM executors WHERE name = 'executor-18'", &["table shards", "row 17", "column executor"]),
        ("UPDATE shards SET shard = 1024 WHERE shard = 17", &["table shards", "row 1024", "column shard"]),
        ("UPDATE executors SET weight = 0 WHERE name = 'executor-5'", &["table executors", "05", "column weight"]),
        ("UPDATE executors SET key_hash = x'00' WHERE name = 'executor-5'", &["table executors", "column key_hash"]),
        ("UPDATE executors SET name = 'executor 6' WHERE name = 'executor-5'", &["table executors", "column name"]),
        ("UPDATE executors SET lease_length_ms = 0 WHERE name = 'executor-5'", &["column lease_length_ms"]),
        ("UPDATE executors SET draining = 2 WHERE name = 'executor-5'", &["table executors", "column draining"]),
        ("UPDATE head SET shard_count = 0", &["table head", "column shard_count"]),
        ("DELETE FROM head", &["table head"]),
    ];
    for (sql, parts) in NONSENSE {
        let (place, _) = Place::filled().await;
        place.tamper(sql).await;
        let (named, what) = place.damage().await;
        assert!(parts.iter().all(|part| named.contains(part)), "{sql}: {named}: {what}");
    }
}

#[tokio::test]
async fn rows_that_break_an_invariant_together_are_corrupt() {
    let (place, _) = Place::filled().await;
    place.tamper("UPDATE executors SET name = 'executor-6' WHERE name = 'executor-5'").await;
    let (_, what) = place.damage().await;
    assert!(what.contains("one life per name") && what.contains("executor-6"), "{what}");
}

#[tokio::test]
async fn a_table_that_is_gone_is_corrupt() {
    let (place, _) = Place::filled().await;
    place.tamper("DROP TABLE shards").await;
    let (named, what) = place.damage().await;
    assert!(named.contains("table shards") && what.contains("no such table"), "{named}: {what}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_naming_both_versions() {
    let (place, _) = Place::filled().await;
    place.tamper("INSERT INTO _sqlx_migrations VALUES (4711, 'of the future', '2030-01-01', TRUE, x'00', 0)").await;
    let before = fs::read(place.db()).unwrap();
    let error = place.open().await.expect_err("a newer schema");
    let Error::Incompatible(why) = &error else { panic!("{error}") };
    assert!(why.contains("4711") && why.contains("up to 1"), "{why}");
    assert_eq!(fs::read(place.db()).unwrap(), before);
}

#[tokio::test]
async fn another_applications_database_is_refused_and_stays_as_it_is() {
    for sql in ["CREATE TABLE music (song TEXT)", "PRAGMA application_id = 77"] {
        let place = Place::new();
        place.tamper(sql).await;
        let before = fs::read(place.db()).unwrap();
        let error = place.open().await.expect_err("somebody else's file");
        assert!(matches!(error, Error::Incompatible(_)), "{error}");
        assert_eq!(fs::read(place.db()).unwrap(), before);
    }
}

/// Case 37
#[tokio::test]
async fn a_refused_store_is_the_same_to_the_byte() {
    let (place, _) = Place::filled().await;
    let before = fs::read(place.db()).unwrap();
    let store = place.open().await.unwrap();
    assert!(matches!(store.load(&cluster(), count(128)).await, Err(Error::Incompatible(_))));
    drop(store);
    assert_eq!(fs::read(place.db()).unwrap(), before);
}

/// No waiting helps: the path has to be corrected.
#[tokio::test]
async fn a_path_at_which_no_file_can_be_is_refused_and_named() {
    let place = Place::new();
    fs::write(place.0.path().join("file"), "").unwrap();
    for (path, says) in [("", "directory"), ("no/such/folder.db", "no/such;"), ("file/manager.db", "file")] {
        let path = place.0.path().join(path);
        let error = SqliteClusterStore::open(&path).await.expect_err("no file can be there");
        assert!(matches!(error, Error::Incompatible(_)), "{error:?}");
        assert!(text(&error).contains(&*path.to_string_lossy()) && text(&error).contains(says), "{error}");
    }
}

/// A child process: this test binary, told to play a manager.
struct ChildManager {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

const PART: &str = "CLUSTER_STORE_CHILD_PART";
const DB: &str = "CLUSTER_STORE_CHILD_DB";
/// The file that makes syncs fail.
const FAILING: &str = "CLUSTER_STORE_CHILD_FAILING";

const FAILING_SYNCS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(int fd) {
    char link[64], name[4096];
    const char *failing = getenv("CLUSTER_STORE_CHILD_FAILING");
    if (!failing || access(failing, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 4) return 0;
    name[length] = 0;
    return strcmp(name + length - 4, "-wal") == 0;
}

int fsync(int fd) { if (fails(fd)) { errno = EIO; return -1; } return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { if (fails(fd)) { errno = EIO; return -1; } return syscall(SYS_fdatasync, fd); }
"#;

impl ChildManager {
    fn start(part: &str, db: &Path) -> Self {
        // A write beyond the greatest size of a file is to fail, not to kill.
        let mut shell = Process::new("/bin/sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]);
        Self::start_by(shell, part, db)
    }

    /// After `mount`, in file systems of its own.
    fn start_in(mount: &str, part: &str, db: &Path) -> Self {
        let mut shell = Process::new("unshare");
        shell.args(["--map-root-user", "--mount", "/bin/sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
        Self::start_by(shell, part, db)
    }

    /// With a library before the system's whose syncs of a log fail while [`FAILING`] is there.
    fn start_with_failing_syncs(part: &str, place: &Place) -> Self {
        let (source, library) = (place.0.path().join("syncs.c"), place.0.path().join("syncs.so"));
        fs::write(&source, FAILING_SYNCS).unwrap();
        let built = Process::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
        assert!(built.success());
        let mut shell = Process::new("/usr/bin/env");
        shell.env(FAILING, place.0.path().join("failing"));
        shell.arg(format!("LD_PRELOAD={}", library.display()));
        Self::start_by(shell, part, &place.db())
    }

    fn start_by(mut shell: Process, part: &str, db: &Path) -> Self {
        let mut process = shell
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "this_process_plays_the_manager_that_it_is_told_to", "--nocapture", "--quiet"])
            .env(PART, part)
            .env(DB, db)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// The child's next line, without what the test harness prints around it.
    fn line(&mut self) -> String {
        for _ in 0..20 {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the child has ended");
            if let Some(said) = line.trim_end().strip_prefix("> ") {
                return said.to_owned();
            }
        }
        panic!("the child says nothing");
    }

    /// Kills it and answers what it had said until then, one thing a line.
    fn kill(&mut self) -> String {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest.replace("> ", "")
    }

    fn wait(&mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for ChildManager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn say(what: impl std::fmt::Display) {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("> {what}\n").as_bytes()).unwrap();
    output.flush().unwrap();
}

/// Not a test by itself: the part of the child processes above.
#[tokio::test]
async fn this_process_plays_the_manager_that_it_is_told_to() {
    let Ok(part) = std::env::var(PART) else { return };
    let db = PathBuf::from(std::env::var_os(DB).unwrap());
    println!();
    match part.as_str() {
        "hold" => hold(&db).await,
        "commits" => commit_until_killed(&db).await,
        "delete-log" => use_as_only_connection(&db).await,
        "small-disk" => commit_on_a_small_disk(&db).await,
        "full-disk" => commit_on_a_full_disk(&db).await,
        "failing-sync" => commit_while_syncs_fail(&db).await,
        other => panic!("unknown part {other}"),
    }
}

async fn hold(db: &Path) {
    let options = Options { address: Some("child:1".into()), ..Options::default() };
    let _store = SqliteClusterStore::open_with(db, options).await.unwrap();
    say("opened");
    // Until the parent kills this process or goes away itself.
    let _ = std::io::stdin().read(&mut [0]);
}

async fn commit_until_killed(db: &Path) {
    const BOUND: u32 = 100_000;
    let store = SqliteClusterStore::open(db).await.unwrap();
    let mut state = load(&store).await;
    say("opened");
    for _ in 0..BOUND {
        let (write, after) = raise(&state);
        store.commit(&write).await.unwrap();
        say(after.revision);
        state = after;
    }
}

/// An exclusive lock is granted only when no other process has its SQLite locks on the file.
async fn use_as_only_connection(db: &Path) {
    let options =
        SqliteConnectOptions::new().filename(db).busy_timeout(Duration::ZERO).pragma("locking_mode", "EXCLUSIVE");
    let mut connection = options.connect().await.unwrap();
    let alone = raw_sql("BEGIN IMMEDIATE; COMMIT").execute(&mut connection).await;
    say(if alone.is_ok() { "alone" } else { "in use" });
}

async fn commit_on_a_small_disk(db: &Path) {
    let store = SqliteClusterStore::open(db).await.unwrap();
    let state = load(&store).await;
    let (write, after) = raise(&state);
    // Small enough to stay in memory until COMMIT writes it, and then the log has no room for it.
    limit_file_size(Some(4096));
    for _ in 0..2 {
        match store.commit(&write).await {
            Err(Error::Unknown(_)) => say("unknown"),
            other => say(format!("{other:?}")),
        }
        say(format!("outcome {}", store.outcome(2).await.unwrap()));
    }
    limit_file_size(None);
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
    say(format!("committed {}", after.revision));
}

async fn commit_on_a_full_disk(db: &Path) {
    let store = SqliteClusterStore::open(db).await.unwrap();
    let (write, state) = first_write();
    store.commit(&write).await.unwrap();
    let (write, after) = raise(&state);
    let filler = db.with_extension("filler");
    let mut filling = File::create(&filler).unwrap();
    while filling.write_all(&[1; 1024]).is_ok() {}
    for _ in 0..2 {
        match store.commit(&write).await {
            Err(Error::Unavailable(why)) if why.contains("full") => say("unavailable"),
            other => say(format!("{other:?}")),
        }
        say(format!("outcome {}", store.outcome(write.tag).await.unwrap()));
    }
    fs::remove_file(&filler).unwrap();
    drop(filling);
    store.commit(&write).await.unwrap();
    assert_eq!(load(&store).await, after);
    say(format!("committed {}", after.revision));
}

async fn commit_while_syncs_fail(db: &Path) {
    let store = SqliteClusterStore::open(db).await.unwrap();
    // One that stands in the log and nowhere else, so that the log is not simply done away with.
    let (write, state) = raise(&load(&store).await);
    store.commit(&write).await.unwrap();
    let (write, _) = raise(&state);
    let failing = PathBuf::from(std::env::var_os(FAILING).unwrap());
    File::create(&failing).unwrap();
    match store.commit(&write).await {
        Err(Error::Unknown(_)) => say("unknown"),
        other => say(format!("{other:?}")),
    }
    match store.outcome(write.tag).await {
        Err(Error::Unavailable(_)) => say("unavailable"),
        other => say(format!("{other:?}")),
    }
    fs::remove_file(&failing).unwrap();
    say(format!("outcome {}", store.outcome(write.tag).await.unwrap()));
    // Until the parent kills this process or goes away itself.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Sets the soft limit, up to the hard one.
fn limit_file_size(bytes: Option<u64>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}
