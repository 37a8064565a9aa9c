//! The bytes of a chunk: a head, and the entries, compressed.
//!
//! | part | bytes |
//! | --- | --- |
//! | magic | 4: `LHAC` |
//! | format | 1: [`FORMAT`] |
//! | checksum | 8: XXH3 of the agent's id, a zero byte, and all bytes after this field |
//! | first index | 8 |
//! | entries | 4 |
//! | length of the entries before compression | 4 |
//! | the entries, as one zstd frame | the rest |
//!
//! Each entry: kind (1: invocation, 2: snapshot), epoch (8), executor (16), length of the key (2; 0: none), key, length of the body (4),
//! body. Numbers are big-endian. Decoding is total: any bytes are a chunk or an error that says what is wrong.

use crate::oplog::{
    Entry, EntryIndex, EntryKind, MAX_BODY_BYTES, MAX_ENTRIES_PER_APPEND, MAX_KEY_BYTES, NewEntry, Writer,
};
use leasehold_model::{AgentId, ExecutorId, ShardEpoch};
use std::io::Read;
use xxhash_rust::xxh3::Xxh3;

/// The format that is written; it is the only one that is read so far.
pub const FORMAT: u8 = 1;

/// The most entries of a chunk.
pub const MAX_ENTRIES: usize = 1024;

/// A move ends its chunk with the entry that reaches this many bytes, before compression.
pub const TARGET_BYTES: usize = 1 << 20;

/// The most bytes of a chunk before compression: those of the largest append.
pub const MAX_RAW: usize = MAX_ENTRIES_PER_APPEND * (MAX_BODY_BYTES + MAX_KEY_BYTES + ENTRY_HEAD);

const MAGIC: [u8; 4] = *b"LHAC";
/// Magic, format, checksum, first index, count, raw length.
const HEAD: usize = 4 + 1 + 8 + 8 + 4 + 4;
/// Where what the checksum is of begins.
const SUMMED: usize = 4 + 1 + 8;
/// Of an entry: kind, epoch, executor, the two lengths.
const ENTRY_HEAD: usize = 1 + 8 + 16 + 2 + 4;
/// Fast; stronger levels gain little on entries of a few hundred bytes.
const LEVEL: i32 = 3;

/// Why bytes are no chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not the beginning of a chunk.
    #[error("{0} bytes that do not begin as a chunk does")]
    NoChunk(usize),
    /// Written by a newer build.
    #[error("format {found}: this build reads {FORMAT}; use a newer build")]
    Format {
        /// What stands there.
        found: u8,
    },
    /// Damaged, or another agent's.
    #[error("its checksum is wrong: it is damaged, or belongs to another agent")]
    Checksum,
    /// Another chunk than the list says.
    #[error("it holds {count} entries from {first}, the list says {wanted_first}..={wanted_last}")]
    Range {
        /// Its first index.
        first: u64,
        /// Its entries.
        count: u32,
        /// What the list says.
        wanted_first: u64,
        /// What the list says.
        wanted_last: u64,
    },
    /// Its entries cannot be decompressed, or not to the length that it says.
    #[error("its entries cannot be decompressed: {0}")]
    Compression(String),
    /// What was decompressed is no list of entries.
    #[error("entry {at}: {what}")]
    Entry {
        /// Which.
        at: u64,
        /// What is wrong with it.
        what: String,
    },
}

fn checksum(agent: &AgentId, summed: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(agent.as_str().as_bytes());
    hasher.update(&[0]);
    hasher.update(summed);
    hasher.digest()
}

/// Bytes of `entry` in a chunk before compression.
#[must_use]
pub fn raw_length(entry: &NewEntry) -> usize {
    ENTRY_HEAD + entry.key.as_ref().map_or(0, String::len) + entry.body.len()
}

