//! Entries and answers of scripts; see [`crate::fuzzing`].

use super::values::{accepted, decode, encode};
use crate::oplog::{EntryIndex, Writer};
use leasehold_model::{ExecutorId, ShardEpoch};

pub(crate) fn decode_entry(bytes: &[u8]) {
    let Ok(entry) = decode(b"1", bytes, "here") else { return };
    let written = encode(entry.writer, &entry.entry);
    assert_eq!(decode(b"1", &written, "here").as_ref(), Ok(&entry));
}

/// An answer whose words are told apart by zero bytes.
pub(crate) fn decode_answer(bytes: &[u8]) {
    let words = bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    let offered = Writer { epoch: ShardEpoch::MAX, executor: ExecutorId::from_u128(1) };
    let _ = accepted(words, (offered, EntryIndex(1)), "here");
}
