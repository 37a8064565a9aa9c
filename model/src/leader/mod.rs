//! What the leading manager decides: grants, passes, releases, who is gone.
//!
//! [`Leader::step`] takes one [`Event`] and says what should happen as [`Effect`]s. The shell (the
//! `Leader` actor) performs them and brings results back as events.

mod pass;
mod registration;
mod renewal;
mod standing;
mod standstill;
mod view;

pub use view::{Published, routing_table};

use crate::command::{Changes, Command, Outcome};
use crate::ids::{Address, ExecutorId, ExecutorName, GrantSeq, LeaseKeyHash, ManagerId, Revision, ShardEpoch, ShardId};
use crate::message::{Condition, Push, Registration};
use crate::refusal::Refusal;
use crate::set::{Claim, Grant, ShardSet};
use crate::state::{ClusterState, Executor};
use crate::time::{Tick, Ttl};
use registration::Knocking;
use standing::{Departed, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What an operator can set of a leader's behaviour.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long a lease lasts (R1).
    pub lease: Ttl,
    /// How long a cold cluster waits after its first registration (R33); at most 10 s.
    pub settle: Duration,
    /// How many shards may be on their way at a time (R28).
    pub max_moves: u32,
}

impl Settings {
    /// How often a pass runs at least (R30): a third of a lease.
    #[must_use]
    pub fn pass_interval(&self) -> Duration {
        self.lease.as_duration() / 3
    }

    /// After this long without an answer to a push, or past its usual renewal, an executor is given nothing new.
    #[must_use]
    pub fn lag_after(&self) -> Duration {
        self.lease.as_duration() / 6
    }

    /// An invocation that has been running for this long is shown as trouble (case 35): a sixth of a lease, at least 5 s.
    #[must_use]
    pub fn wedged_after(&self) -> Duration {
        (self.lease.as_duration() / 6).max(Duration::from_secs(5))
    }
}

/// Ties a reply to the request that waits for it. Minted by the shell, unique within one leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Ties the outcome of a commit to its cause. Minted by the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// The facts of a renewal. The key has been hashed by the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewalFacts {
    /// Who.
    pub executor: ExecutorId,
    /// Hash of the key that was presented.
    pub key_hash: LeaseKeyHash,
    /// What it says it holds.
    pub claim: Claim,
    /// The last grant it heard.
    pub heard: GrantSeq,
    /// Epochs recorded by storage above what it was told.
    pub epoch_floors: Vec<(ShardId, ShardEpoch)>,
    /// How it is doing.
    pub condition: Condition,
}

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Committed {
    /// The state after it.
    pub state: Arc<ClusterState>,
    /// What the whole write changed; shared by all batches of one write.
    pub changes: Arc<Changes>,
    /// One per command, in order.
    pub results: Vec<Result<Outcome, Refusal>>,
}

/// Why a commit was not made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CommitFailure {
    /// Provably nothing was written; it may be tried again.
    Unavailable(String),
    /// This process does not own the store any more, or cannot know any more.
    Lost(String),
}

/// The answer of the store to "do we still lead?".
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Confirmation {
    /// Yes, as of a check that began after it was asked for.
    Leads,
    /// No, or it could not be confirmed in time (R7).
    Lost(String),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `Register` arrived.
    Register {
        /// Who waits.
        request: RequestId,
        /// What it said.
        registration: Registration,
        /// Hash of its key.
        key_hash: LeaseKeyHash,
        /// Unix milliseconds, for showing only.
        at_ms: i64,
    },
    /// The address of a registering life was asked who is there (R35).
    Probed {
        /// Whose registration waits for this.
        request: RequestId,
        /// Who answered there, if anybody did.
        answered_by: Option<ExecutorId>,
    },
    /// `RenewShardLease` arrived.
    Renew {
        /// Who waits.
        request: RequestId,
        /// What it said.
        facts: RenewalFacts,
    },
    /// `Deregister` arrived.
    Deregister {
        /// Who waits.
        request: RequestId,
        /// Who leaves.
        id: ExecutorId,
        /// Hash of the key that was presented.
        key_hash: LeaseKeyHash,
    },
    /// An operator asks an executor to leave, or to stay.
    SetDraining {
        /// Who waits.
        request: RequestId,
        /// Which executor.
        name: ExecutorName,
        /// To leave?
        draining: bool,
    },
    /// The store answered [`Effect::Confirm`].
    Confirmed(Confirmation),
    /// A commit ended.
    CommitEnded {
        /// Which.
        batch: BatchId,
        /// How.
        result: Result<Committed, CommitFailure>,
    },
    /// An executor answered a push with its claim.
    PushAnswered {
        /// Who.
        executor: ExecutorId,
        /// What it holds.
        claim: Option<Claim>,
    },
    /// The time armed with [`Effect::Arm`] has come.
    Timer,
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To `Register` and `RenewShardLease`.
    Granted(Grant),
    /// To the others.
    Done,
    /// Nothing was done.
    Refused(Refusal),
    /// It may or may not have been done: the leadership ended before the write's outcome was known.
    Unknown(String),
}

