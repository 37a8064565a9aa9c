//! The one path of a set, whichever envelope it came in (R18 to R23), and the end of a lease.

use super::event::{Effect, Exit, Ignored, Loss, Note, Purpose, WorkId};
use super::leaving::Manner;
use super::{Holder, Phase};
use crate::ids::{ShardCount, ShardEpoch, ShardId};
use crate::lease::{HolderLease, holder_deadline};
use crate::message::{Push, PushAnswer};
use crate::refusal::{CallError, Credential, Mismatch, Refusal};
use crate::set::ShardSet;
use crate::time::Tick;
use std::time::Duration;

/// A push from a manager that is not followed makes the executor renew within this time, or within a thirtieth of its lease if that is less.
const FOREIGN_PUSH_SPREAD: Duration = Duration::from_secs(1);

impl Holder {
    /// A push never moves a deadline (R4). Its answer carries the claim as it stands (R22).
    pub(super) fn pushed(
        &mut self,
        now: Tick,
        proven: bool,
        push: &Push,
        out: &mut Vec<Effect>,
    ) -> Result<PushAnswer, Refusal> {
        let (manager, revision) = (push.set.manager, push.set.revision);
        let verdict = self.judge(proven, push);
        match verdict {
            Ok(()) => {
                out.push(Effect::Note(Note::PushApplied { revision }));
                self.apply(&push.set, out);
                self.open_waiting(out);
            }
            Err(why) => out.push(Effect::Note(Note::PushIgnored { manager, revision, why })),
        }
        match verdict {
            Err(Ignored::OtherLife) => return Err(Refusal::UnknownExecutor),
            Err(Ignored::Unproven) => return Err(Refusal::BadCredential(Credential::LeaseKey)),
            Err(Ignored::ShardCount) => {
                let refusal = self.other_count(push.set.shard_count);
                self.refuse_count(now, push.set.shard_count, out);
                return Err(refusal);
            }
            Err(Ignored::Foreign) => {
                let thirtieth = self.ttl.map_or(FOREIGN_PUSH_SPREAD, |ttl| ttl.as_duration() / 30);
                self.call_soon(now, thirtieth.min(FOREIGN_PUSH_SPREAD), out);
            }
            Ok(()) | Err(Ignored::TooEarly | Ignored::Stale | Ignored::Leaving) => {}
        }
        Ok(PushAnswer { applied: verdict.is_ok(), claim: self.claim() })
    }

    fn judge(&self, proven: bool, push: &Push) -> Result<(), Ignored> {
        if push.executor != self.life.executor || self.phase == Phase::Gone {
            return Err(Ignored::OtherLife);
        }
        if !proven {
            return Err(Ignored::Unproven);
        }
        if self.is_leaving() {
            return Err(Ignored::Leaving);
        }
        let following = self.following.ok_or(Ignored::TooEarly)?;
        if following.manager != push.set.manager {
            return Err(Ignored::Foreign);
        }
        if self.is_other_count(push.set.shard_count) {
            return Err(Ignored::ShardCount);
        }
        if push.set.revision < following.applied {
            return Err(Ignored::Stale);
        }
        Ok(())
    }

    /// Takes a set of the manager that is followed: closes what it lacks and sweeps it. What it adds is opened by
    /// [`Holder::open_waiting`], once the lease is known to be live.
    pub(super) fn apply(&mut self, set: &ShardSet, out: &mut Vec<Effect>) {
        let Some(following) = &mut self.following else { return };
        if set.revision < following.applied {
            out.push(Effect::Note(Note::SetStale { revision: set.revision, applied: following.applied }));
            return;
        }
        following.applied = set.revision;
        let shards = &set.shards;
        let lost = |shard, epoch| match shards.epoch_of(shard) {
            Some(told) if told == epoch => None,
            Some(_) => Some(Loss::EpochChanged),
            None => Some(Loss::Narrowed),
        };
        self.lose(self.settings.handoff_grace, lost, out);
        if self.is_leaving() {
            return;
        }
        self.shards.assign(shards);
        self.floors.retain(|shard, floor| shards.epoch_of(*shard).is_some_and(|epoch| epoch <= *floor));
        self.fenced.retain(|shard, held| shards.epoch_of(*shard) == Some(*held));
    }

    /// Closes admission, then asks for the sweep (R20). The shards stay claimed until it is done.
    pub(super) fn lose(
        &mut self,
        grace: Duration,
        lost: impl Fn(ShardId, ShardEpoch) -> Option<Loss>,
        out: &mut Vec<Effect>,
    ) {
        let id = self.work();
        let closed = self.shards.close(id, lost);
        if closed.is_empty() {
            return;
        }
        let revision = self.applied();
        out.extend(closed.iter().map(|(shard, _, _)| Effect::CloseShard(*shard)));
        let note = |&(shard, epoch, cause)| Effect::Note(Note::ShardClosed { shard, epoch, revision, cause });
        out.extend(closed.iter().map(note));
        let shards = closed.into_iter().map(|(shard, epoch, _)| (shard, epoch)).collect();
        out.push(Effect::Sweep { id, shards, grace });
    }

