//! What an agent hears and what it wants done: the words that [`super::agent_core`] speaks with its shell.

use super::agent_type::{Decision, Question, Undecided};
use leasehold_model::fence::Closed;
use leasehold_model::{AgentId, CallError, ExecutorName, Refusal, ShardEpoch, ShardId, Tick};
use leasehold_persistence::oplog::layers::{Moved, Upto};
use leasehold_persistence::oplog::{Append, Claimed, Entry, EntryIndex, Error, Writer};
use std::time::Duration;

/// Bounds of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLimits {
    /// Invocations that may wait behind the running one.
    pub queue: usize,
    /// A snapshot goes before the invocation that follows this many without one.
    pub snapshot_every: u32,
    /// Idempotency keys kept in memory; older ones are looked up in the store.
    pub recent_keys: usize,
    /// Bytes of keys and answers kept in memory with them.
    pub recent_bytes: usize,
    /// Entries per page of a replay.
    pub page: u32,
    /// When entries move to the archive layer; `None`: never.
    pub archive: Option<ArchivePolicy>,
}

/// When entries move to the archive layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchivePolicy {
    /// This many of the newest stay where they were written. The others move once they are a quarter of that, 256 at most.
    pub after_entries: u32,
    /// Those that the agent has known for so long move, however few there are.
    pub after_age: Duration,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { queue: 256, snapshot_every: 100, recent_keys: 256, recent_bytes: 256 * 1024, page: 256, archive: None }
    }
}

/// Which agent, and who writes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The agent.
    pub agent: AgentId,
    /// Its shard.
    pub shard: ShardId,
    /// Epoch and executor life that its entries bear.
    pub writer: Writer,
    /// The executor's name, for refusals.
    pub executor: ExecutorName,
    /// Tells the entries of this incarnation of the agent from those of every other.
    pub life: u64,
}

impl Identity {
    pub(super) fn corrupt(&self, at: EntryIndex, what: String) -> Error {
        Error::Corrupt { place: format!("{} entry {}", self.agent, at.0), what }
    }

    pub(super) fn handoff(&self) -> Refusal {
        Refusal::HandoffInProgress { shard: self.shard, why: format!("it leaves executor {}", self.executor) }
    }

    pub(super) const fn fenced(&self, recorded: ShardEpoch) -> Refusal {
        Refusal::EpochFenced { held: self.writer.epoch, recorded }
    }
}

/// Numbers the jobs of one agent.
pub type JobId = u64;

/// What an agent is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// To be open: answered when it is.
    Open,
    /// To be deleted, with all that it remembers.
    Delete,
    /// To run a method.
    Invoke {
        /// Which.
        method: String,
        /// JSON text; empty means `null`.
        payload: Vec<u8>,
        /// With a key it is run at most once.
        key: Option<String>,
    },
}

/// One thing asked of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What is asked.
    pub work: Work,
    /// Who asked waits until then: later it is not begun.
    pub until: Tick,
}

/// An agent's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    /// JSON text.
    pub payload: Vec<u8>,
    /// Whether it was read from the oplog.
    pub replayed: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something is asked.
    Asked(Job),
    /// `Claim` came back.
    Claimed(Result<Claimed, Error>),
    /// `Read` came back.
    Page(Result<Vec<Entry>, Error>),
    /// `Find` came back.
    Found(Result<Option<Entry>, Error>),
    /// `Append` came back, or its deadline passed.
    Appended(Result<EntryIndex, Error>),
    /// `Suspend` came back.
    Suspended(Result<(), Error>),
    /// `Delete` came back.
    Deleted(Result<(), Error>),
    /// `Consult` came back.
    Decided(Result<Decision, Undecided>),
    /// `Archive` came back. It runs beside all else.
    Archived(Result<Moved, Error>),
    /// `ArchiveLater` is over.
    ArchiveDue,
    /// `Wait` is over.
    Woke,
    /// The shard is being swept: let what runs finish, begin nothing.
    Stop,
    /// The grace is over.
    StopNow,
    /// Memory is short: leave, marked as not running.
    Leave,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Take the oplog's record.
    Claim,
    /// Read entries from here on, at most so many.
    Read(EntryIndex, u32),
    /// Look up an idempotency key.
    Find(String),
    /// Append.
    Append(Append),
    /// Mark the agent as not running.
    Suspend,
    /// Delete the oplog, whose next index is this.
    Delete(EntryIndex),
    /// Move entries to the archive layer, beside whatever else is done.
    Archive(Upto),
    /// Come back with [`Event::ArchiveDue`] after so long.
    ArchiveLater(Duration),
    /// Ask outside.
    Consult(Question),
    /// Break off what is being asked outside.
    DropConsultation,
    /// Come back with [`Event::Woke`] after so long.
    Wait(Duration),
    /// Answer a job.
    Answer(JobId, Result<Reply, CallError>),
    /// Say that storage refused this writer (F6).
    TellFenced(Option<ShardEpoch>),
    /// Say that a replay ended, of so many entries.
    Replayed(u64),
    /// Say that the state is too big (in bytes) to be kept as a snapshot.
    SnapshotTooBig(usize),
    /// End.
    Stop,
}

/// What the agent can see of the world at an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Now, on the holder's clock.
    pub now: Tick,
    /// Whether the fence still gives the admission that this agent runs under.
    pub gate: Result<(), Closed>,
}
