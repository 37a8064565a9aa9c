//! The runtime of both binaries: actors on the main thread, network and stores on worker threads.

use crate::cli::{Exit, Failure};
use std::future::Future;

/// Runs `command` on the main thread as an actix system over a multi-thread tokio runtime.
///
/// # Errors
/// What `command` ends with, or that the system gives no threads.
pub fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("leasehold-worker")
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start worker threads: {error}")))?;
    actix_rt::System::with_tokio_rt(|| runtime).block_on(command)
}
