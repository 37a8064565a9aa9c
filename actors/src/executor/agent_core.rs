//! One agent's decisions: replay, idempotency, what each outcome of a store call means. Pure: events in, effects out.
//!
//! At any time at most one store call or one wait is under way, and the phase says which:
//!
//! ```text
//! Dormant ─job─▶ Claiming ─▶ Replaying ─▶ Idle ─job─▶ [Finding] ─▶ Appending ─▶ Idle
//!    ▲             │             │  ▲                               │    ▲
//!    └─ could not be had for long┘  └─ another stood there, ─┐      ▼    │ not there
//!                                      or nobody can say ──── ReadingBack ─ it is there ─▶ Idle
//!
//! any ─ fenced ─▶ Fenced (latched, F6)      any ─ stop ─▶ Stopped
//! ```
//!
//! Two detours: a type that decides outside is in `Consulting` before it appends, and a deletion goes from `Claiming` or `Idle`
//! through `Deleting` back to `Dormant`.

mod archiving;
mod deletion;
mod ending;
mod outside;

use super::agent_archive::Archiving;
pub use super::agent_event::{AgentLimits, ArchivePolicy, Effect, Event, Identity, Job, JobId, Moment, Reply, Work};
pub use super::agent_outcome::{APPEND_ATTEMPTS, OPEN_ATTEMPTS, READ_BACK_ATTEMPTS};
use super::agent_outcome::{backoff, given_up, parse, retryable, stored};
use super::agent_phase::{Closing, Consulting, Phase, Running};
use super::agent_recent::Recent;
use super::agent_type::{AgentState, AgentType, Decider, Decision, MAX_EVENTS};
use super::oplog_entry::{Body, EntryId, Invoked, MAX_BODY};
use leasehold_model::fence::Closed;
use leasehold_model::{CallError, Refusal, Tick};
use leasehold_persistence::oplog::{Append, Claimed, Entry, EntryIndex, Error, NewEntry};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;

/// One agent.
pub struct AgentCore {
    identity: Identity,
    kind: Arc<dyn AgentType>,
    limits: AgentLimits,
    state: Box<dyn AgentState>,
    phase: Phase,
    closing: Option<Closing>,
    queue: VecDeque<Job>,
    /// Index of the next entry, once opened.
    next: EntryIndex,
    /// Invocations since the newest snapshot.
    since_snapshot: u32,
    /// Whether the first entry may stand at any index: after a deletion the indexes go on where the old life ended.
    floating: bool,
    /// Entries applied by the replay under way.
    replayed: u64,
    recent: Recent,
    /// Entries made by this incarnation.
    serial: u64,
    /// Attempts made at the present phase's call.
    attempts: u32,
    /// The job that lost its place in the oplog and is decided anew, once.
    conflicted: Option<JobId>,
    /// It was deleted here and nothing has begun a new life since.
    gone: bool,
    /// What moves to the archive layer, and when.
    archiving: Archiving,
    /// What the agent can see of the world at the event in hand.
    moment: Moment,
}

impl AgentCore {
    /// An agent that has read nothing yet.
    #[must_use]
    pub fn new(identity: Identity, kind: Arc<dyn AgentType>, limits: AgentLimits) -> Self {
        let state = kind.start(identity.agent.key());
        Self {
            identity,
            kind,
            limits,
            state,
            phase: Phase::Dormant,
            closing: None,
            queue: VecDeque::new(),
            next: EntryIndex(1),
            since_snapshot: 0,
            floating: false,
            replayed: 0,
            recent: Recent::default(),
            serial: 0,
            attempts: 0,
            conflicted: None,
            gone: false,
            archiving: Archiving::new(limits.archive),
            moment: Moment { now: Tick(0), gate: Err(Closed::NotReady) },
        }
    }

    /// How many jobs may wait.
    #[must_use]
    pub const fn queue_limit(&self) -> usize {
        self.limits.queue
    }

