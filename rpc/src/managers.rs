//! Several managers as one, of which at most one leads: whom to ask next.
//!
//! A client knows the managers that it was configured with (a list, or one balanced address with many behind it) and at most one
//! *hint*: the address that a manager which does not lead named. What is remembered is bounded by that: one connection each.
//!
//! | a manager | then |
//! | --- | --- |
//! | answers, or refuses for any other reason | it is asked again |
//! | names the leader (`NOT_LEADER`) | the leader is asked within the same call and its deadline, after at most [`MAX_REDIRECTS`] names, and nobody twice |
//! | does not lead and names nobody useful | its connection is given up, the next one is asked within the same call and its deadline |
//! | is not reached | the same; and for as long as that took (at least [`AVOIDED_LEAST`]) nobody's hint leads back to it |
//! | does not answer in time | the same, but the next one is asked by the next call |
//! | cannot confirm that it leads | the next one is asked by the next call |
//!
//! A connection that is given up matters where one address stands for many: kept, it would lead to the same standby for ever.
//!
//! Nothing is retried that may have been done (R13): another one is asked after a refusal or a connection that did not come about, which prove
//! that nothing was, and nobody twice in one call. What only reads, or sets what can be set twice, is asked of everybody in turn within one deadline.

use crate::api::ManagerApi;
use crate::channel::Dialer;
use crate::client::ManagerClient;
use async_trait::async_trait;
use futures::stream::BoxStream;
use leasehold_model::message::{ClusterStatus, Deregistration, Registration, Renewal, RoutingTable, ShardExplanation};
use leasehold_model::{Address, CallError, ExecutorName, Grant, Refusal, ShardId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How many leaders' names one call follows.
pub const MAX_REDIRECTS: usize = 2;
/// The least time for which no hint leads to a manager that failed (1 s).
pub const AVOIDED_LEAST: Duration = Duration::from_secs(1);
/// How many failed managers are remembered.
const MAX_AVOIDED: usize = 8;

type Manager = Arc<dyn ManagerApi>;

/// A way to one manager.
#[derive(Clone)]
enum Link {
    /// Over the network: the client keeps the deadline, and tells a call that never left from one that was not answered.
    Remote(ManagerClient),
    /// Anything else.
    Given(Manager),
}

impl Link {
    async fn ask<T, F>(&self, within: Duration, call: &(impl Fn(Manager) -> F + Sync)) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        match self {
            Self::Remote(client) => call(Arc::new(client.clone().deadline(within))).await,
            Self::Given(manager) => timeout(within, call(Arc::clone(manager)))
                .await
                .unwrap_or_else(|_| Err(CallError::Unknown(format!("no answer within {within:?}")))),
        }
    }
}

/// A manager that is being asked.
#[derive(Clone)]
struct Asked {
    address: Address,
    link: Link,
    /// Which of this client's connections.
    number: u64,
    began: Instant,
}

/// Whom one call has asked.
#[derive(Default)]
struct Trail {
    asked: Vec<Address>,
    /// How many names were followed.
    followed: usize,
}

/// What is remembered between calls.
#[derive(Default)]
struct State {
    /// Which of the configured ones is asked when there is no hint.
    at: usize,
    /// The leader's address, as far as it is not configured.
    hint: Option<Address>,
    /// Whom a standby named last: said once, not with each call.
    named: Option<Address>,
    links: BTreeMap<Address, (u64, Link)>,
    dialled: u64,
    avoided: BTreeMap<Address, Instant>,
}

/// See the module. Configured addresses are dialled when they are first needed, on the runtime of the call that needs them.
pub struct Managers {
    configured: Vec<Address>,
    dial: Box<dyn Fn(&Address) -> Link + Send + Sync>,
    deadline: Duration,
    state: Mutex<State>,
}

impl std::fmt::Debug for Managers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Managers").field("configured", &self.configured).finish_non_exhaustive()
    }
}

impl Managers {
    /// The managers at `addresses`, over the network.
    ///
    /// # Panics
    /// When there are none: configuration refuses that.
    #[must_use]
    pub fn dial(dialer: Dialer, addresses: &[Address]) -> Self {
        Self::new(addresses, Box::new(move |address| Link::Remote(ManagerClient::new(dialer.dial(address)))))
    }

    /// The managers at `addresses`, each reached in the way that `dial` gives.
    ///
    /// # Panics
    /// When there are none: configuration refuses that.
    #[must_use]
    pub fn with(addresses: &[Address], dial: impl Fn(&Address) -> Manager + Send + Sync + 'static) -> Self {
        Self::new(addresses, Box::new(move |address| Link::Given(dial(address))))
    }

