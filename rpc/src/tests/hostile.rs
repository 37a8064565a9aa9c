//! Single values that must be refused, each by the path of its field.

use super::samples;
use crate::{bounds, decode, encode, wire};
use leasehold_model::InvalidValue;

const GIANT: u64 = i64::MAX as u64;

fn field<T: std::fmt::Debug>(outcome: Result<T, InvalidValue>) -> String {
    outcome.unwrap_err().field
}

/// Applies one change to a valid message and yields the field that is refused.
macro_rules! refused {
    ($valid:expr, $decode:expr, |$message:ident| $change:expr) => {{
        let mut valid = $valid;
        {
            let $message = &mut valid;
            $change;
        }
        field($decode(valid))
    }};
}

fn grant(change: impl FnOnce(&mut wire::Grant)) -> Result<leasehold_model::Grant, InvalidValue> {
    let mut grant = encode::grant(&samples::grant()).unwrap();
    change(&mut grant);
    decode::grant(Some(grant))
}

/// R8, case 19
#[test]
fn a_ttl_that_is_absent_negative_or_giant_is_refused_by_name() {
    for ttl in [0, -1, i64::MIN, 86_400_001, i64::MAX] {
        let refused = grant(|grant| grant.ttl_ms = ttl).unwrap_err();
        assert_eq!((refused.field.as_str(), refused.value), ("grant.ttl_ms", ttl.to_string()));
    }
    for ttl in [1, 86_400_000] {
        assert_eq!(grant(|grant| grant.ttl_ms = ttl).unwrap().ttl.as_ms(), ttl.unsigned_abs());
    }
}

/// Case 33
#[test]
fn zero_negative_and_giant_epochs_are_refused_by_the_place_where_they_stand() {
    for epoch in [0, GIANT + 1, u64::MAX - 1, u64::MAX] {
        let claim = |change: fn(&mut wire::RenewShardLeaseRequest, u64)| {
            let mut renewal = encode::renewal(&samples::renewal());
            change(&mut renewal, epoch);
            field(decode::renewal(renewal))
        };
        assert_eq!(claim(|renewal, epoch| renewal.claim.as_mut().unwrap().epochs[2] = epoch), "claim.shards[2].epoch");
        assert_eq!(claim(|renewal, epoch| renewal.floor_epochs[0] = epoch), "epoch_floors.shards[0].epoch");
        let set = grant(|grant| grant.set.as_mut().unwrap().epochs[1] = epoch);
        assert_eq!(field(set), "grant.set.shards[1].epoch");
        let push =
            refused!(encode::push(&samples::push()), decode::push, |push| push.set.as_mut().unwrap().epochs[0] = epoch);
        assert_eq!(push, "set.shards[0].epoch");
        let held =
            refused!(encode::inspection(samples::inspection()), decode::inspection, |w| w.held_epochs[0] = epoch);
        assert_eq!(held, "held.shards[0].epoch");
        let answer = refused!(encode::answer(samples::answer()), decode::answer, |answer| answer.epoch = epoch);
        assert_eq!(answer, "epoch");
        let route = refused!(encode::routing_table(&samples::table()), decode::routing_table, |table| table
            .as_mut()
            .unwrap()
            .epochs[0] =
            epoch);
        assert_eq!(route, "table.routes[0].epoch");
    }
    assert!(grant(|grant| grant.set.as_mut().unwrap().epochs[1] = GIANT).is_ok());
}

