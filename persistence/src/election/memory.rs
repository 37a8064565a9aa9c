//! An election in memory, on tokio's clock, with faults: what tests put under a manager.
//!
//! Each [`MemoryElections`] is one process's way to the same queue; [`MemoryElections::another`] is another process's.

use super::Elections;
use crate::cluster::{ClusterStore, Error, MemoryClusterStore, Write};
use async_trait::async_trait;
use leasehold_model::election::{Call, CandidacyId, Kept, Leading};
use leasehold_model::state::ClusterState;
use leasehold_model::{Address, ClusterName, Revision, ShardCount, Ttl};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// What happens to one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Its answer takes this long.
    DelayAnswer(Duration),
    /// It is not applied, and fails at once.
    Refuse(String),
    /// It is applied, and never answered.
    LoseAnswer,
}

/// How a process's packets fare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// They arrive.
    #[default]
    Fine,
    /// Connections are refused.
    Refused,
    /// They vanish: nothing arrives and nothing is answered.
    BlackHole,
    /// Questions arrive, answers vanish.
    Deaf,
}

/// One process's way to an election in memory.
#[derive(Debug)]
pub struct MemoryElections {
    shared: Arc<Shared>,
    link: Arc<Mutex<Link>>,
}

#[derive(Debug, Default)]
struct Link {
    network: Network,
    faults: BTreeMap<Call, VecDeque<Fault>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: watch::Sender<()>,
    data: MemoryClusterStore,
}

#[derive(Debug)]
struct Queue {
    leases: BTreeMap<CandidacyId, Lease>,
    places: Vec<Leading>,
    next: i64,
    least_ttl: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    ttl: Ttl,
    ends: Instant,
}

impl Queue {
    fn expire(&mut self) {
        let now = Instant::now();
        self.leases.retain(|_, lease| lease.ends > now);
        let leases = &self.leases;
        self.places.retain(|place| leases.contains_key(&place.candidacy));
    }

    fn fresh(&mut self) -> i64 {
        self.next += 1;
        self.next
    }
}

impl Shared {
    /// The queue as it is now.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.expire();
        queue
    }

    fn first(&self) -> Option<Leading> {
        self.queue().places.first().cloned()
    }
}

impl Default for MemoryElections {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryElections {
    /// An empty queue over an empty store.
    #[must_use]
    pub fn new() -> Self {
        let queue = Queue { leases: BTreeMap::new(), places: Vec::new(), next: 0, least_ttl: Duration::ZERO };
        let (changed, data) = (watch::Sender::new(()), MemoryClusterStore::new());
        Self { shared: Arc::new(Shared { queue: Mutex::new(queue), changed, data }), link: Arc::default() }
    }

    /// Another process's way to the same queue and the same store.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), link: Arc::default() }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this process's packets fare so. Calls that were sent before are not affected.
    pub fn network(&self, network: Network) {
        self.link().network = network;
        self.shared.changed.send_replace(());
    }

    /// Lets `fault` happen to the next `call` of this process that has none yet.
    pub fn inject(&self, call: Call, fault: Fault) {
        self.link().faults.entry(call).or_default().push_back(fault);
    }

    /// Grants no lease of less than `ttl`, as etcd does (case 41).
    pub fn least_ttl(&self, ttl: Duration) {
        self.shared.queue().least_ttl = ttl;
    }

    /// Takes a lease away under its holder (case 22).
    pub fn revoke(&self, id: CandidacyId) {
        self.shared.queue().leases.remove(&id);
        self.shared.changed.send_replace(());
    }

    /// Deletes a place under its holder; the lease stays (case 22).
    pub fn delete_place(&self, id: CandidacyId) {
        self.shared.queue().places.retain(|place| place.candidacy != id);
        self.shared.changed.send_replace(());
    }

    /// The queue, first place first.
    #[must_use]
    pub fn places(&self) -> Vec<Leading> {
        self.shared.queue().places.clone()
    }

    /// The store underneath: to look at, and to inject faults into.
    #[must_use]
    pub fn data(&self) -> &MemoryClusterStore {
        &self.shared.data
    }