    /// Whom the agent's type asks, if it decides outside.
    #[must_use]
    pub fn decider(&self) -> Option<Arc<dyn Decider>> {
        self.kind.decider()
    }

    /// Takes an event in.
    pub fn step(&mut self, moment: Moment, event: Event, out: &mut Vec<Effect>) {
        self.moment = moment;
        let phase = std::mem::replace(&mut self.phase, Phase::Dormant);
        match (phase, event) {
            (Phase::Stopped, _) => self.phase = Phase::Stopped,
            (phase, Event::Asked(job)) => {
                self.phase = phase;
                self.asked(job, out);
            }
            (phase, Event::Stop) => self.stop(phase, out),
            (phase, Event::StopNow) => self.stop_now(phase, out),
            (phase, Event::Leave) => {
                self.phase = phase;
                self.closing.get_or_insert(Closing::Leaving);
            }
            (Phase::Claiming, Event::Claimed(answer)) => self.claimed(answer, out),
            (Phase::Replaying(until), Event::Page(answer)) => self.page(until, answer, out),
            (Phase::Finding(job), Event::Found(answer)) => self.found(job, answer, out),
            (Phase::Appending(running), Event::Appended(answer)) => self.appended(running, answer, out),
            (Phase::ReadingBack(running), Event::Page(answer)) => self.read_back(running, answer, out),
            (Phase::Suspending, Event::Suspended(answer)) => self.suspended(answer, out),
            (Phase::Deleting(deletion), Event::Deleted(answer)) => self.deleted(deletion, answer, out),
            (Phase::Consulting(consulting), Event::Decided(answer)) if consulting.asked => {
                self.decided(consulting, answer, out);
            }
            (Phase::Consulting(consulting), Event::Woke) if !consulting.asked => self.consult(consulting, out),
            (phase, Event::Woke) => {
                self.phase = phase;
                self.issue(out);
            }
            (phase, Event::Archived(answer)) => self.archived(phase, answer, out),
            (phase, Event::ArchiveDue) => {
                self.phase = phase;
                self.archiving.woke();
            }
            // The answer to a call of a phase that is over.
            (
                phase,
                Event::Claimed(_)
                | Event::Page(_)
                | Event::Found(_)
                | Event::Appended(_)
                | Event::Suspended(_)
                | Event::Deleted(_)
                | Event::Decided(_),
            ) => self.phase = phase,
        }
        self.advance(out);
        self.look_at_layers(out);
    }

    // --- Jobs ---

    fn asked(&mut self, job: Job, out: &mut Vec<Effect>) {
        let refusal = if let Phase::Fenced(recorded) = self.phase {
            self.identity.fenced(recorded)
        } else if self.closing == Some(Closing::Swept) {
            self.identity.handoff()
        } else if self.queue.len() >= self.limits.queue {
            let resource = format!("queue of agent {}", self.identity.agent);
            Refusal::Overloaded { resource, used: self.queue.len() as u64, limit: self.limits.queue as u64 }
        } else {
            return self.queue.push_back(job);
        };
        out.push(Effect::Answer(job.id, Err(refusal.into())));
    }

    /// Begins what can be begun.
    fn advance(&mut self, out: &mut Vec<Effect>) {
        self.stay_deleted(out);
        if self.phase == Phase::Dormant && !self.queue.is_empty() {
            self.gone = false;
            self.enter(Phase::Claiming, out);
        }
        while self.phase == Phase::Idle {
            let Some(job) = self.queue.pop_front() else { break };
            match self.gate(self.moment, &job) {
                Ok(()) => self.begin(job, out),
                Err(refusal) => out.push(Effect::Answer(job.id, Err(refusal.into()))),
            }
        }
        if self.queue.is_empty() {
            match (&self.phase, self.closing) {
                (Phase::Idle, Some(Closing::Leaving)) => self.enter(Phase::Suspending, out),
                (Phase::Idle | Phase::Dormant, Some(Closing::Swept)) | (Phase::Dormant, Some(Closing::Leaving)) => {
                    self.end(out);
                }
                _ => {}
            }
        }
    }

