use super::*;
use leasehold_model::message::Owner;
use leasehold_model::refusal::Mismatch;
use leasehold_model::{Address, ExecutorId, ExecutorName, Revision, ShardEpoch, ShardId};
use std::collections::BTreeSet;

fn epoch(epoch: u64) -> ShardEpoch {
    ShardEpoch::owned(epoch).unwrap()
}

/// At least one of every variant; [`place`] has no wildcard and the first test here counts.
fn every_refusal() -> Vec<Refusal> {
    let why = || "waits for executor-2, 1.5 s at most \u{2014} \"ünïcode\"\n".to_owned();
    let owner = Owner {
        executor: ExecutorId::from_u128(7),
        name: ExecutorName::new("executor-2").unwrap(),
        address: Address::new("[::1]:7101").unwrap(),
    };
    let shard = ShardId(65_535);
    let mismatch = |what| Refusal::Mismatch { what, expected: "1024".to_owned(), actual: "64".to_owned() };
    vec![
        Refusal::ShardingNotReady { executor: "executor-1".to_owned() },
        Refusal::WrongOwner { shard, owner: Some(owner), revision: Revision(42) },
        Refusal::WrongOwner { shard: ShardId(0), owner: None, revision: Revision(0) },
        Refusal::HandoffInProgress { shard, why: why() },
        Refusal::ShardUnassigned { shard, why: String::new() },
        Refusal::Draining { executor: "executor-1".to_owned() },
        Refusal::NotLeader { leader: Some(Address::new("m2:7001").unwrap()) },
        Refusal::NotLeader { leader: None },
        Refusal::LeadershipUnconfirmed { why: why() },
        Refusal::StoreUnavailable { why: why() },
        Refusal::EpochFenced { held: epoch(6), recorded: ShardEpoch::MAX },
        Refusal::UnknownExecutor,
        Refusal::Superseded,
        Refusal::Unheard,
        Refusal::PlanStale { expected: Revision(1), actual: Revision::MAX },
        mismatch(Mismatch::ShardCount),
        mismatch(Mismatch::Cluster),
        mismatch(Mismatch::HashScheme),
        Refusal::Overloaded { resource: "calls at once".to_owned(), used: u64::MAX, limit: 0 },
        Refusal::InvalidField(InvalidValue::new("claim.shards[3].epoch", 0, "1..=9223372036854775807")),
        Refusal::UnknownMethod { what: "counter.fly".to_owned() },
        Refusal::InvocationRejected { why: why() },
        Refusal::AppUnavailable { kind: "cart".to_owned(), why: why() },
        Refusal::AppFault { kind: "cart".to_owned(), why: why() },
        Refusal::BadCredential(Credential::JoinToken),
        Refusal::BadCredential(Credential::LeaseKey),
        Refusal::BadCredential(Credential::AdminToken),
    ]
}

const PLACES: usize = 25;

fn place(refusal: &Refusal) -> usize {
    match refusal {
        Refusal::ShardingNotReady { .. } => 0,
        Refusal::WrongOwner { .. } => 1,
        Refusal::HandoffInProgress { .. } => 2,
        Refusal::ShardUnassigned { .. } => 3,
        Refusal::Draining { .. } => 4,
        Refusal::NotLeader { .. } => 5,
        Refusal::LeadershipUnconfirmed { .. } => 6,
        Refusal::StoreUnavailable { .. } => 7,
        Refusal::EpochFenced { .. } => 8,
        Refusal::UnknownExecutor => 9,
        Refusal::Superseded => 10,
        Refusal::Unheard => 11,
        Refusal::PlanStale { .. } => 12,
        Refusal::Mismatch { what: Mismatch::ShardCount, .. } => 13,
        Refusal::Mismatch { what: Mismatch::Cluster, .. } => 14,
        Refusal::Mismatch { what: Mismatch::HashScheme, .. } => 15,
        Refusal::Overloaded { .. } => 16,
        Refusal::InvalidField(_) => 17,
        Refusal::UnknownMethod { .. } => 18,
        Refusal::InvocationRejected { .. } => 19,
        Refusal::BadCredential(Credential::JoinToken) => 20,
        Refusal::BadCredential(Credential::LeaseKey) => 21,
        Refusal::BadCredential(Credential::AdminToken) => 22,
        Refusal::AppUnavailable { .. } => 23,
        Refusal::AppFault { .. } => 24,
    }
}