/// A chunk of `entries`, the first of which stands at `first`.
///
/// # Panics
/// When an entry is beyond the bounds of [`crate::oplog::Append::check`], which every stored one keeps.
#[must_use]
pub fn encode<'a>(
    agent: &AgentId,
    first: EntryIndex,
    entries: impl IntoIterator<Item = (Writer, &'a NewEntry)>,
) -> Vec<u8> {
    let (mut raw, mut count) = (Vec::new(), 0_u32);
    for (writer, entry) in entries {
        put(&mut raw, writer, entry);
        count += 1;
    }
    let length = u32::try_from(raw.len()).expect("MAX_RAW is below 4 GiB");
    let mut bytes = Vec::with_capacity(HEAD + raw.len() / 2);
    bytes.extend(MAGIC);
    bytes.push(FORMAT);
    bytes.extend([0; 8]);
    bytes.extend(first.0.to_be_bytes());
    bytes.extend(count.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(zstd::bulk::compress(&raw, LEVEL).expect("a slice can be compressed into memory"));
    let sum = checksum(agent, &bytes[SUMMED..]).to_be_bytes();
    bytes[SUMMED - 8..SUMMED].copy_from_slice(&sum);
    bytes
}

fn put(raw: &mut Vec<u8>, writer: Writer, entry: &NewEntry) {
    let key = entry.key.as_deref().unwrap_or_default().as_bytes();
    raw.push(match entry.kind {
        EntryKind::Invocation => 1,
        EntryKind::Snapshot => 2,
    });
    raw.extend(writer.epoch.get().to_be_bytes());
    raw.extend(writer.executor.as_bytes());
    raw.extend(u16::try_from(key.len()).expect("keys are bounded by MAX_KEY_BYTES").to_be_bytes());
    raw.extend(key);
    raw.extend(u32::try_from(entry.body.len()).expect("bodies are bounded by MAX_BODY_BYTES").to_be_bytes());
    raw.extend(&entry.body);
}

/// The entries of `agent`'s chunk that the list has as `first..=last`.
///
/// # Errors
/// Says what is wrong with `bytes`.
pub fn decode(agent: &AgentId, (first, last): (EntryIndex, EntryIndex), bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let (head, frame) = bytes.split_at_checked(HEAD).ok_or(Error::NoChunk(bytes.len()))?;
    if head[..4] != MAGIC {
        return Err(Error::NoChunk(bytes.len()));
    }
    if head[4] != FORMAT {
        return Err(Error::Format { found: head[4] });
    }
    let mut numbers = &head[5..];
    let (sum, found_first) = (take_u64(&mut numbers), take_u64(&mut numbers));
    let (count, length) = (take_u32(&mut numbers), take_u32(&mut numbers));
    if checksum(agent, &bytes[SUMMED..]) != sum {
        return Err(Error::Checksum);
    }
    let wanted = last.0.checked_sub(first.0).and_then(|more| more.checked_add(1));
    if found_first != first.0 || wanted != Some(u64::from(count)) {
        return Err(Error::Range { first: found_first, count, wanted_first: first.0, wanted_last: last.0 });
    }
    entries(first, count, &decompress(frame, length as usize)?)
}

/// Decodes `bytes` as they are, and again with the magic, the checksum and the range that they would need: what is behind those is to be tried.
///
/// # Panics
/// When a chunk is not written as it was read.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_any(bytes: &[u8]) {
    let agent = AgentId::new("counter/a").expect("it is one");
    let one = EntryIndex(1);
    let _ = decode(&agent, (one, one), bytes);
    let Some((_, mut numbers)) = bytes.split_at_checked(SUMMED).filter(|_| bytes.len() >= HEAD) else { return };
    let (first, count) = (take_u64(&mut numbers), take_u32(&mut numbers));
    let (Some(last), false) = (first.checked_add(u64::from(count)), count == 0) else { return };
    let ends = (EntryIndex(first), EntryIndex(last - 1));
    let sum = checksum(&agent, &bytes[SUMMED..]).to_be_bytes();
    let sound = [&MAGIC[..], &[FORMAT], &sum, &bytes[SUMMED..]].concat();
    let Ok(entries) = decode(&agent, ends, &sound) else { return };
    let written = encode(&agent, ends.0, entries.iter().map(|entry| (entry.writer, &entry.entry)));
    assert_eq!(decode(&agent, ends, &written), Ok(entries));
}

/// As much memory as there is data for: a length that lies reserves nothing.
fn decompress(frame: &[u8], length: usize) -> Result<Vec<u8>, Error> {
    if length > MAX_RAW {
        return Err(Error::Compression(format!("they are to be {length} bytes, {MAX_RAW} at most make sense")));
    }
    let wrong = |error: std::io::Error| Error::Compression(error.to_string());
    let decoder = zstd::stream::read::Decoder::with_buffer(frame).map_err(wrong)?.single_frame();
    let mut raw = Vec::new();
    decoder.take(length as u64 + 1).read_to_end(&mut raw).map_err(wrong)?;
    if raw.len() != length {
        return Err(Error::Compression(format!("they are to be {length} bytes, {} or more came out", raw.len())));
    }
    Ok(raw)
}

fn entries(first: EntryIndex, count: u32, mut raw: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut found = Vec::new();
    for at in (first.0..).take(count as usize) {
        found.push(entry(EntryIndex(at), &mut raw)?);
    }
    match raw.len() {
        0 => Ok(found),
        left => Err(Error::Entry {
            at: first.0 + u64::from(count),
            what: format!("{left} bytes are left after the last entry"),
        }),
    }
}

fn entry(index: EntryIndex, raw: &mut &[u8]) -> Result<Entry, Error> {
    let wrong = |what: String| Error::Entry { at: index.0, what };
    let short = || wrong("it is cut short".to_owned());
    let kind = match take(raw, 1).ok_or_else(short)?[0] {
        1 => EntryKind::Invocation,
        2 => EntryKind::Snapshot,
        other => return Err(wrong(format!("kind {other}: 1 or 2 make sense"))),
    };
    let mut numbers = take(raw, 8).ok_or_else(short)?;
    let epoch = ShardEpoch::owned(take_u64(&mut numbers)).map_err(|error| wrong(error.to_string()))?;
    let executor = take(raw, 16).ok_or_else(short)?;
    let executor = ExecutorId::from_slice("executor", executor).map_err(|error| wrong(error.to_string()))?;
    let length = take(raw, 2).ok_or_else(short)?;
    let key = take(raw, usize::from(u16::from_be_bytes([length[0], length[1]]))).ok_or_else(short)?;
    let key = String::from_utf8(key.to_vec()).map_err(|error| wrong(format!("key: {error}")))?;
    let mut length = take(raw, 4).ok_or_else(short)?;
    let body = take(raw, take_u32(&mut length) as usize).ok_or_else(short)?;
    let entry = NewEntry { kind, key: (!key.is_empty()).then_some(key), body: body.to_vec() };
    Ok(Entry { index, writer: Writer { epoch, executor }, entry })
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(taken)
}