    /// Whether `job` may begin now: the check that whatever was queued behind a lapse or a sweep must pass (case 34).
    fn gate(&self, moment: Moment, job: &Job) -> Result<(), Refusal> {
        match moment.gate {
            // Being open is no invocation: it admits nobody.
            _ if job.work == Work::Open => Ok(()),
            Err(Closed::NotReady) => Err(Refusal::ShardingNotReady { executor: self.identity.executor.to_string() }),
            Err(Closed::NotHeld) => Err(self.identity.handoff()),
            Ok(()) if moment.now >= job.until => {
                let resource = format!("agent {}: its callers' patience", self.identity.agent);
                Err(Refusal::Overloaded { resource, used: 1, limit: 1 })
            }
            Ok(()) => Ok(()),
        }
    }

    fn begin(&mut self, job: Job, out: &mut Vec<Effect>) {
        match &job.work {
            Work::Open => out.push(Effect::Answer(job.id, Ok(Reply::default()))),
            Work::Delete => self.delete(job, out),
            Work::Invoke { key: Some(key), .. } => {
                if let Some(answer) = self.recent.find(key) {
                    out.push(Effect::Answer(job.id, Ok(Reply { payload: answer.to_vec(), replayed: true })));
                } else if self.recent.complete {
                    self.decide(job, out);
                } else {
                    self.enter(Phase::Finding(job), out);
                }
            }
            Work::Invoke { key: None, .. } => self.decide(job, out),
        }
    }

    fn decide(&mut self, job: Job, out: &mut Vec<Effect>) {
        self.phase = Phase::Idle;
        let Work::Invoke { method, payload, .. } = &job.work else {
            unreachable!("only invocations are decided, this is {job:?}")
        };
        let payload = match parse(payload) {
            Ok(payload) => payload,
            Err(invalid) => return out.push(Effect::Answer(job.id, Err(Refusal::InvalidField(invalid).into()))),
        };
        match self.state.decide(method, &payload) {
            Decision::Outside(state) => {
                let question = self.question(&job, payload, state);
                self.consult(Box::new(Consulting { job, question, attempts: 0, asked: false }), out);
            }
            decision @ (Decision::Reject(_)
            | Decision::UnknownMethod
            | Decision::Answer(_)
            | Decision::Append { .. }) => self.settle(job, decision, out),
        }
    }

    /// Does what was decided for `job`, here or outside.
    fn settle(&mut self, job: Job, decision: Decision, out: &mut Vec<Effect>) {
        self.phase = Phase::Idle;
        let Work::Invoke { method, .. } = &job.work else {
            unreachable!("only invocations are decided, this is {job:?}")
        };
        let answer = match decision {
            Decision::Outside(_) => unreachable!("what is decided outside is asked first, this is {job:?}"),
            Decision::Reject(why) => Err(Refusal::InvocationRejected { why }),
            Decision::UnknownMethod => {
                Err(Refusal::UnknownMethod { what: format!("{}.{method}", self.identity.agent.kind()) })
            }
            Decision::Answer(answer) => Ok(Reply { payload: answer.to_string().into(), replayed: false }),
            Decision::Append { events, answer } => {
                match self.running(job.clone(), events, answer.to_string().into(), out) {
                    Ok(running) => return self.enter(Phase::Appending(Box::new(running)), out),
                    Err(refusal) => Err(refusal),
                }
            }
        };
        out.push(Effect::Answer(job.id, answer.map_err(CallError::from)));
    }

