use crate::world::{LEASE, World, executor, key_hash, nothing, settings};
use leasehold_model::leader::{CommitFailure, Confirmation, Event, Note, Reply, Settings};
use leasehold_model::set::Holdings;
use leasehold_model::{Claim, GrantSeq, ManagerId, Refusal, Revision, ShardEpoch, ShardId, Tick, Ttl};
use std::sync::Arc;
use std::time::Duration;

/// R1, R5
#[test]
fn a_grant_sets_the_deadline_from_the_granting_instant() {
    let mut w = World::new(8);
    w.register(1);
    w.now = w.now.plus(Duration::from_secs(20));
    let request = w.renew(1);
    assert_eq!(w.grant(request).ttl.as_duration(), LEASE);
    assert_eq!(w.deadline(1), w.now.plus(LEASE));
}

/// R5, case 15: a shorter duration takes effect only once it has outrun every deadline already told.
#[test]
fn a_shorter_lease_never_shortens_what_was_told() {
    let mut w = World::new(8);
    w.register(1);
    w.renew(1);
    let shorter = Settings { lease: Ttl::from_ms(30_000).unwrap(), ..settings() };
    let mut next = World::take_over(Arc::clone(&w.stored), shorter, ManagerId::from_u128(2), w.now);
    let told = w.deadline(1);
    next.now = next.now.plus(Duration::from_secs(1));
    let request = next.renew(1);
    assert_eq!(next.grant(request).ttl.as_ms(), 30_000);
    assert!(next.deadline(1) >= told, "its last answer may have been lost");
    let owners = next.owners();
    next.pass_time(told.since(next.now) - Duration::from_millis(1));
    assert_eq!(next.owners(), owners, "nothing moves before the last deadline that was told");
}

/// R6: no durable write for a renewal, and none longer than what is stored.
#[test]
fn a_renewal_writes_nothing() {
    let mut w = World::new(8);
    w.register(1);
    w.renew(1);
    let written = w.written.len();
    for _ in 0..100 {
        w.now = w.now.plus(Duration::from_millis(100));
        let request = w.renew(1);
        w.grant(request);
    }
    assert_eq!(w.written.len(), written);
}

/// R6
#[test]
fn a_longer_lease_is_stored_before_it_is_granted() {
    let mut w = World::new(8);
    w.register(1);
    let longer = Settings { lease: Ttl::from_ms(90_000).unwrap(), ..settings() };
    let mut next = World::take_over(Arc::clone(&w.stored), longer.clone(), ManagerId::from_u128(2), w.now);
    let request = next.renew(1);
    assert_eq!(next.grant(request).ttl.as_ms(), 90_000, "the first pass has stored it");
    assert_eq!(next.stored.executor(executor(1)).unwrap().lease_length.as_ms(), 90_000);

    let mut slow = World::take_over(Arc::clone(&w.stored), longer, ManagerId::from_u128(3), w.now);
    assert_eq!(slow.stored.executor(executor(1)).unwrap().lease_length.as_ms(), 90_000);
    slow.prompt = false;
}

/// R6
#[test]
fn until_a_longer_lease_is_stored_the_stored_length_is_granted() {
    let mut w = World::new(8);
    w.register(1);
    let longer = Settings { lease: Ttl::from_ms(90_000).unwrap(), ..settings() };
    let mut out = Vec::new();
    let now = w.now;
    let mut core = leasehold_model::leader::Leader::take_over(
        longer,
        ManagerId::from_u128(2),
        Arc::clone(&w.stored),
        now,
        &mut out,
    );
    out.clear();
    let request = leasehold_model::leader::RequestId(1);
    let facts = w.facts(1, w.up_to_date_claim(1), 0);
    core.step(now, Event::Renew { request, facts }, &mut out);
    core.step(now, Event::Confirmed(Confirmation::Leads), &mut out);
    let ttl = out.iter().find_map(|effect| match effect {
        leasehold_model::leader::Effect::Reply(_, Reply::Granted(grant)) => Some(grant.ttl.as_ms()),
        _ => None,
    });
    assert_eq!(ttl, Some(60_000));
    w.pass_time(Duration::ZERO);
}

