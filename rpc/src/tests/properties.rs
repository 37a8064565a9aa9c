//! Round trips, and that no bytes make a decoder panic.

use super::golden;
use super::make::Any;
use crate::{decode, encode, fuzzing, wire};
use leasehold_model::agents::{AgentPage, AgentQuery, DeletionAnswer};
use leasehold_model::message::*;
use leasehold_model::{AgentId, ExecutorName, Grant, ShardId};
use prost::Message;
use quickcheck::quickcheck;

macro_rules! round_trips {
    ($($name:ident: $model:ty, $message:ident, $value:ident => $encoded:expr, $wire:ident => $decoded:expr;)*) => {
        quickcheck! {$(
            fn $name(any: Any<$model>) -> bool {
                let $value = any.0.clone();
                let $wire = wire::$message::decode(&*$encoded.encode_to_vec()).unwrap();
                $decoded == Ok(any.0)
            }
        )*}
    };
}

round_trips! {
    a_registration_arrives_as_it_was_sent: Registration, RegisterRequest,
        v => encode::registration(v), w => decode::registration(w);
    a_grant_arrives_as_it_was_sent: Grant, RegisterResponse,
        v => wire::RegisterResponse { grant: encode::grant(&v) }, w => decode::grant(w.grant);
    a_renewed_grant_arrives_as_it_was_sent: Grant, RenewShardLeaseResponse,
        v => wire::RenewShardLeaseResponse { grant: encode::grant(&v) }, w => decode::grant(w.grant);
    a_renewal_arrives_as_it_was_sent: Renewal, RenewShardLeaseRequest, v => encode::renewal(&v), w => decode::renewal(w);
    a_deregistration_arrives_as_it_was_sent: Deregistration, DeregisterRequest,
        v => encode::deregistration(&v), w => decode::deregistration(&w);
    a_push_arrives_as_it_was_sent: Push, AssignShardsRequest, v => encode::push(&v), w => decode::push(w);
    a_push_answer_arrives_as_it_was_sent: PushAnswer, AssignShardsResponse,
        v => encode::push_answer(&v), w => decode::push_answer(&w);
    a_routing_table_arrives_as_it_was_sent: RoutingTable, GetRoutingTableResponse,
        v => wire::GetRoutingTableResponse { table: encode::routing_table(&v) },
        w => decode::routing_table(w.table);
    a_watched_table_arrives_as_it_was_sent: RoutingTable, WatchRoutingTableResponse,
        v => wire::WatchRoutingTableResponse { table: encode::routing_table(&v) },
        w => decode::routing_table(w.table);
    a_status_arrives_as_it_was_sent: ClusterStatus, GetClusterStatusResponse,
        v => encode::status(v), w => decode::status(w);
    a_shard_asked_about_arrives_as_it_was_sent: ShardId, ExplainShardRequest,
        v => encode::shard(v), w => decode::shard(w);
    an_explanation_arrives_as_it_was_sent: ShardExplanation, ExplainShardResponse,
        v => encode::explanation(v), w => decode::explanation(w);
    a_drain_arrives_as_it_was_sent: (ExecutorName, bool), SetDrainingRequest,
        v => encode::draining(v.0, v.1), w => decode::draining(w);
    an_inspection_arrives_as_it_was_sent: Inspection, InspectResponse,
        v => encode::inspection(v), w => decode::inspection(w);
    a_question_for_agents_arrives_as_it_was_sent: AgentQuery, ListAgentsRequest,
        v => encode::agent_query(v), w => decode::agent_query(w);
    a_page_of_agents_arrives_as_it_was_sent: AgentPage, ListAgentsResponse,
        v => encode::agent_page(v), w => decode::agent_page(w);
    a_deletion_arrives_as_it_was_sent: AgentId, DeleteRequest,
        v => encode::deletion(v), w => decode::deletion(w);
    a_deletions_answer_arrives_as_it_was_sent: DeletionAnswer, DeleteResponse,
        v => encode::deletion_answer(v), w => decode::deletion_answer(w);
    an_invocation_arrives_as_it_was_sent: Invocation, InvokeRequest,
        v => encode::invocation(v), w => decode::invocation(w);
    an_invocations_answer_arrives_as_it_was_sent: InvocationAnswer, InvokeResponse,
        v => encode::answer(v), w => decode::answer(w);
}

quickcheck! {
    /// R8
    fn arbitrary_bytes_are_a_value_or_an_error_in_every_decoder(bytes: Vec<u8>) -> bool {
        fuzzing::all().iter().all(|(_, again)| again(&bytes).is_none_or(|outcome| outcome.map_or_else(named, |_| true)))
    }

    /// R8: close to what is valid, where arbitrary bytes never come.
    fn damaged_messages_are_a_value_or_an_error_in_every_decoder(damage: Vec<(usize, u8)>, keep: usize) -> bool {
        golden::written().into_iter().zip(fuzzing::all()).all(|((_, mut bytes), (_, again))| {
            for (at, value) in &damage {
                let at = at % bytes.len();
                bytes[at] = *value;
            }
            let kept = if keep.is_multiple_of(2) { bytes.len() } else { keep % bytes.len() };
            again(&bytes[..kept]).is_none_or(|outcome| outcome.map_or_else(named, |_| true))
        })
    }
}

/// Every error names its field.
fn named(invalid: leasehold_model::InvalidValue) -> bool {
    !invalid.field.is_empty() && !invalid.accepted.is_empty()
}
