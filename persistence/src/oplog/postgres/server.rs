//! The server: how it is reached, what every session is set to, and what it should be like.

use super::Settings;
use super::error::{corrupt, of_driver, unusable, unwritten};
use crate::cluster::postgres::address::Address;
use crate::cluster::postgres::error::{Failed, code};
use crate::cluster::postgres::pooler;
use crate::cluster::schema::newest_known;
use crate::oplog::{Error, Warning};
use leasehold_model::ClusterName;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Row, query, raw_sql};
use std::time::Duration;
use tokio::time::timeout;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/oplog_postgres");

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Statements that find what belongs to one record.
    Reads,
    /// Statements of [`super::rows`] for many agents at once. What they look up one by one they say themselves, with LATERAL; joins
    /// are of the calls with their records, which would be compared each with each if they were not hashed.
    Writes,
}

/// How long a statement that writes waits for a lock, before its calls wait here: other calls stand behind it.
const WRITERS_WAIT: Duration = Duration::from_millis(50);

/// Where the store is, for one cluster.
pub(super) struct Server {
    connect: PgConnectOptions,
    pub settings: Settings,
    /// Names the store in errors; without a password.
    pub place: String,
}

impl Server {
    /// # Errors
    /// [`Error::Invalid`] when `url` is none, or names a file that cannot be used.
    pub fn new(url: &str, cluster: &ClusterName, settings: Settings) -> Result<Self, Error> {
        let Address { connect, .. } = Address::parse(url).map_err(|error| Error::Invalid(error.to_string()))?;
        let database = connect.get_database().unwrap_or_else(|| connect.get_username());
        let host = connect.get_socket().map_or_else(|| connect.get_host().to_owned(), |it| it.display().to_string());
        let place = format!("PostgreSQL {host}:{}/{database}, cluster {cluster}", connect.get_port());
        // Poolers in session mode take no other parameters at the start of a session than the common ones.
        let connect = connect.application_name("leasehold-executor").extra_float_digits(None);
        Ok(Self { connect: connect.disable_statement_logging(), settings, place })
    }

    /// A new connection, as the server makes it.
    pub async fn connect(&self) -> Result<PgConnection, Failed> {
        let limit = self.settings.connect_timeout;
        let connected = timeout(limit, self.connect.connect()).await;
        connected.map_or(Err(Failed::Silent(limit)), |connected| connected.map_err(Failed::Sql))
    }

    /// What a connection that could not be made means at the start: wrong credentials will not get right by waiting.
    pub fn refused(&self, failed: &Failed) -> Error {
        const WRONG: [&str; 4] = ["28000", "28P01", "3D000", "42501"];
        let wrong = match failed {
            Failed::Sql(sqlx::Error::Configuration(_) | sqlx::Error::Tls(_)) => true,
            Failed::Sql(_) => code(failed).is_some_and(|code| WRONG.contains(&code)),
            Failed::Silent(_) => false,
        };
        if wrong { unusable(&self.place, failed) } else { unwritten(&self.place, failed) }
    }

