//! Commands on a draft: random histories, and the table of what each does.
#![allow(clippy::unwrap_used, reason = "tests")]

use leasehold_model::command::{Cause, Changes, Command, Draft, Move, Outcome};
use leasehold_model::message::Weight;
use leasehold_model::plan::{Limits, Plan, plan};
use leasehold_model::refusal::Credential;
use leasehold_model::state::{CHUNK, ClusterState, Executor, Head, Shard, ShardState};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Refusal, Revision, ShardCount, ShardEpoch, ShardId,
    Ttl,
};
use quickcheck::{Arbitrary, Gen, quickcheck};
use std::collections::BTreeMap;

const SHARDS: u32 = 6;

fn id(number: u8) -> ExecutorId {
    ExecutorId::from_u128(number.into())
}

fn epoch(number: u64) -> ShardEpoch {
    ShardEpoch::new(number).unwrap()
}

fn shard_row(number: u64, state: ShardState) -> Shard {
    Shard { epoch: epoch(number), state }
}

fn executor(name: u8, port: u8) -> Executor {
    Executor {
        name: ExecutorName::new(format!("executor-{name}")).unwrap(),
        address: Address::new(format!("localhost:{}", u16::from(port) + 1)).unwrap(),
        zone: None,
        weight: Weight::default(),
        lease_length: Ttl::from_ms(60_000).unwrap(),
        key_hash: LeaseKeyHash([7; 32]),
        draining: false,
        superseded: false,
        registered_at_ms: 0,
    }
}

fn register(number: u8, name: u8, port: u8, replaces: Option<u8>) -> Command {
    Command::Register { id: id(number), executor: executor(name, port), replaces: replaces.map(id) }
}

fn empty(shards: u32) -> ClusterState {
    ClusterState::empty(ClusterName::new("test").unwrap(), ShardCount::new(shards).unwrap())
}

fn head(revision: u64, shards: u32) -> Head {
    let cluster = ClusterName::new("test").unwrap();
    Head { cluster, shard_count: ShardCount::new(shards).unwrap(), revision: Revision(revision) }
}

/// Commits `commands` in one write. Each must change something.
fn commit(state: &ClusterState, commands: &[Command]) -> (ClusterState, Changes) {
    let mut draft = Draft::on(state);
    for command in commands {
        assert_eq!(draft.apply(command), Ok(Outcome::Changed), "{command:?}");
    }
    draft.finish()
}

fn commit_one(state: &ClusterState, command: Command) -> (Result<Outcome, Refusal>, ClusterState, Changes) {
    let mut draft = Draft::on(state);
    let outcome = draft.apply(&command);
    let (state, changes) = draft.finish();
    (outcome, state, changes)
}

/// Executors 1 and 2 (names and ports the same numbers); shard 0 released by 1 at revision 2, the rest owned.
fn releasing() -> ClusterState {
    let (state, _) = commit(&empty(4), &[register(1, 1, 1, None), register(2, 2, 2, None)]);
    let (state, _) = commit(&state, &[Command::Plan(plan(&state, &Limits::none()))]);
    let releases = vec![(ShardId(0), id(1))];
    commit(&state, &[Command::Plan(Plan { releases, ..Plan::default() })]).0
}

fn confirm(executor: u8, applied: u64, shards: &[u32]) -> Command {
    let shards = shards.iter().copied().map(ShardId).collect();
    Command::ConfirmRelease { executor: id(executor), applied: Revision(applied), shards }
}

