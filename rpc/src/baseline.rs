//! The yardstick of the benchmarks: a bare tonic service with the same messages. Its answers are made once and copied;
//! nothing is decoded into a model, bounded, tracked or checked.

use crate::wire::manager_service_client::ManagerServiceClient;
use crate::wire::manager_service_server::{ManagerService, ManagerServiceServer};
use crate::{encode, wire};
use futures::stream::Empty;
use leasehold_model::message::{Registration, Renewal, RoutingTable};
use leasehold_model::{Address, Grant};
use std::future::Future;
use tokio::net::TcpListener;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Answers every registration and renewal with one grant and every request for the table with one table.
#[derive(Debug, Clone)]
pub struct BareServer {
    grant: Option<wire::Grant>,
    table: Option<wire::RoutingTable>,
}

impl BareServer {
    /// With these answers.
    #[must_use]
    pub fn new(grant: &Grant, table: &RoutingTable) -> Self {
        Self { grant: encode::grant(grant), table: encode::routing_table(table) }
    }

    /// Serves until `shutdown`.
    ///
    /// # Errors
    /// When the transport gives up.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), tonic::transport::Error> {
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        Server::builder()
            .add_service(ManagerServiceServer::new(self))
            .serve_with_incoming_shutdown(incoming, shutdown)
            .await
    }
}

/// Calls without decoding the answers into a model.
#[derive(Debug, Clone)]
pub struct BareClient(ManagerServiceClient<Channel>);

impl BareClient {
    /// Dials lazily.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn dial(address: &Address) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address is a valid authority");
        Self(ManagerServiceClient::new(endpoint.tcp_nodelay(true).connect_lazy()))
    }

    /// One renewal; the message is made anew, as a caller must.
    ///
    /// # Errors
    /// The status, as text.
    pub async fn renew(&self, renewal: &Renewal) -> Result<(), String> {
        let call = self.0.clone().renew_shard_lease(encode::renewal(renewal)).await;
        call.map(drop).map_err(|status| status.to_string())
    }

    /// One registration.
    ///
    /// # Errors
    /// The status, as text.
    pub async fn register(&self, registration: Registration) -> Result<(), String> {
        let call = self.0.clone().register(encode::registration(registration)).await;
        call.map(drop).map_err(|status| status.to_string())
    }

    /// One routing table.
    ///
    /// # Errors
    /// The status, as text.
    pub async fn routing_table(&self) -> Result<(), String> {
        let call = self.0.clone().get_routing_table(wire::GetRoutingTableRequest {}).await;
        call.map(drop).map_err(|status| status.to_string())
    }
}

fn absent<T>() -> Result<T, Status> {
    Err(Status::unimplemented("the baseline has no such call"))
}

#[tonic::async_trait]
impl ManagerService for BareServer {
    type WatchRoutingTableStream = Empty<Result<wire::WatchRoutingTableResponse, Status>>;

    async fn register(&self, _: Request<wire::RegisterRequest>) -> Result<Response<wire::RegisterResponse>, Status> {
        Ok(Response::new(wire::RegisterResponse { grant: self.grant.clone() }))
    }

    async fn renew_shard_lease(
        &self,
        _: Request<wire::RenewShardLeaseRequest>,
    ) -> Result<Response<wire::RenewShardLeaseResponse>, Status> {
        Ok(Response::new(wire::RenewShardLeaseResponse { grant: self.grant.clone() }))
    }

    async fn deregister(
        &self,
        _: Request<wire::DeregisterRequest>,
    ) -> Result<Response<wire::DeregisterResponse>, Status> {
        absent()
    }

    async fn get_routing_table(
        &self,
        _: Request<wire::GetRoutingTableRequest>,
    ) -> Result<Response<wire::GetRoutingTableResponse>, Status> {
        Ok(Response::new(wire::GetRoutingTableResponse { table: self.table.clone() }))
    }

    async fn watch_routing_table(
        &self,
        _: Request<wire::WatchRoutingTableRequest>,
    ) -> Result<Response<Self::WatchRoutingTableStream>, Status> {
        absent()
    }

    async fn get_cluster_status(
        &self,
        _: Request<wire::GetClusterStatusRequest>,
    ) -> Result<Response<wire::GetClusterStatusResponse>, Status> {
        absent()
    }

    async fn explain_shard(
        &self,
        _: Request<wire::ExplainShardRequest>,
    ) -> Result<Response<wire::ExplainShardResponse>, Status> {
        absent()
    }

    async fn set_draining(
        &self,
        _: Request<wire::SetDrainingRequest>,
    ) -> Result<Response<wire::SetDrainingResponse>, Status> {
        absent()
    }
}