/// A fact for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A claim was not what the executor should hold: pushes to it are not landing (R15).
    ClaimMismatch(ExecutorId),
    /// These leases have ended.
    Lapsed(Vec<ExecutorId>),
    /// A pass ended: shards released and granted by its plan.
    Passed {
        /// Taken out of a set.
        released: usize,
        /// Given away.
        granted: usize,
    },
    /// A pass could not commit and is tried again.
    PassFailed(String),
    /// An executor reported an epoch floor that cannot be minted above.
    FloorRefused(ExecutorId, ShardId, ShardEpoch),
    /// Grants to this executor have gone unheard for a whole lease (R46).
    Unheard(ExecutorId),
    /// A cold cluster waits for more executors (R33).
    Settling,
    /// This leader took no step for so long that it cannot know who was silent meanwhile: no lease ended by that.
    StoodStill {
        /// How long ago its last step was.
        span: Duration,
        /// How many executors have their lease in full from now; the others were not heard since it last stood still.
        in_full: usize,
    },
}

/// What should happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write these as one unit, in order; answered by [`Event::CommitEnded`].
    Commit {
        /// Names the batch in the answer.
        batch: BatchId,
        /// In order.
        commands: Vec<Command>,
    },
    /// Check that this process still leads; answered by [`Event::Confirmed`]. One at a time (R7).
    Confirm,
    /// Answer a request.
    Reply(RequestId, Reply),
    /// Ask `address` who is there; answered by [`Event::Probed`] within a bounded time.
    Probe {
        /// Whose registration waits.
        request: RequestId,
        /// Whom to call.
        address: Address,
    },
    /// An executor has entered: keep a session with it.
    OpenSession(ExecutorId, Address),
    /// An executor is gone: end its session.
    CloseSession(ExecutorId),
    /// The newest set of an executor: deliver it, whatever was to be delivered before (R27).
    Push(Push),
    /// The executor has been seen to have applied this revision: nothing older need be repeated.
    Delivered(ExecutorId, Revision),
    /// Send [`Event::Timer`] at this time; replaces an earlier one.
    Arm(Tick),
    /// A new committed state, with what changed: publish and log it.
    Publish(Arc<ClusterState>, Arc<Changes>),
    /// Forget history up to here; failure is harmless.
    Compact(Revision),
    /// A fact for logs and metrics.
    Note(Note),
    /// This leadership is over.
    EndLeadership(String),
}

/// Why a batch was committed: what to do when it ends.
#[derive(Debug, Clone, Hash)]
enum Purpose {
    Register(RequestId, ExecutorId),
    Answer(RequestId),
    Reap(Vec<ExecutorId>),
    Pass { released: usize, granted: usize },
}

/// The leader's memory. Deadlines live only here (R6).
#[derive(Debug, Clone, Hash)]
pub struct Leader {
    settings: Settings,
    manager: ManagerId,
    began: Tick,
    /// When it last took a step.
    active: Tick,
    /// When it took over, or last woke after having stood still.
    woke: Tick,
    state: Arc<ClusterState>,
    /// Boxed: a map that grows in order is half empty, and pays for its room by the size of a value.
    standings: BTreeMap<ExecutorId, Box<Standing>>,
    departed: Departed,
    knocking: BTreeMap<RequestId, Knocking>,
    /// Requests that wait for a confirmation that has not begun.
    waiting: Vec<(RequestId, ExecutorId)>,
    /// Requests that the confirmation in flight serves; `None` when there is none.
    confirming: Option<Vec<(RequestId, ExecutorId)>>,
    batches: BTreeMap<BatchId, Purpose>,
    next_batch: u64,
    pass: pass::Pass,
    armed: Tick,
    over: bool,
}

impl Leader {
    /// R39: takes over `state`, read linearizably. Every stored lease runs in full from now; every executor is pushed its set; nobody is waited for.
    pub fn take_over(
        settings: Settings,
        manager: ManagerId,
        state: Arc<ClusterState>,
        now: Tick,
        out: &mut Vec<Effect>,
    ) -> Self {
        let mut leader = Self {
            settings,
            manager,
            began: now,
            active: now,
            woke: now,
            state: Arc::clone(&state),
            standings: BTreeMap::new(),
            departed: Departed::default(),
            knocking: BTreeMap::new(),
            waiting: Vec::new(),
            confirming: None,
            batches: BTreeMap::new(),
            next_batch: 0,
            pass: pass::Pass::default(),
            armed: Tick::NEVER,
            over: false,
        };
        out.push(Effect::Publish(Arc::clone(&state), Arc::default()));
        let all: BTreeSet<ExecutorId> = state.executors().map(|(id, _)| id).collect();
        leader.enter(&all, now, out);
        leader.refresh_sets(&all, now, out);
        leader.arm(now.plus(leader.settings.pass_interval()), out);
        leader.want_pass(now, out);
        leader
    }

