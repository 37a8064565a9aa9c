//! What an error of etcd's client says about a call.

use std::error::Error as _;
use tonic::{Code, ConnectError, Status};

/// A bound that etcd's flags set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `--max-txn-ops`.
    Operations,
    /// `--max-request-bytes`.
    Bytes,
}

impl Limit {
    /// The flag, with its default.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Operations => "--max-txn-ops (128 by default)",
            Self::Bytes => "--max-request-bytes (1572864 by default)",
        }
    }
}

/// What is known of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It never reached a server that would carry it out. Another endpoint may.
    NotSent(String),
    /// The server refused to look at it: a permission, credentials, a size. It was not carried out.
    Refused(String),
    /// It has more operations, or more bytes, than this etcd takes. It was not carried out.
    TooLarge(Limit, String),
    /// The server has answered and is done with the call, but an error does not say that nothing was written: etcd that runs out of its
    /// quota *while* it applies a transaction applies it and answers "no space". Reading back tells.
    Ended(String),
    /// The revision asked for was compacted away.
    Compacted(String),
    /// It may have been carried out, or may still be.
    Unknown(String),
}

impl Failure {
    /// Whether this says something about the endpoint, so that another one should be tried next.
    pub(crate) const fn is_of_the_endpoint(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Unknown(_) => true,
            Self::Refused(_) | Self::TooLarge(..) | Self::Ended(_) | Self::Compacted(_) => false,
        }
    }

    pub(crate) fn why(&self) -> &str {
        match self {
            Self::NotSent(why)
            | Self::Refused(why)
            | Self::TooLarge(_, why)
            | Self::Ended(why)
            | Self::Compacted(why)
            | Self::Unknown(why) => why,
        }
    }
}

/// etcd's own clients tell errors of one code apart by these texts, so they are part of the protocol. Said before a call is looked
/// at, by a member that has no leader.
const NO_LEADER: &str = "etcdserver: no leader";
/// Said before a transaction is proposed.
const TOO_MANY_OPERATIONS: &str = "etcdserver: too many operations in txn request";
const TOO_LARGE: &str = "etcdserver: request is too large";
/// The same by the gRPC library of the server, which takes half a MiB more.
const TOO_LARGE_TO_READ: &str = "grpc: received message larger than max";
/// The quota is used up, and the alarm NOSPACE raised.
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
/// What to do then.
const MAKE_ROOM: &str =
    "etcd is full (--quota-backend-bytes): compact it, defragment each member, then etcdctl alarm disarm";

/// Classifies an error of a call.
pub(crate) fn failure(error: &etcd_client::Error) -> Failure {
    use etcd_client::Error as E;
    match error {
        E::GRpcStatus(status) => of_status(status),
        // Found before anything is sent.
        E::InvalidArgs(_)
        | E::InvalidUri(_)
        | E::InvalidMetadataValue(_)
        | E::EndpointError(_)
        | E::EndpointsNotManaged => Failure::NotSent(error.to_string()),
        E::TransportError(_)
        | E::IoError(_)
        | E::WatchError(_)
        | E::Utf8Error(_)
        | E::LeaseKeepAliveError(_)
        | E::ElectError(_)
        | E::Internal(_) => Failure::Unknown(caused(error.to_string(), error.source())),
    }
}

fn of_status(status: &Status) -> Failure {
    let why = text(status);
    if never_connected(status) {
        return Failure::NotSent(why);
    }
    match status.code() {
        Code::Unavailable if status.message() == NO_LEADER => Failure::NotSent(why),
        Code::InvalidArgument if status.message() == TOO_MANY_OPERATIONS => Failure::TooLarge(Limit::Operations, why),
        Code::InvalidArgument if status.message() == TOO_LARGE => Failure::TooLarge(Limit::Bytes, why),
        Code::ResourceExhausted if status.message().starts_with(TOO_LARGE_TO_READ) => {
            Failure::TooLarge(Limit::Bytes, why)
        }
        Code::ResourceExhausted if status.message() == NO_SPACE => Failure::Ended(format!("{why}; {MAKE_ROOM}")),
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::NotFound => Failure::Refused(why),
        // The quota, or too many requests in the queue.
        Code::ResourceExhausted => Failure::Ended(why),
        Code::OutOfRange => Failure::Compacted(why),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Failure::Unknown(why),
    }
}

/// Whether no connection was made that the call could have gone through.
fn never_connected(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The message, with what caused it: "transport error" alone helps nobody.
fn text(status: &Status) -> String {
    format!("etcd: {}", caused(status.message().to_owned(), status.source()))
}

/// `text`, with each cause that says more.
fn caused(mut text: String, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, message: &str) -> Failure {
        failure(&etcd_client::Error::GRpcStatus(Status::new(code, message)))
    }

    #[test]
    fn only_what_was_provably_not_carried_out_is_said_to_be() {
        let text = |message: &str| format!("etcd: {message}");
        let cases = [
            (Code::Unavailable, "etcdserver: no leader", Failure::NotSent as fn(String) -> Failure),
            (Code::Unavailable, "etcdserver: request timed out", Failure::Unknown),
            (Code::Unavailable, "etcdserver: leader changed", Failure::Unknown),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost", Failure::Unknown),
            (Code::ResourceExhausted, "etcdserver: too many requests", Failure::Ended),
            (Code::PermissionDenied, "etcdserver: permission denied", Failure::Refused),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Failure::Refused),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", Failure::Refused),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", |why| {
                Failure::TooLarge(Limit::Operations, why)
            }),
            (Code::InvalidArgument, "etcdserver: request is too large", |why| Failure::TooLarge(Limit::Bytes, why)),
            (Code::ResourceExhausted, "grpc: received message larger than max (1589248 vs. 1048576)", |why| {
                Failure::TooLarge(Limit::Bytes, why)
            }),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", Failure::Compacted),
            (Code::Unknown, "transport error", Failure::Unknown),
            (Code::Cancelled, "h2 protocol error", Failure::Unknown),
            (Code::DeadlineExceeded, "", Failure::Unknown),
            (Code::Internal, "", Failure::Unknown),
        ];
        for (code, message, expected) in cases {
            assert_eq!(status(code, message), expected(text(message)), "{code:?} {message}");
        }
        let full = status(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(&full, Failure::Ended(why) if why.contains("space exceeded") && why.contains("alarm disarm")));
        let refused = Status::from_error(Box::new(ConnectError("connection refused".into())));
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(matches!(failure(&etcd_client::Error::GRpcStatus(refused)), Failure::NotSent(_)));
    }
}
