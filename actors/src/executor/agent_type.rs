//! What an agent type is: a deterministic, event-sourced state machine. Public API of the library: whoever embeds an
//! executor implements [`AgentType`] and [`AgentState`].
//!
//! An invocation is *decided* against the present state, what it decides is appended to the agent's oplog, and only
//! then are its events *applied* and the caller answered. Recovery restores the newest snapshot and applies the events
//! after it. So `decide` must not change anything, and `apply` must give the same state each time it sees the same events.

use async_trait::async_trait;
use leasehold_model::{AgentId, ShardEpoch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What an invocation comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The agent says no, in these words. Nothing is stored; the caller gets `INVOCATION_REJECTED`.
    Reject(String),
    /// The type has no such method; the caller gets `UNKNOWN_METHOD`.
    UnknownMethod,
    /// A read: answered at once, nothing is stored (an idempotency key is not remembered either).
    Answer(Value),
    /// A change: `events` (at most [`MAX_EVENTS`]) are stored with the answer in one entry, then applied, then the caller is answered.
    Append {
        /// What changes. May be empty: then only the answer is remembered under the idempotency key.
        events: Vec<Value>,
        /// What the caller is told, now and whenever it asks again under the same idempotency key.
        answer: Value,
    },
    /// Somebody outside this process decides: the type's [`Decider`] is asked, and told this of the state.
    Outside(Value),
}

/// What a [`Decider`] is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Which agent.
    pub agent: AgentId,
    /// Which method.
    pub method: String,
    /// Its argument.
    pub payload: Value,
    /// What the agent's state said in [`Decision::Outside`].
    pub state: Value,
    /// The invocation's idempotency key, the same in every attempt.
    pub idempotency_key: Option<String>,
    /// The epoch under which the shard is held.
    pub epoch: ShardEpoch,
}

/// Whether the agent may still begin anything: to be looked at right before a call leaves (F6). Cheap, and takes no lock.
#[derive(Clone)]
pub struct Admission(Arc<dyn Fn() -> bool + Send + Sync>);

impl Admission {
    /// One that stands for as long as `stands` says so.
    pub fn new(stands: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(stands))
    }

    /// Whether it stands now: the lease is live and the shard is held at the same epoch.
    #[must_use]
    pub fn stands(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Admission").field(&self.stands()).finish()
    }
}

/// Why a [`Decider`] did not decide. Nothing is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// It may work in a moment: it is asked again, with back-off, while the caller waits.
    #[error("{0}")]
    Away(String),
    /// Asking again does not help; the caller gets `APP_FAULT`.
    #[error("{0}")]
    Unusable(String),
}

/// Decides for a type of agents, outside of the executor's threads. It is asked at least once for each invocation (again after
/// a failure, a crash or a move of the shard), for one invocation of an agent at a time; what it decides is stored exactly once.
///
/// Dropping the returned future must break the call off: the shard was lost. The decider bounds its own time.
#[async_trait]
pub trait Decider: Send + Sync + 'static {
    /// What the method comes to: anything but [`Decision::Outside`]. Whoever waits before he calls anybody looks at `admission`
    /// again, and answers [`Undecided::Away`] if it does not stand any more.
    ///
    /// # Errors
    /// Why there is no decision, and whether asking again may help.
    async fn decide(&self, question: Question, admission: Admission) -> Result<Decision, Undecided>;
}

/// The most events of one invocation.
pub const MAX_EVENTS: usize = 4096;

/// A stored event or snapshot that the type cannot read: written by another version of it, or damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// One agent's state. Synchronous and bounded: a method computes for microseconds to milliseconds and does no I/O,
/// reads no clock and draws no random numbers (what it needs of these comes in the payload).
pub trait AgentState: Send + 'static {
    /// What `method` with `payload` comes to. Changes nothing.
    fn decide(&self, method: &str, payload: &Value) -> Decision;

    /// Takes a stored event into the state.
    ///
    /// # Errors
    /// When the event is not one of this type's.
    fn apply(&mut self, event: &Value) -> Result<(), Unreadable>;

    /// The whole state; at most 1 MiB, or it is not stored and recovery replays from an older one.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the state by what [`AgentState::snapshot`] gave.
    ///
    /// # Errors
    /// When it is not a snapshot of this type.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable>;
}

/// A kind of agent.
pub trait AgentType: Send + Sync + 'static {
    /// The part before the `/` of its agents' ids: 1 to 128 letters, digits, `.`, `_`, `-`.
    fn name(&self) -> &str;

    /// The state of an agent that has no entry yet; `key` is the part of its id after the `/`.
    fn start(&self, key: &str) -> Box<dyn AgentState>;

    /// Who decides where [`AgentState::decide`] answers [`Decision::Outside`]. Recovery never asks it.
    fn decider(&self) -> Option<Arc<dyn Decider>> {
        None
    }
}

/// The agent types that an executor hosts, by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct AgentTypes(Arc<BTreeMap<String, Arc<dyn AgentType>>>);

impl AgentTypes {
    /// Hosts `types`; of two with one name the later wins.
    #[must_use]
    pub fn new(types: impl IntoIterator<Item = Arc<dyn AgentType>>) -> Self {
        Self(Arc::new(types.into_iter().map(|kind| (kind.name().to_owned(), kind)).collect()))
    }

    /// The same and `more`; of two with one name the later wins.
    #[must_use]
    pub fn with(&self, more: impl IntoIterator<Item = Arc<dyn AgentType>>) -> Self {
        Self::new(self.0.values().cloned().chain(more))
    }

    /// The type named `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<dyn AgentType>> {
        self.0.get(name)
    }

    /// Every name, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Debug for AgentTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
