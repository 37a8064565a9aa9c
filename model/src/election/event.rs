//! What an [`super::Election`] hears and what it asks for.

use crate::ids::Address;
use crate::time::{Tick, Ttl};
use std::fmt;

/// One stay in the queue, as the store names it: on etcd the id of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidacyId(pub i64);

impl fmt::Display for CandidacyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Who is first in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leading {
    /// Whose place it is.
    pub candidacy: CandidacyId,
    /// When the place was taken, in the store's own counting; with it every write of the leadership is conditional.
    pub since: i64,
    /// Where it is reached over gRPC.
    pub address: Address,
}

/// The answer to a call under a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kept<T> {
    /// The lease is there.
    Held(T),
    /// The lease is gone, and the place in the queue with it.
    Gone,
}

/// What happened. `Err` means that a call failed or was not answered: nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The time that was armed has come.
    Timer,
    /// [`Effect::Join`] was answered: the new lease, and the ttl that was granted.
    Joined(Result<(CandidacyId, Ttl), String>),
    /// [`Effect::Enlist`] was answered.
    Enlisted(CandidacyId, Result<Kept<()>, String>),
    /// [`Effect::KeepAlive`] was answered, with the ttl that was granted.
    KeptAlive(CandidacyId, Result<Kept<Ttl>, String>),
    /// [`Effect::Observe`] was answered by a read that saw every write before it.
    Observed(Result<Option<Leading>, String>),
    /// [`Effect::AskLeader`] was answered.
    LeaderAnswered(CandidacyId),
    /// Nothing of the leadership answers, pushes or writes any more; says why it ended.
    Ended(CandidacyId, String),
    /// [`Effect::Leave`] was answered.
    Left(CandidacyId, Result<(), String>),
    /// The process is to end.
    Stop,
}

/// What should happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Open a lease.
    Join(Ttl),
    /// Take a place in the queue under this lease, unless it has one.
    Enlist(CandidacyId),
    /// Keep the lease alive: one call, bounded.
    KeepAlive(CandidacyId),
    /// Say who is first once it is somebody else than this.
    Observe(Option<Leading>),
    /// Lead, until this instant at the latest. Answered by [`Event::Ended`], once, whatever happens.
    Lead(Leading, Tick),
    /// Ask whoever leads in this process whether it works.
    AskLeader(CandidacyId),
    /// The leadership lasts until this instant.
    Extend(Tick),
    /// From now on nothing of the leadership may answer or push.
    TakeDown(End),
    /// End the lease and the place in the queue.
    Leave(CandidacyId),
    /// Callers are sent here.
    Follow(Option<Address>),
    /// Wake up then. Replaces what was armed before.
    Arm(Tick),
    /// Tell people.
    Note(Note),
    /// Everything is given up.
    Exit,
}

/// Why a leadership is taken down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The process is to end: the write in flight may finish first.
    Asked,
    /// It is lost; says how.
    Lost(String),
    /// What leads does not answer, so that nobody waits until it has ended; says for how long.
    Silent(String),
}

/// A call to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Open a lease.
    Join,
    /// Take a place.
    Enlist,
    /// Keep the lease alive.
    KeepAlive,
    /// See who is first.
    Observe,
    /// Give everything up.
    Leave,
}

impl Call {
    /// As metrics and logs spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Enlist => "enlist",
            Self::KeepAlive => "keep_alive",
            Self::Observe => "observe",
            Self::Leave => "leave",
        }
    }
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A call failed and will be repeated.
    Failed(Call, String),
    /// A candidacy ended before it led.
    CandidacyLost(String),
    /// A leadership has ended.
    LeadershipEnded(String),
}
