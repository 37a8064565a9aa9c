//! `shard-executor serve`: runs an executor until it is told to stop, or ends by itself.

use super::config::ConfigOptions;
use super::{Exit, Failure, LogOptions, Signals, init_logging};
use crate::agents::{AgentTypes, shipped};
use crate::serve::executor::ExecutorProcess;
use leasehold_config::ExecutorConfig;
use leasehold_model::holder;

/// Runs an executor with the shipped agent types.
///
/// # Errors
/// What ended it, with the exit code.
pub(super) async fn executor(options: &ConfigOptions, log: &LogOptions) -> Result<Exit, Failure> {
    let loaded = options.load::<ExecutorConfig>(Vec::new())?;
    init_logging(log, loaded.config.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::listen()?;
    let executor = ExecutorProcess::start(&loaded.config, AgentTypes::new(shipped())).await?;
    let signal = tokio::select! {
        signal = signals.recv() => signal,
        end = executor.ended() => {
            executor.close().await;
            return how(&end);
        }
    };
    tracing::info!(%signal, "draining; a second signal stops at once");
    tokio::select! {
        end = executor.shut_down() => how(&end),
        signal = signals.recv() => Err(Failure::new(Exit::Failed, format!("a second signal ({signal}): stopped at once"))),
    }
}

/// The exit code of an executor's end.
fn how(end: &holder::Exit) -> Result<Exit, Failure> {
    let exit = match end.code {
        0 => return Ok(Exit::Fine),
        69 => Exit::NobodyAnswers,
        77 => Exit::NotPermitted,
        78 => Exit::BadConfiguration,
        _ => Exit::Failed,
    };
    Err(Failure::new(exit, end.why.clone()))
}
