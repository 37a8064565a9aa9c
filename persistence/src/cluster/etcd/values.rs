//! The values of the keys: readable JSON, each with the number of its schema.
//!
//! A chunk's value groups its shards by who has them, so `etcdctl get` answers "what does this executor hold", and 1024 shards take 20 KiB
//! instead of 100.

use crate::cluster::Error;
use leasehold_model::message::Weight;
use leasehold_model::state::{Executor, Head, Shard, ShardState};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Revision, ShardCount, ShardEpoch, Ttl,
};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Raised with every change of a value that an older build would misread.
const SCHEMA: u32 = 1;

/// Fixed bytes as hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not {} hexadecimal digits", 2 * N));
        if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; N];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// A write's tag.
pub(super) type Tag = Hex<16>;

impl From<u128> for Tag {
    fn from(tag: u128) -> Self {
        Self(tag.to_be_bytes())
    }
}

/// The value of `head`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeadValue {
    schema: u32,
    pub cluster: ClusterName,
    pub shard_count: ShardCount,
    /// 0 only where a first write was fenced off and nothing was written since.
    pub revision: Revision,
    /// Of the last write; none at revision 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<Tag>,
    /// Which part of that write was stored last, of how many.
    pub part: usize,
    pub parts: usize,
    /// Which leadership wrote this: when its key was created, in etcd's counting. So etcd's own history shows who wrote what.
    #[serde(default)]
    pub leadership: i64,
    /// The tag of a write that was in doubt and can never land any more, since this value was written in front of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fenced: Option<Tag>,
}

impl HeadValue {
    /// The head after part `part` of `parts` of a write.
    pub fn new(head: &Head, tag: u128, part: usize, parts: usize) -> Self {
        Self {
            schema: SCHEMA,
            cluster: head.cluster.clone(),
            shard_count: head.shard_count,
            revision: head.revision,
            tag: Some(tag.into()),
            part,
            parts,
            leadership: 0,
            fenced: None,
        }
    }

    /// The same, after another part.
    pub fn at_part(&self, part: usize, parts: usize) -> Self {
        Self { part, parts, ..self.clone() }
    }

    /// `before`, or nothing, with `tag` kept out for good.
    pub fn fencing(before: Option<&Self>, cluster: &ClusterName, shard_count: ShardCount, tag: u128) -> Self {
        let nothing = || Self {
            schema: SCHEMA,
            cluster: cluster.clone(),
            shard_count,
            revision: Revision(0),
            tag: None,
            part: 0,
            parts: 0,
            leadership: 0,
            fenced: None,
        };
        Self { fenced: Some(tag.into()), ..before.cloned().unwrap_or_else(nothing) }
    }

    pub fn has(&self, tag: u128) -> bool {
        self.tag == Some(tag.into())
    }

    pub const fn is_complete(&self) -> bool {
        self.part == self.parts
    }

    pub fn head(&self) -> Head {
        Head { cluster: self.cluster.clone(), shard_count: self.shard_count, revision: self.revision }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Released {
    epoch: ShardEpoch,
    since: Revision,
}

/// The value of a chunk: `first..first + 1024`. Shards that are not named are unassigned and never were.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkValue {
    /// Looked at before the rest, in [`decode`].
    #[serde(rename = "schema")]
    _schema: u32,
    first: u32,
    /// Per executor: shard to epoch.
    owned: BTreeMap<ExecutorId, BTreeMap<u32, ShardEpoch>>,
    #[serde(default)]
    releasing: BTreeMap<ExecutorId, BTreeMap<u32, Released>>,
    #[serde(default)]
    unassigned: BTreeMap<u32, ShardEpoch>,
}

/// Shards with what is said of each, ascending, as a map: in a first assignment there are too many to build maps of them.
struct Listed<T>(Vec<(u32, T)>);

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Serialize> Serialize for Listed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(shard, what)| (shard, what)))
    }
}

/// [`ChunkValue`] as it is written.
#[derive(Serialize)]
struct ChunkListed {
    schema: u32,
    first: u32,
    owned: BTreeMap<ExecutorId, Listed<ShardEpoch>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    releasing: BTreeMap<ExecutorId, Listed<Released>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unassigned: Option<Listed<ShardEpoch>>,
}

