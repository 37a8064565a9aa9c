//! The router in virtual time, between a scripted manager and scripted executors.

use super::*;
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold_model::agents::DeletionAnswer;
use leasehold_model::message::{
    ClusterStatus, Deregistration, Owner, Registration, Renewal, Route, RoutingTable, ShardExplanation,
};
use leasehold_model::{Address, ExecutorId, ExecutorName, Grant, ManagerId, Revision, ShardEpoch, ShardId};
use leasehold_rpc::api::ManagerApi;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::sleep;
use tokio_stream::wrappers::WatchStream;

/// What a scripted executor does with a call.
#[derive(Debug, Clone)]
enum Reply {
    Answer,
    Refuse(Refusal),
    Unreachable,
    Unknown,
    Silence,
    /// Answers after so many milliseconds.
    Slow(u64),
}

struct Executor {
    owner: Owner,
    replies: Mutex<Vec<Reply>>,
    keys: Mutex<Vec<String>>,
}

impl Executor {
    fn calls(&self) -> usize {
        self.keys.lock().unwrap().len()
    }

    fn replies(&self, replies: &[Reply]) {
        *self.replies.lock().unwrap() = replies.to_vec();
    }

    /// Does as its script says; the last reply of it is repeated for ever.
    async fn act(&self, key: String) -> Result<(), CallError> {
        self.keys.lock().unwrap().push(key);
        let reply = {
            let mut replies = self.replies.lock().unwrap();
            if replies.len() > 1 { replies.remove(0) } else { replies[0].clone() }
        };
        match reply {
            Reply::Answer => {}
            Reply::Refuse(refusal) => return Err(refusal.into()),
            Reply::Unreachable => return Err(CallError::Unreachable("connection refused".into())),
            Reply::Unknown => return Err(CallError::Unknown("connection reset".into())),
            Reply::Silence => std::future::pending().await,
            Reply::Slow(ms) => sleep(Duration::from_millis(ms)).await,
        }
        Ok(())
    }
}

#[async_trait]
impl InvokeApi for Executor {
    async fn invoke(&self, invocation: Invocation, _: Duration) -> Result<InvocationAnswer, CallError> {
        self.act(invocation.idempotency_key.expect("the router attaches a key")).await?;
        Ok(InvocationAnswer {
            payload: invocation.payload,
            shard: SHARD,
            epoch: ShardEpoch::new(1).unwrap(),
            executor: self.owner.name.clone(),
            replayed: false,
        })
    }

    async fn delete(&self, agent: AgentId, _: Duration) -> Result<DeletionAnswer, CallError> {
        self.act(format!("delete {agent}")).await?;
        let (epoch, executor) = (ShardEpoch::new(1).unwrap(), self.owner.name.clone());
        Ok(DeletionAnswer { shard: SHARD, epoch, executor })
    }
}

/// A manager that answers `GetRoutingTable` with what it has, and streams changes only if it is told to.
struct Manager {
    table: watch::Sender<Arc<RoutingTable>>,
    asked: AtomicU64,
    at_once: AtomicU64,
    most_at_once: AtomicU64,
    away: std::sync::atomic::AtomicBool,
    /// Stands by, naming this leader.
    names: Mutex<Option<Address>>,
    streams: bool,
    latency: Duration,
}

impl Manager {
    fn leads(&self) -> Result<(), CallError> {
        match self.names.lock().unwrap().clone() {
            None => Ok(()),
            leader => Err(Refusal::NotLeader { leader }.into()),
        }
    }
}

#[async_trait]
impl ManagerApi for Manager {
    async fn register(&self, _: Registration) -> Result<Grant, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn renew(&self, _: Renewal) -> Result<Grant, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn deregister(&self, _: Deregistration) -> Result<(), CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        sleep(self.latency).await;
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(CallError::Unreachable("no manager".into()));
        }
        self.leads()?;
        Ok(self.table.borrow().clone())
    }
    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        if !self.streams || self.away.load(Ordering::SeqCst) {
            return Err(CallError::Unreachable("no stream".into()));
        }
        self.leads()?;
        Ok(WatchStream::new(self.table.subscribe()).map(Ok).boxed())
    }
    async fn status(&self) -> Result<ClusterStatus, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn explain(&self, _: ShardId) -> Result<ShardExplanation, CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
    async fn set_draining(&self, _: ExecutorName, _: bool) -> Result<(), CallError> {
        Err(CallError::Unreachable("not scripted".into()))
    }
}

