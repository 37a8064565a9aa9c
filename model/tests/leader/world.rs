//! A store that applies what the core commits, and a record of everything that the core wanted done.

use leasehold_model::command::{Command, Draft};
use leasehold_model::leader::{
    BatchId, CommitFailure, Committed, Confirmation, Effect, Event, Leader, Note, RenewalFacts, Reply, RequestId,
    Settings,
};
use leasehold_model::message::{Condition, LeaseKey, Push, Registration, Weight};
use leasehold_model::routing::HASH_SCHEME;
use leasehold_model::set::Holdings;
use leasehold_model::state::{ClusterState, ShardState};
use leasehold_model::{
    Address, Claim, ClusterName, ExecutorId, ExecutorName, Grant, GrantSeq, LeaseKeyHash, ManagerId, Refusal, Revision,
    ShardCount, ShardEpoch, ShardId, Tick, Ttl,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub const LEASE: Duration = Duration::from_secs(60);

pub fn settings() -> Settings {
    Settings { lease: Ttl::from_duration(LEASE).unwrap(), settle: Duration::ZERO, max_moves: 10_000 }
}

pub fn executor(n: u128) -> ExecutorId {
    ExecutorId::from_u128(n)
}

pub fn key_hash(n: u128) -> LeaseKeyHash {
    let mut hash = [7; 32];
    hash[..16].copy_from_slice(&n.to_be_bytes());
    LeaseKeyHash(hash)
}

/// A leader on a store that is as quick, slow or broken as a test says.
pub struct World {
    pub core: Leader,
    pub now: Tick,
    pub stored: Arc<ClusterState>,
    /// Commits that the core asked for and the test has not let happen yet.
    pub commits: VecDeque<(BatchId, Vec<Command>)>,
    /// Whether commits and confirmations are answered by themselves.
    pub prompt: bool,
    pub confirms: u32,
    pub written: Vec<Vec<Command>>,
    pub replies: BTreeMap<RequestId, Reply>,
    pub pushes: Vec<Push>,
    pub probes: Vec<(RequestId, Address)>,
    pub armed: Tick,
    pub other: Vec<Effect>,
    next_request: u64,
}

impl World {
    pub fn new(shards: u32) -> Self {
        Self::with(shards, settings())
    }

    pub fn with(shards: u32, settings: Settings) -> Self {
        let state = ClusterState::empty(ClusterName::new("test").unwrap(), ShardCount::new(shards).unwrap());
        Self::take_over(Arc::new(state), settings, ManagerId::from_u128(1), Tick(1 << 40))
    }

    pub fn take_over(stored: Arc<ClusterState>, settings: Settings, manager: ManagerId, now: Tick) -> Self {
        let mut out = Vec::new();
        let core = Leader::take_over(settings, manager, Arc::clone(&stored), now, &mut out);
        let mut world = Self {
            core,
            now,
            stored,
            commits: VecDeque::new(),
            prompt: true,
            confirms: 0,
            written: Vec::new(),
            replies: BTreeMap::new(),
            pushes: Vec::new(),
            probes: Vec::new(),
            armed: Tick::NEVER,
            other: Vec::new(),
            next_request: 0,
        };
        world.perform(out);
        world
    }

    pub fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.core.step(self.now, event, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Commit { batch, commands } => self.commits.push_back((batch, commands)),
                Effect::Confirm => self.confirms += 1,
                Effect::Reply(request, reply) => {
                    assert!(self.replies.insert(request, reply).is_none(), "answered twice: {request:?}");
                }
                Effect::Push(push) => {
                    assert!(push.set.revision <= self.stored.revision, "S4: pushed before it was stored");
                    self.pushes.push(push);
                }
                Effect::Probe { request, address } => self.probes.push((request, address)),
                Effect::Arm(at) => self.armed = at,
                other => self.other.push(other),
            }
        }
        while self.prompt && (self.confirms > 0 || !self.commits.is_empty()) {
            if self.confirms > 0 {
                self.confirm();
            } else {
                self.commit_next();
            }
        }
    }

    pub fn confirm(&mut self) {
        assert!(self.confirms > 0, "no confirmation was asked for");
        self.confirms -= 1;
        self.step(Event::Confirmed(Confirmation::Leads));
    }

    /// Writes the oldest waiting batch.
    pub fn commit_next(&mut self) {
        let (batch, commands) = self.commits.pop_front().expect("a commit was asked for");
        let mut draft = Draft::on(&self.stored);
        let results = commands.iter().map(|command| draft.apply(command)).collect();
        let (state, changes) = draft.finish();
        self.stored = Arc::new(state);
        self.written.push(commands);
        let committed = Committed { state: Arc::clone(&self.stored), changes: Arc::new(changes), results };
        self.step(Event::CommitEnded { batch, result: Ok(committed) });
    }

    /// Writes every waiting batch as one, as a store does that is asked for several at once.
    pub fn commit_together(&mut self) {
        let batches: Vec<(BatchId, Vec<Command>)> = self.commits.drain(..).collect();
        let mut draft = Draft::on(&self.stored);
        let mut apply = |commands: &Vec<Command>| commands.iter().map(|command| draft.apply(command)).collect();
        let results: Vec<Vec<_>> = batches.iter().map(|(_, commands)| apply(commands)).collect();
        let (state, changes) = draft.finish();
        self.stored = Arc::new(state);
        let changes = Arc::new(changes);
        for ((batch, commands), results) in batches.into_iter().zip(results) {
            self.written.push(commands);
            let committed = Committed { state: Arc::clone(&self.stored), changes: Arc::clone(&changes), results };
            self.step(Event::CommitEnded { batch, result: Ok(committed) });
        }
    }

    pub fn fail_next(&mut self, failure: CommitFailure) {
        let (batch, _) = self.commits.pop_front().expect("a commit was asked for");
        self.step(Event::CommitEnded { batch, result: Err(failure) });
    }

    /// From now on commits and confirmations are answered by themselves, those that wait included.
    pub fn be_prompt(&mut self) {
        self.prompt = true;
        self.perform(Vec::new());
    }

    /// Lets time pass, firing the timer whenever it is due.
    pub fn pass_time(&mut self, span: Duration) {
        let until = self.now.plus(span);
        for _ in 0..100_000 {
            if self.armed > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(self.armed);
            self.armed = Tick::NEVER;
            self.step(Event::Timer);
        }
        panic!("the timer fires without end at {:?}", self.now);
    }

    fn request(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    pub fn registration(n: u128, name: &str, address: &str) -> Registration {
        Registration {
            cluster: ClusterName::new("test").unwrap(),
            shard_count: None,
            hash_scheme: HASH_SCHEME.to_owned(),
            executor: executor(n),
            name: ExecutorName::new(name).unwrap(),
            address: Address::new(address).unwrap(),
            zone: None,
            weight: Weight::default(),
            lease_key: LeaseKey([0; 32]),
        }
    }

    pub fn ask_to_register(&mut self, n: u128, registration: Registration) -> RequestId {
        let request = self.request();
        self.step(Event::Register { request, registration, key_hash: key_hash(n), at_ms: 0 });
        request
    }

    /// Registers executor `n` as `e<n>` at a port of its own.
    pub fn register(&mut self, n: u128) -> RequestId {
        self.ask_to_register(n, Self::registration(n, &format!("e{n}"), &format!("127.0.0.1:{}", 4000 + n)))
    }

    /// Registers `all` and has them answer until everybody has its share and the manager knows.
    pub fn settle(&mut self, all: &[u128]) {
        for n in all {
            self.register(*n);
        }
        for n in all.iter().cycle().take(3 * all.len()) {
            self.push_answered(*n, self.up_to_date_claim(*n));
        }
    }

    pub fn facts(&self, n: u128, claim: Claim, heard: u64) -> RenewalFacts {
        RenewalFacts {
            executor: executor(n),
            key_hash: key_hash(n),
            claim,
            heard: GrantSeq(heard),
            epoch_floors: Vec::new(),
            condition: Condition::default(),
        }
    }

    pub fn renew_with(&mut self, facts: RenewalFacts) -> RequestId {
        let request = self.request();
        self.step(Event::Renew { request, facts });
        request
    }

    /// Executor `n` renews, claiming exactly what is stored for it as of now, having heard everything.
    pub fn renew(&mut self, n: u128) -> RequestId {
        let facts = self.facts(n, self.up_to_date_claim(n), i64::MAX as u64);
        self.renew_with(facts)
    }

    pub fn up_to_date_claim(&self, n: u128) -> Claim {
        let shards = self.stored.holdings([executor(n)]).remove(&executor(n)).unwrap();
        Claim { manager: self.core.manager(), applied: self.stored.revision, shards }
    }

    pub fn deregister(&mut self, n: u128) -> RequestId {
        let request = self.request();
        self.step(Event::Deregister { request, id: executor(n), key_hash: key_hash(n) });
        request
    }

    pub fn drain(&mut self, name: &str, draining: bool) -> RequestId {
        let request = self.request();
        self.step(Event::SetDraining { request, name: ExecutorName::new(name).unwrap(), draining });
        request
    }

    pub fn push_answered(&mut self, n: u128, claim: Claim) {
        self.step(Event::PushAnswered { executor: executor(n), claim: Some(claim) });
    }

    pub fn grant(&self, request: RequestId) -> &Grant {
        match self.replies.get(&request) {
            Some(Reply::Granted(grant)) => grant,
            other => panic!("no grant but {other:?}"),
        }
    }

    pub fn refusal(&self, request: RequestId) -> &Refusal {
        match self.replies.get(&request) {
            Some(Reply::Refused(refusal)) => refusal,
            other => panic!("no refusal but {other:?}"),
        }
    }

    pub fn owned(&self, n: u128) -> usize {
        self.stored.shards().filter(|(_, row)| row.state == ShardState::Owned(executor(n))).count()
    }

    pub fn releasing(&self, n: u128) -> Vec<ShardId> {
        let from_n = |state: ShardState| matches!(state, ShardState::Releasing { from, .. } if from == executor(n));
        self.stored.shards().filter(|(_, row)| from_n(row.state)).map(|(shard, _)| shard).collect()
    }

    pub fn epochs(&self) -> Vec<ShardEpoch> {
        self.stored.shards().map(|(_, row)| row.epoch).collect()
    }

    pub fn owners(&self) -> Vec<Option<ExecutorId>> {
        self.stored.shards().map(|(_, row)| row.state.executor()).collect()
    }

    pub fn deadline(&self, n: u128) -> Tick {
        self.core.deadline(executor(n)).expect("registered")
    }

    /// The last set pushed to `n`.
    pub fn pushed(&self, n: u128) -> &Push {
        self.pushes.iter().rev().find(|push| push.executor == executor(n)).expect("pushed")
    }

    /// What an executor would claim that applied exactly the last set pushed to it.
    pub fn claim_of_last_push(&self, n: u128) -> Claim {
        let set = &self.pushed(n).set;
        Claim { manager: set.manager, applied: set.revision, shards: set.shards.clone() }
    }

    /// How often `note` was noted.
    pub fn noted(&self, note: &Note) -> usize {
        self.other.iter().filter(|effect| matches!(effect, Effect::Note(noted) if noted == note)).count()
    }

    pub fn ended(&self) -> Option<&str> {
        self.other.iter().find_map(|effect| match effect {
            Effect::EndLeadership(why) => Some(why.as_str()),
            _ => None,
        })
    }
}

pub fn nothing(manager: ManagerId, applied: Revision) -> Claim {
    Claim { manager, applied, shards: Holdings::default() }
}
