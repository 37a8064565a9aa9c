//! Several managers as one, over real connections.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test crate")]

#[allow(dead_code, reason = "shared with other test crates")]
mod support;

use leasehold_model::*;
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::channel::{ChannelSettings, Dialer};
use leasehold_rpc::managers::Managers;
use leasehold_rpc::server::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::*;
use tokio::net::TcpStream;

fn standby(leader: Option<Address>) -> Arc<Fake> {
    Fake::failing(Refusal::NotLeader { leader })
}

#[tokio::test]
async fn a_standby_over_the_network_is_followed_to_the_leader() {
    let leads = Fake::open();
    let leader = manager(&leads, Limits::default()).await;
    let other = manager(&standby(Some(leader.address.clone())), Limits::default()).await;
    let managers = Managers::dial(Dialer::tcp(), std::slice::from_ref(&other.address));
    assert_eq!(managers.register(registration()).await, Ok(grant()));
    assert_eq!(managers.renew(renewal()).await, Ok(grant()));
    assert_eq!(managers.status().await, Ok(status()));
    assert_eq!(leads.last(), Some(Asked::Renew(renewal())), "what is asked arrives whole");
    leader.kill().await;
    managers.renew(renewal()).await.unwrap_err();
    let refused = managers.renew(renewal()).await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(Refusal::NotLeader { .. })), "back at the list: {refused:?}");
}

/// One address, two processes behind it; a balancer that sends each new connection to the next of them.
#[tokio::test]
async fn a_balanced_connection_that_landed_on_a_standby_is_made_anew_until_it_finds_the_leader() {
    let idle = manager(&standby(None), Limits::default()).await;
    let leader = manager(&Fake::open(), Limits::default()).await;
    let behind = [idle.address.clone(), leader.address.clone()];
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let dialer = Dialer::with_connector(move |address: Address| {
        assert_eq!(address.as_str(), "managers.local:7470");
        let next = behind[counted.fetch_add(1, Ordering::SeqCst) % 2].clone();
        async move { TcpStream::connect(next.as_str()).await }
    });
    let managers = Managers::dial(dialer, &[Address::new("managers.local:7470").unwrap()]);
    managers.renew(renewal()).await.unwrap_err();
    for _ in 0..5 {
        assert_eq!(managers.renew(renewal()).await, Ok(grant()));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2, "one that found the standby, one that found the leader");
}

/// R13: a manager that accepts connections and never answers costs one attempt, not the lease.
#[tokio::test]
async fn a_manager_that_accepts_and_never_answers_costs_a_share_of_the_deadline() {
    let (black_hole, address) = listener().await;
    let leader = manager(&Fake::open(), Limits::default()).await;
    let settings = ChannelSettings { deadline: Duration::from_secs(2), ..ChannelSettings::default() };
    let addresses = [address, leader.address.clone()];
    let managers = Managers::dial(Dialer::tcp().settings(settings), &addresses).deadline(Duration::from_secs(2));
    let began = std::time::Instant::now();
    assert_eq!(managers.status().await, Ok(status()), "asked of all: half of the time for each of two");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(managers.renew(renewal()).await, Ok(grant()));
    drop(black_hole);
}
