//! Newtypes decode totally and never wrap; keys map to shards as docs/routing.md says.
#![allow(clippy::unwrap_used, reason = "tests")]

use leasehold_model::message::{LeaseKey, Owner, Route, RoutingTable, Weight};
use leasehold_model::refusal::{Credential, Mismatch};
use leasehold_model::routing::{HASH_SCHEME, shard_of};
use leasehold_model::set::Holdings;
use leasehold_model::{
    Address, AgentId, CallError, ClusterName, ExecutorId, ExecutorName, GrantSeq, InvalidValue, LeaseKeyHash,
    ManagerId, Refusal, Revision, ShardCount, ShardEpoch, ShardId, Tick, Ttl,
};
use quickcheck::quickcheck;
use std::collections::BTreeMap;
use std::time::Duration;

const GREATEST: u64 = i64::MAX as u64;

/// Around every end of every range, and whatever quickcheck draws.
fn edges() -> Vec<u64> {
    let ends = [0, 1, 65_536, 86_400_000, u64::from(u32::MAX), GREATEST, u64::MAX];
    ends.into_iter().flat_map(|end| [end.saturating_sub(1), end, end.saturating_add(1)]).collect()
}

/// R8, case 33: what a number decodes to, or that it is refused by name.
fn decodes_totally(number: u64) {
    let named = |error: InvalidValue, field: &str| {
        assert_eq!((error.field.as_str(), error.value), (field, number.to_string()), "{number}");
    };
    match Ttl::from_ms(number) {
        Ok(ttl) => {
            assert!((1..=86_400_000).contains(&number));
            assert_eq!((ttl.as_ms(), u64::from(ttl)), (number, number));
            assert_eq!(ttl.as_duration(), Duration::from_millis(number));
        }
        Err(error) => {
            assert!(number == 0 || number > 86_400_000);
            named(error, "ttl_ms");
        }
    }
    match ShardEpoch::new(number) {
        Ok(epoch) => assert_eq!((epoch.get(), u64::from(epoch), number <= GREATEST), (number, number, true)),
        Err(error) => named(error, "epoch"),
    }
    assert_eq!(ShardEpoch::new(number).is_ok(), number <= GREATEST);
    match ShardEpoch::owned(number) {
        Ok(epoch) => assert_eq!(epoch.get(), number),
        Err(error) => named(error, "epoch"),
    }
    assert_eq!(ShardEpoch::owned(number).is_ok(), (1..=GREATEST).contains(&number));
    match Revision::new(number) {
        Ok(revision) => assert!(revision.0 == number && number <= GREATEST),
        Err(error) => named(error, "revision"),
    }
    assert_eq!(GrantSeq::new(number).is_ok(), number <= GREATEST);
    if let Ok(count) = u32::try_from(number) {
        match ShardCount::new(count) {
            Ok(ok) => assert_eq!((ok.get(), u32::from(ok), ok.shards().len()), (count, count, count as usize)),
            Err(error) => named(error, "shard_count"),
        }
        assert_eq!(ShardCount::new(count).is_ok(), (1..=65_536).contains(&count));
    }
    let text = number.to_string();
    assert_eq!(serde_json::from_str::<Ttl>(&text).ok(), Ttl::from_ms(number).ok());
    assert_eq!(serde_json::from_str::<ShardEpoch>(&text).ok(), ShardEpoch::new(number).ok());
    let count = u32::try_from(number).ok().and_then(|count| ShardCount::new(count).ok());
    assert_eq!(serde_json::from_str::<ShardCount>(&text).ok(), count);
}

/// R8, case 19, case 33.
#[test]
fn numbers_at_the_ends_of_their_ranges_decode_or_are_refused_by_name() {
    edges().into_iter().for_each(decodes_totally);
}

/// R8.
#[test]
fn a_ttl_that_is_no_whole_positive_number_is_an_error() {
    for text in ["-1", "0", "1.5", "1e400", "null", "\"60\"", "86400001", "18446744073709551616"] {
        assert!(serde_json::from_str::<Ttl>(text).is_err(), "{text}");
    }
    let spans = [Duration::ZERO, Duration::from_micros(999), Duration::MAX, Duration::from_millis(86_400_001)];
    assert!(spans.into_iter().all(|span| Ttl::from_duration(span).is_err()));
    assert_eq!(Ttl::from_duration(Duration::from_micros(1_999)).unwrap().as_ms(), 1, "rounded down");
    assert_eq!(Ttl::from_duration(Duration::from_secs(86_400)).unwrap().as_ms(), Ttl::MAX_MS);
}

