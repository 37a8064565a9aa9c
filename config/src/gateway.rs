//! Configuration of `shard-executor route`, the gateway.

use crate::Configuration;
use crate::key::Key;
use crate::keys;
use crate::reader::Reader;
use crate::sections::{Limits, Listen, Log};
use crate::show::ShownValue;
use leasehold_model::Address;
use std::time::Duration;

/// Everything that `shard-executor route` can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// `[route]`.
    pub route: Route,
    /// `[listen]`.
    pub listen: Listen,
    /// `[limits]`.
    pub limits: Limits,
    /// `[log]`.
    pub log: Log,
}

/// `[route]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The managers to read the routing table from: 1 to 16.
    pub managers: Vec<Address>,
    /// The deadline of a call whose caller gives none.
    pub call_deadline: Duration,
}

impl Configuration for GatewayConfig {
    const BINARY: &'static str = "shard-executor route";

    fn keys() -> &'static [&'static Key] {
        keys::GATEWAY
    }

    fn read(reader: &mut Reader) -> Self {
        let route = Route {
            managers: reader.addresses(&keys::ROUTE_MANAGERS),
            call_deadline: reader.duration(&keys::ROUTE_DEADLINE),
        };
        let listen = Listen::read(reader, &keys::GATEWAY_GRPC, &keys::GATEWAY_HTTP);
        Self { route, listen, limits: Limits::read(reader), log: Log::read(reader) }
    }

    fn derived(&self) -> Vec<ShownValue> {
        Vec::new()
    }
}
