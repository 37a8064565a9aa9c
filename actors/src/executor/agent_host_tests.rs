//! Mailbox tests in virtual time: the host and its agents against a scriptable store.

use super::super::agent_type::{AgentState, Decision, Unreadable};
use super::super::archiver::Archiver;
use super::super::front::{Draining, ExecutorFront};
use super::super::message::{Assign, Inspect, Pulse};
use super::super::metrics::ExecutorMetrics;
use super::*;
use crate::clock::{Clock, VirtualClock};
use leasehold_model::fence::FenceKeeper;
use leasehold_model::message::{Inspection, Push, PushAnswer};
use leasehold_model::routing::shard_of;
use leasehold_model::{ExecutorId, Revision, ShardCount};
use leasehold_persistence::OplogStore;
use leasehold_persistence::oplog::memory::{Call, Fault, MemoryOplogStore};
use leasehold_persistence::oplog::{EntryIndex, Gate};
use leasehold_rpc::api::{ExecutorApi, InvokeApi};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Mutex;

#[path = "agent_host_archive_tests.rs"]
mod archive;
#[path = "agent_host_lifecycle_tests.rs"]
mod lifecycle;

/// Adds up; panics when told to.
struct Sum;
struct SumState(i64);

impl AgentType for Sum {
    fn name(&self) -> &str {
        "sum"
    }
    fn start(&self, _: &str) -> Box<dyn AgentState> {
        Box::new(SumState(0))
    }
}

impl AgentState for SumState {
    fn decide(&self, method: &str, payload: &Value) -> Decision {
        match method {
            "add" => Decision::Append {
                events: vec![payload.clone()],
                answer: json!(self.0 + payload.as_i64().unwrap_or_default()),
            },
            "get" => Decision::Answer(json!(self.0)),
            "panic" => panic!("an agent type's bug"),
            "panic_later" => Decision::Append { events: vec![json!("panic")], answer: Value::Null },
            _ => Decision::UnknownMethod,
        }
    }
    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        assert_ne!(event, "panic", "an agent type's bug");
        self.0 += event.as_i64().ok_or_else(|| Unreadable(event.to_string()))?;
        Ok(())
    }
    fn snapshot(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        self.0 = serde_json::from_slice(snapshot).map_err(|error| Unreadable(error.to_string()))?;
        Ok(())
    }
}

/// Stands for the LeaseHolder: notes what it is told.
#[derive(Clone, Default)]
struct Holder {
    fenced: Arc<Mutex<Vec<Fenced>>>,
    mute: bool,
}

impl Actor for Holder {
    type Context = Context<Self>;
}

impl Handler<Fenced> for Holder {
    type Result = ();
    fn handle(&mut self, fenced: Fenced, _: &mut Self::Context) {
        self.fenced.lock().unwrap().push(fenced);
    }
}

impl Handler<Assign> for Holder {
    type Result = ResponseFuture<Result<PushAnswer, CallError>>;
    fn handle(&mut self, _: Assign, _: &mut Self::Context) -> Self::Result {
        let mute = self.mute;
        Box::pin(async move {
            if mute {
                std::future::pending::<()>().await;
            }
            Ok(PushAnswer { applied: true, claim: None })
        })
    }
}

impl Handler<Inspect> for Holder {
    type Result = actix::MessageResult<Inspect>;
    fn handle(&mut self, _: Inspect, _: &mut Self::Context) -> Self::Result {
        actix::MessageResult(Inspection {
            executor: life(1),
            name: ExecutorName::new("executor-1").unwrap(),
            manager: None,
            applied: Revision(4),
            lease_remaining_ms: 0,
            held: leasehold_model::set::Holdings::default(),
            draining: leasehold_model::set::Holdings::default(),
            condition: leasehold_model::message::Condition::default(),
        })
    }
}

fn life(n: u128) -> ExecutorId {
    ExecutorId::from_u128(n)
}

fn epoch(n: u64) -> ShardEpoch {
    ShardEpoch::new(n).unwrap()
}

fn writer(at: u64, executor: u128) -> Writer {
    Writer { epoch: epoch(at), executor: life(executor) }
}

fn agent(key: &str) -> AgentId {
    AgentId::new(format!("sum/{key}")).unwrap()
}

/// One shard, so that every agent is on it.
const SHARD: ShardId = ShardId(0);

/// One executor: its host, its fence, its handle on the store.
struct Rig {
    host: Addr<AgentHost>,
    keeper: FenceKeeper,
    clock: VirtualClock,
    store: Arc<MemoryOplogStore>,
    pulse: Arc<Pulse>,
    holder: Holder,
    metrics: ExecutorMetrics,
    life: CurrentLife,
    epoch: ShardEpoch,
}

impl Rig {
    /// An executor that holds the shard at epoch 1.
    fn new() -> Self {
        Self::with(Arc::new(MemoryOplogStore::new()), 1, HostLimits::default())
    }

    fn limited(limits: HostLimits) -> Self {
        Self::with(Arc::new(MemoryOplogStore::new()), 1, limits)
    }

    /// The executor `n`, which holds the shard at epoch `n` on `store`.
    fn with(store: Arc<MemoryOplogStore>, n: u64, limits: HostLimits) -> Self {
        Self::over((Arc::clone(&store) as _, None), store, n, limits)
    }