    /// Opens and recovers what is assigned and neither open nor draining. Without a live lease it stays pending, and the grant that
    /// makes the lease live comes here again, whether or not its set changed anything (R21).
    pub(super) fn open_waiting(&mut self, out: &mut Vec<Effect>) {
        if !self.live || self.phase != Phase::Active {
            return;
        }
        let shards = self.shards.open_waiting();
        if shards.is_empty() {
            return;
        }
        let id = self.work();
        self.recovering.insert(id, shards.len());
        out.push(Effect::Recover { id, shards: shards.clone() });
        let revision = self.applied();
        for (shard, epoch) in shards {
            out.push(Effect::OpenShard(shard, epoch));
            out.push(Effect::Note(Note::ShardGained { shard, epoch, revision }));
        }
    }

    /// A sweep is over: its shards leave the claim, or are opened at the epoch they were regained at (R29). The manager hears at once of
    /// what left (R22).
    pub(super) fn swept(&mut self, now: Tick, id: WorkId, out: &mut Vec<Effect>) {
        let swept = self.shards.swept(id);
        out.extend(swept.iter().map(|&(shard, epoch)| Effect::Note(Note::ShardSwept { shard, epoch })));
        self.open_waiting(out);
        if self.is_leaving() {
            self.finish(now, out);
        } else if self.following.is_some()
            && swept.iter().any(|&(shard, epoch)| self.shards.assigned(shard) != Some(epoch))
        {
            self.call_at_once(now, out);
        }
    }

    /// F6, R40. Renewing at once is done once per shard and epoch; what storage has recorded goes with every renewal until the epoch held exceeds it.
    /// The epoch assigned is a floor only if a write under it was refused: for a write of an earlier ownership, the record may be this one's own.
    pub(super) fn fenced(
        &mut self,
        now: Tick,
        shard: ShardId,
        (held, recorded): (ShardEpoch, Option<ShardEpoch>),
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Note(Note::WriteFenced { shard, held, recorded }));
        let Some(assigned) = self.shards.assigned(shard) else { return };
        let above = |recorded: &ShardEpoch| *recorded > assigned || (*recorded == assigned && held == assigned);
        if let Some(recorded) = recorded.filter(above) {
            let floor = self.floors.entry(shard).or_insert(recorded);
            *floor = recorded.max(*floor);
        }
        if assigned == held && self.fenced.insert(shard, held) != Some(held) {
            self.call_at_once(now, out);
        }
    }

    pub(super) fn arm(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let deadline = self.lease.deadline();
        if !self.lease.is_live(now) {
            return self.notice_lapse(now, out);
        }
        out.push(Effect::ArmFence(deadline));
        out.push(Effect::Arm { purpose: Purpose::Lapse, at: deadline });
        if !self.live {
            self.live = true;
            out.push(Effect::Note(Note::LeaseLive { deadline }));
        }
    }

    /// R21: a lease that ended sweeps everything and recovers nothing. The fence needed nobody to close it (R10).
    pub(super) fn notice_lapse(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if !self.live || self.lease.is_live(now) {
            return;
        }
        let deadline = self.lease.deadline();
        self.live = false;
        out.push(Effect::CloseFence);
        out.push(Effect::Note(Note::LeaseLapsed { deadline }));
        self.lose(self.settings.handoff_grace, |_, _| Some(Loss::Lapsed), out);
        // After a sleep, the call in flight was asked so long ago that its grant is over: it is given up for a fresh one (case 16).
        let over = |noted| self.ttl.is_some_and(|ttl| holder_deadline(noted, ttl, self.settings.allowance) <= now);
        if self.call.is_some_and(|call| over(call.noted)) && !matches!(self.phase, Phase::Deregistering(_)) {
            self.call = None;
            out.push(Effect::CancelCall);
            self.call(now, out);
        }
    }

    /// There is no lease any more, whatever the clock says.
    pub(super) fn end_lease(&mut self, out: &mut Vec<Effect>) {
        self.live = false;
        if self.lease != HolderLease::default() {
            self.lease = HolderLease::default();
            out.push(Effect::CloseFence);
        }
    }

    pub(super) fn size_fence(&mut self, count: ShardCount, out: &mut Vec<Effect>) {
        if !self.sized {
            self.sized = true;
            self.shard_count = Some(count);
            out.push(Effect::SizeFence(count));
        }
    }

    pub(super) fn is_other_count(&self, count: ShardCount) -> bool {
        self.shard_count.is_some_and(|ours| ours != count)
    }

    fn other_count(&self, theirs: ShardCount) -> Refusal {
        Refusal::Mismatch {
            what: Mismatch::ShardCount,
            expected: theirs.to_string(),
            actual: self.shard_count.map_or_else(|| "none".to_owned(), |ours| ours.to_string()),
        }
    }

    /// R23: two clusters were about to mix.
    pub(super) fn refuse_count(&mut self, now: Tick, theirs: ShardCount, out: &mut Vec<Effect>) {
        let why = format!("a set was refused: {}", CallError::from(self.other_count(theirs)));
        self.leave(now, Exit { code: 78, why }, Manner::at_once(true), out);
    }
}
