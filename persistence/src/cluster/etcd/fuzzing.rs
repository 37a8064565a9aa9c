//! Every stored value, as bytes to bytes; see [`crate::fuzzing`].

use super::values::{decode_chunk, decode_executor, decode_head, encode, encode_executor};
use crate::cluster::Error;

/// `first`: which kind of value; a chunk is read as the one that begins with shard 0.
pub(crate) fn decode_any(kind: u8, bytes: &[u8]) {
    match kind % 3 {
        0 => same(bytes, |bytes| decode_head("head", bytes).map(|head| encode(&head))),
        1 => same(bytes, |bytes| decode_executor("executor", bytes).map(|row| encode_executor(&row))),
        _ => {
            let Ok(rows) = decode_chunk("chunk", 0, bytes) else { return };
            assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "ascending, each shard once");
        }
    }
}

/// What is decoded is written as something that is decoded to the same.
fn same(bytes: &[u8], again: impl Fn(&[u8]) -> Result<Vec<u8>, Error>) {
    let Ok(written) = again(bytes) else { return };
    assert_eq!(again(&written).as_ref(), Ok(&written));
}
