//! The scripts: each call is one of them, and Redis runs one at a time.
//!
//! Keys: the oplog (a hash: the record's fields epoch, executor, shard, state, base, next, snapshot, and `primary`: where the primary
//! layer begins, if not at the base; beside them the entries by index, so that an append writes the next index and its entries by
//! one command), the idempotency keys (a hash to the index); the archive layer's chunks (a hash from the first index to `i` with the bytes,
//! or `o` with an object's path) and their order (a sorted set of first indexes by the last ones). The running agents of a shard are a
//! sorted set of their own, and so are the suspended ones. Lua's numbers are floating: epochs are compared as texts of 19
//! digits, indexes as texts for equality. A script checks everything before its first write; a server that is full refuses that first
//! one, so nothing is ever half written.

use redis::Script;
use std::sync::LazyLock;

/// What a script needs of the record, KEYS\[1\].
const RECORD: &str = "local r = redis.call('HMGET', KEYS[1], 'epoch', 'executor', 'state', 'next', 'base', 'shard')\n";

/// What an append needs of it.
const RECORD_TO_APPEND: &str = "local r = redis.call('HMGET', KEYS[1], 'epoch', 'executor', 'state', 'next')\n";

/// The fence: ARGV\[1\] is the epoch, ARGV\[2\] the executor.
const FENCE: &str = "
if not r[1] then return {'absent'} end
if r[1] ~= ARGV[1] or r[2] ~= ARGV[2] then return {'fenced', r[1], r[2]} end
";

/// Where the primary layer begins. Appends need not know.
const PRIMARY: &str = "local primary = redis.call('HGET', KEYS[1], 'primary') or r[5]\n";

const ALIVE: &str = "if r[3] == '2' then return {'absent'} end\n";

/// F1. ARGV: the shard, the running set's name without it, the agent, the suspended set's name likewise.
const CLAIM: &str = "
local r = redis.call('HMGET', KEYS[1], 'epoch', 'executor', 'state', 'next', 'shard', 'snapshot', 'base')
if r[1] and (r[1] > ARGV[1] or (r[1] == ARGV[1] and r[2] ~= ARGV[2])) then return {'fenced', r[1], r[2]} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'executor', ARGV[2], 'shard', ARGV[3], 'state', '1',
    'next', r[4] or '1', 'base', r[7] or '1')
if r[5] and r[5] ~= ARGV[3] then redis.call('ZREM', ARGV[4] .. r[5], ARGV[5]) end
if r[5] then redis.call('ZREM', ARGV[6] .. r[5], ARGV[5]) end
redis.call('ZADD', ARGV[4] .. ARGV[3], 0, ARGV[5])
return {'ok', r[4] or '1', r[6] or ''}
";

/// F3. ARGV: expected index, the one after, the newest snapshot's or nothing, twice the entries' count; indexes with entries; keys
/// with indexes. One key, as most appends have, is looked for and written in one call.
const APPEND: &str = "
if r[4] ~= ARGV[3] then return {'next', r[4]} end
local last = 6 + ARGV[6]
if #ARGV == last + 2 then
    if redis.call('HSETNX', KEYS[2], ARGV[last + 1], ARGV[last + 2]) == 0 then return {'taken', ARGV[last + 1]} end
    last = #ARGV
end
for i = last + 1, #ARGV, 2 do
    if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then return {'taken', ARGV[i]} end
end
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'snapshot', ARGV[5]) end
redis.call('HSET', KEYS[1], 'next', ARGV[4], unpack(ARGV, 7, 6 + ARGV[6]))
if #ARGV > last then redis.call('HSET', KEYS[2], unpack(ARGV, last + 1)) end
return {'ok'}
";

/// The other side of a benchmark's comparison: the same entries, unconditionally.
const UNFENCED: &str = "
local last = 6 + ARGV[6]
redis.call('HSET', KEYS[1], unpack(ARGV, 7, last))
if #ARGV > last then redis.call('HSET', KEYS[2], unpack(ARGV, last + 1)) end
return {'ok'}
";

