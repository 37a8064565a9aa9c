//! The election on etcd: a place in the queue is a key under the lease of its candidacy, and the queue's order is that of the
//! keys' creation revisions, as in etcd's own election service. They are kept by plain calls, each bounded and each repeatable: a campaign
//! of that service that timed out at its client would stay queued unseen.
//!
//! A place is `/leasehold/CLUSTER/election/LEASE` (the lease's id, 16 hexadecimal digits) with `{"address":"HOST:PORT"}`.

use super::Elections;
use crate::cluster::etcd::check_stored;
use crate::cluster::{ClusterStore, Error, EtcdClusterStore};
use crate::etcd::{EtcdConnection, Failure, LeaderKey, failure};
use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp, WatchOptions,
};
use leasehold_model::election::{CandidacyId, Kept, Leading};
use leasehold_model::{Address, ClusterName, ShardCount, Ttl};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// What etcd says of a lease that is gone, to a put and to a revocation. Its own clients tell errors of one code apart by this text.
const LEASE_GONE: &str = "requested lease not found";
/// What etcd says to a user who may read the queue and not stand in it.
const MAY_NOT: &str = "permission denied";
/// What etcd's client makes of a keepalive that was answered with a ttl of 0.
const NEVER_KEPT: &str = "lease not found";
/// How long a watch is listened to before the queue is read again: a watch whose packets vanish tells nothing for as long.
const LISTEN: Duration = Duration::from_secs(1);

/// One process's way to the election of a cluster.
#[derive(Debug, Clone)]
pub struct EtcdElections {
    connection: EtcdConnection,
    /// What leaderships write by.
    storing: EtcdConnection,
    cluster: ClusterName,
}

#[derive(Serialize, Deserialize)]
struct Place {
    address: Address,
}

/// A failed call, for somebody who will repeat it.
fn repeatable(failed: Failure) -> Error {
    match failed {
        Failure::Unknown(why) => Error::Unknown(why),
        Failure::NotSent(why)
        | Failure::Refused(why)
        | Failure::TooLarge(_, why)
        | Failure::Ended(why)
        | Failure::Compacted(why) => Error::Unavailable(why),
    }
}

/// `Gone` if etcd refused because there is no such lease.
fn gone<T>(answer: Result<T, Failure>) -> Result<Kept<T>, Error> {
    match answer {
        Ok(answer) => Ok(Kept::Held(answer)),
        Err(Failure::Refused(why)) if why.contains(LEASE_GONE) => Ok(Kept::Gone),
        Err(failed) => Err(repeatable(failed)),
    }
}

impl EtcdElections {
    /// The election of `cluster`.
    #[must_use]
    pub fn new(connection: EtcdConnection, cluster: ClusterName) -> Self {
        Self { storing: connection.clone(), connection, cluster }
    }

    /// Lets leaderships write by `storing`, so that no keepalive waits behind what they write.
    #[must_use]
    pub fn storing_by(self, storing: EtcdConnection) -> Self {
        Self { storing, ..self }
    }

    fn queue(&self) -> String {
        format!("{}election/", self.connection.prefix(&self.cluster))
    }

    fn place(&self, id: CandidacyId) -> String {
        format!("{}{:016x}", self.queue(), id.0)
    }

    /// Who is first, by a linearizable read, and the revision of etcd that it was read at.
    async fn first(&self) -> Result<(Option<Leading>, i64), Error> {
        let options = GetOptions::new().with_prefix().with_limit(1).with_sort(SortTarget::Create, SortOrder::Ascend);
        let read = self.connection.read(|mut client| {
            let (queue, options) = (self.queue(), options.clone());
            async move { client.get(queue, Some(options)).await }
        });
        let read = read.await?;
        let revision = read.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok((read.kvs().first().map(leading).transpose()?, revision))
    }

    /// Listens to the queue from `revision` on, until something happens in it or it has been listened to for long enough.
    async fn changed(&self, revision: i64) {
        let Ok(picked) = self.connection.client().await else { return sleep(LISTEN).await };
        let mut client = picked.client.clone();
        let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let heard = timeout(LISTEN, async {
            let mut watch = client.watch(self.queue(), Some(options)).await?;
            loop {
                // Told of a compacted revision, or of the stream's end: reading again will tell.
                match watch.message().await? {
                    Some(message) if message.events().is_empty() && !message.canceled() => {}
                    Some(_) | None => return Ok::<_, etcd_client::Error>(()),
                }
            }
        });
        if let Ok(Err(error)) = heard.await {
            if failure(&error).is_of_the_endpoint() {
                self.connection.failed(&picked);
            }
            // The read after this tells what is wrong; it must not be asked in a loop.
            sleep(LISTEN / 10).await;
        }
    }
}