/// What a store does with the changes.
fn replay(old: &ClusterState, new_revision: Revision, changes: &Changes) -> ClusterState {
    let mut shards: BTreeMap<ShardId, Shard> = old.shards().map(|(shard, row)| (shard, *row)).collect();
    let mut executors: BTreeMap<ExecutorId, Executor> =
        old.executors().map(|(id, row)| (id, Executor::clone(row))).collect();
    shards.extend(changes.shards.iter().map(|(shard, row)| (*shard, *row)));
    changes.removed.iter().for_each(|id| drop(executors.remove(id)));
    executors.extend(changes.executors.iter().map(|(id, row)| (*id, Executor::clone(row))));
    let head = Head { cluster: old.cluster.clone(), shard_count: old.shard_count, revision: new_revision };
    ClusterState::from_rows(head, shards, executors).unwrap()
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Command(Command),
    /// Plans on the state as it is and carries that out.
    Planned(Limits),
    /// The executor confirms everything that it can have heard of, and more.
    Confirmed(u8, u8),
    /// Ends the write.
    Commit,
}

fn pick(g: &mut Gen, below: u8) -> u8 {
    u8::arbitrary(g) % below
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let shard = ShardId(u32::from(pick(g, 7)));
        let number = pick(g, 7);
        Self::Command(match pick(g, 14) {
            0..=2 => return Self::Commit,
            3 | 4 => {
                let keep_only = (0..pick(g, 3)).map(|_| id(pick(g, 7))).collect();
                return Self::Planned(Limits { max_moves: pick(g, 5).into(), keep_only });
            }
            5 | 6 => return Self::Confirmed(number, pick(g, 4)),
            7 | 8 => register(number, pick(g, 4), pick(g, 3), Option::<u8>::arbitrary(g).map(|number| number % 7)),
            9 => Command::Deregister(id(number)),
            10 => Command::Reap((0..pick(g, 3)).map(|_| id(pick(g, 7))).collect()),
            11 => Command::SetDraining(id(number), bool::arbitrary(g)),
            12 if bool::arbitrary(g) => {
                Command::SetLeaseLength(id(number), Ttl::from_ms(60_000 + u64::from(pick(g, 2))).unwrap())
            }
            12 => {
                let floors = [0, 1, 2, 5, 1 << 40, ShardEpoch::MAX.get() - (1 << 32), ShardEpoch::MAX.get()];
                Command::RaiseEpoch { shard, above: epoch(floors[usize::from(pick(g, 7))]) }
            }
            // A plan of another time: none of it need fit.
            _ => Command::Plan(Plan {
                revision: Revision(0),
                releases: vec![(shard, id(number)), (ShardId(1), id(1))],
                grants: vec![(shard, id(number)), (ShardId(2), id(pick(g, 7)))],
            }),
        })
    }
}

/// Everything that was ever told, and the rules over it.
#[derive(Default)]
struct History {
    told: BTreeMap<(ShardId, ShardEpoch), ExecutorId>,
    highest: BTreeMap<ShardId, ShardEpoch>,
}

impl History {
    fn take(&mut self, change: &Move) {
        assert!(change.to.epoch >= change.from.epoch, "S3: {change:?}");
        let highest = self.highest.entry(change.shard).or_default();
        assert!(change.to.epoch >= *highest, "S3: {change:?} below {highest}");
        *highest = change.to.epoch;
        if let ShardState::Owned(owner) = change.to.state {
            let other = *self.told.entry((change.shard, change.to.epoch)).or_insert(owner);
            assert_eq!(other, owner, "S2: {change:?}");
        }
        if let (ShardState::Owned(from), ShardState::Owned(to)) = (change.from.state, change.to.state) {
            assert_eq!(from, to, "R25: {change:?} in one step");
        }
    }

    fn take_write(&mut self, old: &ClusterState, new: &ClusterState, changes: &Changes) {
        new.check().unwrap();
        assert_eq!(new.revision, if changes.is_empty() { old.revision } else { old.revision.next() });
        assert_eq!(&replay(old, new.revision, changes), new, "the changes are what changed: {changes:?}");
        changes.moves.iter().for_each(|change| self.take(change));
        let everybody = || old.executors().chain(new.executors()).map(|(id, _)| id);
        let (before, after) = (old.holdings(everybody()), new.holdings(everybody()));
        for (executor, _) in new.executors() {
            let told_anew = changes.touched.contains(&executor);
            assert!(told_anew || before[&executor] == after[&executor], "{executor} has another set: {changes:?}");
        }
        assert!(changes.touched.iter().all(|id| new.executor(*id).is_some()), "only those who are there");
    }
}

