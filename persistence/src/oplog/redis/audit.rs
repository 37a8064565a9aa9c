//! The oplogs of a cluster, read without a fence by scripts that write nothing.

use super::chunks::chunk;
use super::link::{Effect, Link, Place};
use super::values::{self, Answer, HEAD, corrupt, decode};
use super::{MOST_EXACT, Settings, epoch};
use crate::oplog::audit::{ChunkPage, Damage, Depth, OplogAudit, Page, Read, Record, Standing};
use crate::oplog::{EntryIndex, Error, MAX_KEY_BYTES, Writer};
use async_trait::async_trait;
use leasehold_model::secret::without_password;
use leasehold_model::{AgentId, ClusterName, ShardId};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, Script};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, LazyLock};
use tokio::sync::OnceCell;

/// Calls at once on the one connection.
const WIDTH: usize = 16;
/// Keys that the server looks at for one step of a scan.
const SCANNED: u32 = 1000;

/// The record, what stands beside it, and entries; all at one moment. KEYS: oplog, idempotency keys, the shard's sets are made
/// of ARGV. ARGV: from, limit, how much of an entry, the running set's name without its shard, the suspended set's likewise, the agent.
static PAGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local r = redis.call('HMGET', KEYS[1], 'epoch', 'executor', 'shard', 'state', 'base', 'next', 'snapshot')
local found, fields_of_record = {}, 0
for i = 1, 7 do
    found[i] = r[i] or ''
    if r[i] then fields_of_record = fields_of_record + 1 end
end
local archived = redis.call('HGET', KEYS[1], 'primary')
if archived then fields_of_record = fields_of_record + 1 end
found[8] = tostring(redis.call('HLEN', KEYS[1]) - fields_of_record)
found[9] = tostring(redis.call('HLEN', KEYS[2]))
found[10] = redis.call('ZSCORE', ARGV[4] .. found[3], ARGV[6]) and '1' or '0'
found[11] = redis.call('ZSCORE', ARGV[5] .. found[3], ARGV[6]) and '1' or '0'
found[12] = archived or found[5]
local primary, next = tonumber(found[12]), tonumber(found[6])
if not (primary and next) then found[13] = '' return found end
local from = math.max(tonumber(ARGV[1]), primary)
local past = math.min(next, from + tonumber(ARGV[2]))
found[13] = past < next and string.format('%.0f', past) or ''
while from < past do
    local fields = {}
    for i = from, math.min(past, from + 500) - 1 do fields[#fields + 1] = string.format('%.0f', i) end
    local values = redis.call('HMGET', KEYS[1], unpack(fields))
    for i = 1, #fields do
        if values[i] then
            found[#found + 1] = fields[i]
            found[#found + 1] = tostring(#values[i])
            found[#found + 1] = string.sub(values[i], 1, tonumber(ARGV[3]))
        end
    end
    from = from + #fields
end
return found
",
    )
});

/// KEYS: oplog, chunks, their order. ARGV: an index that the first chunk holds or precedes, limit. Answers where the present life and the primary
/// layer begin, and chunks; one whose bytes are gone has none.
static CHUNKS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
local r = redis.call('HMGET', KEYS[1], 'base', 'primary')
if not r[1] then return {} end
local found = {r[1], r[2] or r[1]}
for _, first in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])) do
    found[#found + 1] = first
    found[#found + 1] = redis.call('ZSCORE', KEYS[3], first)
    found[#found + 1] = redis.call('HGET', KEYS[2], first) or ''
end
return found
",
    )
});

/// KEYS: oplog. ARGV: epoch and executor found, those to put in.
static CLEAR: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
local r = redis.call('HMGET', KEYS[1], 'epoch', 'executor')
if r[1] ~= ARGV[1] or r[2] ~= ARGV[2] then return {'0'} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'executor', ARGV[4])
return {'1'}
",
    )
});

/// The oplogs of one cluster. Executors may be using them.
pub struct RedisAudit {
    place: Arc<Place>,
    link: Link,
    prefix: String,
    /// Every oplog's name, as the one scan found them: a scan has no order.
    names: OnceCell<BTreeSet<String>>,
}

impl fmt::Debug for RedisAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAudit").field("place", &self.place.name).finish_non_exhaustive()
    }
}

