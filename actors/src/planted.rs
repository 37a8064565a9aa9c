//! Bugs that a simulation can switch on by name, to see that it would find them. Without the feature `planted` none is there: [`is`]
//! is a constant, and what hangs on it is not compiled.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A write whose outcome is unknown is taken as failed.
    UnknownWriteIsFailed,
    /// A write whose outcome is unknown is taken as stored.
    UnknownWriteIsStored,
    /// What a write makes is told before it is stored.
    ToldBeforeStored,
    /// A leadership answers and pushes on after the deadline of its gate.
    GateIgnoresDeadline,
    /// The leader's own lease is counted from when its keepalive was answered.
    KeepaliveAnchoredAtReceipt,
    /// A shard's lease is counted from when its grant was heard.
    LeaseAnchoredAtReceipt,
    /// A claim leaves out shards whose agents are still being stopped.
    DrainAcknowledgedEarly,
    /// Admission is asked for once, before a call waits for its agent.
    FenceCheckedOnce,
    /// A set came without a shard, and the shard stays open.
    ShardNotClosed,
    /// An append in doubt is refused, and not looked up (F7).
    DoubtIsRefused,
    /// A call's idempotency key is not looked up in the oplog.
    KeysNotLookedUp,
    /// A call is answered before what it does is stored.
    AnsweredBeforeStored,
    /// A new life writes under the name of the one whose registration is gone.
    LifeNotRenewed,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::OnceLock;

    static PLANTED: OnceLock<Bug> = OnceLock::new();

    impl Bug {
        /// Every bug, with its name.
        pub const ALL: &'static [(&'static str, Self)] = &[
            ("unknown write is failed", Self::UnknownWriteIsFailed),
            ("unknown write is stored", Self::UnknownWriteIsStored),
            ("told before stored", Self::ToldBeforeStored),
            ("gate ignores its deadline", Self::GateIgnoresDeadline),
            ("keepalive anchored at receipt", Self::KeepaliveAnchoredAtReceipt),
            ("lease anchored at receipt", Self::LeaseAnchoredAtReceipt),
            ("drain acknowledged early", Self::DrainAcknowledgedEarly),
            ("fence checked before the wait only", Self::FenceCheckedOnce),
            ("shard not closed", Self::ShardNotClosed),
            ("append in doubt is refused", Self::DoubtIsRefused),
            ("keys not looked up", Self::KeysNotLookedUp),
            ("answered before stored", Self::AnsweredBeforeStored),
            ("life not renewed", Self::LifeNotRenewed),
        ];
    }

    /// Plants `bug` in this process, for good.
    ///
    /// # Panics
    /// When one is planted already.
    pub fn plant(bug: Bug) {
        assert!(PLANTED.set(bug).is_ok(), "one bug at a time");
    }

    pub(crate) fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(&bug)
    }
}

#[cfg(feature = "planted")]
pub(crate) use switch::is;
#[cfg(feature = "planted")]
pub use switch::plant;

#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
