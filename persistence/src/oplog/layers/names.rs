//! Where objects are in blob storage: `SHARD/AGENT/FIRST-LAST-EPOCH-EXECUTOR-NONCE.chunk`. What no list names can be judged by that alone.

use super::{EntryIndex, Listing, Writer};
use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};
use std::fmt::{self, Write as _};

/// An object's path below the root of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPath {
    /// The agent's shard.
    pub shard: ShardId,
    /// Whose entries it holds.
    pub agent: AgentId,
    /// Which.
    pub name: ObjectName,
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", agent_folder(self.shard, &self.agent), self.name)
    }
}

impl ObjectPath {
    /// The path that `text` is, exactly as it is written; `None`: it is none of ours.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (folders, name) = text.rsplit_once('/')?;
        let (shard, agent) = folders.split_once('/')?;
        let (shard, agent) = (ShardId(shard.parse().ok()?), AgentId::new(unescaped(agent)?).ok()?);
        let path = Self { shard, agent, name: ObjectName::parse(name)? };
        // One spelling each: what is deleted is what was listed.
        (path.to_string() == text).then_some(path)
    }
}

/// The folder of a shard's objects, with the slash at its end.
#[must_use]
pub fn shard_folder(shard: ShardId) -> String {
    format!("{}/", shard.0)
}

/// The folder of an agent's objects, with the slash at its end.
#[must_use]
pub fn agent_folder(shard: ShardId, agent: &AgentId) -> String {
    format!("{}{}/", shard_folder(shard), escaped(agent.as_str()))
}

/// The longest part of a path that every file system takes, less some room.
const MAX_PART: usize = 200;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Readable where that is short enough: letters, digits, `-`, `_` and `.` as they are, other bytes as `=` and two hexadecimal digits. Longer ones as `+` and
/// base 64 in parts.
fn escaped(id: &str) -> String {
    let mut text = String::with_capacity(id.len() + 8);
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "={byte:02x}");
        }
    }
    if text.len() <= MAX_PART {
        return text;
    }
    let mut text = String::from("+");
    for (number, group) in id.as_bytes().chunks(3).enumerate() {
        // Parts of 200 digits: 50 groups.
        if number > 0 && number.is_multiple_of(MAX_PART / 4) {
            text.push('/');
        }
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        let digits = (0..=group.len()).map(|at| DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        text.extend(digits.map(char::from));
    }
    text
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    if let Some(digits) = text.strip_prefix('+') {
        let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b'/').collect();
        for group in digits.chunks(4) {
            let mut bits = 0_u32;
            for at in 0..4 {
                let value = match group.get(at) {
                    Some(digit) => DIGITS.iter().position(|known| known == digit)?,
                    None => 0,
                };
                bits = bits << 6 | u32::try_from(value).ok()?;
            }
            bytes.extend(&bits.to_be_bytes()[1..group.len()]);
        }
    } else {
        let mut rest = text.as_bytes();
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            if *byte == b'=' {
                let (digits, after) = rest.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            } else {
                bytes.push(*byte);
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The last part of an object's path: numbers with all their digits, so that objects of an agent are listed in the order of their entries.
///
/// Only the writer that made a name ever lists it, and only while the primary layer begins with its first entry. So of an object that is
/// not in the list, the name tells whether it can still come there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectName {
    /// The chunk's first entry.
    pub first: EntryIndex,
    /// Its last entry.
    pub last: EntryIndex,
    /// Who put it.
    pub writer: Writer,
    /// Tells attempts apart.
    pub nonce: u64,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, writer: Writer { epoch, executor }, nonce } = self;
        let executor = u128::from_be_bytes(*executor.as_bytes());
        write!(f, "{:019}-{:019}-{:019}-{executor:032x}-{nonce:016x}.chunk", first.0, last.0, epoch.get())
    }
}

impl ObjectName {
    /// The name that `text` is, exactly as it is written; `None`: it is none of ours.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(".chunk")?.split('-');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (first, last, epoch) = (number()?, number()?, number()?);
        let executor = u128::from_str_radix(parts.next()?, 16).ok()?;
        let nonce = u64::from_str_radix(parts.next()?, 16).ok()?;
        let writer = Writer { epoch: ShardEpoch::owned(epoch).ok()?, executor: ExecutorId::from_u128(executor) };
        let name = Self { first: EntryIndex(first), last: EntryIndex(last), writer, nonce };
        // One spelling each: what is deleted is what was listed.
        (name.to_string() == text).then_some(name)
    }
}