/// Zero if they are not all there: callers have checked the length.
fn take_u64(from: &mut &[u8]) -> u64 {
    take(from, 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn take_u32(from: &mut &[u8]) -> u32 {
    take(from, 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    fn agent(key: &str) -> AgentId {
        AgentId::new(format!("counter/{key}")).unwrap()
    }

    fn writer(epoch: u64) -> Writer {
        Writer { epoch: ShardEpoch::owned(epoch).unwrap(), executor: ExecutorId::from_u128(u128::from(epoch)) }
    }

    fn some(count: u64) -> Vec<(Writer, NewEntry)> {
        let entry = |at: u64| NewEntry {
            kind: if at.is_multiple_of(7) { EntryKind::Snapshot } else { EntryKind::Invocation },
            key: at.is_multiple_of(2).then(|| format!("key-{at}")),
            body: vec![u8::try_from(at % 256).unwrap(); 20],
        };
        (0..count).map(|at| (writer(5 + at / 10), entry(at))).collect()
    }

    fn chunk(count: u64) -> Vec<u8> {
        encode(&agent("a"), EntryIndex(9), some(count).iter().map(|(writer, entry)| (*writer, entry)))
    }

    fn read(bytes: &[u8], count: u64) -> Result<Vec<Entry>, Error> {
        decode(&agent("a"), (EntryIndex(9), EntryIndex(8 + count)), bytes)
    }

    /// With the checksum put right: what a writer's bug would leave.
    fn forged(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = chunk(30);
        change(&mut bytes);
        let sum = checksum(&agent("a"), &bytes[SUMMED..]).to_be_bytes();
        bytes[SUMMED - 8..SUMMED].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn what_is_encoded_is_decoded_again_and_smaller_than_it_was() {
        let bytes = chunk(1000);
        let entries = read(&bytes, 1000).unwrap();
        let stored = entries.iter().map(|entry| (entry.writer, entry.entry.clone())).collect::<Vec<_>>();
        assert_eq!(stored, some(1000));
        assert!(entries.iter().zip(9..).all(|(entry, at)| entry.index == EntryIndex(at)));
        let raw: usize = some(1000).iter().map(|(_, entry)| raw_length(entry)).sum();
        assert!(bytes.len() * 4 < raw, "{} of {raw}", bytes.len());
    }

    #[test]
    fn a_chunk_of_another_agent_or_another_place_is_refused() {
        let bytes = chunk(3);
        let range = (EntryIndex(9), EntryIndex(11));
        assert_eq!(decode(&agent("b"), range, &bytes), Err(Error::Checksum));
        for (first, last) in [(9, 10), (9, 12), (8, 10), (9, 8), (1, u64::MAX)] {
            let refused = decode(&agent("a"), (EntryIndex(first), EntryIndex(last)), &bytes);
            assert!(matches!(refused, Err(Error::Range { first: 9, count: 3, .. })), "{refused:?}");
        }
    }

    #[test]
    fn each_damaged_byte_is_noticed() {
        let good = chunk(5);
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(read(&bytes, 5).is_err(), "byte {at}");
            assert!(read(&good[..at], 5).is_err(), "cut at {at}");
        }
        assert_eq!(read(&[&good[..4], &[9], &good[5..]].concat(), 5), Err(Error::Format { found: 9 }));
    }

    #[test]
    fn what_a_right_checksum_covers_may_be_wrong_all_the_same() {
        let compressed = |raw: &[u8], length: usize| {
            forged(|bytes| {
                bytes.truncate(HEAD);
                bytes[HEAD - 4..].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
                bytes.extend(zstd::bulk::compress(raw, 1).unwrap());
            })
        };
        for (bytes, part) in [
            (forged(|bytes| bytes.truncate(HEAD + 9)), "cannot be decompressed"),
            (forged(|bytes| bytes[HEAD - 4..HEAD].copy_from_slice(&[0xff; 4])), "at most make sense"),
            (compressed(&[0; 5000], 100), "to be 100 bytes, 101 or more"),
            (compressed(&[9; 100], 100), "entry 9: kind 9"),
            (compressed(&[1; 3], 3), "entry 9: it is cut short"),
        ] {
            let told = read(&bytes, 30).unwrap_err().to_string();
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    quickcheck! {
        fn any_bytes_are_a_chunk_or_an_error(bytes: Vec<u8>, headed: bool) -> bool {
            let mut bytes = bytes;
            if headed {
                bytes.splice(0..0, [&MAGIC[..], &[FORMAT]].concat());
            }
            read(&bytes, 2).is_err()
        }
    }
}
