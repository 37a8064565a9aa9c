//! [`ObjectBlobs`]: blob storage in a folder or in S3-compatible storage, through the crate `object_store`.
//!
//! Everything of a cluster is below `URL/CLUSTER/`; nothing outside is read, listed or changed. An object is put under a path that was never
//! used before and is never written again: so a put that timed out may land later and do no harm, and one that is repeated finds its own bytes.
//!
//! | bound | is |
//! | --- | --- |
//! | calls at once | [`MAX_CALLS`]; others wait, within their deadline |
//! | a call, its repetitions included | [`Settings::request_timeout`] |
//! | an attempt of a call to S3 | half of that |
//! | repetitions | [`MAX_RETRIES`] |
//! | an object that is read | [`MAX_OBJECT`] bytes |

#[cfg(feature = "s3")]
mod credentials;
#[cfg(feature = "files")]
mod files;
#[cfg(feature = "s3")]
mod http;
#[cfg(feature = "s3")]
mod s3;
mod told;

use super::blobs::Blobs;
use super::chunk;
use crate::oplog::Error;
use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use leasehold_model::ClusterName;
use leasehold_model::archive::{ArchiveUrl, Endpoint};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Calls of one process at once.
pub const MAX_CALLS: usize = 16;

/// How often a call to S3 is repeated.
pub const MAX_RETRIES: usize = 3;

/// The largest object that is read, in bytes: no chunk is larger.
pub const MAX_OBJECT: u64 = chunk::MAX_RAW as u64 + (1 << 20);

/// Objects of a list that are fetched under one deadline.
const LISTED: usize = 512;

/// The longest that [`Settings::request_timeout`] may be.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);

/// How to reach the storage. All but the timeout is for S3.
#[derive(Clone)]
pub struct Settings {
    /// Where it is served, if it is not Amazon's.
    pub endpoint: Option<Endpoint>,
    /// Its region. `None`: of the environment's `AWS_REGION`, `AWS_DEFAULT_REGION`; with an endpoint `us-east-1` if there is none.
    pub region: Option<String>,
    /// Who calls.
    pub credentials: Credentials,
    /// Certificates to trust beside the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// Whether an endpoint on another machine may be spoken to without TLS.
    pub allow_http: bool,
    /// How long a call may take, up to [`MAX_TIMEOUT`].
    pub request_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            credentials: Credentials::Environment,
            ca_file: None,
            allow_http: false,
            request_timeout: Duration::from_secs(10),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, credentials, ca_file, allow_http, request_timeout } = self;
        let mut shown = f.debug_struct("Settings");
        shown.field("endpoint", endpoint).field("region", region).field("credentials", credentials);
        shown.field("ca_file", ca_file).field("allow_http", allow_http);
        shown.field("request_timeout", request_timeout).finish()
    }
}

/// Who calls S3.
#[derive(Clone)]
pub enum Credentials {
    /// What AWS's own tools take: `AWS_ACCESS_KEY_ID` with `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, a web identity, the container's; on
    /// Amazon's machines the machine's role.
    Environment,
    /// A file as AWS's tools write it (`aws_access_key_id = …`), section `default`. It is read anew, so that keys can be changed under it.
    File(PathBuf),
    /// These keys.
    Keys {
        /// The access key's id.
        id: String,
        /// The secret access key.
        secret: String,
        /// The session's token, of temporary keys.
        token: Option<String>,
    },
}

/// Without what is secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("Environment"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Keys { id, .. } => write!(f, "Keys({id}, ***)"),
        }
    }
}

/// Blob storage of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ObjectBlobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    /// Below which all objects are.
    root: Path,
    told: told::Place,
    /// The folder whose entries are to be durable too.
    #[cfg(feature = "files")]
    folder: Option<files::Folder>,
    request_timeout: Duration,
    calls: Arc<Semaphore>,
    /// Whether the storage is asked not to replace what is there; not every one knows how.
    conditional: AtomicBool,
}

/// What a call came to.
type Outcome<T> = Result<T, object_store::Error>;

