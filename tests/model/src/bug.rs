//! Bugs to plant: what the checker must find, so that its silence about the shipped protocol means something.
//!
//! Most sit in what carries the shipped functions: what an executor's shell notes, what a store compares, what a manager is told. Two sit
//! in the shipped functions themselves, behind the feature `planted` (`model/src/planted.rs`).

use crate::truth::Rule;
use leasehold_model::planted;

macro_rules! bugs {
    ($($bug:ident, $scenario:literal, $rule:ident => $text:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $(#[doc = $text] $bug,)*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &'static [Self] = &[$(Self::$bug,)*];

            /// As a sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$bug => $text,)*
                }
            }

            /// The scenario that is to find it.
            #[must_use]
            pub const fn scenario(self) -> &'static str {
                match self {
                    $(Self::$bug => $scenario,)*
                }
            }

            /// The invariant that it breaks first.
            #[must_use]
            pub const fn breaks(self) -> Rule {
                match self {
                    $(Self::$bug => Rule::$rule,)*
                }
            }

            /// The bug of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
            }
        }
    };
}

bugs! {
    AnchorsAtReceipt, "lone", S5 => "a lease is counted from when its grant was heard, not from before it was asked for (R2)",
    PushExtends, "lone failover", S5 => "a push makes the lease longer (R4)",
    FenceOpenPastDeadline, "lone", S5 => "the fence stays open for a while past the lease's deadline (R10)",
    TtlLongerThanKept, "lone", S5 => "a grant says more than the manager keeps (R5)",
    ReapsEarly, "lone", S5 => "a lease is reaped one step before it ends (R5)",
    LapseKeepsTheFenceOpen, "lone", S5 => "a lapsed lease is noticed, and the fence not told when it ends (R10)",
    NoMaxOnRenewal, "lone shorter", S5 => "a renewal sets the manager's deadline, also to an earlier one than was told: no maximum (R5)",
    GrantsWhileReaping, "lone", S5 => "a renewal is granted while the write that removes its executor is under way (R31)",
    RecoveryNotLatched, "lone healing", L1 => "recovery is not latched: a grant that revives a lease with an unchanged set opens nothing (R21)",
    ShardNotClosed, "move", S5 => "a set came without a shard, and the shard stays open (R20)",
    OldClaimProves, "late claim", S5 => "a claim proves a release that it is older than (R26)",
    MovesInOneCommit, "move", S5 => "a shard is granted elsewhere as soon as its release was pushed (R25)",
    AcknowledgesDrainEarly, "move", HandOff => "a claim leaves out shards whose agents are still being stopped (R20)",
    AppliesOlderSets, "move", S5 => "a set older than the one applied is applied (R19)",
    LeavesWithOpenFence, "lone leaving", S5 => "an executor gives its shards back and keeps its fence open (R37)",
    TellsBeforeStored, "store", S4 => "what a write makes is told before it is known to be stored: an epoch is minted early (R24)",
    DoubtIsFailure, "store", Outcome => "a write whose outcome is unknown is taken as failed",
    DoubtIsSuccess, "store", Outcome => "a write whose outcome is unknown is taken as stored",
    LookUpDoesNotSettle, "store", Outcome => "a write that was looked up and not found is stored later",
    NoCompare, "lone failover", S5 => "the store takes the write of a deposed manager",
    StaleLoad, "lone failover", S5 => "a successor begins with a state that is not the newest (R39)",
    NoWaitAtTakeOver, "lone failover", S5 => "a successor does not wait for the leases that run when it takes over (R6)",
    ConfirmedByNobody, "lone failover", S5 => "a grant is answered although nobody has confirmed the leadership (R7)",
    ConfirmsBeforehand, "lone failover", S5 => "a grant is answered by a confirmation that began before its request arrived (R7)",
    AppliesForeignPushes, "late push", S5 => "a push of a manager that is not followed is applied (R18)",
    ComparesRevisionsAcrossManagers, "wiped", L1 => "revisions of a manager are compared with those of the one before (R18)",
    GrantsLongerThanStored, "lone longer", S5 => "a longer lease is granted before its length is stored (R6)",
    CountsItsOwnLength, "lone shorter", S5 => "a successor counts its own, shorter lease where its predecessor granted longer ones (R6)",
    AssumesPredecessorGone, "names", S5 => "a process elsewhere takes the shards of one with its name that still runs (R35)",
    AppendsUnfenced, "return", S6 => "the record is looked at before an append is sent, and not with it (F2)",
    EqualEpochClaims, "wipe", S6 => "an oplog's record is given to another writer at an equal epoch (F1)",
    IgnoresUnknown, "lone healing", L1 => "an executor that hears that it is unknown keeps asking as the same life (R16)",
    ForgetsLateReleases, "move", L1 => "a claim that proves a release is heard and not acted on (R26)",
    KeepaliveAnchoredAtReceipt, "late leader", OneLeader => "the leader's own lease is counted from when its keepalive was answered",
    GateStaysOpen, "late leader", OneLeader => "a leader's gate stays open until somebody notices that its lease is over",
}

/// The bugs that sit in the shipped functions.
const IN_THE_MODEL: [(Bug, planted::Bug); 2] =
    [(Bug::NoMaxOnRenewal, planted::Bug::NoMaxOnRenewal), (Bug::GrantsWhileReaping, planted::Bug::GrantsWhileReaping)];

impl Bug {
    /// Plants what of this bug sits in the shipped functions, in this process and for good.
    ///
    /// # Errors
    /// When that is not built in.
    pub fn plant(self) -> Result<(), String> {
        match IN_THE_MODEL.iter().find(|(bug, _)| *bug == self) {
            None => Ok(()),
            Some((_, bug)) => planted::plant(*bug).map_err(|why| format!("{self:?}: {why}")),
        }
    }
}
