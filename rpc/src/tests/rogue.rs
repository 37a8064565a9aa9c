//! Peers that answer nonsense.

use super::samples;
use crate::api::{InvokeApi, ManagerApi};
use crate::channel::Dialer;
use crate::client::{AgentClient, ManagerClient};
use crate::wire::agent_service_server::{AgentService, AgentServiceServer};
use crate::{encode, wire};
use leasehold_model::{Address, CallError};
use std::time::Duration;
use tonic::codegen::http;
use tonic::{Request, Response, Status};

struct Rogue(fn() -> Result<wire::InvokeResponse, Status>);

#[tonic::async_trait]
impl AgentService for Rogue {
    async fn invoke(&self, _: Request<wire::InvokeRequest>) -> Result<Response<wire::InvokeResponse>, Status> {
        (self.0)().map(Response::new)
    }

    async fn delete(&self, _: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        Err(Status::unimplemented("it only invokes"))
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

/// A proxy's 404 looks the same: taken for a refusal, it ended an executor for good.
#[tokio::test]
async fn a_call_that_the_peer_does_not_know_is_no_refusal_and_says_who_the_peer_may_be() {
    let client = ManagerClient::new(Dialer::tcp().dial(&rogue(|| Err(Status::internal("unused"))).await));
    let error = client.status().await.unwrap_err();
    let CallError::Unknown(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("another service's port"), "{why}");
}

/// Answers every call with a status whose details are no base64, in the headers or in the trailers.
#[derive(Clone)]
struct Broken {
    in_trailers: bool,
}

impl tonic::server::NamedService for Broken {
    const NAME: &'static str = "leasehold.v1.AgentService";
}

fn broken() -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    headers.insert("grpc-status", http::HeaderValue::from_static("14"));
    headers.insert("grpc-message", http::HeaderValue::from_static("look%20here"));
    headers.insert("grpc-status-details-bin", http::HeaderValue::from_static("!!!"));
    headers
}

impl tower::Service<http::Request<tonic::body::Body>> for Broken {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<tonic::body::Body>) -> Self::Future {
        let body = if self.in_trailers { tonic::body::Body::new(Trailers(false)) } else { tonic::body::Body::empty() };
        let mut response = http::Response::new(body);
        if !self.in_trailers {
            *response.headers_mut() = broken();
        }
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        std::future::ready(Ok(response))
    }
}

/// Nothing but trailers.
struct Trailers(bool);

impl http_body::Body for Trailers {
    type Data = tonic::codegen::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Status>>> {
        let done = std::mem::replace(&mut self.0, true);
        std::task::Poll::Ready((!done).then(|| Ok(http_body::Frame::trailers(broken()))))
    }
}

/// R8
#[tokio::test]
async fn details_that_are_no_base64_do_no_harm_and_leave_the_outcome_unknown() {
    for in_trailers in [false, true] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::new(listener.local_addr().unwrap().to_string()).unwrap();
        let server = tonic::transport::Server::builder().add_service(Broken { in_trailers });
        tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
        let client = AgentClient::new(Dialer::tcp().dial(&address));
        let error = client.invoke(samples::invocation(), Duration::from_secs(20)).await.unwrap_err();
        assert_eq!(error, CallError::Unknown("look here".to_owned()));
    }
}
