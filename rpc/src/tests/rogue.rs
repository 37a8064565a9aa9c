//! Peers that answer nonsense.

use super::samples;
use crate::api::{InvokeApi, ManagerApi};
use crate::channel::Dialer;
use crate::client::{AgentClient, ManagerClient};
use crate::wire::agent_service_server::{AgentService, AgentServiceServer};
use crate::{encode, wire};
use leasehold_model::{Address, CallError};
use std::time::Duration;
use tonic::{Request, Response, Status};

struct Rogue(fn() -> Result<wire::InvokeResponse, Status>);

#[tonic::async_trait]
impl AgentService for Rogue {
    async fn invoke(&self, _: Request<wire::InvokeRequest>) -> Result<Response<wire::InvokeResponse>, Status> {
        (self.0)().map(Response::new)
    }
}

async fn rogue(answer: fn() -> Result<wire::InvokeResponse, Status>) -> Address {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(listener.local_addr().unwrap().to_string()).unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(AgentServiceServer::new(Rogue(answer)));
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn called(answer: fn() -> Result<wire::InvokeResponse, Status>) -> CallError {
    let client = AgentClient::new(Dialer::tcp().dial(&rogue(answer).await));
    client.invoke(samples::invocation(), Duration::from_secs(20)).await.unwrap_err()
}

/// R8: and whether the call ran is not known.
#[tokio::test]
async fn an_answer_that_cannot_be_decoded_leaves_the_outcome_unknown_and_names_the_field() {
    let error = called(|| Ok(wire::InvokeResponse { epoch: 0, ..encode::answer(samples::answer()) })).await;
    let CallError::Unknown(why) = error else { panic!("{error:?}") };
    assert!(why.contains("epoch"), "{why}");
}

#[tokio::test]
async fn an_answer_larger_than_a_message_leaves_the_outcome_unknown() {
    let error =
        called(|| Ok(wire::InvokeResponse { payload: vec![b' '; 5 << 20], ..encode::answer(samples::answer()) })).await;
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
}

#[tokio::test]
async fn a_status_without_our_details_leaves_the_outcome_unknown_whatever_its_code() {
    for error in [
        called(|| Err(Status::unavailable("a proxy is tired"))).await,
        called(|| Err(Status::not_found("a proxy knows nothing"))).await,
        called(|| Err(Status::resource_exhausted("a proxy is full"))).await,
        called(|| Err(Status::invalid_argument("a proxy is picky"))).await,
        called(|| Err(Status::with_details(tonic::Code::NotFound, "garbage", b"\xff\xff".to_vec().into()))).await,
    ] {
        let CallError::Unknown(why) = &error else { panic!("{error:?}") };
        assert!(why.contains("a proxy") || why.contains("garbage"), "{why}");
    }
}

#[tokio::test]
async fn a_call_of_a_service_that_the_peer_does_not_have_is_refused() {
    let client = ManagerClient::new(Dialer::tcp().dial(&rogue(|| Err(Status::internal("unused"))).await));
    let error = client.status().await.unwrap_err();
    let CallError::Refused(refusal) = &error else { panic!("{error:?}") };
    assert_eq!(refusal.reason(), "UNKNOWN_METHOD");
}
