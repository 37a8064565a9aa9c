//! One executor on a thread of its own.

use crate::agents::{AgentTypes, shipped};
use crate::cli::{Exit, Failure};
use crate::serve::executor::ExecutorProcess;
use leasehold_config::ExecutorConfig;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// How an executor is to end.
enum End {
    /// As on SIGTERM.
    Orderly,
    /// As on SIGKILL.
    Crash,
}

/// How long an executor may take to bind and to open its store.
const START_WITHIN: Duration = Duration::from_secs(10);

/// A running executor.
pub(super) struct ExecutorThread {
    end: oneshot::Sender<End>,
    thread: JoinHandle<()>,
}

impl ExecutorThread {
    /// Starts an executor with the shipped agent types; returns once it serves.
    pub(super) fn start(config: &ExecutorConfig) -> Result<Self, Failure> {
        let failed = |what: &str, error: std::io::Error| Failure::new(Exit::Failed, format!("{what}: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("cannot start a runtime", error))?;
        let (end, ending) = oneshot::channel();
        let (started, start) = mpsc::sync_channel(1);
        let config = config.clone();
        let body = move || {
            LocalSet::new().block_on(&runtime, async move {
                match ExecutorProcess::start(&config, AgentTypes::new(shipped())).await {
                    Ok(executor) => {
                        // The receiver waits, unless it has given up: then the end has been asked for by dropping.
                        drop(started.send(Ok(())));
                        run(executor, ending).await;
                    }
                    Err(failure) => drop(started.send(Err(failure))),
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("executor".to_owned()).spawn(body);
        let thread = thread.map_err(|error| failed("cannot start a thread", error))?;
        let silent = |_| Err(Failure::new(Exit::Failed, "an executor did not start in time"));
        start.recv_timeout(START_WITHIN).unwrap_or_else(silent)?;
        Ok(Self { end, thread })
    }

    /// Ends it as a crash would.
    pub(super) fn kill(self) {
        // An error means that it has ended by itself.
        let _ = self.end.send(End::Crash);
    }

    /// Ends it as SIGTERM would.
    pub(super) async fn stop(self) {
        let _ = self.end.send(End::Orderly);
        let thread = self.thread;
        // It has said so itself if it panicked.
        drop(tokio::task::spawn_blocking(move || thread.join()).await);
    }
}

async fn run(executor: ExecutorProcess, ending: oneshot::Receiver<End>) {
    let name = executor.name.clone();
    tokio::select! {
        end = ending => match end {
            Ok(End::Orderly) => drop(executor.shut_down().await),
            Ok(End::Crash) => executor.crash(),
            Err(_) => {}
        },
        end = executor.ended() => tracing::error!(executor = %name, code = end.code, why = end.why, "an executor ended"),
    }
}