/// The value of the chunk that begins with shard `first`.
pub(super) fn encode_chunk(first: u32, rows: &[Shard]) -> Vec<u8> {
    let (owned, releasing) = (BTreeMap::new(), BTreeMap::new());
    let mut value = ChunkListed { schema: SCHEMA, first, owned, releasing, unassigned: None };
    for (shard, Shard { epoch, state }) in (first..).zip(rows) {
        match state {
            ShardState::Owned(owner) => value.owned.entry(*owner).or_default().0.push((shard, *epoch)),
            ShardState::Releasing { from, since } => {
                let released = Released { epoch: *epoch, since: *since };
                value.releasing.entry(*from).or_default().0.push((shard, released));
            }
            ShardState::Unassigned if *epoch == ShardEpoch::NEVER_OWNED => {}
            ShardState::Unassigned => value.unassigned.get_or_insert_default().0.push((shard, *epoch)),
        }
    }
    encode(&value)
}

/// The rows that a chunk's value names.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Incompatible`].
pub(super) fn decode_chunk(key: &str, first: u32, bytes: &[u8]) -> Result<Vec<(u32, Shard)>, Error> {
    let value: ChunkValue = decode(key, bytes)?;
    if value.first != first {
        return Err(corrupt(key, format!("first is {}, not {first}", value.first)));
    }
    let owned = value.owned.into_iter().flat_map(|(owner, shards)| {
        let row = move |(shard, epoch)| (shard, Shard { epoch, state: ShardState::Owned(owner) });
        shards.into_iter().map(row)
    });
    let releasing = value.releasing.into_iter().flat_map(|(from, shards)| {
        let row = move |(shard, Released { epoch, since })| {
            (shard, Shard { epoch, state: ShardState::Releasing { from, since } })
        };
        shards.into_iter().map(row)
    });
    let unassigned =
        (value.unassigned.into_iter()).map(|(shard, epoch)| (shard, Shard { epoch, state: ShardState::Unassigned }));
    let mut rows: Vec<_> = owned.chain(releasing).chain(unassigned).collect();
    rows.sort_by_key(|(shard, _)| *shard);
    if let Some(twice) = rows.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(corrupt(key, format!("shard {} stands in it twice", twice[0].0)));
    }
    Ok(rows)
}

/// The value of an executor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecutorValue {
    schema: u32,
    name: ExecutorName,
    address: Address,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    weight: u32,
    lease_length_ms: u64,
    key_hash: Hex<32>,
    draining: bool,
    superseded: bool,
    registered_at_ms: i64,
}

pub(super) fn encode_executor(row: &Executor) -> Vec<u8> {
    // Every field by name: one that is added must not be forgotten here.
    let Executor { name, address, zone, weight, lease_length, key_hash, draining, superseded, registered_at_ms } =
        row.clone();
    encode(&ExecutorValue {
        schema: SCHEMA,
        name,
        address,
        zone,
        weight: weight.get(),
        lease_length_ms: lease_length.as_ms(),
        key_hash: Hex(key_hash.0),
        draining,
        superseded,
        registered_at_ms,
    })
}

/// # Errors
/// [`Error::Corrupt`], [`Error::Incompatible`].
pub(super) fn decode_executor(key: &str, bytes: &[u8]) -> Result<Executor, Error> {
    let value: ExecutorValue = decode(key, bytes)?;
    Ok(Executor {
        name: value.name,
        address: value.address,
        zone: value.zone,
        weight: Weight::new(value.weight).map_err(|why| corrupt(key, why))?,
        lease_length: Ttl::from_ms(value.lease_length_ms).map_err(|why| corrupt(key, why))?,
        key_hash: LeaseKeyHash(value.key_hash.0),
        draining: value.draining,
        superseded: value.superseded,
        registered_at_ms: value.registered_at_ms,
    })
}

