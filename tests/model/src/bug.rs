//! Bugs to plant: what the checker must find, so that its silence about the shipped protocol means something.
//!
//! They sit in what carries the shipped functions: what an executor's shell notes, what a store compares, what a manager is told.

macro_rules! bugs {
    ($($bug:ident, $scenario:literal => $text:literal,)*) => {
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
        }
    };
}

bugs! {
    AnchorsAtReceipt, "renew" => "a lease is counted from when its grant was heard, not from before it was asked for",
    PushExtends, "renew" => "a push makes the lease longer",
    FenceOpenPastDeadline, "renew" => "the fence stays open for a while past the lease's deadline",
    TtlLongerThanKept, "renew" => "a grant says more than the manager keeps",
    ReapsEarly, "renew" => "a lease is reaped one step before it ends",
    LapseKeepsTheFenceOpen, "renew" => "a lapsed lease is noticed, and the fence not told when it ends",
    ShardNotClosed, "move" => "a set came without a shard, and the shard stays open",
    OldClaimProves, "move" => "a claim proves a release that it is older than",
    MovesInOneCommit, "move" => "a shard is granted elsewhere as soon as its release was pushed",
    AcknowledgesDrainEarly, "move" => "a claim leaves out shards whose agents are still being stopped",
    AppliesOlderSets, "move" => "a set older than the one applied is applied",
    LeavesWithOpenFence, "leave" => "an executor gives its shards back and keeps its fence open",
    TellsBeforeStored, "store" => "what a write makes is told before the write is known to be stored: an epoch is minted early",
    DoubtIsFailure, "store" => "a write whose outcome is unknown is taken as failed",
    DoubtIsSuccess, "store" => "a write whose outcome is unknown is taken as stored",
    LookUpDoesNotSettle, "store" => "a write that was looked up and not found is stored later",
    NoCompare, "failover" => "the store takes the write of a deposed manager",
    StaleLoad, "failover" => "a successor begins with a state that is not the newest",
    NoWaitAtTakeOver, "failover" => "a successor does not wait for the leases that run when it takes over",
    ConfirmsBeforehand, "failover" => "a grant is answered by a confirmation that began before its request arrived",
    AppliesForeignPushes, "failover" => "a push of a manager that is not followed is applied",
    ComparesRevisionsAcrossManagers, "failover" => "a claim under another manager proves a release",
    GrantsLongerThanStored, "longer" => "a longer lease is granted before its length is stored",
    CountsItsOwnLength, "shorter" => "a successor counts its own, shorter lease where its predecessor granted longer ones: the maximum of R5 is not kept",
    AssumesPredecessorGone, "names" => "a process elsewhere takes the shards of one with its name that still runs",
    AppendsUnfenced, "agents" => "the record is looked at before an append is sent, and not with it",
    EqualEpochClaims, "wipe" => "an oplog's record is given to another writer at an equal epoch",
    IgnoresUnknown, "renew" => "an executor that hears that it is unknown keeps asking as the same life",
    ForgetsLateReleases, "move" => "a claim that proves a release is heard and not acted on",
}
