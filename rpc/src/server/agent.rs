//! `AgentService`.

use super::Limits;
use super::admission::Bound;
use super::run::{Common, answered, common, sized};
use crate::api::InvokeApi;
use crate::status::{invalid, refused};
use crate::wire::agent_service_server::{AgentService, AgentServiceServer};
use crate::{decode, encode, wire};
use leasehold_model::InvalidValue;
use std::sync::Arc;
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// A gateway behind gRPC.
pub struct AgentServer {
    common: Common,
    api: Arc<dyn InvokeApi>,
}

common!(AgentServer);

impl AgentServer {
    /// Serves `api`.
    #[must_use]
    pub fn new(api: Arc<dyn InvokeApi>) -> Self {
        Self { common: Common::new(&["leasehold.v1.AgentService"]), api }
    }

    fn routes(self) -> Routes {
        Routes::new(service(self.api, &self.common.limits))
    }
}

/// The service, for an executor or a gateway.
pub(super) fn service(api: Arc<dyn InvokeApi>, limits: &Limits) -> AgentServiceServer<impl AgentService + use<>> {
    let calls = Bound::new("invocations at once", limits.calls);
    sized!(AgentServiceServer::new(Handlers { api, calls, at_most: limits.invocation }))
}

struct Handlers {
    api: Arc<dyn InvokeApi>,
    calls: Arc<Bound>,
    at_most: Duration,
}

impl Handlers {
    /// How long the caller of `request` waits.
    fn patience<T>(&self, request: &Request<T>) -> Result<Duration, InvalidValue> {
        Ok(caller_waits(request.metadata())?.map_or(self.at_most, |wait| wait.min(self.at_most)))
    }
}

#[tonic::async_trait]
impl AgentService for Handlers {
    async fn invoke(&self, request: Request<wire::InvokeRequest>) -> Result<Response<wire::InvokeResponse>, Status> {
        let _slot = self.calls.take().map_err(|refusal| refused(&refusal))?;
        let within = self.patience(&request).map_err(invalid)?;
        let invocation = decode::invocation(request.into_inner()).map_err(invalid)?;
        answered(self.api.invoke(invocation, within).await, encode::answer)
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        let _slot = self.calls.take().map_err(|refusal| refused(&refusal))?;
        let within = self.patience(&request).map_err(invalid)?;
        let agent = decode::deletion(request.into_inner()).map_err(invalid)?;
        answered(self.api.delete(agent, within).await, encode::deletion_answer)
    }
}

/// How long the caller waits: `grpc-timeout`, 1 to 8 digits and a unit.
fn caller_waits(metadata: &MetadataMap) -> Result<Option<Duration>, InvalidValue> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let parsed = || {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let count: u64 = digits.parse().ok().filter(|_| plain)?;
        Some(match unit {
            "H" => Duration::from_secs(count * 3600),
            "M" => Duration::from_secs(count * 60),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        })
    };
    match parsed() {
        Some(wait) => Ok(Some(wait)),
        None => Err(InvalidValue::new("grpc-timeout", text, "1 to 8 digits and one of H, M, S, m, u, n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(text: &str) -> Result<Option<Duration>, InvalidValue> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().unwrap());
        caller_waits(&metadata)
    }

    #[test]
    fn the_callers_wait_is_read_in_every_unit_and_refused_by_name_otherwise() {
        assert_eq!(caller_waits(&MetadataMap::new()), Ok(None));
        for (text, expected) in [
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(waits(text), Ok(Some(expected)), "{text}");
        }
        for text in ["", "S", "1", "-1S", "+1S", "123456789S", "1s", "1 S", "18446744073709551615m"] {
            assert_eq!(waits(text).unwrap_err().field, "grpc-timeout", "{text}");
        }
    }
}
