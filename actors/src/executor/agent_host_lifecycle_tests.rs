//! Deleting, listing, suspending and deciding outside, against a scriptable store in virtual time.

use super::super::super::agent_type::{Admission, Decider, Question, Undecided};
use super::*;
use async_trait::async_trait;
use leasehold_model::agents::{AgentPage, AgentQuery, DeletionAnswer, ListedAgent, MAX_PAGE};
use std::sync::LazyLock;
use tokio::sync::Semaphore;

/// Sums up what somebody outside says, once he is let.
pub(super) struct Asker;

struct Outside;

/// What the test of one agent (its key) lets happen, and saw.
#[derive(Default)]
struct Seen {
    asked: usize,
    broken_off: usize,
    answers: bool,
}

static SEEN: LazyLock<Mutex<BTreeMap<String, Seen>>> = LazyLock::new(Mutex::default);
static MORE: Semaphore = Semaphore::const_new(0);

fn seen<T>(key: &str, look: impl FnOnce(&mut Seen) -> T) -> T {
    look(SEEN.lock().unwrap().entry(key.to_owned()).or_default())
}

struct BreaksOff(String, bool);

impl Drop for BreaksOff {
    fn drop(&mut self) {
        if !self.1 {
            seen(&self.0, |seen| seen.broken_off += 1);
        }
    }
}

#[async_trait]
impl Decider for Outside {
    async fn decide(&self, question: Question, admission: Admission) -> Result<Decision, Undecided> {
        assert!(admission.stands(), "nobody is asked without it");
        let key = question.agent.key().to_owned();
        let answers = seen(&key, |seen| {
            seen.asked += 1;
            seen.answers
        });
        let mut breaks_off = BreaksOff(key, false);
        if !answers {
            drop(MORE.acquire().await);
            assert!(!admission.stands(), "the test has taken it");
        }
        breaks_off.1 = true;
        Ok(Decision::Append { events: vec![question.payload], answer: question.state })
    }
}

impl AgentType for Asker {
    fn name(&self) -> &str {
        "asker"
    }
    fn start(&self, _: &str) -> Box<dyn AgentState> {
        Box::new(AskerState(SumState(0)))
    }
    fn decider(&self) -> Option<Arc<dyn Decider>> {
        Some(Arc::new(Outside))
    }
}

struct AskerState(SumState);

impl AgentState for AskerState {
    fn decide(&self, _: &str, _: &Value) -> Decision {
        Decision::Outside(json!(self.0.0))
    }
    fn apply(&mut self, event: &Value) -> Result<(), Unreadable> {
        self.0.apply(event)
    }
    fn snapshot(&self) -> Vec<u8> {
        self.0.snapshot()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Unreadable> {
        self.0.restore(snapshot)
    }
}

impl Rig {
    async fn delete(&self, key: &str) -> Result<DeletionAnswer, CallError> {
        let (admitted, until) = (Admitted { shard: SHARD, epoch: self.epoch }, Tick::NEVER);
        self.host.send(Delete { agent: agent(key), admitted, until }).await.unwrap()
    }

