//! One connection on which calls follow each other, made anew when it is lost.

use super::Settings;
use super::server::{self, Unfit};
use super::values::{Answer, corrupt};
use crate::oplog::{Error, Warning};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ScriptInvocation, ServerErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Where the store is, for one cluster.
pub(super) struct Place {
    pub client: Client,
    pub settings: Settings,
    /// Names the store in errors; without a password.
    pub name: String,
    /// The key of the layout's version.
    pub schema: String,
}

/// What a connection is, and was.
#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// The present or the last connection's number, and the run of the server that gave it.
    known: Option<(i64, String)>,
    /// Counts connections.
    generation: u64,
}

/// See the module's documentation.
pub(super) struct Link {
    place: Arc<Place>,
    state: Mutex<State>,
    /// The generation on which somebody waited in vain; 0 for none.
    doubted: AtomicU64,
}

/// A call whose answer is waited for. Dropped before it [was answered](Self::answered), after it was silent for a quarter of
/// [`Settings::silence`], it puts the connection in doubt: its caller's patience may be shorter than that span, and a connection whose packets
/// vanish would be kept for ever. A caller that goes away sooner says nothing of the connection.
struct Waiting<'a> {
    link: &'a Link,
    generation: u64,
    since: Instant,
}

impl Waiting<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.since.elapsed() >= self.link.place.settings.silence / 4 {
            self.link.doubted.store(self.generation, Ordering::Release);
        }
    }
}

/// Whether a call writes: then a lost answer leaves its outcome unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

impl Link {
    pub fn new(place: Arc<Place>) -> Self {
        Self { place, state: Mutex::default(), doubted: AtomicU64::new(0) }
    }

    /// Connects, and says what an operator should know of the server.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it has to be changed; [`Error::Unavailable`] otherwise.
    pub async fn open(&self) -> Result<Vec<Warning>, Error> {
        let mut state = self.state.lock().await;
        let found = self.connect(&mut state).await;
        found.map_err(|unfit| match unfit {
            Unfit::Never(why) => Error::Invalid(format!("{}: {why}", self.place.name)),
            Unfit::Failed(error) if wrong(&error) => Error::Invalid(format!("{}: {error}", self.place.name)),
            unfit @ (Unfit::Failed(_) | Unfit::NotNow(_)) => self.unfit(unfit),
        })
    }

    fn unfit(&self, unfit: Unfit) -> Error {
        match unfit {
            Unfit::Failed(error) => Error::Unavailable(format!("{}: {error}", self.place.name)),
            Unfit::Never(why) | Unfit::NotNow(why) => Error::Unavailable(format!("{}: {why}", self.place.name)),
        }
    }

    /// Makes a connection, ends its predecessor at the server, so that whatever was under way on it has been carried out or never will be, and
    /// looks the server over: it may be another one than before.
    async fn connect(&self, state: &mut State) -> Result<Vec<Warning>, Unfit> {
        let limit = self.place.settings.connect_timeout;
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(Some(limit));
        let mut fresh = self.place.client.get_multiplexed_async_connection_with_config(&config).await?;
        let number = Cmd::new().arg("CLIENT").arg("ID").query_async::<i64>(&mut fresh).await?;
        let (run, warnings) = server::inspect(&mut fresh).await?;
        // A server that was restarted has nothing under way, and gives the number to somebody else.
        if let Some((last, _)) = state.known.as_ref().filter(|(_, of)| *of == run) {
            let ended = Cmd::new().arg("CLIENT").arg("KILL").arg("ID").arg(*last).query_async::<i64>(&mut fresh).await;
            if let Err(error) = ended {
                // Not allowed to: then what is under way is bound by its index alone.
                tracing::warn!(place = self.place.name, %error, "a lost connection could not be ended at the server");
            }
        }
        server::schema(&mut fresh, &self.place.schema).await?;
        // Each call has a deadline of its own, see `call`.
        fresh.set_response_timeout(self.place.settings.silence.saturating_mul(2));
        *state = State { connection: Some(fresh), known: Some((number, run)), generation: state.generation + 1 };
        Ok(warnings)
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), Error> {
        let mut state = self.state.lock().await;
        if self.doubted.load(Ordering::Acquire) == state.generation {
            state.connection = None;
        }
        if state.connection.is_none() {
            self.connect(&mut state).await.map_err(|unfit| self.unfit(unfit))?;
        }
        let generation = state.generation;
        let connection = state.connection.clone();
        connection
            .map(|connection| (connection, generation))
            .ok_or_else(|| Error::Unavailable(format!("{}: not connected", self.place.name)))
    }

    /// Gives a connection up, unless somebody has already.
    async fn lost(&self, generation: u64) {
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.connection = None;
        }
    }

    /// Runs a script; `at` is what it is about.
    pub async fn call(&self, effect: Effect, script: &ScriptInvocation<'_>, at: &str) -> Result<Answer, Error> {
        let (mut connection, generation) = self.connection().await?;
        let asked = self.waited(generation, script.invoke_async::<Answer>(&mut connection)).await;
        self.outcome(effect, asked, generation, at).await
    }

    /// Runs a command that reads.
    pub async fn read<T: redis::FromRedisValue>(&self, command: &Cmd, at: &str) -> Result<T, Error> {
        let (mut connection, generation) = self.connection().await?;
        let asked = self.waited(generation, command.query_async::<T>(&mut connection)).await;
        self.outcome(Effect::Reads, asked, generation, at).await
    }

    /// The answer, or that there was none in time.
    async fn waited<T>(
        &self,
        generation: u64,
        asked: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<Result<T, RedisError>, String> {
        let limit = self.place.settings.silence;
        let waiting = Waiting { link: self, generation, since: Instant::now() };
        let answer = timeout(limit, asked).await.map_err(|_| format!("no answer within {limit:?}"));
        waiting.answered();
        answer
    }

    async fn outcome<T>(
        &self,
        effect: Effect,
        asked: Result<Result<T, RedisError>, String>,
        generation: u64,
        at: &str,
    ) -> Result<T, Error> {
        let (why, answered) = match asked {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => match meaning(&error) {
                Meaning::Refused => return Err(Error::Unavailable(format!("{at}: {error}"))),
                Meaning::Nonsense => return Err(corrupt(at, error)),
                Meaning::Lost => (error.to_string(), true),
            },
            Err(silence) => (silence, false),
        };
        self.lost(generation).await;
        tracing::debug!(at, why, answered, "a connection to Redis is given up");
        Err(match effect {
            Effect::Reads => Error::Unavailable(format!("{at}: {why}")),
            Effect::Writes => Error::Unknown(format!("{at}: {why}")),
        })
    }
}

/// Waiting does not mend it.
fn wrong(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig)
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

enum Meaning {
    /// The server refused the script before its first write.
    Refused,
    /// What is stored is not as we made it.
    Nonsense,
    /// The connection is of no use any more.
    Lost,
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the type is open: of what is added, nothing is known of the connection"
)]
fn meaning(error: &RedisError) -> Meaning {
    // A key of another type; or a script that ran into a value which it cannot have written.
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ResponseError) => Meaning::Nonsense,
        ErrorKind::Server(_) => Meaning::Refused,
        ErrorKind::Extension if error.code() == Some("WRONGTYPE") => Meaning::Nonsense,
        // OOM, MISCONF, BUSY, NOREPLICAS, NOAUTH and the like.
        ErrorKind::Extension => Meaning::Refused,
        ErrorKind::UnexpectedReturnType => Meaning::Nonsense,
        _ => Meaning::Lost,
    }
}