quickcheck! {
    /// S2, S3, S4, R24, R25, R32: over any history of writes of any commands.
    fn any_history_of_commands_keeps_the_invariants(steps: Vec<Step>) -> bool {
        let mut history = History::default();
        let mut state = empty(SHARDS);
        let mut draft = Draft::on(&state);
        for step in steps.into_iter().chain([Step::Commit]) {
            let command = match step {
                Step::Command(command) => command,
                Step::Planned(limits) => Command::Plan(plan(draft.state(), &limits)),
                Step::Confirmed(number, behind) => {
                    confirm(number, (state.revision.0 + 2).saturating_sub(behind.into()), &[0, 1, 2, 3, 4, 5, 6])
                }
                Step::Commit => {
                    let (next, changes) = draft.finish();
                    history.take_write(&state, &next, &changes);
                    state = next;
                    draft = Draft::on(&state);
                    continue;
                }
            };
            let before = draft.clone();
            match draft.apply(&command) {
                Ok(Outcome::Changed) => assert_ne!(draft, before, "{command:?}"),
                Ok(Outcome::Unchanged) | Err(_) => assert_eq!(draft, before, "{command:?} left a trace"),
            }
        }
        true
    }
}

/// R32: so that a standby can check the shard count.
#[test]
fn the_first_write_on_an_empty_store_is_made_even_if_nothing_changes() {
    let (state, changes) = commit(&empty(4), &[]);
    assert_eq!(changes.first, Some(head(1, 4)));
    assert!(!changes.is_empty());
    assert_eq!(state.revision, Revision(1));
    let (again, changes) = commit(&state, &[]);
    assert!(changes.is_empty());
    assert_eq!(again, state, "and no other that changes nothing");
}

#[test]
fn any_changed_row_is_to_be_written() {
    let shards = [(ShardId(0), shard_row(1, ShardState::Unassigned))].into();
    assert!(!Changes { shards, ..Changes::default() }.is_empty());
    let executors = [(id(1), executor(1, 1).into())].into();
    assert!(!Changes { executors, ..Changes::default() }.is_empty());
    assert!(!Changes { removed: [id(1)].into(), ..Changes::default() }.is_empty());
    assert!(!Changes { first: Some(head(1, 1)), ..Changes::default() }.is_empty());
    assert!(Changes { touched: [id(1)].into(), ..Changes::default() }.is_empty());
}

/// R34, S7.
#[test]
fn registering_the_same_life_again_changes_nothing() {
    let (state, changes) = commit(&empty(4), &[register(1, 1, 1, None)]);
    assert_eq!(changes.executors.keys().collect::<Vec<_>>(), [&id(1)]);
    assert_eq!(changes.touched, [id(1)].into());
    let (outcome, again, changes) = commit_one(&state, register(1, 1, 1, Some(1)));
    assert_eq!(outcome, Ok(Outcome::Unchanged));
    assert!(changes.is_empty());
    assert_eq!(again, state);
}

/// R36: the id alone does not make somebody that life.
#[test]
fn registering_a_known_life_with_another_key_is_refused() {
    let (state, _) = commit(&empty(4), &[register(1, 1, 1, None)]);
    let thief = Executor { key_hash: LeaseKeyHash([8; 32]), ..executor(1, 1) };
    let command = Command::Register { id: id(1), executor: thief, replaces: None };
    let (outcome, after, _) = commit_one(&state, command);
    assert_eq!(outcome, Err(Refusal::BadCredential(Credential::LeaseKey)));
    assert_eq!(after, state);
}

