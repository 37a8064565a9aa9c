//! Closed loops over gRPC: each caller has a connection of its own and asks again when it was answered. Subject and
//! baseline are asked by the same client, the one that decodes nothing, so that their difference is the server's.

use crate::figure::{Error, Result};
use futures::future::BoxFuture;
use leasehold_model::Address;
use leasehold_rpc::baseline::BareClient;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A free port of the loopback interface.
pub async fn listener() -> Result<(TcpListener, Address)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = Address::new(listener.local_addr()?.to_string())?;
    Ok((listener, address))
}

/// A server that runs until it is stopped.
pub struct Serving {
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<()>>,
}

impl Serving {
    /// Runs what `serve` makes of the signal to stop.
    pub fn start<F, E>(serve: impl FnOnce(BoxFuture<'static, ()>) -> F) -> Self
    where
        F: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Into<Error>,
    {
        let (stop, stopped) = oneshot::channel();
        let serving = serve(Box::pin(async { stopped.await.unwrap_or(()) }));
        Self { stop, server: tokio::spawn(async { serving.await.map_err(Into::into) }) }
    }

    /// Waits for its end.
    pub async fn stop(self) -> Result<()> {
        // It has ended by itself if it does not listen; then it says why.
        self.stop.send(()).ok();
        self.server.await?
    }
}

/// One connected client per caller.
pub async fn clients(callers: usize, address: &Address) -> Result<Vec<BareClient>> {
    let clients: Vec<_> = (0..callers).map(|_| BareClient::dial(address)).collect();
    for client in &clients {
        client.routing_table().await?;
    }
    Ok(clients)
}

/// Calls per second of `callers` tasks, for `span`.
pub async fn rate<F>(callers: usize, span: Duration, call: impl Fn(usize) -> F + Send + Sync + 'static) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send,
{
    let (call, done, began) = (Arc::new(call), Arc::new(AtomicU64::new(0)), Instant::now());
    let looped = |caller| {
        let (call, done) = (Arc::clone(&call), Arc::clone(&done));
        tokio::spawn(async move {
            while began.elapsed() < span {
                call(caller).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Result::Ok(())
        })
    };
    let tasks: Vec<_> = (0..callers).map(looped).collect();
    for task in tasks {
        task.await??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

/// Calls per second while `callers` tasks make `calls` in all; each is told its caller and its number.
pub async fn rate_of<F>(
    callers: usize,
    calls: usize,
    call: impl Fn(usize, usize) -> F + Send + Sync + 'static,
) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send,
{
    let (call, next, began) = (Arc::new(call), Arc::new(AtomicU64::new(0)), Instant::now());
    let looped = |caller| {
        let (call, next) = (Arc::clone(&call), Arc::clone(&next));
        tokio::spawn(async move {
            while let number = next.fetch_add(1, Ordering::Relaxed) as usize
                && number < calls
            {
                call(caller, number).await?;
            }
            Result::Ok(())
        })
    };
    let tasks: Vec<_> = (0..callers).map(looped).collect();
    for task in tasks {
        task.await??;
    }
    Ok(calls as f64 / began.elapsed().as_secs_f64())
}
