//! The executor's actors, and the messages between them.

pub mod message;