impl ObjectPath {
    /// Whether this object, seen in blob storage *before* `listing` was read, is in no list and never will be.
    #[must_use]
    pub fn is_garbage(&self, listing: &Listing) -> bool {
        let text = self.to_string();
        let ObjectName { first, writer, .. } = self.name;
        let named = listing.chunks.iter().any(|chunk| chunk.object.as_ref() == Some(&text));
        let recorded = listing.writer;
        let stale = writer.epoch < recorded.epoch || (writer.epoch == recorded.epoch && writer != recorded);
        !named && (stale || first < listing.primary_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oplog::layers::Listed;

    fn name(first: u64, epoch: u64, executor: u128) -> ObjectName {
        let writer = Writer { epoch: ShardEpoch::owned(epoch).unwrap(), executor: ExecutorId::from_u128(executor) };
        ObjectName { first: EntryIndex(first), last: EntryIndex(first + 9), writer, nonce: 3 }
    }

    #[test]
    fn a_name_is_read_as_it_is_written_and_nothing_else_is_one() {
        for name in [name(1, 5, 7), name(1 << 40, i64::MAX as u64, u128::MAX)] {
            assert_eq!(ObjectName::parse(&name.to_string()), Some(name));
        }
        let good = name(1, 5, 7).to_string();
        let no_epoch = good.replace("-0000000000000000005-", "-0000000000000000000-");
        for text in ["", "x", ".chunk", &good[1..], &format!("{good}.tmp"), &good.replace(".chunk", ""), &no_epoch] {
            assert_eq!(ObjectName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn objects_sort_as_their_entries_do() {
        let names: Vec<_> = [1, 9, 10, 1 << 33].map(|first| name(first, 5, 7).to_string()).into();
        assert!(names.is_sorted(), "{names:?}");
    }

    #[test]
    fn a_path_says_whose_object_it_is_however_long_the_id() {
        let long = format!("counter/{}", "ü/".repeat(160));
        for id in
            ["counter/a", "counter/A.b_c-d", "counter/a b/ü=2f", "kv/+x", &long, &format!("c/{}", "x".repeat(510))]
        {
            let path = ObjectPath { shard: ShardId(7), agent: AgentId::new(id).unwrap(), name: name(1, 5, 7) };
            let text = path.to_string();
            assert!(text.len() < 900 && text.split('/').all(|part| (1..=201).contains(&part.len())), "{text}");
            assert_eq!(ObjectPath::parse(&text), Some(path), "{text}");
        }
        let path = ObjectPath { shard: ShardId(7), agent: AgentId::new("counter/a b").unwrap(), name: name(1, 5, 7) };
        assert!(path.to_string().starts_with("7/counter=2fa=20b/0000000000000000001-"), "{path}");
        for other in
            ["07/counter=2fa/", "7/counter=2Fa/", "7/counter=2/", "7/counter/", "7/", "/", "x/counter=2fa/", "7/+%/"]
        {
            assert_eq!(ObjectPath::parse(&format!("{other}{}", path.name)), None, "{other}");
        }
    }

    #[test]
    fn an_object_is_garbage_when_no_list_names_it_and_none_ever_will() {
        let listed = name(1, 5, 7);
        let path = |name| ObjectPath { shard: ShardId(7), agent: AgentId::new("counter/a").unwrap(), name };
        let object = Some(path(listed).to_string());
        let chunks = vec![Listed { first: listed.first, last: listed.last, object }];
        let listing = Listing { writer: listed.writer, primary_from: EntryIndex(11), chunks };
        for (object, garbage, why) in [
            (listed, false, "the list names it"),
            (ObjectName { nonce: 4, ..listed }, true, "its entries are in another chunk"),
            (name(11, 5, 7), false, "its writer may be about to list it"),
            (name(12, 5, 7), false, "its writer may be about to list it, after a move that is under way"),
            (name(11, 4, 7), true, "its writer is fenced"),
            (name(11, 5, 8), true, "its writer never had the record"),
            (name(11, 6, 8), false, "its writer claimed after the list was read"),
        ] {
            assert_eq!(path(object).is_garbage(&listing), garbage, "{why}");
        }
    }
}
