//! What a step did that is worth knowing was reached: without these, "never violated" could mean "never tried".

macro_rules! marks {
    ($($mark:ident => $text:literal,)*) => {
        /// Something that a step did.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Mark {
            $(#[doc = $text] $mark,)*
        }

        impl Mark {
            /// Every mark.
            pub const ALL: &'static [Self] = &[$(Self::$mark,)*];

            /// As a sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$mark => $text,)*
                }
            }
        }
    };
}

marks! {
    SecondOwner => "a shard was granted under a second epoch or a later one",
    LetGo => "a shard was freed by a claim that lacked it",
    Lapsed => "a lease lapsed on an executor that held shards",
    Revived => "a lapsed lease was revived by a grant",
    Reaped => "an executor was reaped",
    Fenced => "a stale owner's append was refused by storage",
    Appended => "an append was stored",
    TookOver => "a manager took over while a lease was running",
    Deposed => "a manager that had been deposed asked the store and ended",
    TwoManagers => "a manager took over from one that still ran",
    Conflict => "a deposed manager's write was refused by the compare",
    DoubtApplied => "a write in doubt was found to be stored",
    DoubtRefused => "a write in doubt was found not to be stored",
    Orphan => "a write landed after its manager had ended",
    StoreRefused => "the store refused a write",
    StalePush => "an older push was refused",
    ForeignPush => "a push of a manager that was not followed was refused",
    StaleGrant => "a grant with an older set was heard",
    LateGrant => "a grant for a call that had been given up was heard",
    CallFailed => "a call failed and was repeated",
    Deregistered => "an executor gave everything back and left",
    Unregistered => "an executor heard that it is unknown",
    Superseded => "an executor was superseded by another process of its name",
    Replaced => "a new process took over from its predecessor at one address",
    StoodStill => "a manager noticed that it had stood still",
    Refollowed => "an executor followed another manager than before",
    Floor => "an epoch was raised above what storage had recorded",
    Lengthened => "a longer lease was stored",
    LedNext => "a second process led after the first",
    Unled => "a leadership ended for want of keepalives",
    KeptAlive => "a leadership was kept alive",
    Healed => "faults stopped and every shard was served again",
}

/// A set of marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Marks(pub(crate) u64);

impl Marks {
    pub(crate) const fn add(&mut self, mark: Mark) {
        self.0 |= 1 << mark as u32;
    }

    /// `mark` if it is in it, and no other.
    pub(crate) const fn only(self, mark: Mark) -> Self {
        Self(self.0 & (1 << mark as u32))
    }

    /// Whether `mark` is in it.
    #[must_use]
    pub const fn has(self, mark: Mark) -> bool {
        self.0 & (1 << mark as u32) != 0
    }

    /// Each in it.
    pub fn iter(self) -> impl Iterator<Item = Mark> {
        Mark::ALL.iter().copied().filter(move |mark| self.has(*mark))
    }
}