quickcheck! {
    /// R8, case 33.
    fn any_number_decodes_or_is_refused_by_name(number: u64) -> bool {
        decodes_totally(number);
        true
    }

    fn the_next_epoch_is_greater_or_there_is_none(number: u64) -> bool {
        let epoch = ShardEpoch::new(number % (GREATEST + 1)).unwrap();
        epoch.next().map_or(epoch == ShardEpoch::MAX, |next| next.get() == epoch.get() + 1)
    }

    fn the_next_revision_is_greater(number: u64) -> bool {
        let revision = Revision(number % GREATEST);
        revision.next().0 == revision.0 + 1 && GrantSeq(revision.0).next() > GrantSeq(revision.0)
    }

    fn ticks_stop_at_the_ends_of_the_clock(at: u64, nanos: u64) -> bool {
        let (tick, span) = (Tick(at), Duration::from_nanos(nanos));
        tick.plus(span) == Tick(at.saturating_add(nanos))
            && tick.minus(span) == Tick(at.saturating_sub(nanos))
            && tick.plus(span).since(tick) <= span
            && tick.since(tick.plus(span)) == Duration::ZERO
            && Tick(nanos).since(tick) == Duration::from_nanos(nanos.saturating_sub(at))
    }

    fn holdings_are_a_map_from_shard_to_epoch(pairs: Vec<(u8, u8)>) -> bool {
        let list: Vec<_> = pairs.iter().map(|(shard, epoch)| (ShardId((*shard).into()), ShardEpoch::new((*epoch).into()).unwrap())).collect();
        let map: BTreeMap<ShardId, ShardEpoch> = list.iter().copied().collect();
        let sound = map.len() == list.len() && list.iter().all(|(_, epoch)| *epoch != ShardEpoch::NEVER_OWNED);
        match Holdings::new(list.clone()) {
            Ok(holdings) => {
                let json = serde_json::to_string(&holdings).unwrap();
                sound
                    && holdings.iter().eq(map.iter().map(|(shard, epoch)| (*shard, *epoch)))
                    && (0..=256).map(ShardId).all(|shard| {
                        holdings.epoch_of(shard) == map.get(&shard).copied() && holdings.contains(shard) == map.contains_key(&shard)
                    })
                    && (holdings.len(), holdings.is_empty()) == (map.len(), map.is_empty())
                    && serde_json::from_str::<Holdings>(&json).unwrap() == holdings
                    && Vec::from(holdings.clone()).len() == map.len()
                    && Holdings::try_from(list).unwrap() == holdings
            }
            Err(error) => !sound && error.field == "shards",
        }
    }

    fn every_agent_has_one_shard_below_the_count(key: String, count: u32) -> bool {
        let count = ShardCount::new(1 + count % ShardCount::MAX).unwrap();
        AgentId::new(format!("counter/{key}")).map_or(true, |agent| {
            let shard = shard_of(&agent, count);
            count.shard(shard.0) == Ok(shard) && shard_of(&agent, count) == shard
        })
    }
}

#[test]
fn an_exhausted_epoch_has_no_next() {
    assert_eq!(ShardEpoch::MAX.next(), None);
    assert_eq!(ShardEpoch::NEVER_OWNED.next(), ShardEpoch::new(1).ok());
    assert_eq!(ShardEpoch::new(GREATEST - 1).unwrap().next(), Some(ShardEpoch::MAX));
}

#[test]
#[should_panic(expected = "revision is exhausted at 9223372036854775807")]
fn an_exhausted_revision_is_a_bug_and_never_wraps() {
    let _ = Revision::MAX.next();
}

#[test]
fn holdings_say_what_is_wrong_with_them() {
    let pair = |shard, epoch| (ShardId(shard), ShardEpoch::new(epoch).unwrap());
    assert_eq!(Holdings::new(vec![pair(3, 1), pair(2, 1), pair(3, 2)]).unwrap_err().value, "shard 3 twice");
    assert_eq!(Holdings::new(vec![pair(3, 1), pair(2, 0)]).unwrap_err().value, "shard 2 at epoch 0");
    assert!(serde_json::from_str::<Holdings>("[[1,9223372036854775808]]").is_err());
}