/// # Errors
/// [`Error::Corrupt`], [`Error::Incompatible`].
pub(super) fn decode_head(key: &str, bytes: &[u8]) -> Result<HeadValue, Error> {
    let value: HeadValue = decode(key, bytes)?;
    let sound = value.part <= value.parts && (value.revision == Revision(0)) == value.tag.is_none();
    if sound && value.revision <= Revision::MAX {
        Ok(value)
    } else {
        Err(corrupt(key, format!("revision, tag and part disagree: {value:?}")))
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("maps whose keys are text or numbers")
}

/// Looks at the schema's number first: of a newer value nothing else is known.
fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, Error> {
    #[derive(Deserialize)]
    struct Schema {
        schema: u32,
    }
    let Schema { schema } = serde_json::from_slice(bytes).map_err(|why| corrupt(key, why))?;
    if schema > SCHEMA {
        return Err(Error::Incompatible(format!(
            "{key} has schema {schema}, this build knows schemas up to {SCHEMA}: a newer build wrote it"
        )));
    }
    if schema != SCHEMA {
        return Err(corrupt(key, format!("schema {schema} never was")));
    }
    serde_json::from_slice(bytes).map_err(|why| corrupt(key, why))
}

pub(super) fn corrupt(key: &str, what: impl std::fmt::Display) -> Error {
    Error::Corrupt { place: format!("etcd key {key}"), what: what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: ExecutorId = ExecutorId::from_u128(7);

    fn shard(epoch: u64, state: ShardState) -> Shard {
        Shard { epoch: ShardEpoch::new(epoch).unwrap(), state }
    }

    #[test]
    fn a_chunk_is_readable_and_read_back_as_it_was() {
        let releasing = ShardState::Releasing { from: OWNER, since: Revision::MAX };
        let rows = [
            shard(0, ShardState::Unassigned),
            shard(ShardEpoch::MAX.get(), ShardState::Owned(OWNER)),
            shard(3, releasing),
            shard(4, ShardState::Unassigned),
        ];
        let bytes = encode_chunk(2048, &rows);
        let id = "00000000-0000-0000-0000-000000000007";
        let expected = format!(
            r#"{{"schema":1,"first":2048,"owned":{{"{id}":{{"2049":9223372036854775807}}}},"releasing":{{"{id}":{{"2050":{{"epoch":3,"since":9223372036854775807}}}}}},"unassigned":{{"2051":4}}}}"#
        );
        assert_eq!(String::from_utf8(bytes.clone()).unwrap(), expected);
        let read = decode_chunk("k", 2048, &bytes).unwrap();
        assert_eq!(read, vec![(2049, rows[1]), (2050, rows[2]), (2051, rows[3])]);
    }

    #[test]
    fn a_value_that_cannot_be_right_is_refused_with_its_key_and_the_reason() {
        let id = "00000000-0000-0000-0000-000000000007";
        let cases = [
            ("", "EOF"),
            ("{}", "missing field `schema`"),
            (r#"{"schema":0,"first":0,"owned":{}}"#, "schema 0"),
            (r#"{"schema":1,"first":1,"owned":{}}"#, "first is 1"),
            (r#"{"schema":1,"first":0,"owned":{},"more":1}"#, "more"),
            (r#"{"schema":1,"first":0,"owned":{"x":{}}}"#, "x"),
            (&format!(r#"{{"schema":1,"first":0,"owned":{{"{id}":{{"1":9223372036854775808}}}}}}"#), "epoch"),
            (
                &format!(r#"{{"schema":1,"first":0,"owned":{{"{id}":{{"1":1}}}},"unassigned":{{"1":1}}}}"#),
                "shard 1 stands in it twice",
            ),
        ];
        for (text, why) in cases {
            match decode_chunk("/some/key", 0, text.as_bytes()) {
                Err(Error::Corrupt { place, what }) => {
                    assert!(place.contains("/some/key") && what.contains(why), "{text}: {place}: {what}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_value_of_a_newer_build_is_refused_whatever_else_is_in_it() {
        for text in [r#"{"schema":2}"#, r#"{"schema":2,"shape":"of things to come"}"#] {
            let refusal = decode_head("/some/key", text.as_bytes()).unwrap_err();
            assert!(matches!(&refusal, Error::Incompatible(why) if why.contains("/some/key")), "{refusal}");
        }
    }

    #[test]
    fn a_key_hash_of_another_length_or_alphabet_is_refused() {
        for text in ["\"\"", "\"0\"", "\"zz\"", "\"+1\"", "\"0102\"", "\"é\""] {
            assert!(serde_json::from_str::<Hex<1>>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Hex<1>>("\"fe\"").unwrap(), Hex([0xfe]));
    }
}
