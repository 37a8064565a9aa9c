//! The directory of generations: which one is current, and how a new one comes to be. The argument is in the parent's
//! documentation; this file keeps its order of events.

use super::{Point, Settings};
use crate::cluster::schema::newest_known;
use crate::oplog::Error;
use futures::future::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("migrations/oplog");

/// How often a stepper shows that it lives, and how often those who wait look.
const HEARTBEAT: Duration = Duration::from_millis(20);

/// At most this much of a wait counts per look: a process that was frozen itself does not blame the others for it.
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// Bytes of a page. Agents append in turn, so that a transaction changes as many pages as there are agents in it, for a row or two each: half of
/// SQLite's usual size is half as much to write.
const PAGE_BYTES: u32 = 2048;

/// Pages of the WAL before they are copied into the database.
const CHECKPOINT_PAGES: u32 = 4000;

/// Results of one call that may lie ready: more than the statements of one call, see `rows::BATCHES`.
const ROW_BUFFER: usize = 256;

/// SQLite's own wait inside one call; between calls the task yields.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_millis(20);

/// What the directory holds, by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub databases: BTreeSet<u64>,
    pub markers: BTreeSet<u64>,
    /// Every number that any file bears.
    pub all: BTreeSet<u64>,
}

impl Listing {
    /// The current generation, unless a newer one is being made.
    fn settled(&self) -> Option<u64> {
        let newest = self.databases.last().copied()?;
        self.markers.last().is_none_or(|marker| *marker <= newest).then_some(newest)
    }

    fn beyond(&self, number: u64) -> bool {
        self.databases.last().is_some_and(|n| *n > number) || self.markers.last().is_some_and(|n| *n > number)
    }
}

/// A generation that this process may open: as long as this lives, nobody deletes its files.
#[derive(Debug)]
pub(super) struct Held {
    pub number: u64,
    _in_use: File,
}

/// The marker of a generation in the making; the lock on it goes with the file.
#[derive(Debug)]
struct Marker {
    path: PathBuf,
    file: File,
}

/// The store's directory, with what it may take.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub path: PathBuf,
    pub settings: Settings,
}

pub(super) fn io(path: &Path, what: &str, error: &std::io::Error) -> Error {
    Error::Unavailable(format!("{}: {what}: {error}", path.display()))
}

/// `Unavailable`, or `Corrupt` when SQLite says that the file itself is wrong.
pub(super) fn classify(place: &str, error: &sqlx::Error) -> Error {
    const CORRUPT: i32 = 11;
    const NOT_A_DATABASE: i32 = 26;
    if let Some(CORRUPT | NOT_A_DATABASE) = primary_code(error) {
        return Error::Corrupt { place: place.into(), what: error.to_string() };
    }
    if matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) {
        return Error::Corrupt { place: place.into(), what: error.to_string() };
    }
    Error::Unavailable(format!("{place}: {error}"))
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse::<i32>().ok().map(|code| code & 0xff)
}

/// What a statement says that fails on purpose; or one that is wrong, which the next statement will tell.
pub(super) fn is_refusal(error: &sqlx::Error) -> bool {
    const ERROR: i32 = 1;
    primary_code(error) == Some(ERROR)
}

/// Somebody else holds a lock that this call needs.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    matches!(primary_code(error), Some(BUSY | LOCKED))
}

impl Directory {
    /// The newest schema that this build makes.
    pub(super) fn newest_schema() -> i64 {
        newest_known(&MIGRATIONS)
    }

    pub(super) fn file(&self, number: u64, extension: &str) -> PathBuf {
        self.path.join(format!("gen-{number:06}.{extension}"))
    }

    pub(super) fn database(&self, number: u64) -> PathBuf {
        self.file(number, "db")
    }