/// R7: one confirmation serves every renewal that waited when it began, and none that came later.
#[test]
fn a_confirmation_serves_only_those_who_waited_when_it_began() {
    let mut w = World::new(8);
    w.register(1);
    w.register(2);
    w.prompt = false;
    let first = w.renew(1);
    assert_eq!(w.confirms, 1);
    let second = w.renew(2);
    let third = w.renew(1);
    assert_eq!(w.confirms, 1, "one at a time");
    w.confirm();
    assert!(w.replies.contains_key(&first));
    assert!(!w.replies.contains_key(&second), "it came after the check began");
    assert_eq!(w.confirms, 1, "the next check has begun");
    w.confirm();
    assert!(w.replies.contains_key(&second) && w.replies.contains_key(&third));
    assert_eq!(w.confirms, 0);
}

/// R7
#[test]
fn without_confirmation_there_is_no_grant_and_the_leadership_ends() {
    let mut w = World::new(8);
    w.register(1);
    let before = w.deadline(1);
    w.prompt = false;
    let waited = w.renew(1);
    let came_later = w.renew(1);
    w.now = w.now.plus(Duration::from_secs(5));
    w.step(Event::Confirmed(Confirmation::Lost("gone".to_owned())));
    assert!(matches!(w.refusal(waited), Refusal::LeadershipUnconfirmed { .. }));
    assert!(matches!(w.refusal(came_later), Refusal::NotLeader { .. }));
    assert_eq!(w.ended(), Some("gone"));
    assert_eq!(w.deadline(1), before);
    let after = w.renew(1);
    assert!(matches!(w.refusal(after), Refusal::NotLeader { .. }));
}

/// R12: a renewal advances nothing.
#[test]
fn a_repeated_renewal_is_harmless() {
    let mut w = World::new(8);
    w.register(1);
    let facts = w.facts(1, w.up_to_date_claim(1), 1);
    let stored = Arc::clone(&w.stored);
    let first = w.renew_with(facts.clone());
    let second = w.renew_with(facts);
    assert_eq!(w.grant(first).set, w.grant(second).set);
    assert_eq!(w.stored, stored);
}

/// R15
#[test]
fn a_claim_that_does_not_match_is_corrected_not_refused() {
    let mut w = World::new(8);
    w.register(1);
    let shards = Holdings::new(vec![(ShardId(3), ShardEpoch::new(99).unwrap())]).unwrap();
    let claim = Claim { manager: w.core.manager(), applied: w.stored.revision, shards };
    let request = w.renew_with(w.facts(1, claim, 1));
    assert_eq!(w.grant(request).set.shards.len(), 8);
    let noted = w.other.iter().any(|effect| format!("{effect:?}").contains("ClaimMismatch"));
    assert!(noted, "it is logged and counted");
}

/// R16
#[test]
fn an_unknown_executor_is_the_one_that_is_refused() {
    let mut w = World::new(8);
    w.register(1);
    let stranger = w.renew_with(w.facts(9, nothing(ManagerId::from_u128(1), Revision(0)), 0));
    assert_eq!(*w.refusal(stranger), Refusal::UnknownExecutor);
}

/// R36
#[test]
fn without_the_lease_key_nobody_renews_or_deregisters_for_another() {
    let mut w = World::new(8);
    w.register(1);
    let before = (w.deadline(1), Arc::clone(&w.stored));
    w.now = w.now.plus(Duration::from_secs(1));
    let mut facts = w.facts(1, w.up_to_date_claim(1), 0);
    facts.key_hash = key_hash(2);
    let renewal = w.renew_with(facts);
    assert!(matches!(w.refusal(renewal), Refusal::BadCredential(_)));
    let request = leasehold_model::leader::RequestId(900);
    w.step(Event::Deregister { request, id: executor(1), key_hash: key_hash(2) });
    assert!(matches!(w.refusal(request), Refusal::BadCredential(_)));
    assert_eq!((w.deadline(1), Arc::clone(&w.stored)), before);
}

