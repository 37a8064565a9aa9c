//! Every message that is decoded, as bytes to bytes: decode to the model, encode again. For tests, and for `fuzz/` (feature `fuzzing`).

use crate::{decode, encode, wire};
use leasehold_model::InvalidValue;
use prost::Message;

/// Decodes bytes as one message and encodes what came out. `None` when the bytes are no such message.
pub type Again = fn(&[u8]) -> Option<Result<Vec<u8>, InvalidValue>>;

macro_rules! again {
    ($message:ident, $wire:ident => $decoded:expr, $value:ident => $encoded:expr) => {
        (
            stringify!($message),
            (|bytes: &[u8]| {
                let $wire = wire::$message::decode(bytes).ok()?;
                Some($decoded.map(|$value| $encoded.encode_to_vec()))
            }) as Again,
        )
    };
}

/// Each message's name with its decoder.
#[must_use]
#[rustfmt::skip]
pub fn all() -> Vec<(&'static str, Again)> {
    vec![
        again!(RegisterRequest, w => decode::registration(w), v => encode::registration(v)),
        again!(RegisterResponse, w => decode::grant(w.grant), v => wire::RegisterResponse { grant: encode::grant(&v) }),
        again!(RenewShardLeaseRequest, w => decode::renewal(w), v => encode::renewal(&v)),
        again!(RenewShardLeaseResponse, w => decode::grant(w.grant), v => wire::RenewShardLeaseResponse { grant: encode::grant(&v) }),
        again!(DeregisterRequest, w => decode::deregistration(&w), v => encode::deregistration(&v)),
        again!(GetRoutingTableResponse, w => decode::routing_table(w.table), v => wire::GetRoutingTableResponse { table: encode::routing_table(&v) }),
        again!(WatchRoutingTableResponse, w => decode::routing_table(w.table), v => wire::WatchRoutingTableResponse { table: encode::routing_table(&v) }),
        again!(GetClusterStatusResponse, w => decode::status(w), v => encode::status(v)),
        again!(ExplainShardRequest, w => decode::shard(w), v => encode::shard(v)),
        again!(ExplainShardResponse, w => decode::explanation(w), v => encode::explanation(v)),
        again!(SetDrainingRequest, w => decode::draining(w), v => encode::draining(v.0, v.1)),
        again!(AssignShardsRequest, w => decode::push(w), v => encode::push(&v)),
        again!(AssignShardsResponse, w => decode::push_answer(&w), v => encode::push_answer(&v)),
        again!(InspectResponse, w => decode::inspection(w), v => encode::inspection(v)),
        again!(ListAgentsRequest, w => decode::agent_query(w), v => encode::agent_query(v)),
        again!(ListAgentsResponse, w => decode::agent_page(w), v => encode::agent_page(v)),
        again!(DeleteRequest, w => decode::deletion(w), v => encode::deletion(v)),
        again!(DeleteResponse, w => decode::deletion_answer(w), v => encode::deletion_answer(v)),
        again!(InvokeRequest, w => decode::invocation(w), v => encode::invocation(v)),
        again!(InvokeResponse, w => decode::answer(w), v => encode::answer(v)),
    ]
}

/// Decodes `bytes` as the message that the first one chooses.
///
/// # Panics
/// When what was decoded is not decoded to the same again, or is refused without naming a field: that is the fault to be found.
pub fn decode_any(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let decoders = all();
    let (name, again) = decoders[usize::from(*first) % decoders.len()];
    match again(rest) {
        None => {}
        Some(Err(invalid)) => assert!(!invalid.field.is_empty(), "{name}: {invalid} names no field"),
        Some(Ok(written)) => {
            let twice = again(&written).expect("what was encoded is such a message");
            assert_eq!(twice.as_ref(), Ok(&written), "{name} is not decoded to the same again");
        }
    }
}
