//! A crash at each point of a move.
//!
//! A move is two steps: the object is put (in blob storage only), then the list and the record change in one write. At each of them the owner
//! may be refused, lose its request or its answer, or die just before or just after.

use super::scripted::Scripted;
use super::{ChunkFixture, EVERYTHING, filled};
use crate::conformance::oplog::{PATIENCE, SHARD, agent, at, entry, fenced, indexes, keyed, writer};
use crate::oplog::layers::blobs::{BlobCall, MemoryBlobs};
use crate::oplog::layers::{Archive, Layered, Moved, Upto};
use crate::oplog::memory::Fault;
use crate::oplog::{EntryIndex, Error, Gate, OplogStore, Writer};
use leasehold_model::AgentId;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The step that a fault meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The object is put.
    Put,
    /// The list and the record are written.
    List,
}

/// What happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Refused,
    RequestLost,
    AnswerLost,
    /// The owner dies before it is carried out, or after.
    Died {
        carried_out: bool,
    },
}

const ENDS: [End; 5] = [
    End::Refused,
    End::RequestLost,
    End::AnswerLost,
    End::Died { carried_out: false },
    End::Died { carried_out: true },
];

impl End {
    fn fault(self, gate: &Gate) -> Fault {
        match self {
            Self::Refused => Fault::Refuse,
            Self::RequestLost => Fault::LoseRequest,
            Self::AnswerLost => Fault::LoseAnswer,
            Self::Died { carried_out: false } => Fault::HoldBefore(gate.clone()),
            Self::Died { carried_out: true } => Fault::HoldAfter(gate.clone()),
        }
    }

    /// Whether the step was carried out.
    const fn done(self) -> bool {
        matches!(self, Self::AnswerLost | Self::Died { carried_out: true })
    }
}

/// One place for chunks, opened by several processes.
struct Place<'a> {
    fixture: &'a dyn ChunkFixture,
    /// `None`: chunks stand in the list.
    blobs: Option<MemoryBlobs>,
}

impl Place<'_> {
    /// Another process's handle, which meets the fault at the step.
    async fn open(&self, fault: Option<(Step, Fault)>) -> Arc<Layered> {
        let store = self.fixture.open().await;
        let of = |step| fault.as_ref().filter(|(at, _)| *at == step).map(|(_, fault)| fault.clone());
        let store = Scripted::over(store, of(Step::List));
        Arc::new(match &self.blobs {
            None => Layered::in_list(store),
            Some(blobs) => {
                let blobs = blobs.handle();
                if let Some(fault) = of(Step::Put) {
                    blobs.script(BlobCall::Put, fault);
                }
                Layered::in_blobs(store, Arc::new(blobs))
            }
        })
    }

    /// Where the primary layer begins.
    async fn primary_from(&self, agent: &AgentId, writer: Writer) -> u64 {
        let page = self.fixture.open().await.page(agent, writer, EntryIndex(1), 1).await;
        page.expect("a page").primary_from.0
    }

    fn objects(&self) -> usize {
        self.blobs.as_ref().map_or(0, |blobs| blobs.paths().len())
    }
}

/// The first two of the three entries move.
const TWO: Upto = Upto { index: EntryIndex(3), least: 1 };

fn moving(layered: &Arc<Layered>, agent: &AgentId, writer: Writer) -> JoinHandle<Result<Moved, Error>> {
    let (layered, agent) = (Arc::clone(layered), agent.clone());
    tokio::spawn(async move { layered.archive(&agent, SHARD, writer, TWO).await })
}

/// Every crash point, in the list and in blob storage.
fn points() -> impl Iterator<Item = (bool, Step, End)> {
    let steps = [(false, Step::List), (true, Step::Put), (true, Step::List)];
    steps.into_iter().flat_map(|(blobs, step)| ENDS.map(|end| (blobs, step, end)))
}

/// What a reader needs, whoever it is.
async fn whole(layered: &Layered, (agent, writer): (&AgentId, Writer), point: &str) {
    assert_eq!(indexes(layered, agent, writer).await, [1, 2, 3], "{point}");
    assert!(layered.find(agent, writer, "a").await.expect("a read").is_some(), "{point}");
    let taken = layered.append(at(agent, writer, 4, vec![keyed("a")])).await;
    assert!(matches!(taken, Err(Error::Invalid(_))), "{point}: {taken:?}");
}

