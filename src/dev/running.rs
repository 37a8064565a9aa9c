//! The `dev`s of this user that run: a file each, which only this user reads, named after the port of its manager and locked for as
//! long as its `dev` lives. A file that nobody has locked was left behind by one that was killed.

use crate::cli::{Exit, Failure};
use leasehold_model::Address;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use uuid::Uuid;

/// Where a running `dev` is asked, as its file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) pid: u32,
    /// Its manager's gRPC address, by which it is told from others.
    pub(super) manager: SocketAddr,
    pub(super) executors: usize,
    /// Where it listens for requests.
    pub(super) address: SocketAddr,
    /// What a request must show.
    pub(super) secret: Uuid,
}

/// The file of this process. It goes with it.
#[derive(Debug)]
pub(super) struct Registered {
    path: PathBuf,
    /// Kept for its lock.
    file: File,
}

/// How often, and after which pauses, a file is tried that somebody looks at just now: they hold its lock for an instant.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The greatest file that is read.
const BYTES_MOST: u64 = 4096;

/// Where the files are.
pub(super) fn folder() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

fn prefix() -> String {
    format!("leasehold-dev-{}-", rustix::process::getuid().as_raw())
}

/// The folder may be everybody's: a file that another user made, or can read, is none of ours.
fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::getuid().as_raw() && metadata.mode() & 0o077 == 0
}

/// Whether `path` still leads to the open `file`.
fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (fs::symlink_metadata(path), file.metadata()) {
        (Ok(there), Ok(here)) => identity(there) == identity(here),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2)");
    options.custom_flags(no_follow).mode(0o600).open(path)
}

impl Registered {
    /// Writes in `folder` where this process is asked.
    ///
    /// # Errors
    /// What the file system says; a file of somebody else in its place.
    pub(super) fn new(folder: &Path, running: &Running) -> io::Result<Self> {
        let path = folder.join(format!("{}{}.json", prefix(), running.manager.port()));
        for _ in 0..TRIES {
            let mut file = open(OpenOptions::new().write(true).create(true).truncate(false), &path)?;
            if !is_ours(&file.metadata()?) {
                return Err(io::Error::other(format!("{} is somebody else's", path.display())));
            }
            match file.try_lock() {
                Ok(()) if leads_to(&path, &file) => {
                    file.set_len(0)?;
                    file.write_all(&serde_json::to_vec(running).expect("plain values"))?;
                    return Ok(Self { path, file });
                }
                // Removed as stale since it was opened.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::other(format!("{} is locked by another process", path.display())))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if leads_to(&self.path, &self.file) {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Every `dev` of this user that runs, by its manager. Files of dead ones are removed.
pub(super) fn list(folder: &Path) -> Vec<Running> {
    let prefix = prefix();
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let ours = entries.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(".json"))
    });
    let mut running: Vec<Running> = ours.filter_map(|entry| look(&entry.path())).collect();
    running.sort_by_key(|running| running.manager);
    running
}

/// What a file says, if its `dev` lives.
fn look(path: &Path) -> Option<Running> {
    let file = open(OpenOptions::new().read(true), path).ok()?;
    if !is_ours(&file.metadata().ok()?) {
        return None;
    }
    match file.try_lock() {
        Ok(()) => {
            if leads_to(path, &file) {
                drop(fs::remove_file(path));
            }
            None
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = Vec::new();
            file.take(BYTES_MOST).read_to_end(&mut text).ok()?;
            serde_json::from_slice(&text).ok()
        }
        Err(TryLockError::Error(_)) => None,
    }
}

/// The one that is meant: by its manager, or because there is no other.
///
/// # Errors
/// Exit code 69 when none runs, or none at that manager; 64 when one of several has to be named.
pub(super) fn choose(running: &[Running], manager: Option<&Address>) -> Result<Running, Failure> {
    let all: String = running
        .iter()
        .map(|dev| format!("\n  --manager {}  (pid {}, {} executors)", dev.manager, dev.pid, dev.executors))
        .collect();
    match (running, manager) {
        ([], _) => Err(Failure::new(
            Exit::NobodyAnswers,
            "no `shard-manager dev` of yours is running; start one in another terminal",
        )),
        (_, Some(manager)) => {
            let port = |dev: &Running| manager.to_string() == format!("localhost:{}", dev.manager.port());
            let meant = running.iter().find(|dev| dev.manager.to_string() == manager.to_string() || port(dev));
            meant.cloned().ok_or_else(|| {
                let told = format!("no `shard-manager dev` of yours has its manager at {manager}; there are{all}");
                Failure::new(Exit::NobodyAnswers, told)
            })
        }
        ([only], None) => Ok(only.clone()),
        (_, None) => Err(Failure::new(
            Exit::Usage,
            format!("{} of your `shard-manager dev`s are running; say which:{all}", running.len()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev(port: u16) -> Running {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Running { pid: 7, manager: at(port), executors: 3, address: at(port + 1), secret: Uuid::from_u128(9) }
    }

    #[test]
    fn each_running_dev_is_listed_and_takes_only_its_own_file_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = Registered::new(folder.path(), &dev(2000)).unwrap();
        let second = Registered::new(folder.path(), &dev(1000)).unwrap();
        assert_eq!(list(folder.path()), [dev(1000), dev(2000)]);
        drop(second);
        assert_eq!(list(folder.path()), [dev(2000)]);
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_nobody_has_locked_is_removed_and_its_port_can_be_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let left_behind = folder.path().join(format!("{}1000.json", prefix()));
        let write = |text: &[u8]| {
            let mut file = open(OpenOptions::new().write(true).create_new(true), &left_behind).unwrap();
            file.write_all(text).unwrap();
        };
        write(&serde_json::to_vec(&dev(1000)).unwrap());
        assert_eq!(list(folder.path()), []);
        assert!(!left_behind.exists());
        write(
            b"the beginning of a longer text than that of whoever comes next, which must not show through"
                .repeat(9)
                .as_slice(),
        );
        let _again = Registered::new(folder.path(), &dev(1000)).unwrap();
        assert_eq!(list(folder.path()), [dev(1000)]);
    }

    #[test]
    fn a_file_that_others_can_read_is_neither_written_nor_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{}1000.json", prefix()));
        fs::write(&path, serde_json::to_vec(&dev(1000)).unwrap()).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        assert_eq!(list(folder.path()), []);
        assert!(Registered::new(folder.path(), &dev(1000)).unwrap_err().to_string().contains("somebody else's"));
    }

    #[test]
    fn one_of_several_has_to_be_named_and_the_only_one_has_not() {
        let address = |text: &str| Address::new(text).unwrap();
        let (one, both) = ([dev(1000)], [dev(1000), dev(2000)]);
        assert_eq!(choose(&one, None), Ok(dev(1000)));
        assert_eq!(choose(&both, Some(&address("127.0.0.1:2000"))), Ok(dev(2000)));
        assert_eq!(choose(&both, Some(&address("localhost:2000"))), Ok(dev(2000)));
        let refused = choose(&both, None).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("--manager 127.0.0.1:1000  (pid 7, 3 executors)"), "{refused}");
        assert!(refused.message.contains("--manager 127.0.0.1:2000"), "{refused}");
        assert_eq!(choose(&[], None).unwrap_err().exit, Exit::NobodyAnswers);
        let elsewhere = choose(&one, Some(&address("127.0.0.1:3000"))).unwrap_err();
        assert_eq!(elsewhere.exit, Exit::NobodyAnswers);
        assert!(elsewhere.message.contains("127.0.0.1:3000") && elsewhere.message.contains("127.0.0.1:1000"));
    }
}
