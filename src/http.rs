//! What every HTTP listener of ours has: health and metrics, a bound on connections, an end that is not put off by idle clients.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use leasehold_actors::manager::Standing;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
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

/// `/leaderz`: 200 on the leader; elsewhere 503, with the leader's address if it is known.
pub(crate) fn leaderz(standing: watch::Receiver<Standing>) -> Router {
    let answer = move || {
        let standing = standing.borrow();
        let answer = match (standing.leadership(), standing.leader()) {
            (Some(_), _) => (StatusCode::OK, "this process leads\n".to_owned()),
            (None, Some(leader)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{leader} leads\n")),
            (None, None) => (StatusCode::SERVICE_UNAVAILABLE, "no leader is known\n".to_owned()),
        };
        std::future::ready(answer)
    };
    Router::new().route("/leaderz", get(answer))
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    fn ready() -> Router {
        operations(Operations { not_ready: Box::new(|| None), registry: Registry::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sent_no_byte_does_not_put_off_the_end() {
        let listener = bind("listen.http", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, ready(), 8, async move { drop(stopped.await) }));
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        stop.send(()).unwrap();
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_what_it_is_for() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let error = bind("listen.http", address).await.unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("listen.http"), "{error}");
        assert!(error.contains("another process listens there"), "{error}");
    }
}
