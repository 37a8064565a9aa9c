//! What an error of etcd's client says about a call.

use std::error::Error as _;
use tonic::{Code, ConnectError, Status};

/// What is known of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It never reached a server that would carry it out. Another endpoint may.
    NotSent(String),
    /// The server refused to look at it: a permission, credentials, a size. It was not carried out.
    Refused(String),
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
            Self::Refused(_) | Self::Ended(_) | Self::Compacted(_) => false,
        }
    }

    pub(crate) fn why(&self) -> &str {
        match self {
            Self::NotSent(why) | Self::Refused(why) | Self::Ended(why) | Self::Compacted(why) | Self::Unknown(why) => {
                why
            }
        }
    }
}

/// etcd's own clients tell errors of one code apart by this text, so it is part of the protocol. Said before a call is looked
/// at, by a member that has no leader.
const NO_LEADER: &str = "etcdserver: no leader";

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
        | E::Internal(_) => Failure::Unknown(error.to_string()),
    }
}

fn of_status(status: &Status) -> Failure {
    let why = text(status);
    if never_connected(status) {
        return Failure::NotSent(why);
    }
    match status.code() {
        Code::Unavailable if status.message() == NO_LEADER => Failure::NotSent(why),
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
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    format!("etcd: {text}")
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
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Failure::Ended),
            (Code::ResourceExhausted, "etcdserver: too many requests", Failure::Ended),
            (Code::PermissionDenied, "etcdserver: permission denied", Failure::Refused),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Failure::Refused),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", Failure::Refused),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", Failure::Compacted),
            (Code::Unknown, "transport error", Failure::Unknown),
            (Code::Cancelled, "h2 protocol error", Failure::Unknown),
            (Code::DeadlineExceeded, "", Failure::Unknown),
            (Code::Internal, "", Failure::Unknown),
        ];
        for (code, message, expected) in cases {
            assert_eq!(status(code, message), expected(text(message)), "{code:?} {message}");
        }
        let refused = Status::from_error(Box::new(ConnectError("connection refused".into())));
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(matches!(failure(&etcd_client::Error::GRpcStatus(refused)), Failure::NotSent(_)));
    }
}
