//! When an agent's entries move to the archive layer: by number and by age. Pure, like [`super::agent_core`].
//!
//! A move runs beside the agent's other calls of the store, one at a time. What it finds wrong is tried again later: nobody waits for it.

use super::agent_event::{ArchivePolicy, Effect};
use leasehold_model::Tick;
use leasehold_persistence::oplog::EntryIndex;
use leasehold_persistence::oplog::layers::{Moved, Upto};
use std::time::Duration;

/// How soon a move that failed is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Entries beyond those that stay move once they are this many, so that chunks are worth their overhead.
const BATCH: (u64, u64) = (1, 256);

/// What an agent knows of its layers.
#[derive(Debug)]
pub(super) struct Archiving {
    policy: Option<ArchivePolicy>,
    /// Where the primary layer begins, at the least.
    primary_from: EntryIndex,
    /// Where the oplog ended, and when: whatever is before has been known since then.
    mark: Option<(EntryIndex, Tick)>,
    under_way: bool,
    /// Not before, because a move failed.
    not_before: Tick,
    /// A timer is set for then.
    timer: Option<Tick>,
}

impl Archiving {
    pub(super) fn new(policy: Option<ArchivePolicy>) -> Self {
        let (primary_from, not_before) = (EntryIndex(1), Tick(0));
        Self { policy, primary_from, mark: None, under_way: false, not_before, timer: None }
    }

    /// A timer is over.
    pub(super) fn woke(&mut self) {
        self.timer = None;
    }

    /// A move ended.
    pub(super) fn ended(&mut self, moved: Option<Moved>, now: Tick) {
        self.under_way = false;
        match moved {
            Some(moved) => self.primary_from = self.primary_from.max(moved.primary_from),
            None => self.not_before = now.plus(RETRY_AFTER),
        }
    }

    /// What is to be done now, where the oplog ends at `next`.
    pub(super) fn look(&mut self, now: Tick, next: EntryIndex, out: &mut Vec<Effect>) {
        let Some(policy) = self.policy else { return };
        if self.mark.is_none_or(|(at, _)| at <= self.primary_from && at < next) {
            self.mark = Some((next, now));
        }
        if self.under_way {
            return;
        }
        if now >= self.not_before
            && let Some(upto) = self.due(policy, now, next)
        {
            self.under_way = true;
            return out.push(Effect::Archive(upto));
        }
        let aged = self.mark.filter(|(at, _)| *at > self.primary_from);
        let Some(when) = aged.map(|(_, since)| since.plus(policy.after_age).max(self.not_before)) else { return };
        if self.timer.is_none_or(|timer| when < timer) {
            self.timer = Some(when);
            out.push(Effect::ArchiveLater(when.since(now)));
        }
    }

    fn due(&mut self, policy: ArchivePolicy, now: Tick, next: EntryIndex) -> Option<Upto> {
        let stay = u64::from(policy.after_entries);
        let batch = (stay / 4).clamp(BATCH.0, BATCH.1);
        let (at, since) = self.mark?;
        if at > self.primary_from && now >= since.plus(policy.after_age) {
            return Some(Upto { index: at, least: 1 });
        }
        let index = EntryIndex(next.0.saturating_sub(stay));
        (index.0.saturating_sub(self.primary_from.0) >= batch).then_some(Upto { index, least: batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(100);
    const SECOND: u64 = 1_000_000_000;

    fn archiving() -> Archiving {
        Archiving::new(Some(ArchivePolicy { after_entries: 8, after_age: AGE }))
    }

    fn at(second: u64) -> Tick {
        Tick(second * SECOND)
    }

    fn looked(archiving: &mut Archiving, second: u64, next: u64) -> Vec<Effect> {
        let mut out = Vec::new();
        archiving.look(at(second), EntryIndex(next), &mut out);
        out
    }

    fn moved(primary_from: u64) -> Option<Moved> {
        Some(Moved { entries: 2, raw: 9, stored: 9, primary_from: EntryIndex(primary_from) })
    }

    fn archive(index: u64, least: u64) -> Vec<Effect> {
        vec![Effect::Archive(Upto { index: EntryIndex(index), least })]
    }

    fn later(seconds: u64) -> Vec<Effect> {
        vec![Effect::ArchiveLater(Duration::from_secs(seconds))]
    }

    #[test]
    fn the_newest_stay_and_the_others_move_in_batches_one_move_at_a_time() {
        let mut archiving = archiving();
        assert_eq!(looked(&mut archiving, 0, 2), later(100));
        assert_eq!(looked(&mut archiving, 1, 10), [], "one beyond the eight that stay: no batch yet");
        assert_eq!(looked(&mut archiving, 2, 11), archive(3, 2));
        assert_eq!(looked(&mut archiving, 3, 20), [], "one is under way");
        archiving.ended(moved(3), at(4));
        assert_eq!(looked(&mut archiving, 4, 20), archive(12, 2));
        archiving.ended(moved(9), at(5));
        assert_eq!(looked(&mut archiving, 5, 20), archive(12, 2), "its chunk was full before");
        archiving.ended(moved(12), at(6));
        assert_eq!(looked(&mut archiving, 6, 20), [], "a timer is set already");
        archiving.woke();
        assert_eq!(looked(&mut archiving, 100, 20), later(4), "until those that stayed are old");
    }

    #[test]
    fn entries_move_however_few_once_they_are_old() {
        let mut archiving = archiving();
        assert_eq!(looked(&mut archiving, 0, 3), later(100));
        assert_eq!(looked(&mut archiving, 50, 5), [], "younger ones change nothing");
        archiving.woke();
        assert_eq!(looked(&mut archiving, 100, 5), archive(3, 1), "those that were there at the beginning");
        archiving.ended(moved(3), at(101));
        assert_eq!(looked(&mut archiving, 101, 5), later(100), "the younger ones in their turn");
        archiving.woke();
        assert_eq!(looked(&mut archiving, 201, 5), archive(5, 1));
        archiving.ended(moved(5), at(202));
        assert_eq!(looked(&mut archiving, 202, 5), [], "nothing is left, nothing is waited for");
        assert_eq!(looked(&mut archiving, 300, 6), later(100), "counted from when it was written");
    }

    #[test]
    fn a_move_that_failed_is_tried_again_after_a_while_and_not_before() {
        let mut archiving = archiving();
        assert_eq!(looked(&mut archiving, 0, 20), archive(12, 2));
        archiving.ended(None, at(1));
        assert_eq!(looked(&mut archiving, 1, 21), later(99), "its age would be due after that");
        assert_eq!(looked(&mut archiving, 60, 30), [], "not yet");
        assert_eq!(looked(&mut archiving, 61, 30), archive(22, 2));
        archiving.ended(None, at(62));
        archiving.woke();
        assert_eq!(looked(&mut archiving, 110, 30), later(12), "old by now, and still not yet");
    }

    #[test]
    fn without_a_policy_nothing_moves() {
        let mut archiving = Archiving::new(None);
        assert_eq!(looked(&mut archiving, 1000, 1_000_000), []);
    }
}
