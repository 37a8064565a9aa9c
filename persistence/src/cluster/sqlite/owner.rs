//! Exclusive ownership of a database file for the life of a process.
//!
//! The lock is a `flock` on the database file itself, taken before SQLite opens it. It goes away with the process,
//! however that ends, so there is no stale lock to clean up; and it does not meet SQLite's own locks, which are of
//! another kind (`fcntl`).
//!
//! One thing must never happen: opening that file once more and closing it again, anywhere in this process. Closing any
//! descriptor of a file drops all `fcntl` locks that the process has on it, SQLite's included, without a sign. Hence
//! [`HELD`], which refuses a second opening without touching the file.

use crate::cluster::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Which file a name leads to: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity(u64, u64);

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

/// The files that this process owns. Global because what it guards, the process's `fcntl` locks, is.
static HELD: Mutex<BTreeSet<Identity>> = Mutex::new(BTreeSet::new());

fn held() -> MutexGuard<'static, BTreeSet<Identity>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who holds a store, as written beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    host: String,
    /// RFC 3339, for people.
    since: String,
    address: Option<String>,
}

impl Holder {
    fn this_process(address: Option<&str>) -> Self {
        Self {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            since: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            address: address.map(str::to_owned),
        }
    }
}

/// The name of the file itself, through whatever links `path` leads to it: SQLite keeps its own files beside that, too.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A name beside the file itself, the same for everybody who comes to it.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = real(path).into_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Says who holds `path`, as far as can be told.
fn holder_of(path: &Path) -> Error {
    let holder = fs::read(beside(path, ".owner")).ok().and_then(|text| serde_json::from_slice::<Holder>(&text).ok());
    let who = holder.map_or_else(
        || "another process, which left no readable note of itself".into(),
        |Holder { pid, host, since, address }| {
            let address = address.map_or(String::new(), |address| format!(", gRPC {address}"));
            format!("process {pid} on {host} since {since}{address}")
        },
    );
    let (named, real) = (path.display(), real(path));
    let also = if real == path { String::new() } else { format!(" (that is {})", real.display()) };
    Error::NotOwner(format!("{named}{also} is held by {who}"))
}

/// What an error of the file system means: whether waiting may help, or the path has to be corrected first.
fn unopened(path: &Path, why: &io::Error) -> Error {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match (why.kind(), folder) {
        (io::ErrorKind::NotFound, Some(folder)) if !folder.exists() => Error::Incompatible(format!(
            "cannot open {}: there is no folder {}; make it, or correct the path",
            path.display(),
            folder.display()
        )),
        (
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::PermissionDenied,
            _,
        ) => Error::Incompatible(format!("cannot open {}: {why}", path.display())),
        _ => Error::Unavailable(format!("cannot open {}: {why}", path.display())),
    }
}

/// What can be asked of an ownership from any thread.
#[derive(Debug, Clone)]
pub(super) struct Title {
    path: PathBuf,
    identity: Identity,
}

impl Title {
    /// Checks that the path still leads to the file that is locked. Costs one `stat`.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when it was deleted or replaced: what is written from now on would be lost.
    pub fn check(&self) -> Result<(), Error> {
        let path = self.path.display();
        match fs::metadata(&self.path) {
            Ok(metadata) if Identity::from(&metadata) == self.identity => Ok(()),
            Ok(_) => Err(Error::NotOwner(format!("{path} was replaced by another file"))),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                Err(Error::NotOwner(format!("{path} was deleted or moved away")))
            }
            Err(why) => Err(Error::Unavailable(format!("{path}: {why}"))),
        }
    }
}

/// The ownership of a database file. Must outlive every connection of this process to it.
#[derive(Debug)]
pub(super) struct Ownership {
    title: Title,
    /// Kept for its lock; closed last.
    file: Option<File>,
}

impl Ownership {
    /// Takes the file at `path`, creating it if there is none. `path` is absolute.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when somebody has it, naming whom; [`Error::Incompatible`] when no file can be at such a path, or none
    /// that this user may write; [`Error::Unavailable`] when it cannot be opened otherwise.
    pub fn take(path: &Path, address: Option<&str>) -> Result<Self, Error> {
        let unavailable = |why: io::Error| unopened(path, &why);
        let mut held = held();
        if fs::metadata(path).is_ok_and(|metadata| held.contains(&Identity::from(&metadata))) {
            return Err(holder_of(path));
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(unavailable)?;
        match file.try_lock() {
            Ok(()) => {}
            // Closing the file here is harmless: it is not among those held, so SQLite has no lock on it.
            Err(TryLockError::WouldBlock) => return Err(holder_of(path)),
            Err(TryLockError::Error(why)) => return Err(unavailable(why)),
        }
        let identity = Identity::from(&file.metadata().map_err(unavailable)?);
        let title = Title { path: path.to_owned(), identity };
        // Its previous owner may have been replaced between the opening and the lock.
        title.check()?;
        held.insert(identity);
        drop(held);
        let ownership = Self { title, file: Some(file) };
        ownership.sign(address);
        Ok(ownership)
    }

    pub const fn title(&self) -> &Title {
        &self.title
    }

    pub fn path(&self) -> &Path {
        &self.title.path
    }

    /// Notes beside the file who has it. Only for people: the lock does not depend on it.
    fn sign(&self, address: Option<&str>) {
        let note = serde_json::to_vec(&Holder::this_process(address)).expect("texts and numbers serialize");
        let (draft, target) = (beside(self.path(), ".owner.new"), beside(self.path(), ".owner"));
        if let Err(error) = fs::write(&draft, note).and_then(|()| fs::rename(&draft, &target)) {
            tracing::warn!(path = %target.display(), %error, "cannot note who holds the store");
        }
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        let mut held = held();
        // A file that took this one's name belongs to somebody else, and so does the note.
        if self.title.check().is_ok() {
            let _ = fs::remove_file(beside(self.path(), ".owner"));
        }
        self.file = None;
        held.remove(&self.title.identity);
    }
}
