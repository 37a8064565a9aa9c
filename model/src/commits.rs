//! Group commit: which commands a write carries, and what everybody is told once its outcome is known.
//!
//! While one write is in flight, commands collect; the next write carries all of them in the order in which they came. Nobody is
//! answered before the outcome of its write is *known*: one that is in doubt is looked up, and is taken neither for done nor for
//! failed meanwhile. When the store turns out to be somebody else's, or an outcome cannot be learnt, everything is lost from then on.

use crate::command::{Changes, Command, Draft, Outcome};
use crate::ids::Revision;
use crate::leader::{BatchId, CommitFailure, Committed};
use crate::refusal::Refusal;
use crate::state::ClusterState;
use std::sync::Arc;

/// What the store said of a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Said {
    /// It is stored.
    Stored,
    /// Nothing is stored; the same may succeed later.
    NotStored(String),
    /// Nothing is stored: this process does not own the store, or cannot use it.
    NotOurs(String),
    /// It may or may not be stored.
    Unknown(String),
}

/// How a write ended, once that is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WriteEnd {
    /// It is stored.
    Applied,
    /// Nothing is stored.
    Refused(String),
    /// Nothing more can be written, or known, by this process.
    Lost(String),
}

impl Said {
    /// The end of the write.
    ///
    /// # Errors
    /// With what was said, if that is not known: then it is to be looked up, and [`looked_up`] says what that means.
    pub fn end(self) -> Result<WriteEnd, String> {
        match self {
            Self::Stored => Ok(WriteEnd::Applied),
            Self::NotStored(why) => Ok(WriteEnd::Refused(why)),
            Self::NotOurs(why) => Ok(WriteEnd::Lost(why)),
            Self::Unknown(why) => Err(why),
        }
    }
}

/// The end of a write of which the store had said `unknown`: whether it was found to be stored, or why that could not be learnt.
#[must_use]
pub fn looked_up(unknown: &str, found: Result<bool, String>) -> WriteEnd {
    match found {
        Ok(true) => WriteEnd::Applied,
        Ok(false) => WriteEnd::Refused(format!("{unknown}; looked up since: nothing was written")),
        Err(why) => WriteEnd::Lost(format!("the outcome of a write could not be learnt: {why}")),
    }
}

/// One write, as a store is asked for it: all or nothing, and only if the store is at `expected`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Due {
    /// The revision that it builds on.
    pub expected: Revision,
    /// The revision that it makes.
    pub next: Revision,
    /// What it changes.
    pub changes: Arc<Changes>,
}

/// A batch's end, for whoever waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ended<W> {
    /// Who waits.
    pub to: W,
    /// Which batch.
    pub batch: BatchId,
    /// How.
    pub result: Result<Committed, CommitFailure>,
}

/// What [`Commits::begin`] came to.
#[derive(Debug)]
pub enum Begun<W> {
    /// Nothing waits, or a write is in flight.
    Nothing,
    /// What waited changes nothing (R32): it has ended.
    Unchanged(Vec<Ended<W>>),
    /// Write this, then call [`Commits::end`].
    Write(Due),
}

#[derive(Debug, Clone, Hash)]
struct Batch<W> {
    id: BatchId,
    commands: Vec<Command>,
    to: W,
}

/// A batch in a write, with what each of its commands came to.
#[derive(Debug, Clone, Hash)]
struct Applied<W> {
    id: BatchId,
    results: Vec<Result<Outcome, Refusal>>,
    to: W,
}

/// A write whose outcome is not known yet.
#[derive(Debug, Clone, Hash)]
struct Flight<W> {
    batches: Vec<Applied<W>>,
    state: Arc<ClusterState>,
    changes: Arc<Changes>,
}

/// The writes of one leadership; `W` says who waits for a batch.
#[derive(Debug, Clone, Hash)]
pub struct Commits<W> {
    committed: Arc<ClusterState>,
    waiting: Vec<Batch<W>>,
    flight: Option<Flight<W>>,
    lost: Option<String>,
}

impl<W> Commits<W> {
    /// Writes on top of `committed`, which is what is stored.
    #[must_use]
    pub const fn new(committed: Arc<ClusterState>) -> Self {
        Self { committed, waiting: Vec::new(), flight: None, lost: None }
    }

    /// What is known to be stored.
    #[must_use]
    pub const fn committed(&self) -> &Arc<ClusterState> {
        &self.committed
    }

    /// How many batches wait for the next write.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is a write whose outcome is not known yet.
    #[must_use]
    pub const fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// How many commands the write in flight carries.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.flight.iter().flat_map(|flight| &flight.batches).map(|batch| batch.results.len()).sum()
    }

    /// Why nothing can be written any more, if so.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Takes a batch for the next write. Answers it at once if there will be none.
    #[must_use]
    pub fn add(&mut self, id: BatchId, commands: Vec<Command>, to: W) -> Vec<Ended<W>> {
        self.waiting.push(Batch { id, commands, to });
        self.refuse_if_lost()
    }

    /// Makes one write of everything that waits.
    pub fn begin(&mut self) -> Begun<W> {
        if self.flight.is_some() || self.waiting.is_empty() {
            return Begun::Nothing;
        }
        let mut draft = Draft::on(&self.committed);
        let mut batches = Vec::new();
        for Batch { id, commands, to } in self.waiting.drain(..) {
            let results = commands.iter().map(|command| draft.apply(command)).collect();
            batches.push(Applied { id, results, to });
        }
        let (state, changes) = draft.finish();
        let (expected, next) = (self.committed.revision, state.revision);
        let (state, changes) = (Arc::new(state), Arc::new(changes));
        let unchanged = changes.is_empty();
        let due = Due { expected, next, changes: Arc::clone(&changes) };
        self.flight = Some(Flight { batches, state, changes });
        if unchanged { Begun::Unchanged(self.end(&WriteEnd::Applied)) } else { Begun::Write(due) }
    }

    /// The outcome of the write in flight is known: who is told what.
    #[must_use]
    pub fn end(&mut self, end: &WriteEnd) -> Vec<Ended<W>> {
        let Some(Flight { batches, state, changes }) = self.flight.take() else { return Vec::new() };
        match end {
            WriteEnd::Applied => self.committed = Arc::clone(&state),
            WriteEnd::Refused(_) => {}
            WriteEnd::Lost(why) => self.lost = Some(why.clone()),
        }
        let ended = batches.into_iter().map(|Applied { id, results, to }| {
            let result = match end {
                WriteEnd::Applied => {
                    Ok(Committed { state: Arc::clone(&state), changes: Arc::clone(&changes), results })
                }
                WriteEnd::Refused(why) => Err(CommitFailure::Unavailable(why.clone())),
                WriteEnd::Lost(why) => Err(CommitFailure::Lost(why.clone())),
            };
            Ended { to, batch: id, result }
        });
        let mut ended: Vec<Ended<W>> = ended.collect();
        ended.extend(self.refuse_if_lost());
        ended
    }

    fn refuse_if_lost(&mut self) -> Vec<Ended<W>> {
        let Some(why) = self.lost.clone() else { return Vec::new() };
        let lost = |Batch { id, to, .. }| Ended { to, batch: id, result: Err(CommitFailure::Lost(why.clone())) };
        self.waiting.drain(..).map(lost).collect()
    }
}
