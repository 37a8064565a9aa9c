use crate::world::{World, executor, key_hash, settings};
use leasehold_model::leader::{CommitFailure, Effect, Event, Reply, Settings};
use leasehold_model::{ClusterName, ManagerId, Refusal, ShardCount};
use std::sync::Arc;
use std::time::Duration;

/// R34, S7
#[test]
fn a_registration_is_committed_before_it_is_acknowledged() {
    let mut w = World::new(8);
    w.prompt = false;
    w.commits.clear();
    let request = w.register(1);
    w.confirms = 0;
    assert!(!w.replies.contains_key(&request));
    assert!(w.stored.executor(executor(1)).is_none());
    w.commit_next();
    assert!(w.stored.executor(executor(1)).is_some());
    assert!(!w.replies.contains_key(&request), "and leadership is confirmed");
    w.confirm();
    w.grant(request);
}

/// R34
#[test]
fn registering_again_with_the_same_id_answers_the_same() {
    let mut w = World::new(8);
    let first = w.register(1);
    let stored = Arc::clone(&w.stored);
    let second = w.register(1);
    assert_eq!(w.stored, stored);
    assert_eq!(w.grant(first).ttl, w.grant(second).ttl);
}

/// R34, R36
#[test]
fn the_same_id_with_another_key_is_refused() {
    let mut w = World::new(8);
    w.register(1);
    let request = w.ask_to_register(2, World::registration(1, "e1", "127.0.0.1:4001"));
    assert!(matches!(w.refusal(request), Refusal::BadCredential(_)));
    assert_eq!(w.stored.executor(executor(1)).unwrap().key_hash, key_hash(1));
}

/// R35, first half
#[test]
fn a_predecessor_at_the_same_address_is_released_when_the_new_process_answers_there() {
    let mut w = World::new(8);
    w.ask_to_register(1, World::registration(1, "same", "127.0.0.1:4000"));
    w.renew(1);
    let epochs = w.epochs();
    let request = w.ask_to_register(2, World::registration(2, "same", "127.0.0.1:4000"));
    let (probed, address) = w.probes.pop().expect("the address is asked");
    assert_eq!((probed, address.as_str()), (request, "127.0.0.1:4000"));
    assert!(!w.replies.contains_key(&request));
    w.step(Event::Probed { request, answered_by: Some(executor(2)) });
    w.grant(request);
    assert!(w.stored.executor(executor(1)).is_none());
    assert_eq!(w.owned(2), 8);
    assert!(w.epochs().iter().zip(&epochs).all(|(now, then)| now > then), "its shards get new epochs");
}

/// R35, second half; case 36
#[test]
fn a_predecessor_that_may_live_is_superseded_and_keeps_its_shards_until_it_confirms() {
    for answered_by in [None, Some(executor(1)), Some(executor(7))] {
        let mut w = World::new(8);
        w.ask_to_register(1, World::registration(1, "same", "127.0.0.1:4000"));
        w.renew(1);
        let request = w.ask_to_register(2, World::registration(2, "same", "127.0.0.1:4000"));
        w.step(Event::Probed { request, answered_by });
        w.grant(request);
        assert_eq!((w.owned(1), w.owned(2)), (0, 0));
        assert_eq!(w.releasing(1).len(), 8, "told to let go, not given away");
        let renewal = w.renew(1);
        assert_eq!(*w.refusal(renewal), Refusal::Superseded);
        let again = w.ask_to_register(1, World::registration(1, "same", "127.0.0.1:4000"));
        assert_eq!(*w.refusal(again), Refusal::Superseded, "no endless mutual displacement");
        let claim = w.claim_of_last_push(1);
        w.push_answered(1, claim);
        assert_eq!(w.owned(2), 8);
    }
}

/// R35, second half
#[test]
fn at_another_address_a_superseded_predecessor_loses_its_shards_when_its_lease_ends() {
    let mut w = World::new(8);
    w.ask_to_register(1, World::registration(1, "same", "127.0.0.1:4000"));
    let ends = w.deadline(1);
    w.now = w.now.plus(Duration::from_secs(10));
    let request = w.ask_to_register(2, World::registration(2, "same", "127.0.0.1:5000"));
    assert!(w.probes.is_empty());
    w.grant(request);
    w.renew(2);
    w.pass_time(ends.since(w.now) - Duration::from_millis(1));
    w.renew(2);
    assert_eq!(w.owned(2), 0);
    w.pass_time(Duration::from_millis(2));
    assert_eq!(w.owned(2), 8);
}