/// R35, same address, answered by the new process; case 36.
#[test]
fn a_predecessor_that_is_known_to_be_gone_is_released_at_once() {
    let state = releasing();
    let (next, changes) = commit(&state, &[register(3, 1, 1, Some(1))]);
    assert_eq!(next.executor(id(1)), None);
    assert_eq!(changes.removed, [id(1)].into());
    assert_eq!(changes.touched, [id(3)].into());
    assert_eq!(next.totals().releasing, 0, "what it was still releasing is free as well");
    assert!(changes.moves.iter().all(|change| change.cause == Cause::Replaced));
    let freed: Vec<ShardId> = changes.moves.iter().map(|change| change.shard).collect();
    assert_eq!(freed, [ShardId(0), ShardId(1)]);
    let (granted, _) = commit(&next, &[Command::Plan(plan(&next, &Limits::none()))]);
    for shard in freed {
        assert!(granted.shard(shard).unwrap().epoch > state.shard(shard).unwrap().epoch, "new epochs");
    }
}

/// R35, another address.
#[test]
fn a_predecessor_elsewhere_is_superseded_and_keeps_its_shards_until_they_are_proven_free() {
    let state = releasing();
    let (next, changes) = commit(&state, &[register(3, 1, 9, None)]);
    assert!(next.executor(id(1)).unwrap().superseded);
    assert!(changes.shards.is_empty() && changes.removed.is_empty());
    assert_eq!(next.named(&executor(1, 1).name).unwrap().0, id(3));
    let (outcome, after, _) = commit_one(&next, register(1, 1, 1, None));
    assert_eq!(outcome, Err(Refusal::Superseded), "it cannot register itself back");
    assert_eq!(after, next);
    let grants = vec![(ShardId(1), id(1))];
    let (freed, _) = commit(&next, &[Command::Deregister(id(1))]);
    let (outcome, ..) = commit_one(&freed, Command::Plan(Plan { grants, ..Plan::default() }));
    assert_eq!(outcome, Ok(Outcome::Unchanged));
}

/// R35: whatever the caller believes, a life is replaced only under its own name and address.
#[test]
fn only_a_life_with_the_same_name_and_address_is_replaced() {
    let state = releasing();
    for (name, port, replaces) in [(1, 9, 1), (9, 1, 1), (1, 1, 2), (1, 1, 5)] {
        let (next, changes) = commit(&state, &[register(3, name, port, Some(replaces))]);
        assert!(changes.removed.is_empty(), "{name} {port} {replaces}");
        assert_eq!(next.executor(id(1)).unwrap().superseded, name == 1);
        assert!(!next.executor(id(2)).unwrap().superseded);
    }
}

/// R35: the new process is at the address of a life that was superseded meanwhile.
#[test]
fn a_superseded_life_that_is_gone_is_replaced_as_well() {
    let (state, _) = commit(&releasing(), &[register(3, 1, 9, None)]);
    let (next, changes) = commit(&state, &[register(4, 1, 1, Some(1))]);
    assert_eq!(changes.removed, [id(1)].into());
    assert!(next.executor(id(3)).unwrap().superseded);
    assert_eq!(next.named(&executor(1, 1).name).unwrap().0, id(4));
}

/// R26 (a): the claim must be of the releasing commit or later, from that executor, and of a state that was told.
#[test]
fn an_older_claim_proves_nothing() {
    let state = releasing();
    assert_eq!(state.revision, Revision(3));
    let kept = ShardState::Releasing { from: id(1), since: Revision(3) };
    assert_eq!(state.shard(ShardId(0)).unwrap().state, kept);
    for (executor, applied) in [(1, 2), (1, 0), (2, 3), (5, 3), (1, 4), (1, i64::MAX as u64)] {
        let (outcome, after, _) = commit_one(&state, confirm(executor, applied, &[0]));
        assert_eq!((outcome, &after), (Ok(Outcome::Unchanged), &state), "{executor} at {applied}");
    }
    let (next, changes) = commit(&state, &[confirm(1, 3, &[0, 1, 2, 99])]);
    assert_eq!(next.shard(ShardId(0)).unwrap().state, ShardState::Unassigned);
    assert_eq!(changes.shards.len(), 1, "what it owns is no release, whatever the claim lacks");
    assert_eq!(changes.moves[0].cause, Cause::Released);
    assert!(changes.touched.is_empty(), "its set is the same");
}

