//! S3-compatible storage of a test's own: the crate s3s speaks the protocol, checks signatures, and reads and writes XML; objects are in memory.
//! (s3s-fs, which keeps them in files, does not page its lists, makes a bucket that a put names, and takes keys up to 150 bytes or so.)

use crate::process::wait_until;
use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, GetObjectInput, GetObjectOutput, ListObjectsV2Input, ListObjectsV2Output,
    Object, PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp,
};
use s3s::service::{S3ServiceBuilder, SharedS3Service};
use s3s::{S3 as Protocol, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};
use tokio::sync::{oneshot, watch};

/// Keys in a page of a list, as with Amazon's.
const PAGE: usize = 1000;

/// How long the port may stay taken after the server went away.
const PATIENCE: Duration = Duration::from_secs(10);

/// What happens to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strike {
    /// It is refused with this code of S3's (`SlowDown`), before anything is done.
    Refuse(&'static str),
    /// It waits until [`S3::release`], and is done then, even if the client has gone.
    Hold,
}

type Objects = BTreeMap<String, Vec<u8>>;

#[derive(Debug)]
struct Shared {
    buckets: Mutex<BTreeMap<String, Objects>>,
    strikes: Mutex<VecDeque<(&'static str, Strike)>>,
    /// Calls of each name so far; those that are held now.
    calls: Mutex<(BTreeMap<&'static str, usize>, usize)>,
    /// How often held calls were released.
    released: watch::Sender<usize>,
    conditional: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server on a free port of the loopback, with the bucket [`S3::BUCKET`]. Its objects and its port stay while it is away. It ends with this value.
#[derive(Debug)]
pub struct S3 {
    shared: Arc<Shared>,
    port: u16,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl S3 {
    /// The bucket that is there from the beginning.
    pub const BUCKET: &'static str = "bucket";
    /// The access key that may do everything.
    pub const KEY: &'static str = "key";
    /// Its secret.
    pub const SECRET: &'static str = "a-secret-of-the-tests";
    /// A key that may do nothing, with the same secret.
    pub const STRANGER: &'static str = "stranger";

    /// A server.
    ///
    /// # Panics
    /// When there is no port for it.
    #[must_use]
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            buckets: Mutex::new([(Self::BUCKET.to_owned(), Objects::new())].into()),
            strikes: Mutex::default(),
            calls: Mutex::default(),
            released: watch::Sender::new(0),
            conditional: Mutex::new(true),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("the listener's address").port();
        let mut server = Self { shared, port, server: None };
        server.serve(listener);
        server
    }

    fn serve(&mut self, listener: TcpListener) {
        listener.set_nonblocking(true).expect("a socket option");
        let (end, ended) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            // Dropped at the end, with every connection.
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, shared) => {}
                    _ = ended => {}
                }
            });
        });
        self.server = Some((end, thread));
    }

    /// It goes away: its port is closed, and so is every connection. What was held is never done.
    pub fn stop(&mut self) {
        if let Some((end, thread)) = self.server.take() {
            // Errors mean that it has ended already.
            let _ = end.send(());
            let _ = thread.join();
        }
    }

    /// It comes back after [`S3::stop`].
    ///
    /// # Panics
    /// When it runs, or its port stays taken.
    pub fn start_again(&mut self) {
        assert!(self.server.is_none(), "the server runs");
        let mut listener = None;
        wait_until("the port is free", PATIENCE, || {
            listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).ok();
            listener.is_some()
        });
        self.serve(listener.expect("a listener"));
    }

    /// Where it is.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next call that has this name in S3 (`PutObject`, `GetObject`, `DeleteObject`, `ListObjectsV2`) meets `strike`. They queue up, one per call.
    pub fn strike(&self, call: &'static str, strike: Strike) {
        lock(&self.shared.strikes).push_back((call, strike));
    }

    /// What is held goes on.
    pub fn release(&self) {
        self.shared.released.send_modify(|released| *released += 1);
    }

    /// How many calls are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        lock(&self.shared.calls).1
    }

    /// How many calls of this name have come so far.
    #[must_use]
    pub fn calls(&self, call: &str) -> usize {
        lock(&self.shared.calls).0.get(call).copied().unwrap_or(0)
    }

    /// Whether it knows conditional puts; others are answered `NotImplemented`, as by some storage.
    pub fn set_conditional(&self, conditional: bool) {
        *lock(&self.shared.conditional) = conditional;
    }

    /// All keys of [`S3::BUCKET`], in order.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        lock(&self.shared.buckets)
            .get(Self::BUCKET)
            .map(|objects| objects.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// Puts an object into [`S3::BUCKET`], past every check.
    pub fn insert(&self, key: &str, bytes: &[u8]) {
        lock(&self.shared.buckets).entry(Self::BUCKET.to_owned()).or_default().insert(key.to_owned(), bytes.to_vec());
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    let mut service = S3ServiceBuilder::new(Storage(shared));
    service.set_auth(Keys);
    let service: SharedS3Service = service.build().into_shared();
    loop {
        let Ok((stream, _peer)): std::io::Result<(_, SocketAddr)> = listener.accept().await else { continue };
        // An error is a connection that has gone already.
        let _ = stream.set_nodelay(true);
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new());
        let connection = server.serve_connection(TokioIo::new(stream), service.clone());
        // How it ends is the client's business.
        tokio::spawn(async move { drop(connection.await) });
    }
}

