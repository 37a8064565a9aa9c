//! Registrations and routing tables: 32 clients, 200 executors, 1,024 shards, against the bare service.

use crate::cluster::{Manager, folder, populate, registration};
use crate::figure::{Measured, Result};
use crate::load::{Serving, clients, listener, rate, rate_of};
use crate::rounds::in_turns;
use leasehold_model::message::Registration;
use leasehold_model::{Address, ManagerId, leader};
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::baseline::BareServer;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: usize = 32;
const EXECUTORS: usize = 200;
const SHARDS: u32 = 1024;
/// As configured by default, so that a cold cluster assigns its shards once rather than with each registration.
const SETTLE: Duration = Duration::from_secs(3);

/// Registrations per second while 32 clients register 200 executors with the server at `address`.
async fn register_all(address: &Address) -> Result<f64> {
    let clients = Arc::new(clients(CLIENTS, address).await?);
    let registrations: Vec<Registration> = (0..EXECUTORS).map(registration).collect::<Result<_>>()?;
    let registrations = Arc::new(registrations);
    rate_of(CLIENTS, EXECUTORS, move |client, number| {
        let (clients, registrations) = (Arc::clone(&clients), Arc::clone(&registrations));
        async move { Ok(clients[client].register(registrations[number].clone()).await?) }
    })
    .await
}

/// `register_per_s`: a whole cluster starts, on an empty store each time; each registration is on the disk before it is answered.
pub async fn registrations() -> Result<Measured> {
    let folder = folder()?;
    let bare = {
        let path = folder.path().join("bare.db");
        let manager = Manager::start(&path, SHARDS, Duration::from_millis(100)).await?;
        let members = populate(&manager, EXECUTORS).await?;
        let bare = BareServer::new(&members[0].grant, &manager.handle.published().table());
        manager.stop().await?;
        bare
    };
    let (listener, address) = listener().await?;
    let server = Serving::start(|stop| bare.serve(listener, stop));
    let (mut number, mut writes) = (0, 0);
    let subject = async || {
        number += 1;
        let manager = Manager::start(&folder.path().join(format!("{number}.db")), SHARDS, SETTLE).await?;
        let before = manager.counters.read();
        let rate = register_all(&manager.address).await?;
        writes = manager.counters.read().since(before).commits;
        let registered = manager.handle.status().await?.executors.len();
        assert_eq!(registered, EXECUTORS, "all of them are in the state");
        manager.stop().await?;
        Ok(rate)
    };
    let measured = in_turns(21, subject, async || register_all(&address).await).await?;
    eprintln!("  {EXECUTORS} registrations in {writes} durable writes");
    server.stop().await?;
    Ok(measured)
}

/// `routing_table_per_s`.
pub async fn routing_tables() -> Result<Measured> {
    let folder = folder()?;
    let manager = Manager::start(&folder.path().join("manager.db"), SHARDS, Duration::from_millis(100)).await?;
    let members = populate(&manager, EXECUTORS).await?;
    let (listener, address) = listener().await?;
    let table = leader::routing_table(&manager.handle.published().state, ManagerId::from_u128(1));
    let bare = BareServer::new(&members[0].grant, &table);
    let server = Serving::start(|stop| bare.serve(listener, stop));
    let (ours, theirs) = (tables(&manager.address).await?, tables(&address).await?);
    let measured = in_turns(9, async || ours().await, async || theirs().await).await?;
    drop((ours, theirs));
    server.stop().await?;
    manager.stop().await?;
    Ok(measured)
}

/// What measures the tables per second of the server at `address`.
async fn tables(address: &Address) -> Result<impl AsyncFn() -> Result<f64>> {
    let clients = Arc::new(clients(CLIENTS, address).await?);
    Ok(async move || {
        let clients = Arc::clone(&clients);
        rate(CLIENTS, Duration::from_millis(500), move |client| {
            let clients = Arc::clone(&clients);
            async move { Ok(clients[client].routing_table().await?) }
        })
        .await
    })
}
