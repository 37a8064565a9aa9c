//! What an error of PostgreSQL means to an executor.

use crate::cluster::postgres::error::{Failed, code, refused, told};
use crate::oplog::Error;

/// A unique value is there already: of what the statements insert, only an idempotency key can be.
pub(super) const TAKEN: &str = "23505";
/// Somebody has it locked.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Provably nothing was written.
pub(super) fn unwritten(place: &str, failed: &Failed) -> Error {
    // Our statements are fixed and tested: a table, a column or a value that is not as we made it (classes 22, 23 and 42), or data that the
    // server finds damaged. But a privilege that was taken away (42501) can be given back.
    const CORRUPT: [&str; 5] = ["22", "23", "42", "XX001", "XX002"];
    let corrupt = match (code(failed), failed) {
        (Some(code), _) => code != "42501" && CORRUPT.iter().any(|class| code.starts_with(class)),
        (None, Failed::Sql(error)) => {
            matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_))
        }
        (None, Failed::Silent(_)) => false,
    };
    if corrupt {
        return Error::Corrupt { place: place.to_owned(), what: failed.to_string() };
    }
    Error::Unavailable(format!("{place}: {failed}"))
}

/// What a failed statement that commits by itself comes to.
pub(super) enum Outcome {
    /// It was rolled back, and the reason may lie with one of its calls.
    OneOfThem(Error),
    /// Somebody has a record or a table locked; it was rolled back.
    Locked,
    /// A key is taken; it was rolled back.
    KeyTaken,
    /// It may have been committed, or may be yet.
    Unknown(Error),
}

/// Refused: it was rolled back. But a cancellation may come while the commit is already on the disk (class 57), and a session
/// that ended may have committed before.
pub(super) fn of_write(place: &str, failed: &Failed) -> Outcome {
    match code(failed) {
        Some(code) if !refused(failed) || code.starts_with("57") => {
            Outcome::Unknown(Error::Unknown(format!("{place}: {failed}")))
        }
        Some(TAKEN) => Outcome::KeyTaken,
        Some(LOCK_NOT_AVAILABLE) => Outcome::Locked,
        Some(_) => Outcome::OneOfThem(unwritten(place, failed)),
        None => Outcome::Unknown(Error::Unknown(format!("{place}: {failed}"))),
    }
}

/// A store that cannot be opened until somebody changes something.
pub(super) fn unusable(place: &str, why: impl std::fmt::Display) -> Error {
    Error::Invalid(format!("{place}: {why}"))
}

/// A row that cannot be.
pub(super) fn corrupt(place: &str, what: impl std::fmt::Display) -> Error {
    Error::Corrupt { place: place.to_owned(), what: what.to_string() }
}

/// As the driver says it, with the SQLSTATE.
pub(super) fn of_driver(error: &sqlx::Error) -> String {
    told(error)
}