impl ObjectBlobs {
    /// The archive of `cluster` at `url`. A folder is made if it is not there; S3 is not called yet, see [`ObjectBlobs::check`].
    ///
    /// # Errors
    /// [`Error::Invalid`] when the settings make no sense (names what to do) or the backend was not built in (names the cargo feature);
    /// [`Error::Unavailable`] when the folder may be usable later: its file system is full, read-only or slow.
    pub async fn open(url: &ArchiveUrl, cluster: &ClusterName, settings: &Settings) -> Result<Self, Error> {
        let invalid = |what: String| Error::Invalid(format!("archive {url}: {what}"));
        if settings.request_timeout.is_zero() || settings.request_timeout > MAX_TIMEOUT {
            let given = settings.request_timeout;
            return Err(invalid(format!("a request timeout of {given:?}: more than 0 and at most {MAX_TIMEOUT:?}")));
        }
        match url {
            #[cfg(feature = "files")]
            ArchiveUrl::Files(path) => {
                let (store, folder) = files::open(path, cluster, settings.request_timeout).await?;
                let told = told::Place { shown: format!("{url}/{cluster}"), kind: told::Kind::Files };
                Self::new(store, (cluster.as_str().to_owned(), told), settings, Some(folder))
            }
            #[cfg(not(feature = "files"))]
            ArchiveUrl::Files(_) => {
                Err(invalid("this build has no archive in files; build it with the cargo feature `files`".into()))
            }
            #[cfg(feature = "s3")]
            ArchiveUrl::S3 { bucket, prefix } => {
                let (store, kind) = s3::open(bucket, settings).map_err(invalid)?;
                let told = told::Place { shown: format!("{url}/{cluster}"), kind };
                Self::new(store, (format!("{prefix}/{cluster}"), told), settings, None)
            }
            #[cfg(not(feature = "s3"))]
            ArchiveUrl::S3 { .. } => {
                Err(invalid("this build has no archive in S3; build it with the cargo feature `s3`".into()))
            }
        }
    }

    fn new(
        store: Arc<dyn ObjectStore>,
        (root, told): (String, told::Place),
        settings: &Settings,
        #[cfg(feature = "files")] folder: Option<files::Folder>,
        #[cfg(not(feature = "files"))] _: Option<std::convert::Infallible>,
    ) -> Result<Self, Error> {
        // A cluster may be called `..`.
        let root = Path::parse(root).map_err(|error| {
            Error::Invalid(format!("archive {}: the cluster's name makes no path: {error}", told.shown))
        })?;
        Ok(Self(Arc::new(Inner {
            store,
            root,
            told,
            #[cfg(feature = "files")]
            folder,
            request_timeout: settings.request_timeout,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            conditional: AtomicBool::new(true),
        })))
    }

    /// Puts, reads, lists and deletes an object: whether all of it is allowed, and the place is the right one. A list may lag.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the storage refuses for a reason that waiting does not mend; [`Error::Unavailable`] when it is away or slow.
    pub async fn check(&self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let folder = format!("check/{:x}-{:x}/", now.as_nanos(), std::process::id());
        let (path, bytes) = (format!("{folder}object"), b"leasehold".to_vec());
        self.try_put(&path, bytes.clone()).await?;
        let found = self.try_get(&path).await?;
        let listed: Vec<_> = self.list(&folder).collect().await;
        self.try_delete(&path).await?;
        listed.into_iter().collect::<Result<Vec<_>, _>>()?;
        if found != Some(bytes) {
            let what = "what was stored is not found again at once: this storage cannot be used";
            return Err(Error::Invalid(format!("archive {}: {what}", self.place())));
        }
        Ok(())
    }

    /// The object's place in the storage.
    fn location(&self, path: &str) -> Result<Path, Error> {
        let refused = |why: &dyn fmt::Display| {
            Error::Invalid(format!("archive {}: {path:?} is no object's path: {why}", self.place()))
        };
        if path.starts_with('/') || path.ends_with('/') || path.is_empty() {
            return Err(refused(&"it is empty, or begins or ends with a slash"));
        }
        Path::parse(format!("{}/{path}", self.0.root)).map_err(|error| refused(&error))
    }