/// One shard, so that every agent is on it.
const SHARD: ShardId = ShardId(0);

struct Scene {
    manager: Arc<Manager>,
    executors: Vec<Arc<Executor>>,
}

fn owner(at: usize) -> Owner {
    Owner {
        executor: ExecutorId::from_u128(100 + at as u128),
        name: ExecutorName::new(format!("executor-{at}")).unwrap(),
        address: Address::new(format!("host-{at}:1")).unwrap(),
    }
}

fn table(manager: u128, revision: u64, route: Route) -> Arc<RoutingTable> {
    let owners = (0..3).map(owner).collect();
    let (manager, revision) = (ManagerId::from_u128(manager), Revision(revision));
    Arc::new(RoutingTable { manager, revision, owners, routes: vec![route] })
}

fn owned(at: u32, epoch: u64) -> Route {
    Route::Owned(at, ShardEpoch::new(epoch).unwrap())
}

impl Scene {
    /// Three executors that answer; the first owns the shard at revision 1 of manager 1.
    fn new(streams: bool, latency_ms: u64) -> Self {
        let executor = |at| {
            let (replies, keys) = (Mutex::new(vec![Reply::Answer]), Mutex::default());
            Arc::new(Executor { owner: owner(at), replies, keys })
        };
        let manager = Manager {
            table: watch::Sender::new(table(1, 1, owned(0, 1))),
            asked: AtomicU64::new(0),
            at_once: AtomicU64::new(0),
            most_at_once: AtomicU64::new(0),
            away: false.into(),
            names: Mutex::default(),
            streams,
            latency: Duration::from_millis(latency_ms),
        };
        Self { manager: Arc::new(manager), executors: (0..3).map(executor).collect() }
    }

    fn router(&self) -> Router {
        let by_address: BTreeMap<Address, Arc<Executor>> =
            self.executors.iter().map(|executor| (executor.owner.address.clone(), Arc::clone(executor))).collect();
        let dial = move |address: &Address| match by_address.get(address) {
            Some(executor) => Ok(Arc::clone(executor) as Arc<dyn InvokeApi>),
            None => Err(CallError::Unreachable("no such address".into())),
        };
        Router::new(list(std::slice::from_ref(&self.manager)), Arc::new(dial), RouterSettings::default())
    }

    async fn ready(&self) -> Router {
        let router = self.router();
        router.subscribe().wait_for(Option::is_some).await.unwrap();
        // Past the refresher's pace, so that the next refresh begins when it is asked for.
        sleep(secs(1)).await;
        router
    }

    fn tell(&self, told: Arc<RoutingTable>) {
        self.manager.table.send_replace(told);
    }

    fn away(&self, away: bool) {
        self.manager.away.store(away, Ordering::SeqCst);
    }
}

/// These managers at addresses of their own.
fn list(managers: &[Arc<Manager>]) -> Managers {
    let address = |at: usize| Address::new(format!("manager-{at}:1")).unwrap();
    let by_address: BTreeMap<_, _> =
        managers.iter().enumerate().map(|(at, manager)| (address(at), Arc::clone(manager))).collect();
    let addresses: Vec<_> = by_address.keys().cloned().collect();
    Managers::with(&addresses, move |address| Arc::clone(&by_address[address]) as Arc<dyn ManagerApi>)
}