/// R26: a release in the write under way has been told to nobody.
#[test]
fn a_release_of_the_same_write_cannot_be_confirmed_in_it() {
    let (state, _) = commit(&empty(4), &[register(1, 1, 1, None)]);
    let (state, _) = commit(&state, &[Command::Plan(plan(&state, &Limits::none()))]);
    let mut draft = Draft::on(&state);
    let releases = vec![(ShardId(0), id(1))];
    assert_eq!(draft.apply(&Command::Plan(Plan { releases, ..Plan::default() })), Ok(Outcome::Changed));
    let next = state.revision.next().0;
    assert_eq!(draft.apply(&confirm(1, next, &[0])), Ok(Outcome::Unchanged));
    assert_eq!(draft.state().totals().releasing, 1);
}

/// R25, R29: the way of a shard, and what each step is called in the log.
#[test]
fn a_shard_moves_in_two_commits_under_a_higher_epoch() {
    let state = releasing();
    let to_its_next = Command::Plan(Plan { grants: vec![(ShardId(0), id(2))], ..Plan::default() });
    let (outcome, ..) = commit_one(&state, to_its_next.clone());
    assert_eq!(outcome, Ok(Outcome::Unchanged), "not before it is proven free");
    let (freed, _) = commit(&state, &[confirm(1, 3, &[0])]);
    let (moved, changes) = commit(&freed, std::slice::from_ref(&to_its_next));
    assert_eq!(moved.shard(ShardId(0)), Some(&shard_row(2, ShardState::Owned(id(2)))));
    assert_eq!(changes.moves.len(), 1);
    assert_eq!((changes.moves[0].cause, &changes.touched), (Cause::Assign, &[id(2)].into()));
    let back = Command::Plan(Plan { grants: vec![(ShardId(0), id(1))], ..Plan::default() });
    let (to_itself, _) = commit(&freed, &[back]);
    assert_eq!(
        to_itself.shard(ShardId(0)),
        Some(&shard_row(2, ShardState::Owned(id(1)))),
        "a new epoch also for itself"
    );
}

/// R24: of an old plan, what fits is carried out.
#[test]
fn of_a_stale_plan_only_what_still_fits_is_carried_out() {
    let state = releasing();
    let releases = vec![(ShardId(0), id(1)), (ShardId(1), id(2)), (ShardId(2), id(2)), (ShardId(99), id(1))];
    let grants = vec![(ShardId(0), id(2)), (ShardId(3), id(1)), (ShardId(99), id(1))];
    let (next, changes) = commit(&state, &[Command::Plan(Plan { releases, grants, ..Plan::default() })]);
    assert_eq!(changes.shards.keys().collect::<Vec<_>>(), [&ShardId(2)]);
    let since = state.revision.next();
    assert_eq!(next.shard(ShardId(2)).unwrap().state, ShardState::Releasing { from: id(2), since });
    assert_eq!((changes.moves[0].cause, &changes.touched), (Cause::Rebalance, &[id(2)].into()));
}

/// Case 11.
#[test]
fn a_plan_gives_nothing_to_somebody_who_leaves_or_has_left() {
    let (state, _) = commit(&empty(4), &[register(1, 1, 1, None), register(2, 2, 2, None)]);
    let (state, _) = commit(&state, &[Command::SetDraining(id(1), true), register(3, 2, 9, None)]);
    let grants = vec![(ShardId(0), id(1)), (ShardId(1), id(2)), (ShardId(2), id(9))];
    let (outcome, after, _) = commit_one(&state, Command::Plan(Plan { grants, ..Plan::default() }));
    assert_eq!((outcome, after), (Ok(Outcome::Unchanged), state));
}