impl RedisAudit {
    /// Opens the oplogs of `cluster` at `url`; makes nothing there.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the URL, the credentials or the server are not right, or the cluster has no oplogs there;
    /// [`Error::Unavailable`] when the server is away.
    pub async fn open(url: &str, cluster: &ClusterName) -> Result<Self, Error> {
        let client = Client::open(url);
        let client = client.map_err(|error| Error::Invalid(format!("no URL of a Redis server: {error}")))?;
        let prefix = format!("leasehold:{cluster}:");
        let name = format!("Redis {}, cluster {cluster}", without_password(url));
        let schema = format!("{prefix}schema");
        demand(&client, &schema, &name).await?;
        let place = Arc::new(Place { client, settings: Settings::default(), name, schema });
        let link = Link::new(Arc::clone(&place));
        link.open().await?;
        Ok(Self { place, link, prefix, names: OnceCell::new() })
    }

    fn key(&self, name: &str, what: &str) -> String {
        format!("{}{{{name}}}:{what}", self.prefix)
    }

    async fn all(&self) -> Result<&BTreeSet<String>, Error> {
        self.names.get_or_try_init(|| self.scan()).await
    }

    async fn scan(&self) -> Result<BTreeSet<String>, Error> {
        let (before, after) = (format!("{}{{", self.prefix), "}:oplog");
        let mut names = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut ask = Cmd::new();
            ask.arg("SCAN").arg(&cursor).arg("MATCH").arg(format!("{before}*{after}")).arg("COUNT").arg(SCANNED);
            let (next, keys): (String, Vec<Vec<u8>>) = self.link.read(&ask, &self.place.name).await?;
            for key in keys {
                // A name that is no text is found by its page.
                let key = String::from_utf8_lossy(&key).into_owned();
                let name = key.strip_prefix(&before).and_then(|rest| rest.strip_suffix(after));
                names.extend(name.map(str::to_owned));
            }
            if next == "0" {
                return Ok(names);
            }
            cursor = next;
        }
    }
}

/// The layout's version is there before anything of it is: opening a link would make it.
async fn demand(client: &Client, schema: &str, place: &str) -> Result<(), Error> {
    let away = |error: &dyn fmt::Display| Error::Unavailable(format!("{place}: {error}"));
    let limit = Settings::default().connect_timeout;
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(Some(limit));
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    let wrong = |kind| matches!(kind, ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig);
    let mut connection = connected.map_err(|error| {
        if wrong(error.kind()) { Error::Invalid(format!("{place}: {error}")) } else { away(&error) }
    })?;
    let found = Cmd::new().arg("EXISTS").arg(schema).query_async::<u64>(&mut connection).await;
    match found.map_err(|error| away(&error))? {
        0 => Err(Error::Invalid(format!("{place}: this cluster has no oplogs here (there is no key {schema})"))),
        _ => Ok(()),
    }
}

#[async_trait]
impl OplogAudit for RedisAudit {
    fn place(&self) -> String {
        self.place.name.clone()
    }

    fn width(&self) -> usize {
        WIDTH
    }

    async fn faults(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    async fn count(&self) -> Result<u64, Error> {
        Ok(self.all().await?.len() as u64)
    }

    async fn names(&self, after: Option<&str>, limit: u32) -> Result<Vec<String>, Error> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.to_owned()));
        let names = self.all().await?.range((from, Bound::Unbounded));
        Ok(names.take(limit as usize).cloned().collect())
    }

    async fn page(&self, name: &str, from: EntryIndex, depth: Depth, limit: u32) -> Result<Option<Page>, Error> {
        let part = match depth {
            Depth::Heads => HEAD + MAX_KEY_BYTES,
            Depth::Bodies => usize::MAX >> 12,
        };
        let mut call = PAGE.prepare_invoke();
        call.key(self.key(name, "oplog")).key(self.key(name, "keys"));
        call.arg(from.0).arg(limit).arg(part);
        call.arg(format!("{}running:", self.prefix)).arg(format!("{}suspended:", self.prefix)).arg(name);
        let place = format!("{}: oplog {name:?}", self.place.name);
        let told = self.link.call(Effect::Reads, &call, &place).await?;
        let Some((head, rest)) = told.split_first_chunk::<13>() else {
            return if told.is_empty() { Ok(None) } else { Err(corrupt(&place, "a script answered nonsense")) };
        };
        let record = record(name, head, &place).map_err(|error| Damage::record(&error));
        let more = (!head[12].is_empty()).then(|| values::index(&head[12], &place)).transpose()?;
        let entries = rest.chunks_exact(3).map(|part| read(part, depth, &place)).collect();
        Ok(Some(Page { record, entries, more, source: 0 }))
    }

    async fn chunks(&self, name: &str, from: EntryIndex, limit: u32) -> Result<Option<ChunkPage>, Error> {
        let mut call = CHUNKS.prepare_invoke();
        call.key(self.key(name, "oplog")).key(self.key(name, "chunks")).key(self.key(name, "chunk-order"));
        call.arg(from.0.min(MOST_EXACT)).arg(limit);
        let place = format!("{}: oplog {name:?}", self.place.name);
        let told = self.link.call(Effect::Reads, &call, &place).await?;
        let [base, primary_from, listed @ ..] = told.as_slice() else { return Ok(None) };
        let last = |part: &[Vec<u8>]| values::index(&part[1], &place).map_or(0, |last| last.0);
        let chunks = listed.chunks_exact(3).map(|part| {
            let chunk = chunk([&part[0], &part[1], &part[2]], &place);
            chunk.map_err(|error| Damage::entry(last(part), &error))
        });
        let (base, primary_from) = (values::index(base, &place)?, values::index(primary_from, &place)?);
        Ok(Some(ChunkPage { base, primary_from, chunks: chunks.collect(), source: 0 }))
    }

    async fn positions(&self, name: &str, keys: &[&str]) -> Result<Vec<Option<EntryIndex>>, Error> {
        let mut ask = Cmd::new();
        ask.arg("HMGET").arg(self.key(name, "keys")).arg(keys);
        let place = format!("{}: oplog {name:?}", self.place.name);
        let found: Vec<Option<Vec<u8>>> = self.link.read(&ask, &place).await?;
        found.into_iter().map(|at| at.map(|at| values::index(&at, &place)).transpose()).collect()
    }

    async fn clear(&self, name: &str, found: Writer, to: Writer) -> Result<bool, Error> {
        let mut call = CLEAR.prepare_invoke();
        call.key(self.key(name, "oplog"));
        for writer in [found, to] {
            call.arg(epoch(writer)).arg(writer.executor.as_bytes().as_slice());
        }
        let place = format!("{}: oplog {name:?}", self.place.name);
        let told: Answer = self.link.call(Effect::Writes, &call, &place).await?;
        Ok(told.first().is_some_and(|word| word == b"1"))
    }
}

