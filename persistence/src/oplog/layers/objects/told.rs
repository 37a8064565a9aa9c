//! What an operator is told of a failure: which archive, which object, what is so, what to do.

use crate::oplog::Error;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

/// How much of a foreign text is shown.
const MAX_FOREIGN: usize = 200;

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Did {
    Put,
    Get,
    Delete,
    List,
}

/// Which archive.
#[derive(Debug)]
pub(super) struct Place {
    /// As it is shown.
    pub shown: String,
    pub kind: Kind,
}

/// What sort of storage it is.
#[derive(Debug)]
pub(super) enum Kind {
    #[cfg(feature = "files")]
    Files,
    #[cfg(feature = "s3")]
    S3 {
        bucket: String,
        /// Where it is served.
        endpoint: String,
        /// Where the credentials are from.
        credentials: String,
    },
}

impl Kind {
    /// Whether a call ends when nobody waits for it any more: a system call does not.
    pub fn ends_when_dropped(&self) -> bool {
        match self {
            #[cfg(feature = "files")]
            Self::Files => false,
            #[cfg(feature = "s3")]
            Self::S3 { .. } => true,
        }
    }
}

/// What S3 answers instead of doing what it was asked: the status and its own error code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} (status {status})")]
pub(super) struct Refusal {
    /// HTTP's.
    pub status: u16,
    /// S3's: `NoSuchBucket`; empty: the answer had none.
    pub code: String,
}

/// Credentials cannot be had from where they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no credentials: {0}")]
pub(super) struct NoCredentials(pub String);

/// An attempt took too long.
#[cfg(feature = "s3")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {0:?}")]
pub(super) struct Slow(pub Duration);

/// The first of a kind in the chain of causes.
fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// Bounded: a chain of causes has an end, but nobody promises it.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source()).take(16)
}

/// Whether the storage does not know how to put only what is not there.
pub(super) fn cannot_be_conditional(error: &object_store::Error) -> bool {
    let refused = cause::<Refusal>(error).is_some_and(|refusal| refusal.status == 501);
    // Of a folder: no hard links there.
    let linked = cause::<io::Error>(error).is_some_and(|error| error.kind() == io::ErrorKind::Unsupported);
    refused || linked
}

impl Place {
    fn began(&self, did: Did, path: &str) -> String {
        let what = match did {
            Did::Put => format!("object {path:?} could not be stored"),
            Did::Get => format!("object {path:?} could not be read"),
            Did::Delete => format!("object {path:?} could not be deleted"),
            Did::List => format!("the objects below {path:?} could not be listed"),
        };
        format!("archive {}: {what}", self.shown)
    }

    /// The call's deadline has passed.
    pub fn late(&self, did: Did, path: &str, span: Duration) -> String {
        let hint = match &self.kind {
            #[cfg(feature = "files")]
            Kind::Files => "is the disk overloaded, or a remote file system away?".to_owned(),
            #[cfg(feature = "s3")]
            Kind::S3 { endpoint, .. } => format!("is {endpoint} away or overloaded?"),
        };
        format!("{} within the request timeout of {span:?}; {hint}", self.began(did, path))
    }

    /// What a call came to: [`Error::Invalid`] when waiting does not mend it.
    pub fn failure(&self, did: Did, path: &str, error: &object_store::Error) -> Error {
        let mut told = self.began(did, path);
        let hint = self.hint(error);
        // Writing to a String cannot fail.
        let _ = write!(told, ": {}", shortened(&why(error)));
        match hint {
            Hint::Settings(what) => Error::Invalid(format!("{told}; {what}")),
            Hint::Waiting(what) => Error::Unavailable(format!("{told}; {what}")),
        }
    }

    fn hint(&self, error: &object_store::Error) -> Hint {
        match &self.kind {
            #[cfg(feature = "files")]
            // The list ends there: what comes behind would not be seen.
            Kind::Files if matches!(error, object_store::Error::InvalidPath { .. }) => {
                Hint::settings("a file there has a name that no object has; move it away")
            }
            #[cfg(feature = "files")]
            Kind::Files => match cause::<io::Error>(error).map(io::Error::kind) {
                Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                    Hint::waiting("make room there: nothing is lost, entries stay in the primary layer until then")
                }
                Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                    Hint::settings("let the executor's user read and write there")
                }
                Some(io::ErrorKind::NotADirectory) => {
                    Hint::settings("a file is in the place of a folder; move it away")
                }
                Some(_) | None => Hint::waiting("look whether the folder is mounted and sound"),
            },
            #[cfg(feature = "s3")]
            Kind::S3 { bucket, endpoint, credentials } => match cause::<Refusal>(error) {
                Some(refusal) => refused(refusal, bucket, endpoint, credentials),
                None if cause::<NoCredentials>(error).is_some() => {
                    Hint::settings(format!("give it credentials that can be read: they are from {credentials}"))
                }
                None => Hint::waiting(format!("is {endpoint} the right place, and reachable from here?")),
            },
        }
    }
}

/// What mends it.
enum Hint {
    Settings(String),
    Waiting(String),
}

impl Hint {
    fn settings(what: impl Into<String>) -> Self {
        Self::Settings(what.into())
    }

    fn waiting(what: impl Into<String>) -> Self {
        Self::Waiting(what.into())
    }
}

/// What a refusal means here.
#[cfg(feature = "s3")]
fn refused(refusal: &Refusal, bucket: &str, endpoint: &str, credentials: &str) -> Hint {
    match (refusal.code.as_str(), refusal.status) {
        ("NoSuchBucket" | "InvalidBucketName", _) => Hint::settings(format!(
            "there is no bucket {bucket} at {endpoint}: create it, or correct the archive's url"
        )),
        (
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired",
            _,
        ) => Hint::settings(format!("correct the credentials, which are from {credentials}")),
        ("RequestTimeTooSkewed", _) => Hint::settings("set this machine's clock"),
        ("AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException", _)
        | ("", 301) => Hint::settings("the bucket is in another region: correct the archive's region"),
        (_, 401 | 403) => {
            let whose = format!("the access key, which is from {credentials}");
            Hint::settings(format!("allow {whose}, to put, get, delete and list objects of bucket {bucket}"))
        }
        ("", _) => Hint::settings(format!("is {endpoint} S3-compatible storage? correct the archive's endpoint")),
        (_, 501) => Hint::settings("this storage cannot be used"),
        (_, _) => Hint::waiting(format!("look what is wrong at {endpoint}")),
    }
}

/// The cause nearest to the fault.
fn why(error: &object_store::Error) -> String {
    if let Some(refusal) = cause::<Refusal>(error) {
        return refusal.to_string();
    }
    if let Some(missing) = cause::<NoCredentials>(error) {
        return missing.to_string();
    }
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

/// On one line, and not too much of it: some of it was written by a server.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().filter(|c| !c.is_control()).take(MAX_FOREIGN).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}
