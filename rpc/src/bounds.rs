//! What a message may carry at most. Each is checked while decoding; the error names the field and the bound.

/// Bytes of one message, on both sides: 4 MiB. A larger one is refused before it is read.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// Bytes of an invocation's payload: 1 MiB.
pub const MAX_PAYLOAD: usize = 1024 * 1024;
/// Bytes of an idempotency key: 128, at least 1.
pub const MAX_IDEMPOTENCY_KEY: usize = 128;
/// Bytes of a method's name: 128, at least 1.
pub const MAX_METHOD: usize = 128;
/// Bytes of a zone's name: 128, at least 1.
pub const MAX_ZONE: usize = 128;
/// Bytes of the name of a hash scheme: 64, at least 1.
pub const MAX_HASH_SCHEME: usize = 64;
/// Entries of any list: 65,536, as many as a cluster can have shards.
pub const MAX_LIST: usize = 65_536;
/// Bytes of any one text in an error's details: 1 KiB. A longer one is cut: details travel in HTTP/2 headers, of which
/// a peer accepts 16 KiB.
pub const MAX_DETAIL: usize = 1024;
