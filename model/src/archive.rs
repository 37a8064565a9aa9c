//! Where the archive of oplogs is, as an operator writes it.

use crate::ids::{Address, InvalidValue};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// `file:///FOLDER` or `s3://BUCKET/PREFIX`. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveUrl {
    /// A folder, by its absolute path.
    Files(PathBuf),
    /// A bucket of S3-compatible storage.
    S3 {
        /// 3 to 63 lower-case letters, digits, `.` and `-`.
        bucket: String,
        /// What all keys begin with, without a slash at either end; empty: nothing. At most 256 bytes.
        prefix: String,
    },
}

/// What [`ArchiveUrl::parse`] accepts.
pub const ACCEPTED_ARCHIVE: &str = "file:///FOLDER, or s3://BUCKET/PREFIX with a bucket of 3 to 63 of lower-case letters, digits, \
     '.', '-' and a prefix of at most 256 of letters, digits, '.', '_', '-', '=', '/'";

/// What [`Endpoint::parse`] accepts.
pub const ACCEPTED_ENDPOINT: &str = "https://HOST or https://HOST:PORT (or http://), with nothing behind it";

const MAX_PREFIX: usize = 256;

impl ArchiveUrl {
    /// Reads it. A slash at its end makes no difference.
    ///
    /// # Errors
    /// Names `url` and what is accepted.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        Self::read(text)
            .ok_or_else(|| InvalidValue::new("url", crate::secret::without_password(text), ACCEPTED_ARCHIVE))
    }

    fn read(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("file://") {
            let sound = path.starts_with('/') && !path.contains(|c: char| c.is_control() || "%?#".contains(c));
            let parts = path.split('/').filter(|part| !part.is_empty());
            // `..` would name another folder than it seems to.
            let mut parts = parts.peekable();
            let some = parts.peek().is_some();
            return (sound && some && parts.all(|part| part != ".." && part != "."))
                .then(|| Self::Files(PathBuf::from(path)));
        }
        let rest = text.strip_prefix("s3://")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        // A part without a name would not be seen at the end.
        let prefix = if prefix == "/" { return None } else { prefix.strip_suffix('/').unwrap_or(prefix) };
        let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let named = (3..=63).contains(&bucket.len())
            && bucket.chars().all(|c| end(c) || c == '.' || c == '-')
            && bucket.starts_with(end)
            && bucket.ends_with(end)
            && !bucket.contains("..");
        let plain = |part: &str| {
            let sound = part.chars().all(|c| c.is_ascii_alphanumeric() || "._-=".contains(c));
            sound && !part.is_empty() && part != "." && part != ".."
        };
        let placed = prefix.is_empty() || (prefix.len() <= MAX_PREFIX && prefix.split('/').all(plain));
        (named && placed).then(|| Self::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for ArchiveUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(path) => write!(f, "file://{}", path.display()),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

/// Where S3-compatible storage is served, if it is not Amazon's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    host: String,
}

impl Endpoint {
    /// Reads `https://HOST`, `https://HOST:PORT`, or the same with `http://`. A slash at its end makes no difference.
    ///
    /// # Errors
    /// Names `endpoint` and what is accepted.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        Self::read(text)
            .ok_or_else(|| InvalidValue::new("endpoint", crate::secret::without_password(text), ACCEPTED_ENDPOINT))
    }

    fn read(text: &str) -> Option<Self> {
        let text = text.strip_suffix('/').unwrap_or(text);
        let place = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
        // A port is optional here; an address without one gets one, to be looked at.
        let address = Address::new(place).or_else(|_| Address::new(format!("{place}:1"))).ok()?;
        let (host, _) = address.as_str().rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let sound = !host.contains(|c: char| !c.is_ascii_graphic() || "@/?#%\"'<>\\^`{|}".contains(c));
        sound.then(|| Self { text: text.to_owned(), host })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its host, without port and brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it is spoken to over TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.text.starts_with("https://")
    }

    /// Whether it is on this machine, so that nobody reads along.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_read_as_it_is_written_and_nothing_else_is_one() {
        let s3 = |bucket: &str, prefix: &str| Some(ArchiveUrl::S3 { bucket: bucket.into(), prefix: prefix.into() });
        for (text, read) in [
            ("file:///var/lib/archive", Some(ArchiveUrl::Files("/var/lib/archive".into()))),
            ("file:///a b/ü", Some(ArchiveUrl::Files("/a b/ü".into()))),
            ("s3://bucket", s3("bucket", "")),
            ("s3://bucket/", s3("bucket", "")),
            ("s3://my-bucket.2/a/B_c=d.e/", s3("my-bucket.2", "a/B_c=d.e")),
        ] {
            let parsed = ArchiveUrl::read(text);
            assert_eq!(parsed, read, "{text}");
            let again = parsed.map(|url| ArchiveUrl::parse(&url.to_string()));
            assert_eq!(again, read.map(Ok), "{text} as it is shown");
        }
        for text in [
            "",
            "file:",
            "file://",
            "file:///",
            "file://host/x",
            "file:///a/../b",
            "file:///a%20b",
            "file:///a\nb",
            "/a",
            "s3:",
            "s3://",
            "s3://ab",
            "s3://Bucket",
            "s3://-bucket",
            "s3://bucket.",
            "s3://bu..cket",
            "s3://bu_cket",
            "s3://bucket/a//b",
            "s3://bucket//",
            "s3://bucket/../x",
            "s3://bucket/a b",
            "s3://bucket/ü",
            "s3://bucket?x",
            "s3://me:secret@bucket",
            "gs://bucket",
            "https://bucket",
        ] {
            assert_eq!(ArchiveUrl::read(text), None, "{text}");
        }
        for (length, accepted) in [(256, true), (257, false)] {
            assert_eq!(ArchiveUrl::read(&format!("s3://bucket/{}", "p".repeat(length))).is_some(), accepted);
            assert_eq!(ArchiveUrl::read(&format!("s3://{}", "b".repeat(length - 193))).is_some(), accepted);
        }
    }

    #[test]
    fn a_refused_place_does_not_give_a_secret_away() {
        let refused = ArchiveUrl::parse("s3://key:secret@bucket").unwrap_err();
        assert_eq!((refused.field.as_str(), refused.value.as_str()), ("url", "s3://key:***@bucket"));
        let refused = Endpoint::parse("https://key:secret@host").unwrap_err();
        assert_eq!((refused.field.as_str(), refused.value.as_str()), ("endpoint", "https://key:***@host"));
    }

    #[test]
    fn an_endpoint_says_whether_others_can_read_along() {
        for (text, encrypted, local) in [
            ("https://s3.example", true, false),
            ("https://s3.example:9000/", true, false),
            ("http://127.0.0.1:9000", false, true),
            ("http://localhost", false, true),
            ("http://[::1]:9000", false, true),
            ("http://127.0.0.1.example:9000", false, false),
            ("http://10.0.0.1:9000", false, false),
        ] {
            let endpoint = Endpoint::read(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((endpoint.is_encrypted(), endpoint.is_local()), (encrypted, local), "{text}");
            assert_eq!(endpoint.as_str(), text.trim_end_matches('/'));
        }
        for text in
            ["", "s3.example", "ftp://x", "https://", "https://a/b", "https://a?b", "https://a@b", "https://a:0"]
        {
            assert_eq!(Endpoint::read(text), None, "{text}");
        }
    }
}
