//! The URL of a server: which of libpq's parameters it may have, and which files these name.
//!
//! What is not understood is refused: the driver would only log it, and `sslmod=verify-full` would pass for no wish at all.

use super::passfile;
use crate::cluster::Error;
use leasehold_model::secret::without_password;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use std::env;
use std::fs;
use std::str::FromStr;

/// Read here.
const OURS: [&str; 5] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "passfile"];
/// Left to the driver.
const DRIVERS: [&str; 6] = ["user", "password", "host", "port", "dbname", "options"];

/// How a server is reached, and what an error about that should say of it.
#[derive(Debug)]
pub(crate) struct Address {
    pub connect: PgConnectOptions,
    /// Whether a password was found.
    pub has_password: bool,
    /// What was asked for of TLS, as the URL would say it.
    pub tls: String,
}

/// The parameters of a URL.
struct Parameters<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Parameters<'a> {
    fn parse(query: &'a str) -> Result<Self, String> {
        let known = || OURS.into_iter().chain(DRIVERS);
        let mut all = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known().any(|known| known == key) {
                let expected = known().collect::<Vec<_>>().join(", ");
                return Err(format!("the parameter {key:?} is not known here; expected one of {expected}"));
            }
            all.push((key, value));
        }
        Ok(Self(all))
    }

    /// The value of `key`, or else of the environment's `variable`, and where it was found.
    fn value<'n>(&self, key: &'n str, variable: &'n str) -> Result<Option<(&'n str, String)>, String> {
        let text = self.0.iter().rev().find(|(name, _)| *name == key).map(|(_, text)| text);
        let value = match text {
            Some(text) => Some((key, decoded(text).ok_or_else(|| format!("{key}: {text:?} is not percent-encoded"))?)),
            None => env::var(variable).ok().map(|value| (variable, value)),
        };
        Ok(value.filter(|(_, value)| !value.is_empty()))
    }

    /// The path of a file of PEM that is there and holds what it should.
    fn pem(&self, key: &str, variable: &str, holds: &str) -> Result<Option<String>, String> {
        let Some((name, path)) = self.value(key, variable)? else { return Ok(None) };
        if key == "sslrootcert" && path == "system" {
            return Ok(Some(path));
        }
        let text = fs::read(&path).map_err(|why| format!("{name} = {path}: {why}"))?;
        let begins = |line: &str| line.starts_with("-----BEGIN ") && line.contains(holds);
        if String::from_utf8_lossy(&text).lines().any(begins) {
            return Ok(Some(path));
        }
        Err(format!("{name} = {path}: there is no {holds} in PEM in it"))
    }

    /// With what is asked for, applied to `connect`; and that in words.
    fn tls(&self, mut connect: PgConnectOptions) -> Result<(PgConnectOptions, String), String> {
        let (name, text) = self.value("sslmode", "PGSSLMODE")?.unwrap_or(("sslmode", "prefer".to_owned()));
        let root = self.pem("sslrootcert", "PGSSLROOTCERT", "CERTIFICATE")?;
        let mode = match text.as_str() {
            "disable" => PgSslMode::Disable,
            "prefer" => PgSslMode::Prefer,
            // As libpq has it: whoever names an authority wants it to be asked.
            "require" if root.is_some() => PgSslMode::VerifyCa,
            "require" => PgSslMode::Require,
            "verify-ca" => PgSslMode::VerifyCa,
            "verify-full" => PgSslMode::VerifyFull,
            // "allow", too: the driver would never use TLS.
            _ => {
                let accepted = "disable, prefer, require, verify-ca or verify-full";
                return Err(format!("{name}: {text:?} is not accepted; expected {accepted}"));
            }
        };
        connect = connect.ssl_mode(mode);
        let mut told = format!("sslmode={text}");
        match root.as_deref() {
            // Overrules the variable, which the driver reads too.
            Some("system") => connect = connect.ssl_root_cert_from_pem(Vec::new()),
            Some(root) => {
                connect = connect.ssl_root_cert(root);
                told = format!("{told}, sslrootcert={root}");
            }
            None => {}
        }
        let cert = self.pem("sslcert", "PGSSLCERT", "CERTIFICATE")?;
        let key = self.pem("sslkey", "PGSSLKEY", "PRIVATE KEY")?;
        match (cert, key) {
            (Some(cert), Some(key)) => connect = connect.ssl_client_cert(cert).ssl_client_key(key),
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                return Err("sslcert and sslkey are used together; one of them is missing".to_owned());
            }
        }
        Ok((connect, told))
    }

    /// The password that is not in the URL.
    fn password(&self, connect: &PgConnectOptions) -> Result<Option<String>, String> {
        if let Some((name, path)) = self.value("passfile", "PGPASSFILE")? {
            let named = passfile::password(path.as_ref(), connect);
            return named.map_err(|why| format!("{name} = {path}: {why}"));
        }
        let Some(file) = env::home_dir().map(|home| home.join(".pgpass")).filter(|file| file.exists()) else {
            return Ok(None);
        };
        Ok(passfile::password(&file, connect).unwrap_or_else(|why| {
            tracing::warn!(path = %file.display(), why, "the passfile is not used");
            None
        }))
    }
}

