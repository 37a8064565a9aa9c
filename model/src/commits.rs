//! Group commit: which commands a write carries, and what everybody is told once its outcome is known.
//!
//! While one write is in flight, commands collect; the next write carries all of them in the order in which they came. Nobody is
//! answered before the outcome of its write is *known*: one that is in doubt is looked up, and is taken neither for done nor for
//! failed meanwhile. A write waits a moment for company: callers that come back as soon as they are answered would otherwise fall into two
//! halves, of which one is always in flight, and the disk would work twice for what it can do at once. When the store turns out to be somebody else's, or an outcome cannot be learnt, everything is lost from then on.

use crate::command::{Changes, Command, Draft, Outcome};
use crate::ids::Revision;
use crate::leader::{BatchId, CommitFailure, Committed};
use crate::refusal::Refusal;
use crate::state::ClusterState;
use std::sync::Arc;
use std::time::Duration;

/// The longest that a write waits for company.
pub const MAX_WAIT: Duration = Duration::from_millis(5);

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

/// Whom the next write is worth waiting for.
#[derive(Debug, Clone, Copy, Default, Hash)]
struct Company {
    /// As many as the last write answered, and as waited then.
    batches: usize,
    /// For how long after its end: half of what it took, at most [`MAX_WAIT`].
    within: Duration,
}

/// The writes of one leadership; `W` says who waits for a batch.
#[derive(Debug, Clone, Hash)]
pub struct Commits<W> {
    committed: Arc<ClusterState>,
    waiting: Vec<Batch<W>>,
    flight: Option<Flight<W>>,
    company: Company,
    lost: Option<String>,
}