    async fn list(&self, after: Option<&str>, limit: u32) -> (Vec<(String, &'static str)>, bool) {
        let query = AgentQuery { shard: SHARD, after: after.map(agent), limit };
        let page = self.host.send(ListAgents(query)).await.unwrap().unwrap();
        let listed = |one: ListedAgent| (one.agent.key().to_owned(), one.standing.as_str());
        (page.agents.into_iter().map(listed).collect(), page.more)
    }

    fn ask_outside(&self, key: &str) -> Running {
        let invocation = Invocation {
            agent: AgentId::new(format!("asker/{key}")).unwrap(),
            method: "any".into(),
            payload: b"3".to_vec(),
            idempotency_key: None,
        };
        let (host, admitted) = (self.host.clone(), Admitted { shard: SHARD, epoch: self.epoch });
        tokio::task::spawn_local(async move {
            host.send(Invoke { invocation, admitted, until: Tick::NEVER }).await.unwrap()
        })
    }
}

fn refused(answer: &Result<DeletionAnswer, CallError>) -> &'static str {
    answer.as_ref().map_or_else(CallError::reason, |_| "ok")
}

#[test]
fn a_deleted_agent_is_forgotten_leaves_memory_and_begins_anew_when_it_is_called() {
    paused(async {
        let rig = Rig::new();
        rig.keyed("a", "add", json!(5), Some("k")).await.unwrap().unwrap();
        let answer = rig.delete("a").await.unwrap();
        assert_eq!((answer.shard, answer.epoch, answer.executor.as_str()), (SHARD, epoch(1), "executor-1"));
        settled().await;
        assert_eq!((rig.condition().agents, rig.store.running(SHARD, None, 10).await.unwrap().len()), (0, 0));
        let answer = rig.keyed("a", "add", json!(1), Some("k")).await.unwrap().unwrap();
        assert_eq!((answer.payload.as_slice(), answer.replayed), (&b"1"[..], false), "the old key is forgotten");
        assert_eq!(rig.store.handle().read(&agent("a"), writer(1, 1), EntryIndex(1), 9).await.unwrap()[0].index.0, 2);
    });
}

#[test]
fn deleting_again_or_what_was_never_there_is_fine() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 5).await;
        for key in ["a", "a", "never"] {
            assert_eq!(refused(&rig.delete(key).await), "ok");
        }
        settled().await;
        assert_eq!(rig.condition().agents, 0);
    });
}

/// F5: before the store's one write it has done nothing, after it it is done; either way the next owner finishes it when it is asked.
#[test]
fn a_deletion_cut_short_by_a_crash_is_finished_by_the_next_owner() {
    paused(async {
        for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
            let rig = Rig::limited(patient());
            rig.add("a", 5).await;
            // The executor is gone before it hears what became of it.
            rig.store.script(Call::Delete, fault);
            let asked = tokio::task::spawn_local({
                let (host, admitted) = (rig.host.clone(), Admitted { shard: SHARD, epoch: epoch(1) });
                async move { host.send(Delete { agent: agent("a"), admitted, until: Tick::NEVER }).await.unwrap() }
            });
            settled().await;
            rig.sweep(Duration::ZERO).await.unwrap();
            assert_eq!(refused(&asked.await.unwrap()), "OUTCOME_UNKNOWN");
            let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
            next.recover().await;
            assert_eq!(refused(&next.delete("a").await), "ok");
            assert_eq!(next.get("a").await, json!(0));
        }
    });
}

/// The recovery has listed it, then it is deleted, then its turn comes.
#[test]
fn a_recovery_under_way_does_not_begin_a_deleted_agent_anew() {
    paused(async {
        let first = Rig::new();
        for key in ["a", "b", "c"] {
            first.add(key, 1).await;
        }
        let rig = Rig::with(Arc::new(first.store.handle()), 2, HostLimits { recoveries: 1, ..patient() });
        let gate = Gate::default();
        // "a" holds up the recovery after the list was read.
        rig.store.script(Call::Claim, Fault::HoldBefore(gate.clone()));
        let (host, shards) = (rig.host.clone(), vec![(SHARD, rig.epoch)]);
        let recovery = tokio::task::spawn_local(async move { host.send(Recover { shards }).await.unwrap() });
        settled().await;
        for key in ["b", "c"] {
            assert_eq!(refused(&rig.delete(key).await), "ok");
        }
        assert_eq!(rig.add("c", 5).await, json!(5), "a call does");
        gate.release();
        recovery.await.unwrap();
        let listed = [("a", "idle"), ("c", "idle")].map(|(key, is)| (key.to_owned(), is));
        assert_eq!(rig.list(None, 9).await.0, listed);
        rig.add("b", 1).await;
        rig.recover().await;
        assert_eq!(rig.list(None, 9).await.0.len(), 3);
    });
}

/// F5, case 30.
#[test]
fn a_stale_owners_deletion_removes_nothing_and_sends_the_caller_to_the_new_owner() {
    paused(async {
        let rig = Rig::new();
        rig.add("a", 5).await;
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        assert_eq!(next.add("a", 1).await, json!(6));
        assert_eq!(refused(&rig.delete("a").await), "EPOCH_FENCED");
        settled().await;
        assert_eq!(rig.told(), [(epoch(1), Some(epoch(2)))], "the LeaseHolder is told to renew");
        assert_eq!(refused(&rig.delete("a").await), "EPOCH_FENCED", "latched");
        assert_eq!(rig.calls(Call::Delete), 1, "and storage is not asked again");
        assert_eq!(next.get("a").await, json!(6));
        assert_eq!(refused(&next.delete("a").await), "ok");
    });
}

