//! The server: how it is reached, and what every session is set to.

use super::Options;
use super::address::Address;
use super::error::{Failed, code, of_statement, unwritten};
use crate::cluster::{Error, schema};
use leasehold_model::ClusterName;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions, Row, query, raw_sql};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::time::timeout;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/cluster_postgres");

/// PostgreSQL cuts names of applications there.
const MAX_NAME: usize = 63;

/// Where the store is, for one cluster.
pub(super) struct Server {
    connect: PgConnectOptions,
    /// What was asked for of TLS, and whether a password was found: said when the server refuses.
    tls: String,
    has_password: bool,
    pub cluster: ClusterName,
    pub options: Options,
    /// Names the store in errors; without a password.
    pub place: String,
}

impl Server {
    /// # Errors
    /// [`Error::Incompatible`] when `url` is none, or names a file that cannot be used.
    pub fn new(url: &str, cluster: &ClusterName, options: Options) -> Result<Self, Error> {
        let Address { connect, has_password, tls } = Address::parse(url)?;
        let mut name = match &options.address {
            Some(address) => format!("leasehold-manager {address}"),
            None => "leasehold-manager".to_owned(),
        };
        name.truncate(name.floor_char_boundary(MAX_NAME));
        let database = connect.get_database().unwrap_or_else(|| connect.get_username());
        let host = connect.get_socket().map_or_else(|| connect.get_host().to_owned(), |it| it.display().to_string());
        let place = format!("PostgreSQL {host}:{}/{database}, cluster {cluster}", connect.get_port());
        // Poolers in session mode take no other parameters at the start of a session than the common ones.
        let connect = connect.application_name(&name).extra_float_digits(None).disable_statement_logging();
        Ok(Self { connect, tls, has_password, cluster: cluster.clone(), options, place })
    }

    /// A new connection, as the server makes it.
    pub async fn connect(&self) -> Result<PgConnection, Failed> {
        let connected = timeout(self.options.connect_timeout, self.connect.connect()).await;
        match connected {
            Ok(connected) => connected.map_err(Failed::Sql),
            Err(_) => Err(Failed::Silent(self.options.connect_timeout)),
        }
    }

    /// What a connection that could not be made means to a manager that starts: wrong credentials or certificates will not get right
    /// by waiting.
    pub fn refused(&self, failed: &Failed) -> Error {
        let hint = match (failed, code(failed)) {
            (Failed::Sql(sqlx::Error::Configuration(_) | sqlx::Error::Tls(_)), _) => format!(" ({})", self.tls),
            // What the TLS library says of the other side; nothing else in making a connection reports this kind.
            (Failed::Sql(sqlx::Error::Io(why)), _) if why.kind() == ErrorKind::InvalidData => format!(" ({})", self.tls),
            (_, Some("28P01")) if !self.has_password => {
                "; no password was found: set PGPASSWORD, or name a passfile in PGPASSFILE or by passfile=FILE in the URL".into()
            }
            // No line of pg_hba.conf fits: whether it asks for TLS is not said.
            (_, Some("28000")) if matches!(self.connect.get_ssl_mode(), PgSslMode::Disable) => {
                format!(
                    " ({}: if the server takes only connections over TLS, ask for them with sslmode=verify-full and sslrootcert=FILE)",
                    self.tls
                )
            }
            (_, Some("28000" | "28P01" | "3D000" | "42501")) => String::new(),
            _ => return unwritten(&self.place, failed),
        };
        Error::Incompatible(format!("{}: {failed}{hint}", self.place))
    }

    /// Sets a session up: bounds on everything, durability, and the server's own look-out for a dead peer, so that the lock of a
    /// machine that vanished is free within a quarter of a minute.
    pub async fn set_up(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let ms = |span: Duration| span.as_millis().max(1);
        let (lock, statement) = (ms(self.options.lock_timeout), ms(self.options.statement_timeout));
        let sql = format!(
            "SET search_path TO leasehold; SET lock_timeout = {lock}; SET statement_timeout = {statement}; \
             SET idle_in_transaction_session_timeout = {statement}; SET default_transaction_isolation = 'read committed'; \
             SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 4; \
             SET tcp_user_timeout = 13000; \
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        );
        let done = self.bounded(raw_sql(sqlx::AssertSqlSafe(sql)).execute(connection)).await;
        done.map(drop).map_err(|failed| unwritten(&self.place, &failed))
    }

    /// Awaits an answer for as long as a connection may be silent.
    pub async fn bounded<T>(&self, ask: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Failed> {
        match timeout(self.options.silence, ask).await {
            Ok(answer) => answer.map_err(Failed::Sql),
            Err(_) => Err(Failed::Silent(self.options.silence)),
        }
    }

    /// Makes the tables, unless they are there; refuses those of a newer build.
    pub async fn prepare(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let newest = self.bounded(newest_version(connection)).await;
        let newest = newest.map_err(|failed| self.refused(&failed))?;
        schema::refuse_newer(&self.place, newest, &MIGRATIONS)?;
        if newest == schema::newest_known(&MIGRATIONS) {
            return Ok(());
        }
        // Two clusters may begin at once; the lock goes with the transaction.
        let create = "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('leasehold schema', 0)); \
                      CREATE SCHEMA IF NOT EXISTS leasehold; COMMIT";
        let created = self.bounded(raw_sql(create).execute(&mut *connection)).await;
        created.map_err(|failed| self.refused(&failed))?;
        let migrated = timeout(self.options.silence, MIGRATIONS.run_direct(None, connection, false)).await;
        match migrated {
            Ok(migrated) => migrated.map_err(|error| schema::migration(&self.place, &error, of_statement)),
            Err(_) => Err(unwritten(&self.place, &Failed::Silent(self.options.silence))),
        }
    }
}

async fn newest_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let there =
        query("SELECT to_regclass('leasehold._sqlx_migrations') IS NOT NULL").fetch_one(&mut *connection).await?;
    if !there.try_get::<bool, _>(0)? {
        return Ok(0);
    }
    let newest =
        query("SELECT coalesce(max(version), 0) FROM leasehold._sqlx_migrations").fetch_one(connection).await?;
    newest.try_get(0)
}
