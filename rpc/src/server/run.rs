//! One way to run every server.

use super::connections::{Connections, CutOnDrop};
use super::undecodable::Undecodable;
use super::{Error, Health, Limits};
use crate::bounds::MAX_MESSAGE;
use crate::status;
use futures::StreamExt;
use leasehold_model::CallError;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Response, Status};

/// How long to wait after accepting failed (too many open files): trying again at once would spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// How long the tasks of connections that were cut may take to notice.
const CUT_NOTICED: Duration = Duration::from_secs(1);

/// What every server has besides its services.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) limits: Limits,
    pub(super) health: Health,
    closing: watch::Sender<bool>,
}

impl Common {
    pub(super) fn new(services: &'static [&'static str]) -> Self {
        Self { limits: Limits::default(), health: Health::new(services), closing: watch::Sender::new(false) }
    }

    /// Resolves when the server begins to close: what would hold it open ends then.
    pub(super) fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closing = self.closing.subscribe();
        async move {
            // An error means that the server is gone altogether.
            let _ = closing.wait_for(|closing| *closing).await;
        }
    }

    /// Serves `routes` until `shutdown` and the grace after it.
    pub(super) async fn serve<T>(
        self,
        routes: Routes,
        incoming: impl Stream<Item = io::Result<T>> + Send,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), Error>
    where
        T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let routes = routes.add_service(self.health.service()).add_service(reflection);
        let limits = self.limits;
        let connections = Connections::new(limits.connections);
        let _cut = CutOnDrop(std::sync::Arc::clone(&connections));
        let incoming = incoming.filter_map(|io| {
            let admitted = io.map(|io| connections.admit(io)).transpose();
            async move { admitted }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let mut serving = pin!(
            Server::builder()
                .max_concurrent_streams(limits.streams_per_connection)
                .http2_keepalive_interval(Some(limits.keepalive_interval))
                .http2_keepalive_timeout(Some(limits.keepalive_timeout))
                .layer(tower::layer::layer_fn(Undecodable))
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming, async {
                    let _ = stopped.await;
                })
        );
        tokio::select! {
            ended = &mut serving => {
                ended?;
                return Err(Error::ListenerDead);
            }
            () = shutdown => {}
        }
        self.health.set_serving(false).await;
        self.closing.send_replace(true);
        let _ = stop.send(());
        if let Ok(ended) = tokio::time::timeout(limits.grace, &mut serving).await {
            return Ok(ended?);
        }
        tracing::warn!(grace = ?limits.grace, "calls outlasted the grace; their connections are cut");
        connections.cut();
        tokio::time::timeout(CUT_NOTICED, serving).await.map_or(Ok(()), |ended| Ok(ended?))
    }
}

/// What the system says of a socket that does not listen (Linux: EBADF, EINVAL, ENOTSOCK). Waiting makes none better.
const NOT_LISTENING: [i32; 3] = [9, 22, 88];

/// Accepts for as long as the listener listens. Another failure to accept (too many open files) is waited out, not passed on.
pub(super) fn accepted(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> + Send {
    futures::stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    // A peer without it answers a lone client 40 ms late. A socket that refuses it is already closed.
                    let _ = socket.set_nodelay(true);
                    return Some((Ok(socket), listener));
                }
                Err(error) if error.raw_os_error().is_some_and(|code| NOT_LISTENING.contains(&code)) => {
                    tracing::error!(%error, "the listener is dead");
                    return None;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    })
}

/// The answer of a handler as the transport wants it.
pub(super) fn answered<M, A>(
    outcome: Result<M, CallError>,
    encode: impl FnOnce(M) -> A,
) -> Result<Response<A>, Status> {
    match outcome {
        Ok(answer) => Ok(Response::new(encode(answer))),
        Err(error) => Err(status::status(&error)),
    }
}

/// Sizes a generated server for our messages.
macro_rules! sized {
    ($server:expr) => {
        $server
            .max_decoding_message_size($crate::server::run::LIMIT)
            .max_encoding_message_size($crate::server::run::LIMIT)
    };
}
pub(super) use sized;

pub(super) const LIMIT: usize = MAX_MESSAGE;

/// What all servers can do alike.
macro_rules! common {
    ($server:ident) => {
        impl $server {
            /// The same server with other limits.
            #[must_use]
            pub fn limits(mut self, limits: $crate::server::Limits) -> Self {
                self.common.limits = limits;
                self
            }

            /// What says whether this server is SERVING.
            #[must_use]
            pub fn health(&self) -> $crate::server::Health {
                self.common.health.clone()
            }

            /// Serves on `listener` until `shutdown`, then closes within the grace.
            ///
            /// # Errors
            /// When the transport gives up.
            pub async fn serve(
                self,
                listener: tokio::net::TcpListener,
                shutdown: impl Future<Output = ()> + Send,
            ) -> Result<(), $crate::server::Error> {
                self.serve_with_incoming($crate::server::run::accepted(listener), shutdown).await
            }

            /// Serves accepted connections until `shutdown`, then closes within the grace.
            ///
            /// # Errors
            /// When the transport gives up.
            pub async fn serve_with_incoming<T>(
                self,
                incoming: impl tokio_stream::Stream<Item = std::io::Result<T>> + Send,
                shutdown: impl Future<Output = ()> + Send,
            ) -> Result<(), $crate::server::Error>
            where
                T: tokio::io::AsyncRead
                    + tokio::io::AsyncWrite
                    + tonic::transport::server::Connected
                    + Unpin
                    + Send
                    + 'static,
            {
                self.common.health.set_serving(true).await;
                let common = self.common.clone();
                common.serve(self.routes(), incoming, shutdown).await
            }
        }
    };
}
pub(super) use common;