    /// The same, whose agents see `store` through something.
    fn over(
        (seen, archiver): (Arc<dyn OplogStore>, Option<Archiver>),
        store: Arc<MemoryOplogStore>,
        n: u64,
        limits: HostLimits,
    ) -> Self {
        let keeper = FenceKeeper::new();
        assert!(keeper.size(ShardCount::new(1).unwrap()));
        keeper.open(SHARD, epoch(n));
        keeper.arm(Tick::NEVER);
        let (clock, pulse, holder) = (VirtualClock::start(), Arc::new(Pulse::default()), Holder::default());
        let (metrics, life) = (ExecutorMetrics::default(), CurrentLife::new(life(u128::from(n))));
        let host = AgentHost::new(HostParts {
            name: ExecutorName::new(format!("executor-{n}")).unwrap(),
            life: life.clone(),
            around: Surroundings {
                fence: keeper.fence(),
                clock: Arc::new(clock.clone()),
                store: seen,
                archiver,
                store_timeout: limits.store_timeout,
                metrics: metrics.clone(),
                pulse: pulse.clone(),
            },
            types: AgentTypes::new([Arc::new(Sum) as Arc<dyn AgentType>, Arc::new(lifecycle::Asker)]),
            fenced: holder.clone().start().recipient(),
            limits,
        })
        .start();
        Self { host, keeper, clock, store, pulse, holder, metrics, life, epoch: epoch(n) }
    }

    /// What the rpc side sends once the fence has admitted it.
    fn invoke(&self, key: &str, method: &str, payload: Value) -> Running {
        self.keyed(key, method, payload, None)
    }

    fn keyed(&self, key: &str, method: &str, payload: Value, idempotency_key: Option<&str>) -> Running {
        let invocation = Invocation {
            agent: agent(key),
            method: method.into(),
            payload: payload.to_string().into(),
            idempotency_key: idempotency_key.map(str::to_owned),
        };
        let admitted = Admitted { shard: SHARD, epoch: self.epoch };
        let host = self.host.clone();
        tokio::task::spawn_local(async move {
            host.send(Invoke { invocation, admitted, until: Tick::NEVER }).await.unwrap()
        })
    }

    async fn add(&self, key: &str, n: i64) -> Value {
        value(self.invoke(key, "add", json!(n)).await.unwrap())
    }

    async fn get(&self, key: &str) -> Value {
        value(self.invoke(key, "get", Value::Null).await.unwrap())
    }

    /// The shard is given up: the fence first, then the sweep, as a LeaseHolder does it.
    fn sweep(&self, grace: Duration) -> tokio::task::JoinHandle<()> {
        self.keeper.close(SHARD);
        let (host, shards) = (self.host.clone(), vec![(SHARD, self.epoch)]);
        tokio::task::spawn_local(async move { host.send(Sweep { shards, grace }).await.unwrap() })
    }

    /// The shard is held at `epoch` from now on.
    async fn regain(&mut self, at: u64) {
        self.epoch = epoch(at);
        self.keeper.open(SHARD, self.epoch);
        self.recover().await;
    }

    async fn recover(&self) {
        self.host.send(Recover { shards: vec![(SHARD, self.epoch)] }).await.unwrap();
    }

    fn calls(&self, call: Call) -> u64 {
        self.store.counts().calls.get(&call).copied().unwrap_or_default()
    }

    fn told(&self) -> Vec<(ShardEpoch, Option<ShardEpoch>)> {
        self.holder.fenced.lock().unwrap().iter().map(|fenced| (fenced.held, fenced.recorded)).collect()
    }

    fn condition(&self) -> leasehold_model::message::Condition {
        self.pulse.condition(self.clock.now())
    }

    async fn entries(&self, key: &str, writer: Writer) -> usize {
        self.store.handle().read(&agent(key), writer, EntryIndex(1), 1000).await.unwrap().len()
    }
}

type Answer = Result<InvocationAnswer, CallError>;
type Running = tokio::task::JoinHandle<Answer>;

fn value(answer: Answer) -> Value {
    serde_json::from_slice(&answer.unwrap().payload).unwrap()
}

fn reason(answer: &Answer) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(CallError::Refused(refusal)) => refusal.reason(),
        Err(CallError::Unreachable(_)) => "unreachable",
        Err(CallError::Unknown(_)) => "unknown",
    }
}

/// Runs a test on paused time.
fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Lets everything that can run do so, without time passing.
async fn settled() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// A store deadline that no test reaches by accident while it holds a gate.
fn patient() -> HostLimits {
    HostLimits { store_timeout: Duration::from_secs(100_000), ..HostLimits::default() }
}

#[test]
fn an_invocation_is_stored_under_the_epoch_and_life_that_it_was_admitted_for() {
    paused(async {
        let rig = Rig::new();
        let answer = rig.invoke("a", "add", json!(5)).await.unwrap().unwrap();
        assert_eq!((answer.shard, answer.epoch, answer.replayed), (SHARD, epoch(1), false));
        assert_eq!((answer.executor.as_str(), answer.payload.as_slice()), ("executor-1", &b"5"[..]));
        assert_eq!(rig.entries("a", writer(1, 1)).await, 1);
        assert_eq!(rig.get("a").await, json!(5));
    });
}

#[test]
fn a_process_that_registered_anew_writes_as_its_new_life() {
    paused(async {
        let mut rig = Rig::new();
        rig.add("a", 1).await;
        rig.sweep(Duration::ZERO).await.unwrap();
        rig.life.begin(life(77));
        rig.regain(2).await;
        assert_eq!(rig.add("a", 1).await, json!(2));
        assert_eq!(rig.store.recorded(&agent("a")).await.unwrap(), Some(writer(2, 77)));
    });
}

