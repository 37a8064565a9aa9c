//! How a PostgreSQL server is reached: TLS, certificates, passwords. A real server that speaks TLS.

#![cfg(feature = "postgres")]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use leasehold_harness::{Certificates, Postgres};
use leasehold_model::ClusterName;
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::{Error, PostgresClusterStore};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Nobody in the clear.
const HBA: &str =
    "hostssl all leasehold all trust\nhostssl all guarded all scram-sha-256\nhostssl all machine all cert\n";

async fn open(url: &str) -> Result<PostgresClusterStore, Error> {
    PostgresClusterStore::open(url, &ClusterName::new("c").unwrap()).await
}

/// Refused for good, with these words.
async fn refused(url: &str, parts: &[&str]) {
    let error = open(url).await.expect_err(url);
    assert!(matches!(error, Error::Incompatible(_)), "{url}: {error}");
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{url}: {parts:?} in: {text}");
    assert!(!text.contains("hunter"), "{text}");
}

/// Opens, and asks the server whether its sessions are encrypted.
async fn encrypted(server: &Postgres, url: &str) {
    let store = open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    store.confirm_leadership().await.unwrap();
    let sessions = "SELECT count(*), bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE application_name LIKE 'leasehold%'";
    assert_eq!(server.sql(sessions), "2|t", "{url}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_servers_certificate_is_asked_about_as_the_url_says_and_a_wrong_one_is_named() {
    let certificates = Certificates::make("server");
    let files = certificates.files();
    let server = Postgres::start_with_tls(&files, HBA);
    let url = server.url();
    let (ca, stranger) = (files.ca.display().to_string(), Certificates::make("server"));
    let stranger = stranger.files().ca.display().to_string();
    encrypted(&server, &format!("{url}?sslmode=verify-full&sslrootcert={ca}")).await;
    encrypted(&server, &format!("{url}?sslmode=require")).await;
    encrypted(&server, &url).await;
    let at_localhost = url.replace("127.0.0.1", "localhost");
    encrypted(&server, &format!("{at_localhost}?sslmode=verify-ca&sslrootcert={ca}")).await;
    let unknown = "invalid peer certificate: ";
    refused(&format!("{url}?sslmode=verify-full&sslrootcert={stranger}"), &[unknown, "sslmode=verify-full", &stranger])
        .await;
    refused(&format!("{url}?sslmode=verify-full"), &[unknown, "sslmode=verify-full"]).await;
    // As libpq has it: whoever names an authority wants it to be asked.
    refused(&format!("{url}?sslmode=require&sslrootcert={stranger}"), &[unknown, &stranger]).await;
    let name = ["certificate not valid for name \"localhost\"", "sslmode=verify-full"];
    refused(&format!("{at_localhost}?sslmode=verify-full&sslrootcert={ca}"), &name).await;
    refused(&format!("{url}?sslmode=disable"), &["no encryption", "28000", "sslmode=disable", "sslmode=verify-full"])
        .await;
    assert!(open(&url).await.is_ok(), "nobody holds the store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_ones_own_is_shown_to_a_server_that_wants_one() {
    let certificates = Certificates::make("machine");
    let files = certificates.files();
    let server = Postgres::start_with_tls(&files, HBA);
    server.sql("CREATE ROLE machine LOGIN SUPERUSER");
    let url = server.url().replace("leasehold@", "machine@");
    let (cert, key) = (files.cert.display(), files.key.display());
    let full = format!("{url}?sslmode=verify-full&sslrootcert={}", files.ca.display());
    encrypted(&server, &format!("{full}&sslcert={cert}&sslkey={key}")).await;
    refused(&full, &["requires a valid client certificate"]).await;
    refused(&format!("{full}&sslcert={cert}"), &["sslcert and sslkey are used together"]).await;
    refused(&format!("{full}&sslcert=/no/cert&sslkey={key}"), &["sslcert = /no/cert", "No such file"]).await;
    let stranger = Certificates::make("machine");
    let (cert, key) = (stranger.files().cert.display().to_string(), stranger.files().key.display().to_string());
    refused(&format!("{full}&sslcert={cert}&sslkey={key}"), &["alert", "sslmode=verify-full"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_taken_from_a_passfile_and_its_absence_is_told_with_what_to_do() {
    let certificates = Certificates::make("server");
    let server = Postgres::start_with_tls(&certificates.files(), HBA);
    server.sql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'hunter:2'");
    let folder = tempfile::tempdir().unwrap();
    let passfile = folder.path().join("passfile");
    fs::write(&passfile, format!("127.0.0.1:{}:leasehold:guarded:hunter:2\n", server.port())).unwrap();
    fs::set_permissions(&passfile, fs::Permissions::from_mode(0o600)).unwrap();
    let url = server.url().replace("leasehold@", "guarded@");
    let named = format!("{url}?sslmode=require&passfile={}", passfile.display());
    encrypted(&server, &named).await;
    refused(&url, &["28P01", "no password was found", "PGPASSFILE"]).await;
    refused(&url.replace("guarded@", "guarded:hunter3@"), &["28P01"]).await;
    fs::write(&passfile, "hunter:2\n").unwrap();
    refused(&named, &["passfile = ", "line 1 is not host:port:database:user:password"]).await;
    fs::set_permissions(&passfile, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&named, &["passfile = ", "chmod 600"]).await;
}