    fn scan(&self) -> Result<Listing, Error> {
        let mut listing = Listing::default();
        let unreadable = |e: std::io::Error| io(&self.path, "cannot be listed", &e);
        for file in std::fs::read_dir(&self.path).map_err(unreadable)? {
            let name = file.map_err(unreadable)?.file_name();
            let Some((stem, extension)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            let Some(number) = stem.strip_prefix("gen-").and_then(|digits| digits.parse().ok()) else { continue };
            listing.all.insert(number);
            match extension {
                "db" => drop(listing.databases.insert(number)),
                "pending" => drop(listing.markers.insert(number)),
                _ => {}
            }
        }
        Ok(listing)
    }

    /// Twice, because a scan may miss what was renamed or removed under it: a database is renamed into place before
    /// its marker goes, so what the first scan missed of both is there for the whole of the second.
    pub(super) fn list(&self) -> Result<Listing, Error> {
        let first = self.scan()?;
        let mut listing = self.scan()?;
        listing.databases.extend(first.databases);
        listing.markers.extend(first.markers);
        Ok(listing)
    }

    /// Whether a newer generation than `number` exists or is being made.
    pub(super) fn superseded(&self, number: u64) -> Result<bool, Error> {
        Ok(self.scan()?.beyond(number) || self.scan()?.beyond(number))
    }

    /// The current generation, once none is being made; makes the first one, and steps around a frozen stepper.
    pub(super) async fn settled(&self, deadline: Instant) -> Result<Held, Error> {
        loop {
            let listing = self.list()?;
            if let Some(number) = listing.settled() {
                if let Some(held) = self.hold(number)? {
                    return Ok(held);
                }
            } else if let Some(marker) = listing.markers.last() {
                self.outwait(*marker, deadline).await?;
            } else {
                self.step().await?;
            }
            if Instant::now() >= deadline {
                return Err(Error::Unavailable(format!("{}: no generation settled in time", self.path.display())));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Takes the shared lock that keeps `number`'s files. `None`: it is going away, look again.
    fn hold(&self, number: u64) -> Result<Option<Held>, Error> {
        let path = self.file(number, "inuse");
        let fail = |e: std::io::Error| io(&path, "cannot be locked", &e);
        let options = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = options().map_err(fail)?;
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(fail(e)),
        }
        let kept = same_file(&file, &path) && self.database(number).exists();
        Ok(kept.then_some(Held { number, _in_use: file }))
    }

    /// Waits for the stepper behind `marker`: until it is done, is found dead (its marker is removed), or has shown no
    /// life for `step_around_after` (it is stepped around).
    async fn outwait(&self, marker: u64, deadline: Instant) -> Result<(), Error> {
        let path = self.file(marker, "pending");
        let mut beat = None;
        let mut silent = Duration::ZERO;
        let mut looked = Instant::now();
        while Instant::now() < deadline {
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return Ok(()) };
            if file.try_lock().is_ok() && same_file(&file, &path) {
                tracing::warn!(marker, "a generation's maker died, its marker is removed");
                return std::fs::remove_file(&path).map_err(|e| io(&path, "cannot be removed", &e));
            }
            let seen = read_beat(&file);
            silent += looked.elapsed().min(LONGEST_LOOK);
            looked = Instant::now();
            if beat != Some(seen) {
                beat = Some(seen);
                silent = Duration::ZERO;
            } else if silent >= self.settings.step_around_after {
                tracing::warn!(marker, "a generation's maker is frozen, it is stepped around");
                return self.step().await;
            }
            drop(file);
            sleep(HEARTBEAT).await;
        }
        Ok(())
    }

    /// Makes the next generation out of the current one. Returns without having done so when somebody else began first.
    pub(super) async fn step(&self) -> Result<(), Error> {
        let listing = self.list()?;
        let newest = listing.databases.last().max(listing.markers.last()).copied().unwrap_or(0);
        let number = newest + 1;
        let Some(marker) = self.mark(number)? else { return Ok(()) };
        // Ours was created after the listing: somebody may have made, and unmarked, this very generation in between.
        if self.list()?.databases.last().is_some_and(|newest| *newest >= number) {
            return std::fs::remove_file(&marker.path).map_err(|e| io(&marker.path, "cannot be removed", &e));
        }
        self.settings.at(Point::Marked).await;
        let copied = tokio::select! {
            copied = self.make(number) => copied,
            broken = beat(&marker) => Err(broken),
        };
        if copied.is_err() {
            self.remove(number, &["copy", "copy-wal", "copy-shm", "copy-journal"]);
        }
        std::fs::remove_file(&marker.path).map_err(|e| io(&marker.path, "cannot be removed", &e))?;
        if number == 1 {
            tracing::info!(generation = number, made = copied.is_ok(), "a new oplog store");
        } else {
            tracing::warn!(
                generation = number,
                made = copied.is_ok(),
                "stepped to a new generation of the oplog store"
            );
        }
        copied
    }

    /// The marker of `number`, locked. `None`: somebody else was first, or took ours for a dead one's before it was locked.
    fn mark(&self, number: u64) -> Result<Option<Marker>, Error> {
        let path = self.file(number, "pending");
        let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            Err(e) => return Err(io(&path, "cannot be created", &e)),
        };
        let locked = file.try_lock().is_ok() && same_file(&file, &path);
        Ok(locked.then_some(Marker { path, file }))
    }

    /// Under the marker: copy what is committed in the newest complete generation, make it durable, then put it in place.
    async fn make(&self, number: u64) -> Result<(), Error> {
        let copy = self.file(number, "copy");
        self.remove(number, &["copy", "copy-wal", "copy-shm", "copy-journal"]);
        if let Some(source) = self.newest()? {
            let place = self.database(source.number).display().to_string();
            let mut link = self.connect(source.number).await?;
            let target = copy.to_string_lossy().into_owned();
            let copied = sqlx::query("VACUUM INTO ?").bind(target).execute(&mut link).await;
            copied.map_err(|e| classify(&place, &e))?;
            link.close().await.map_err(|e| classify(&place, &e))?;
        }
        self.prepare(&copy).await?;
        let (from, to, folder) = (copy.clone(), self.database(number), self.path.clone());
        let synced = tokio::task::spawn_blocking(move || File::open(&from).and_then(|file| file.sync_all())).await;
        let synced = synced.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        synced.map_err(|e| io(&copy, "cannot be made durable", &e))?;
        self.settings.at(Point::Copied).await;
        std::fs::rename(&copy, &to).map_err(|e| io(&to, "cannot be put in place", &e))?;
        self.settings.at(Point::Renamed).await;
        sync_folder(&folder)
    }

    /// Holds the newest complete generation, if there is one yet.
    pub(super) fn newest(&self) -> Result<Option<Held>, Error> {
        for _ in 0..100 {
            match self.list()?.databases.last() {
                None => return Ok(None),
                Some(number) => match self.hold(*number)? {
                    Some(held) => return Ok(Some(held)),
                    None => continue,
                },
            }
        }
        Err(Error::Unavailable(format!("{}: generations change too fast", self.path.display())))
    }

    /// Brings the copy to this build's schema and into WAL mode, so that no opener has to take an exclusive lock.
    async fn prepare(&self, copy: &Path) -> Result<(), Error> {
        let place = copy.display().to_string();
        let options = SqliteConnectOptions::new().filename(copy).create_if_missing(true);
        let options =
            options.page_size(PAGE_BYTES).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        let mut link = options.disable_statement_logging().connect().await.map_err(|e| classify(&place, &e))?;
        migrations(&mut link).await.map_err(|e| Error::Unavailable(format!("{place}: schema: {e}")))?;
        link.close().await.map_err(|e| classify(&place, &e))
    }

    /// A connection to generation `number`, which the caller holds.
    pub(super) async fn connect(&self, number: u64) -> Result<SqliteConnection, Error> {
        let path = self.database(number);
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(false).foreign_keys(false);
        let mut options = options.synchronous(SqliteSynchronous::Full).busy_timeout(BUSY_TIMEOUT);
        options = options.pragma("wal_autocheckpoint", CHECKPOINT_PAGES.to_string());
        if let Some(pages) = self.settings.max_pages {
            options = options.pragma("max_page_count", pages.to_string());
        }
        // Room for every answer of a batch: the thread that writes does not wait for the one that listens.
        let options = options.row_buffer_size(ROW_BUFFER).disable_statement_logging();
        let mut link = options.connect().await;
        for _ in 0..50 {
            match &link {
                Err(e) if is_busy(e) => link = options.connect().await,
                Err(_) | Ok(_) => break,
            }
        }
        link.map_err(|e| classify(&path.display().to_string(), &e))
    }

    /// Refuses a store whose schema another build wrote.
    pub(super) async fn migrate(&self, number: u64, link: &mut SqliteConnection) -> Result<(), Error> {
        let place = self.database(number).display().to_string();
        match migrations(link).await {
            Ok(()) => Ok(()),
            Err(sqlx::migrate::MigrateError::Execute(e)) => Err(classify(&place, &e)),
            Err(sqlx::migrate::MigrateError::VersionMissing(found)) => {
                let known = Self::newest_schema();
                let what = format!(
                    "schema version {found}, this build reads {known}: use the build that made it, or name another folder"
                );
                Err(Error::Unavailable(format!("{place}: {what}")))
            }
            Err(e) => Err(Error::Unavailable(format!("{place}: schema: {e}"))),
        }
    }

    /// Makes the name of the current generation durable, whoever gave it: nothing is acknowledged from a generation
    /// that a power cut could take back.
    pub(super) fn settle(&self) -> Result<(), Error> {
        sync_folder(&self.path)
    }

    /// Deletes generations before `current` that no process has open, and what dead steppers left.
    pub(super) fn clean(&self, current: u64) {
        let Ok(listing) = self.scan() else { return };
        for number in listing.all.into_iter().filter(|number| *number <= current) {
            let marker = self.file(number, "pending");
            if let Ok(file) = OpenOptions::new().write(true).open(&marker) {
                if file.try_lock().is_err() || !same_file(&file, &marker) {
                    continue;
                }
                self.remove(number, &["copy", "copy-wal", "copy-shm", "copy-journal", "pending"]);
            }
            if number == current {
                continue;
            }
            let in_use = self.file(number, "inuse");
            let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&in_use);
            if opened.as_ref().is_ok_and(|file| file.try_lock().is_ok()) {
                self.remove(number, &["db", "db-wal", "db-shm", "db-journal", "copy", "copy-wal", "copy-shm", "inuse"]);
            }
        }
    }

