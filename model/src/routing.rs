//! Key to shard.

use crate::ids::{AgentId, ShardCount, ShardId};

/// Names how keys map to shards; both sides of a registration must agree on it.
pub const HASH_SCHEME: &str = "xxh3-64-mod/v1";

/// The shard of an agent: `xxh3_64(utf8("type/id")) % shard_count` (XXH3, 64 bits, seed 0).
#[must_use]
pub fn shard_of(agent: &AgentId, shard_count: ShardCount) -> ShardId {
    let hash = xxhash_rust::xxh3::xxh3_64(agent.as_str().as_bytes());
    let shard = hash % u64::from(shard_count.get());
    ShardId(u32::try_from(shard).expect("below shard_count, which is at most 65536"))
}