fn call() -> Invocation {
    let agent = AgentId::new("counter/a").unwrap();
    Invocation { agent, method: "add".into(), payload: b"1".to_vec(), idempotency_key: None }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn not_ready() -> Refusal {
    Refusal::ShardingNotReady { executor: "executor-0".into() }
}

fn wrong_owner(hint: Option<usize>) -> Refusal {
    Refusal::WrongOwner { shard: SHARD, owner: hint.map(owner), revision: Revision(9) }
}

/// F5, F6: the stale owner says so, the new one does it; and it is harmless to ask twice.
#[tokio::test(start_paused = true)]
async fn a_call_and_a_deletion_that_were_fenced_resume_at_the_new_owner() {
    let (held, recorded) = (ShardEpoch::new(1).unwrap(), ShardEpoch::new(2).unwrap());
    for deletes in [true, false] {
        let scene = Scene::new(false, 5);
        let router = scene.ready().await;
        scene.executors[0].replies(&[Reply::Unknown, Reply::Refuse(Refusal::EpochFenced { held, recorded })]);
        let manager = Arc::clone(&scene.manager);
        tokio::spawn(async move {
            sleep(secs(1)).await;
            manager.table.send_replace(table(1, 2, owned(1, 2)));
        });
        let executor = if deletes {
            router.delete(call().agent, secs(10)).await.unwrap().executor
        } else {
            router.call(call(), secs(10)).await.unwrap().executor
        };
        assert_eq!((executor, scene.executors[1].calls()), (owner(1).name, 1));
        assert!(scene.executors[0].calls() >= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_to_the_owner_that_the_table_names() {
    let scene = Scene::new(false, 1);
    let router = scene.router();
    // The table is not there yet: the call waits for it.
    let answer = router.call(call(), secs(5)).await.unwrap();
    assert_eq!((answer.executor.as_str(), answer.payload.as_slice()), ("executor-0", &b"1"[..]));
    let located = router.route(&call().agent).unwrap();
    assert_eq!((located.shard, located.owner.unwrap().0), (SHARD, owner(0)));
}

/// Case 40: the route is corrected after a refusal, a connection error, a time-out and an unknown outcome alike.
#[tokio::test(start_paused = true)]
async fn every_kind_of_failure_corrects_the_route() {
    for failure in [Reply::Refuse(not_ready()), Reply::Unreachable, Reply::Unknown, Reply::Silence] {
        let scene = Scene::new(false, 1);
        let router = scene.ready().await;
        scene.executors[0].replies(std::slice::from_ref(&failure));
        scene.tell(table(1, 2, owned(1, 2)));
        let answer = router.call(call(), secs(10)).await.unwrap();
        assert_eq!(answer.executor.as_str(), "executor-1", "{failure:?}");
        assert_eq!(scene.executors[0].calls(), 1, "{failure:?}");
    }
}

/// Case 40, and L2 for callers: refreshes are shared, whatever the number of refused calls.
#[tokio::test(start_paused = true)]
async fn a_stampede_of_refused_calls_shares_one_refresh_at_a_time() {
    let scene = Scene::new(false, 20);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Refuse(wrong_owner(None))]);
    scene.tell(table(1, 2, owned(1, 2)));
    let asked_before = scene.manager.asked.load(Ordering::SeqCst);
    let calls = (0..500).map(|_| router.call(call(), secs(10)));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().executor.as_str() == "executor-1"));
    assert_eq!(scene.manager.most_at_once.load(Ordering::SeqCst), 1);
    let asked = scene.manager.asked.load(Ordering::SeqCst) - asked_before;
    assert!(asked <= 2, "{asked} refreshes for one change");
    assert!(scene.executors[0].calls() <= 1500, "backed off while the refresh was under way");
}

#[tokio::test(start_paused = true)]
async fn a_shard_without_owner_for_a_minute_costs_the_manager_a_bounded_number_of_refreshes() {
    let scene = Scene::new(false, 0);
    let router = scene.ready().await;
    scene.tell(table(1, 2, Route::Unassigned));
    scene.executors[0].replies(&[Reply::Refuse(not_ready())]);
    let calls = (0..200).map(|_| router.call(call(), secs(60)));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(Result::is_err));
    let asked = scene.manager.asked.load(Ordering::SeqCst);
    assert!(asked <= 60 * 100 + 2, "{asked} refreshes in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_followed_at_once_even_while_no_manager_answers() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    scene.away(true);
    scene.executors[0].replies(&[Reply::Refuse(wrong_owner(Some(2)))]);
    let began = Instant::now();
    let answer = router.call(call(), secs(5)).await.unwrap();
    assert_eq!(answer.executor.as_str(), "executor-2");
    assert_eq!(began.elapsed(), Duration::ZERO, "no back-off before a hint");
}

