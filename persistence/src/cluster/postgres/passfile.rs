//! libpq's passfile: `host:port:database:user:password` on each line, `*` for any, `\:` and `\\` in a field.
//!
//! Not left to the driver, which logs a line that it cannot read, with the password in it.

use sqlx::postgres::PgConnectOptions;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The password of the first line that fits, if one does.
///
/// # Errors
/// Says, without showing any of it, why the file cannot be used.
pub(super) fn password(path: &Path, connect: &PgConnectOptions) -> Result<Option<String>, String> {
    let said = |why: std::io::Error| why.to_string();
    let file = File::open(path).map_err(said)?;
    let mode = file.metadata().map_err(said)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!("others may read it (mode {:o}): chmod 600", mode & 0o777));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(said)?;
    find(&text, connect)
}

fn find(text: &str, connect: &PgConnectOptions) -> Result<Option<String>, String> {
    let port = connect.get_port().to_string();
    // libpq's word for a socket.
    let host = if connect.get_socket().is_some() { "localhost" } else { connect.get_host() };
    let user = connect.get_username();
    let wanted = [host, &port, connect.get_database().unwrap_or(user), user];
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let [place @ .., password] = &fields(line)[..] else { continue };
        if place.len() != wanted.len() {
            return Err(format!("line {} is not host:port:database:user:password", number + 1));
        }
        if place.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted) {
            return Ok(Some(password.clone()));
        }
    }
    Ok(None)
}

/// At most five: a colon of the password need not be escaped.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let last = fields.len() == 5;
        match character {
            ':' if !last => fields.push(String::new()),
            '\\' => fields.last_mut().expect("one at least").extend(characters.next()),
            other => fields.last_mut().expect("one at least").push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect() -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass().host("db").port(5432).username("me").database("x")
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        for (text, password) in [
            ("db:5432:x:me:secret", Some("secret")),
            ("# mine\n\ndb:1:x:me:no\n*:*:*:me:yes\ndb:5432:x:me:late", Some("yes")),
            (r"d\b:5432:x:me:a\:b:c\\d", Some(r"a:b:c\d")),
            ("db:5432:x:you:no\nelse:5432:x:me:no", None),
            ("", None),
        ] {
            assert_eq!(find(text, &connect()).unwrap().as_deref(), password, "{text}");
        }
        let socket = connect().socket("/run/pg");
        assert_eq!(find("localhost:5432:x:me:secret", &socket).unwrap().as_deref(), Some("secret"));
    }

    #[test]
    fn a_passfile_that_cannot_be_used_is_refused_without_showing_any_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passfile");
        std::fs::write(&path, "hunter2\n").unwrap();
        for (mode, part) in [(0o640, "chmod 600"), (0o600, "line 1 is not host:port:database:user:password")] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let told = password(&path, &connect()).unwrap_err();
            assert!(told.contains(part) && !told.contains("hunter2"), "{told}");
        }
    }
}