/// ARGV: first index, limit. Answers the base, where the primary layer begins, and entries of that.
const READ: &str = "
local found = {'ok', r[5], primary}
local from = math.max(tonumber(ARGV[3]), tonumber(primary))
local past = math.min(tonumber(r[4]), from + tonumber(ARGV[4]))
while from < past do
    local fields = {}
    for i = from, math.min(past, from + 500) - 1 do fields[#fields + 1] = string.format('%.0f', i) end
    local values = redis.call('HMGET', KEYS[1], unpack(fields))
    for i = 1, #fields do
        if not values[i] then return {'hole', fields[i]} end
        found[#found + 1] = fields[i]
        found[#found + 1] = values[i]
    end
    from = from + #fields
end
return found
";

/// ARGV: the key. Answers the index, and the entry if it is in the primary layer.
const FIND: &str = "
local at = redis.call('HGET', KEYS[2], ARGV[3])
if not at then return {'ok'} end
if tonumber(at) < tonumber(primary) then return {'ok', at} end
local value = redis.call('HGET', KEYS[1], at)
if not value then return {'hole', at} end
return {'ok', at, value}
";

/// F5. ARGV: the running set's name without its shard, the agent, the suspended set's name likewise, the expected index. Frees
/// memory first, so that a server that is full does not refuse it; what is left of the oplog is its record.
const DELETE: &str = "
if r[3] ~= '2' and r[4] ~= ARGV[6] then return {'next', r[4]} end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('ZREM', ARGV[3] .. r[6], ARGV[4])
redis.call('ZREM', ARGV[5] .. r[6], ARGV[4])
redis.call('HSET', KEYS[1], 'epoch', r[1], 'executor', r[2], 'shard', r[6], 'state', '2', 'base', r[4], 'next', r[4])
return {'ok'}
";

/// ARGV as for a deletion, without the index.
const SUSPEND: &str = "
redis.call('ZREM', ARGV[3] .. r[6], ARGV[4])
redis.call('HSET', KEYS[1], 'state', '0')
redis.call('ZADD', ARGV[5] .. r[6], 0, ARGV[4])
return {'ok'}
";

/// Suspended and running agents of a shard, at one moment: the first ones' count, then both. KEYS: the two sets. ARGV: after whom, limit.
const LIST: &str = "
local suspended = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, ARGV[2])
local found = {tostring(#suspended)}
for _, agent in ipairs(suspended) do found[#found + 1] = agent end
for _, agent in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do found[#found + 1] = agent end
return found
";

/// ARGV: first index, last, the one after, the chunk. KEYS: beside the usual ones the chunks and their order.
const MOVE: &str = "
if primary ~= ARGV[3] then return {'next', primary} end
if tonumber(ARGV[4]) >= tonumber(r[4]) then return {'ok', 'short', r[4]} end
redis.call('HSET', KEYS[1], 'primary', ARGV[5])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[6])
redis.call('ZADD', KEYS[4], ARGV[4], ARGV[3])
local from, past = tonumber(ARGV[3]), tonumber(ARGV[5])
while from < past do
    local fields = {}
    for i = from, math.min(past, from + 500) - 1 do fields[#fields + 1] = string.format('%.0f', i) end
    redis.call('HDEL', KEYS[1], unpack(fields))
    from = from + #fields
end
return {'ok'}
";

/// ARGV: an index that the first chunk holds or precedes, limit.
const CHUNKS: &str = "
local found = {'ok'}
for _, first in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], ARGV[3], '+inf', 'LIMIT', 0, ARGV[4])) do
    local content = redis.call('HGET', KEYS[3], first)
    if not content then return {'hole', first} end
    found[#found + 1] = first
    found[#found + 1] = redis.call('ZSCORE', KEYS[4], first)
    found[#found + 1] = content
end
return found
";

/// Without the fence. KEYS: record, chunks, their order. ARGV: least and greatest first index, the greatest last one.
const CHUNK_LIST: &str = "
local r = redis.call('HMGET', KEYS[1], 'epoch', 'executor', 'primary', 'base')
if not r[1] then return {} end
local found = {r[1], r[2], r[3] or r[4]}
for _, first in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], ARGV[1], ARGV[3])) do
    if tonumber(first) >= tonumber(ARGV[1]) and tonumber(first) <= tonumber(ARGV[2]) then
        local content = redis.call('HGET', KEYS[2], first) or ''
        found[#found + 1] = first
        found[#found + 1] = redis.call('ZSCORE', KEYS[3], first)
        found[#found + 1] = string.sub(content, 1, 1) == 'o' and content or 'i'
    end
end
return found
";

fn script(parts: &[&str]) -> Script {
    Script::new(&parts.concat())
}

pub(super) static CLAIMING: LazyLock<Script> = LazyLock::new(|| script(&[CLAIM]));
pub(super) static APPENDING: LazyLock<Script> = LazyLock::new(|| script(&[RECORD_TO_APPEND, FENCE, ALIVE, APPEND]));
pub(super) static APPENDING_UNFENCED: LazyLock<Script> = LazyLock::new(|| script(&[UNFENCED]));
pub(super) static READING: LazyLock<Script> = LazyLock::new(|| script(&[RECORD, FENCE, ALIVE, PRIMARY, READ]));
pub(super) static FINDING: LazyLock<Script> = LazyLock::new(|| script(&[RECORD, FENCE, ALIVE, PRIMARY, FIND]));
pub(super) static DELETING: LazyLock<Script> = LazyLock::new(|| script(&[RECORD, FENCE, DELETE]));
pub(super) static SUSPENDING: LazyLock<Script> = LazyLock::new(|| script(&[RECORD, FENCE, ALIVE, SUSPEND]));
pub(super) static MOVING: LazyLock<Script> = LazyLock::new(|| script(&[RECORD, FENCE, ALIVE, PRIMARY, MOVE]));
pub(super) static READING_CHUNKS: LazyLock<Script> = LazyLock::new(|| script(&[RECORD, FENCE, ALIVE, CHUNKS]));
pub(super) static LISTING_CHUNKS: LazyLock<Script> = LazyLock::new(|| script(&[CHUNK_LIST]));
pub(super) static LISTING: LazyLock<Script> = LazyLock::new(|| script(&[LIST]));
