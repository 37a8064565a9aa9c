//! The ownership: a session advisory lock, and the task that keeps the connection which holds it.
//!
//! The lock lives exactly as long as the server's session: while a query on that very connection is answered, and says that
//! the session holds the lock, nobody else has taken over. It is taken once; a connection that is lost is not made anew,
//! because in between somebody else may have owned the store.

use super::error::{Failed, code, refused, unwritten};
use super::server::Server;
use crate::cluster::Error;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row, query};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Callers that wait for one query; further ones wait to ask.
const MAX_ASKING: usize = 1024;

/// What the owner's writes are known by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Title {
    /// The cluster's row.
    pub id: i32,
    /// Made by this opening, and compared by each of its writes.
    pub owner: [u8; 16],
}

/// Takes the lock on `connection`, waiting for it as long as for any other: its last holder may just be ending.
pub(super) async fn take(server: &Server, mut connection: PgConnection) -> Result<(PgConnection, i64), Error> {
    let failed = |failed: Failed| unwritten(&server.place, &failed);
    let name = format!("leasehold cluster {}", server.cluster);
    let key = query("SELECT hashtextextended($1, 0)").bind(name).fetch_one(&mut connection);
    let key =
        server.bounded(key).await.and_then(|row| row.try_get::<i64, _>(0).map_err(Failed::Sql)).map_err(failed)?;
    let taken = server.bounded(query("SELECT pg_advisory_lock($1)").bind(key).execute(&mut connection)).await;
    match taken {
        Ok(_) => Ok((connection, key)),
        // lock_not_available
        Err(error) if code(&error) == Some("55P03") => Err(holder_of(server, &mut connection, key).await),
        Err(error) => Err(failed(error)),
    }
}

/// Says who holds the lock, as far as can be told.
async fn holder_of(server: &Server, connection: &mut PgConnection, key: i64) -> Error {
    const HOLDER: &str = "SELECT a.pid, a.application_name, host(a.client_addr) AS host, \
         to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS since \
         FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
         AND ((l.classid::bigint << 32) | l.objid::bigint) = $1 LIMIT 1";
    let row = server.bounded(query(HOLDER).bind(key).fetch_optional(&mut *connection)).await;
    let who = row.ok().flatten().map_or_else(
        || "another session".to_owned(),
        |row| {
            let text = |name| row.try_get::<Option<String>, _>(name).ok().flatten();
            let pid = row.try_get::<i32, _>("pid").map_or_else(|_| "?".to_owned(), |pid| pid.to_string());
            let host = text("host").unwrap_or_else(|| "a local socket".to_owned());
            let (name, since) = (text("application_name"), text("since"));
            format!(
                "session {pid} ({}) from {host} since {}",
                name.unwrap_or_else(|| "?".to_owned()),
                since.unwrap_or_else(|| "?".to_owned())
            )
        },
    );
    let stored = query("SELECT owner_address FROM head WHERE cluster = $1").bind(server.cluster.as_str());
    let stored = server.bounded(stored.fetch_optional(connection)).await.ok().flatten();
    let address = stored.and_then(|row| row.try_get::<Option<String>, _>(0).ok().flatten());
    let address = address.map_or(String::new(), |address| format!(", gRPC {address}"));
    Error::NotOwner(format!("{} is held by {who}{address}", server.place))
}

/// Makes the tables and writes this process into the cluster's row, on the connection that holds the lock: from then on no
/// earlier owner's write lands, not even one that is still under way.
pub(super) async fn take_over(server: &Server, mut connection: PgConnection) -> Result<(PgConnection, Title), Error> {
    server.prepare(&mut connection).await?;
    // 122 random bits.
    const TAKE: &str = "INSERT INTO head (cluster, owner, writer, owner_address) \
         VALUES ($1, decode(replace(gen_random_uuid()::text, '-', ''), 'hex'), 0, $2) ON CONFLICT (cluster) DO UPDATE \
         SET owner = excluded.owner, writer = excluded.writer, owner_address = excluded.owner_address RETURNING id, owner";
    let taken = query(TAKE).bind(server.cluster.as_str()).bind(server.options.address.as_deref());
    let place = format!("{}, table head", server.place);
    let row = server.bounded(taken.fetch_all(&mut connection)).await.map_err(|failed| unwritten(&place, &failed))?;
    let title = || {
        let row = row.first().ok_or(sqlx::Error::RowNotFound)?;
        let owner: Vec<u8> = row.try_get("owner")?;
        let owner = owner.try_into().map_err(|_| sqlx::Error::RowNotFound)?;
        Ok(Title { id: row.try_get("id")?, owner })
    };
    let title = title().map_err(|error| unwritten(&place, &Failed::Sql(error)))?;
    Ok((connection, title))
}