#[test]
fn ids_are_sixteen_bytes_and_not_all_zero() {
    let bytes: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
    let executor = ExecutorId::from_slice("executor_id", &bytes).unwrap();
    assert_eq!(executor.as_bytes(), &bytes);
    assert_eq!(executor, ExecutorId::from_u128(u128::from_be_bytes(bytes)));
    assert_eq!(executor.to_string(), "01020304-0506-0708-090a-0b0c0d0e0f10");
    assert_eq!(format!("{executor:?}"), "ExecutorId(01020304-0506-0708-090a-0b0c0d0e0f10)");
    assert_eq!(executor.to_string().parse::<ExecutorId>().unwrap(), executor);
    for wrong in [&bytes[..15], &[0; 16], &[]] {
        let error = ManagerId::from_slice("lease.manager_id", wrong).unwrap_err();
        assert_eq!((error.field.as_str(), error.value), ("lease.manager_id", format!("{} bytes", wrong.len())));
    }
    assert!("no-uuid".parse::<ManagerId>().is_err());
    assert_eq!(format!("{:?}", LeaseKeyHash([0xab; 32])), "LeaseKeyHash(abab…)");
}

#[test]
fn shards_are_numbered_from_zero() {
    let count = ShardCount::new(3).unwrap();
    assert_eq!(count.shards().collect::<Vec<_>>(), [ShardId(0), ShardId(1), ShardId(2)]);
    assert_eq!(count.shard(2), Ok(ShardId(2)));
    let error = count.shard(3).unwrap_err();
    assert_eq!((error.field.as_str(), error.accepted.as_str()), ("shard", "0..3"));
    assert_eq!((ShardId(7).index(), ShardId(7).to_string(), count.to_string()), (7, "7".into(), "3".into()));
    assert_eq!((Revision(8).to_string(), ShardEpoch::MAX.to_string()), ("8".into(), GREATEST.to_string()));
}

#[test]
fn names_and_addresses_are_checked() {
    let long = "n".repeat(128);
    for name in ["a", "executor-1", "A.b_C-9", long.as_str()] {
        assert_eq!(ExecutorName::new(name).unwrap().as_str(), name);
        assert_eq!(name.parse::<ClusterName>().unwrap().to_string(), name);
    }
    for name in ["", "a b", "a/b", "ä", "a\n", &"n".repeat(129)] {
        assert_eq!(ExecutorName::new(name).unwrap_err().field, "name");
        assert_eq!(ClusterName::new(name).unwrap_err().field, "cluster");
    }
    let host = format!("{}:1", "h".repeat(253));
    for address in ["localhost:1", "10.0.0.1:65535", "[::1]:7000", "a-b.c_d:80", host.as_str()] {
        assert_eq!(String::from(Address::new(address).unwrap()), address);
    }
    let host = format!("{}:1", "h".repeat(254));
    for address in
        ["", "localhost", ":1", "a:0", "a:65536", "a:-1", "::1:7000", "[::1:7000", "::1]:7000", "a b:1", &host]
    {
        assert_eq!(Address::new(address).unwrap_err().field, "address", "{address}");
    }
    assert_eq!(serde_json::from_str::<ExecutorName>("\"a\"").unwrap().as_str(), "a");
    assert!(serde_json::from_str::<ExecutorName>("\"\"").is_err());
}

#[test]
fn an_agent_is_a_type_and_an_id() {
    let agent = AgentId::new("kv/users/42 ü").unwrap();
    assert_eq!((agent.kind(), agent.key()), ("kv", "users/42 ü"));
    assert!(AgentId::new(format!("a/{}", "x".repeat(510))).is_ok());
    for wrong in ["", "kv", "/x", "kv/", "k v/x", "kv/a\tb", &format!("a/{}", "x".repeat(511))] {
        assert_eq!(AgentId::new(wrong).unwrap_err().field, "agent", "{wrong}");
    }
}

#[test]
fn what_was_refused_is_shown_shortened_and_with_its_path() {
    let error = InvalidValue::new("ttl_ms", "é".repeat(100), "less").within("lease");
    assert_eq!((error.field.as_str(), error.value.chars().count()), ("lease.ttl_ms", 80));
    assert_eq!(InvalidValue::new("a", 1, "2").to_string(), "a: \"1\" is not accepted; expected 2");
}

#[test]
fn every_call_error_has_the_reason_that_the_wire_and_the_metrics_spell() {
    let errors = [
        (CallError::Refused(Refusal::Superseded), "SUPERSEDED"),
        (CallError::Unreachable("refused".to_owned()), "UNREACHABLE"),
        (CallError::Unknown("reset".to_owned()), "OUTCOME_UNKNOWN"),
    ];
    for (error, reason) in errors {
        assert_eq!(error.reason(), reason);
    }
}

