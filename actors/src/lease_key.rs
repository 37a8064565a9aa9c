//! Lease keys (R36): how one is made, hashed and compared. Only the hash is ever stored or sent to an executor.

use leasehold_model::message::LeaseKey;
use leasehold_model::{ExecutorId, LeaseKeyHash};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The identity of a new executor life: a random id and a random secret.
#[must_use]
pub fn fresh() -> (ExecutorId, LeaseKey) {
    (ExecutorId(Uuid::new_v4()), LeaseKey(rand::random()))
}

/// SHA-256 of `key`.
#[must_use]
pub fn key_hash(key: &LeaseKey) -> LeaseKeyHash {
    LeaseKeyHash(Sha256::digest(key.0).into())
}

/// Whether two hashes are equal, in a time that does not depend on where they differ.
#[must_use]
pub fn same_hash(ours: &LeaseKeyHash, theirs: &LeaseKeyHash) -> bool {
    ours.0.ct_eq(&theirs.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R36
    #[test]
    fn a_key_proves_itself_by_its_hash_and_another_key_does_not() {
        let ((one_id, one), (other_id, other)) = (fresh(), fresh());
        assert_ne!(one_id, other_id);
        assert!(same_hash(&key_hash(&one), &key_hash(&one.clone())));
        assert!(!same_hash(&key_hash(&one), &key_hash(&other)));
    }

    /// The hash is stored by managers: another algorithm would lock every registered executor out.
    #[test]
    fn the_hash_is_sha_256() {
        let hash = key_hash(&LeaseKey(*b"an executor's secret of 32 bytes"));
        let sha256sum = "25c6e6912a1f0fbd28c1837b946b09875ebf515e25a2a1c00f85aa1997b0df70";
        assert_eq!(hash.0.map(|byte| format!("{byte:02x}")).concat(), sha256sum);
    }
}