    /// Takes one fact at `now` and says what should happen.
    pub fn step(&mut self, now: Tick, event: Event, out: &mut Vec<Effect>) {
        if self.over {
            return Self::decline(event, out);
        }
        self.notice_standstill(now, out);
        match event {
            Event::Register { request, registration, key_hash, at_ms } => {
                if let Err(refusal) = self.screen(&registration) {
                    return Self::refuse(request, refusal, out);
                }
                let (id, row) = self.introduce(registration, key_hash, at_ms);
                self.on_register(request, id, row, out);
            }
            Event::Probed { request, answered_by } => self.on_probed(request, answered_by, out),
            Event::Renew { request, facts } => self.on_renew(now, request, facts, out),
            Event::Deregister { request, id, key_hash } => self.on_deregister(request, id, key_hash, out),
            Event::SetDraining { request, name, draining } => self.on_set_draining(request, &name, draining, out),
            Event::Confirmed(confirmation) => self.on_confirmed(now, confirmation, out),
            Event::CommitEnded { batch, result } => self.on_commit_ended(now, batch, result, out),
            Event::PushAnswered { executor, claim } => self.on_push_answered(now, executor, claim.as_ref(), out),
            Event::Timer => self.on_timer(now, out),
        }
    }

    /// After the end of a leadership nobody is left waiting.
    fn decline(event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Register { request, .. }
            | Event::Renew { request, .. }
            | Event::Deregister { request, .. }
            | Event::SetDraining { request, .. } => {
                out.push(Effect::Reply(request, Reply::Refused(Refusal::NotLeader { leader: None })));
            }
            Event::Probed { .. }
            | Event::Confirmed(_)
            | Event::CommitEnded { .. }
            | Event::PushAnswered { .. }
            | Event::Timer => {}
        }
    }

    fn refuse(request: RequestId, refusal: Refusal, out: &mut Vec<Effect>) {
        out.push(Effect::Reply(request, Reply::Refused(refusal)));
    }

    /// The row of `id` if it is registered and `key_hash` is its key's (R36).
    fn authenticated(&self, id: ExecutorId, key_hash: LeaseKeyHash) -> Result<&Arc<Executor>, Refusal> {
        let row = self.state.executor(id).ok_or(Refusal::UnknownExecutor)?;
        if row.key_hash == key_hash {
            Ok(row)
        } else {
            Err(Refusal::BadCredential(crate::refusal::Credential::LeaseKey))
        }
    }

    fn on_deregister(&mut self, request: RequestId, id: ExecutorId, key_hash: LeaseKeyHash, out: &mut Vec<Effect>) {
        match self.authenticated(id, key_hash) {
            Ok(_) => self.commit(Purpose::Answer(request), vec![Command::Deregister(id)], out),
            Err(refusal) => Self::refuse(request, refusal, out),
        }
    }

    fn on_set_draining(&mut self, request: RequestId, name: &ExecutorName, draining: bool, out: &mut Vec<Effect>) {
        match self.state.named(name) {
            Some((id, _)) => self.commit(Purpose::Answer(request), vec![Command::SetDraining(id, draining)], out),
            None => Self::refuse(request, Refusal::UnknownExecutor, out),
        }
    }

    fn on_timer(&mut self, now: Tick, out: &mut Vec<Effect>) {
        self.armed = Tick::NEVER;
        // Also while nobody renews: a leadership that is over must not be noticed by chance.
        self.confirm_now(out);
        self.want_pass(now, out);
        let next = self.next_deadline(now).min(now.plus(self.settings.pass_interval()));
        self.arm(next, out);
    }

    fn arm(&mut self, at: Tick, out: &mut Vec<Effect>) {
        let earliest = at.min(self.armed);
        if earliest != self.armed {
            self.armed = earliest;
            out.push(Effect::Arm(earliest));
        }
    }

    fn commit(&mut self, purpose: Purpose, commands: Vec<Command>, out: &mut Vec<Effect>) {
        let batch = BatchId(self.next_batch);
        self.next_batch += 1;
        self.batches.insert(batch, purpose);
        out.push(Effect::Commit { batch, commands });
    }

    fn on_commit_ended(
        &mut self,
        now: Tick,
        batch: BatchId,
        result: Result<Committed, CommitFailure>,
        out: &mut Vec<Effect>,
    ) {
        let Some(purpose) = self.batches.remove(&batch) else { return };
        match result {
            Ok(committed) => {
                self.pass.refused = None;
                self.adopt(now, &committed, out);
                self.after_commit(now, purpose, &committed.results, out);
            }
            Err(CommitFailure::Unavailable(why)) => self.after_failure(now, purpose, why, out),
            Err(CommitFailure::Lost(why)) => {
                self.batches.insert(batch, purpose);
                self.end(why, out);
            }
        }
    }

    fn after_commit(
        &mut self,
        now: Tick,
        purpose: Purpose,
        results: &[Result<Outcome, Refusal>],
        out: &mut Vec<Effect>,
    ) {
        let refusal = results.iter().find_map(|result| result.clone().err());
        match (purpose, refusal) {
            (Purpose::Register(request, _) | Purpose::Answer(request), Some(refusal)) => {
                Self::refuse(request, refusal, out);
            }
            (Purpose::Register(request, id), None) => {
                if let Some(standing) = self.standings.get_mut(&id) {
                    standing.heard_at = Some(now);
                }
                self.settle_if_cold(now, out);
                self.await_confirmation(request, id, out);
                self.want_pass(now, out);
            }
            (Purpose::Answer(request), None) => {
                out.push(Effect::Reply(request, Reply::Done));
                self.want_pass(now, out);
            }
            (Purpose::Reap(_), _) => self.plan(now, out),
            (Purpose::Pass { released, granted }, _) => self.passed(now, released, granted, out),
        }
    }

    fn after_failure(&mut self, now: Tick, purpose: Purpose, why: String, out: &mut Vec<Effect>) {
        match purpose {
            Purpose::Register(request, _) | Purpose::Answer(request) => {
                // Who asked was told that it was not done, and repeats it; the manager must not.
                self.pass.refused = Some((now, why.clone()));
                Self::refuse(request, Refusal::StoreUnavailable { why }, out);
            }
            Purpose::Reap(ids) => {
                self.unpark(&ids, out);
                self.retry_pass(now, why, out);
            }
            Purpose::Pass { .. } => self.retry_pass(now, why, out),
        }
    }

    /// Takes in a newer committed state: who came, who went, whose set changed. Only from here are sets told (S4).
    fn adopt(&mut self, now: Tick, committed: &Committed, out: &mut Vec<Effect>) {
        if committed.state.revision <= self.state.revision {
            return;
        }
        self.state = Arc::clone(&committed.state);
        let changes = &committed.changes;
        for id in &changes.removed {
            if let Some(standing) = self.standings.remove(id) {
                out.push(Effect::CloseSession(*id));
                for request in standing.parked {
                    Self::refuse(request, Refusal::UnknownExecutor, out);
                }
            }
            self.departed.add(*id);
        }
        let came: BTreeSet<ExecutorId> =
            changes.executors.keys().filter(|id| !self.standings.contains_key(id)).copied().collect();
        self.enter(&came, now, out);
        out.push(Effect::Publish(Arc::clone(&self.state), Arc::clone(changes)));
        if !changes.shards.is_empty() {
            self.refresh_sets(&changes.touched, now, out);
        }
    }

    fn end(&mut self, why: String, out: &mut Vec<Effect>) {
        self.over = true;
        let unknown = Reply::Unknown(format!("the leadership ended in the middle of the write: {why}"));
        let writing: Vec<RequestId> = std::mem::take(&mut self.batches)
            .into_values()
            .filter_map(|purpose| match purpose {
                Purpose::Register(request, _) | Purpose::Answer(request) => Some(request),
                Purpose::Reap(_) | Purpose::Pass { .. } => None,
            })
            .collect();
        out.extend(writing.into_iter().map(|request| Effect::Reply(request, unknown.clone())));
        let waiting = std::mem::take(&mut self.waiting).into_iter().chain(self.confirming.take().into_iter().flatten());
        let knocking = std::mem::take(&mut self.knocking).into_keys();
        let parked = self.standings.values_mut().flat_map(|standing| std::mem::take(&mut standing.parked));
        let requests = waiting.map(|(request, _)| request).chain(knocking).chain(parked);
        let not_leader = Reply::Refused(Refusal::NotLeader { leader: None });
        out.extend(requests.map(|request| Effect::Reply(request, not_leader.clone())));
        out.push(Effect::EndLeadership(why));
    }

    /// The full set of `id` as committed.
    fn set_of(&self, id: ExecutorId) -> ShardSet {
        ShardSet {
            manager: self.manager,
            revision: self.state.revision,
            shard_count: self.state.shard_count,
            shards: self.standings.get(&id).map(|standing| standing.set.clone()).unwrap_or_default(),
        }
    }
}
