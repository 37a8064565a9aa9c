//! An address that leads to another port than the one that was meant: said as that, instead of whatever became of the call there.

use super::{Exit, Failure};
use futures::future::join_all;
use leasehold_model::Address;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::probe::{Found, Service, find};
use std::time::Duration;

/// How long one address is looked at.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// What should be at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Manager,
    Gateway,
}

impl Wanted {
    const fn service(self) -> Service {
        match self {
            Self::Manager => Service::Manager,
            Self::Gateway => Service::Agents,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Gateway => "gateway",
        }
    }

    const fn check(self) -> &'static str {
        match self {
            Self::Manager => {
                "give --manager (or LEASEHOLD_MANAGER) the listen.grpc of a manager, 127.0.0.1:7470 by default"
            }
            Self::Gateway => {
                "give --gateway (or LEASEHOLD_GATEWAY) the listen.grpc of a gateway, 127.0.0.1:7490 by default"
            }
        }
    }
}

/// Says what is at `address` if it is something else than `wanted`.
pub(super) async fn look(address: &Address, wanted: Wanted) -> Option<String> {
    let there = match find(Dialer::tcp().deadline(LOOK_WITHIN).dial(address), wanted.service()).await? {
        Found::Wanted => return None,
        Found::AnotherService => {
            "it serves gRPC, but something else: another process of the cluster, or another program"
        }
        Found::NoSuchServer => "what answers there is an HTTP port, or another program",
    };
    Some(format!("{address} is not a {}'s gRPC port: {there}", wanted.name()))
}

/// Where nothing but wrong ports was asked, that is the failure, and nobody answers; where some were wrong, it is told beside `failure`.
pub(super) async fn explained(failure: Failure, addresses: &[Address], wanted: Wanted) -> Failure {
    let found = join_all(addresses.iter().map(|address| look(address, wanted))).await;
    let wrong: Vec<String> = found.into_iter().flatten().collect();
    if wrong.is_empty() {
        failure
    } else if wrong.len() == addresses.len() {
        refused(&wrong.join("; "), wanted)
    } else {
        Failure::new(failure.exit, format!("{failure}; {}", wrong.join("; ")))
    }
}

/// The failure of a call that was made at a wrong port, as [`look`] described it.
pub(super) fn refused(there: &str, wanted: Wanted) -> Failure {
    Failure::new(Exit::NobodyAnswers, format!("{there}; {}", wanted.check()))
}