impl<W> Commits<W> {
    /// Writes on top of `committed`, which is what is stored.
    #[must_use]
    pub const fn new(committed: Arc<ClusterState>) -> Self {
        let company = Company { batches: 0, within: Duration::ZERO };
        Self { committed, waiting: Vec::new(), flight: None, company, lost: None }
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

    /// Notes that the last write answered `answered` batches after `took`: they may come back.
    pub fn expect(&mut self, answered: usize, took: Duration) {
        self.company = Company { batches: answered + self.waiting.len(), within: (took / 2).min(MAX_WAIT) };
    }

    /// How much longer the next write should wait for company, when `since` is how long ago the last one ended; zero: not at all.
    #[must_use]
    pub fn worth_waiting(&self, since: Duration) -> Duration {
        if self.waiting.len() < self.company.batches {
            self.company.within.saturating_sub(since)
        } else {
            Duration::ZERO
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClusterName, ShardCount, ShardEpoch, ShardId};

    fn commits() -> Commits<&'static str> {
        let (name, count) = (ClusterName::new("test").unwrap(), ShardCount::new(8).unwrap());
        Commits::new(Arc::new(ClusterState::empty(name, count)))
    }

    /// A command that changes something, the first time.
    fn raise(shard: u32) -> Vec<Command> {
        vec![Command::RaiseEpoch { shard: ShardId(shard), above: ShardEpoch::new(7).unwrap() }]
    }

    fn begun(commits: &mut Commits<&'static str>) -> Due {
        let Begun::Write(due) = commits.begin() else { panic!("no write began") };
        due
    }

    fn told<'a>(ended: &[Ended<&'a str>]) -> Vec<(&'a str, BatchId)> {
        ended.iter().map(|ended| (ended.to, ended.batch)).collect()
    }

    #[test]
    fn what_waits_is_written_together_and_told_in_its_order_once_it_is_stored() {
        let mut commits = commits();
        assert!(commits.add(BatchId(1), raise(0), "a").is_empty() && commits.add(BatchId(2), raise(1), "b").is_empty());
        let due = begun(&mut commits);
        assert_eq!((due.expected, due.next, commits.commands()), (Revision(0), Revision(1), 2));
        assert!(commits.add(BatchId(3), raise(2), "c").is_empty(), "it waits for the next write");
        assert!(matches!(commits.begin(), Begun::Nothing), "one at a time");
        let ended = commits.end(&WriteEnd::Applied);
        assert_eq!(told(&ended), [("a", BatchId(1)), ("b", BatchId(2))]);
        assert!(ended.iter().all(|ended| ended.result.as_ref().is_ok_and(|done| done.state.revision == Revision(1))));
        assert_eq!((commits.committed().revision, commits.waiting()), (Revision(1), 1));
    }

    #[test]
    fn a_refused_write_leaves_what_is_stored_and_its_callers_may_ask_again() {
        let mut commits = commits();
        assert!(commits.add(BatchId(1), raise(0), "a").is_empty());
        begun(&mut commits);
        let ended = commits.end(&WriteEnd::Refused("full".into()));
        assert_eq!(ended[0].result, Err(CommitFailure::Unavailable("full".into())));
        assert_eq!((commits.committed().revision, commits.lost()), (Revision(0), None));
        assert!(commits.add(BatchId(2), raise(0), "a").is_empty());
        assert_eq!(begun(&mut commits).expected, Revision(0));
    }

    #[test]
    fn once_all_is_lost_everybody_is_told_so_at_once() {
        let mut commits = commits();
        assert!(commits.add(BatchId(1), raise(0), "a").is_empty());
        begun(&mut commits);
        assert!(commits.add(BatchId(2), raise(1), "b").is_empty());
        let lost = Err(CommitFailure::Lost("foreign".into()));
        let ended = commits.end(&WriteEnd::Lost("foreign".into()));
        assert_eq!(told(&ended), [("a", BatchId(1)), ("b", BatchId(2))]);
        assert!(ended.iter().all(|ended| ended.result == lost));
        let later = commits.add(BatchId(3), raise(2), "c");
        assert_eq!((told(&later), &later[0].result, commits.lost()), (vec![("c", BatchId(3))], &lost, Some("foreign")));
        assert!(matches!(commits.begin(), Begun::Nothing));
    }

    /// R32
    #[test]
    fn what_changes_nothing_is_not_written() {
        let mut commits = commits();
        assert!(commits.add(BatchId(1), raise(0), "a").is_empty());
        begun(&mut commits);
        assert_eq!(commits.end(&WriteEnd::Applied).len(), 1);
        assert!(commits.add(BatchId(2), raise(0), "b").is_empty());
        let Begun::Unchanged(ended) = commits.begin() else { panic!("it was written") };
        assert_eq!((told(&ended), commits.in_flight()), (vec![("b", BatchId(2))], false));
        assert_eq!(commits.committed().revision, Revision(1));
    }

    /// An outcome in doubt is neither: it is looked up.
    #[test]
    fn only_what_is_known_of_a_write_ends_it() {
        let why = || "why".to_owned();
        assert_eq!(Said::Stored.end(), Ok(WriteEnd::Applied));
        assert_eq!(Said::NotStored(why()).end(), Ok(WriteEnd::Refused(why())));
        assert_eq!(Said::NotOurs(why()).end(), Ok(WriteEnd::Lost(why())));
        assert_eq!(Said::Unknown(why()).end(), Err(why()));
        assert_eq!(looked_up("why", Ok(true)), WriteEnd::Applied);
        assert!(matches!(looked_up("why", Ok(false)), WriteEnd::Refused(told) if told.starts_with("why")));
        assert!(matches!(looked_up("why", Err("away".into())), WriteEnd::Lost(told) if told.ends_with("away")));
    }

    #[test]
    fn a_write_waits_for_those_who_may_come_back_and_no_longer_than_half_of_the_last_one() {
        let ms = Duration::from_millis;
        let mut commits = commits();
        assert!(commits.add(BatchId(1), raise(0), "a").is_empty());
        assert_eq!(commits.worth_waiting(ms(0)), ms(0), "nobody has been answered");
        commits.expect(1, ms(8));
        assert_eq!((commits.worth_waiting(ms(0)), commits.worth_waiting(ms(3))), (ms(4), ms(1)));
        assert_eq!((commits.worth_waiting(ms(4)), commits.worth_waiting(ms(60))), (ms(0), ms(0)));
        assert!(commits.add(BatchId(2), raise(1), "b").is_empty());
        assert_eq!(commits.worth_waiting(ms(0)), ms(0), "all are there");
        commits.expect(9, ms(1000));
        assert_eq!(commits.worth_waiting(ms(0)), MAX_WAIT);
    }
}
