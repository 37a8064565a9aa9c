//! Serving: the traits of [`crate::api`] behind gRPC, with `grpc.health.v1` and reflection.
//!
//! Each server is built from what implements the trait, then served on a listener (or, in a simulated network, on a
//! stream of connections) until `shutdown` resolves. Then it stops accepting, ends its watches, lets calls finish for at
//! most [`Limits::grace`] and cuts what is left. Dropping the serving future cuts everything at once.

mod admission;
mod agent;
mod connections;
mod executor;
mod health;
mod manager;
mod run;
mod undecodable;

pub use agent::AgentServer;
pub use executor::ExecutorServer;
pub use health::Health;
pub use manager::ManagerServer;

use crate::api::{ExecutorApi, InvokeApi, ManagerApi};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// What a server admits. Beyond a bound of calls the answer is `OVERLOADED`; a connection beyond its bound is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once: 4,096 by default.
    pub connections: u32,
    /// HTTP/2 streams open at once on one connection: 1,024 by default. The client queues what is beyond.
    pub streams_per_connection: u32,
    /// Calls being handled at once, renewals and watches aside: 4,096 by default.
    pub calls: u32,
    /// Renewals being handled at once: 16,384 by default. They have a bound of their own, so that nothing else can keep
    /// them out (R45).
    pub renewals: u32,
    /// Watches open at once: 1,024 by default.
    pub watches: u32,
    /// How long an invocation may run whose caller does not say, and at most: 60 s by default.
    pub invocation: Duration,
    /// How long calls may go on after shutdown was asked for: 5 s by default.
    pub grace: Duration,
    /// How often a connection is checked by an HTTP/2 ping: 5 s by default.
    pub keepalive_interval: Duration,
    /// How long the ping's answer may take before the connection is closed: 5 s by default.
    pub keepalive_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            streams_per_connection: 1024,
            calls: 4096,
            renewals: 16_384,
            watches: 1024,
            invocation: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(5),
        }
    }
}

/// Why serving ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptors of our own services are not acceptable: a bug in this build.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport gave up.
    #[error("serving: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// No connection comes in any more, and nobody asked for the end: the listener is dead.
    #[error("nothing can connect any more: the listener is closed")]
    ListenerDead,
}

/// Serves a manager on `listener` until `shutdown`.
///
/// # Errors
/// When the transport gives up.
pub async fn serve_manager(
    listener: TcpListener,
    api: Arc<dyn ManagerApi>,
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    ManagerServer::new(api).limits(limits).serve(listener, shutdown).await
}

/// Serves a manager on accepted connections until `shutdown`.
///
/// # Errors
/// When the transport gives up.
pub async fn serve_manager_with_incoming<T>(
    incoming: impl Stream<Item = io::Result<T>> + Send,
    api: Arc<dyn ManagerApi>,
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error>
where
    T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    ManagerServer::new(api).limits(limits).serve_with_incoming(incoming, shutdown).await
}

/// Serves an executor (with its agents) on `listener` until `shutdown`.
///
/// # Errors
/// When the transport gives up.
pub async fn serve_executor(
    listener: TcpListener,
    apis: (Arc<dyn ExecutorApi>, Arc<dyn InvokeApi>),
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    ExecutorServer::new(apis.0, apis.1).limits(limits).serve(listener, shutdown).await
}

/// Serves an executor (with its agents) on accepted connections until `shutdown`.
///
/// # Errors
/// When the transport gives up.
pub async fn serve_executor_with_incoming<T>(
    incoming: impl Stream<Item = io::Result<T>> + Send,
    apis: (Arc<dyn ExecutorApi>, Arc<dyn InvokeApi>),
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error>
where
    T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    ExecutorServer::new(apis.0, apis.1).limits(limits).serve_with_incoming(incoming, shutdown).await
}

/// Serves a gateway on `listener` until `shutdown`.
///
/// # Errors
/// When the transport gives up.
pub async fn serve_gateway(
    listener: TcpListener,
    api: Arc<dyn InvokeApi>,
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    AgentServer::new(api).limits(limits).serve(listener, shutdown).await
}

/// Serves a gateway on accepted connections until `shutdown`.
///
/// # Errors
/// When the transport gives up.
pub async fn serve_gateway_with_incoming<T>(
    incoming: impl Stream<Item = io::Result<T>> + Send,
    api: Arc<dyn InvokeApi>,
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error>
where
    T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    AgentServer::new(api).limits(limits).serve_with_incoming(incoming, shutdown).await
}