/// Idempotency: within a process, after a move, and for a key older than the newest snapshot.
#[test]
fn a_repeated_key_is_answered_from_the_oplog_and_run_once() {
    paused(async {
        let rig = Rig::new();
        for replayed in [false, true] {
            let answer = rig.keyed("a", "add", json!(5), Some("k")).await.unwrap().unwrap();
            assert_eq!((answer.payload.as_slice(), answer.replayed), (&b"5"[..], replayed));
        }
        for _ in 0..250 {
            rig.add("a", 1).await;
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        let answer = next.keyed("a", "add", json!(5), Some("k")).await.unwrap().unwrap();
        assert_eq!((answer.payload.as_slice(), answer.replayed, answer.epoch), (&b"5"[..], true, epoch(2)));
        assert_eq!(next.calls(Call::Find), 1);
        assert_eq!(next.get("a").await, json!(255));
    });
}

#[test]
fn recovery_replays_no_more_than_snapshot_every_entries_and_one() {
    paused(async {
        let rig = Rig::new();
        for _ in 0..350 {
            rig.add("a", 1).await;
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        next.recover().await;
        assert_eq!((next.metrics.replays.get(), next.condition().agents), (1, 1));
        assert!(next.metrics.replayed_entries.get() <= 101, "{}", next.metrics.replayed_entries.get());
        assert_eq!(next.calls(Call::Claim), 1);
        assert_eq!(next.get("a").await, json!(350));
        assert_eq!(next.calls(Call::Claim), 1, "recovered already");
    });
}

/// R20, case 32: what runs is finished and answered, then the sweep is; what waits is refused at once.
#[test]
fn a_sweep_waits_for_the_running_invocation_and_refuses_the_queued_ones() {
    paused(async {
        let rig = Rig::limited(patient());
        rig.add("a", 1).await;
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let running = rig.invoke("a", "add", json!(1));
        gate.reached().await;
        let queued = rig.invoke("a", "add", json!(1));
        settled().await;
        let swept = rig.sweep(Duration::from_secs(10));
        assert_eq!(reason(&queued.await.unwrap()), "HANDOFF_IN_PROGRESS");
        settled().await;
        assert!(!running.is_finished() && !swept.is_finished());
        gate.release();
        swept.await.unwrap();
        assert_eq!(value(running.await.unwrap()), json!(2));
        assert_eq!((rig.condition().agents, rig.condition().running), (0, 0));
    });
}

/// R20: never longer than the grace; what is under way then may or may not be stored, and is never called a success.
#[test]
fn a_sweep_ends_with_its_grace_even_if_the_store_hangs() {
    paused(async {
        for grace in [Duration::ZERO, Duration::from_secs(10)] {
            let rig = Rig::limited(patient());
            rig.store.script(Call::Append, Fault::HoldBefore(Gate::default()));
            let running = rig.invoke("a", "add", json!(1));
            settled().await;
            let began = tokio::time::Instant::now();
            rig.sweep(grace).await.unwrap();
            assert_eq!(began.elapsed().as_secs(), grace.as_secs());
            assert_eq!(reason(&running.await.unwrap()), "unknown");
        }
    });
}

#[test]
fn a_sweep_ends_a_replay_at_once_and_refuses_who_waits_for_it() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 1).await;
        let mut next = Rig::with(Arc::new(rig.store.handle()), 2, patient());
        let gate = Gate::default();
        next.store.script(Call::Read, Fault::HoldBefore(gate.clone()));
        let waiting = next.invoke("a", "add", json!(1));
        gate.reached().await;
        next.sweep(Duration::from_secs(10)).await.unwrap();
        assert_eq!(reason(&waiting.await.unwrap()), "HANDOFF_IN_PROGRESS");
        next.regain(3).await;
        assert_eq!(next.add("a", 1).await, json!(2), "a fresh agent at the new epoch");
    });
}

/// Whatever was queued behind a sweep is refused although the fence had admitted it.
#[test]
fn an_invocation_queued_behind_a_sweep_is_refused() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 1).await;
        let swept = rig.sweep(Duration::ZERO);
        let (live, fresh) = (rig.invoke("a", "add", json!(1)), rig.invoke("b", "add", json!(1)));
        assert_eq!(reason(&live.await.unwrap()), "HANDOFF_IN_PROGRESS");
        assert_eq!(reason(&fresh.await.unwrap()), "HANDOFF_IN_PROGRESS");
        swept.await.unwrap();
        assert_eq!(rig.store.running(SHARD, None, 9).await.unwrap(), [agent("a")], "no agent was started");
    });
}

/// Cases 16 and 34: the lease lapsed (here: the machine slept); the running write lands and is answered, nothing new begins.
#[test]
fn when_the_lease_lapses_the_running_append_is_answered_and_nothing_new_begins() {
    paused(async {
        let rig = Rig::limited(patient());
        rig.keeper.arm(rig.clock.now().plus(Duration::from_secs(60)));
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let running = rig.invoke("a", "add", json!(1));
        gate.reached().await;
        let queued = rig.invoke("a", "get", Value::Null);
        settled().await;
        rig.clock.sleep_machine(Duration::from_secs(120));
        let late = rig.invoke("a", "get", Value::Null);
        assert_eq!(reason(&late.await.unwrap()), "SHARDING_NOT_READY");
        gate.release();
        assert_eq!(value(running.await.unwrap()), json!(1));
        assert_eq!(reason(&queued.await.unwrap()), "SHARDING_NOT_READY");
    });
}

