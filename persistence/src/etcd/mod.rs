//! What the cluster store and the election on etcd share: how a server is reached, what its errors mean, where keys are.

mod connection;
mod error;
mod options;

pub use connection::EtcdConnection;
pub(crate) use error::{Failure, Limit, failure};
pub use options::{EtcdOptions, EtcdTls};

use leasehold_model::ClusterName;

/// What proves a leadership: the key that its election campaign made. Every write is made under the condition that the key
/// is still the one that was created at this revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderKey {
    /// The key.
    pub key: Vec<u8>,
    /// The etcd revision at which it was created.
    pub create_revision: i64,
}

/// The prefix of everything that belongs to `cluster`: `/leasehold/NAME/`. A name has no `/`, and each level ends with one, so no
/// prefix of one cluster is a prefix of another's keys.
#[must_use]
pub fn prefix(cluster: &ClusterName) -> String {
    format!("/leasehold/{}/", cluster.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clusters_prefix_begins_another_clusters_keys() {
        let names = ["a", "a.", "a..", "..", "a-b", "aa", "head"].map(|name| ClusterName::new(name).unwrap());
        for one in &names {
            for other in names.iter().filter(|other| *other != one) {
                assert!(!prefix(other).starts_with(&prefix(one)), "{one} and {other}");
            }
        }
    }
}
