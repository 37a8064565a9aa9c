//! Links between named parties whose requests and answers can be delayed, dropped or cut off, each way by itself.

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold::router::ExecutorDialer;
use leasehold_actors::executor::front::ExecutorFront;
use leasehold_actors::manager::{ExecutorLinks, ManagerHandle};
use leasehold_model::Refusal;
use leasehold_model::message::{
    ClusterStatus, Deregistration, Inspection, Invocation, InvocationAnswer, Push, PushAnswer, Registration, Renewal,
    RoutingTable, ShardExplanation,
};
use leasehold_model::{Address, CallError, ExecutorId, ExecutorName, Grant, ShardEpoch, ShardId, ShardSet};
use leasehold_rpc::api::{ExecutorApi, InvokeApi, ManagerApi};
use leasehold_rpc::managers::Managers;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

/// What happens to one way of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Pass,
    Delay(Duration),
    Drop,
}

/// A call on its way: from whom to whom, and what.
#[derive(Debug, Clone, Copy)]
pub struct Leg<'a> {
    pub from: &'a str,
    pub to: &'a str,
    pub what: &'static str,
}

type Script = Box<dyn FnMut(Leg<'_>) -> (Way, Way) + Send>;

/// What is behind a manager's address.
#[derive(Clone)]
pub enum Seat {
    Leads(ManagerHandle),
    /// Stands by and names this seat's manager.
    StandsBy(Option<usize>),
    /// Takes connections and never answers.
    BlackHole,
}

#[derive(Default)]
struct State {
    seats: BTreeMap<usize, Seat>,
    executors: BTreeMap<Address, (String, Arc<ExecutorFront>)>,
    script: Option<Script>,
    /// Directed cuts: packets from the first to the second are dropped.
    cuts: BTreeSet<(String, String)>,
    told: BTreeMap<(ShardId, ShardEpoch), ExecutorId>,
}

/// The network. Everybody's links come from here.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<State>>);

/// The manager in the first seat, and whoever pushes.
pub const MANAGER: &str = "manager";
pub const CALLER: &str = "caller";

impl Network {
    /// Puts a manager into a seat, or leaves it empty: then nobody listens there.
    pub fn seat(&self, seat: usize, what: Option<Seat>) {
        let mut state = self.0.lock().unwrap();
        match what {
            Some(what) => state.seats.insert(seat, what),
            None => state.seats.remove(&seat),
        };
    }

    pub fn place(&self, address: &Address, name: &str, front: Arc<ExecutorFront>) {
        self.0.lock().unwrap().executors.insert(address.clone(), (name.to_owned(), front));
    }

    pub fn remove(&self, address: &Address) {
        self.0.lock().unwrap().executors.remove(address);
    }

    /// Asks `script` about every call from now on: what happens to its request and to its answer.
    pub fn script(&self, script: impl FnMut(Leg<'_>) -> (Way, Way) + Send + 'static) {
        self.0.lock().unwrap().script = Some(Box::new(script));
    }

    pub fn cut(&self, from: &str, to: &str) {
        self.0.lock().unwrap().cuts.insert((from.to_owned(), to.to_owned()));
    }

    pub fn cut_both_ways(&self, one: &str, other: &str) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Ends the cuts; the script goes on.
    pub fn mend(&self) {
        self.0.lock().unwrap().cuts.clear();
    }

    /// The store was wiped: what an earlier world told does not bind this one (R40).
    pub fn forget_told(&self) {
        self.0.lock().unwrap().told.clear();
    }

    pub fn heal(&self) {
        let mut state = self.0.lock().unwrap();
        state.cuts.clear();
        state.script = None;
    }

    fn ways(&self, leg: Leg<'_>) -> (Way, Way) {
        let mut state = self.0.lock().unwrap();
        let (mut request, mut answer) = state.script.as_mut().map_or((Way::Pass, Way::Pass), |script| script(leg));
        let cut = |from: &str, to: &str| state.cuts.contains(&(from.to_owned(), to.to_owned()));
        if cut(leg.from, leg.to) {
            request = Way::Drop;
        }
        if cut(leg.to, leg.from) {
            answer = Way::Drop;
        }
        (request, answer)
    }

    fn answer_is_cut(&self, from: &str, to: &str) -> bool {
        self.0.lock().unwrap().cuts.contains(&(to.to_owned(), from.to_owned()))
    }

    /// Carries a call there and back. Once delivered it runs to its end, whether or not the caller still waits.
    async fn carry<T, F>(&self, leg: Leg<'_>, call: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let (request, answer) = self.ways(leg);
        pass(request).await;
        let done = tokio::spawn(call).await.expect("a callee does not panic");
        // A cut that came meanwhile holds the answer, too.
        let answer = if self.answer_is_cut(leg.from, leg.to) { Way::Drop } else { answer };
        pass(answer).await;
        done
    }

    /// S2: no two executors are ever told the same (shard, epoch).
    fn told(&self, executor: ExecutorId, set: &ShardSet) {
        let mut state = self.0.lock().unwrap();
        for (shard, epoch) in set.shards.iter() {
            let first = *state.told.entry((shard, epoch)).or_insert(executor);
            assert_eq!(first, executor, "S2: shard {shard} at epoch {epoch} was told to two");
        }
    }

    async fn manager_handle(&self, seat: usize) -> Result<ManagerHandle, CallError> {
        let found = self.0.lock().unwrap().seats.get(&seat).cloned();
        match found {
            Some(Seat::Leads(handle)) => Ok(handle),
            Some(Seat::StandsBy(leader)) => Err(Refusal::NotLeader { leader: leader.map(seat_address) }.into()),
            Some(Seat::BlackHole) => std::future::pending().await,
            None => Err(CallError::Unreachable("the manager is down".to_owned())),
        }
    }

    fn executor(&self, address: &Address) -> Result<(String, Arc<ExecutorFront>), CallError> {
        let down = || CallError::Unreachable(format!("nobody at {address}"));
        self.0.lock().unwrap().executors.get(address).cloned().ok_or_else(down)
    }

    /// `from`'s way to the managers, of which it was given these seats.
    pub fn managers(&self, from: &str, seats: &[usize]) -> Managers {
        let (network, from) = (self.clone(), from.to_owned());
        let addresses: Vec<_> = seats.iter().map(|seat| seat_address(*seat)).collect();
        Managers::with(&addresses, move |address| {
            let seat = (0..SEATS).find(|seat| seat_address(*seat) == *address).expect("a manager's address");
            let name = if seat == 0 { MANAGER.to_owned() } else { format!("{MANAGER}-{seat}") };
            Arc::new(ToManager { network: network.clone(), from: from.clone(), seat, name })
        })
    }
}

async fn pass(way: Way) {
    match way {
        Way::Pass => {}
        Way::Delay(span) => sleep(span).await,
        Way::Drop => std::future::pending().await,
    }
}

/// How many seats there are.
pub const SEATS: usize = 4;

/// Where a manager in this seat is reached.
fn seat_address(seat: usize) -> Address {
    Address::new(format!("10.0.1.{seat}:7470")).expect("an address")
}

struct ToManager {
    network: Network,
    from: String,
    seat: usize,
    name: String,
}

impl ToManager {
    async fn ask<T, F>(
        &self,
        what: &'static str,
        call: impl FnOnce(ManagerHandle) -> F + Send + 'static,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let (network, seat) = (self.network.clone(), self.seat);
        // Who answers is found out when the request arrives.
        let arrived = async move { call(network.manager_handle(seat).await?).await };
        self.network.carry(Leg { from: &self.from, to: &self.name, what }, arrived).await
    }
}

#[async_trait]
impl ManagerApi for ToManager {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        let id = registration.executor;
        let grant = self.ask("register", move |m| async move { m.register(registration).await }).await?;
        self.network.told(id, &grant.set);
        Ok(grant)
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        let id = renewal.executor;
        let grant = self.ask("renew", move |m| async move { m.renew(renewal).await }).await?;
        self.network.told(id, &grant.set);
        Ok(grant)
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        self.ask("deregister", move |m| async move { m.deregister(deregistration).await }).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.ask("table", |m| async move { m.routing_table().await }).await
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        let stream = self.ask("watch", |m| async move { m.watch_routing_table().await }).await?;
        let (network, from, name) = (self.network.clone(), self.from.clone(), self.name.clone());
        // A cut swallows what is streamed meanwhile.
        Ok(stream
            .filter(move |_| {
                let passes = !network.answer_is_cut(&from, &name);
                async move { passes }
            })
            .boxed())
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.ask("status", |m| async move { m.status().await }).await
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        self.ask("explain", move |m| async move { m.explain(shard).await }).await
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        self.ask("drain", move |m| async move { m.set_draining(name, draining).await }).await
    }
}

/// Somebody's link to the executor at an address.
struct ToExecutor {
    network: Network,
    from: &'static str,
    address: Address,
}

impl ToExecutor {
    async fn ask<T, F>(
        &self,
        what: &'static str,
        call: impl FnOnce(Arc<ExecutorFront>) -> F + Send + 'static,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let (name, _) = self.network.executor(&self.address)?;
        let (network, address) = (self.network.clone(), self.address.clone());
        let arrived = async move { call(network.executor(&address)?.1).await };
        self.network.carry(Leg { from: self.from, to: &name, what }, arrived).await
    }
}

#[async_trait]
impl ExecutorApi for ToExecutor {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        self.network.told(push.executor, &push.set);
        self.ask("push", move |front| async move { front.assign(push).await }).await
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        self.ask("inspect", |front| async move { front.inspect().await }).await
    }
}

#[async_trait]
impl InvokeApi for ToExecutor {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        self.ask("invoke", move |front| async move { front.invoke(invocation, within).await }).await
    }
}

impl ExecutorLinks for Network {
    fn link(&self, address: &Address) -> Arc<dyn ExecutorApi> {
        Arc::new(ToExecutor { network: self.clone(), from: MANAGER, address: address.clone() })
    }
}

impl ExecutorDialer for Network {
    fn dial(&self, address: &Address) -> Result<Arc<dyn InvokeApi>, CallError> {
        Ok(Arc::new(ToExecutor { network: self.clone(), from: CALLER, address: address.clone() }))
    }
}
