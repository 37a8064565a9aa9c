//! `grpc.health.v1`.

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// Says whether a server is SERVING. It is while it is open, unless told otherwise. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    reporter: HealthReporter,
    services: &'static [&'static str],
}

impl Health {
    pub(super) fn new(services: &'static [&'static str]) -> Self {
        Self { reporter: HealthReporter::new(), services }
    }

    /// Answers SERVING or NOT_SERVING from now on, for the whole server and for each of its services.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in self.services.iter().chain([&""]) {
            self.reporter.set_service_status(service, status).await;
        }
    }

    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}
