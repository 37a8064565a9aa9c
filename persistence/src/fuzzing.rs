//! Bytes as stored values: what `fuzz/` tries. Each must be a value or an error that says what is wrong.

/// Decodes `bytes` as the kind of value that the first one chooses.
///
/// # Panics
/// When a value is not written as it was read: that is the fault to be found.
pub fn decode_any(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind {
        #[cfg(feature = "redis")]
        0..=63 => crate::oplog::redis::fuzzing::decode_entry(rest),
        #[cfg(feature = "redis")]
        64..=95 => crate::oplog::redis::fuzzing::decode_answer(rest),
        #[cfg(feature = "etcd")]
        96..=255 => crate::cluster::etcd::fuzzing::decode_any(*kind, rest),
        #[cfg(not(all(feature = "redis", feature = "etcd")))]
        _ => {}
    }
}

/// Decodes `bytes` as a chunk of the archive layer, and as an object's path.
///
/// # Panics
/// When one is not written as it was read.
pub fn decode_archive(bytes: &[u8]) {
    crate::oplog::layers::chunk::decode_any(bytes);
    let text = String::from_utf8_lossy(bytes);
    if let Some(path) = crate::oplog::layers::names::ObjectPath::parse(&text) {
        assert_eq!(path.to_string(), text);
    }
}
