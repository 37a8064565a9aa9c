//! Bugs that the model checker can switch on by name, to see that it would find them. Without the feature `planted` none is there:
//! [`is`] is a constant, and what hangs on it is not compiled.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The manager's deadline is set by a renewal, also to an earlier one than was told before (R5).
    NoMaxOnRenewal,
    /// A renewal is granted while the write that removes its executor is under way (R31).
    GrantsWhileReaping,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::OnceLock;

    static PLANTED: OnceLock<Bug> = OnceLock::new();

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
