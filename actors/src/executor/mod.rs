//! The executor's actors, and the messages between them.

pub mod agent;
mod agent_archive;
pub mod agent_core;
pub mod agent_event;
pub mod agent_host;
mod agent_outcome;
mod agent_phase;
mod agent_recent;
pub mod agent_type;
pub mod archiver;
mod ask;
pub mod front;
pub mod lease_holder;
pub mod lease_metrics;
pub mod message;
pub mod metrics;
pub mod oplog_entry;
pub mod oplog_health;
pub mod recovery;
