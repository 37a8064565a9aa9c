//! Explores the shipped lease protocol: `leasehold-model`'s own leaders, holders, commits and fences, carried by a world in which
//! everything that may go wrong does, in every order, within the bounds of a [`scenario`].

pub mod action;
pub mod bug;
mod calm;
pub mod election;
mod executor;
mod manager;
pub mod mark;
mod opening;
pub mod protocol;
pub mod run;
pub mod scenario;
pub mod state;
mod step;
pub mod truth;
pub mod worlds;

pub use protocol::Protocol;
