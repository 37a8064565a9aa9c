//! What answers at an address, for whoever was answered there in a way that makes no sense: most likely the port of something else.

use crate::channel::Channel;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// What should be served there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// A manager.
    Manager,
    /// Agents: a gateway, or an executor.
    Agents,
}

impl Service {
    const fn name(self) -> &'static str {
        match self {
            Self::Manager => "leasehold.v1.ManagerService",
            Self::Agents => "leasehold.v1.AgentService",
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// What should be there, whether or not it serves at the moment.
    Wanted,
    /// A gRPC server that has no such service.
    AnotherService,
    /// Something that answers, and has no health service of gRPC: an HTTP port, another program.
    NoSuchServer,
}

/// Looks, by a call of `grpc.health.v1`, what is at the other end of `channel`, for at most the channel's deadline. `None`: nothing
/// that answered.
pub async fn find(channel: Channel, service: Service) -> Option<Found> {
    let mut client = HealthClient::new(channel.inner);
    let request = HealthCheckRequest { service: service.name().to_owned() };
    match timeout(channel.deadline, client.check(request)).await.ok()? {
        Ok(_) => Some(Found::Wanted),
        // Only gRPC itself says this; an HTTP 404 is UNIMPLEMENTED, and a body that is no message is INTERNAL.
        Err(status) if status.code() == Code::NotFound => Some(Found::AnotherService),
        Err(status) if [Code::Unimplemented, Code::Internal].contains(&status.code()) => Some(Found::NoSuchServer),
        Err(_) => None,
    }
}
