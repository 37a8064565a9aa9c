//! A message that could not be read was not acted upon: that is said with our details.
//!
//! The transport answers OUT_OF_RANGE for a message that is too large and INTERNAL for bytes that are no such message,
//! before any handler runs. Our handlers answer neither, and never without details; so such an answer becomes
//! `INVALID_FIELD`. (A failure while an *answer* is written comes in the trailers, where this does not look.)

use crate::bounds::MAX_MESSAGE;
use crate::status;
use futures::TryFutureExt;
use futures::future::MapOk;
use leasehold_model::InvalidValue;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::Service;

/// Names the fault of requests that could not be read.
#[derive(Debug, Clone)]
pub(super) struct Undecodable<S>(pub(super) S);

impl<S> Service<Request<Body>> for Undecodable<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(Response<Body>) -> Response<Body>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.call(request).map_ok(named)
    }
}

fn named(response: Response<Body>) -> Response<Body> {
    if !response.headers().contains_key(Status::GRPC_STATUS) {
        return response;
    }
    match Status::from_header_map(response.headers()) {
        Some(found) if found.details().is_empty() && matches!(found.code(), Code::OutOfRange | Code::Internal) => {
            let accepted = format!("a readable message of at most {MAX_MESSAGE} bytes");
            status::invalid(InvalidValue::new("message", found.message(), accepted)).into_http()
        }
        _ => response,
    }
}
