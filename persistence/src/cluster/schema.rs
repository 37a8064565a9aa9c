//! Versions of a store's tables.

use super::Error;
use sqlx::migrate::{MigrateError, Migrator};

/// Refuses a store that a newer build wrote: `newest` is the version of its tables.
pub(super) fn refuse_newer(place: &str, newest: i64, migrations: &Migrator) -> Result<(), Error> {
    let known = newest_known(migrations);
    if newest > known {
        return Err(Error::Incompatible(format!(
            "{place} has schema version {newest}, this build knows up to {known}: use a newer build"
        )));
    }
    Ok(())
}

/// The newest version that this build knows.
pub(crate) fn newest_known(migrations: &Migrator) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// An error of bringing the schema up to date; `unwritten` is what an error of a statement means.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the type is open: whatever is added, the schema is not known to be right"
)]
pub(super) fn migration(place: &str, error: &MigrateError, unwritten: fn(&str, &sqlx::Error) -> Error) -> Error {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => unwritten(place, error),
        MigrateError::VersionMismatch(version) => {
            Error::Incompatible(format!("{place}: schema version {version} is not the one that this build knows"))
        }
        MigrateError::Dirty(version) => Error::Corrupt {
            place: format!("{place}, table _sqlx_migrations, version {version}"),
            what: "the migration was not completed".into(),
        },
        other => Error::Incompatible(format!("{place}: {other}")),
    }
}