    fn new(addresses: &[Address], dial: Box<dyn Fn(&Address) -> Link + Send + Sync>) -> Self {
        assert!(!addresses.is_empty(), "at least one manager");
        Self { configured: addresses.to_vec(), dial, deadline: Duration::from_secs(10), state: Mutex::default() }
    }

    /// The same with another deadline for each call, however many managers it asks: 10 s by default.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many are configured.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.configured.len()
    }

    /// The one that would be asked next is not to be trusted: the next call asks another, over another connection.
    pub fn pass_over(&self) {
        let mut state = self.state();
        let preferred = state.hint.clone().unwrap_or_else(|| self.configured[state.at].clone());
        state.links.remove(&preferred);
        self.move_on(&mut state, &preferred);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The preferred one, or the next of the list that this call has not asked yet, which is preferred then.
    fn next(&self, trail: &Trail) -> Option<Asked> {
        let mut state = self.state();
        if let Some(hint) = state.hint.clone()
            && !trail.asked.contains(&hint)
        {
            return Some(self.link(&mut state, hint));
        }
        let count = self.configured.len();
        let from_preferred = (state.at..state.at + count).map(|at| at % count);
        let at = from_preferred.into_iter().find(|at| !trail.asked.contains(&self.configured[*at]))?;
        (state.at, state.hint) = (at, None);
        Some(self.link(&mut state, self.configured[at].clone()))
    }

    fn link(&self, state: &mut State, address: Address) -> Asked {
        if !state.links.contains_key(&address) {
            state.dialled += 1;
            let hint = state.hint.clone();
            state.links.retain(|known, _| hint.as_ref() == Some(known) || self.configured.contains(known));
            state.links.insert(address.clone(), (state.dialled, (self.dial)(&address)));
        }
        let (number, link) = state.links[&address].clone();
        Asked { address, link, number, began: Instant::now() }
    }

    /// The leader that `refusal` names, if it may be asked in this call; it is preferred from now on.
    fn redirected(&self, refusal: &Refusal, trail: &mut Trail) -> Option<Asked> {
        let Refusal::NotLeader { leader: Some(leader) } = refusal else { return None };
        if trail.followed == MAX_REDIRECTS || trail.asked.contains(leader) {
            return None;
        }
        let mut state = self.state();
        let now = Instant::now();
        state.avoided.retain(|_, until| *until > now);
        if state.avoided.contains_key(leader) {
            return None;
        }
        match self.configured.iter().position(|configured| configured == leader) {
            Some(at) => (state.at, state.hint) = (at, None),
            None => state.hint = Some(leader.clone()),
        }
        trail.followed += 1;
        if state.named.as_ref() != Some(leader) {
            tracing::info!(%leader, "another manager leads");
            state.named = Some(leader.clone());
        }
        Some(self.link(&mut state, leader.clone()))
    }

    /// `asked` was of no use: the next call asks another, and this one over another connection.
    fn gave_up(&self, asked: &Asked, avoid: bool) {
        let mut state = self.state();
        if state.links.get(&asked.address).is_some_and(|(number, _)| *number == asked.number) {
            state.links.remove(&asked.address);
        }
        if avoid {
            let until = Instant::now() + asked.began.elapsed().max(AVOIDED_LEAST);
            if state.avoided.len() >= MAX_AVOIDED {
                let soonest = state.avoided.iter().min_by_key(|(_, until)| **until).map(|(address, _)| address.clone());
                soonest.map(|soonest| state.avoided.remove(&soonest));
            }
            state.avoided.insert(asked.address.clone(), until);
        }
        self.move_on(&mut state, &asked.address);
    }

    /// Prefers the next one, unless another call has moved on already.
    fn move_on(&self, state: &mut State, from: &Address) {
        match &state.hint {
            Some(hint) if hint == from => state.hint = None,
            None if self.configured[state.at] == *from => state.at = (state.at + 1) % self.configured.len(),
            Some(_) | None => {}
        }
    }

    /// Asks `manager`, and whom it names.
    async fn follow<T, F>(
        &self,
        mut manager: Asked,
        trail: &mut Trail,
        until: Instant,
        call: &(impl Fn(Manager) -> F + Sync),
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        loop {
            trail.asked.push(manager.address.clone());
            let within = until.saturating_duration_since(Instant::now());
            let waiting = Waiting { managers: self, asked: Some(&manager) };
            let answer = manager.link.ask(within, call).await;
            waiting.over();
            match &answer {
                Err(CallError::Refused(refusal @ Refusal::NotLeader { .. })) => {
                    let Some(leader) = self.redirected(refusal, trail) else {
                        self.gave_up(&manager, false);
                        return answer;
                    };
                    manager = leader;
                    continue;
                }
                Err(CallError::Refused(Refusal::LeadershipUnconfirmed { .. })) => {
                    self.move_on(&mut self.state(), &manager.address);
                }
                Err(CallError::Unreachable(_) | CallError::Unknown(_)) => self.gave_up(&manager, true),
                Ok(_) | Err(CallError::Refused(_)) => {}
            }
            return answer;
        }
    }

    /// Asks one after the other while `goes_on` says so of the failure. The time left is divided into `shares`, of which each one asked has one.
    async fn in_turn<T, F>(
        &self,
        mut shares: usize,
        goes_on: impl Fn(&CallError) -> bool,
        call: impl Fn(Manager) -> F + Sync,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        let until = Instant::now() + self.deadline;
        let mut trail = Trail::default();
        let mut manager = self.next(&trail).expect("nobody was asked yet");
        loop {
            let now = Instant::now();
            let share = until.saturating_duration_since(now) / u32::try_from(shares).unwrap_or(u32::MAX);
            let answer = self.follow(manager, &mut trail, now + share, &call).await;
            shares = shares.saturating_sub(1).max(1);
            if !answer.as_ref().is_err_and(&goes_on) || Instant::now() >= until {
                return answer;
            }
            let Some(next) = self.next(&trail) else { return answer };
            manager = next;
        }
    }

    /// A call that may be made once only: the next one is asked when the last one provably did nothing.
    async fn once<T, F>(&self, call: impl Fn(Manager) -> F + Sync) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        self.in_turn(1, did_nothing, call).await
    }

    /// A call that may be made of everybody in turn; each gets an even share of the time left.
    async fn of_all<T, F>(&self, call: impl Fn(Manager) -> F + Sync) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        let all = self.configured.len() + usize::from(self.state().hint.is_some());
        self.in_turn(all, is_for_another, call).await
    }
}

