//! The lease protocol as data and functions.
//!
//! Nothing here does I/O, reads a clock, logs or awaits. A shell (the actors) turns what happens
//! into events, calls a `step` function with the present [`Tick`], and performs the effects that
//! come out. That is why every rule of the protocol can be tested as a table and explored by a
//! checker.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`ids`], [`time`] | newtypes for identities, epochs, revisions, instants |
//! | [`set`] | shard sets, claims, grants |
//! | [`message`], [`agents`] | what the two sides say to each other, as plain values |
//! | [`refusal`] | the error contract: every refusal with its evidence |
//! | [`state`], [`command`] | the stored cluster state and the only ways to change it |
//! | [`commits`] | which commands a write carries, and what its outcome means |
//! | [`plan`] | who should own what (least movement) |
//! | [`lease`] | lease arithmetic of both sides |
//! | [`leader`] | the manager's decisions |
//! | [`holder`] | the executor's decisions |
//! | [`election`] | one manager process standing for leadership |
//! | [`archive`] | where archived entries are, as an operator writes it |
//! | [`secret`] | what of a URL may be shown |
//! | [`fence`] | admission on the executor |
//! | [`oplog`] | who may write an oplog |
//! | [`routing`] | key to shard |
//! | [`planted`] | bugs for the checker to find; none without the feature |

pub mod agents;
pub mod archive;
pub mod command;
pub mod commits;
pub mod election;
pub mod fence;
pub mod holder;
pub mod ids;
pub mod leader;
pub mod lease;
pub mod message;
pub mod oplog;
pub mod plan;
pub mod planted;
pub mod refusal;
pub mod routing;
pub mod secret;
pub mod set;
pub mod state;
pub mod time;

pub use ids::{
    Address, AgentId, ClusterName, ExecutorId, ExecutorName, GrantSeq, InvalidValue, LeaseKeyHash, ManagerId, Revision,
    ShardCount, ShardEpoch, ShardId,
};
pub use refusal::{CallError, Refusal};
pub use set::{Claim, Grant, ShardSet};
pub use time::{Tick, Ttl};
