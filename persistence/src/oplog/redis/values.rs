//! How entries and records stand in Redis, and how an answer becomes a value: every answer is checked before it leaves this module.

use crate::oplog::{Entry, EntryIndex, EntryKind, Error, NewEntry, Writer, key_taken};
use leasehold_model::{ExecutorId, ShardEpoch};

/// The first byte of an entry: how the rest is to be read.
const FORMAT: u8 = 1;

/// Bytes before the key: format, kind, epoch, executor, the key's length.
pub(super) const HEAD: usize = 1 + 1 + 8 + 16 + 2;

/// What a script answers: a word, and what belongs to it.
pub(super) type Answer = Vec<Vec<u8>>;

pub(super) fn epoch(writer: Writer) -> String {
    format!("{:019}", writer.epoch.get())
}

pub(super) fn corrupt(place: &str, what: impl std::fmt::Display) -> Error {
    Error::Corrupt { place: place.to_owned(), what: what.to_string() }
}

pub(super) fn encode(writer: Writer, entry: &NewEntry) -> Vec<u8> {
    let key = entry.key.as_deref().unwrap_or_default().as_bytes();
    let mut bytes = Vec::with_capacity(HEAD + key.len() + entry.body.len());
    bytes.push(FORMAT);
    bytes.push(match entry.kind {
        EntryKind::Invocation => 1,
        EntryKind::Snapshot => 2,
    });
    bytes.extend_from_slice(&writer.epoch.get().to_be_bytes());
    bytes.extend_from_slice(writer.executor.as_bytes());
    // At most 1024 bytes, checked before; no key has none.
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&entry.body);
    bytes
}

pub(super) fn decode(at: &[u8], bytes: &[u8], place: &str) -> Result<Entry, Error> {
    let index = index(at, place)?;
    let place = format!("{place}, entry {}", index.0);
    let short = || corrupt(&place, format!("{} bytes are no entry", bytes.len()));
    let (head, rest) = bytes.split_at_checked(HEAD).ok_or_else(short)?;
    let [FORMAT, kind, ..] = *head else {
        return Err(corrupt(&place, format!("format {}: {FORMAT} is known", head[0])));
    };
    let kind = match kind {
        1 => EntryKind::Invocation,
        2 => EntryKind::Snapshot,
        other => return Err(corrupt(&place, format!("kind {other}: 1 or 2 make sense"))),
    };
    let number = head[2..10].try_into().map_or(0, u64::from_be_bytes);
    let epoch = ShardEpoch::owned(number).map_err(|error| corrupt(&place, error))?;
    let executor = ExecutorId::from_slice("executor", &head[10..26]).map_err(|error| corrupt(&place, error))?;
    let length = usize::from(u16::from_be_bytes([head[26], head[27]]));
    let (key, body) = rest.split_at_checked(length).ok_or_else(short)?;
    let key = String::from_utf8(key.to_vec()).map_err(|error| corrupt(&place, error))?;
    let entry = NewEntry { kind, key: (!key.is_empty()).then_some(key), body: body.to_vec() };
    Ok(Entry { index, writer: Writer { epoch, executor }, entry })
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// An index as a script says it.
pub(super) fn index(text: &[u8], place: &str) -> Result<EntryIndex, Error> {
    let told = number(text).filter(|index| (1..=i64::MAX as u64).contains(index));
    told.map(EntryIndex).ok_or_else(|| corrupt(place, format!("index {:?}: 1 and more make sense", shown(text))))
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(64)]).into_owned()
}

/// The record's writer.
pub(super) fn writer(epoch: &[u8], executor: &[u8], place: &str) -> Result<Writer, Error> {
    let told = number(epoch).ok_or_else(|| corrupt(place, format!("epoch {:?} is no number", shown(epoch))))?;
    let epoch = ShardEpoch::owned(told).map_err(|error| corrupt(place, error))?;
    let executor = ExecutorId::from_slice("executor", executor).map_err(|error| corrupt(place, error))?;
    Ok(Writer { epoch, executor })
}

/// What a script refused; the rest of its answer when it did not.
pub(super) fn accepted(
    mut answer: Answer,
    (offered, expected): (Writer, EntryIndex),
    place: &str,
) -> Result<Vec<Vec<u8>>, Error> {
    if answer.first().is_some_and(|word| word == b"ok") {
        answer.remove(0);
        return Ok(answer);
    }
    let words: Vec<&[u8]> = answer.iter().map(Vec::as_slice).collect();
    match words.as_slice() {
        [b"absent"] => Err(Error::Fenced { recorded: None, offered }),
        [b"fenced", epoch, executor] => Err(Error::Fenced { recorded: Some(writer(epoch, executor, place)?), offered }),
        [b"next", found] => Err(Error::IndexConflict { expected, found: index(found, place)? }),
        [b"taken", key] => Err(key_taken(&String::from_utf8_lossy(key))),
        [b"hole", at] => Err(corrupt(place, format!("entry {} is missing", shown(at)))),
        _ => Err(corrupt(place, "a script answered nonsense")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Writer {
        Writer { epoch: ShardEpoch::MAX, executor: ExecutorId::from_u128(7) }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let body = vec![0, 255, 1];
        for entry in [
            NewEntry { kind: EntryKind::Invocation, key: None, body: vec![] },
            NewEntry { kind: EntryKind::Snapshot, key: Some("ü".into()), body },
        ] {
            let decoded = decode(b"9", &encode(ours(), &entry), "here");
            assert_eq!(decoded, Ok(Entry { index: EntryIndex(9), writer: ours(), entry }));
        }
    }

    #[test]
    fn bytes_that_are_no_entry_are_refused_with_their_place() {
        let good = encode(ours(), &NewEntry { kind: EntryKind::Invocation, key: Some("key".into()), body: vec![1] });
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (bytes, part) in [
            (vec![], "0 bytes"),
            (good[..20].to_vec(), "20 bytes"),
            (with(0, 9), "format 9"),
            (with(1, 9), "kind 9"),
            (with(2, 255), "epoch"),
            (with(26, 255), "bytes are no entry"),
            (with(28, 255), "utf-8"),
        ] {
            let told = decode(b"9", &bytes, "here").unwrap_err().to_string();
            assert!(told.contains("here, entry 9") && told.contains(part), "{part}: {told}");
        }
        assert!(matches!(decode(b"0", &good, "here"), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn epochs_as_texts_are_ordered_as_numbers() {
        let text = |epoch| epoch_of(epoch);
        assert!(text(9) < text(10) && text(10) < text(i64::MAX as u64));
    }

    fn epoch_of(epoch: u64) -> String {
        super::epoch(Writer { epoch: ShardEpoch::owned(epoch).unwrap(), ..ours() })
    }
}