#[test]
fn a_deletion_is_admitted_like_an_invocation() {
    paused(async {
        let rig = Rig::new();
        let front = front(&rig, Holder::default());
        let second = Duration::from_secs(1);
        assert_eq!(refused(&front.delete(AgentId::new("nobody/a").unwrap(), second).await), "UNKNOWN_METHOD");
        assert_eq!(refused(&front.delete(agent("a"), second).await), "ok");
        rig.keeper.close(SHARD);
        assert_eq!(refused(&front.delete(agent("a"), second).await), "WRONG_OWNER");
        assert_eq!(refused(&rig.delete("a").await), "HANDOFF_IN_PROGRESS");
        front.draining.begin();
        assert_eq!(refused(&front.delete(agent("a"), second).await), "DRAINING");
        assert_eq!(rig.metrics.deletions.get_or_create(&outcome_of("deleted")).get(), 1);
    });
}

fn outcome_of(outcome: &'static str) -> super::super::super::metrics::Outcome {
    super::super::super::metrics::Outcome { outcome }
}

#[test]
fn agents_are_listed_page_by_page_with_where_they_stand() {
    paused(async {
        let rig = Rig::limited(HostLimits { agents: 2, ..patient() });
        for key in ["a", "b", "c"] {
            rig.add(key, 1).await;
            settled().await;
        }
        let gate = Gate::default();
        rig.store.script(Call::Append, Fault::HoldBefore(gate.clone()));
        let working = rig.invoke("c", "add", json!(1));
        settled().await;
        let listed = [("a", "suspended"), ("b", "idle"), ("c", "working")].map(|(key, is)| (key.to_owned(), is));
        assert_eq!(rig.list(None, MAX_PAGE).await, (listed.to_vec(), false));
        assert_eq!(rig.list(None, 2).await, (listed[..2].to_vec(), true));
        assert_eq!(rig.list(Some("b"), 2).await, (listed[2..].to_vec(), false));
        gate.release();
        working.await.unwrap().unwrap();
        rig.delete("a").await.unwrap();
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        // To be deleted an agent needs a place, as when it is called.
        let listed = [("b", "suspended"), ("c", "unloaded")].map(|(key, is)| (key.to_owned(), is));
        assert_eq!(next.list(None, MAX_PAGE).await, (listed.to_vec(), false));
        next.store.script(Call::Agents, Fault::Refuse);
        let query = AgentQuery { shard: SHARD, after: None, limit: 1 };
        let failed = next.host.send(ListAgents(query)).await.unwrap();
        assert_eq!(failed.unwrap_err().reason(), "STORE_UNAVAILABLE");
    });
}

#[test]
fn the_front_lists_only_shards_that_it_holds() {
    paused(async {
        let rig = Rig::new();
        let front = front(&rig, Holder::default());
        let query = AgentQuery { shard: SHARD, after: None, limit: 1 };
        assert_eq!(front.list_agents(query.clone()).await, Ok(AgentPage::default()));
        rig.keeper.close(SHARD);
        assert_eq!(front.list_agents(query).await.unwrap_err().reason(), "WRONG_OWNER");
    });
}

#[test]
fn an_agent_without_work_is_suspended_after_its_time_and_comes_back_when_called() {
    paused(async {
        let idle_after = Some(Duration::from_secs(60));
        let rig = Rig::limited(HostLimits { idle_after, ..HostLimits::default() });
        rig.add("a", 5).await;
        tokio::time::sleep(Duration::from_secs(40)).await;
        rig.add("b", 1).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let listed = [("a", "suspended"), ("b", "idle")].map(|(key, is)| (key.to_owned(), is));
        assert_eq!(rig.list(None, 9).await.0, listed);
        assert_eq!((rig.condition().agents, rig.metrics.suspensions.get()), (1, 1));
        assert_eq!(rig.get("a").await, json!(5));
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        next.recover().await;
        assert_eq!(next.condition().agents, 2, "called again, it is recovered again");
    });
}

