//! The gateway (`shard-executor route`): a [`crate::router::Router`] served over gRPC and HTTP/JSON. Stateless, any number of replicas.

mod http;
mod problem;
#[cfg(test)]
mod tests;

use crate::cli::Failure;
use crate::cli::target::router;
use crate::router::RouterSettings;
use crate::serve::manager::{serve, told};
use crate::serve::{bind, limits};
use leasehold_config::GatewayConfig;
use leasehold_rpc::server::{Limits, serve_gateway};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A gateway that serves.
pub struct GatewayProcess {
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
}

impl GatewayProcess {
    /// Binds and serves at once, whether or not a manager answers yet: calls wait for the first table within their deadlines.
    ///
    /// # Errors
    /// A port in use (1), with what to do.
    pub async fn start(config: &GatewayConfig) -> Result<Self, Failure> {
        let (grpc_listener, grpc) = bind("listen.grpc", config.listen.grpc).await?;
        let (http_listener, http) = bind("listen.http", config.listen.http).await?;
        let settings = RouterSettings { calls_most: config.limits.calls as usize, ..RouterSettings::default() };
        let router = router(&config.route.managers, settings);
        let limits = Limits { invocation: config.route.call_deadline, ..limits(&config.limits) };
        let routes = http::routes(router.clone(), config.route.call_deadline);
        let (stop, stopping) = watch::channel(false);
        let connections = config.limits.connections as usize;
        let servers = vec![
            serve("gRPC", serve_gateway(grpc_listener, Arc::new(router), limits, told(stopping.clone()))),
            serve("HTTP", crate::http::serve(http_listener, routes, connections, told(stopping))),
        ];
        Ok(Self { grpc, http, stop, servers })
    }

    /// Takes no more calls and waits for those under way, within the servers' grace.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        for server in self.servers {
            // A server that panicked has said so; the other still ends in order.
            drop(server.await);
        }
    }
}
