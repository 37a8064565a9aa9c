//! What is known of one key, and the text that goes with it.

use crate::kind::Kind;

/// One configuration key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// `section.name`.
    pub path: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// What holds when nobody sets it.
    pub default: Default,
    /// What it does, as a sentence.
    pub meaning: &'static str,
}

/// What holds when a key is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// This value, in text form.
    Text(&'static str),
    /// No value of its own.
    Unset {
        /// What happens then, in words.
        then: &'static str,
        /// A value to show in the sample file, commented out.
        example: &'static str,
    },
}

impl Key {
    /// The section: what stands before the dot.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// Whether it stands in the table `path`.
    #[must_use]
    pub(crate) fn is_in(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The name within the section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{}{}", crate::source::ENV_PREFIX, self.path.to_uppercase().replace('.', "__"))
    }
}