/// F6, cases 8, 30, 34: refused on an append by a newer owner; latched without another store call until a new epoch comes.
#[test]
fn a_fenced_append_stops_the_agent_tells_the_lease_holder_and_latches() {
    paused(async {
        let mut rig = Rig::new();
        rig.add("a", 1).await;
        rig.add("other", 1).await;
        let newer = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        newer.add("a", 10).await;
        let fenced = CallError::from(Refusal::EpochFenced { held: epoch(1), recorded: epoch(2) });
        assert_eq!(rig.invoke("a", "add", json!(1)).await.unwrap(), Err(fenced.clone()));
        settled().await;
        let before = rig.store.counts();
        for method in ["add", "get"] {
            assert_eq!(rig.invoke("a", method, json!(1)).await.unwrap(), Err(fenced.clone()));
        }
        assert_eq!(rig.store.counts(), before, "no hot error loop: storage is not asked again");
        assert_eq!(rig.told(), [(epoch(1), Some(epoch(2)))], "told once");
        assert_eq!(rig.add("other", 1).await, json!(2), "only that one agent");
        assert_eq!(newer.get("a").await, json!(11));
        rig.sweep(Duration::ZERO).await.unwrap();
        rig.regain(3).await;
        assert_eq!(rig.add("a", 1).await, json!(12));
    });
}

/// Case 8: the first fenced answer on any path counts: claim, replay, look-up, suspension.
#[test]
fn being_fenced_on_claim_read_find_or_suspend_tells_the_lease_holder() {
    paused(async {
        for path in [Call::Claim, Call::Read, Call::Find, Call::Suspend] {
            let agent_limits = AgentLimits { recent_keys: 0, ..AgentLimits::default() };
            let rig = Rig::limited(HostLimits { agents: 1, agent: agent_limits, ..patient() });
            let gate = Gate::default();
            if path != Call::Claim && path != Call::Read {
                rig.keyed("a", "add", json!(1), Some("k")).await.unwrap().unwrap();
            }
            if path == Call::Read {
                let old = rig.store.handle();
                old.claim(&agent("a"), SHARD, writer(1, 1)).await.unwrap();
                let body = vec![0];
                let entry = leasehold_persistence::oplog::NewEntry {
                    kind: leasehold_persistence::oplog::EntryKind::Invocation,
                    key: None,
                    body,
                };
                let append = leasehold_persistence::oplog::Append {
                    agent: agent("a"),
                    writer: writer(1, 1),
                    expected: EntryIndex(1),
                    entries: vec![entry],
                };
                old.append(append).await.unwrap();
            }
            rig.store.script(path, Fault::HoldBefore(gate.clone()));
            let call = if path == Call::Suspend {
                rig.invoke("b", "add", json!(1))
            } else {
                rig.keyed("a", "add", json!(1), Some("l"))
            };
            gate.reached().await;
            rig.store.handle().claim(&agent("a"), SHARD, writer(9, 9)).await.unwrap();
            gate.release();
            let expected = if path == Call::Suspend { "ok" } else { "EPOCH_FENCED" };
            assert_eq!(reason(&call.await.unwrap()), expected, "{path:?}");
            settled().await;
            assert_eq!(rig.told(), [(epoch(1), Some(epoch(9)))], "{path:?}");
            assert_eq!(rig.store.recorded(&agent("a")).await.unwrap(), Some(writer(9, 9)), "the record stays");
        }
    });
}

/// Cases 4 and 36: an equal epoch of another executor is fenced and reported, whichever of the two comes second.
#[test]
fn two_executors_at_one_epoch_cannot_both_write() {
    paused(async {
        let first = Rig::new();
        first.add("a", 1).await;
        let second = Rig::with(Arc::new(first.store.handle()), 1, HostLimits::default());
        second.life.begin(life(2));
        assert_eq!(reason(&second.invoke("a", "add", json!(1)).await.unwrap()), "EPOCH_FENCED");
        settled().await;
        assert_eq!(second.told(), [(epoch(1), Some(epoch(1)))]);
        assert_eq!(first.add("a", 1).await, json!(2));
    });
}

/// F7, case 3: written once and answered as a success, whether the request or the answer was lost or came too late.
#[test]
fn an_append_of_unknown_outcome_is_read_back_and_stored_exactly_once() {
    paused(async {
        let day = Duration::from_secs(86_400);
        for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::DelayAfter(day), Fault::DelayBefore(day)] {
            let rig = Rig::new();
            rig.add("a", 1).await;
            rig.store.script(Call::Append, fault.clone());
            let began = tokio::time::Instant::now();
            assert_eq!(rig.add("a", 1).await, json!(2), "{fault:?}");
            assert!(began.elapsed() < Duration::from_secs(10), "each store call has a deadline: {fault:?}");
            assert_eq!(rig.entries("a", writer(1, 1)).await, 2, "{fault:?}");
            assert_eq!(rig.add("a", 1).await, json!(3), "{fault:?}");
        }
    });
}