#[test]
fn a_refusal_says_what_differed_and_which_credential_was_wrong() {
    let mismatch = |what| Refusal::Mismatch { what, expected: "x".to_owned(), actual: "y".to_owned() };
    let texts = [
        (mismatch(Mismatch::ShardCount), "shard count"),
        (mismatch(Mismatch::Cluster), "cluster name"),
        (mismatch(Mismatch::HashScheme), "hash scheme"),
        (Refusal::BadCredential(Credential::JoinToken), "join token"),
        (Refusal::BadCredential(Credential::LeaseKey), "lease key"),
        (Refusal::BadCredential(Credential::AdminToken), "admin token"),
    ];
    for (refusal, part) in texts {
        assert!(refusal.to_string().contains(part), "{refusal}");
    }
}

/// R13: whoever is told to wait is told how long, and only where waiting helps.
#[test]
fn waiting_is_advised_where_it_helps_and_only_there() {
    let why = || "why".to_owned();
    let soon = Some(Duration::from_millis(50));
    let later = Some(Duration::from_millis(200));
    let table = [
        (Refusal::ShardingNotReady { executor: why() }, soon),
        (Refusal::ShardUnassigned { shard: ShardId(1), why: why() }, soon),
        (Refusal::StoreUnavailable { why: why() }, later),
        (Refusal::Overloaded { resource: why(), used: 1, limit: 1 }, later),
        (Refusal::Draining { executor: why() }, None),
        (Refusal::UnknownExecutor, None),
    ];
    for (refusal, wait) in table {
        assert_eq!(refusal.retry_after(), wait, "{refusal}");
    }
}

/// R36
#[test]
fn a_lease_key_is_never_shown() {
    assert_eq!(format!("{:?}", LeaseKey([7; 32])), "LeaseKey(secret)");
}

#[test]
fn a_weight_is_one_to_a_thousand_and_travels_as_its_number() {
    for number in [1, 100, 1_000] {
        let weight = Weight::new(number).unwrap();
        assert_eq!((weight.get(), u32::from(weight), Weight::try_from(number)), (number, number, Ok(weight)));
    }
    for number in [0, 1_001, u32::MAX] {
        assert_eq!(Weight::try_from(number).unwrap_err().field, "weight");
    }
}

#[test]
fn a_routing_table_names_an_owner_only_where_one_may_admit() {
    let owner = Owner {
        executor: ExecutorId::from_u128(1),
        name: ExecutorName::new("a").unwrap(),
        address: Address::new("a:1").unwrap(),
    };
    let epoch = ShardEpoch::new(4).unwrap();
    let routes = vec![Route::Owned(0, epoch), Route::Releasing(0), Route::Unassigned, Route::Owned(9, epoch)];
    let (manager, revision) = (ManagerId::from_u128(1), Revision(1));
    let table = RoutingTable { manager, revision, owners: vec![owner.clone()], routes };
    assert_eq!(table.owner(ShardId(0)), Some((&owner, epoch)));
    for (shard, why) in [(1, "it is handed off"), (2, "nobody owns it"), (3, "no such owner"), (4, "no such shard")] {
        assert_eq!(table.owner(ShardId(shard)), None, "{why}");
    }
}

#[test]
fn holdings_are_empty_when_they_hold_nothing() {
    let one = Holdings::new(vec![(ShardId(3), ShardEpoch::new(7).unwrap())]).unwrap();
    assert_eq!((Holdings::default().is_empty(), one.is_empty()), (true, false));
}

/// The vectors that other languages test against, as published.
#[test]
fn the_published_vectors_are_what_is_computed() {
    let page = include_str!("../../docs/routing.md");
    assert!(page.contains(HASH_SCHEME));
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.contains("`0x"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 6);
    for row in rows {
        let mut agent = row[0].split('`').nth(1).unwrap().to_owned();
        if let Some(times) = row[0].split_whitespace().nth(2) {
            agent += &"x".repeat(times.parse().unwrap());
        }
        assert_eq!(agent.len().to_string(), row[1], "{agent}");
        let agent = AgentId::new(agent).unwrap();
        let hash = u64::from_str_radix(row[2].trim_matches('`').trim_start_matches("0x"), 16).unwrap();
        for (count, published) in [16, 1_000, 1_024, 65_536].into_iter().zip(&row[3..]) {
            let shard = shard_of(&agent, ShardCount::new(count).unwrap());
            assert_eq!(
                (shard.to_string().as_str(), u64::from(shard.0)),
                (*published, hash % u64::from(count)),
                "{agent}"
            );
        }
    }
}