/// R8
#[test]
fn each_field_of_a_registration_is_refused_by_name() {
    let refused = |change: fn(&mut wire::RegisterRequest)| {
        let mut registration = encode::registration(samples::registration());
        change(&mut registration);
        field(decode::registration(registration))
    };
    assert_eq!(refused(|r| r.cluster.clear()), "cluster");
    assert_eq!(refused(|r| r.cluster = "x".repeat(129)), "cluster");
    assert_eq!(refused(|r| r.shard_count = Some(0)), "shard_count");
    assert_eq!(refused(|r| r.shard_count = Some(65_537)), "shard_count");
    assert_eq!(refused(|r| r.hash_scheme.clear()), "hash_scheme");
    assert_eq!(refused(|r| r.hash_scheme = "x".repeat(65)), "hash_scheme");
    assert_eq!(refused(|r| r.executor_id.clear()), "executor_id");
    assert_eq!(refused(|r| r.executor_id = vec![0; 16]), "executor_id");
    assert_eq!(refused(|r| r.executor_id.push(1)), "executor_id");
    assert_eq!(refused(|r| r.name = "a b".to_owned()), "name");
    assert_eq!(refused(|r| r.name = "x".repeat(129)), "name");
    assert_eq!(refused(|r| r.address = "nowhere".to_owned()), "address");
    assert_eq!(refused(|r| r.address = "host:0".to_owned()), "address");
    assert_eq!(refused(|r| r.zone = Some(String::new())), "zone");
    assert_eq!(refused(|r| r.zone = Some("x".repeat(129))), "zone");
    assert_eq!(refused(|r| r.weight = 0), "weight");
    assert_eq!(refused(|r| r.weight = 1001), "weight");
    assert_eq!(refused(|r| r.weight = u32::MAX), "weight");
    assert_eq!(refused(|r| r.lease_key = vec![1; 31]), "lease_key");
}

/// R8
#[test]
fn each_field_of_a_renewal_is_refused_by_name() {
    let refused = |change: fn(&mut wire::RenewShardLeaseRequest)| {
        let mut renewal = encode::renewal(&samples::renewal());
        change(&mut renewal);
        field(decode::renewal(renewal))
    };
    fn claim(renewal: &mut wire::RenewShardLeaseRequest) -> &mut wire::Claim {
        renewal.claim.as_mut().unwrap()
    }
    assert_eq!(refused(|r| r.executor_id = vec![1; 17]), "executor_id");
    assert_eq!(refused(|r| r.lease_key.clear()), "lease_key");
    assert_eq!(refused(|r| r.claim = None), "claim");
    assert_eq!(refused(|r| claim(r).manager_id.clear()), "claim.manager_id");
    assert_eq!(refused(|r| claim(r).applied_revision = u64::MAX), "claim.applied_revision");
    assert_eq!(refused(|r| claim(r).shards[1] = 65_536), "claim.shards[1].shard");
    assert_eq!(refused(|r| claim(r).shards[1] = u32::MAX), "claim.shards[1].shard");
    assert_eq!(refused(|r| claim(r).shards[1] = 0), "claim.shards");
    assert_eq!(refused(|r| claim(r).epochs.truncate(2)), "claim.epochs");
    assert_eq!(refused(|r| claim(r).shards.truncate(2)), "claim.epochs");
    assert_eq!(refused(|r| claim(r).shards = vec![1; 65_537]), "claim.shards");
    assert_eq!(refused(|r| r.heard_grant = u64::MAX), "heard_grant");
    assert_eq!(refused(|r| r.floor_shards[0] = 65_536), "epoch_floors.shards[0].shard");
    assert_eq!(refused(|r| r.floor_epochs.clear()), "epoch_floors.epochs");
    assert_eq!(refused(|r| r.condition.as_mut().unwrap().oldest_running_ms = u64::MAX), "condition.oldest_running_ms");
}

/// R8, S4
#[test]
fn each_field_of_a_grant_is_refused_by_name() {
    let refused = |change: fn(&mut wire::Grant)| field(grant(change));
    fn set(grant: &mut wire::Grant) -> &mut wire::ShardSet {
        grant.set.as_mut().unwrap()
    }
    assert_eq!(field(decode::grant(None)), "grant");
    assert_eq!(refused(|g| g.set = None), "grant.set");
    assert_eq!(refused(|g| g.seq = 0), "grant.seq");
    assert_eq!(refused(|g| g.seq = u64::MAX), "grant.seq");
    assert_eq!(refused(|g| set(g).manager_id = vec![0; 16]), "grant.set.manager_id");
    assert_eq!(refused(|g| set(g).revision = 0), "grant.set.revision");
    assert_eq!(refused(|g| set(g).revision = u64::MAX), "grant.set.revision");
    assert_eq!(refused(|g| set(g).shard_count = 0), "grant.set.shard_count");
    assert_eq!(refused(|g| set(g).shard_count = u32::MAX), "grant.set.shard_count");
    assert_eq!(refused(|g| set(g).shards[1] = 1024), "grant.set.shards[1].shard");
    assert_eq!(refused(|g| set(g).shards[1] = 0), "grant.set.shards");
}

