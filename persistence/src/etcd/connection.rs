//! A connection to one or several etcd endpoints.
//!
//! One endpoint is used until it fails; then the next one is. What failed is connected anew when its turn comes again, so a
//! connection whose packets go nowhere is never used twice, and an endpoint that is dead costs one call its time, once.

use super::{EtcdOptions, Failure, LeaderKey, failure, prefix};
use crate::cluster::Error;
use etcd_client::{Client, GetOptions};
use leasehold_model::ClusterName;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct EtcdConnection {
    shared: Arc<Shared>,
}

struct Shared {
    options: EtcdOptions,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The endpoint in use.
    current: usize,
    /// Its client, once it was connected.
    client: Option<Client>,
    /// Changes whenever the client is given up, so that a call that fails late does not give up its successor.
    generation: u64,
}

/// A client for one call.
pub(crate) struct Picked {
    pub client: Client,
    generation: u64,
}

impl std::fmt::Debug for EtcdConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdConnection").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl EtcdConnection {
    /// Connects to the first endpoint that answers. Each is given one `request_timeout`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when none answers, naming each with its reason; [`Error::Incompatible`] when the options cannot be,
    /// or the server refuses the credentials.
    pub async fn open(options: EtcdOptions) -> Result<Self, Error> {
        let count = options.endpoints.len();
        let connection = Self::lazy(options)?;
        let mut reasons = Vec::new();
        for _ in 0..count {
            let endpoint = connection.endpoint();
            match connection.call(|mut client| async move { client.status().await }).await {
                Ok(_) => return Ok(connection),
                Err(Failure::Refused(why)) => return Err(connection.refused(&why)),
                Err(other) => reasons.push(format!("{endpoint}: {}", other.why())),
            }
        }
        Err(Error::Unavailable(format!("no etcd endpoint answers: {}", reasons.join("; "))))
    }

    /// Connects with the first call, and tries on with each.
    ///
    /// # Errors
    /// [`Error::Incompatible`] when the options cannot be.
    pub fn lazy(options: EtcdOptions) -> Result<Self, Error> {
        options.check()?;
        let inner = Mutex::new(Inner { current: 0, client: None, generation: 0 });
        Ok(Self { shared: Arc::new(Shared { options, inner }) })
    }

    /// The prefix of the keys of `cluster`, with a `/` at its end.
    #[must_use]
    pub fn prefix(&self, cluster: &ClusterName) -> String {
        prefix(cluster)
    }

    /// What it was opened with.
    #[must_use]
    pub fn options(&self) -> &EtcdOptions {
        &self.shared.options
    }

    /// Bounds every call.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.shared.options.request_timeout
    }

    /// Whether etcd lets this user look at the keys of `cluster`.
    ///
    /// # Errors
    /// [`Error::Incompatible`] when it does not, saying what to check; [`Error::Unavailable`] when that is not known.
    pub(crate) async fn admitted(&self, cluster: &ClusterName) -> Result<(), Error> {
        let key = format!("{}head", prefix(cluster));
        let read = self.call(|mut client| {
            let key = key.clone();
            async move { client.get(key, Some(GetOptions::new().with_keys_only())).await }
        });
        match read.await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(why)) => Err(self.refused(&why)),
            Err(failed) => Err(Error::Unavailable(failed.why().to_owned())),
        }
    }

    /// What etcd refuses a user it will refuse again, until a person changes something.
    pub(crate) fn refused(&self, why: &str) -> Error {
        let (who, what) = match &self.shared.options.user {
            Some(user) => (
                format!("user {user:?}"),
                "check store.user, the first line of store.password_file, and that the user may read and write the prefix \
                 /leasehold/CLUSTER/",
            ),
            None => ("a client without a user".to_owned(), "set store.user and store.password_file"),
        };
        Error::Incompatible(format!("etcd refuses {who}: {why}; {what}"))
    }

    /// etcd's own revision, from the header of a linearizable read.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn revision(&self) -> Result<i64, Error> {
        let read = self.read(|mut client| async move { client.get("/leasehold/", None).await }).await?;
        Ok(read.header().map_or(0, etcd_client::ResponseHeader::revision))
    }

    /// The `LeaderKey` that `key` is now, if it exists: for tests and tools that lead without an election.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn leader_key(&self, key: impl Into<Vec<u8>>) -> Result<Option<LeaderKey>, Error> {
        let key = key.into();
        let read = self.read(|mut client| {
            let key = key.clone();
            async move { client.get(key, None).await }
        });
        let read = read.await?;
        let create_revision = read.kvs().first().map(etcd_client::KeyValue::create_revision);
        Ok(create_revision.map(|create_revision| LeaderKey { key, create_revision }))
    }

    /// The endpoint in use.
    pub(crate) fn endpoint(&self) -> String {
        self.shared.options.endpoints[self.lock().current].clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half-done in it by a panic.
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of the endpoint in use. Long-lived streams and campaigns use it directly and say [`EtcdConnection::failed`] when
    /// they break; everything else goes through [`EtcdConnection::call`]. Connecting happens with the first call.
    ///
    /// # Errors
    /// What the endpoint said to the credentials; it was given up then.
    pub(crate) async fn client(&self) -> Result<Picked, Failure> {
        let (endpoint, generation) = {
            let inner = self.lock();
            if let Some(client) = &inner.client {
                return Ok(Picked { client: client.clone(), generation: inner.generation });
            }
            (self.shared.options.endpoints[inner.current].clone(), inner.generation)
        };
        let connecting = Client::connect([&endpoint], Some(self.shared.options.to_connect()));
        let failed = match timeout(self.request_timeout(), connecting).await {
            Ok(Ok(client)) => {
                let mut inner = self.lock();
                if inner.generation == generation {
                    inner.client = Some(client.clone());
                }
                return Ok(Picked { client, generation });
            }
            // Connecting sends nothing but the credentials.
            Ok(Err(error)) => match failure(&error) {
                Failure::Unknown(why)
                | Failure::Ended(why)
                | Failure::TooLarge(_, why)
                | Failure::Compacted(why)
                | Failure::NotSent(why) => Failure::NotSent(why),
                refused @ Failure::Refused(_) => refused,
            },
            Err(_) => Failure::NotSent(format!("{endpoint} did not answer within {:?}", self.request_timeout())),
        };
        self.give_up(generation);
        Err(failed)
    }

    /// Gives the client up and turns to the next endpoint, unless that has happened already.
    pub(crate) fn failed(&self, picked: &Picked) {
        self.give_up(picked.generation);
    }

    fn give_up(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation == generation {
            inner.generation += 1;
            inner.client = None;
            inner.current = (inner.current + 1) % self.shared.options.endpoints.len();
        }
    }

    /// Makes one call, bounded by `request_timeout` with everything that belongs to it. An endpoint that it provably did not reach costs
    /// nothing but the attempt: the next one is tried, each once.
    pub(crate) async fn call<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let until = Instant::now() + self.request_timeout();
        let mut failed = None;
        for _ in 0..self.shared.options.endpoints.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.attempt(&call, left).await {
                Err(not_sent @ Failure::NotSent(_)) => failed = Some(not_sent),
                answer => return answer,
            }
        }
        Err(failed.unwrap_or_else(|| Failure::NotSent("etcd: no time left for the call".into())))
    }

    async fn attempt<T, F>(&self, call: &impl Fn(Client) -> F, left: Duration) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let Ok(picked) = timeout(left, self.client()).await else {
            let generation = self.lock().generation;
            self.give_up(generation);
            return Err(Failure::NotSent("etcd: not connected in time".into()));
        };
        let picked = picked?;
        let failed = match timeout(left, call(picked.client.clone())).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => failure(&error),
            Err(_) => Failure::Unknown(format!("etcd: no answer within {:?}", self.request_timeout())),
        };
        if failed.is_of_the_endpoint() {
            self.failed(&picked);
        }
        Err(failed)
    }

    /// Makes a call that writes nothing: however it fails, nothing was written.
    pub(crate) async fn read<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.call(call).await.map_err(|failed| Error::Unavailable(failed.why().to_owned()))
    }
}