/// R26 (b) and (c).
#[test]
fn leaving_and_lapsing_free_everything_an_executor_held_or_was_releasing() {
    let state = releasing();
    let (left, changes) = commit(&state, &[Command::Deregister(id(1))]);
    assert_eq!(left.executors().map(|(id, _)| id).collect::<Vec<_>>(), [id(2)]);
    assert_eq!(changes.shards.keys().collect::<Vec<_>>(), [&ShardId(0), &ShardId(1)]);
    assert!(changes.moves.iter().all(|change| change.cause == Cause::Deregistered));
    assert_eq!((&changes.removed, &changes.touched), (&[id(1)].into(), &[].into()));
    let (lapsed, changes) = commit(&state, &[Command::Reap(vec![id(9), id(2), id(1), id(2)])]);
    assert_eq!((lapsed.executors().len(), lapsed.totals().unassigned), (0, 4));
    assert_eq!(changes.removed, [id(1), id(2)].into());
    assert!(changes.moves.iter().all(|change| change.cause == Cause::Reaped));
    let epochs = |state: &ClusterState| state.shards().map(|(_, row)| row.epoch).collect::<Vec<_>>();
    assert_eq!(epochs(&lapsed), epochs(&state), "S3: epochs outlive their owners");
}

#[test]
fn commands_about_somebody_unknown_are_refused_and_reaping_them_is_nothing() {
    let (state, _) = commit(&empty(4), &[register(1, 1, 1, None)]);
    let length = Ttl::from_ms(1).unwrap();
    for command in
        [Command::Deregister(id(9)), Command::SetLeaseLength(id(9), length), Command::SetDraining(id(9), true)]
    {
        let (outcome, after, _) = commit_one(&state, command);
        assert_eq!((outcome, &after), (Err(Refusal::UnknownExecutor), &state));
    }
    let (outcome, after, _) = commit_one(&state, Command::Reap(vec![id(9)]));
    assert_eq!((outcome, after), (Ok(Outcome::Unchanged), state));
}

/// R6: written before the first grant of a longer one.
#[test]
fn a_lease_length_and_a_drain_are_recorded_once() {
    let (state, _) = commit(&empty(4), &[register(1, 1, 1, None)]);
    let longer = Ttl::from_ms(90_000).unwrap();
    for command in [Command::SetLeaseLength(id(1), longer), Command::SetDraining(id(1), true)] {
        let (next, changes) = commit(&state, std::slice::from_ref(&command));
        assert_eq!(changes.executors.keys().collect::<Vec<_>>(), [&id(1)]);
        assert!(changes.touched.is_empty(), "its set is the same");
        let row = next.executor(id(1)).unwrap();
        assert!(row.lease_length == longer || row.draining);
        let (outcome, ..) = commit_one(&next, command);
        assert_eq!(outcome, Ok(Outcome::Unchanged));
    }
}

/// R40, case 4.
#[test]
fn an_epoch_floor_mints_the_owner_a_new_epoch_above_it_once() {
    let state = releasing();
    let raise = |shard, above| Command::RaiseEpoch { shard: ShardId(shard), above: epoch(above) };
    let (next, changes) = commit(&state, &[raise(1, 40)]);
    assert_eq!(next.shard(ShardId(1)), Some(&shard_row(41, ShardState::Owned(id(1)))));
    assert_eq!((changes.moves[0].cause, &changes.touched), (Cause::EpochFloor, &[id(1)].into()));
    for below in [40, 1, 0] {
        let (outcome, ..) = commit_one(&next, raise(1, below));
        assert_eq!(outcome, Ok(Outcome::Unchanged), "told already");
    }
    let (next, _) = commit(&next, &[raise(1, 41)]);
    assert_eq!(next.shard(ShardId(1)).unwrap().epoch, epoch(42), "another writer had the same epoch");
    let (next, changes) = commit(&next, &[raise(0, 7)]);
    assert_eq!(next.shard(ShardId(0)).unwrap().epoch, epoch(8));
    assert!(changes.touched.is_empty(), "nobody owns it");
    let (outcome, ..) = commit_one(&empty(4), raise(2, 0));
    assert_eq!(outcome, Ok(Outcome::Unchanged), "a floor of 0 records nothing");
}