/// Whether nothing came of the call where it was made, and another manager may do it.
const fn did_nothing(error: &CallError) -> bool {
    match error {
        CallError::Unreachable(_) => true,
        CallError::Unknown(_) => false,
        CallError::Refused(refusal) => matches!(refusal, Refusal::NotLeader { .. }),
    }
}

/// Whether another manager may answer better.
const fn is_for_another(error: &CallError) -> bool {
    match error {
        CallError::Unreachable(_) | CallError::Unknown(_) => true,
        CallError::Refused(refusal) => {
            matches!(refusal, Refusal::NotLeader { .. } | Refusal::LeadershipUnconfirmed { .. })
        }
    }
}

/// A call that is cancelled was not answered: dropped before it is [`over`](Self::over), it counts as a failure.
struct Waiting<'a> {
    managers: &'a Managers,
    asked: Option<&'a Asked>,
}

impl Waiting<'_> {
    fn over(mut self) {
        self.asked = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.asked {
            self.managers.gave_up(asked, true);
        }
    }
}

#[async_trait]
impl ManagerApi for Managers {
    async fn register(&self, registration: Registration) -> Result<Grant, CallError> {
        let registration = &registration;
        self.once(|manager| async move { manager.register(registration.clone()).await }).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Grant, CallError> {
        let renewal = &renewal;
        self.once(|manager| async move { manager.renew(renewal.clone()).await }).await
    }

    async fn deregister(&self, deregistration: Deregistration) -> Result<(), CallError> {
        let deregistration = &deregistration;
        self.once(|manager| async move { manager.deregister(deregistration.clone()).await }).await
    }

    async fn routing_table(&self) -> Result<Arc<RoutingTable>, CallError> {
        self.of_all(|manager| async move { manager.routing_table().await }).await
    }

    async fn watch_routing_table(&self) -> Result<BoxStream<'static, Result<Arc<RoutingTable>, CallError>>, CallError> {
        self.of_all(|manager| async move { manager.watch_routing_table().await }).await
    }

    async fn status(&self) -> Result<ClusterStatus, CallError> {
        self.of_all(|manager| async move { manager.status().await }).await
    }

    async fn explain(&self, shard: ShardId) -> Result<ShardExplanation, CallError> {
        self.of_all(|manager| async move { manager.explain(shard).await }).await
    }

    async fn set_draining(&self, name: ExecutorName, draining: bool) -> Result<(), CallError> {
        let name = &name;
        self.of_all(|manager| async move { manager.set_draining(name.clone(), draining).await }).await
    }
}

#[cfg(test)]
mod tests;