fn leading(pair: &KeyValue) -> Result<Leading, Error> {
    let key = String::from_utf8_lossy(pair.key());
    let corrupt = |what: String| Error::Corrupt { place: key.to_string(), what };
    let place: Place = serde_json::from_slice(pair.value()).map_err(|error| corrupt(error.to_string()))?;
    Ok(Leading { candidacy: CandidacyId(pair.lease()), since: pair.create_revision(), address: place.address })
}

#[async_trait]
impl Elections for EtcdElections {
    async fn check(&self, cluster: &ClusterName, shard_count: ShardCount) -> Result<(), Error> {
        self.connection.admitted(cluster).await?;
        check_stored(&self.connection, cluster, shard_count).await
    }

    async fn join(&self, ttl: Ttl) -> Result<(CandidacyId, Ttl), Error> {
        // Rounded up: etcd counts in seconds, and grants no less than its own least.
        let seconds = i64::try_from(ttl.as_duration().as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let grant = self.connection.call(|mut client| async move { client.lease_grant(seconds, None).await });
        let granted = grant.await.map_err(repeatable)?;
        Ok((CandidacyId(granted.id()), seconds_granted(granted.ttl())?))
    }

    async fn enlist(&self, id: CandidacyId, address: &Address) -> Result<Kept<()>, Error> {
        let key = self.place(id);
        let value = serde_json::to_vec(&Place { address: address.clone() }).expect("an address is text");
        let put = self.connection.call(|mut client| {
            let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
            let put = TxnOp::put(key.clone(), value.clone(), Some(PutOptions::new().with_lease(id.0)));
            async move { client.txn(Txn::new().when([absent]).and_then([put])).await }
        });
        match put.await {
            Err(Failure::Refused(why)) if why.contains(MAY_NOT) => Err(self.connection.refused(&why)),
            answer => gone(answer.map(drop)),
        }
    }

    async fn keep_alive(&self, id: CandidacyId) -> Result<Kept<Ttl>, Error> {
        // A stream of its own for each question: one that died cannot make the next one deaf. The client takes the first answer
        // for itself and keeps its ttl, so it is asked twice.
        let kept = self.connection.call(|mut client| async move {
            let (mut keeper, mut answers) = match client.lease_keep_alive(id.0).await {
                Err(etcd_client::Error::LeaseKeepAliveError(why)) if why == NEVER_KEPT => return Ok(Some(0)),
                opened => opened?,
            };
            keeper.keep_alive().await?;
            Ok(answers.message().await?.map(|answer| answer.ttl()))
        });
        match kept.await.map_err(repeatable)? {
            Some(seconds) if seconds > 0 => Ok(Kept::Held(seconds_granted(seconds)?)),
            Some(_) => Ok(Kept::Gone),
            None => Err(Error::Unavailable("etcd: a keepalive was not answered".into())),
        }
    }

    async fn observe(&self, known: Option<&Leading>) -> Result<Option<Leading>, Error> {
        loop {
            let (first, revision) = self.first().await?;
            if first.as_ref() != known {
                return Ok(first);
            }
            self.changed(revision).await;
        }
    }

    fn store(&self, leading: &Leading) -> Arc<dyn ClusterStore> {
        let key = LeaderKey { key: self.place(leading.candidacy).into_bytes(), create_revision: leading.since };
        Arc::new(EtcdClusterStore::new(self.storing.clone(), &self.cluster, key))
    }

    async fn leave(&self, id: CandidacyId) -> Result<(), Error> {
        let revoked = self.connection.call(|mut client| async move { client.lease_revoke(id.0).await });
        gone(revoked.await).map(drop)
    }
}

/// A ttl as etcd grants it.
fn seconds_granted(seconds: i64) -> Result<Ttl, Error> {
    let ttl = u64::try_from(seconds).ok().and_then(|seconds| Ttl::from_duration(Duration::from_secs(seconds)).ok());
    ttl.ok_or_else(|| Error::Unavailable(format!("etcd granted a lease of {seconds} s, which is not accepted")))
}