/// Case 12: two executors each naming the other.
#[tokio::test(start_paused = true)]
async fn executors_that_name_each_other_do_not_keep_a_call_spinning() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Refuse(wrong_owner(Some(1)))]);
    scene.executors[1].replies(&[Reply::Refuse(wrong_owner(Some(0)))]);
    let error = router.call(call(), secs(10)).await.unwrap_err();
    let times = error.attempts().times();
    assert!((20..400).contains(&times), "{times} attempts in 10 s: {error}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_repeated_with_the_same_key() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Unknown, Reply::Silence, Reply::Unknown, Reply::Answer]);
    router.call(call(), secs(10)).await.unwrap();
    let keys = scene.executors[0].keys.lock().unwrap().clone();
    assert_eq!(keys.len(), 4);
    assert!(keys.iter().all(|key| *key == keys[0] && !key.is_empty()), "{keys:?}");
    let given = Invocation { idempotency_key: Some("mine".into()), ..call() };
    router.call(given, secs(10)).await.unwrap();
    assert_eq!(scene.executors[0].keys.lock().unwrap().last().unwrap(), "mine");
    router.call(call(), secs(10)).await.unwrap();
    assert_ne!(*scene.executors[0].keys.lock().unwrap().last().unwrap(), keys[0], "each call has a key of its own");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_retried_after_the_deadline_and_the_error_tells_what_was_tried() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Refuse(not_ready())]);
    let began = Instant::now();
    let error = router.call(call(), secs(3)).await.unwrap_err();
    assert!(began.elapsed() <= secs(3));
    assert!(began.elapsed() >= secs(3) - Duration::from_millis(20), "gave up after {:?}", began.elapsed());
    let calls = scene.executors[0].calls();
    let tried = &error.attempts().tried;
    assert_eq!(tried.len(), 1);
    assert_eq!((tried[0].executor.as_deref(), tried[0].times as usize), (Some("executor-0"), calls));
    assert_eq!(tried[0].answers["SHARDING_NOT_READY"] as usize, calls);
    assert_eq!(CallError::from(error), CallError::Refused(not_ready()));
    sleep(secs(60)).await;
    assert_eq!(scene.executors[0].calls(), calls, "nothing after the deadline");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_time_asks_nobody() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    let error = router.call(call(), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, RouterError::DeadlineExceeded { .. }));
    assert_eq!(scene.executors[0].calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_final_refusal_ends_the_call_at_once() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    let refusal = Refusal::InvocationRejected { why: "below zero".into() };
    scene.executors[0].replies(&[Reply::Refuse(refusal.clone())]);
    let error = router.call(call(), secs(10)).await.unwrap_err();
    assert_eq!(CallError::from(error), CallError::Refused(refusal));
    assert_eq!(scene.executors[0].calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_last_table_serves_while_no_manager_answers() {
    let scene = Scene::new(true, 1);
    let router = scene.ready().await;
    scene.away(true);
    scene.executors[0].replies(&[Reply::Unreachable, Reply::Answer]);
    let answer = router.call(call(), secs(5)).await.unwrap();
    assert_eq!(answer.executor.as_str(), "executor-0");
    sleep(secs(600)).await;
    router.call(call(), secs(5)).await.unwrap();
    assert!(router.subscribe().borrow().is_some());
}

/// A planned move seen by a caller: latency, no error.
#[tokio::test(start_paused = true)]
async fn a_call_during_a_hand_off_goes_on_as_soon_as_the_watch_names_the_new_owner() {
    let scene = Scene::new(true, 1);
    let router = scene.ready().await;
    scene.tell(table(1, 2, Route::Releasing(0)));
    scene.executors[0].replies(&[Reply::Refuse(Refusal::HandoffInProgress { shard: SHARD, why: "draining".into() })]);
    sleep(Duration::from_millis(1)).await;
    let began = Instant::now();
    let calling = tokio::spawn(async move { router.call(call(), secs(30)).await });
    sleep(Duration::from_millis(7_777)).await;
    scene.tell(table(1, 3, owned(1, 2)));
    let answer = calling.await.unwrap().unwrap();
    assert_eq!(answer.executor.as_str(), "executor-1");
    assert!(began.elapsed() <= Duration::from_millis(7_780), "waited {:?}", began.elapsed());
}

/// Case 9: an executor that accepts connections and never answers.
#[tokio::test(start_paused = true)]
async fn a_silent_owner_is_left_as_soon_as_its_shard_is_served_elsewhere() {
    let scene = Scene::new(true, 1);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Silence]);
    let began = Instant::now();
    let calling = tokio::spawn(async move { router.call(call(), secs(60)).await });
    sleep(Duration::from_millis(3_500)).await;
    scene.tell(table(1, 2, owned(1, 2)));
    calling.await.unwrap().unwrap();
    assert!(began.elapsed() <= Duration::from_millis(3_510), "waited {:?}", began.elapsed());
    let keys = scene.executors[0].keys.lock().unwrap().clone();
    assert_eq!(*scene.executors[1].keys.lock().unwrap(), keys[..1]);
}