    /// Runs a call within its deadline, at most [`MAX_CALLS`] at once. A call to S3 ends when nobody waits for it any more; one to a file system
    /// cannot, and counts until it does.
    async fn call<T: Send + 'static>(
        &self,
        (did, path): (told::Did, &str),
        run: impl Future<Output = Outcome<T>> + Send + 'static,
    ) -> Result<Outcome<T>, Error> {
        let calls = Arc::clone(&self.0.calls);
        let ends = self.0.told.kind.ends_when_dropped();
        #[cfg(feature = "files")]
        let folder = self.0.folder.clone();
        let bounded = async move {
            // The semaphore is never closed.
            let permit = calls.acquire_owned().await.ok();
            let run = async move {
                #[cfg(feature = "files")]
                if let Some(folder) = folder {
                    folder.present().await?;
                }
                let outcome = run.await;
                drop(permit);
                outcome
            };
            if ends {
                run.await
            } else {
                tokio::spawn(run).map(|ran| ran.unwrap_or_else(|error| Err(error.into()))).await
            }
        };
        let span = self.0.request_timeout;
        timeout(span, bounded).await.map_err(|_| Error::Unavailable(self.0.told.late(did, path, span)))
    }

    fn failed(&self, did: told::Did, path: &str, error: &object_store::Error) -> Error {
        let told = self.0.told.failure(did, path, error);
        tracing::debug!(%error, "a call to the archive failed");
        told
    }

    /// As [`Blobs::put`], with [`Error::Invalid`] for what waiting does not mend.
    async fn try_put(&self, path: &str, bytes: Vec<u8>) -> Result<(), Error> {
        let location = self.location(path)?;
        let payload = PutPayload::from(bytes);
        let mut conditional = self.0.conditional.load(Ordering::Relaxed);
        loop {
            let inner = Arc::clone(&self.0);
            let (at, sent) = (location.clone(), payload.clone());
            let outcome =
                self.call((told::Did::Put, path), async move { inner.put(&at, sent, conditional).await }).await?;
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) if conditional && told::cannot_be_conditional(&error) => {
                    if self.0.conditional.swap(false, Ordering::Relaxed) {
                        tracing::info!(
                            archive = self.place(),
                            "this storage has no conditional put; its objects' paths are unique all the same"
                        );
                    }
                    conditional = false;
                }
                Err(object_store::Error::AlreadyExists { .. }) => return self.same(path, &payload).await,
                Err(error) => return Err(self.failed(told::Did::Put, path, &error)),
            }
        }
    }

    /// An attempt of this put was taken for lost and was not; anything else in its place is somebody else's.
    async fn same(&self, path: &str, payload: &PutPayload) -> Result<(), Error> {
        let sent: Vec<u8> = payload.iter().flat_map(|part| part.iter().copied()).collect();
        if self.try_get(path).await?.is_some_and(|found| found == sent) {
            return Ok(());
        }
        let what = "there is another object already; it was not replaced";
        Err(Error::Invalid(format!("archive {}: object {path:?}: {what}", self.place())))
    }

    async fn try_get(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let (location, store) = (self.location(path)?, Arc::clone(&self.0.store));
        let read = async move {
            let found = store.get_opts(&location, GetOptions::default()).await?;
            let size = found.meta.size;
            if size > MAX_OBJECT { Ok(Err(size)) } else { Ok(Ok(found.bytes().await?)) }
        };
        match self.call((told::Did::Get, path), read).await? {
            Ok(Ok(bytes)) => Ok(Some(bytes.into())),
            Ok(Err(size)) => {
                let place = format!("archive {}: object {path:?}", self.place());
                Err(Error::Corrupt { place, what: format!("{size} bytes: no chunk has more than {MAX_OBJECT}") })
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(told::Did::Get, path, &error)),
        }
    }

    async fn try_delete(&self, path: &str) -> Result<(), Error> {
        let (location, store) = (self.location(path)?, Arc::clone(&self.0.store));
        match self.call((told::Did::Delete, path), async move { store.delete(&location).await }).await? {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(told::Did::Delete, path, &error)),
        }
    }

    /// A folder's path is empty, or whole parts and a slash.
    fn folder(&self, folder: &str) -> Result<Path, Error> {
        match folder.strip_suffix('/') {
            Some(path) => self.location(path),
            None if folder.is_empty() => Ok(self.0.root.clone()),
            None => {
                let why = "a folder's path ends with a slash";
                Err(Error::Invalid(format!("archive {}: {folder:?} cannot be listed: {why}", self.place())))
            }
        }
    }
}

