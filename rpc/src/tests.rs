//! What needs the generated types: decoding, round trips, golden bytes, peers that misbehave.

mod golden;
mod hostile;
mod make;
mod properties;
mod rogue;
pub(crate) mod samples;
