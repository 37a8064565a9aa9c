//! Real clients against real servers over loopback.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test crate")]

mod support;

use futures::StreamExt;
use leasehold_model::agents::AgentQuery;
use leasehold_model::message::PushAnswer;
use leasehold_model::*;
use leasehold_rpc::api::{ExecutorApi, InvokeApi, ManagerApi};
use leasehold_rpc::bounds::MAX_PAYLOAD;
use leasehold_rpc::channel::{ChannelSettings, Dialer};
use leasehold_rpc::client::{AgentClient, ExecutorClient, ManagerClient};
use leasehold_rpc::server::{Limits, ManagerServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use support::*;

#[tokio::test]
async fn what_a_manager_is_asked_and_answers_crosses_the_network_whole() {
    let fake = Fake::open();
    let served = manager(&fake, Limits::default()).await;
    let client = ManagerClient::new(served.channel());
    assert_eq!(client.register(registration()).await, Ok(grant()));
    assert_eq!(fake.last(), Some(Asked::Register(registration())));
    assert_eq!(client.renew(renewal()).await, Ok(grant()));
    assert_eq!(fake.last(), Some(Asked::Renew(renewal())));
    assert_eq!(client.deregister(deregistration()).await, Ok(()));
    assert_eq!(fake.last(), Some(Asked::Deregister(deregistration())));
    assert_eq!(client.routing_table().await, Ok(table(42)));
    assert_eq!(client.status().await, Ok(status()));
    assert_eq!(client.explain(ShardId(0)).await, Ok(explanation()));
    assert_eq!(fake.last(), Some(Asked::Explain(ShardId(0))));
    let name = owner().name;
    assert_eq!(client.set_draining(name.clone(), true).await, Ok(()));
    assert_eq!(fake.last(), Some(Asked::SetDraining(name, true)));
}

#[tokio::test]
async fn what_an_executor_is_asked_and_answers_crosses_the_network_whole() {
    let fake = Fake::open();
    let served = executor(&fake, Limits::default()).await;
    let client = ExecutorClient::new(served.channel());
    assert_eq!(client.assign(push()).await, Ok(PushAnswer { applied: true, claim: Some(claim()) }));
    assert_eq!(fake.last(), Some(Asked::Assign(push())));
    assert_eq!(client.inspect().await, Ok(inspection()));
    assert_eq!(client.invoke(invocation(), PATIENCE).await, Ok(answer()));
    let Some(Asked::Invoke(asked, within)) = fake.last() else { panic!() };
    assert_eq!((asked, within), (invocation(), PATIENCE));
    let agent = invocation().agent;
    assert_eq!(client.delete(agent.clone(), PATIENCE).await, Ok(deleted()));
    assert_eq!(fake.last(), Some(Asked::Delete(agent.clone(), PATIENCE)));
    let query = AgentQuery { shard: ShardId(3), after: Some(agent), limit: 7 };
    assert_eq!(client.list_agents(query.clone()).await, Ok(page()));
    assert_eq!(fake.last(), Some(Asked::ListAgents(query)));
}

#[tokio::test]
async fn a_gateway_is_called_like_an_executor_and_waits_no_longer_than_it_may() {
    let fake = Fake::open();
    let limits = Limits { invocation: Duration::from_secs(3), ..Limits::default() };
    let served = gateway(&fake, limits).await;
    let client = AgentClient::new(served.channel());
    assert_eq!(client.invoke(invocation(), Duration::from_millis(1500)).await, Ok(answer()));
    assert_eq!(fake.last(), Some(Asked::Invoke(invocation(), Duration::from_millis(1500))));
    assert_eq!(client.invoke(invocation(), Duration::from_secs(3600)).await, Ok(answer()));
    assert_eq!(fake.last(), Some(Asked::Invoke(invocation(), Duration::from_secs(3))));
}

#[tokio::test]
async fn a_watch_sees_the_table_now_and_after_each_change_and_ends_when_the_manager_closes() {
    let fake = Fake::open();
    let mut served = manager(&fake, Limits::default()).await;
    let client = ManagerClient::new(served.channel());
    let mut tables = client.watch_routing_table().await.unwrap();
    assert_eq!(soon(tables.next()).await, Some(Ok(table(42))));
    fake.tables.send_replace(table(43));
    assert_eq!(soon(tables.next()).await, Some(Ok(table(43))));
    served.stop();
    assert_eq!(soon(tables.next()).await, None);
    soon(served.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_watch_carries_refusals_too() {
    let fake = Fake::failing(Refusal::NotLeader { leader: Some(owner().address) });
    let served = manager(&fake, Limits::default()).await;
    let mut tables = ManagerClient::new(served.channel()).watch_routing_table().await.unwrap();
    let expected = CallError::Refused(Refusal::NotLeader { leader: Some(owner().address) });
    assert_eq!(soon(tables.next()).await, Some(Err(expected)));
}

/// Case 40
#[tokio::test]
async fn refused_unreachable_and_unknown_are_told_apart_by_the_peers_own_words() {
    for error in [
        CallError::Refused(Refusal::WrongOwner { shard: ShardId(3), owner: Some(owner()), revision: Revision(42) }),
        CallError::Refused(Refusal::EpochFenced { held: ShardEpoch::owned(6).unwrap(), recorded: ShardEpoch::MAX }),
        CallError::Unreachable("the owner does not listen".to_owned()),
        CallError::Unknown("the owner does not answer".to_owned()),
    ] {
        let served = gateway(&Fake::failing(error.clone()), Limits::default()).await;
        assert_eq!(AgentClient::new(served.channel()).invoke(invocation(), PATIENCE).await, Err(error));
    }
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_unreachable_and_says_why() {
    let (listener, address) = listener().await;
    drop(listener);
    let error = ManagerClient::new(Dialer::tcp().dial(&address)).renew(renewal()).await.unwrap_err();
    let CallError::Unreachable(why) = &error else { panic!("{error:?}") };
    assert!(why.to_lowercase().contains("refused"), "{why}");
}

/// Case 1
#[tokio::test]
async fn an_answer_that_does_not_come_in_time_leaves_the_outcome_unknown() {
    let fake = Fake::shut();
    let served = manager(&fake, Limits::default()).await;
    let client = ManagerClient::new(served.channel()).deadline(Duration::from_millis(300));
    let error = client.register(registration()).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    assert_eq!(fake.last(), Some(Asked::Register(registration())), "it did arrive");
    let served = executor(&fake, Limits::default()).await;
    let client = AgentClient::new(served.channel());
    let error = client.invoke(invocation(), Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
}

/// Case 9
#[tokio::test]
async fn a_peer_that_accepts_and_never_says_a_word_leaves_the_outcome_unknown() {
    let (_listener, address) = listener().await;
    let client = ManagerClient::new(Dialer::tcp().deadline(Duration::from_millis(300)).dial(&address));
    let error = client.renew(renewal()).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
}

#[tokio::test]
async fn a_connection_that_is_never_made_is_unreachable() {
    let never = |_| std::future::pending::<std::io::Result<tokio::net::TcpStream>>();
    let address = owner().address;
    let patient = ChannelSettings { connect_timeout: PATIENCE, ..ChannelSettings::default() };
    let client = ManagerClient::new(Dialer::with_connector(never).settings(patient).dial(&address));
    let error = client.deadline(Duration::from_millis(200)).renew(renewal()).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "the deadline came first: {error:?}");
    let hasty = ChannelSettings { connect_timeout: Duration::from_millis(100), ..ChannelSettings::default() };
    let client = ManagerClient::new(Dialer::with_connector(never).settings(hasty).dial(&address));
    let error = soon(client.deadline(PATIENCE).renew(renewal())).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "the connect timeout came first: {error:?}");
}

/// Case 40
#[tokio::test]
async fn a_server_killed_during_a_call_leaves_its_outcome_unknown_and_the_next_call_unreachable() {
    let fake = Fake::shut();
    let served = manager(&fake, Limits::default()).await;
    let client = ManagerClient::new(served.channel()).deadline(PATIENCE);
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.register(registration()).await }
    });
    fake.arrival().await;
    served.kill().await;
    let error = soon(running).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    let error = soon(client.register(registration())).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn a_channel_dials_anew_when_its_server_is_back_at_the_same_address() {
    let fake = Fake::open();
    let served = manager(&fake, Limits::default()).await;
    let address = served.address.clone();
    let client = ManagerClient::new(served.channel());
    assert!(client.renew(renewal()).await.is_ok());
    served.kill().await;
    let error = client.renew(renewal()).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
    let back = tokio::net::TcpListener::bind(address.as_str()).await.unwrap();
    let (_stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let api: Arc<dyn ManagerApi> = fake;
    tokio::spawn(ManagerServer::new(api).serve(back, async {
        let _ = stopped.await;
    }));
    soon(async { while client.renew(renewal()).await.is_err() {} }).await;
}

/// A stream whose peer can be made to fall silent: packets dropped, socket open.
struct Silenced(tokio::net::TcpStream, Arc<AtomicBool>);

impl tokio::io::AsyncRead for Silenced {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if self.1.load(Ordering::SeqCst) {
            return std::task::Poll::Pending;
        }
        std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for Silenced {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        if self.1.load(Ordering::SeqCst) {
            return std::task::Poll::Ready(Ok(buf.len()));
        }
        std::pin::Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Case 20's fault, between executor and manager: dropped packets with sockets left open.
#[tokio::test]
async fn a_connection_gone_silent_is_noticed_by_its_pings_and_the_next_call_dials_anew() {
    let fake = Fake::open();
    let served = manager(&fake, Limits::default()).await;
    let (silent, dials) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let connector = {
        let (silent, dials) = (Arc::clone(&silent), Arc::clone(&dials));
        move |address: Address| {
            let (silent, dials) = (Arc::clone(&silent), Arc::clone(&dials));
            async move {
                // Only the first connection falls silent.
                let silent = if dials.fetch_add(1, Ordering::SeqCst) == 0 { silent } else { Arc::default() };
                Ok(Silenced(tokio::net::TcpStream::connect(address.as_str()).await?, silent))
            }
        }
    };
    let quick = Duration::from_millis(100);
    let settings = ChannelSettings {
        keepalive_interval: quick,
        keepalive_timeout: quick,
        deadline: 2 * PATIENCE,
        ..ChannelSettings::default()
    };
    let client = ManagerClient::new(Dialer::with_connector(connector).settings(settings).dial(&served.address));
    assert!(client.renew(renewal()).await.is_ok());
    silent.store(true, Ordering::SeqCst);
    let error = soon(client.renew(renewal())).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    assert_eq!(soon(client.renew(renewal())).await, Ok(grant()));
    assert_eq!(dials.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_payload_above_its_bound_is_refused_by_the_peer_and_a_message_above_its_bound_is_not_even_sent() {
    let fake = Fake::open();
    let served = executor(&fake, Limits::default()).await;
    let client = AgentClient::new(served.channel());
    for (size, field) in [(MAX_PAYLOAD + 1, "payload"), (5 << 20, "message")] {
        let large = message::Invocation { payload: vec![b' '; size], ..invocation() };
        let error = client.invoke(large, PATIENCE).await.unwrap_err();
        let CallError::Refused(Refusal::InvalidField(invalid)) = error else { panic!("{error:?}") };
        assert_eq!(invalid.field, field);
    }
    assert_eq!(fake.last(), None);
    // Nobody listens there: had it tried to send, it would be unreachable.
    let nowhere = AgentClient::new(
        Dialer::with_connector(|_| std::future::pending::<std::io::Result<tokio::io::DuplexStream>>())
            .dial(&served.address),
    );
    let large = message::Invocation { payload: vec![b' '; 5 << 20], ..invocation() };
    assert!(matches!(nowhere.invoke(large, PATIENCE).await, Err(CallError::Refused(_))));
    let largest = message::Invocation { payload: vec![b' '; MAX_PAYLOAD], ..invocation() };
    assert_eq!(client.invoke(largest, PATIENCE).await, Ok(answer()));
}

/// The status that a server gives to raw bytes under `path`.
async fn raw(served: &Served, path: &'static str, message: Raw) -> tonic::Status {
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address)).unwrap().connect_lazy();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Raw, Raw>::default();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
    soon(grpc.unary(tonic::Request::new(message), path, codec)).await.unwrap_err()
}

/// A message with the field numbers of `RenewShardLeaseRequest` and another type.
#[derive(Clone, PartialEq, prost::Message)]
struct Raw {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(bytes = "vec", tag = "1000")]
    filler: Vec<u8>,
}

#[tokio::test]
async fn bytes_that_are_no_message_and_messages_that_are_too_large_are_refused_with_our_details() {
    let served = manager(&Fake::open(), Limits::default()).await;
    for message in [Raw { number: 7, filler: vec![] }, Raw { number: 0, filler: vec![1; 5 << 20] }] {
        let status = raw(&served, "/leasehold.v1.ManagerService/RenewShardLease", message).await;
        let error = leasehold_rpc::status::call_error(&status, true);
        let CallError::Refused(Refusal::InvalidField(invalid)) = error else { panic!("{error:?}") };
        assert_eq!(invalid.field, "message");
    }
}

/// R45
#[tokio::test]
async fn calls_beyond_their_bound_are_refused_and_renewals_are_not_among_them() {
    let fake = Fake::shut();
    let served = manager(&fake, Limits { calls: 2, ..Limits::default() }).await;
    let client = ManagerClient::new(served.channel());
    let two: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.register(registration()).await })
        })
        .collect();
    fake.arrival().await;
    fake.arrival().await;
    let error = client.status().await.unwrap_err();
    let expected = Refusal::Overloaded { resource: "calls at once".to_owned(), used: 2, limit: 2 };
    assert_eq!(error, CallError::Refused(expected));
    assert_eq!(client.renew(renewal()).await, Ok(grant()));
    fake.gate.add_permits(3);
    for call in two {
        assert_eq!(soon(call).await.unwrap(), Ok(grant()));
    }
    assert_eq!(client.status().await, Ok(status()), "the places were given back");
}