    /// Awaits an answer for as long as a connection may be silent.
    pub async fn bounded<T>(&self, ask: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Failed> {
        let limit = self.settings.silence;
        timeout(limit, ask).await.map_or(Err(Failed::Silent(limit)), |answer| answer.map_err(Failed::Sql))
    }

    /// Sets a session up: bounds on everything, durability, the plans that never read a whole table, and the server's own look-out for a
    /// dead peer.
    pub async fn set_up(&self, connection: &mut PgConnection, purpose: Purpose) -> Result<i32, Failed> {
        let ms = |span: Duration| span.as_millis().max(1);
        let (wait, nested) = match purpose {
            Purpose::Reads => (self.settings.lock_timeout, "on"),
            Purpose::Writes => (WRITERS_WAIT, "off"),
        };
        let (lock, statement) = (ms(wait), ms(self.settings.statement_timeout));
        let sql = format!(
            "SET search_path TO leasehold_oplogs; SET lock_timeout = {lock}; SET statement_timeout = {statement}; \
             SET idle_in_transaction_session_timeout = {statement}; SET default_transaction_isolation = 'read committed'; \
             SET enable_seqscan = off; SET enable_mergejoin = off; SET enable_nestloop = {nested}; SET jit = off; \
             SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 4; \
             SET tcp_user_timeout = 13000; \
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
             SELECT pg_backend_pid()"
        );
        let rows = self.bounded(raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(connection)).await?;
        rows.last().map_or(Err(sqlx::Error::RowNotFound), |row| row.try_get(0)).map_err(Failed::Sql)
    }

    /// Refuses a pooler that gives each statement any session: it would lose the settings and the prepared statements.
    pub async fn refuse_pooler(&self, first: &mut PgConnection, second: &mut PgConnection) -> Result<(), Error> {
        match pooler::seen(self.settings.silence, first, second).await {
            Ok(None) => Ok(()),
            Ok(Some(seen)) => Err(unusable(
                &self.place,
                format!(
                    "a pooler in transaction mode is between ({seen}); the executor relies on what its sessions are set to. Connect \
                     to PostgreSQL itself, or let the pooler use session mode (pgbouncer: pool_mode = session)"
                ),
            )),
            Err(failed) => Err(unwritten(&format!("{} (or a pooler before it)", self.place), &failed)),
        }
    }

    /// What weakens the server's promises. On a connection that is not set up yet.
    pub async fn warnings(&self, connection: &mut PgConnection) -> Result<Vec<Warning>, Error> {
        const ASK: &str = "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')";
        let row = self.bounded(raw_sql(ASK).fetch_one(connection)).await;
        let off = |row: &sqlx::postgres::PgRow, at: usize| row.try_get::<String, _>(at).map(|text| text == "off");
        let read = row.and_then(|row| {
            let warnings = [
                (off(&row, 0), Warning::PostgresUnsafe("fsync")),
                (off(&row, 1), Warning::PostgresUnsafe("full_page_writes")),
                (off(&row, 2), Warning::PostgresAsynchronous),
            ];
            let found = warnings.into_iter().filter_map(|(off, warning)| match off {
                Ok(true) => Some(Ok(warning)),
                Ok(false) => None,
                Err(error) => Some(Err(Failed::Sql(error))),
            });
            found.collect()
        });
        read.map_err(|failed| unwritten(&self.place, &failed))
    }

    /// Makes the tables, unless they are there; refuses those of another build. Answers the cluster's number.
    pub async fn prepare(&self, connection: &mut PgConnection, cluster: &ClusterName) -> Result<i32, Error> {
        let newest = self.bounded(newest_version(connection)).await.map_err(|failed| self.refused(&failed))?;
        let known = newest_known(&MIGRATIONS);
        if newest > known {
            let why = format!("schema version {newest}, this build knows up to {known}: use a newer build");
            return Err(unusable(&self.place, why));
        }
        if newest > 0 && newest < known {
            let why = format!(
                "schema version {newest}, an older build's, and this build reads {known}: use the older build, or name another database"
            );
            return Err(unusable(&self.place, why));
        }
        if newest < known {
            // Several executors may begin at once; the lock goes with the transaction.
            let create = "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('leasehold oplog schema', 0)); \
                          CREATE SCHEMA IF NOT EXISTS leasehold_oplogs; COMMIT";
            let created = self.bounded(raw_sql(create).execute(&mut *connection)).await;
            created.map_err(|failed| self.refused(&failed))?;
            let limit = self.settings.silence;
            match timeout(limit, MIGRATIONS.run_direct(None, connection, false)).await {
                Ok(migrated) => migrated.map_err(|error| self.migration(&error))?,
                Err(_) => return Err(unwritten(&self.place, &Failed::Silent(limit))),
            }
        }
        // Read first: a number is not to be used up by every start.
        const NUMBER: &str = "SELECT id FROM clusters WHERE name = $1";
        const ENTER: &str = "INSERT INTO clusters (name) VALUES ($1) ON CONFLICT DO NOTHING";
        let place = format!("{}, table clusters", self.place);
        for _ in 0..2 {
            let row = self.bounded(query(NUMBER).bind(cluster.as_str()).fetch_optional(&mut *connection)).await;
            if let Some(row) = row.map_err(|failed| unwritten(&place, &failed))? {
                return row.try_get(0).map_err(|error| corrupt(&place, of_driver(&error)));
            }
            let entered = self.bounded(query(ENTER).bind(cluster.as_str()).execute(&mut *connection)).await;
            entered.map_err(|failed| self.refused(&failed))?;
        }
        Err(corrupt(&place, "the cluster's row cannot be made"))
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the type is open: whatever is added, the schema is not known to be right"
    )]
    fn migration(&self, error: &MigrateError) -> Error {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                Error::Unavailable(format!("{}: making the tables: {}", self.place, of_driver(error)))
            }
            other => unusable(&self.place, format!("schema: {other}")),
        }
    }
}

/// The newest schema that this build makes.
pub(super) fn newest_known_version() -> i64 {
    newest_known(&MIGRATIONS)
}

/// The schema that is there; 0: none.
pub(super) async fn newest_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    const THERE: &str = "SELECT to_regclass('leasehold_oplogs._sqlx_migrations') IS NOT NULL";
    const NEWEST: &str = "SELECT coalesce(max(version), 0) FROM leasehold_oplogs._sqlx_migrations";
    if !query(THERE).fetch_one(&mut *connection).await?.try_get::<bool, _>(0)? {
        return Ok(0);
    }
    query(NEWEST).fetch_one(connection).await?.try_get(0)
}