/// F7: while the outcome cannot be read the agent does nothing else; then it says so and reads the oplog anew.
#[test]
fn an_outcome_that_cannot_be_read_is_unknown_and_the_agent_restarts_from_the_oplog() {
    paused(async {
        let rig = Rig::new();
        rig.store.script(Call::Append, Fault::LoseAnswer);
        for _ in 0..super::super::agent_core::READ_BACK_ATTEMPTS {
            rig.store.script(Call::Read, Fault::Refuse);
        }
        let lost = rig.invoke("a", "add", json!(1));
        settled().await;
        let queued = rig.invoke("a", "get", Value::Null);
        assert_eq!(reason(&lost.await.unwrap()), "unknown");
        assert_eq!(value(queued.await.unwrap()), json!(1), "it had been stored");
    });
}

/// A disk that takes no writes: callers hear what the store says, an agent in memory can be read, and the failure shows in the
/// pulse, which a renewal carries, and in the metrics.
#[test]
fn a_store_that_takes_no_writes_is_shown_and_leaves_agents_in_memory_readable() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 1).await;
        for fault in [Fault::Refuse, Fault::LoseRequest] {
            for _ in 0..super::super::agent_core::APPEND_ATTEMPTS {
                rig.store.script(Call::Append, fault.clone());
            }
            let began = tokio::time::Instant::now();
            let Err(said) = rig.invoke("a", "add", json!(1)).await.unwrap() else { panic!("{fault:?}") };
            assert!(said.to_string().contains("by the test's script"), "what the store said: {said}");
            assert_eq!(rig.get("a").await, json!(1));
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
            assert!((150..1000).contains(&rig.condition().oplog_failing_ms), "{:?}", rig.condition());
            assert_eq!(rig.calls(Call::Claim), 1, "to read it nothing is written");
            assert_eq!(rig.add("a", 0).await, json!(1));
            assert_eq!(rig.condition().oplog_failing_ms, 0);
        }
        let failures = |call| rig.metrics.oplog_failures.get_or_create(&super::super::metrics::Call { call }).get();
        assert_eq!((failures("append"), failures("claim"), failures("read")), (6, 0, 0));
    });
}

/// The same for an agent that is not in memory: it has to be claimed first, and that is a write.
#[test]
fn a_call_of_an_agent_that_cannot_be_opened_hears_at_once_what_the_store_says() {
    paused(async {
        let rig = Rig::new();
        for _ in 0..super::super::agent_core::APPEND_ATTEMPTS {
            rig.store.script(Call::Claim, Fault::Refuse);
        }
        let began = tokio::time::Instant::now();
        let refused = rig.invoke("a", "get", Value::Null).await.unwrap();
        assert_eq!(reason(&refused), "STORE_UNAVAILABLE");
        assert!(refused.unwrap_err().to_string().contains("refused by the test's script"));
        assert!(began.elapsed() < Duration::from_secs(1), "long before a caller's time-out: {:?}", began.elapsed());
        assert!(rig.condition().oplog_failing_ms > 0);
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert_eq!(rig.condition().oplog_failing_ms, 0, "nothing was tried since: nobody knows");
    });
}

/// A store that hangs fails too: each call has a deadline.
#[test]
fn a_store_that_hangs_is_shown_as_failing() {
    paused(async {
        let rig = Rig::new();
        rig.store.script(Call::Claim, Fault::HoldBefore(Gate::default()));
        let slow = rig.invoke("a", "get", Value::Null);
        tokio::time::sleep(HostLimits::default().store_timeout + Duration::from_millis(10)).await;
        assert!(rig.condition().oplog_failing_ms > 0);
        assert_eq!(value(slow.await.unwrap()), json!(0));
        assert_eq!(rig.condition().oplog_failing_ms, 0);
    });
}

#[test]
fn a_store_that_refuses_for_a_while_costs_a_retryable_refusal_and_nothing_else() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 1).await;
        rig.store.script(Call::Append, Fault::Refuse);
        assert_eq!(rig.add("a", 1).await, json!(2), "one refusal is ridden out");
        for _ in 0..super::super::agent_core::APPEND_ATTEMPTS {
            rig.store.script(Call::Append, Fault::Refuse);
        }
        assert_eq!(reason(&rig.invoke("a", "add", json!(1)).await.unwrap()), "STORE_UNAVAILABLE");
        assert_eq!(rig.add("a", 1).await, json!(3));
    });
}

#[test]
fn a_full_queue_is_overloaded_and_drains_in_order() {
    paused(async {
        let agent = AgentLimits { queue: 2, ..AgentLimits::default() };
        let rig = Rig::limited(HostLimits { agent, ..patient() });
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let mut calls = Vec::new();
        for n in 1..=4 {
            calls.push(rig.invoke("a", "add", json!(n)));
            settled().await;
        }
        assert_eq!(reason(&calls.pop().unwrap().await.unwrap()), "OVERLOADED");
        assert_eq!(value(rig.invoke("b", "add", json!(1)).await.unwrap()), json!(1), "others are not held up");
        gate.release();
        let mut sums = Vec::new();
        for call in calls {
            sums.push(value(call.await.unwrap()));
        }
        assert_eq!(sums, [json!(1), json!(3), json!(6)]);
    });
}

#[test]
fn the_agent_idle_longest_makes_room_and_comes_back_with_its_state() {
    paused(async {
        let rig = Rig::limited(HostLimits { agents: 2, ..HostLimits::default() });
        rig.add("a", 1).await;
        rig.add("b", 2).await;
        rig.add("a", 1).await;
        rig.add("c", 3).await;
        settled().await;
        let running = rig.store.running(SHARD, None, 9).await.unwrap();
        assert_eq!(running, [agent("a"), agent("c")], "b was idle longest; the next owner need not recover it");
        assert_eq!((rig.condition().agents, rig.metrics.suspensions.get()), (2, 1));
        assert_eq!(rig.get("b").await, json!(2));
    });
}