/// R45
#[tokio::test]
async fn renewals_and_watches_have_bounds_of_their_own() {
    let fake = Fake::open();
    let served = manager(&fake, Limits { renewals: 0, watches: 1, ..Limits::default() }).await;
    let client = ManagerClient::new(served.channel());
    let CallError::Refused(refusal) = client.renew(renewal()).await.unwrap_err() else { panic!() };
    assert_eq!(refusal.reason(), "OVERLOADED");
    let first = client.watch_routing_table().await.unwrap();
    assert!(client.watch_routing_table().await.is_err());
    drop(first);
    soon(async { while client.watch_routing_table().await.is_err() {} }).await;
    assert_eq!(client.status().await, Ok(status()));
}

#[tokio::test]
async fn a_connection_beyond_the_bound_is_closed_and_its_place_is_given_back() {
    let served = manager(&Fake::open(), Limits { connections: 1, ..Limits::default() }).await;
    let first = ManagerClient::new(served.channel());
    assert!(first.renew(renewal()).await.is_ok());
    let second = ManagerClient::new(served.channel());
    assert!(soon(second.renew(renewal())).await.is_err());
    drop(first);
    soon(async { while second.renew(renewal()).await.is_err() {} }).await;
}

/// Resolves when nobody accepts at `served` any more: its closing has begun.
async fn closed(served: &Served) {
    soon(async { while tokio::net::TcpStream::connect(served.address.as_str()).await.is_ok() {} }).await;
}

