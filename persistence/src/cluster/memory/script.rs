//! The faults that a store in memory can be told to have.

use super::Snapshot;
use crate::cluster::{Error, Write};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// [`crate::ClusterStore::load`]
    Load,
    /// [`crate::ClusterStore::commit`]
    Commit,
    /// [`crate::ClusterStore::outcome`]
    Outcome,
    /// [`crate::ClusterStore::confirm_leadership`]
    Confirm,
    /// [`crate::ClusterStore::compact`]
    Compact,
}

impl Op {
    /// How a call of this kind says that it does not know: only a write has an outcome.
    pub(super) fn unknown(self, why: String) -> Error {
        match self {
            Self::Commit => Error::Unknown(why),
            Self::Load | Self::Outcome | Self::Confirm | Self::Compact => Error::Unavailable(why),
        }
    }
}

/// What happens to one call. Several can happen to the same call, whatever the order in which they are given.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It takes this long before it is applied (counts on tokio's clock).
    DelayBefore(Duration),
    /// It is applied, and its answer takes this long (counts on tokio's clock).
    DelayAfter(Duration),
    /// It is refused with [`Error::Unavailable`]; nothing is applied.
    Refuse(String),
    /// It never arrives; a commit is answered [`Error::Unknown`], another call [`Error::Unavailable`].
    LoseRequest,
    /// It is applied, and answered as if lost.
    LoseAnswer,
    /// Just before it, somebody who respects no ownership writes to the store: its revision rises by one.
    ForeignWrite,
    /// Just before it, the store is wiped.
    Wipe,
    /// Just before it, a backup is put back.
    Restore(Snapshot),
    /// Just before it, another process takes the store over.
    Depose,
}

/// A call that is about to be applied.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What is called.
    pub op: Op,
    /// How many calls of that kind there were before, over all handles.
    pub number: u64,
    /// Which handle calls, from 1.
    pub handle: u64,
    /// What is to be written.
    pub write: Option<&'a Write>,
}

type Choose = Box<dyn FnMut(&Call<'_>) -> Vec<Fault> + Send>;

#[derive(Default)]
pub(super) struct Script {
    queued: BTreeMap<Op, VecDeque<Vec<Fault>>>,
    choose: Option<Choose>,
    calls: BTreeMap<Op, u64>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("queued", &self.queued).field("calls", &self.calls).finish_non_exhaustive()
    }
}

/// What will happen to one call.
#[derive(Debug, Default)]
pub(super) struct Course {
    pub before: Duration,
    pub after: Duration,
    pub events: Vec<Fault>,
    pub refuse: Option<String>,
    pub lose_request: bool,
    pub lose_answer: bool,
}

impl Course {
    pub const fn takes_time(&self) -> bool {
        !self.before.is_zero() || !self.after.is_zero()
    }

    fn from_faults(faults: Vec<Fault>) -> Self {
        let mut course = Self::default();
        for fault in faults {
            match fault {
                Fault::DelayBefore(span) => course.before += span,
                Fault::DelayAfter(span) => course.after += span,
                Fault::Refuse(why) => course.refuse = Some(why),
                Fault::LoseRequest => course.lose_request = true,
                Fault::LoseAnswer => course.lose_answer = true,
                Fault::ForeignWrite | Fault::Wipe | Fault::Restore(_) | Fault::Depose => course.events.push(fault),
            }
        }
        course
    }
}

impl Script {
    pub fn queue(&mut self, op: Op, faults: Vec<Fault>) {
        self.queued.entry(op).or_default().push_back(faults);
    }

    pub fn choose(&mut self, choose: Choose) {
        self.choose = Some(choose);
    }

    pub fn clear(&mut self) {
        self.queued.clear();
        self.choose = None;
    }

    pub fn course(&mut self, op: Op, handle: u64, write: Option<&Write>) -> Course {
        let calls = self.calls.entry(op).or_default();
        let call = Call { op, number: *calls, handle, write };
        *calls += 1;
        let queued = self.queued.get_mut(&op).and_then(VecDeque::pop_front);
        let faults = queued.or_else(|| self.choose.as_mut().map(|choose| choose(&call)));
        Course::from_faults(faults.unwrap_or_default())
    }
}