/// R8
#[test]
fn each_field_of_a_push_and_its_answer_is_refused_by_name() {
    let push = |change: fn(&mut wire::AssignShardsRequest)| {
        let mut push = encode::push(&samples::push());
        change(&mut push);
        field(decode::push(push))
    };
    assert_eq!(push(|p| p.executor_id.clear()), "executor_id");
    assert_eq!(push(|p| p.key_hash = vec![9; 33]), "key_hash");
    assert_eq!(push(|p| p.set = None), "set");
    assert_eq!(push(|p| p.set.as_mut().unwrap().revision = 0), "set.revision");
    let mut answer = encode::push_answer(&samples::push_answer());
    answer.claim.as_mut().unwrap().epochs[0] = 0;
    assert_eq!(field(decode::push_answer(&answer)), "claim.shards[0].epoch");
    let mut leaving = encode::deregistration(&samples::deregistration());
    leaving.lease_key.push(0);
    assert_eq!(field(decode::deregistration(&leaving)), "lease_key");
}

/// R8
#[test]
fn each_field_of_a_routing_table_is_refused_by_name() {
    let refused = |change: fn(&mut wire::RoutingTable)| {
        let mut table = encode::routing_table(&samples::table()).unwrap();
        change(&mut table);
        field(decode::routing_table(Some(table)))
    };
    assert_eq!(field(decode::routing_table(None)), "table");
    assert_eq!(refused(|t| t.manager_id.clear()), "table.manager_id");
    assert_eq!(refused(|t| t.revision = u64::MAX), "table.revision");
    assert_eq!(refused(|t| t.owners[0].executor_id.clear()), "table.owners[0].executor_id");
    assert_eq!(refused(|t| t.owners[0].name.clear()), "table.owners[0].name");
    assert_eq!(refused(|t| t.owners[0].address.clear()), "table.owners[0].address");
    assert_eq!(refused(|t| t.owners = vec![t.owners[0].clone(); 65_537]), "table.owners");
    assert_eq!(refused(|t| t.routes[0] = 3), "table.routes[0].owner");
    assert_eq!(refused(|t| t.routes[2] = u32::MAX), "table.routes[2].owner");
    assert_eq!(refused(|t| t.epochs.truncate(1)), "table.epochs");
    assert_eq!(refused(|t| t.routes.clear()), "table.routes");
    assert_eq!(refused(|t| t.routes = vec![0; 65_537]), "table.routes");
}

/// R8
#[test]
fn each_field_of_a_status_or_an_explanation_is_refused_by_name() {
    let status = |change: fn(&mut wire::GetClusterStatusResponse)| {
        let mut status = encode::status(samples::status());
        change(&mut status);
        field(decode::status(status))
    };
    assert_eq!(status(|s| s.cluster.clear()), "cluster");
    assert_eq!(status(|s| s.manager_id.clear()), "manager_id");
    assert_eq!(status(|s| s.revision = u64::MAX), "revision");
    assert_eq!(status(|s| s.shard_count = 0), "shard_count");
    assert_eq!(status(|s| s.leading_ms = u64::MAX), "leading_ms");
    assert_eq!(status(|s| s.executors[0].weight = 0), "executors[0].weight");
    assert_eq!(status(|s| s.executors[0].lease_remaining_ms = u64::MAX), "executors[0].lease_remaining_ms");
    assert_eq!(status(|s| s.executors[0].lagging_ms = Some(u64::MAX)), "executors[0].lagging_ms");
    assert_eq!(status(|s| s.executors[0].zone = Some(String::new())), "executors[0].zone");
    let explained = |change: fn(&mut wire::ExplainShardResponse)| {
        let mut explanation = encode::explanation(samples::explanation());
        change(&mut explanation);
        field(decode::explanation(explanation))
    };
    assert_eq!(explained(|e| e.shard = 65_536), "shard");
    assert_eq!(explained(|e| e.epoch = u64::MAX), "epoch");
    assert_eq!(explained(|e| e.state = 0), "state");
    assert_eq!(explained(|e| e.state = -1), "state");
    assert_eq!(explained(|e| e.owner.as_mut().unwrap().name.clear()), "owner.name");
    assert_eq!(explained(|e| e.lease_remaining_ms = Some(u64::MAX)), "lease_remaining_ms");
    assert_eq!(field(decode::shard(wire::ExplainShardRequest { shard: None })), "shard");
    assert_eq!(field(decode::shard(wire::ExplainShardRequest { shard: Some(65_536) })), "shard");
    assert_eq!(field(decode::draining(wire::SetDrainingRequest::default())), "name");
}

