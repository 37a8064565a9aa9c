//! What an error of PostgreSQL means to a manager.

use crate::cluster::Error;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use std::fmt;
use std::time::Duration;

/// Why a call to the server brought no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// What the driver says.
    Sql(sqlx::Error),
    /// No answer for so long.
    Silent(Duration),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(error) => f.write_str(&told(error)),
            Self::Silent(span) => write!(f, "no answer within {span:?}"),
        }
    }
}

/// The server's own words with its SQLSTATE, or the driver's. (The driver would add a line: of the server's source.)
pub(crate) fn told(error: &sqlx::Error) -> String {
    match (state(error), error.as_database_error()) {
        (Some(state), Some(said)) => format!("{} (SQLSTATE {state})", said.message()),
        _ => error.to_string(),
    }
}

/// The SQLSTATE, if the server said one.
fn state(error: &sqlx::Error) -> Option<&str> {
    Some(error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?.code())
}

/// The SQLSTATE, if the server said one.
pub(crate) fn code(failed: &Failed) -> Option<&str> {
    match failed {
        Failed::Sql(error) => state(error),
        Failed::Silent(_) => None,
    }
}

/// Whether the server refused a statement and goes on with the session. Otherwise nothing is known of the session, nor of what
/// was under way on it.
pub(crate) fn refused(failed: &Failed) -> bool {
    let Failed::Sql(sqlx::Error::Database(error)) = failed else { return false };
    error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| matches!(error.severity(), PgSeverity::Error))
}

/// No answer, after which provably nothing was written.
pub(super) fn unwritten(place: &str, failed: &Failed) -> Error {
    match failed {
        Failed::Sql(error) => of_statement(place, error),
        Failed::Silent(_) => Error::Unavailable(format!("{place}: {failed}")),
    }
}

/// An error after which provably nothing was written.
pub(super) fn of_statement(place: &str, error: &sqlx::Error) -> Error {
    // Our statements are fixed and tested: a table, a column or a value that is not as we made it (classes 22, 23 and 42), or data that the server
    // finds damaged. But a privilege that was taken away (42501) can be given back.
    const CORRUPT: [&str; 5] = ["22", "23", "42", "XX001", "XX002"];
    let corrupt = match state(error) {
        Some(state) => state != "42501" && CORRUPT.iter().any(|class| state.starts_with(class)),
        None => {
            matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_))
        }
    };
    if corrupt {
        return Error::Corrupt { place: place.to_owned(), what: told(error) };
    }
    Error::Unavailable(format!("{place}: {}", told(error)))
}

/// An error of the statement that commits. Refused: it was rolled back. But a cancellation may come while the commit is already on the
/// disk (class 57), and a session that ended may have committed before.
pub(super) fn of_commit(place: &str, failed: &Failed) -> Error {
    if refused(failed) && code(failed).is_some_and(|code| !code.starts_with("57")) {
        return unwritten(place, failed);
    }
    Error::Unknown(format!("{place}: {failed}"))
}