/// `%2F` and the like.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&(mut byte), after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            rest = &rest[2..];
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

impl Address {
    /// # Errors
    /// [`Error::Incompatible`] names what is wrong with `url`, or with a file that it names.
    pub fn parse(url: &str) -> Result<Self, Error> {
        Self::of(url).map_err(|why| Error::Incompatible(format!("the URL of the PostgreSQL server: {why}")))
    }

    fn of(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let parameters = Parameters::parse(query)?;
        let drivers = parameters.0.iter().filter(|(key, _)| DRIVERS.contains(key));
        // The driver takes a plus for a space, which only forms do.
        let mut left: Vec<_> = drivers.map(|(key, value)| format!("{key}={}", value.replace('+', "%2B"))).collect();
        let in_url = without_password(url) != url;
        let in_environment = env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        if !in_url {
            // Keeps the driver from reading passfiles: it would log a line that it cannot read, with the password in it.
            left.push("password=".to_owned());
        }
        let connect =
            PgConnectOptions::from_str(&format!("{base}?{}", left.join("&"))).map_err(|error| error.to_string())?;
        let (mut connect, tls) = parameters.tls(connect)?;
        let mut has_password = in_url;
        if !in_url {
            let found = match in_environment {
                Some(password) => Some(password),
                None => parameters.password(&connect)?,
            };
            has_password = found.is_some();
            connect = connect.password(found.as_deref().unwrap_or_default());
        }
        Ok(Self { connect, has_password, tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match Address::parse(url).map(|it| it.tls) {
            Err(Error::Incompatible(why)) => why,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn a_parameter_that_is_not_known_or_cannot_be_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("empty.pem").display().to_string();
        fs::write(&file, "").unwrap();
        for (query, part) in [
            ("sslmod=verify-full", "\"sslmod\" is not known here; expected one of sslmode"),
            ("connect_timeout=3", "\"connect_timeout\" is not known"),
            ("sslmode=allow", "sslmode: \"allow\" is not accepted; expected disable, prefer"),
            ("sslmode=verify_full", "sslmode: \"verify_full\" is not accepted"),
            ("sslrootcert=/no/such.pem", "sslrootcert = /no/such.pem: No such file"),
            (&format!("sslrootcert={file}"), "there is no CERTIFICATE in PEM in it"),
            (&format!("sslcert=x&sslkey={file}"), "sslcert = x: No such file"),
            ("sslmode=%2", "is not percent-encoded"),
            ("passfile=/no/such", "passfile = /no/such: No such file"),
        ] {
            let told = refused(&format!("postgres://me@db/x?{query}"));
            assert!(told.contains(part), "{query}: {told}");
        }
    }

    #[test]
    fn what_a_url_asks_for_of_tls_is_what_the_driver_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b.pem");
        fs::write(&path, "a comment\n-----BEGIN CERTIFICATE-----\n").unwrap();
        let root = path.display().to_string().replace(' ', "%20");
        for (query, mode) in [
            (String::new(), PgSslMode::Prefer),
            ("sslmode=require".into(), PgSslMode::Require),
            (format!("sslmode=require&sslrootcert={root}"), PgSslMode::VerifyCa),
            ("sslmode=verify-full&sslrootcert=system".into(), PgSslMode::VerifyFull),
            ("sslmode=disable".into(), PgSslMode::Disable),
        ] {
            let address = Address::parse(&format!("postgres://me:secret@db:7/x?{query}")).unwrap();
            let told = address.connect.get_ssl_mode();
            assert!(std::mem::discriminant(&told) == std::mem::discriminant(&mode), "{query}: {told:?}");
            assert_eq!((address.connect.get_host(), address.connect.get_port()), ("db", 7));
            assert!(address.has_password);
        }
        let socket = Address::parse("postgres:///x?host=/run/pg&user=a%2Bb+c").unwrap();
        assert_eq!(socket.connect.get_username(), "a+b+c");
        assert_eq!(socket.connect.get_socket().unwrap().to_str(), Some("/run/pg"));
    }
}