    /// Best effort: what stays is tried again by the next opener.
    fn remove(&self, number: u64, extensions: &[&str]) {
        for extension in extensions {
            drop(std::fs::remove_file(self.file(number, extension)));
        }
    }
}

/// Boxed, because the compiler cannot prove sqlx's own future `Send` for every lifetime.
fn migrations(link: &mut SqliteConnection) -> BoxFuture<'_, Result<(), sqlx::migrate::MigrateError>> {
    Box::pin(MIGRATIONS.run_direct(None, link, false))
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(named)) => ours.ino() == named.ino() && ours.dev() == named.dev(),
        (Ok(_) | Err(_), _) => false,
    }
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| io(folder, "cannot be made durable", &e))
}

fn read_beat(file: &File) -> u64 {
    let mut bytes = [0; 8];
    // A short or failed read is a beat like any other: only its not changing matters.
    drop(file.read_at(&mut bytes, 0));
    u64::from_le_bytes(bytes)
}

/// Counts up in the marker for as long as it is polled; ends only when that fails.
async fn beat(marker: &Marker) -> Error {
    let mut count = 1_u64;
    loop {
        if let Err(e) = marker.file.write_all_at(&count.to_le_bytes(), 0) {
            return io(&marker.path, "cannot be written", &e);
        }
        count += 1;
        sleep(HEARTBEAT).await;
    }
}