/// A crash at any point of a move: the owner, if it lives, and the next one find every entry once, and go on.
pub async fn a_move_that_was_cut_short_at_any_point_loses_and_doubles_nothing(fixture: &dyn ChunkFixture) {
    let (ours, theirs) = (writer(5, 1), writer(6, 2));
    for (number, (blobs, step, end)) in points().enumerate() {
        let place = Place { fixture, blobs: blobs.then(MemoryBlobs::default) };
        let (point, agent) = (format!("blobs {blobs}, {step:?} {end:?}"), agent(number));
        let gate = Gate::default();
        let layered = place.open(Some((step, end.fault(&gate)))).await;
        filled(&*layered, &agent, ours, vec![keyed("a"), entry(2), entry(3)]).await;
        let moving = moving(&layered, &agent, ours);
        if let End::Died { .. } = end {
            tokio::time::timeout(PATIENCE, gate.reached()).await.expect("it stands at the gate");
            moving.abort();
            assert!(moving.await.is_err(), "{point}");
        } else {
            assert!(moving.await.expect("a move").is_err(), "{point}");
        }
        let listed = step == Step::List && end.done();
        let first = if listed { 3 } else { 1 };
        assert_eq!(place.primary_from(&agent, ours).await, first, "{point}");
        assert_eq!(place.objects(), usize::from(blobs && (step == Step::List || end.done())), "{point}");
        if !matches!(end, End::Died { .. }) {
            whole(&layered, (&agent, ours), &point).await;
            let again = layered.archive(&agent, SHARD, ours, TWO).await.expect("a move");
            assert_eq!(again.entries, if listed { 0 } else { 2 }, "{point}");
            whole(&layered, (&agent, ours), &point).await;
        }
        let next = place.open(None).await;
        assert_eq!(next.claim(&agent, SHARD, theirs).await.expect("a claim").next, EntryIndex(4), "{point}");
        whole(&next, (&agent, theirs), &point).await;
        next.archive(&agent, SHARD, theirs, EVERYTHING).await.expect("a move");
        whole(&next, (&agent, theirs), &point).await;
        next.sweep_agent(SHARD, &agent).await.expect("a sweep");
        let fresh = place.open(None).await;
        whole(&fresh, (&agent, theirs), &format!("{point}: swept is what nobody needs")).await;
        let chunks = fixture.open().await.chunks(&agent, theirs, EntryIndex(1), 9).await.expect("chunks").len();
        assert_eq!(place.objects(), if blobs { chunks } else { 0 }, "{point}: nothing else is left");
    }
}

/// A frozen owner thaws in the middle of a move, after the next one has moved and written.
pub async fn a_move_that_goes_on_after_a_takeover_changes_nothing(fixture: &dyn ChunkFixture) {
    let (ours, theirs) = (writer(5, 1), writer(6, 2));
    for (number, (blobs, step)) in [(false, Step::List), (true, Step::List), (true, Step::Put)].into_iter().enumerate()
    {
        let place = Place { fixture, blobs: blobs.then(MemoryBlobs::default) };
        let (point, agent) = (format!("blobs {blobs}, {step:?}"), agent(number));
        let gate = Gate::default();
        let layered = place.open(Some((step, Fault::HoldBefore(gate.clone())))).await;
        filled(&*layered, &agent, ours, vec![keyed("a"), entry(2), entry(3)]).await;
        let moving = moving(&layered, &agent, ours);
        tokio::time::timeout(PATIENCE, gate.reached()).await.expect("it stands at the gate");
        let next = place.open(None).await;
        assert!(next.claim(&agent, SHARD, theirs).await.is_ok(), "{point}");
        let one = Upto { index: EntryIndex(2), least: 1 };
        assert_eq!(next.archive(&agent, SHARD, theirs, one).await.map(|moved| moved.entries), Ok(1), "{point}");
        gate.release();
        let late = tokio::time::timeout(PATIENCE, moving).await.expect("in time").expect("a move");
        assert_eq!(late, fenced(Some(theirs), ours), "{point}");
        assert_eq!(place.primary_from(&agent, theirs).await, 2, "{point}");
        whole(&next, (&agent, theirs), &point).await;
        let swept = next.sweep_shard(SHARD).await.expect("a sweep");
        assert_eq!(swept.deleted, u64::from(blobs), "{point}: the fenced owner's object is nobody's");
        whole(&*place.open(None).await, (&agent, theirs), &point).await;
    }
}
