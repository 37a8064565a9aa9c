//! What an error of SQLite means to a manager.

use crate::cluster::Error;

/// Result codes (<https://www.sqlite.org/rescode.html>). The lowest byte of an extended one is its primary.
mod code {
    pub const ERROR: i32 = 1;
    pub const BUSY: i32 = 5;
    pub const CORRUPT: i32 = 11;
    pub const FULL: i32 = 13;
    pub const CONSTRAINT: i32 = 19;
    pub const MISMATCH: i32 = 20;
    pub const NOT_A_DATABASE: i32 = 26;
    pub const IOERR_FSYNC: i32 = 1034;
    pub const IOERR_DIR_FSYNC: i32 = 1290;
}

fn extended_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    extended_code(error).map(|code| code & 0xff)
}

/// Whether the disk did not say that it has what was written to the log. The transaction is whole there, and this connection
/// will not read it: whoever opens the file next does.
pub(super) fn sync_failed(error: &sqlx::Error) -> bool {
    matches!(extended_code(error), Some(code::IOERR_FSYNC | code::IOERR_DIR_FSYNC))
}

/// An error after which provably nothing was written: every one before COMMIT, once the transaction was rolled back.
pub(super) fn unwritten(place: &str, error: &sqlx::Error) -> Error {
    let corrupt = || Error::Corrupt { place: place.to_owned(), what: error.to_string() };
    match primary_code(error) {
        // Our statements are fixed and tested: if one is wrong here or meets a constraint, tables or rows are not as we made them.
        Some(code::CORRUPT | code::NOT_A_DATABASE | code::ERROR | code::CONSTRAINT | code::MISMATCH) => corrupt(),
        Some(_) => Error::Unavailable(format!("{place}: {error}")),
        None if matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => corrupt(),
        None => Error::Unavailable(format!("{place}: {error}")),
    }
}

/// An error of COMMIT itself. `rolled_back`: the transaction was still open afterwards and was rolled back then.
///
/// Two leave no doubt. "Busy" is said before anything is written. "Full" is the disk's refusal of a part of the log, of which the
/// last is what makes it a transaction: no recovery finds it whole, and SQLite has rolled it back by itself. Any other write or a sync
/// that failed may have put the whole transaction into the log, where a recovery finds it.
pub(super) fn at_commit(place: &str, error: &sqlx::Error, rolled_back: bool) -> Error {
    match primary_code(error) {
        Some(code::BUSY) if rolled_back => Error::Unavailable(format!("{place}: {error}")),
        Some(code::FULL) => Error::Unavailable(format!("{place}: {error}")),
        Some(_) | None => Error::Unknown(format!("{place}: commit failed: {error}")),
    }
}