#[tokio::test]
async fn closing_lets_a_running_call_finish() {
    let fake = Fake::shut();
    let mut served = manager(&fake, Limits { grace: PATIENCE, ..Limits::default() }).await;
    let client = ManagerClient::new(served.channel());
    let mut running = tokio::spawn(async move { client.register(registration()).await });
    fake.arrival().await;
    served.stop();
    closed(&served).await;
    // There is no event to wait for: a grace that is cut short shows within this, by the call's failing.
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut running).await.is_err(), "it was cut");
    fake.gate.add_permits(1);
    assert_eq!(soon(running).await.unwrap(), Ok(grant()));
    soon(served.task).await.unwrap().unwrap();
}

/// The transport alone would wait for ever.
#[tokio::test]
async fn closing_does_not_wait_for_a_connection_that_never_says_a_word() {
    let fake = Fake::open();
    let mut served = manager(&fake, Limits { grace: Duration::from_millis(100), ..Limits::default() }).await;
    let _silent = tokio::net::TcpStream::connect(served.address.as_str()).await.unwrap();
    // A later connection is served, so the silent one has been accepted.
    assert!(ManagerClient::new(served.channel()).renew(renewal()).await.is_ok());
    served.stop();
    soon(served.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_outlasts_the_grace_is_cut_and_its_outcome_is_unknown() {
    let fake = Fake::shut();
    let mut served = manager(&fake, Limits { grace: Duration::from_millis(100), ..Limits::default() }).await;
    let client = ManagerClient::new(served.channel()).deadline(2 * PATIENCE);
    let running = tokio::spawn(async move { client.register(registration()).await });
    fake.arrival().await;
    served.stop();
    soon(served.task).await.unwrap().unwrap();
    let error = soon(running).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
}

#[tokio::test]
async fn health_says_serving_while_the_server_is_open_and_what_it_is_told_otherwise() {
    use tonic_health::pb::health_check_response::ServingStatus;
    let server = ManagerServer::new(Fake::open());
    let health = server.health();
    let served = served(|listener, shutdown| server.serve(listener, shutdown)).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address)).unwrap().connect_lazy();
    let client = tonic_health::pb::health_client::HealthClient::new(channel);
    let check = async |service: &str| {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        client.clone().check(request).await.map(|answer| answer.into_inner().status())
    };
    for service in ["", "leasehold.v1.ManagerService"] {
        assert_eq!(check(service).await.unwrap(), ServingStatus::Serving);
    }
    health.set_serving(false).await;
    for service in ["", "leasehold.v1.ManagerService"] {
        assert_eq!(check(service).await.unwrap(), ServingStatus::NotServing);
    }
    assert_eq!(check("leasehold.v1.ExecutorService").await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let served = executor(&Fake::open(), Limits::default()).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address)).unwrap().connect_lazy();
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    let answers = ServerReflectionClient::new(channel).server_reflection_info(futures::stream::iter([request])).await;
    let answer = soon(answers.unwrap().into_inner().next()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!() };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["leasehold.v1.ExecutorService", "leasehold.v1.AgentService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|listed| listed == name), "{names:?}");
    }
}