/// Who may call.
struct Keys;

#[async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match access_key {
            S3::KEY | S3::STRANGER => Ok(S3::SECRET.into()),
            _ => Err(S3Error::new(S3ErrorCode::InvalidAccessKeyId)),
        }
    }
}

/// The storage under the protocol.
#[derive(Clone)]
struct Storage(Arc<Shared>);

/// A list's next page begins after this key.
fn token(key: &str) -> String {
    key.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Another one for other bytes, as far as tests go: their ends and how many they are.
fn e_tag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    let ends = bytes.len().min(1024);
    (bytes.len(), &bytes[..ends], &bytes[bytes.len() - ends..]).hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn key_of(token: &str) -> Option<String> {
    let digit = |at: usize| u8::from_str_radix(token.get(at..at + 2)?, 16).ok();
    String::from_utf8((0..token.len()).step_by(2).map(digit).collect::<Option<_>>()?).ok()
}

impl Storage {
    /// The call has come; what is to happen to it happens.
    async fn arrive<T>(&self, call: &'static str, request: &S3Request<T>) -> S3Result<()> {
        let struck = {
            *lock(&self.0.calls).0.entry(call).or_default() += 1;
            let mut strikes = lock(&self.0.strikes);
            let at = strikes.iter().position(|(on, _)| *on == call);
            at.and_then(|at| strikes.remove(at))
        };
        match struck {
            Some((_, Strike::Refuse(code))) => {
                let code = S3ErrorCode::from_bytes(code.as_bytes()).expect("an error code of S3");
                return Err(S3Error::new(code));
            }
            Some((_, Strike::Hold)) => {
                let mut released = self.0.released.subscribe();
                lock(&self.0.calls).1 += 1;
                // The sender is never dropped before the server.
                let _ = released.changed().await;
                lock(&self.0.calls).1 -= 1;
            }
            None => {}
        }
        match &request.credentials {
            Some(credentials) if credentials.access_key == S3::KEY => Ok(()),
            Some(_) | None => Err(S3Error::new(S3ErrorCode::AccessDenied)),
        }
    }

    fn within<T>(&self, bucket: &str, change: impl FnOnce(&mut Objects) -> S3Result<T>) -> S3Result<T> {
        match lock(&self.0.buckets).get_mut(bucket) {
            Some(objects) => change(objects),
            None => Err(S3Error::new(S3ErrorCode::NoSuchBucket)),
        }
    }

    async fn put(self, mut request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let mut bytes = Vec::new();
        if let Some(body) = request.input.body.take() {
            let broken = |_| S3Error::new(S3ErrorCode::IncompleteBody);
            let parts: Vec<_> = body.try_collect().await.map_err(broken)?;
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        }
        self.arrive("PutObject", &request).await?;
        let PutObjectInput { bucket, key, if_none_match, .. } = request.input;
        if if_none_match.is_some() && !*lock(&self.0.conditional) {
            return Err(S3Error::new(S3ErrorCode::NotImplemented));
        }
        self.within(&bucket, |objects| {
            if if_none_match.is_some() && objects.contains_key(&key) {
                return Err(S3Error::new(S3ErrorCode::PreconditionFailed));
            }
            let e_tag = Some(e_tag(&bytes));
            objects.insert(key, bytes);
            Ok(S3Response::new(PutObjectOutput { e_tag, ..PutObjectOutput::default() }))
        })
    }

    async fn get(self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.arrive("GetObject", &request).await?;
        let GetObjectInput { bucket, key, .. } = request.input;
        let bytes = self.within(&bucket, |objects| {
            objects.get(&key).cloned().ok_or_else(|| S3Error::new(S3ErrorCode::NoSuchKey))
        })?;
        let (content_length, e_tag) = (i64::try_from(bytes.len()).ok(), Some(e_tag(&bytes)));
        let body = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(bytes))]);
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::wrap(body)),
            content_length,
            e_tag,
            last_modified: Some(Timestamp::from(SystemTime::now())),
            ..GetObjectOutput::default()
        }))
    }

    async fn delete(self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.arrive("DeleteObject", &request).await?;
        let DeleteObjectInput { bucket, key, .. } = request.input;
        self.within(&bucket, |objects| {
            objects.remove(&key);
            Ok(S3Response::new(DeleteObjectOutput::default()))
        })
    }

    async fn list(self, request: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.arrive("ListObjectsV2", &request).await?;
        let ListObjectsV2Input { bucket, prefix, continuation_token, max_keys, .. } = request.input;
        let after = match &continuation_token {
            Some(token) => Some(key_of(token).ok_or_else(|| S3Error::new(S3ErrorCode::InvalidArgument))?),
            None => None,
        };
        let page = max_keys.and_then(|most| usize::try_from(most).ok()).map_or(PAGE, |most| most.min(PAGE));
        let wanted = |key: &String| {
            prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix.as_str()))
                && after.as_ref().is_none_or(|after| key > after)
        };
        let (found, more) = self.within(&bucket, |objects| {
            let mut found: Vec<_> = objects
                .iter()
                .filter(|(key, _)| wanted(key))
                .take(page + 1)
                .map(|(key, bytes)| (key.clone(), bytes.len()))
                .collect();
            let more = found.len() > page;
            found.truncate(page);
            Ok((found, more))
        })?;
        let now = Timestamp::from(SystemTime::now());
        let next = found.last().filter(|_| more).map(|(key, _)| token(key));
        let contents = found.into_iter().map(|(key, size)| Object {
            key: Some(key),
            size: i64::try_from(size).ok(),
            last_modified: Some(now.clone()),
            ..Object::default()
        });
        Ok(S3Response::new(ListObjectsV2Output {
            contents: Some(contents.collect()),
            is_truncated: Some(more),
            next_continuation_token: next,
            name: Some(bucket),
            prefix,
            ..ListObjectsV2Output::default()
        }))
    }
}

/// In a task of its own: what has come is done, whether or not the client still waits.
async fn whole<T: Send + 'static>(
    run: impl Future<Output = S3Result<S3Response<T>>> + Send + 'static,
) -> S3Result<S3Response<T>> {
    tokio::spawn(run).await.unwrap_or_else(|_| Err(S3Error::new(S3ErrorCode::InternalError)))
}

#[async_trait]
impl Protocol for Storage {
    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        whole(self.clone().put(request)).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        whole(self.clone().get(request)).await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        whole(self.clone().delete(request)).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        whole(self.clone().list(request)).await
    }
}
