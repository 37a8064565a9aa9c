//! How far a load has come, so that an interrupted one goes on where it was instead of asking everything again.

use super::words::{Kind, Per};
use super::{Exit, Failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Which invocations are answered: every one below [`Progress::completed`], and some above it.
#[derive(Debug, Default)]
pub struct Progress {
    next: u64,
    /// Under way, or failed.
    open: BTreeSet<u64>,
}

impl Progress {
    /// Everything below `next` is answered.
    #[must_use]
    pub const fn from(next: u64) -> Self {
        Self { next, open: BTreeSet::new() }
    }

    /// The next ordinal, which from now on is under way.
    pub fn begin(&mut self) -> u64 {
        let ordinal = self.next;
        self.open.insert(ordinal);
        self.next += 1;
        ordinal
    }

    /// `ordinal` was answered. One that failed just stays open.
    pub fn answered(&mut self, ordinal: u64) {
        self.open.remove(&ordinal);
    }

    /// The next ordinal that [`Progress::begin`] would give.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Every ordinal below this one is answered.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }
}

/// What a progress file says: whose progress it is and how far it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The first part of every idempotency key.
    pub run_id: String,
    /// The input's fingerprint.
    pub input: u64,
    /// What an invocation is made of.
    pub per: Per,
    /// Which agents count.
    pub kind: Kind,
    /// The method.
    pub method: String,
    /// Every ordinal below this one was answered.
    pub completed: u64,
}

impl Saved {
    /// Reads `path`; `None` if there is no such file.
    ///
    /// # Errors
    /// Exit code 64 when it is no progress file.
    pub fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let refuse = |why: String| Failure::new(Exit::Usage, format!("--progress {}: {why}", path.display()));
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| refuse(format!("not a progress file ({error}); remove it to start anew"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refuse(error.to_string())),
        }
    }

    /// Replaces `path`: whoever reads it finds the old or the new text, whole.
    ///
    /// # Errors
    /// Exit code 1 when it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let written = || -> std::io::Result<()> {
            let mut beside: PathBuf = path.to_owned();
            beside.as_mut_os_string().push(".new");
            let mut file = File::create(&beside)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&beside, path)
        };
        let why = |error: std::io::Error| format!("--progress {}: cannot be written: {error}", path.display());
        written().map_err(|error| Failure::new(Exit::Failed, why(error)))
    }

    /// As [`Saved::write`], before the first invocation: a place where nothing can be kept is a mistake of who named it.
    ///
    /// # Errors
    /// Exit code 64 when it cannot be written.
    pub fn begin(&self, path: &Path) -> Result<(), Failure> {
        self.write(path).map_err(|failure| Failure::new(Exit::Usage, format!("{failure}; nothing was sent")))
    }

    /// Checks that this is the progress of the same load as `asked`.
    ///
    /// # Errors
    /// Exit code 64, naming what differs.
    pub fn check(&self, asked: &Self) -> Result<(), Failure> {
        let word = |value: &dyn fmt::Debug| format!("{value:?}").to_lowercase();
        let differs = [
            (self.run_id != asked.run_id, "--run-id", format!(": {}, now {}", self.run_id, asked.run_id)),
            // Before FILE: what is made of it, and so its fingerprint, depends on this.
            (self.per != asked.per, "--per", format!(": {}, now {}", word(&self.per), word(&asked.per))),
            (self.input != asked.input, "FILE", ", or of other contents".to_owned()),
            // Before the method, which follows from it unless it is given.
            (self.kind != asked.kind, "--type", format!(": {}, now {}", word(&self.kind), word(&asked.kind))),
            (self.method != asked.method, "--method", format!(": {}, now {}", self.method, asked.method)),
        ];
        match differs.into_iter().find(|(differs, ..)| *differs) {
            None => Ok(()),
            Some((_, what, how)) => Err(Failure::new(
                Exit::Usage,
                format!(
                    "--progress: the file is the progress of a load with another {what}{how} (run {}); remove it to start anew",
                    self.run_id
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_is_the_first_ordinal_that_is_under_way_or_failed() {
        let mut progress = Progress::from(10);
        assert_eq!(progress.completed(), 10);
        let begun: Vec<u64> = (0..4).map(|_| progress.begin()).collect();
        assert_eq!(begun, [10, 11, 12, 13]);
        progress.answered(11);
        assert_eq!(progress.completed(), 10);
        progress.answered(10);
        assert_eq!(progress.completed(), 12);
        // 12 failed: it stays open however far the others come.
        progress.answered(13);
        assert_eq!((progress.completed(), progress.next()), (12, 14));
    }

    #[test]
    fn a_progress_file_is_read_back_and_belongs_to_one_load() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.json");
        assert_eq!(Saved::read(&path).unwrap(), None);
        let method = "add".to_owned();
        let saved = Saved { run_id: "r".into(), input: 7, per: Per::Word, kind: Kind::Counter, method, completed: 9 };
        saved.write(&path).unwrap();
        assert_eq!(Saved::read(&path).unwrap(), Some(saved.clone()));
        assert!(saved.check(&Saved { completed: 0, ..saved.clone() }).is_ok());
        // Another --per makes another fingerprint of the same file, another --type another method: the setting is named, not what follows.
        let others = [
            (Saved { run_id: "s".into(), ..saved.clone() }, "another --run-id: r, now s"),
            (Saved { input: 8, ..saved.clone() }, "another FILE"),
            (Saved { input: 8, per: Per::Line, ..saved.clone() }, "another --per: word, now line"),
            (Saved { kind: Kind::Tally, method: "seen".into(), ..saved.clone() }, "another --type: counter, now tally"),
            (Saved { method: "seen".into(), ..saved.clone() }, "another --method: add, now seen"),
        ];
        for (asked, named) in others {
            let told = saved.check(&asked).unwrap_err();
            assert!(told.exit == Exit::Usage && told.message.contains(named), "{told}");
        }
        fs::write(&path, "{").unwrap();
        assert!(Saved::read(&path).unwrap_err().message.contains("not a progress file"));
    }
}