    /// Makes the entries: the invocation, and before it a snapshot when one is due.
    fn running(
        &mut self,
        job: Job,
        events: Vec<Value>,
        answer: Vec<u8>,
        out: &mut Vec<Effect>,
    ) -> Result<Running, Refusal> {
        let Work::Invoke { method, key, .. } = &job.work else {
            unreachable!("only invocations have entries, this is {job:?}")
        };
        let reject = |why| Err(Refusal::InvocationRejected { why });
        if events.len() > MAX_EVENTS {
            return reject(format!("it would make {} events, {MAX_EVENTS} are allowed", events.len()));
        }
        let invoked = Invoked { method: method.clone(), answer: answer.clone(), events: events.clone() };
        let entry = self.entry(&Body::Invocation(invoked), key.clone());
        if entry.body.len() > MAX_BODY {
            return reject(format!("its entry would have {} bytes, {MAX_BODY} are allowed", entry.body.len()));
        }
        let mut entries = Vec::with_capacity(2);
        if self.since_snapshot >= self.limits.snapshot_every {
            let snapshot = self.entry(&Body::Snapshot(self.state.snapshot()), None);
            if snapshot.body.len() > MAX_BODY {
                // Tried again only after another `snapshot_every` invocations.
                self.since_snapshot = 0;
                out.push(Effect::SnapshotTooBig(snapshot.body.len()));
            } else {
                entries.push(snapshot);
            }
        }
        entries.push(entry);
        let Identity { agent, writer, .. } = self.identity.clone();
        let append = Append { agent, writer, expected: self.next, entries };
        Ok(Running { job, append, events, answer, doubt: None, attempts: 0 })
    }

    fn entry(&mut self, body: &Body, key: Option<String>) -> NewEntry {
        self.serial += 1;
        NewEntry { kind: body.kind(), key, body: body.encode(EntryId::new(self.identity.life, self.serial)) }
    }

    // --- Answers of the store ---

    fn claimed(&mut self, answer: Result<Claimed, Error>, out: &mut Vec<Effect>) {
        match answer {
            Ok(claimed) => {
                if self.delete_unread(claimed.next, out) {
                    return;
                }
                self.state = self.kind.start(self.identity.agent.key());
                self.recent = Recent { complete: claimed.snapshot.is_none(), ..Recent::default() };
                self.next = claimed.snapshot.unwrap_or(EntryIndex(1));
                self.floating = claimed.snapshot.is_none();
                self.since_snapshot = 0;
                self.replayed = 0;
                if self.next >= claimed.next {
                    self.phase = Phase::Idle;
                } else {
                    self.enter(Phase::Replaying(Some(claimed.next)), out);
                }
            }
            Err(error) => self.retry_or_give_up(Phase::Claiming, error, out),
        }
    }

    fn page(&mut self, until: Option<EntryIndex>, answer: Result<Vec<Entry>, Error>, out: &mut Vec<Effect>) {
        let entries = match answer {
            Ok(entries) => entries,
            Err(error) => return self.retry_or_give_up(Phase::Replaying(until), error, out),
        };
        if let Err(corrupt) = entries.iter().try_for_each(|entry| self.replay(entry)) {
            return self.give_up_reading(&corrupt, out);
        }
        let short = (entries.len() as u64) < u64::from(self.limits.page);
        if let Some(until) = until.filter(|_| self.floating && entries.is_empty()) {
            // Whatever was there before was deleted.
            self.next = until;
        }
        match until {
            Some(until) if self.next < until && short => {
                let what = format!("entries up to {} were claimed, {} is missing", until.0 - 1, self.next.0);
                self.give_up_reading(&self.identity.corrupt(self.next, what), out);
            }
            Some(until) if self.next < until => self.enter(Phase::Replaying(Some(until)), out),
            None if !short => self.enter(Phase::Replaying(None), out),
            Some(_) | None => {
                self.phase = Phase::Idle;
                out.push(Effect::Replayed(self.replayed));
            }
        }
    }

