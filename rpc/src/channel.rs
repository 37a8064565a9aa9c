//! Dialling. A channel connects when it is first used and again whenever its connection is gone.

use crate::guard::guarded;
use futures::future::{BoxFuture, MapOk};
use futures::{FutureExt, TryFutureExt};
use hyper_util::rt::TokioIo;
use leasehold_model::Address;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::codegen::{Bytes, http};
use tonic::transport::{Endpoint, Uri};
use tower::Service;

/// How channels behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelSettings {
    /// How long making a connection may take: 1 s by default. Keep it below `deadline`, so that a peer that does not
    /// answer is told from one that does not finish.
    pub connect_timeout: Duration,
    /// How often a connection is checked by an HTTP/2 ping, also when it is idle: 2 s by default. Without it a
    /// connection whose packets are dropped looks alive for as long as TCP takes.
    pub keepalive_interval: Duration,
    /// How long the ping's answer may take before the connection is dropped: 2 s by default.
    pub keepalive_timeout: Duration,
    /// How long any call may take, unless the call says so itself: 10 s by default.
    pub deadline: Duration,
}

impl Default for ChannelSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            keepalive_interval: Duration::from_secs(2),
            keepalive_timeout: Duration::from_secs(2),
            deadline: Duration::from_secs(10),
        }
    }
}

/// What a connector yields.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Connected = BoxFuture<'static, io::Result<TokioIo<Box<dyn Io>>>>;
type Connector = Arc<dyn Fn(Uri) -> Connected + Send + Sync>;

/// Makes channels. Cheap to clone.
#[derive(Clone)]
pub struct Dialer {
    settings: ChannelSettings,
    connector: Option<Connector>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Dialer {
    /// Dials over TCP, with TCP_NODELAY.
    #[must_use]
    pub fn tcp() -> Self {
        Self { settings: ChannelSettings::default(), connector: None }
    }

    /// Dials with `connect`, for example into a simulated network. The connect timeout still applies.
    #[must_use]
    pub fn with_connector<C, F, T>(connect: C) -> Self
    where
        C: Fn(Address) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<T>> + Send + 'static,
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connector: Connector = Arc::new(move |uri: Uri| {
            let address = uri.authority().and_then(|authority| Address::new(authority.as_str()).ok());
            let connected = address.map(&connect);
            async move {
                let connected = connected.ok_or_else(|| io::Error::other(format!("{uri} names no host and port")))?;
                Ok(TokioIo::new(Box::new(connected.await?) as Box<dyn Io>))
            }
            .boxed()
        });
        Self { settings: ChannelSettings::default(), connector: Some(connector) }
    }

    /// The same dialer with other settings.
    #[must_use]
    pub fn settings(mut self, settings: ChannelSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The same dialer with another deadline for each call.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// A channel to `address`. Returns at once; the connection is made by the first call.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn dial(&self, address: &Address) -> Channel {
        let settings = self.settings;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .expect("an address is a host of letters, digits, '.', '-', '_' or brackets, and a port");
        let endpoint = endpoint
            .connect_timeout(settings.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(settings.keepalive_interval)
            .keep_alive_timeout(settings.keepalive_timeout)
            .keep_alive_while_idle(true);
        let channel = match &self.connector {
            None => endpoint.connect_lazy(),
            Some(connector) => {
                let connector = Arc::clone(connector);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |uri| connector(uri)))
            }
        };
        Channel { inner: Tracked(channel), deadline: settings.deadline }
    }
}

/// A way to one peer. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Channel {
    pub(crate) inner: Tracked,
    pub(crate) deadline: Duration,
}

/// Whether any of a request's message can have left this process. Travels in the request's extensions.
///
/// A server runs nothing before it has the message, so a message that nobody asked for was not acted upon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent(Arc<AtomicBool>);

impl Sent {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A channel that notes in [`Sent`] when the transport takes the message, and guards against answers that break it.
#[derive(Debug, Clone)]
pub(crate) struct Tracked(tonic::transport::Channel);

impl Service<http::Request<Body>> for Tracked {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = MapOk<tonic::transport::channel::ResponseFuture, fn(http::Response<Body>) -> http::Response<Body>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let request = match request.extensions_mut().remove::<Sent>() {
            Some(sent) => request.map(|inner| Body::new(Message { inner, sent })),
            None => request,
        };
        self.0.call(request).map_ok(guarded)
    }
}

/// A request's body that notes when it is asked for.
struct Message {
    inner: Body,
    sent: Sent,
}

impl http_body::Body for Message {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        self.sent.0.store(true, Ordering::Release);
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}
