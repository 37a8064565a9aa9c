//! What a process sets up once: logs, the panic hook, signals.

use super::{Exit, Failure};
use leasehold_config::{Log, LogLevel};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use tokio::signal::unix::{self, SignalKind};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt as logs};

/// What is logged, and how, where the command line overrides the configuration. Log lines go to standard error.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LogOptions {
    /// What to log, overall or by target: `warn`, `info,leasehold=debug`
    #[arg(long = "log", value_name = "FILTER", env = "LEASEHOLD_LOG", global = true)]
    pub filter: Option<String>,
    /// How log lines look
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT", global = true)]
    pub log_format: Option<LogFormat>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// What commands log that do one thing and end.
pub const QUIET: Log = Log { format: leasehold_config::LogFormat::Text, level: LogLevel::Warn };

/// Starts logging for the whole process: as `options` say, otherwise as `configured`. Call it once.
///
/// # Errors
/// Exit code 64 when the filter cannot be read, 1 when logging was started before.
pub fn init_logging(options: &LogOptions, configured: Log) -> Result<(), Failure> {
    let filter = options.filter.as_deref().unwrap_or(configured.level.as_str());
    let filter: Targets =
        filter.parse().map_err(|error| Failure::new(Exit::Usage, format!("--log {filter:?}: {error}")))?;
    let json = match (options.log_format, configured.format) {
        (Some(format), _) => format == LogFormat::Json,
        (None, format) => format == leasehold_config::LogFormat::Json,
    };
    let layer = logs::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let layer = if json { layer.json().flatten_event(true).boxed() } else { layer.boxed() };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start logging: {error}")))
}

/// From now on a panic on any thread says where it was and aborts the process: a process must never go on renewing or
/// admitting with a dead part inside (fail-stop).
pub fn abort_on_panic(binary: &'static str) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        // Standard error first and by hand: the logger itself may be what panicked.
        drop(writeln!(io::stderr(), "{binary}: a broken invariant on thread {name}: {panic}; stopping at once"));
        std::process::abort();
    }));
}

/// A request from outside to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// `kill`, systemd, Kubernetes.
    Terminate,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Requests to stop, from the moment it is made: none is lost between two calls of [`Signals::recv`].
#[derive(Debug)]
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// Starts to listen; from now on neither signal ends the process by itself.
    ///
    /// # Errors
    /// Exit code 1 when the system refuses.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            unix::signal(kind)
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot listen for signals: {error}")))
        };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// The next request to stop. Safe to drop and call again.
    pub async fn recv(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}
