//! The invariants, each in a file of its own, each looked at after every step: by what the parties were seen to do and by what they
//! hold, never by asking the code under test whether it is right.

mod admission;
mod copy_lapses_first;
mod epochs_rise;
mod epochs_separate;
mod exactly_once;
mod let_go;
mod one_leader;
mod outcomes;
mod refusals;
mod registrations;
mod stale_writers;
mod stored_first;

use crate::storage::Storage;
use crate::world::{Event, LEASE, Process, World};
use leasehold_model::state::ClusterState;
use std::sync::Arc;
use std::time::Duration;

/// What is looked at.
pub struct View {
    /// Every executor process there ever was.
    pub processes: Vec<Arc<Process>>,
    /// What is stored.
    pub state: Option<Arc<ClusterState>>,
    /// The store was put back not long ago: executors of two worlds may both hold a lease (R40).
    pub two_worlds: bool,
}

/// A violated invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which.
    pub id: &'static str,
    /// How.
    pub what: String,
}

/// One invariant. What it hears of comes in the order in which it happened.
trait Invariant {
    /// Its name in reports.
    fn id(&self) -> &'static str;

    /// Something happened.
    fn hear(&mut self, _at: Duration, _event: &Event, _view: &View) -> Result<(), String> {
        Ok(())
    }

    /// A step is over.
    fn look(&mut self, _view: &View) -> Result<(), String> {
        Ok(())
    }

    /// The simulation is over.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// All of them.
pub struct Invariants {
    all: Vec<Box<dyn Invariant>>,
    world: Arc<World>,
    state: Option<Arc<ClusterState>>,
    /// The store was put back, and no manager has read it since.
    restored: bool,
    /// When one had.
    new_world: Option<Duration>,
    /// How often they were looked at.
    pub checks: u64,
}

/// For so long after a restore executors of two worlds may both hold a lease.
const TWO_WORLDS: Duration = Duration::from_millis(LEASE.as_millis() as u64 * 2);

impl Invariants {
    /// Every invariant, before anything has happened.
    pub fn new(world: Arc<World>, storage: &Arc<Storage>) -> Self {
        let all: Vec<Box<dyn Invariant>> = vec![
            Box::new(admission::Admission),
            Box::new(epochs_separate::EpochsSeparate::default()),
            Box::new(epochs_rise::EpochsRise::default()),
            Box::new(stored_first::StoredFirst::default()),
            Box::new(copy_lapses_first::CopyLapsesFirst::default()),
            Box::new(stale_writers::StaleWriters::new(storage.look_at_oplogs())),
            Box::new(registrations::Registrations::default()),
            Box::new(one_leader::OneLeader::new(Arc::clone(&world))),
            Box::new(outcomes::Outcomes::default()),
            Box::new(let_go::LetGo),
            Box::new(refusals::Refusals::default()),
            Box::new(exactly_once::ExactlyOnce::new(storage.look_at_oplogs())),
        ];
        Self { all, world, state: None, restored: false, new_world: None, checks: 0 }
    }

    /// What is seen now.
    pub fn view(&self, now: Duration) -> View {
        let two_worlds = self.restored || self.new_world.is_some_and(|began| now < began + TWO_WORLDS);
        View { processes: self.world.processes(), state: self.state.clone(), two_worlds }
    }

    /// Looks at everything.
    pub fn check(&mut self, now: Duration) -> Result<(), Violation> {
        self.checks += 1;
        for (at, event) in self.world.happened() {
            self.hear(now, at, &event)?;
            if matches!(event, Event::TookOver { .. }) && std::mem::take(&mut self.restored) {
                self.new_world = Some(at);
                self.hear(now, at, &Event::NewWorld)?;
            }
        }
        let view = self.view(now);
        for invariant in &mut self.all {
            let id = invariant.id();
            invariant.look(&view).map_err(|what| Violation { id, what })?;
        }
        Ok(())
    }

    fn hear(&mut self, now: Duration, at: Duration, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Committed { state } => self.state = Some(Arc::clone(state)),
            Event::Restored { state } => (self.state, self.restored) = (Some(Arc::clone(state)), true),
            _ => {}
        }
        let view = self.view(now);
        for invariant in &mut self.all {
            let id = invariant.id();
            invariant.hear(at, event, &view).map_err(|what| Violation { id, what })?;
        }
        Ok(())
    }

    /// What can be said only at the end.
    pub fn finish(&mut self) -> Result<(), Violation> {
        for invariant in &mut self.all {
            let id = invariant.id();
            invariant.finish().map_err(|what| Violation { id, what })?;
        }
        Ok(())
    }
}