#[test]
fn every_variant_of_a_refusal_is_among_those_tested_here() {
    let places: BTreeSet<usize> = every_refusal().iter().map(place).collect();
    assert_eq!(places, (0..PLACES).collect());
}

/// Through the headers, as the transport carries it.
fn across(status: &Status) -> Status {
    let response = status.clone().into_http::<()>();
    Status::from_header_map(response.headers()).unwrap()
}

/// Case 40
#[test]
fn every_refusal_is_put_together_again_on_the_other_side() {
    for refusal in every_refusal() {
        let arrived = across(&refused(&refusal));
        assert_eq!(call_error(&arrived, true), CallError::Refused(refusal.clone()));
        let info = arrived.get_details_error_info().unwrap();
        assert_eq!((info.domain.as_str(), info.reason.as_str()), ("leasehold", refusal.reason()));
        let delay = arrived.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(delay, refusal.retry_after(), "{refusal:?}");
    }
}

/// Case 40
#[test]
fn unknown_and_unreachable_stay_what_they_are_through_a_gateway() {
    for error in [CallError::Unknown("no answer in 3 s".to_owned()), CallError::Unreachable("refused".to_owned())] {
        assert_eq!(call_error(&across(&status(&error)), true), error);
    }
}

#[test]
fn the_codes_are_those_of_the_contract() {
    let table = [
        ("SHARDING_NOT_READY", Code::Unavailable, 503),
        ("WRONG_OWNER", Code::FailedPrecondition, 421),
        ("HANDOFF_IN_PROGRESS", Code::Unavailable, 503),
        ("SHARD_UNASSIGNED", Code::Unavailable, 503),
        ("DRAINING", Code::Unavailable, 503),
        ("NOT_LEADER", Code::Unavailable, 503),
        ("LEADERSHIP_UNCONFIRMED", Code::Unavailable, 503),
        ("STORE_UNAVAILABLE", Code::Unavailable, 503),
        ("EPOCH_FENCED", Code::Aborted, 409),
        ("UNKNOWN_EXECUTOR", Code::NotFound, 404),
        ("SUPERSEDED", Code::NotFound, 404),
        ("UNHEARD", Code::NotFound, 404),
        ("PLAN_STALE", Code::FailedPrecondition, 409),
        ("SHARD_COUNT_MISMATCH", Code::FailedPrecondition, 409),
        ("CLUSTER_ID_MISMATCH", Code::FailedPrecondition, 409),
        ("HASH_SCHEME_MISMATCH", Code::FailedPrecondition, 409),
        ("OVERLOADED", Code::ResourceExhausted, 429),
        ("INVALID_FIELD", Code::InvalidArgument, 400),
        ("UNKNOWN_METHOD", Code::Unimplemented, 404),
        ("INVOCATION_REJECTED", Code::FailedPrecondition, 422),
        ("APP_UNAVAILABLE", Code::Unavailable, 503),
        ("APP_FAULT", Code::Internal, 502),
        ("BAD_JOIN_TOKEN", Code::Unauthenticated, 401),
        ("BAD_LEASE_KEY", Code::PermissionDenied, 403),
        ("BAD_ADMIN_TOKEN", Code::Unauthenticated, 401),
    ];
    for refusal in every_refusal() {
        let row = table.iter().find(|(reason, _, _)| *reason == refusal.reason()).unwrap();
        assert_eq!((code(&refusal), http_status(&refusal)), (row.1, row.2), "{}", row.0);
    }
    assert_eq!(status(&CallError::Unknown(String::new())).code(), Code::Unknown);
    assert_eq!(status(&CallError::Unreachable(String::new())).code(), Code::Unavailable);
    assert_eq!(http_status_of(&CallError::Unknown(String::new())), 504);
    assert_eq!(http_status_of(&CallError::Unreachable(String::new())), 503);
}

#[test]
fn retry_after_is_said_with_every_429_and_503_and_with_nothing_else() {
    let others = [CallError::Unknown(String::new()), CallError::Unreachable(String::new())];
    for error in every_refusal().into_iter().map(CallError::Refused).chain(others) {
        let waits = matches!(http_status_of(&error), 429 | 503);
        assert_eq!(retry_after_secs(&error), waits.then_some(1), "{error:?}");
    }
}