#[test]
fn when_every_agent_is_busy_a_newcomer_is_refused_as_overloaded() {
    paused(async {
        let rig = Rig::limited(HostLimits { agents: 1, ..patient() });
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let busy = rig.invoke("a", "add", json!(1));
        gate.reached().await;
        assert_eq!(reason(&rig.invoke("b", "add", json!(1)).await.unwrap()), "OVERLOADED");
        gate.release();
        busy.await.unwrap().unwrap();
        assert_eq!(rig.add("b", 1).await, json!(1));
    });
}

#[test]
fn an_invocation_of_an_agent_that_is_being_suspended_waits_and_runs() {
    paused(async {
        let rig = Rig::limited(HostLimits { agents: 1, ..patient() });
        rig.add("a", 1).await;
        let gate = Gate::default();
        rig.store.script(Call::Suspend, Fault::HoldBefore(gate.clone()));
        rig.add("b", 1).await;
        gate.reached().await;
        let parked = rig.invoke("a", "add", json!(1));
        settled().await;
        assert!(!parked.is_finished());
        gate.release();
        assert_eq!(value(parked.await.unwrap()), json!(2));
    });
}

#[test]
fn an_invocation_at_the_new_epoch_waits_for_the_old_agent_to_end() {
    paused(async {
        let mut rig = Rig::limited(patient());
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let running = rig.invoke("a", "add", json!(1));
        gate.reached().await;
        let swept = rig.sweep(Duration::from_secs(10));
        settled().await;
        rig.epoch = epoch(2);
        rig.keeper.open(SHARD, rig.epoch);
        let parked = rig.invoke("a", "add", json!(1));
        settled().await;
        assert!(!parked.is_finished() && !swept.is_finished());
        gate.release();
        assert_eq!(value(running.await.unwrap()), json!(1));
        let answer = parked.await.unwrap().unwrap();
        assert_eq!((answer.payload.as_slice(), answer.epoch), (&b"2"[..], epoch(2)));
        rig.regain(2).await;
        assert_eq!(rig.condition().running, 0);
    });
}

/// R20: an epoch that changed under an agent closes it, even before its sweep arrives: no write mixes two epochs.
#[test]
fn an_epoch_that_changed_before_the_sweep_arrived_ends_the_old_agent() {
    paused(async {
        let mut rig = Rig::limited(patient());
        rig.add("a", 1).await;
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let running = rig.invoke("a", "add", json!(1));
        gate.reached().await;
        let queued = rig.invoke("a", "add", json!(1));
        settled().await;
        rig.epoch = epoch(2);
        rig.keeper.open(SHARD, rig.epoch);
        gate.release();
        assert_eq!(value(running.await.unwrap()), json!(2));
        assert_eq!(reason(&queued.await.unwrap()), "HANDOFF_IN_PROGRESS");
        let answer = rig.invoke("a", "add", json!(1)).await.unwrap().unwrap();
        assert_eq!((answer.payload.as_slice(), answer.epoch), (&b"3"[..], epoch(2)));
        assert_eq!(rig.store.recorded(&agent("a")).await.unwrap(), Some(writer(2, 1)));
    });
}

#[test]
fn an_agent_of_a_shard_that_is_not_held_is_not_recovered() {
    paused(async {
        let rig = Rig::new();
        let held = Admitted { shard: SHARD, epoch: epoch(1) };
        let opened = rig.host.send(Open { agent: agent("a"), held }).await.unwrap();
        assert!(matches!(opened, Err(CallError::Refused(Refusal::HandoffInProgress { .. }))), "{opened:?}");
        assert_eq!(rig.calls(Call::Claim), 0);
    });
}

/// Case 30, F2: deleted under a running agent it is fenced and told; what was deleted stays deleted.
#[test]
fn an_agent_deleted_under_a_running_one_is_fenced_and_starts_empty() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 5).await;
        rig.store.handle().delete(&agent("a"), writer(1, 1), EntryIndex(2)).await.unwrap();
        assert_eq!(reason(&rig.invoke("a", "add", json!(1)).await.unwrap()), "EPOCH_FENCED");
        settled().await;
        assert_eq!(rig.told(), [(epoch(1), None)]);
        assert_eq!(rig.add("a", 1).await, json!(1));
    });
}