/// R40, case 33.
#[test]
fn a_floor_that_would_exhaust_the_epochs_or_names_no_shard_is_refused() {
    let state = releasing();
    let greatest = ShardEpoch::MAX.get() - (1 << 32);
    for above in [greatest + 1, ShardEpoch::MAX.get() - 1, ShardEpoch::MAX.get()] {
        let (outcome, after, _) = commit_one(&state, Command::RaiseEpoch { shard: ShardId(1), above: epoch(above) });
        let Err(Refusal::InvalidField(invalid)) = outcome else { panic!("{above}: {outcome:?}") };
        assert_eq!((invalid.field.as_str(), invalid.value), ("epoch_floors.epoch", above.to_string()));
        assert_eq!(invalid.accepted, "0..=9223372032559808511");
        assert_eq!(after, state);
    }
    let (next, _) = commit(&state, &[Command::RaiseEpoch { shard: ShardId(1), above: epoch(greatest) }]);
    assert_eq!(next.shard(ShardId(1)).unwrap().epoch, epoch(greatest + 1));
    let (outcome, ..) = commit_one(&state, Command::RaiseEpoch { shard: ShardId(4), above: epoch(3) });
    let Err(Refusal::InvalidField(invalid)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((invalid.field.as_str(), invalid.accepted.as_str()), ("epoch_floors.shard", "0..4"));
}

/// Case 33: it never wraps.
#[test]
fn a_shard_at_the_greatest_epoch_is_granted_no_more() {
    let row = Shard { epoch: ShardEpoch::MAX, state: ShardState::Unassigned };
    let state = ClusterState::from_rows(head(5, 2), [(ShardId(0), row)], [(id(1), executor(1, 1))]).unwrap();
    let grants = vec![(ShardId(0), id(1)), (ShardId(1), id(1))];
    let (next, _) = commit(&state, &[Command::Plan(Plan { grants, ..Plan::default() })]);
    assert_eq!(next.shard(ShardId(0)), Some(&row));
    assert_eq!(next.shard(ShardId(1)), Some(&shard_row(1, ShardState::Owned(id(1)))));
}

/// R34: two commands of one write, in either order.
#[test]
fn a_life_that_leaves_and_comes_back_in_one_write_is_there_and_free_of_shards() {
    let state = releasing();
    let (next, changes) = commit(&state, &[Command::Deregister(id(1)), register(1, 1, 1, None)]);
    assert!(next.executor(id(1)).is_some() && changes.removed.is_empty());
    assert_eq!(replay(&state, next.revision, &changes), next);
    let (next, changes) = commit(&state, &[register(5, 5, 5, None), Command::Deregister(id(5))]);
    assert!(next.executor(id(5)).is_none() && changes.executors.is_empty() && changes.touched.is_empty());
}

#[test]
fn every_cause_has_a_word_of_its_own() {
    let all = [
        (Cause::Assign, "assign"),
        (Cause::Rebalance, "rebalance"),
        (Cause::Released, "released"),
        (Cause::Deregistered, "deregistered"),
        (Cause::Reaped, "reaped"),
        (Cause::Replaced, "replaced"),
        (Cause::EpochFloor, "epoch_floor"),
    ];
    assert!(all.iter().all(|(cause, word)| cause.as_str() == *word));
}

/// Each broken invariant is named when a state is put together from rows.
#[test]
fn stored_rows_that_break_an_invariant_are_refused_by_name() {
    let lives = || vec![(id(1), executor(1, 1)), (id(2), executor(2, 2))];
    let with = |shard, row, lives| ClusterState::from_rows(head(5, 4), [(ShardId(shard), row)], lives);
    let invariant = |result: Result<ClusterState, leasehold_model::state::Broken>| {
        let broken = result.unwrap_err();
        assert!(broken.to_string().starts_with(broken.invariant));
        broken.invariant
    };
    assert!(with(3, shard_row(1, ShardState::Owned(id(1))), lives()).is_ok());
    let beyond = with(4, shard_row(1, ShardState::Unassigned), lives());
    assert_eq!(invariant(beyond), "every shard is below shard_count");
    let unknown = with(0, shard_row(1, ShardState::Owned(id(3))), lives());
    assert_eq!(invariant(unknown), "a shard's executor is registered");
    let unknown = with(0, shard_row(1, ShardState::Releasing { from: id(3), since: Revision(1) }), lives());
    assert_eq!(invariant(unknown), "a shard's executor is registered");
    let without_epoch = with(0, shard_row(0, ShardState::Owned(id(1))), lives());
    assert_eq!(invariant(without_epoch), "an owned shard has an epoch");
    let releasing =
        |since| with(0, shard_row(1, ShardState::Releasing { from: id(1), since: Revision(since) }), lives());
    assert!(releasing(5).is_ok());
    assert_eq!(invariant(releasing(6)), "a release was committed in the past");
    let twins = |superseded| vec![(id(1), executor(1, 1)), (id(2), Executor { superseded, ..executor(1, 2) })];
    assert!(with(0, shard_row(0, ShardState::Unassigned), twins(true)).is_ok());
    assert_eq!(invariant(with(0, shard_row(0, ShardState::Unassigned), twins(false))), "one life per name");
}

#[test]
fn a_state_answers_who_has_what() {
    let state = releasing();
    let holdings = state.holdings([id(1), id(2), id(9)]);
    let shards = |number| holdings[&id(number)].iter().map(|(shard, epoch)| (shard.0, epoch.get())).collect::<Vec<_>>();
    assert_eq!((shards(1), shards(2), shards(9)), (vec![(1, 1)], vec![(2, 1), (3, 1)], vec![]));
    let totals = state.totals();
    assert_eq!((totals.owned, totals.releasing, totals.unassigned), (3, 1, 0));
    let owner = state.owner(id(2)).unwrap();
    assert_eq!((owner.executor, owner.name.as_str(), owner.address.as_str()), (id(2), "executor-2", "localhost:3"));
    assert_eq!(state.owner(id(9)), None);
    let users: Vec<_> = state.shards().map(|(_, row)| row.state.executor()).collect();
    assert_eq!(users, [Some(id(1)), Some(id(1)), Some(id(2)), Some(id(2))]);
    assert_eq!(ShardState::Unassigned.executor(), None);
    assert_eq!(state.shard(ShardId(4)), None);
}

/// Whatever the count, there are as many rows as shards, and a copy does not see what is written to the other.
#[test]
fn shards_are_kept_in_chunks_that_nobody_notices() {
    let chunk = u32::try_from(CHUNK).unwrap();
    for count in [1, chunk - 1, chunk, chunk + 1, 3 * chunk - 5, ShardCount::MAX] {
        let state = empty(count);
        assert_eq!(state.shards().count(), count as usize);
        assert!(state.shard(ShardId(count - 1)).is_some() && state.shard(ShardId(count)).is_none());
        let (next, _) = commit(&state, &[Command::RaiseEpoch { shard: ShardId(count - 1), above: epoch(9) }]);
        assert_eq!(state.shard(ShardId(count - 1)).unwrap().epoch, epoch(0));
        let raised: Vec<ShardId> =
            next.shards().filter(|(_, row)| row.epoch == epoch(10)).map(|(shard, _)| shard).collect();
        assert_eq!(raised, [ShardId(count - 1)]);
    }
}