    /// Takes one stored entry into the state.
    fn replay(&mut self, entry: &Entry) -> Result<(), Error> {
        let at = entry.index;
        if std::mem::take(&mut self.floating) {
            self.next = at;
        }
        if at != self.next {
            return Err(self.identity.corrupt(at, format!("{} was expected here", self.next.0)));
        }
        match Body::decode(entry.entry.kind, &entry.entry.body).map_err(|e| self.identity.corrupt(at, e.to_string()))? {
            Body::Snapshot(state) => {
                self.state.restore(&state).map_err(|e| self.identity.corrupt(at, e.to_string()))?;
                self.since_snapshot = 0;
            }
            Body::Invocation(invoked) => {
                self.apply(&invoked.events).map_err(|why| self.identity.corrupt(at, why))?;
                self.remember(entry.entry.key.clone(), invoked.answer);
            }
        }
        self.next = EntryIndex(at.0 + 1);
        self.replayed += 1;
        Ok(())
    }

    fn found(&mut self, job: Job, answer: Result<Option<Entry>, Error>, out: &mut Vec<Effect>) {
        match answer {
            Ok(None) => self.decide(job, out),
            Ok(Some(entry)) => {
                self.phase = Phase::Idle;
                let answer = match Body::decode(entry.entry.kind, &entry.entry.body) {
                    Ok(Body::Invocation(invoked)) => Ok(Reply { payload: invoked.answer, replayed: true }),
                    Ok(Body::Snapshot(_)) => Err("a snapshot has an idempotency key".to_owned()),
                    Err(error) => Err(error.to_string()),
                };
                let answer = answer.map_err(|what| given_up(&self.identity.corrupt(entry.index, what)).into());
                out.push(Effect::Answer(job.id, answer));
            }
            Err(Error::Fenced { recorded, .. }) => self.latch(recorded, Some((job.id, false)), out),
            Err(error) => {
                if retryable(&error) && self.wait(APPEND_ATTEMPTS, out) {
                    self.phase = Phase::Finding(job);
                } else {
                    self.phase = Phase::Idle;
                    out.push(Effect::Answer(job.id, Err(given_up(&error).into())));
                }
            }
        }
    }

    fn appended(&mut self, mut running: Box<Running>, answer: Result<EntryIndex, Error>, out: &mut Vec<Effect>) {
        running.attempts += 1;
        match answer {
            Ok(next) if next == running.append_end() => self.finish(*running, out),
            Err(Error::Fenced { recorded, .. }) => {
                self.latch(recorded, Some((running.job.id, running.doubt.is_some())), out)
            }
            // Whose entries stand there: perhaps this append's own, whose answer was lost (case 3).
            Err(Error::IndexConflict { .. }) => self.enter(Phase::ReadingBack(running), out),
            // An answer that contradicts the call is as good as none.
            Ok(_) => self.doubt(running, "its answer contradicts the call".to_owned(), out),
            Err(Error::Unknown(said)) => self.doubt(running, said, out),
            Err(Error::Unavailable(why)) => self.append_again(running, &why, out),
            Err(error @ (Error::Corrupt { .. } | Error::Invalid(_))) if running.doubt.is_none() => {
                self.phase = Phase::Idle;
                out.push(Effect::Answer(running.job.id, Err(given_up(&error).into())));
            }
            Err(error @ (Error::Corrupt { .. } | Error::Invalid(_))) => self.lose(&running, &error.to_string(), out),
        }
    }

    fn doubt(&mut self, mut running: Box<Running>, said: String, out: &mut Vec<Effect>) {
        running.doubt = Some(said);
        self.enter(Phase::ReadingBack(running), out);
    }

    /// F7: what stands where the append was to go decides what became of it.
    fn read_back(&mut self, running: Box<Running>, answer: Result<Vec<Entry>, Error>, out: &mut Vec<Effect>) {
        match answer {
            Ok(entries) if entries.is_empty() => self.append_again(running, "it is not there yet", out),
            Ok(entries) if stored(&running.append, &entries) => self.finish(*running, out),
            Ok(_) => {
                // Another entry has the place, so this append can never be written: it is safe to decide anew.
                if self.conflicted == Some(running.job.id) {
                    let why = "other entries took this one's place repeatedly".to_owned();
                    let refusal = Refusal::StoreUnavailable { why };
                    out.push(Effect::Answer(running.job.id, Err(refusal.into())));
                } else {
                    self.conflicted = Some(running.job.id);
                    self.queue.push_front(running.job);
                }
                self.replayed = 0;
                self.enter(Phase::Replaying(None), out);
            }
            // A fenced reader cannot see whether its last write came before the fence.
            Err(Error::Fenced { recorded, .. }) => {
                self.latch(recorded, Some((running.job.id, running.doubt.is_some())), out)
            }
            Err(error) => {
                if retryable(&error) && self.wait(READ_BACK_ATTEMPTS, out) {
                    self.phase = Phase::ReadingBack(running);
                } else {
                    self.lose(&running, &error.to_string(), out);
                }
            }
        }
    }