/// Case 37, and two clusters or builds that must not mix.
#[test]
fn a_registration_for_another_cluster_count_or_hash_is_refused_by_name() {
    let mut w = World::new(8);
    let stored = Arc::clone(&w.stored);
    let base = World::registration(1, "e1", "127.0.0.1:4001");
    let mut cluster = base.clone();
    cluster.cluster = ClusterName::new("other").unwrap();
    let mut count = base.clone();
    count.shard_count = Some(ShardCount::new(128).unwrap());
    let mut scheme = base;
    scheme.hash_scheme = "crc32/v0".to_owned();
    for (registration, reason) in
        [(cluster, "CLUSTER_ID_MISMATCH"), (count, "SHARD_COUNT_MISMATCH"), (scheme, "HASH_SCHEME_MISMATCH")]
    {
        let request = w.ask_to_register(1, registration);
        assert_eq!(w.refusal(request).reason(), reason);
    }
    assert_eq!(w.stored, stored, "nothing was stored");
    let mut right = World::registration(1, "e1", "127.0.0.1:4001");
    right.shard_count = Some(ShardCount::new(8).unwrap());
    let request = w.ask_to_register(1, right);
    w.grant(request);
}

/// A late copy of a registration must not bring back who has left.
#[test]
fn whoever_left_stays_gone() {
    let mut w = World::new(8);
    w.register(1);
    let left = w.deregister(1);
    assert_eq!(w.replies[&left], Reply::Done);
    let late = w.register(1);
    assert_eq!(*w.refusal(late), Refusal::UnknownExecutor);
    assert_eq!(w.stored.executors().len(), 0);
}

/// R26 (b), R37: shards of who leaves go out in the next pass, at once.
#[test]
fn a_departure_frees_its_shards_at_once() {
    let mut w = World::new(8);
    w.register(1);
    w.register(2);
    w.renew(2);
    let epochs = w.epochs();
    w.deregister(1);
    assert_eq!(w.owned(2), 8);
    assert!(w.epochs().iter().zip(&epochs).any(|(now, then)| now > then));
}

/// A write that provably did not happen is refused retryably; one cut off by the end of the leadership is unknown.
#[test]
fn a_registration_that_was_not_stored_is_refused_and_one_that_may_be_is_unknown() {
    let mut w = World::new(8);
    w.prompt = false;
    w.commits.clear();
    let refused = w.register(1);
    w.fail_next(CommitFailure::Unavailable("disk full".to_owned()));
    assert_eq!(*w.refusal(refused), Refusal::StoreUnavailable { why: "disk full".to_owned() });
    let unknown = w.register(2);
    w.fail_next(CommitFailure::Lost("no answer".to_owned()));
    assert!(matches!(w.replies[&unknown], Reply::Unknown(_)));
    assert!(w.ended().is_some());
}

/// R33
#[test]
fn a_cold_cluster_waits_so_that_the_first_executor_is_not_given_everything() {
    let patient = Settings { settle: Duration::from_secs(3), ..settings() };
    let mut w = World::with(9, patient);
    w.register(1);
    assert_eq!(w.owned(1), 0);
    assert!(w.core.status(w.now).unassigned_because.unwrap().contains("waits"));
    w.pass_time(Duration::from_millis(1500));
    w.register(2);
    w.register(3);
    w.pass_time(Duration::from_millis(1499));
    assert_eq!((w.owned(1), w.owned(2), w.owned(3)), (0, 0, 0));
    w.pass_time(Duration::from_millis(2));
    assert_eq!((w.owned(1), w.owned(2), w.owned(3)), (3, 3, 3));
    let joined = w.now;
    w.register(4);
    assert_eq!(w.now, joined, "a warm cluster does not wait");
    assert_eq!(w.releasing(1).len() + w.releasing(2).len() + w.releasing(3).len(), 2);
}

/// R39, case 2: every stored lease runs in full from take-over, everybody is pushed a set, nobody is waited for.
#[test]
fn a_new_leader_reaps_nobody_before_a_full_lease() {
    let mut w = World::new(9);
    for n in 1..=3 {
        w.register(n);
        w.renew(n);
    }
    let claims: Vec<_> = (1..=3).map(|n| w.up_to_date_claim(n)).collect();
    for n in 1..=3 {
        w.push_answered(n, claims[n as usize - 1].clone());
    }
    for n in 1..=3 {
        let claim = w.claim_of_last_push(n);
        w.push_answered(n, claim);
        w.renew(n);
    }
    let (owners, epochs) = (w.owners(), w.epochs());
    let later = w.now.plus(Duration::from_secs(180));
    let mut next = World::take_over(Arc::clone(&w.stored), settings(), ManagerId::from_u128(2), later);
    assert_eq!(next.pushes.len(), 3);
    next.pass_time(Duration::from_secs(58));
    next.renew(1);
    next.pass_time(Duration::from_millis(1999));
    assert_eq!((next.owners(), next.epochs()), (owners, epochs), "the early one does not get everything");
    next.renew(2);
    next.pass_time(Duration::from_millis(2));
    assert!(next.stored.executor(executor(3)).is_none(), "whoever does not answer is reaped when that lease ends");
    assert_eq!(next.owned(1) + next.owned(2), 9);
}

