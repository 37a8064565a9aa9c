//! The manager's actors.
