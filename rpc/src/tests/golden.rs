//! Golden bytes: what this release writes, and that it still reads what an earlier one wrote.

use super::samples;
use crate::{decode, encode, fuzzing, wire};
use prost::Message;
use std::fmt::Write as _;
use std::path::PathBuf;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/golden.txt")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Every message with the bytes of its sample.
pub(super) fn written() -> Vec<(&'static str, Vec<u8>)> {
    let grant = || encode::grant(&samples::grant());
    let table = || encode::routing_table(&samples::table());
    let draining = samples::owner().name;
    vec![
        ("RegisterRequest", encode::registration(samples::registration()).encode_to_vec()),
        ("RegisterResponse", wire::RegisterResponse { grant: grant() }.encode_to_vec()),
        ("RenewShardLeaseRequest", encode::renewal(&samples::renewal()).encode_to_vec()),
        ("RenewShardLeaseResponse", wire::RenewShardLeaseResponse { grant: grant() }.encode_to_vec()),
        ("DeregisterRequest", encode::deregistration(&samples::deregistration()).encode_to_vec()),
        ("GetRoutingTableResponse", wire::GetRoutingTableResponse { table: table() }.encode_to_vec()),
        ("WatchRoutingTableResponse", wire::WatchRoutingTableResponse { table: table() }.encode_to_vec()),
        ("GetClusterStatusResponse", encode::status(samples::status()).encode_to_vec()),
        ("ExplainShardRequest", encode::shard(samples::explanation().shard).encode_to_vec()),
        ("ExplainShardResponse", encode::explanation(samples::explanation()).encode_to_vec()),
        ("SetDrainingRequest", encode::draining(draining, true).encode_to_vec()),
        ("AssignShardsRequest", encode::push(&samples::push()).encode_to_vec()),
        ("AssignShardsResponse", encode::push_answer(&samples::push_answer()).encode_to_vec()),
        ("InspectResponse", encode::inspection(samples::inspection()).encode_to_vec()),
        ("ListAgentsRequest", encode::agent_query(samples::agent_query()).encode_to_vec()),
        ("ListAgentsResponse", encode::agent_page(samples::agent_page()).encode_to_vec()),
        ("DeleteRequest", encode::deletion(samples::invocation().agent).encode_to_vec()),
        ("DeleteResponse", encode::deletion_answer(samples::deletion_answer()).encode_to_vec()),
        ("InvokeRequest", encode::invocation(samples::invocation()).encode_to_vec()),
        ("InvokeResponse", encode::answer(samples::answer()).encode_to_vec()),
    ]
}

/// Set `LEASEHOLD_BLESS=1` to rewrite the file after a deliberate change of the protocol.
#[test]
fn every_message_is_written_as_the_golden_bytes_say() {
    let now: String = written().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        std::fs::write(path(), &now).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path()).unwrap(), now, "the wire changed; LEASEHOLD_BLESS=1 accepts that");
}

#[test]
fn the_golden_bytes_are_read_as_the_values_they_were_written_from() {
    let golden = std::fs::read_to_string(path()).unwrap();
    let read = |name: &str| {
        let line = golden.lines().find(|line| line.split(' ').next() == Some(name)).unwrap();
        bytes(line.split_once(' ').unwrap().1)
    };
    macro_rules! reads {
        ($($message:ident, $wire:ident => $decoded:expr, $sample:expr;)*) => {$(
            let $wire = wire::$message::decode(&*read(stringify!($message))).unwrap();
            assert_eq!($decoded.unwrap(), $sample, stringify!($message));
        )*};
    }
    reads! {
        RegisterRequest, w => decode::registration(w), samples::registration();
        RegisterResponse, w => decode::grant(w.grant), samples::grant();
        RenewShardLeaseRequest, w => decode::renewal(w), samples::renewal();
        RenewShardLeaseResponse, w => decode::grant(w.grant), samples::grant();
        DeregisterRequest, w => decode::deregistration(&w), samples::deregistration();
        GetRoutingTableResponse, w => decode::routing_table(w.table), samples::table();
        WatchRoutingTableResponse, w => decode::routing_table(w.table), samples::table();
        GetClusterStatusResponse, w => decode::status(w), samples::status();
        ExplainShardRequest, w => decode::shard(w), samples::explanation().shard;
        ExplainShardResponse, w => decode::explanation(w), samples::explanation();
        SetDrainingRequest, w => decode::draining(w), (samples::owner().name, true);
        AssignShardsRequest, w => decode::push(w), samples::push();
        AssignShardsResponse, w => decode::push_answer(&w), samples::push_answer();
        InspectResponse, w => decode::inspection(w), samples::inspection();
        ListAgentsRequest, w => decode::agent_query(w), samples::agent_query();
        ListAgentsResponse, w => decode::agent_page(w), samples::agent_page();
        DeleteRequest, w => decode::deletion(w), samples::invocation().agent;
        DeleteResponse, w => decode::deletion_answer(w), samples::deletion_answer();
        InvokeRequest, w => decode::invocation(w), samples::invocation();
        InvokeResponse, w => decode::answer(w), samples::answer();
    }
}

/// A peer one release ahead sends fields that this one does not know.
#[test]
fn unknown_fields_are_skipped() {
    for ((name, bytes), (_, again)) in written().into_iter().zip(fuzzing::all()) {
        // Field 1000: a varint, then four bytes.
        let newer = [bytes.as_slice(), &[0xc0, 0x3e, 0x05, 0xc2, 0x3e, 0x01, 0xff]].concat();
        assert_eq!(again(&newer), Some(Ok(bytes)), "{name}");
    }
}

#[test]
fn every_message_that_is_decoded_has_golden_bytes() {
    let written: Vec<_> = written().into_iter().map(|(name, _)| name).collect();
    let decoded: Vec<_> = fuzzing::all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(written, decoded);
}
