//! The `LeaseHolder` between a scripted manager and a scripted `AgentHost`, in virtual time.
#![allow(clippy::unwrap_used)] // Test code: a wrong value is a failed test.

mod bench;
mod ending;
mod own_thread;
mod renewing;