/// R46, case 48: grants unheard for a whole lease end; the deadline stands where the last grant put it.
#[test]
fn grants_that_go_unheard_for_a_lease_are_not_given_any_more() {
    let mut w = World::new(8);
    w.register(1);
    w.register(2);
    let cut_at = w.now;
    let claim = w.up_to_date_claim(1);
    let mut refused_at = None;
    let mut last_deadline = w.deadline(1);
    for _ in 0..24 {
        w.pass_time(Duration::from_secs(10));
        w.renew(2);
        let request = w.renew_with(w.facts(1, claim.clone(), 0));
        match w.replies.get(&request) {
            Some(Reply::Granted(_)) => {
                assert_eq!(refused_at, None, "once refused, always refused");
                last_deadline = w.deadline(1);
            }
            Some(Reply::Refused(Refusal::Unheard)) => {
                refused_at.get_or_insert(w.now);
                assert_eq!(w.deadline(1), last_deadline);
            }
            Some(Reply::Refused(Refusal::UnknownExecutor)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused_at.unwrap().since(cut_at) <= LEASE + Duration::from_secs(10));
    assert!(last_deadline.since(cut_at) <= 2 * LEASE, "its shards are served elsewhere within two leases");
    assert_eq!(w.owned(2), 8);
}

/// R46
#[test]
fn whoever_hears_its_grants_is_granted_for_ever() {
    let mut w = World::new(8);
    w.register(1);
    let mut heard = 1;
    for _ in 0..50 {
        w.pass_time(Duration::from_secs(20));
        let request = w.renew_with(w.facts(1, w.up_to_date_claim(1), heard));
        heard = w.grant(request).seq.0;
    }
    assert_eq!(w.core.status(w.now).executors.len(), 1);
    let _ = GrantSeq(heard);
}

/// R46: what was heard of an earlier manager says nothing of this one.
#[test]
fn a_claim_of_another_manager_has_heard_nothing_of_this_one() {
    let mut w = World::new(8);
    w.register(1);
    let foreign = nothing(ManagerId::from_u128(77), Revision(5));
    for _ in 0..5 {
        w.pass_time(Duration::from_secs(11));
        let request = w.renew_with(w.facts(1, foreign.clone(), i64::MAX as u64));
        w.grant(request);
    }
    w.pass_time(Duration::from_secs(11));
    let request = w.renew_with(w.facts(1, foreign, i64::MAX as u64));
    assert_eq!(*w.refusal(request), Refusal::Unheard);
}

/// R40, case 33
#[test]
fn an_epoch_floor_is_minted_above_and_a_giant_one_is_not() {
    let mut w = World::new(2);
    w.register(1);
    let owner = executor(1);
    let mut facts = w.facts(1, w.up_to_date_claim(1), 1);
    facts.epoch_floors = vec![(ShardId(0), ShardEpoch::new(500).unwrap()), (ShardId(1), ShardEpoch::MAX)];
    w.renew_with(facts);
    assert_eq!(w.epochs(), [ShardEpoch::new(501).unwrap(), ShardEpoch::new(1).unwrap()]);
    assert_eq!(w.owners(), [Some(owner), Some(owner)]);
    assert_eq!(w.pushed(1).set.shards.epoch_of(ShardId(0)), ShardEpoch::new(501).ok());
    assert!(w.other.iter().any(|effect| format!("{effect:?}").contains("FloorRefused")));
}

/// R40: only from whoever was told the shard's present epoch.
#[test]
fn an_epoch_floor_from_anybody_but_the_owner_is_ignored() {
    let mut w = World::new(2);
    w.register(1);
    w.register(2);
    let epochs = w.epochs();
    let theirs: Vec<ShardId> = w
        .stored
        .shards()
        .filter(|(_, row)| row.state.executor() == Some(executor(1)))
        .map(|(shard, _)| shard)
        .collect();
    let mut facts = w.facts(2, w.up_to_date_claim(2), 1);
    facts.epoch_floors = theirs.iter().map(|shard| (*shard, ShardEpoch::new(500).unwrap())).collect();
    w.renew_with(facts);
    for shard in theirs {
        assert_eq!(w.epochs()[shard.index()], epochs[shard.index()]);
    }
}

/// S5's manager half: the deadline is set before the answer leaves, at the granting instant or later.
#[test]
fn the_deadline_covers_the_answer_however_late_the_confirmation() {
    let mut w = World::new(8);
    w.register(1);
    w.prompt = false;
    let asked = w.now;
    let request = w.renew(1);
    w.now = w.now.plus(Duration::from_secs(7));
    w.confirm();
    let ttl = w.grant(request).ttl.as_duration();
    assert!(w.deadline(1) >= asked.plus(ttl));
    assert_eq!(w.deadline(1), w.now.plus(ttl));
}

/// A store that is away delays no renewal.
#[test]
fn a_failing_commit_delays_no_renewal() {
    let mut w = World::new(8);
    w.register(1);
    w.prompt = false;
    w.register(2);
    let renewal = w.renew(1);
    w.confirm();
    w.grant(renewal);
    w.fail_next(CommitFailure::Unavailable("locked".to_owned()));
    assert!(w.ended().is_none());
    assert_ne!(w.armed, Tick::NEVER);
}

/// R15: only an executor whose set is not the newest, and has long not been, is told to be missing its pushes.
#[test]
fn a_claim_is_a_mismatch_when_pushes_are_not_landing_and_only_then() {
    // 1 owns two of six and releases a third to 3; the others are 2's.
    let world = || {
        let mut w = World::new(6);
        w.settle(&[1, 2]);
        w.register(3);
        w
    };
    let w = world();
    let (manager, revision, first) = (w.core.manager(), w.stored.revision, ShardEpoch::new(1).unwrap());
    let own: Vec<_> = w.pushed(1).set.shards.iter().collect();
    let draining = (w.releasing(1)[0], first);
    let of_another = (w.pushed(2).set.shards.iter().next().unwrap().0, first);
    let other_epoch = (own[1].0, ShardEpoch::new(7).unwrap());
    let claim = |manager, applied, shards: Vec<_>| Claim { manager, applied, shards: Holdings::new(shards).unwrap() };
    let foreign = ManagerId::from_u128(77);
    let table = [
        ("as told", claim(manager, revision, own.clone()), false, false),
        ("one still drains", claim(manager, revision, vec![own[0], own[1], draining]), false, false),
        ("one is missing", claim(manager, revision, vec![own[0]]), true, true),
        ("one has another epoch", claim(manager, revision, vec![own[0], other_epoch]), true, true),
        ("one is another's", claim(manager, revision, vec![own[0], own[1], of_another]), true, true),
        ("an older set", claim(manager, Revision(revision.0 - 1), own.clone()), false, true),
        ("another manager's set", claim(foreign, revision, own), false, true),
    ];
    for (what, claim, at_once, after_a_while) in table {
        for (waited, expected) in [(Duration::ZERO, at_once), (LEASE / 6, at_once), (LEASE / 5, after_a_while)] {
            let mut w = world();
            w.now = w.now.plus(waited);
            let request = w.renew_with(w.facts(1, claim.clone(), 1));
            w.grant(request);
            assert_eq!(w.noted(&Note::ClaimMismatch(executor(1))), usize::from(expected), "{what} after {waited:?}");
        }
    }
}

/// R15, R29: a shard that was lost and given anew is claimed at its older epoch until the last agent of that has stopped.
#[test]
fn a_shard_that_drains_at_the_epoch_before_it_was_regained_is_no_mismatch() {
    let mut w = World::new(1);
    w.register(1);
    let before = w.up_to_date_claim(1);
    let mut facts = w.facts(1, before.clone(), 1);
    facts.epoch_floors = vec![(ShardId(0), before.shards.epoch_of(ShardId(0)).unwrap())];
    w.renew_with(facts);
    w.pass_time(Duration::from_secs(1));
    let regained = w.up_to_date_claim(1);
    assert!(regained.shards.epoch_of(ShardId(0)) > before.shards.epoch_of(ShardId(0)), "it was given anew");
    let draining = Claim { applied: regained.applied, ..before };
    w.renew_with(w.facts(1, draining, 1));
    assert_eq!(w.noted(&Note::ClaimMismatch(executor(1))), 0);
}

/// R15, R18: after a change of leaders an executor is told by a push to renew, and applies nothing before it has.
#[test]
fn an_executor_that_answered_a_push_and_follows_the_leader_before_is_no_mismatch() {
    for (answered, noted) in [(true, 0), (false, 1)] {
        let mut w = World::new(6);
        w.settle(&[1, 2]);
        let foreign = Claim { manager: ManagerId::from_u128(77), ..w.up_to_date_claim(1) };
        w.register(3);
        if answered {
            w.push_answered(1, foreign.clone());
        }
        w.now = w.now.plus(LEASE / 3);
        w.renew_with(w.facts(1, foreign, 1));
        assert_eq!(w.noted(&Note::ClaimMismatch(executor(1))), noted, "answered a push: {answered}");
    }
}

/// R40: from a shard's present epoch up to the greatest floor; anything else is left alone.
#[test]
fn an_epoch_floor_counts_from_the_present_epoch_to_the_greatest_floor() {
    let greatest = ShardEpoch::MAX.get() - (1 << 32);
    let table = [(4, None), (5, Some(6)), (greatest, Some(greatest + 1)), (greatest + 1, None)];
    for (floor, raised) in table {
        let mut w = World::new(1);
        w.register(1);
        let mut report = |floor| {
            let mut facts = w.facts(1, w.up_to_date_claim(1), 1);
            facts.epoch_floors = vec![(ShardId(0), ShardEpoch::new(floor).unwrap()), (ShardId(1), ShardEpoch::MAX)];
            w.renew_with(facts);
        };
        report(4);
        report(floor);
        assert_eq!(w.epochs()[0].get(), raised.unwrap_or(5), "floor {floor}");
        let refused = Note::FloorRefused(executor(1), ShardId(0), ShardEpoch::new(floor).unwrap());
        assert_eq!(w.noted(&refused), usize::from(floor > greatest));
    }
}

/// R40: a floor that is reported again and again while it waits costs one write.
#[test]
fn an_epoch_floor_waits_for_the_next_pass_and_the_greatest_counts() {
    let mut w = World::new(1);
    w.register(1);
    w.prompt = false;
    for floor in [10, 30, 30, 20] {
        let mut facts = w.facts(1, w.up_to_date_claim(1), 1);
        facts.epoch_floors = vec![(ShardId(0), ShardEpoch::new(floor).unwrap())];
        w.renew_with(facts);
    }
    w.be_prompt();
    assert_eq!(w.epochs()[0].get(), 31);
    assert!(w.commits.is_empty());
    let (written, revision) = (w.written.len(), w.stored.revision);
    w.pass_time(LEASE / 2);
    assert_eq!((w.written.len(), w.stored.revision), (written, revision), "R32: it is not raised again");
}

/// R6: a shorter lease is stored once it has outrun every deadline told, and not before.
#[test]
fn a_shorter_lease_is_stored_only_when_no_longer_one_is_outstanding() {
    let mut w = World::new(8);
    w.register(1);
    let shorter = Settings { lease: Ttl::from_ms(30_000).unwrap(), ..settings() };
    let mut next = World::take_over(Arc::clone(&w.stored), shorter, ManagerId::from_u128(2), w.now);
    let stored = |w: &World| w.stored.executor(executor(1)).unwrap().lease_length.as_ms();
    let told = next.deadline(1);
    for _ in 0..3 {
        next.pass_time(Duration::from_millis(9_999));
        next.renew(1);
        assert_eq!(stored(&next), 60_000, "it could still be living on the longer one");
    }
    next.pass_time(told.minus(Duration::from_secs(30)).since(next.now));
    next.renew(1);
    next.pass_time(Duration::from_secs(10));
    assert_eq!(stored(&next), 30_000);
    assert!(next.deadline(1) <= told, "and it is granted the shorter one");
}

/// R6: a lease as long as it should be is not written.
#[test]
fn a_lease_length_that_has_not_changed_is_not_stored_again() {
    let mut w = World::new(8);
    w.register(1);
    let mut next = World::take_over(Arc::clone(&w.stored), settings(), ManagerId::from_u128(2), w.now);
    for _ in 0..6 {
        next.pass_time(LEASE / 3);
        next.renew(1);
    }
    assert_eq!(next.stored.revision, w.stored.revision);
    assert!(next.written.is_empty());
}

/// R7: nobody waits, so the store is not asked.
#[test]
fn a_confirmation_begins_only_while_somebody_waits() {
    let mut w = World::new(8);
    w.prompt = false;
    w.step(Event::Confirmed(Confirmation::Leads));
    assert_eq!(w.confirms, 0);
    w.be_prompt();
    w.register(1);
    w.prompt = false;
    w.renew(1);
    w.confirm();
    assert_eq!(w.confirms, 0);
}

/// R16: gone between its request and the confirmation.
#[test]
fn whoever_leaves_while_its_renewal_waits_is_not_granted() {
    let mut w = World::new(8);
    w.register(1);
    w.prompt = false;
    let renewal = w.renew(1);
    w.deregister(1);
    w.commit_next();
    w.confirm();
    assert_eq!(*w.refusal(renewal), Refusal::UnknownExecutor);
}

/// R35: superseded between its request and the confirmation.
#[test]
fn whoever_is_superseded_while_its_renewal_waits_is_not_granted() {
    let mut w = World::new(8);
    w.register(1);
    let before = w.deadline(1);
    w.now = w.now.plus(Duration::from_secs(1));
    w.prompt = false;
    let renewal = w.renew(1);
    w.ask_to_register(2, World::registration(2, "e1", "127.0.0.1:5000"));
    w.commit_next();
    w.confirm();
    assert_eq!(*w.refusal(renewal), Refusal::Superseded);
    assert_eq!(w.deadline(1), before, "its shards move when its lease ends, never later");
}

/// R46: the refusal comes at a whole lease, not before, and grants before it are numbered one by one.
#[test]
fn a_grant_unheard_for_exactly_a_lease_is_the_last() {
    for (waits, granted) in [(LEASE - Duration::from_millis(1), true), (LEASE, false)] {
        let mut w = World::new(8);
        let first = w.register(1);
        w.prompt = false;
        w.now = w.now.plus(LEASE / 2);
        let second = w.renew_with(w.facts(1, w.up_to_date_claim(1), 0));
        w.confirm();
        assert_eq!((w.grant(first).seq, w.grant(second).seq), (GrantSeq(1), GrantSeq(2)));
        w.now = w.now.minus(LEASE / 2).plus(waits);
        let third = w.renew_with(w.facts(1, w.up_to_date_claim(1), 0));
        w.confirm();
        assert_eq!(matches!(w.replies[&third], Reply::Granted(_)), granted);
        assert_eq!(w.noted(&Note::Unheard(executor(1))), usize::from(!granted));
    }
}

/// R46: having heard a later grant is having heard.
#[test]
fn hearing_any_grant_since_the_first_unheard_one_is_hearing() {
    for (heard, granted) in [(0, false), (1, true), (2, true)] {
        let mut w = World::new(8);
        w.register(1);
        w.pass_time(LEASE / 2);
        w.renew_with(w.facts(1, w.up_to_date_claim(1), 0));
        w.pass_time(LEASE / 2);
        let request = w.renew_with(w.facts(1, w.up_to_date_claim(1), heard));
        assert_eq!(matches!(w.replies[&request], Reply::Granted(_)), granted, "heard {heard}");
    }
}

/// R40: every shard that storage is ahead of, in one write.
#[test]
fn the_epoch_floors_of_one_renewal_are_raised_together() {
    let mut w = World::new(2);
    w.register(1);
    let mut facts = w.facts(1, w.up_to_date_claim(1), 1);
    facts.epoch_floors = [0, 1].map(|shard| (ShardId(shard), ShardEpoch::new(10).unwrap())).to_vec();
    let revision = w.stored.revision;
    w.renew_with(facts);
    assert_eq!(w.epochs().iter().map(|epoch| epoch.get()).collect::<Vec<_>>(), [11, 11]);
    assert_eq!(w.stored.revision, revision.next());
}
