//! How many calls are handled at once.

use leasehold_model::Refusal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A bound on what is handled at once. Counting takes no lock and allocates nothing.
#[derive(Debug)]
pub(super) struct Bound {
    resource: &'static str,
    limit: u32,
    used: AtomicU32,
}

impl Bound {
    pub(super) fn new(resource: &'static str, limit: u32) -> Arc<Self> {
        Arc::new(Self { resource, limit, used: AtomicU32::new(0) })
    }

    /// Takes a place until the slot is dropped.
    pub(super) fn take(self: &Arc<Self>) -> Result<Slot, Refusal> {
        let more = |used: u32| (used < self.limit).then_some(used + 1);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Slot(Arc::clone(self))),
            Err(used) => Err(Refusal::Overloaded {
                resource: self.resource.to_owned(),
                used: used.into(),
                limit: self.limit.into(),
            }),
        }
    }
}

/// One place under a bound.
#[derive(Debug)]
#[must_use]
pub(super) struct Slot(Arc<Bound>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::AcqRel);
    }
}
