//! The open connections of one server: counted, and cut when their time is over.
//!
//! The transport runs each connection in a task of its own and its graceful shutdown waits for all of them, also for one
//! whose peer never says a word. So each connection is wrapped here in something that can be made to fail.

use futures::task::AtomicWaker;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// The connections of one server.
#[derive(Debug)]
pub(super) struct Connections {
    limit: u32,
    cut: AtomicBool,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<AtomicWaker>>>,
}

impl Connections {
    pub(super) fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self { limit, cut: AtomicBool::new(false), next: AtomicU64::new(0), open: Mutex::default() })
    }

    /// Wraps a connection; `None` (and the connection is closed) when there are as many as there may be.
    pub(super) fn admit<T>(self: &Arc<Self>, io: T) -> Option<Connection<T>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= self.limit as usize {
            tracing::warn!(limit = self.limit, "a connection was closed: as many are open as there may be");
            return None;
        }
        let waker = Arc::new(AtomicWaker::new());
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(id, Arc::clone(&waker));
        Some(Connection { io, id, waker, all: Arc::clone(self) })
    }

    /// Makes every connection fail, those still to come too.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|waker| waker.wake());
    }
}

/// Cuts the connections when the future that serves them is dropped: their tasks would outlive it.
pub(super) struct CutOnDrop(pub(super) Arc<Connections>);

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        self.0.cut();
    }
}

/// A connection that can be cut.
pub(super) struct Connection<T> {
    io: T,
    id: u64,
    waker: Arc<AtomicWaker>,
    all: Arc<Connections>,
}

impl<T> Connection<T> {
    /// Registers first and looks then, so that a cut in between is not missed. One task polls both directions.
    fn alive(&self, cx: &Context<'_>) -> io::Result<()> {
        self.waker.register(cx.waker());
        if self.all.cut.load(Ordering::SeqCst) { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl<T> Drop for Connection<T> {
    fn drop(&mut self) {
        self.all.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl<T: Connected> Connected for Connection<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.alive(cx)?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.alive(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
