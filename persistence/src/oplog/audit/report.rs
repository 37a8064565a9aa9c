//! What a check found, and what the store holds.

use crate::oplog::Writer;
use std::collections::BTreeMap;
use std::fmt;

/// Findings that are told in full; the others are counted.
pub const MAX_FINDINGS: usize = 100;

/// What the fence promises of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Indexes follow each other without a gap from the first of the life to the next that the record names, in one layer each: the list of
    /// chunks ends where the primary layer begins.
    Contiguous,
    /// Along an oplog epochs never fall: nobody wrote after a later owner had.
    EpochsNeverFall,
    /// In an oplog, each epoch has one writer.
    OneWriterPerEpoch,
    /// The record is not below any entry, and of the same writer at the same epoch.
    RecordNotBelow,
    /// An idempotency key stands in an oplog once.
    KeysUnique,
    /// The newest snapshot, where a recovery begins, is the one that the record names.
    NewestSnapshot,
    /// The idempotency key of an archived entry still leads to it.
    KeysFound,
    /// Everything stored can be read.
    Readable,
}

impl Rule {
    /// Its name for programs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::EpochsNeverFall => "epochs-never-fall",
            Self::OneWriterPerEpoch => "one-writer-per-epoch",
            Self::RecordNotBelow => "record-not-below",
            Self::KeysUnique => "keys-unique",
            Self::NewestSnapshot => "newest-snapshot",
            Self::KeysFound => "keys-found",
            Self::Readable => "readable",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which promise is broken.
    pub rule: Rule,
    /// In which oplog; `None`: in the store as a whole.
    pub agent: Option<String>,
    /// At which entry; `None`: at the record.
    pub index: Option<u64>,
    /// Who wrote that entry, or holds that record, if it can be read.
    pub writer: Option<Writer>,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.agent, self.index) {
            (None, _) => f.write_str("the store: ")?,
            (Some(agent), None) => write!(f, "oplog {agent:?}: ")?,
            (Some(agent), Some(index)) => write!(f, "oplog {agent:?}, entry {index}: ")?,
        }
        f.write_str(&self.what)?;
        self.writer.map_or(Ok(()), |writer| write!(f, " (epoch {}, executor {})", writer.epoch, writer.executor))
    }
}

/// Why oplogs are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Their agents are of one type.
    Type(String),
    /// They belong to one shard.
    Shard(u32),
}

/// How much some oplogs hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Oplogs, deleted ones not included.
    pub oplogs: u64,
    /// Running ones among them.
    pub running: u64,
    /// Deleted ones, of which only the record is left.
    pub deleted: u64,
    /// Entries of the others.
    pub entries: u64,
    /// Snapshots among the entries.
    pub snapshots: u64,
    /// Bytes of the entries' bodies.
    pub bytes: u64,
    /// Entries in the archive layer among them, also if their chunks cannot be read.
    pub archived: u64,
    /// Chunks that they are in.
    pub chunks: u64,
    /// Bytes of those chunks, as they are stored.
    pub stored: u64,
}

impl Usage {
    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.oplogs += other.oplogs;
        self.running += other.running;
        self.deleted += other.deleted;
        self.entries += other.entries;
        self.snapshots += other.snapshots;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.archived += other.archived;
        self.chunks += other.chunks;
        self.stored = self.stored.saturating_add(other.stored);
    }
}

/// What a store holds, and whether it is as the fence promises.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// All of it.
    pub total: Usage,
    /// By type, and by shard.
    pub by: BTreeMap<Kind, Usage>,
    /// The oplog with the most bytes, and how many.
    pub largest: Option<(String, u64)>,
    /// The greatest epoch anywhere: a manager's must be above.
    pub greatest_epoch: u64,
    /// Oplogs that changed again and again while they were read, so that nothing can be said of them.
    pub unsettled: Vec<String>,
    /// The first hundred oplogs of which a part is in blob storage that was not to be had, with why: nothing can be said of that part.
    pub unread: Vec<(String, String)>,
    /// All of those oplogs.
    pub left_unread: u64,
    /// The first hundred findings.
    pub findings: Vec<Finding>,
    /// All findings.
    pub found: u64,
}

impl Report {
    /// Whether every oplog was read and nothing was found.
    #[must_use]
    pub const fn proven(&self) -> bool {
        self.found == 0 && self.unsettled.is_empty() && self.left_unread == 0
    }

    /// Oplogs looked at, deleted ones included.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.total.oplogs + self.total.deleted
    }

    pub(super) fn find(&mut self, finding: Finding) {
        self.found += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }
}
