//! What both binaries share: exit codes, output, logging, the panic hook, signals. Not for services that embed the library.
//!
//! A command is a function that answers `Result<Exit, Failure>`; [`finish`] turns that into the process's exit code.
//! Answers go to standard output through [`say`] and [`show`], everything else (logs, progress, complaints) to standard error,
//! so that a program reading the output reads nothing but the answer.

mod agents;
pub mod checkpoint;
pub mod config;
mod dev;
pub mod executor;
pub mod load;
pub mod manager;
mod oplog;
mod output;
mod process;
mod serve;
pub mod summary;
pub mod target;
pub mod words;
mod wrong_port;

pub use output::{say, show, table};
pub use process::{LogFormat, LogOptions, QUIET, Signal, Signals, abort_on_panic, init_logging};

use leasehold_model::refusal::Class;
use leasehold_model::{CallError, InvalidValue, Refusal};
use std::io::{self, Write};
use std::process::ExitCode;

/// How a command ended, for scripts (`sysexits.h` where it has a number for it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Fine,
    /// 1: done, and the answer is "no": something failed or is degraded.
    Failed,
    /// 64: the command line is wrong.
    Usage,
    /// 69: nobody answers.
    NobodyAnswers,
    /// 75: may work in a moment.
    TryAgain,
    /// 77: not permitted.
    NotPermitted,
    /// 78: the configuration is wrong.
    BadConfiguration,
}

impl Exit {
    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Failed => 1,
            Self::Usage => 64,
            Self::NobodyAnswers => 69,
            Self::TryAgain => 75,
            Self::NotPermitted => 77,
            Self::BadConfiguration => 78,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code it ends with.
    pub exit: Exit,
    /// What to tell the person, without a trailing newline; empty: nothing.
    pub message: String,
}

impl Failure {
    /// Ends with `exit` after saying `message`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// The reader of our output has gone (`| head`): it has what it wanted, so this is a quiet, fine end.
    #[must_use]
    pub const fn reader_gone() -> Self {
        Self { exit: Exit::Fine, message: String::new() }
    }

    /// The same failure with `context: ` before its message.
    #[must_use]
    pub fn about(mut self, context: &str) -> Self {
        if !self.message.is_empty() {
            self.message = format!("{context}: {}", self.message);
        }
        self
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let exit = match &error {
            CallError::Refused(refusal) => exit_of(refusal),
            CallError::Unreachable(_) => Exit::NobodyAnswers,
            CallError::Unknown(_) => Exit::TryAgain,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<InvalidValue> for Failure {
    fn from(error: InvalidValue) -> Self {
        Self::new(Exit::Usage, error.to_string())
    }
}

impl From<leasehold_config::ConfigError> for Failure {
    fn from(error: leasehold_config::ConfigError) -> Self {
        Self::new(Exit::BadConfiguration, format!("the configuration is refused\n{error}"))
    }
}

/// The exit code of a refusal.
#[must_use]
pub fn exit_of(refusal: &Refusal) -> Exit {
    match (refusal, refusal.class()) {
        (Refusal::BadCredential(_), _) => Exit::NotPermitted,
        (Refusal::InvalidField(_), _) => Exit::Usage,
        (Refusal::Mismatch { .. }, _) => Exit::BadConfiguration,
        (_, Class::Retry) => Exit::TryAgain,
        (_, Class::Rejected | Class::Fatal) => Exit::Failed,
    }
}

/// Parses the command line. Help and version are printed and end with 0; anything wrong is explained and ends with 64.
///
/// # Errors
/// The exit code to end with at once; what there was to say has been said.
pub fn parse<P: clap::Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        // Nothing can be done about a standard error that is closed.
        drop(error.print());
        ExitCode::from(if error.use_stderr() { Exit::Usage } else { Exit::Fine })
    })
}

/// Says why a command failed, if it did, and gives the process's exit code.
pub fn finish(ended: Result<Exit, Failure>) -> ExitCode {
    match ended {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                drop(writeln!(io::stderr(), "error: {}", failure.message));
            }
            failure.exit.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_model::refusal::{Credential, Mismatch};

    #[test]
    fn every_kind_of_error_has_the_exit_code_that_scripts_expect() {
        let shard = leasehold_model::ShardId(3);
        let table: [(CallError, u8); 8] = [
            (CallError::Unreachable("refused".into()), 69),
            (CallError::Unknown("timed out".into()), 75),
            (Refusal::ShardUnassigned { shard, why: "nobody".into() }.into(), 75),
            (Refusal::BadCredential(Credential::AdminToken).into(), 77),
            (Refusal::InvalidField(InvalidValue::new("shard", 9, "0..8")).into(), 64),
            (Refusal::Mismatch { what: Mismatch::Cluster, expected: "a".into(), actual: "b".into() }.into(), 78),
            (Refusal::InvocationRejected { why: "no".into() }.into(), 1),
            (Refusal::Superseded.into(), 1),
        ];
        for (error, code) in table {
            assert_eq!(Failure::from(error.clone()).exit.code(), code, "{error}");
        }
    }
}