#[test]
fn every_page_of_running_agents_is_recovered() {
    paused(async {
        let rig = Rig::new();
        for n in 0..300 {
            rig.add(&format!("{n:03}"), 1).await;
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        next.recover().await;
        assert_eq!((next.metrics.replays.get(), next.condition().agents), (300, 300));
    });
}

/// Case 35: the pulse, which a renewal carries, shows how long the oldest work hangs; a sweep still frees the shard.
#[test]
fn a_wedged_store_shows_in_the_pulse_and_the_shard_can_still_be_given_up() {
    paused(async {
        let rig = Rig::limited(patient());
        rig.add("a", 1).await;
        assert_eq!((rig.condition().running, rig.condition().oldest_running_ms), (0, 0));
        rig.store.script(Call::Append, Fault::HoldBefore(Gate::default()));
        rig.store.script(Call::Claim, Fault::HoldBefore(Gate::default()));
        let wedged = rig.invoke("a", "add", json!(1));
        settled().await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let recovering = rig.invoke("b", "add", json!(1));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let condition = rig.condition();
        assert_eq!((condition.agents, condition.running, condition.oldest_running_ms), (2, 2, 35_000));
        rig.sweep(Duration::from_secs(10)).await.unwrap();
        assert_eq!(reason(&wedged.await.unwrap()), "unknown");
        assert_eq!(reason(&recovering.await.unwrap()), "HANDOFF_IN_PROGRESS");
        settled().await;
        assert_eq!(rig.condition(), leasehold_model::message::Condition::default());
    });
}

/// Style 17: no half state is left behind a panic in an agent type's code, and nobody waits for the dead.
#[test]
fn a_panicking_agent_answers_unknown_and_a_fresh_one_takes_over() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 7).await;
        let (boom, behind) = (rig.invoke("a", "panic", Value::Null), rig.invoke("a", "get", Value::Null));
        assert_eq!(reason(&boom.await.unwrap()), "unknown");
        assert_eq!(reason(&behind.await.unwrap()), "unknown");
        settled().await;
        assert_eq!(rig.metrics.agent_panics.get(), 1);
        assert_eq!((rig.condition().agents, rig.condition().running), (0, 0));
        assert_eq!(rig.get("a").await, json!(7));
    });
}

#[test]
fn a_sweep_does_not_wait_for_an_agent_that_panicked() {
    paused(async {
        let rig = Rig::limited(patient());
        rig.add("a", 1).await;
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let boom = rig.invoke("a", "panic_later", Value::Null);
        gate.reached().await;
        let swept = rig.sweep(Duration::from_secs(10));
        settled().await;
        gate.release();
        let began = tokio::time::Instant::now();
        swept.await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(reason(&boom.await.unwrap()), "unknown");
    });
}

