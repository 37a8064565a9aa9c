//! A few sessions of one purpose, handed out one at a time.
//!
//! Reads and writes have sessions of their own, so that neither waits for the other's.

use super::error::unwritten;
use super::server::{Purpose, Server};
use crate::cluster::postgres::error::{Failed, refused};
use crate::oplog::Error;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row, query};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// A session that was idle for so long is asked whether it lives before anything is written on it: else the first write
/// after a restart of the server had an unknown outcome.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// How often the end of a lost session is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One connection, and its process at the server.
pub(super) struct Session {
    pub connection: PgConnection,
    process: i32,
    used: Instant,
}

/// See the module's documentation.
pub(super) struct Sessions {
    pub server: Arc<Server>,
    purpose: Purpose,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

/// A session in use. Unless it is given back it is closed.
pub(super) struct Lent {
    pub session: Session,
    _permit: OwnedSemaphorePermit,
}

impl Sessions {
    pub fn new(server: Arc<Server>, size: usize, purpose: Purpose) -> Self {
        Self { server, purpose, permits: Arc::new(Semaphore::new(size)), idle: Mutex::default() }
    }

    /// Puts a connection in that was made for the opening.
    pub fn add(&self, connection: PgConnection, process: i32) {
        self.put(Session { connection, process, used: Instant::now() });
    }

    fn put(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }

    fn pop(&self) -> Option<Session> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// A session that lives, as far as can be told.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is none.
    pub async fn lend(&self) -> Result<Lent, Error> {
        let limit = self.server.settings.silence;
        let waiting = timeout(limit, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = match waiting {
            Ok(Ok(permit)) => permit,
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => {
                let what = format!("{}: no session was free within {limit:?}", self.server.place);
                return Err(Error::Unavailable(what));
            }
        };
        while let Some(mut session) = self.pop() {
            if session.used.elapsed() < ASK_AFTER
                || self.server.bounded(query("SELECT 1").execute(&mut session.connection)).await.is_ok()
            {
                return Ok(Lent { session, _permit: permit });
            }
        }
        let session = self.fresh().await.map_err(|failed| unwritten(&self.server.place, &failed))?;
        Ok(Lent { session, _permit: permit })
    }

    async fn fresh(&self) -> Result<Session, Failed> {
        let mut connection = self.server.connect().await?;
        let process = self.server.set_up(&mut connection, self.purpose).await?;
        Ok(Session { connection, process, used: Instant::now() })
    }

    /// Takes a session back after an answer, or after an error that left it as it was; a lost one is closed.
    pub fn give_back<T>(&self, mut lent: Lent, answer: &Result<T, Failed>) -> Option<Lost> {
        if answer.as_ref().err().is_none_or(refused) {
            lent.session.used = Instant::now();
            self.put(lent.session);
            return None;
        }
        Some(Lost { process: lent.session.process })
    }

    /// Ends a lost session at the server and waits until it is gone: what it had under way is committed by then, or never will
    /// be. As far as can be told; an append that lands later than that is still bound to its index.
    pub async fn bury(&self, lost: &Lost) {
        let ended = timeout(self.server.settings.silence, self.end(lost.process)).await;
        let why = match ended {
            Ok(Ok(())) => return,
            Ok(Err(failed)) => failed.to_string(),
            Err(_) => "it goes on".to_owned(),
        };
        tracing::warn!(place = self.server.place, session = lost.process, why, "a lost session could not be ended");
    }

    async fn end(&self, process: i32) -> Result<(), Failed> {
        // Another process may have the number by now: only one of ours that began earlier than this one is meant.
        const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 \
             AND application_name = 'leasehold-executor' AND usename = current_user \
             AND backend_start < (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())";
        let mut session = self.fresh().await?;
        loop {
            let there = self.server.bounded(query(END).bind(process).fetch_optional(&mut session.connection)).await?;
            match there.map(|row| row.try_get::<bool, _>(0)).transpose().map_err(Failed::Sql)? {
                Some(_) => tokio::time::sleep(LOOK_EVERY).await,
                None => {
                    self.put(session);
                    return Ok(());
                }
            }
        }
    }

    /// Says good-bye, so that the server need not notice.
    pub async fn close(&self) {
        while let Some(session) = self.pop() {
            let _ = timeout(self.server.settings.connect_timeout, session.connection.close()).await;
        }
    }
}

/// A session whose fate is unknown.
#[must_use]
pub(super) struct Lost {
    process: i32,
}
