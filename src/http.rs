//! What every HTTP listener of ours has: health and metrics, a bound on connections, an end that is not put off by idle clients.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long requests under way may take to end at shutdown.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// What `/readyz` and `/metrics` tell.
pub(crate) struct Operations {
    /// Why the process cannot serve at the moment; `None` when it can.
    pub(crate) not_ready: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Every metric.
    pub(crate) registry: Registry,
}

/// `/livez`, `/readyz` and `/metrics`.
pub(crate) fn operations(operations: Operations) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(operations))
}

async fn readyz(State(operations): State<Arc<Operations>>) -> Response {
    match (operations.not_ready)() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics(State(operations): State<Arc<Operations>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &operations.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Serves `routes` on `listener` with at most `connections` open at once (further ones wait to be accepted), until `shutdown`; then
/// lets requests under way end for [`SHUTDOWN_GRACE`].
///
/// # Errors
/// When the listener fails.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    connections: usize,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
    let (ended, ending) = tokio::sync::oneshot::channel();
    let signal = async move {
        shutdown.await;
        // The receiver is gone only when serving has ended by itself.
        ended.send(()).ok();
    };
    let serving = axum::serve(Bounded { listener, permits }, routes).with_graceful_shutdown(signal);
    let patience = async {
        if ending.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        ended = serving => ended,
        () = patience => Ok(()),
    }
}

struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        // Without it a lone client waits for its delayed acknowledgement (44 ms). A socket that refuses still works.
        drop(stream.set_nodelay(true));
        (Held { stream, _permit: permit }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that counts against the bound for as long as it is open.
struct Held {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Held {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Binds `address`.
///
/// # Errors
/// Names the address and says what to do when it is in use.
pub(crate) async fn bind(what: &str, address: SocketAddr) -> io::Result<TcpListener> {
    let bound = timeout(Duration::from_secs(5), TcpListener::bind(address)).await;
    let bound = bound.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    bound.map_err(|error| {
        let hint = if error.kind() == io::ErrorKind::AddrInUse { "; another process listens there" } else { "" };
        io::Error::new(error.kind(), format!("cannot listen on {address} ({what}): {error}{hint}"))
    })
}
