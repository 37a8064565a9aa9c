//! Secrets never reach a log.

/// A URL as it may be shown: its password, whether it stands before the host or among the parameters, is `***`.
#[must_use]
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (before, parameters) = rest.split_once('?').map_or((rest, None), |(before, after)| (before, Some(after)));
    // A password may hold an '@' that was not escaped, and a '/' too: what is not surely the host is not shown.
    let shown = match before.rfind('@').map(|at| before.split_at(at)) {
        Some((user, place)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:***{place}"),
            None if !user.contains('/') => before.to_owned(),
            None => format!("***{place}"),
        },
        None => before.to_owned(),
    };
    let parameters = parameters.map_or(String::new(), |parameters| {
        let hidden = |item: &str| match item.split_once('=') {
            Some((key, _)) if key.contains("password") => format!("{key}=***"),
            _ => item.to_owned(),
        };
        format!("?{}", parameters.split('&').map(hidden).collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{shown}{parameters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_hidden_wherever_it_stands() {
        for (url, shown) in [
            ("postgres://me:secret@db:5432/x", "postgres://me:***@db:5432/x"),
            ("postgres://me:se@cr/et@db/x", "postgres://me:***@db/x"),
            ("postgres://se/cret@db/x", "postgres://***@db/x"),
            ("postgres://me@db/x?sslmode=require&password=secret", "postgres://me@db/x?sslmode=require&password=***"),
            ("postgres:///x?host=/run/pg&user=me", "postgres:///x?host=/run/pg&user=me"),
            ("postgres://me@db/x", "postgres://me@db/x"),
            ("sqlite:a.db", "sqlite:a.db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
