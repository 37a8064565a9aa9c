//! `ExecutorService`, with `AgentService` beside it.

use super::admission::Bound;
use super::agent;
use super::run::{Common, answered, common, sized};
use crate::api::{ExecutorApi, InvokeApi};
use crate::status::{invalid, refused};
use crate::wire::executor_service_server::{ExecutorService, ExecutorServiceServer};
use crate::{decode, encode, wire};
use std::sync::Arc;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// An executor behind gRPC: what its manager asks of it, and its agents.
pub struct ExecutorServer {
    common: Common,
    api: Arc<dyn ExecutorApi>,
    agents: Arc<dyn InvokeApi>,
}

common!(ExecutorServer);

impl ExecutorServer {
    /// Serves `api` and `agents`.
    #[must_use]
    pub fn new(api: Arc<dyn ExecutorApi>, agents: Arc<dyn InvokeApi>) -> Self {
        Self { common: Common::new(&["leasehold.v1.ExecutorService", "leasehold.v1.AgentService"]), api, agents }
    }

    fn routes(self) -> Routes {
        // Pushes have a bound of their own, so that invocations cannot keep them out (R45).
        let calls = Bound::new("calls at once", self.common.limits.calls);
        Routes::new(sized!(ExecutorServiceServer::new(Handlers { api: self.api, calls })))
            .add_service(agent::service(self.agents, &self.common.limits))
    }
}

struct Handlers {
    api: Arc<dyn ExecutorApi>,
    calls: Arc<Bound>,
}

#[tonic::async_trait]
impl ExecutorService for Handlers {
    async fn assign_shards(
        &self,
        request: Request<wire::AssignShardsRequest>,
    ) -> Result<Response<wire::AssignShardsResponse>, Status> {
        let _slot = self.calls.take().map_err(|refusal| refused(&refusal))?;
        let push = decode::push(request.into_inner()).map_err(invalid)?;
        answered(self.api.assign(push).await, |answer| encode::push_answer(&answer))
    }

    async fn inspect(&self, _: Request<wire::InspectRequest>) -> Result<Response<wire::InspectResponse>, Status> {
        // Never refused, also not for load: somebody wants to know what is going on.
        answered(self.api.inspect().await, encode::inspection)
    }

    async fn list_agents(
        &self,
        request: Request<wire::ListAgentsRequest>,
    ) -> Result<Response<wire::ListAgentsResponse>, Status> {
        let _slot = self.calls.take().map_err(|refusal| refused(&refusal))?;
        let query = decode::agent_query(request.into_inner()).map_err(invalid)?;
        answered(self.api.list_agents(query).await, encode::agent_page)
    }
}