fn record(name: &str, told: &[Vec<u8>; 13], place: &str) -> Result<Record, Error> {
    let [epoch, executor, shard, state, base, next, snapshot, entries, keys, running, suspended, primary, _] = told;
    let number = |text: &[u8], what: &str| {
        let read = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
        read.ok_or_else(|| corrupt(place, format!("{what} {:?} is no number", String::from_utf8_lossy(text))))
    };
    let standing = Standing::numbered(number(state, "state")?.try_into().unwrap_or(i64::MAX))
        .map_err(|what| corrupt(place, what))?;
    let shard = u32::try_from(number(shard, "shard")?);
    let (base, next) = (values::index(base, place)?, values::index(next, place)?);
    let mut faults = Vec::new();
    let (entries, keys) = (number(entries, "count")?, number(keys, "count")?);
    let primary_from = values::index(primary, place)?;
    let (primary, all) = (next.0.saturating_sub(primary_from.0), next.0.saturating_sub(base.0));
    if entries != primary {
        faults.push(format!("{entries} entries are stored where its record means {primary}"));
    }
    if keys > all {
        faults.push(format!("{keys} idempotency keys of {all} entries"));
    }
    let listed = (running == b"1", suspended == b"1");
    if listed != (standing == Standing::Running, standing == Standing::Suspended) {
        faults.push(format!("it is {standing:?}, and listed as running: {}, as suspended: {}", listed.0, listed.1));
    }
    Ok(Record {
        agent: AgentId::new(name).map_err(|error| corrupt(place, error))?,
        shard: ShardId(shard.map_err(|_| corrupt(place, "its shard: 0 to 4294967295 make sense"))?),
        writer: values::writer(epoch, executor, place)?,
        standing,
        base,
        primary_from,
        next,
        snapshot: (!snapshot.is_empty()).then(|| values::index(snapshot, place)).transpose()?,
        faults,
    })
}

/// Index, size, and as much of the entry as was asked for.
fn read(part: &[Vec<u8>], depth: Depth, place: &str) -> Result<Read, Damage> {
    let [index, size, value] = part else {
        return Err(Damage { index: None, what: "a script answered nonsense".into() });
    };
    let decoded = decode(index, value, place);
    let number = std::str::from_utf8(index).ok().and_then(|text| text.parse().ok());
    let mut entry = decoded.map_err(|error| Damage::entry(number.unwrap_or(0), &error))?;
    let whole = std::str::from_utf8(size).ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(value.len());
    let key = entry.entry.key.as_ref().map_or(0, String::len);
    if depth == Depth::Heads {
        entry.entry.body = Vec::new();
    }
    Ok(Read { entry, size: whole.saturating_sub(HEAD + key) as u64 })
}