/// A peer's stream of connections instead of a listener, and a dialer into it, as a simulated network has them.
#[tokio::test]
async fn a_server_and_a_client_meet_over_any_kind_of_stream() {
    let (connect, accept) = tokio::sync::mpsc::unbounded_channel::<std::io::Result<tokio::io::DuplexStream>>();
    let accepted = tokio_stream::wrappers::UnboundedReceiverStream::new(accept);
    let api: Arc<dyn ManagerApi> = Fake::open();
    let server =
        leasehold_rpc::server::serve_manager_with_incoming(accepted, api, Limits::default(), std::future::pending());
    tokio::spawn(server);
    let dialer = Dialer::with_connector(move |address: Address| {
        assert_eq!(address.as_str(), "manager-1:7001");
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        connect.send(Ok(theirs)).unwrap();
        async { Ok(ours) }
    });
    let client = ManagerClient::new(dialer.dial(&Address::new("manager-1:7001").unwrap()));
    assert_eq!(client.renew(renewal()).await, Ok(grant()));
}

/// Its listening ends without its being told: a server that goes on without one would look alive and be out of reach.
#[tokio::test]
async fn a_server_whose_listener_is_dead_ends_and_says_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().into_std().unwrap();
    let same = std::net::TcpStream::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap()));
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let api: Arc<dyn ManagerApi> = Fake::open();
    let server = leasehold_rpc::server::serve_manager(listener, api, Limits::default(), std::future::pending());
    let kill = async { same.shutdown(std::net::Shutdown::Both).unwrap() };
    let served = async { tokio::time::timeout(Duration::from_secs(30), server).await.expect("it ends") };
    let (served, ()) = tokio::join!(served, kill);
    assert!(matches!(served, Err(leasehold_rpc::server::Error::ListenerDead)), "{served:?}");
}
