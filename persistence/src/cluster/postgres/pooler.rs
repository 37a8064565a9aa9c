//! Finds out whether a pooler in transaction mode is between: it would give each statement any session, and the lock with it.

use super::error::{Failed, code, unwritten};
use super::server::Server;
use crate::cluster::Error;
use sqlx::postgres::PgConnection;
use sqlx::{Row, raw_sql};
use std::time::Duration;
use tokio::time::timeout;

/// With several idle sessions a pooler may happen to give us the right one; hardly so often.
const ROUNDS: usize = 4;

/// Refuses a pooler in transaction (or statement) mode.
pub(super) async fn refuse(server: &Server, first: &mut PgConnection, second: &mut PgConnection) -> Result<(), Error> {
    match seen(server.options.silence, first, second).await {
        Ok(None) => Ok(()),
        Ok(Some(seen)) => Err(pooled(server, &seen)),
        Err(failed) => Err(unwritten(&format!("{} (or a pooler before it)", server.place), &failed)),
    }
}

/// What tells of a pooler, if anything does. Between two of the first connection's statements the second one takes a
/// session for a transaction: a pooler either gives it the first one's, or the first one another than before.
pub(crate) async fn seen(
    silence: Duration,
    first: &mut PgConnection,
    second: &mut PgConnection,
) -> Result<Option<String>, Failed> {
    match timeout(silence * 4, look(first, second)).await {
        Ok(seen) => match seen.map_err(Failed::Sql) {
            // "transactions are not allowed": a pooler in statement mode.
            Err(failed) if code(&failed) == Some("08P01") => Ok(Some(failed.to_string())),
            seen => seen,
        },
        Err(_) => Err(Failed::Silent(silence * 4)),
    }
}

async fn look(first: &mut PgConnection, second: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let mut own = None;
    for _ in 0..ROUNDS {
        let before = backend(first).await?;
        raw_sql("BEGIN").execute(&mut *second).await?;
        let other = backend(second).await?;
        let after = backend(first).await?;
        raw_sql("COMMIT").execute(&mut *second).await?;
        if other == before || after != before || *own.get_or_insert(before) != before {
            return Ok(Some(format!("one connection met the sessions {before} and {after}, another one {other}")));
        }
    }
    Ok(None)
}

fn pooled(server: &Server, seen: &str) -> Error {
    Error::Incompatible(format!(
        "{}: a pooler in transaction mode is between ({seen}); the manager holds a lock of its session, which such a pooler \
         gives to others. Connect to PostgreSQL itself, or let the pooler use session mode (pgbouncer: pool_mode = session)",
        server.place
    ))
}

/// The session that serves the connection now. Not prepared: some poolers take no prepared statements.
async fn backend(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    raw_sql("SELECT pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}