/// Case 9, with the watch down: the first attempt is bounded and the refresh finds the new owner.
#[tokio::test(start_paused = true)]
async fn a_silent_former_owner_costs_one_bounded_attempt() {
    for (within_ms, at_most_ms) in [(30_000, 2_050), (900, 350)] {
        let scene = Scene::new(false, 1);
        let router = scene.ready().await;
        scene.executors[0].replies(&[Reply::Silence]);
        scene.tell(table(1, 2, owned(1, 2)));
        let began = Instant::now();
        router.call(call(), Duration::from_millis(within_ms)).await.unwrap();
        assert!(began.elapsed() <= Duration::from_millis(at_most_ms), "waited {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_slower_than_one_attempt_comes_to_its_end() {
    let scene = Scene::new(true, 1);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Slow(7_000)]);
    router.call(call(), secs(60)).await.unwrap();
    assert_eq!(scene.executors[0].calls(), 3, "2 s, 4 s, then 8 s were enough");
}

#[tokio::test(start_paused = true)]
async fn an_older_table_of_the_same_manager_is_ignored_and_another_manager_replaces() {
    let scene = Scene::new(true, 1);
    let router = scene.ready().await;
    let tables = router.subscribe();
    let current = || {
        let table = tables.borrow().clone().unwrap();
        (table.manager, table.revision)
    };
    let rows = [
        (1, 5, (1, 5)),
        (1, 4, (1, 5)),
        (1, 5, (1, 5)),
        (1, 6, (1, 6)),
        (2, 1, (2, 1)),
        (2, 0, (2, 1)),
        (2, 3, (2, 3)),
    ];
    for (manager, revision, (in_use, at)) in rows {
        scene.tell(table(manager, revision, owned(0, 1)));
        // The older one of another process is doubted first.
        sleep(secs(15)).await;
        assert_eq!(current(), (ManagerId::from_u128(in_use), Revision(at)), "after {manager} at {revision}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ended_is_begun_again_and_an_absent_manager_is_not_hammered() {
    let scene = Scene::new(true, 1);
    scene.away(true);
    let router = scene.router();
    sleep(secs(3600)).await;
    assert!(router.route(&call().agent).is_none());
    scene.away(false);
    sleep(secs(6)).await;
    assert!(router.route(&call().agent).is_some(), "found without any call, by the watch");
    assert_eq!(scene.manager.asked.load(Ordering::SeqCst), 1, "nobody asked for a refresh");
}

#[tokio::test(start_paused = true)]
async fn a_second_manager_is_asked_when_the_first_is_silent() {
    let (frozen, other) = (Scene::new(false, 3_600_000), Scene::new(false, 1));
    let executors = other.executors.clone();
    let dial = move |_: &Address| Ok(Arc::clone(&executors[0]) as Arc<dyn InvokeApi>);
    let router = Router::new(list(&[frozen.manager, other.manager]), Arc::new(dial), RouterSettings::default());
    router.call(call(), secs(5)).await.unwrap();
}

fn in_use(router: &Router) -> Option<(ManagerId, Revision)> {
    router.subscribe().borrow().as_ref().map(|table| (table.manager, table.revision))
}

fn nobody() -> Arc<dyn ExecutorDialer> {
    Arc::new(|_: &Address| Err(CallError::Unreachable("nobody".into())))
}

#[tokio::test(start_paused = true)]
async fn a_router_follows_a_standby_to_a_leader_it_was_not_told_of() {
    let (standby, leader) = (Scene::new(true, 1).manager, Scene::new(true, 1).manager);
    *standby.names.lock().unwrap() = Some(Address::new("leader:1").unwrap());
    leader.table.send_replace(table(7, 3, owned(1, 2)));
    let found = Arc::clone(&leader);
    let managers = Managers::with(&[Address::new("standby:1").unwrap()], move |address| {
        let manager = if address.as_str() == "leader:1" { &found } else { &standby };
        Arc::clone(manager) as Arc<dyn ManagerApi>
    });
    let router = Router::new(managers, nobody(), RouterSettings::default());
    sleep(secs(1)).await;
    assert_eq!(in_use(&router), Some((ManagerId::from_u128(7), Revision(3))));
    leader.table.send_replace(table(7, 4, owned(2, 3)));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(in_use(&router), Some((ManagerId::from_u128(7), Revision(4))), "watched there");
}

/// A leader that was replaced and goes on answering beside its successor, which is away now and then.
#[tokio::test(start_paused = true)]
async fn two_managers_that_both_answer_do_not_make_the_table_flap() {
    for streams in [true, false] {
        let (former, leader) = (Scene::new(streams, 1).manager, Scene::new(streams, 1).manager);
        former.table.send_replace(table(1, 10, owned(0, 1)));
        leader.table.send_replace(table(2, 12, owned(1, 2)));
        let router =
            Router::new(list(&[Arc::clone(&former), Arc::clone(&leader)]), nobody(), RouterSettings::default());
        sleep(secs(1)).await;
        let mut tables = router.subscribe();
        tables.borrow_and_update();
        let mut changes = Vec::new();
        for round in 0..300 {
            leader.away.store(round % 10 < 3, Ordering::SeqCst);
            former.away.store(round == 5, Ordering::SeqCst);
            router.0.tables.refresh();
            sleep(Duration::from_millis(500)).await;
            if tables.has_changed().unwrap() {
                changes.extend(tables.borrow_and_update().as_ref().map(|table| (round, table.manager)));
            }
        }
        assert!(changes.len() <= 1, "streams {streams}: {changes:?}");
        assert_eq!(in_use(&router), Some((ManagerId::from_u128(2), Revision(12))), "streams {streams}");
    }
}

/// R40: nobody is held to a world that is gone.
#[tokio::test(start_paused = true)]
async fn a_restored_stores_older_table_is_used_once_nothing_else_is_heard() {
    for streams in [true, false] {
        let scene = Scene::new(streams, 1);
        let router = Router::new(list(&[Arc::clone(&scene.manager)]), nobody(), RouterSettings::default());
        scene.tell(table(1, 10, owned(0, 5)));
        sleep(secs(1)).await;
        scene.tell(table(2, 3, owned(1, 2)));
        for _ in 0..24 {
            router.0.tables.refresh();
            sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(in_use(&router), Some((ManagerId::from_u128(2), Revision(3))), "streams {streams}");
    }
}

#[test]
fn only_a_table_that_is_older_in_every_way_is_doubted() {
    let known = table(1, 10, owned(0, 5));
    let rows = [
        (table(1, 10, owned(0, 5)), Heard::Nothing),
        (table(1, 9, owned(1, 4)), Heard::Nothing),
        (table(1, 11, owned(1, 6)), Heard::News),
        (table(2, 10, owned(0, 5)), Heard::News),
        (table(2, 11, owned(0, 4)), Heard::News),
        (table(2, 9, owned(1, 6)), Heard::News),
        (table(2, 9, owned(1, 5)), Heard::Older),
        (table(2, 9, owned(1, 4)), Heard::Older),
        (table(2, 9, Route::Unassigned), Heard::Older),
    ];
    for (heard, expected) in rows {
        assert_eq!(judge(Some(&known), &heard), expected, "{heard:?}");
        assert_eq!(judge(None, &heard), Heard::News);
    }
    let mut smaller = (*table(2, 9, owned(1, 4))).clone();
    smaller.routes.push(Route::Unassigned);
    assert_eq!(judge(Some(&known), &smaller), Heard::News, "another shard count is another world");
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_bound_are_refused_as_overload() {
    let scene = Scene::new(false, 1);
    scene.executors[0].replies(&[Reply::Silence]);
    let dial = {
        let executor = Arc::clone(&scene.executors[0]);
        move |_: &Address| Ok(Arc::clone(&executor) as Arc<dyn InvokeApi>)
    };
    let settings = RouterSettings { calls_most: 2, ..RouterSettings::default() };
    let router = Router::new(list(&[scene.manager]), Arc::new(dial), settings);
    let outcomes = futures::future::join_all((0..3).map(|_| router.call(call(), secs(1)))).await;
    let overloaded =
        outcomes.iter().filter(|outcome| outcome.as_ref().is_err_and(|error| error.reason() == "OVERLOADED"));
    assert_eq!(overloaded.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_counters_tell_answers_from_failures() {
    let scene = Scene::new(false, 1);
    let router = scene.ready().await;
    scene.executors[0].replies(&[Reply::Refuse(not_ready()), Reply::Unreachable, Reply::Answer]);
    router.call(call(), secs(5)).await.unwrap();
    scene.executors[0].replies(&[Reply::Refuse(not_ready())]);
    router.call(call(), secs(1)).await.unwrap_err();
    let mut registry = prometheus_client::registry::Registry::default();
    router.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "router_calls_total{outcome=\"answered\"} 1",
        "router_calls_total{outcome=\"deadline\"} 1",
        "router_retries_total{reason=\"UNREACHABLE\"} 1",
        "router_call_seconds_count 2",
        "router_table_revision 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(router.metrics().retries()["UNREACHABLE"], 1);
}
