//! Scripted managers in virtual time.

use super::*;
use crate::tests::samples::{deregistration, grant, registration, renewal};
use leasehold_model::message::Owner;
use leasehold_model::{ManagerId, Revision};

#[derive(Debug, Clone, PartialEq)]
enum Conduct {
    Leads,
    StandsBy(Option<&'static str>),
    /// Stands by and takes so many seconds to say so.
    NamesLate(&'static str, u64),
    Refuses(Refusal),
    Gone,
    Resets,
    Silent,
}

#[derive(Default)]
struct Network {
    conducts: Mutex<BTreeMap<String, Conduct>>,
    asked: Mutex<Vec<(Instant, String)>>,
    dialled: Mutex<Vec<String>>,
}

struct Line(Arc<Network>, String);

impl Line {
    async fn answer<T>(&self, well: T) -> Result<T, CallError> {
        self.0.asked.lock().unwrap().push((Instant::now(), self.1.clone()));
        let conduct = self.0.conducts.lock().unwrap().get(&self.1).cloned().unwrap_or(Conduct::Gone);
        match conduct {
            Conduct::Leads => Ok(well),
            Conduct::StandsBy(leader) => Err(Refusal::NotLeader { leader: leader.map(at) }.into()),
            Conduct::NamesLate(leader, secs) => {
                tokio::time::sleep(Duration::from_secs(secs)).await;
                Err(Refusal::NotLeader { leader: Some(at(leader)) }.into())
            }
            Conduct::Refuses(refusal) => Err(refusal.into()),
            Conduct::Gone => Err(CallError::Unreachable("connection refused".into())),
            Conduct::Resets => Err(CallError::Unknown("connection reset".into())),
            Conduct::Silent => std::future::pending().await,
        }
    }
}

#[async_trait]
impl ManagerApi for Line {
    async fn register(&self, _: Registration) -> Result<Grant, CallError> {
        self.answer(grant()).await
    }
    async fn renew(&self, _: Renewal) -> Result<Grant, CallError> {
        self.answer(grant()).await
    }
    async fn deregister(&self, _: Deregistration) -> Result<(), CallError> {
        self.answer(()).await
    }
    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        let (manager, revision, owners) = (ManagerId::from_u128(1), Revision(1), Vec::<Owner>::new());
        self.answer(Arc::new(RoutingTable { manager, revision, owners, routes: Vec::new() })).await
    }
    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        let stream: BoxStream<'static, _> = Box::pin(futures::stream::pending());
        self.answer(stream).await
    }
    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.answer(()).await?;
        Err(CallError::Unknown("not scripted".into()))
    }
    async fn explain(&self, _: ShardId) -> Result<ShardExplanation, CallError> {
        self.answer(()).await?;
        Err(CallError::Unknown("not scripted".into()))
    }
    async fn set_draining(&self, _: ExecutorName, _: bool) -> Result<(), CallError> {
        self.answer(()).await
    }
}

fn at(name: &str) -> Address {
    Address::new(format!("{name}:1")).unwrap()
}

fn name_of(address: &Address) -> String {
    address.as_str().trim_end_matches(":1").to_owned()
}

struct Scene {
    network: Arc<Network>,
    managers: Managers,
}

impl Scene {
    fn new(configured: &[&str], conducts: &[(&str, Conduct)]) -> Self {
        let network = Arc::new(Network::default());
        let lines = Arc::clone(&network);
        let addresses: Vec<_> = configured.iter().map(|name| at(name)).collect();
        let managers = Managers::with(&addresses, move |address| {
            lines.dialled.lock().unwrap().push(name_of(address));
            Arc::new(Line(Arc::clone(&lines), name_of(address)))
        });
        let scene = Self { network, managers };
        for (name, conduct) in conducts {
            scene.let_it(name, conduct.clone());
        }
        scene
    }

    fn let_it(&self, name: &str, conduct: Conduct) {
        self.network.conducts.lock().unwrap().insert(name.to_owned(), conduct);
    }

    /// Who was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.network.asked.lock().unwrap()).into_iter().map(|(_, name)| name).collect()
    }

    fn dialled(&self) -> Vec<String> {
        std::mem::take(&mut *self.network.dialled.lock().unwrap())
    }

    async fn renew(&self) -> Result<Grant, CallError> {
        self.managers.renew(renewal()).await
    }
}

const STANDBY: Conduct = Conduct::StandsBy(None);

const fn names(leader: &'static str) -> Conduct {
    Conduct::StandsBy(Some(leader))
}