#[test]
fn one_agent_that_cannot_be_recovered_does_not_hold_up_the_rest() {
    paused(async {
        let rig = Rig::new();
        for n in 0..40 {
            rig.add(&format!("{n:02}"), 1).await;
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        rig.store.handle().claim(&agent("07"), SHARD, writer(9, 9)).await.unwrap();
        next.store.script(Call::Running, Fault::Refuse);
        next.recover().await;
        assert_eq!((next.metrics.replays.get(), next.metrics.recovery_failures.get()), (39, 1));
        assert_eq!(next.told(), [(epoch(2), Some(epoch(9)))]);
    });
}

#[test]
fn recovery_opens_a_bounded_number_of_agents_at_a_time() {
    paused(async {
        let rig = Rig::new();
        for n in 0..40 {
            rig.add(&format!("{n:02}"), 1).await;
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits { recoveries: 4, ..patient() });
        let gate = Gate::default();
        for _ in 0..40 {
            next.store.script(Call::Claim, Fault::HoldBefore(gate.clone()));
        }
        let host = next.host.clone();
        let recovered = tokio::task::spawn_local(async move {
            host.send(Recover { shards: vec![(SHARD, epoch(2))] }).await.unwrap();
        });
        settled().await;
        assert_eq!((next.calls(Call::Claim), next.condition().running), (4, 4));
        let first = next.invoke("39", "get", Value::Null);
        settled().await;
        assert_eq!(next.calls(Call::Claim), 5, "an invocation does not wait for its agent's turn");
        gate.release();
        assert_eq!(value(first.await.unwrap()), json!(1));
        recovered.await.unwrap();
        assert_eq!(next.metrics.replays.get(), 40);
    });
}

/// R21: recovery does not depend on the fence being open yet, and stops when the shard is swept.
#[test]
fn recovery_precedes_admission_and_ends_with_a_sweep() {
    paused(async {
        let rig = Rig::new();
        for n in 0..40 {
            rig.add(&format!("{n:02}"), 1).await;
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits { recoveries: 4, ..patient() });
        next.keeper.close(SHARD);
        let gate = Gate::default();
        for _ in 0..4 {
            next.store.script(Call::Read, Fault::HoldBefore(gate.clone()));
        }
        let host = next.host.clone();
        let recovered = tokio::task::spawn_local(async move {
            host.send(Recover { shards: vec![(SHARD, epoch(2))] }).await.unwrap();
        });
        gate.reached().await;
        settled().await;
        assert_eq!(next.condition().agents, 4);
        next.sweep(Duration::from_secs(10)).await.unwrap();
        recovered.await.unwrap();
        assert_eq!((next.calls(Call::Claim), next.metrics.recovery_failures.get()), (4, 0));
        assert_eq!(next.condition().agents, 0);
    });
}

fn front(rig: &Rig, holder: Holder) -> ExecutorFront {
    let holder = holder.start();
    ExecutorFront {
        name: ExecutorName::new("executor-1").unwrap(),
        fence: rig.keeper.fence(),
        clock: Arc::new(rig.clock.clone()),
        types: AgentTypes::new([Arc::new(Sum) as Arc<dyn AgentType>]),
        host: rig.host.clone().recipient(),
        delete: rig.host.clone().recipient(),
        list: rig.host.clone().recipient(),
        assign: holder.clone().recipient(),
        inspect: holder.recipient(),
        draining: Draining::default(),
        metrics: rig.metrics.clone(),
    }
}

fn invocation(agent: &str, method: &str, payload: &[u8], key: Option<&str>) -> Invocation {
    let agent = AgentId::new(agent).unwrap();
    Invocation { agent, method: method.into(), payload: payload.into(), idempotency_key: key.map(str::to_owned) }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_front_refuses_what_may_not_be_admitted_and_says_why() {
    paused(async {
        let rig = Rig::new();
        let front = front(&rig, Holder::default());
        let long = "k".repeat(129);
        // JSON all the same: only its length is wrong.
        let mut too_long = vec![b' '; super::super::front::MAX_PAYLOAD];
        too_long.push(b'1');
        for (call, expected) in [
            (invocation("sum/a", "add", b"1", None), "ok"),
            (invocation("sum/a", "", b"1", None), "INVALID_FIELD"),
            (invocation("sum/a", "a b", b"1", None), "INVALID_FIELD"),
            (invocation("sum/a", "add", b"{", None), "INVALID_FIELD"),
            (invocation("sum/a", "add", b"1", Some("")), "INVALID_FIELD"),
            (invocation("sum/a", "add", b"1", Some(&long)), "INVALID_FIELD"),
            (invocation("sum/a", "add", &too_long, None), "INVALID_FIELD"),
            (invocation("none/a", "add", b"1", None), "UNKNOWN_METHOD"),
            (invocation("sum/a", "none", b"1", None), "UNKNOWN_METHOD"),
        ] {
            assert_eq!(reason(&front.invoke(call.clone(), SECOND).await), expected, "{call:?}");
        }
        let add = || front.invoke(invocation("sum/a", "add", b"1", None), SECOND);
        rig.keeper.know(Revision(6));
        rig.keeper.close(SHARD);
        let moved = Refusal::WrongOwner { shard: SHARD, owner: None, revision: Revision(6) };
        assert_eq!(add().await, Err(CallError::Refused(moved)), "it says how fresh its knowledge is");
        rig.keeper.close_all();
        assert_eq!(reason(&add().await), "SHARDING_NOT_READY");
        front.draining.begin();
        assert_eq!(reason(&add().await), "DRAINING");
    });
}

#[test]
fn an_executor_that_never_heard_a_shard_count_is_not_ready() {
    paused(async {
        let rig = Rig::new();
        let front = ExecutorFront { fence: FenceKeeper::new().fence(), ..front(&rig, Holder::default()) };
        let answer = front.invoke(invocation("sum/a", "add", b"1", None), SECOND).await;
        assert_eq!(reason(&answer), "SHARDING_NOT_READY");
    });
}

/// Case 40: a call that outlives its caller's patience is unknown, and one that had not begun by then never begins.
#[test]
fn the_front_waits_no_longer_than_the_caller_and_what_had_not_begun_never_begins() {
    paused(async {
        let rig = Rig::limited(patient());
        let front = front(&rig, Holder::default());
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let began = tokio::time::Instant::now();
        let add = || front.invoke(invocation("sum/a", "add", b"1", None), SECOND);
        let (running, queued) = futures::join!(add(), add());
        assert_eq!((reason(&running), reason(&queued), began.elapsed()), ("unknown", "unknown", SECOND));
        gate.release();
        assert_eq!(rig.get("a").await, json!(1));
    });
}

#[test]
fn the_front_passes_pushes_and_questions_on_and_does_not_wait_for_ever() {
    paused(async {
        let rig = Rig::new();
        let push = || Push {
            executor: life(1),
            key_hash: leasehold_model::LeaseKeyHash([0; 32]),
            set: leasehold_model::ShardSet {
                manager: leasehold_model::ManagerId::from_u128(1),
                revision: Revision(1),
                shard_count: ShardCount::new(1).unwrap(),
                shards: leasehold_model::set::Holdings::default(),
            },
        };
        let answering = front(&rig, Holder::default());
        assert_eq!(answering.assign(push()).await, Ok(PushAnswer { applied: true, claim: None }));
        assert_eq!(answering.inspect().await.unwrap().applied, Revision(4));
        let silent = front(&rig, Holder { mute: true, ..Holder::default() });
        assert!(matches!(silent.assign(push()).await, Err(CallError::Unknown(_))));
    });
}

#[test]
fn agents_are_found_by_the_published_hash() {
    paused(async {
        let rig = Rig::new();
        let keeper = FenceKeeper::new();
        let count = ShardCount::new(64).unwrap();
        assert!(keeper.size(count));
        keeper.arm(Tick::NEVER);
        let shard = shard_of(&agent("a"), count);
        keeper.open(shard, epoch(1));
        let host = AgentHostEcho.start();
        let front = ExecutorFront { fence: keeper.fence(), host: host.recipient(), ..front(&rig, Holder::default()) };
        let answer = front.invoke(invocation("sum/a", "add", b"1", None), SECOND).await.unwrap();
        assert_eq!((answer.shard, answer.epoch), (shard, epoch(1)));
    });
}

/// Answers with the admission that it was given.
struct AgentHostEcho;

impl Actor for AgentHostEcho {
    type Context = Context<Self>;
}

impl Handler<Invoke> for AgentHostEcho {
    type Result = Result<InvocationAnswer, CallError>;
    fn handle(&mut self, invoke: Invoke, _: &mut Self::Context) -> Self::Result {
        let Admitted { shard, epoch } = invoke.admitted;
        let executor = ExecutorName::new("echo").unwrap();
        Ok(InvocationAnswer { payload: vec![], shard, epoch, executor, replayed: false })
    }
}