    /// The same entries once more, at the same index: if an earlier attempt is written late, one of the two is refused.
    fn append_again(&mut self, running: Box<Running>, why: &str, out: &mut Vec<Effect>) {
        if running.attempts < APPEND_ATTEMPTS {
            self.attempts = running.attempts;
            out.push(Effect::Wait(backoff(running.attempts)));
            self.phase = Phase::Appending(running);
        } else if running.doubt.is_some() {
            self.lose(&running, why, out);
        } else {
            self.phase = Phase::Idle;
            let refusal = Refusal::StoreUnavailable { why: why.to_owned() };
            out.push(Effect::Answer(running.job.id, Err(refusal.into())));
        }
    }

    /// The entries are in the oplog.
    fn finish(&mut self, running: Running, out: &mut Vec<Effect>) {
        self.next = running.append_end();
        if running.append.entries.len() > 1 {
            self.since_snapshot = 0;
        }
        let Work::Invoke { key, .. } = running.job.work else {
            unreachable!("only invocations are appended, this is {:?}", running.job)
        };
        let answer = match self.apply(&running.events) {
            Ok(()) => {
                self.phase = Phase::Idle;
                self.remember(key, running.answer.clone());
                Ok(Reply { payload: running.answer, replayed: false })
            }
            // The agent's type does not understand its own event: the state is not to be trusted, the oplog is.
            Err(why) => {
                self.phase = Phase::Dormant;
                Err(CallError::Unknown(format!("stored, but {} could not apply it: {why}", self.identity.agent)))
            }
        };
        out.push(Effect::Answer(running.job.id, answer));
    }

    fn suspended(&mut self, answer: Result<(), Error>, out: &mut Vec<Effect>) {
        match answer {
            Err(Error::Fenced { recorded, .. }) => self.latch(recorded, None, out),
            // Not marked: the next owner recovers it needlessly, which is harmless. Jobs that came meanwhile reopen it.
            Ok(()) | Err(_) => self.phase = Phase::Dormant,
        }
        if !self.queue.is_empty() && self.closing == Some(Closing::Leaving) {
            self.closing = None;
        }
    }

    // --- Small things ---

    fn enter(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.attempts = 0;
        self.phase = phase;
        self.issue(out);
    }

    /// The call that the phase is about.
    fn issue(&self, out: &mut Vec<Effect>) {
        out.extend(self.phase.call(self.next, self.limits.page));
    }

    /// Waits before another attempt at the present call, if one of `limit` is left.
    fn wait(&mut self, limit: u32, out: &mut Vec<Effect>) -> bool {
        self.attempts += 1;
        let left = self.attempts < limit;
        if left {
            out.push(Effect::Wait(backoff(self.attempts)));
        }
        left
    }

    fn apply(&mut self, events: &[Value]) -> Result<(), String> {
        self.since_snapshot = self.since_snapshot.saturating_add(1);
        events.iter().try_for_each(|event| self.state.apply(event)).map_err(|unreadable| unreadable.0)
    }

    fn remember(&mut self, key: Option<String>, answer: Vec<u8>) {
        if let Some(key) = key {
            self.recent.remember(key, answer, self.limits);
        }
    }
}

#[cfg(test)]
#[path = "agent_core_tests.rs"]
mod tests;