#[test]
fn details_that_are_missing_or_out_of_range_make_no_refusal() {
    for refusal in every_refusal() {
        let all: std::collections::HashMap<String, String> =
            details(&refusal).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        for name in all.keys().filter(|name| !["owner_id", "leader"].contains(&name.as_str())) {
            let mut fewer = all.clone();
            fewer.remove(name);
            assert_eq!(details::refusal(refusal.reason(), &fewer), None, "{refusal:?} without {name}");
        }
        for (name, value) in &all {
            let numeric = value.parse::<u64>().is_ok() && !["expected", "actual", "value"].contains(&name.as_str());
            if numeric || ["owner_id", "leader", "address"].contains(&name.as_str()) {
                let mut wrong = all.clone();
                wrong.insert(name.clone(), "-1".to_owned());
                assert_eq!(details::refusal(refusal.reason(), &wrong), None, "{refusal:?} with {name} -1");
            }
        }
    }
}

#[test]
fn a_reason_of_a_later_release_leaves_the_outcome_unknown() {
    let details = ErrorDetails::with_error_info("MOON_IN_EIGHTH_HOUSE", DOMAIN, std::collections::HashMap::new());
    let newer = Status::with_error_details(Code::Unavailable, "the moon", details);
    let CallError::Unknown(why) = call_error(&newer, true) else { panic!() };
    assert!(why.contains("MOON_IN_EIGHTH_HOUSE"), "{why}");
}

#[test]
fn details_of_another_domain_are_not_ours() {
    let details = ErrorDetails::with_error_info("UNKNOWN_EXECUTOR", "example.org", std::collections::HashMap::new());
    let foreign = Status::with_error_details(Code::NotFound, "not here", details);
    assert!(matches!(call_error(&foreign, true), CallError::Unknown(_)));
    assert!(matches!(call_error(&foreign, false), CallError::Unreachable(_)));
}

/// Beyond 16 KiB of headers a peer would drop the whole answer.
#[test]
fn however_long_the_words_a_status_fits_the_headers() {
    let long = "\u{1F4A5}\u{7f}".repeat(100_000);
    let longest = Refusal::InvalidField(InvalidValue { field: long.clone(), value: long.clone(), accepted: long });
    let status = refused(&longest);
    let size: usize =
        status.into_http::<()>().headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    assert!(size < 12 * 1024, "{size} bytes");
}

/// The sections of `docs/errors.md`: reason to its line of facts. Those that only HTTP knows are the gateway's.
fn sections() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md");
    let doc = std::fs::read_to_string(path).unwrap();
    let mut lines = doc.lines();
    let mut sections = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(reason) = line.strip_prefix("## `").and_then(|rest| rest.strip_suffix('`')) {
            let facts = lines.by_ref().find(|line| !line.is_empty()).unwrap_or_default();
            if !facts.starts_with("HTTP ") {
                sections.push((reason.to_owned(), facts.to_owned()));
            }
        }
    }
    sections
}

fn facts(error: &CallError) -> String {
    let code = format!("{:?}", status(error).code());
    let snake = code.chars().fold(String::new(), |mut snake, letter| {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_uppercase());
        snake
    });
    let details: Vec<_> = match error {
        CallError::Refused(refusal) => details(refusal).into_keys().map(|name| format!("`{name}`")).collect(),
        CallError::Unknown(_) | CallError::Unreachable(_) => vec!["`why`".to_owned()],
    };
    let details = if details.is_empty() { "none".to_owned() } else { details.join(", ") };
    let wait = status(error).get_details_retry_info().and_then(|info| info.retry_delay);
    let wait = wait.map_or_else(|| "none".to_owned(), |wait| format!("{} ms", wait.as_millis()));
    format!("gRPC `{snake}` | HTTP {} | RetryInfo {wait} | details: {details}", http_status_of(error))
}

#[test]
fn every_reason_has_a_section_in_docs_errors_that_states_its_codes_and_details() {
    let mut expected: Vec<(String, CallError)> = vec![
        (OUTCOME_UNKNOWN.to_owned(), CallError::Unknown(String::new())),
        (UNREACHABLE.to_owned(), CallError::Unreachable(String::new())),
    ];
    for refusal in every_refusal() {
        if expected.iter().all(|(reason, _)| reason != refusal.reason()) {
            expected.push((refusal.reason().to_owned(), CallError::Refused(refusal)));
        }
    }
    let sections = sections();
    for (reason, error) in &expected {
        let section = sections.iter().find(|(found, _)| found == reason);
        let (_, found) = section.unwrap_or_else(|| panic!("docs/errors.md has no section for {reason}"));
        assert_eq!(*found, facts(error), "{reason}");
    }
    assert_eq!(sections.len(), expected.len(), "docs/errors.md has a section for no reason");
}
