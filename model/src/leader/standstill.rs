//! A leader that stood still: its process was stopped, its virtual machine paused, its memory swapped out.
//!
//! It cannot tell the silence of executors from its own deafness. So what came to pass for those who found no leader comes to pass
//! here (R6, R39): leases are taken as running in full from now. A deadline only ever gets later by this (S1, S5).

use super::{Effect, Leader, Note, Settings};
use crate::lease::granter_deadline;
use crate::time::Tick;
use std::time::Duration;

impl Settings {
    /// A leader that took no step for longer than this stood still: half a lease.
    ///
    /// Its timer comes every third (R30), so none that runs is so late. And what is shorter costs nobody a lease: whoever renews
    /// after a third (R11), in an attempt of at most a sixth (R13), has half of it left.
    #[must_use]
    pub fn stands_still_after(&self) -> Duration {
        self.lease.as_duration() / 2
    }
}

impl Leader {
    /// First in every step, because any event may come before the timer that is late.
    ///
    /// An executor that was heard since this leader last woke gets its stored lease in full, so as to have time to come back.
    /// One that was not has had that, and gets only the time since the timer was due, when this leader stood still for certain:
    /// however often that happens, whoever is gone is reaped within two leases of the time in which it ran (L1).
    pub(super) fn notice_standstill(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let span = now.since(self.active);
        self.active = now;
        if span <= self.settings.stands_still_after() {
            return;
        }
        let late = now.since(self.armed);
        let mut in_full = 0;
        for (id, standing) in &mut self.standings {
            standing.excuse(now, late);
            if standing.heard_at.is_some_and(|at| at >= self.woke) {
                let row = self.state.executor(*id).expect("a standing has a row");
                standing.deadline = granter_deadline(standing.deadline, now, row.lease_length);
                in_full += 1;
            }
        }
        self.woke = now;
        out.push(Effect::Note(Note::StoodStill { span, in_full }));
    }
}
