//! The executor's actors, and the messages between them.

pub mod message;
pub mod agent;
pub mod agent_core;
pub mod agent_host;
pub mod agent_type;
pub mod front;
pub mod metrics;
pub mod oplog_entry;
pub mod recovery;