impl Inner {
    /// An object that is there already is told of once it is durable.
    async fn put(&self, at: &Path, payload: PutPayload, conditional: bool) -> Outcome<()> {
        let mode = if conditional { PutMode::Create } else { PutMode::Overwrite };
        let put = self.store.put_opts(at, payload, PutOptions { mode, ..PutOptions::default() }).await;
        #[cfg(feature = "files")]
        if let Some(folder) = &self.folder
            && matches!(put, Ok(_) | Err(object_store::Error::AlreadyExists { .. }))
        {
            folder.sync(at).await?;
        }
        put.map(drop)
    }
}

/// What waiting may mend, in the eyes of who cannot change the settings.
fn unavailable(error: Error) -> Error {
    match error {
        Error::Invalid(what) => Error::Unavailable(what),
        Error::Fenced { .. }
        | Error::IndexConflict { .. }
        | Error::Unavailable(_)
        | Error::Unknown(_)
        | Error::Corrupt { .. } => error,
    }
}

#[async_trait]
impl Blobs for ObjectBlobs {
    fn place(&self) -> String {
        self.0.told.shown.clone()
    }

    async fn put(&self, path: &str, bytes: Vec<u8>) -> Result<(), Error> {
        self.try_put(path, bytes).await.map_err(unavailable)
    }

    async fn get(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        self.try_get(path).await.map_err(unavailable)
    }

    async fn delete(&self, path: &str) -> Result<(), Error> {
        self.try_delete(path).await.map_err(unavailable)
    }

    fn list(&self, folder: &str) -> BoxStream<'static, Result<String, Error>> {
        let at = match self.folder(folder) {
            Ok(at) => at,
            Err(error) => return stream::iter([Err(unavailable(error))]).boxed(),
        };
        let (blobs, folder) = (self.clone(), folder.to_owned());
        let objects = self.0.store.list(Some(&at)).chunks(LISTED);
        // Each part has a deadline of its own: who reads the list may take as long as it likes.
        let parts = stream::unfold(Some(objects), move |objects| {
            let (blobs, folder) = (blobs.clone(), folder.clone());
            async move {
                let mut objects = objects?;
                let next = async move { Ok((objects.next().await, objects)) };
                let outcome = blobs.call((told::Did::List, &folder), next).await;
                let failed = |error: &object_store::Error| unavailable(blobs.failed(told::Did::List, &folder, error));
                match outcome {
                    Ok(Ok((None, _))) => None,
                    Ok(Ok((Some(part), objects))) => {
                        let paths = part.into_iter().filter_map(|object| match object {
                            Ok(object) => blobs.relative(&object.location).map(Ok),
                            Err(error) => Some(Err(failed(&error))),
                        });
                        let paths: Vec<_> = paths.collect();
                        let broken = paths.iter().any(Result::is_err);
                        Some((paths, (!broken).then_some(objects)))
                    }
                    Ok(Err(error)) => Some((vec![Err(failed(&error))], None)),
                    Err(error) => Some((vec![Err(error)], None)),
                }
            }
        });
        parts.flat_map(stream::iter).boxed()
    }
}

impl ObjectBlobs {
    /// The path as [`Blobs`] has it.
    fn relative(&self, location: &Path) -> Option<String> {
        location.as_ref().strip_prefix(self.0.root.as_ref())?.strip_prefix('/').map(str::to_owned)
    }
}