/// One of another type: an executor that knows it has made it.
async fn foreign(store: &MemoryOplogStore, key: &str) -> AgentId {
    let foreign = AgentId::new(format!("ledger/{key}")).unwrap();
    store.claim(&foreign, SHARD, writer(1, 9)).await.unwrap();
    foreign
}

#[test]
fn agents_of_an_unknown_type_are_left_alone_by_recovery_and_by_callers() {
    paused(async {
        let store = Arc::new(MemoryOplogStore::new());
        let (first, second) = (foreign(&store, "a").await, foreign(&store, "b").await);
        let rig = Rig::with(Arc::new(store.handle()), 2, HostLimits::default());
        rig.recover().await;
        assert_eq!((rig.metrics.unknown_types.get(), rig.metrics.recovery_failures.get()), (2, 0));
        let front = front(&rig, Holder::default());
        let answer = front.invoke(super::invocation("ledger/a", "add", b"1", None), Duration::from_secs(1)).await;
        assert_eq!(reason(&answer), "UNKNOWN_METHOD");
        for agent in [first, second] {
            assert_eq!(store.recorded(&agent).await.unwrap(), Some(writer(1, 9)), "not claimed");
        }
        assert_eq!(store.running(SHARD, None, 9).await.unwrap().len(), 2);
        assert_eq!(rig.list(None, 9).await.0[0], ("a".to_owned(), "unloaded"));
    });
}

// --- Deciding outside ---

#[test]
fn what_somebody_outside_decides_is_stored_and_replayed_without_him() {
    paused(async {
        let rig = Rig::new();
        seen("stored", |seen| seen.answers = true);
        for before in [0, 3, 6] {
            assert_eq!(value(rig.ask_outside("stored").await.unwrap()), json!(before));
        }
        let next = Rig::with(Arc::new(rig.store.handle()), 2, HostLimits::default());
        next.recover().await;
        assert_eq!((next.metrics.replayed_entries.get(), seen("stored", |seen| seen.asked)), (3, 3));
        assert_eq!(value(next.ask_outside("stored").await.unwrap()), json!(9));
    });
}

/// F6, R20: the grace is over, the call is broken off, the caller goes to the next owner.
#[test]
fn a_call_outside_is_broken_off_when_the_shard_is_lost() {
    paused(async {
        let rig = Rig::new();
        let asked = rig.ask_outside("lost");
        settled().await;
        assert_eq!(seen("lost", |seen| (seen.asked, seen.broken_off)), (1, 0));
        let swept = rig.sweep(Duration::from_secs(3));
        settled().await;
        assert_eq!(seen("lost", |seen| seen.broken_off), 0, "it has the grace");
        swept.await.unwrap();
        assert_eq!(reason(&asked.await.unwrap()), "HANDOFF_IN_PROGRESS");
        assert_eq!(seen("lost", |seen| (seen.asked, seen.broken_off)), (1, 1));
        assert_eq!(rig.calls(Call::Append), 0);
    });
}

/// F6: the latch holds for as long as the admission does.
#[test]
fn a_fenced_agent_asks_nobody_outside_until_its_shard_has_a_new_epoch() {
    paused(async {
        let mut rig = Rig::new();
        seen("fenced", |seen| seen.answers = true);
        rig.ask_outside("fenced").await.unwrap().unwrap();
        let fenced = AgentId::new("asker/fenced").unwrap();
        rig.store.handle().claim(&fenced, SHARD, writer(2, 2)).await.unwrap();
        // This one is asked before storage says that it was in vain; its entry is not written.
        assert_eq!(reason(&rig.ask_outside("fenced").await.unwrap()), "EPOCH_FENCED");
        settled().await;
        assert_eq!(rig.told(), [(epoch(1), Some(epoch(2)))]);
        let asked = seen("fenced", |seen| seen.asked);
        for _ in 0..3 {
            assert_eq!(reason(&rig.ask_outside("fenced").await.unwrap()), "EPOCH_FENCED");
        }
        assert_eq!(seen("fenced", |seen| seen.asked), asked, "nothing more was started");
        // R40: the leader minted above what storage has recorded.
        rig.sweep(Duration::ZERO).await.unwrap();
        rig.regain(3).await;
        assert_eq!(value(rig.ask_outside("fenced").await.unwrap()), json!(3));
        assert_eq!(seen("fenced", |seen| seen.asked), asked + 1);
    });
}