/// R34: a copy of a registration that comes while its life is being removed must not bring it back, to be given shards that nobody serves.
#[test]
fn a_late_copy_of_a_registration_does_not_undo_a_departure_that_is_being_stored() {
    let mut w = World::new(8);
    w.register(1);
    w.register(2);
    w.prompt = false;
    w.deregister(1);
    let late = w.register(1);
    w.be_prompt();
    assert!(w.replies.contains_key(&late));
    assert!(w.stored.executor(executor(1)).is_none());
    assert_eq!(w.owned(2), 8);
}

/// R34, R31: the same while its lease is being ended: it is told that it is gone, once that is stored.
#[test]
fn a_late_copy_of_a_registration_does_not_undo_a_reaping_that_is_being_stored() {
    let mut w = World::new(8);
    w.register(1);
    w.prompt = false;
    w.pass_time(w.deadline(1).since(w.now));
    let late = w.register(1);
    w.be_prompt();
    assert_eq!(*w.refusal(late), Refusal::UnknownExecutor);
    assert!(w.stored.executor(executor(1)).is_none());
}

/// R35: nor one that was waiting for the answer of its address.
#[test]
fn a_probe_that_ends_late_does_not_bring_back_who_has_left() {
    let mut w = World::new(8);
    w.ask_to_register(1, World::registration(1, "same", "127.0.0.1:4000"));
    let late = w.ask_to_register(2, World::registration(2, "same", "127.0.0.1:4000"));
    let request = w.ask_to_register(2, World::registration(2, "same", "127.0.0.1:4000"));
    w.step(Event::Probed { request, answered_by: Some(executor(2)) });
    w.deregister(2);
    w.step(Event::Probed { request: late, answered_by: Some(executor(2)) });
    assert_eq!(*w.refusal(late), Refusal::UnknownExecutor);
    assert_eq!(w.stored.executors().len(), 0);
}

/// R34: a registration that is stored already is answered without a write, also while the store takes none.
#[test]
fn a_repeated_registration_writes_nothing() {
    let mut w = World::new(8);
    let first = w.register(1);
    w.prompt = false;
    let again = w.register(1);
    assert!(w.commits.is_empty());
    w.confirm();
    assert_eq!(w.grant(again).set.shards.len(), 8);
    assert_eq!(w.grant(first).ttl, w.grant(again).ttl);
}

/// An operator who mistypes a name hears so.
#[test]
fn draining_a_name_that_nobody_has_is_refused() {
    let mut w = World::new(8);
    w.register(1);
    let request = w.drain("e9", true);
    assert_eq!(*w.refusal(request), Refusal::UnknownExecutor);
    let done = w.drain("e1", true);
    assert_eq!(w.replies[&done], Reply::Done);
    assert!(w.stored.executor(executor(1)).unwrap().draining);
}

/// A departure is remembered for as long as a late copy can be expected, not for ever.
#[test]
fn the_last_thousands_of_departures_are_remembered() {
    let mut w = World::new(1);
    for n in 1..=4097 {
        w.register(n);
        w.deregister(n);
    }
    let second = w.register(2);
    assert_eq!(*w.refusal(second), Refusal::UnknownExecutor);
    let first = w.register(1);
    w.grant(first);
}

/// A session is kept with whoever is registered, from the moment that this is stored to the moment that it is not.
#[test]
fn a_session_opens_with_a_registration_and_closes_with_a_departure() {
    let mut w = World::new(8);
    w.register(1);
    let opens = w.other.iter().filter(|effect| matches!(effect, Effect::OpenSession(id, _) if *id == executor(1)));
    assert_eq!(opens.count(), 1);
    let closed = |w: &World| w.other.contains(&Effect::CloseSession(executor(1)));
    assert!(!closed(&w));
    w.deregister(1);
    assert!(closed(&w));
}

/// R35, R26 (a): the renewal is refused, yet what it claims is proof: its shards need not wait for the end of its lease.
#[test]
fn a_superseded_predecessor_confirms_also_with_a_renewal_that_is_refused() {
    let mut w = World::new(8);
    w.ask_to_register(1, World::registration(1, "same", "127.0.0.1:4000"));
    let before = w.deadline(1);
    w.now = w.now.plus(Duration::from_secs(1));
    w.ask_to_register(2, World::registration(2, "same", "127.0.0.1:5000"));
    assert_eq!((w.releasing(1).len(), w.owned(2)), (8, 0));
    let renewal = w.renew(1);
    assert_eq!(*w.refusal(renewal), Refusal::Superseded);
    assert_eq!(w.deadline(1), before);
    assert_eq!(w.owned(2), 8);
}