/// R8
#[test]
fn each_field_of_a_deletion_and_of_a_list_of_agents_is_refused_by_name() {
    assert_eq!(field(decode::deletion(wire::DeleteRequest { agent: "counter".to_owned() })), "agent");
    let deleted = || encode::deletion_answer(samples::deletion_answer());
    assert_eq!(refused!(deleted(), decode::deletion_answer, |a| a.shard = 65_536), "shard");
    assert_eq!(refused!(deleted(), decode::deletion_answer, |a| a.epoch = 0), "epoch");
    assert_eq!(refused!(deleted(), decode::deletion_answer, |a| a.executor.clear()), "executor");
    let query = || encode::agent_query(samples::agent_query());
    assert_eq!(refused!(query(), decode::agent_query, |q| q.shard = 65_536), "shard");
    assert_eq!(refused!(query(), decode::agent_query, |q| q.after = Some("x".to_owned())), "after");
    assert_eq!(refused!(query(), decode::agent_query, |q| q.limit = 0), "limit");
    assert_eq!(refused!(query(), decode::agent_query, |q| q.limit = 1001), "limit");
    let page = || encode::agent_page(samples::agent_page());
    assert_eq!(refused!(page(), decode::agent_page, |p| p.agents[2].standing = 0), "agents[2].standing");
    assert_eq!(refused!(page(), decode::agent_page, |p| p.agents[3].standing = 5), "agents[3].standing");
    assert_eq!(refused!(page(), decode::agent_page, |p| p.agents[1].agent.clear()), "agents[1].agent");
    assert_eq!(refused!(page(), decode::agent_page, |p| p.agents = vec![p.agents[0].clone(); 1001]), "agents");
}

/// R8
#[test]
fn each_field_of_an_invocation_is_refused_by_name() {
    let refused = |change: fn(&mut wire::InvokeRequest)| {
        let mut invocation = encode::invocation(samples::invocation());
        change(&mut invocation);
        field(decode::invocation(invocation))
    };
    assert_eq!(refused(|i| i.agent = "counter".to_owned()), "agent");
    assert_eq!(refused(|i| i.agent = format!("counter/{}", "x".repeat(600))), "agent");
    assert_eq!(refused(|i| i.method.clear()), "method");
    assert_eq!(refused(|i| i.method = "a/b".to_owned()), "method");
    assert_eq!(refused(|i| i.method = "x".repeat(129)), "method");
    assert_eq!(refused(|i| i.idempotency_key = Some(String::new())), "idempotency_key");
    assert_eq!(refused(|i| i.idempotency_key = Some("x".repeat(129))), "idempotency_key");
    assert_eq!(refused(|i| i.payload = vec![b' '; bounds::MAX_PAYLOAD + 1]), "payload");
    let mut largest = encode::invocation(samples::invocation());
    largest.payload = vec![b' '; bounds::MAX_PAYLOAD];
    assert!(decode::invocation(largest).is_ok());
    assert_eq!(refused!(encode::answer(samples::answer()), decode::answer, |a| a.shard = 65_536), "shard");
    assert_eq!(refused!(encode::answer(samples::answer()), decode::answer, |a| a.executor.clear()), "executor");
}

#[test]
fn what_is_absent_is_named_as_absent() {
    assert_eq!(decode::grant(None).unwrap_err().value, "absent");
}

/// Secrets are not repeated in errors.
#[test]
fn a_wrong_key_is_refused_without_being_shown() {
    let mut renewal = encode::renewal(&samples::renewal());
    renewal.lease_key = b"hunter2".to_vec();
    assert!(!decode::renewal(renewal).unwrap_err().to_string().contains("hunter2"));
}
