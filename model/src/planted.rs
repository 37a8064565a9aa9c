//! Bugs that the model checker can plant, to see that it would find them. Without the feature `planted` none is there: what asks for
//! one is a constant, and what hangs on it is not compiled.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The manager's deadline is set by a renewal, also to an earlier one than was told before (R5).
    NoMaxOnRenewal,
    /// A renewal is granted while the write that removes its executor is under way (R31).
    GrantsWhileReaping,
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::OnceLock<Bug> = std::sync::OnceLock::new();

/// Plants `bug` in this process, for good.
///
/// # Errors
/// When one is planted already, or the feature is not built in.
pub fn plant(bug: Bug) -> Result<(), &'static str> {
    #[cfg(feature = "planted")]
    return PLANTED.set(bug).map_err(|_| "one bug at a time");
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        Err("it sits in the shipped functions: build with `--features planted`")
    }
}

#[cfg(feature = "planted")]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(&bug)
}

#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