type Asking = oneshot::Sender<Result<(), Error>>;

/// The way to the lock's task.
#[derive(Debug, Clone)]
pub(super) struct LockHandle {
    asking: mpsc::Sender<Asking>,
    lost: Arc<OnceLock<String>>,
}

impl LockHandle {
    /// Whether the lock is held, by a query that begins from now on.
    ///
    /// # Errors
    /// [`Error::NotOwner`] from the loss on; [`Error::Unavailable`] when the server could not say.
    pub async fn confirm(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        if self.asking.send(reply).await.is_err() {
            return Err(self.lost());
        }
        answer.await.unwrap_or_else(|_| Err(self.lost()))
    }

    fn lost(&self) -> Error {
        Error::NotOwner(
            self.lost.get().cloned().unwrap_or_else(|| "the task with the store's lock has ended".to_owned()),
        )
    }
}

/// The connection, while it holds the lock.
struct Holder {
    connection: PgConnection,
    key: i64,
    place: String,
    silence: Duration,
}

impl Holder {
    /// `Err` with the reason once the lock is lost; `Ok` with the answer otherwise.
    async fn look(&mut self) -> Result<Result<(), Error>, String> {
        const HELD: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 \
             AND pid = pg_backend_pid() AND ((classid::bigint << 32) | objid::bigint) = $1";
        let asked = query(HELD).bind(self.key).fetch_all(&mut self.connection);
        let answer = match timeout(self.silence, asked).await {
            Ok(answer) => answer.map_err(Failed::Sql),
            Err(_) => Err(Failed::Silent(self.silence)),
        };
        match answer {
            Ok(rows) => match rows.first().map(|row| row.try_get::<i64, _>(0)) {
                Some(Ok(held)) if held > 0 => Ok(Ok(())),
                _ => Err(format!(
                    "{}: the session does not hold the lock any more, although it lives; a pooler, or somebody by hand, has \
                     released it",
                    self.place
                )),
            },
            Err(failed) if refused(&failed) => Ok(Err(Error::Unavailable(format!("{}: {failed}", self.place)))),
            Err(failed) => Err(format!(
                "{}: the session that held the lock has ended ({failed}); another manager may own the store by now",
                self.place
            )),
        }
    }

    async fn run(mut self, mut asked: mpsc::Receiver<Asking>, lost: Arc<OnceLock<String>>) {
        while let Some(first) = asked.recv().await {
            // All who asked before the query begins are answered by it.
            let mut waiting = vec![first];
            while let Ok(more) = asked.try_recv() {
                waiting.push(more);
            }
            // Who still stood in the queue when the lock was lost is told without asking.
            let look = match lost.get() {
                Some(why) => Err(why.clone()),
                None => self.look().await,
            };
            let answer = match look {
                Ok(answer) => answer,
                Err(why) => {
                    if lost.set(why.clone()).is_ok() {
                        tracing::error!(why, "the store's lock is lost");
                    }
                    asked.close();
                    Err(Error::NotOwner(why))
                }
            };
            for asking in waiting {
                // Who does not wait any more needs no answer.
                let _ = asking.send(answer.clone());
            }
        }
        if lost.get().is_none() {
            // Said to the server, so that the next owner need not wait until it notices.
            let _ = timeout(self.silence, self.connection.close()).await;
        }
    }
}

/// Gives the connection to a task, which ends when every handle is gone.
pub(super) fn spawn(server: &Server, connection: PgConnection, key: i64) -> LockHandle {
    let (asking, asked) = mpsc::channel(MAX_ASKING);
    let lost = Arc::<OnceLock<String>>::default();
    let holder = Holder { connection, key, place: server.place.clone(), silence: server.options.lock_silence };
    tokio::spawn(holder.run(asked, Arc::clone(&lost)));
    LockHandle { asking, lost }
}
