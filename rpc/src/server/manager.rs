//! `ManagerService`.

use super::admission::{Bound, Slot};
use super::run::{Common, answered, common, sized};
use crate::api::ManagerApi;
use crate::status::{invalid, refused, status};
use crate::wire::manager_service_server::{ManagerService, ManagerServiceServer};
use crate::{decode, encode, wire};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// A manager behind gRPC.
pub struct ManagerServer {
    common: Common,
    api: Arc<dyn ManagerApi>,
}

common!(ManagerServer);

impl ManagerServer {
    /// Serves `api`.
    #[must_use]
    pub fn new(api: Arc<dyn ManagerApi>) -> Self {
        Self { common: Common::new(&["leasehold.v1.ManagerService"]), api }
    }

    fn routes(self) -> Routes {
        let limits = self.common.limits;
        let handlers = Handlers {
            api: self.api,
            renewals: Bound::new("renewals at once", limits.renewals),
            calls: Bound::new("calls at once", limits.calls),
            watches: Bound::new("watches at once", limits.watches),
            common: self.common,
        };
        Routes::new(sized!(ManagerServiceServer::new(handlers)))
    }
}

struct Handlers {
    common: Common,
    api: Arc<dyn ManagerApi>,
    renewals: Arc<Bound>,
    calls: Arc<Bound>,
    watches: Arc<Bound>,
}

impl Handlers {
    fn call(&self) -> Result<Slot, Status> {
        self.calls.take().map_err(|refusal| refused(&refusal))
    }
}

#[tonic::async_trait]
impl ManagerService for Handlers {
    type WatchRoutingTableStream = BoxStream<'static, Result<wire::WatchRoutingTableResponse, Status>>;

    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::RegisterResponse>, Status> {
        let _slot = self.call()?;
        let registration = decode::registration(request.into_inner()).map_err(invalid)?;
        let outcome = self.api.register(registration).await;
        answered(outcome, |grant| wire::RegisterResponse { grant: encode::grant(&grant) })
    }

    async fn renew_shard_lease(
        &self,
        request: Request<wire::RenewShardLeaseRequest>,
    ) -> Result<Response<wire::RenewShardLeaseResponse>, Status> {
        let _slot = self.renewals.take().map_err(|refusal| refused(&refusal))?;
        let renewal = decode::renewal(request.into_inner()).map_err(invalid)?;
        let outcome = self.api.renew(renewal).await;
        answered(outcome, |grant| wire::RenewShardLeaseResponse { grant: encode::grant(&grant) })
    }

    async fn deregister(
        &self,
        request: Request<wire::DeregisterRequest>,
    ) -> Result<Response<wire::DeregisterResponse>, Status> {
        let _slot = self.call()?;
        let deregistration = decode::deregistration(request.get_ref()).map_err(invalid)?;
        answered(self.api.deregister(deregistration).await, |()| wire::DeregisterResponse {})
    }

    async fn get_routing_table(
        &self,
        _: Request<wire::GetRoutingTableRequest>,
    ) -> Result<Response<wire::GetRoutingTableResponse>, Status> {
        let _slot = self.call()?;
        let outcome = self.api.routing_table().await;
        answered(outcome, |table| wire::GetRoutingTableResponse { table: encode::routing_table(&table) })
    }

    async fn watch_routing_table(
        &self,
        _: Request<wire::WatchRoutingTableRequest>,
    ) -> Result<Response<Self::WatchRoutingTableStream>, Status> {
        let slot = self.watches.take().map_err(|refusal| refused(&refusal))?;
        let tables = self.api.watch_routing_table().await.map_err(|error| status(&error))?;
        let answers = tables.map(move |table| {
            // The place is given back when the stream is dropped.
            let _held = &slot;
            match table {
                Ok(table) => Ok(wire::WatchRoutingTableResponse { table: encode::routing_table(&table) }),
                Err(error) => Err(status(&error)),
            }
        });
        Ok(Response::new(answers.take_until(self.common.closing()).boxed()))
    }

    async fn get_cluster_status(
        &self,
        _: Request<wire::GetClusterStatusRequest>,
    ) -> Result<Response<wire::GetClusterStatusResponse>, Status> {
        let _slot = self.call()?;
        answered(self.api.status().await, encode::status)
    }

    async fn explain_shard(
        &self,
        request: Request<wire::ExplainShardRequest>,
    ) -> Result<Response<wire::ExplainShardResponse>, Status> {
        let _slot = self.call()?;
        let shard = decode::shard(request.into_inner()).map_err(invalid)?;
        answered(self.api.explain(shard).await, encode::explanation)
    }

    async fn set_draining(
        &self,
        request: Request<wire::SetDrainingRequest>,
    ) -> Result<Response<wire::SetDrainingResponse>, Status> {
        let _slot = self.call()?;
        let (name, draining) = decode::draining(request.into_inner()).map_err(invalid)?;
        answered(self.api.set_draining(name, draining).await, |()| wire::SetDrainingResponse {})
    }
}
