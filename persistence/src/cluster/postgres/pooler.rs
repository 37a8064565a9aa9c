//! Finds out whether a pooler in transaction mode is between: it would give each statement any session, and the lock with it.

use super::error::{Failed, code, unwritten};
use super::server::Server;
use crate::cluster::Error;
use sqlx::postgres::PgConnection;
use sqlx::{Row, raw_sql};

/// With several idle sessions a pooler may happen to give us the right one; hardly so often.
const ROUNDS: usize = 4;

/// Refuses a pooler in transaction (or statement) mode. Between two of the first connection's statements the second one takes a
/// session for a transaction: a pooler either gives it the first one's, or the first one another than before.
pub(super) async fn refuse(server: &Server, first: &mut PgConnection, second: &mut PgConnection) -> Result<(), Error> {
    let failed = |failed: Failed| match code(&failed) {
        // "transactions are not allowed": a pooler in statement mode.
        Some("08P01") => pooled(server, &failed.to_string()),
        Some(_) | None => unwritten(&format!("{} (or a pooler before it)", server.place), &failed),
    };
    let mut own = None;
    for _ in 0..ROUNDS {
        let before = server.bounded(backend(first)).await.map_err(failed)?;
        server.bounded(raw_sql("BEGIN").execute(&mut *second)).await.map_err(failed)?;
        let other = server.bounded(backend(second)).await.map_err(failed)?;
        let after = server.bounded(backend(first)).await.map_err(failed)?;
        server.bounded(raw_sql("COMMIT").execute(&mut *second)).await.map_err(failed)?;
        if other == before || after != before || *own.get_or_insert(before) != before {
            return Err(pooled(
                server,
                &format!("one connection met the sessions {before} and {after}, another one {other}"),
            ));
        }
    }
    Ok(())
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