#[tokio::test(start_paused = true)]
async fn the_leader_that_a_standby_names_is_asked_within_the_same_call_and_kept() {
    for leader in ["b", "elsewhere"] {
        let scene = Scene::new(&["a", "b"], &[("a", names(leader)), (leader, Conduct::Leads)]);
        let began = Instant::now();
        assert_eq!(scene.managers.register(registration()).await, Ok(grant()));
        assert_eq!((scene.asked(), began.elapsed()), (vec!["a".to_owned(), leader.to_owned()], Duration::ZERO));
        scene.renew().await.unwrap();
        scene.managers.deregister(deregistration()).await.unwrap();
        scene.managers.routing_table().await.unwrap();
        assert_eq!(scene.asked(), [leader; 3], "one call each from now on");
    }
}

/// Case 40: whatever is wrong with a manager leads to another; where the call may have been done, in the next call (R13).
#[tokio::test(start_paused = true)]
async fn every_kind_of_failure_of_a_manager_leads_to_another() {
    let unconfirmed = Conduct::Refuses(Refusal::LeadershipUnconfirmed { why: "etcd is away".into() });
    for failure in [Conduct::Resets, Conduct::Silent, unconfirmed] {
        let scene = Scene::new(&["a", "b", "c"], &[("a", failure.clone()), ("b", Conduct::Leads)]);
        scene.renew().await.unwrap_err();
        assert_eq!(scene.asked(), ["a"], "{failure:?}: nothing is retried below the loop (R13)");
        scene.renew().await.unwrap();
        scene.renew().await.unwrap();
        assert_eq!(scene.asked(), ["b", "b"], "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_provably_did_nothing_is_followed_by_the_next_within_the_same_call() {
    for failure in [Conduct::Gone, STANDBY] {
        let scene =
            Scene::new(&["a", "b", "c"], &[("a", failure.clone()), ("b", failure.clone()), ("c", Conduct::Leads)]);
        let began = Instant::now();
        scene.renew().await.unwrap();
        assert_eq!((scene.asked(), began.elapsed()), (["a", "b", "c"].map(str::to_owned).to_vec(), Duration::ZERO));
        scene.renew().await.unwrap();
        assert_eq!(scene.asked(), ["c"], "{failure:?}: it is kept");
        scene.let_it("c", failure);
        scene.renew().await.unwrap_err();
        assert_eq!(scene.asked(), ["c", "a", "b"], "once around and no further");
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_refuses_for_another_reason_is_asked_again_over_the_same_connection() {
    let refusals = [
        Refusal::StoreUnavailable { why: "disk full".into() },
        Refusal::UnknownExecutor,
        Refusal::Overloaded { resource: "calls".into(), used: 1, limit: 1 },
    ];
    for refusal in refusals {
        let scene = Scene::new(&["a", "b"], &[("a", Conduct::Refuses(refusal.clone())), ("b", Conduct::Leads)]);
        for _ in 0..3 {
            assert_eq!(scene.renew().await, Err(refusal.clone().into()));
        }
        assert_eq!((scene.asked(), scene.dialled()), (vec!["a".to_owned(); 3], vec!["a".to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_on_counts_as_a_failure() {
    let scene = Scene::new(&["a", "b"], &[("a", Conduct::Silent), ("b", Conduct::Leads)]);
    timeout(Duration::from_millis(500), scene.renew()).await.unwrap_err();
    scene.renew().await.unwrap();
    assert_eq!(scene.asked(), ["a", "b"]);
}

/// Managers that name each other, themselves, or a chain without an end.
#[tokio::test(start_paused = true)]
async fn names_are_followed_only_so_far_and_never_in_a_circle() {
    type Row<'a> = (&'a [(&'a str, Conduct)], &'a [&'a str]);
    let rows: [Row<'_>; 4] = [
        (&[("a", names("b")), ("b", names("a"))], &["a", "b"]),
        (&[("a", names("a")), ("b", STANDBY)], &["a", "b"]),
        (&[("a", names("b")), ("b", names("c")), ("c", names("a"))], &["a", "b", "c"]),
        (
            &[("a", names("x")), ("x", names("y")), ("y", names("z")), ("z", Conduct::Leads), ("b", STANDBY)],
            &["a", "x", "y", "b"],
        ),
    ];
    for (conducts, asked) in rows {
        let scene = Scene::new(&["a", "b"], conducts);
        let refused = scene.renew().await;
        assert!(matches!(refused, Err(CallError::Refused(Refusal::NotLeader { .. }))), "{refused:?}");
        assert_eq!(scene.asked(), asked);
        for _ in 0..100 {
            let _ = scene.renew().await;
            assert!(scene.asked().len() <= 2 + MAX_REDIRECTS, "those configured, and so many more");
        }
        assert!(scene.managers.state().links.len() <= 3, "no more connections than configured, and one");
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_fails_is_dropped_and_the_list_is_tried_again() {
    let scene = Scene::new(&["a", "b"], &[("a", names("x")), ("b", names("x")), ("x", Conduct::Leads)]);
    scene.renew().await.unwrap();
    assert_eq!(scene.asked(), ["a", "x"]);
    scene.let_it("x", Conduct::Gone);
    scene.renew().await.unwrap_err();
    assert_eq!(scene.asked(), ["x", "a", "b"]);
    scene.renew().await.unwrap_err();
    assert_eq!(scene.asked(), ["a", "b"], "x is still named, and not asked");
    scene.let_it("b", Conduct::Leads);
    scene.renew().await.unwrap();
    scene.renew().await.unwrap();
    assert_eq!(scene.asked(), ["a", "b", "b"]);
}

/// A black-holed leader that the standbys go on naming must not take every attempt.
#[tokio::test(start_paused = true)]
async fn a_silent_leader_is_avoided_for_as_long_as_it_was_waited_for_and_then_found_again() {
    let scene = Scene::new(&["a"], &[("a", names("x")), ("x", Conduct::Silent)]);
    scene.renew().await.unwrap_err();
    let heard = Instant::now();
    scene.asked();
    while heard.elapsed() < Duration::from_secs(9) {
        scene.renew().await.unwrap_err();
        assert_eq!(scene.asked(), ["a"]);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    scene.let_it("x", Conduct::Leads);
    scene.renew().await.unwrap();
    assert_eq!(scene.asked(), ["a", "x"]);
}

/// The deadline is the whole call's, whomever it asks.
#[tokio::test(start_paused = true)]
async fn a_redirect_has_only_what_is_left_of_the_calls_deadline() {
    let scene = Scene::new(&["a"], &[("a", Conduct::NamesLate("x", 6)), ("x", Conduct::Silent)]);
    let began = Instant::now();
    scene.renew().await.unwrap_err();
    assert_eq!(scene.asked(), ["a", "x"]);
    let took = began.elapsed();
    assert!(took <= scene.managers.deadline + Duration::from_millis(2), "{took:?}");
}

/// A leadership that wanders from one address to the next for ever.
#[tokio::test(start_paused = true)]
async fn connections_to_former_leaders_are_not_kept() {
    let scene = Scene::new(&["a", "b"], &[("a", names("h0")), ("h0", Conduct::Leads)]);
    scene.renew().await.unwrap();
    for n in 0..20 {
        let next: &'static str = format!("h{}", n + 1).leak();
        scene.let_it(next, Conduct::Leads);
        scene.let_it(&format!("h{n}"), names(next));
        scene.renew().await.unwrap();
        assert!(scene.managers.state().links.len() <= 3);
    }
}

/// One address with many managers behind it: the connection decides who answers.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_of_no_use_is_made_anew() {
    for useless in [STANDBY, names("balanced"), Conduct::Gone, Conduct::Resets, Conduct::Silent] {
        let scene = Scene::new(&["balanced"], &[("balanced", useless.clone())]);
        scene.renew().await.unwrap_err();
        assert_eq!(scene.dialled().len(), 1);
        scene.let_it("balanced", Conduct::Leads);
        scene.renew().await.unwrap();
        scene.renew().await.unwrap();
        assert_eq!(scene.dialled().len(), 1, "{useless:?}: once more, and not again");
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_be_asked_of_everybody_is_and_each_gets_its_share_of_the_time() {
    let scene = Scene::new(&["a", "b", "c"], &[("a", Conduct::Silent), ("b", STANDBY), ("c", Conduct::Leads)]);
    let began = Instant::now();
    scene.managers.routing_table().await.unwrap();
    assert_eq!(scene.asked(), ["a", "b", "c"]);
    assert!(began.elapsed() <= scene.managers.deadline / 3 + Duration::from_millis(2), "{:?}", began.elapsed());
    scene.managers.set_draining(ExecutorName::new("e").unwrap(), true).await.unwrap();
    drop(scene.managers.watch_routing_table().await.unwrap());
    assert_eq!(scene.asked(), ["c", "c"]);
    scene.let_it("c", Conduct::Gone);
    scene.managers.routing_table().await.unwrap_err();
    assert_eq!(scene.asked(), ["c", "a", "b"], "once around and no further");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_passed_over_is_not_asked_next() {
    let scene = Scene::new(&["a", "b"], &[("a", Conduct::Leads), ("b", Conduct::Leads)]);
    scene.renew().await.unwrap();
    scene.managers.pass_over();
    scene.renew().await.unwrap();
    assert_eq!(scene.asked(), ["a", "b"]);
}