    /// Applies `apply` as a call that travels there and back.
    async fn call<T: Clone + Send>(
        &self,
        call: Call,
        apply: impl FnOnce(&mut Queue) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let (network, fault) = {
            let mut link = self.link();
            let fault = link.faults.get_mut(&call).and_then(VecDeque::pop_front);
            (link.network, fault)
        };
        match network {
            Network::Fine | Network::Deaf => {}
            Network::Refused => return Err(Error::Unavailable("connection refused".to_owned())),
            Network::BlackHole => std::future::pending().await,
        }
        if let Some(Fault::Refuse(why)) = fault {
            return Err(Error::Unavailable(why));
        }
        let answer = apply(&mut self.shared.queue());
        self.shared.changed.send_replace(());
        match fault {
            Some(Fault::DelayAnswer(span)) => sleep(span).await,
            Some(Fault::LoseAnswer) => std::future::pending().await,
            Some(Fault::Refuse(_)) | None => {}
        }
        match network {
            Network::Deaf => std::future::pending().await,
            Network::Fine | Network::Refused | Network::BlackHole => answer,
        }
    }
}

#[async_trait]
impl Elections for MemoryElections {
    async fn check(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<(), Error> {
        let stored = self.shared.data.peek();
        self.call(Call::Join, move |_| match stored {
            Some(state) if state.cluster != *cluster || state.shard_count != shard_count => Err(Error::Incompatible(
                format!("the store has shard_count {}, this process {shard_count}", state.shard_count),
            )),
            Some(_) | None => Ok(()),
        })
        .await
    }

    async fn join(&self, ttl: Ttl) -> Result<(CandidacyId, Ttl), Error> {
        self.call(Call::Join, |queue| {
            let ttl = Ttl::from_duration(ttl.as_duration().max(queue.least_ttl)).unwrap_or(ttl);
            let id = CandidacyId(queue.fresh());
            queue.leases.insert(id, Lease { ttl, ends: Instant::now() + ttl.as_duration() });
            Ok((id, ttl))
        })
        .await
    }

    async fn enlist(&self, id: CandidacyId, address: &Address) -> Result<Kept<()>, Error> {
        let address = address.clone();
        self.call(Call::Enlist, move |queue| {
            if !queue.leases.contains_key(&id) {
                return Ok(Kept::Gone);
            }
            if queue.places.iter().all(|place| place.candidacy != id) {
                let since = queue.fresh();
                queue.places.push(Leading { candidacy: id, since, address });
            }
            Ok(Kept::Held(()))
        })
        .await
    }

    async fn keep_alive(&self, id: CandidacyId) -> Result<Kept<Ttl>, Error> {
        self.call(Call::KeepAlive, |queue| {
            let Some(lease) = queue.leases.get_mut(&id) else { return Ok(Kept::Gone) };
            lease.ends = Instant::now() + lease.ttl.as_duration();
            Ok(Kept::Held(lease.ttl))
        })
        .await
    }

    async fn observe(&self, known: Option<&Leading>) -> Result<Option<Leading>, Error> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let first = self.call_observe().await?;
            if first.as_ref() != known {
                return Ok(first);
            }
            let next_end = self.shared.queue().leases.values().map(|lease| lease.ends).min();
            let expiry = async {
                match next_end {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as `self`.
                _ = changed.changed() => {}
                () = expiry => {}
            }
        }
    }

    fn store(&self, leading: &Leading) -> Arc<dyn ClusterStore> {
        Arc::new(Led {
            data: self.shared.data.another(),
            shared: Arc::clone(&self.shared),
            link: Arc::clone(&self.link),
            leading: leading.clone(),
        })
    }

    async fn leave(&self, id: CandidacyId) -> Result<(), Error> {
        self.call(Call::Leave, |queue| {
            queue.leases.remove(&id);
            queue.expire();
            Ok(())
        })
        .await
    }
}

impl MemoryElections {
    /// A read: it changes nothing, so it wakes nobody.
    async fn call_observe(&self) -> Result<Option<Leading>, Error> {
        let (network, fault) = {
            let mut link = self.link();
            let fault = link.faults.get_mut(&Call::Observe).and_then(VecDeque::pop_front);
            (link.network, fault)
        };
        match (network, fault) {
            (Network::Refused, _) => Err(Error::Unavailable("connection refused".to_owned())),
            (_, Some(Fault::Refuse(why))) => Err(Error::Unavailable(why)),
            // A real one would fail when its ping goes unanswered; until the network heals it is deaf.
            (Network::BlackHole | Network::Deaf, _) | (_, Some(Fault::LoseAnswer)) => {
                sleep(Duration::from_secs(2)).await;
                Err(Error::Unavailable("the connection is dead".to_owned()))
            }
            (Network::Fine, Some(Fault::DelayAnswer(span))) => {
                sleep(span).await;
                Ok(self.shared.first())
            }
            (Network::Fine, None) => Ok(self.shared.first()),
        }
    }
}

/// The store in the hands of one leadership, over its process's network.
struct Led {
    data: MemoryClusterStore,
    shared: Arc<Shared>,
    link: Arc<Mutex<Link>>,
    leading: Leading,
}

impl Led {
    async fn reach(&self) -> Result<(), Error> {
        let network = self.link.lock().unwrap_or_else(PoisonError::into_inner).network;
        match network {
            Network::Fine => {}
            Network::Refused => return Err(Error::Unavailable("connection refused".to_owned())),
            Network::BlackHole | Network::Deaf => std::future::pending().await,
        }
        let first = self.shared.first();
        if first.as_ref().is_some_and(|first| first.since == self.leading.since) {
            return Ok(());
        }
        Err(Error::NotOwner(format!("the place of candidacy {} is not the first", self.leading.candidacy)))
    }
}

#[async_trait]
impl ClusterStore for Led {
    async fn load(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<ClusterState, Error> {
        self.reach().await?;
        self.data.load(cluster, shard_count).await
    }

    async fn commit(&self, write: &Write) -> Result<(), Error> {
        self.reach().await?;
        self.data.commit(write).await
    }

    async fn outcome(&self, tag: u128) -> Result<bool, Error> {
        self.reach().await?;
        self.data.outcome(tag).await
    }

    async fn confirm_leadership(&self) -> Result<(), Error> {
        self.reach().await?;
        self.data.confirm_leadership().await
    }

    async fn compact(&self, upto: Revision) -> Result<(), Error> {
        self.data.compact(upto).await
    }
}
