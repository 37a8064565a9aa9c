//! How an agent's entries look inside the store: `version, tag, entry id`, then what the tag says. Decoding is total:
//! every byte string is an entry or an error that says what is wrong.
//!
//! | part | bytes |
//! | --- | --- |
//! | version | 1: [`VERSION`] |
//! | tag | 1: 1 invocation, 2 snapshot |
//! | entry id | 16: who wrote it and which of its entries it is |
//! | invocation | method, answer, event count (u32), events; each text as length (u32, big-endian) and JSON |
//! | snapshot | the rest: as the agent type made it |

use leasehold_persistence::oplog::EntryKind;
use serde_json::Value;

/// The version written; every version up to it is read.
pub const VERSION: u8 = 1;
/// The longest body a store takes.
pub const MAX_BODY: usize = 1024 * 1024;

const TAG_INVOCATION: u8 = 1;
const TAG_SNAPSHOT: u8 = 2;

/// Tells one written entry from every other, so that a writer recognises its own after an unknown outcome (case 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryId(pub [u8; 16]);

impl EntryId {
    /// The `serial`th entry of the agent incarnation `life`.
    #[must_use]
    pub fn new(life: u64, serial: u64) -> Self {
        Self((u128::from(life) << 64 | u128::from(serial)).to_be_bytes())
    }
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// An invocation that changed something.
    Invocation(Invoked),
    /// The state before the entry after it.
    Snapshot(Vec<u8>),
}

/// An invocation and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Invoked {
    /// Which method ran.
    pub method: String,
    /// What the caller is told: JSON text.
    pub answer: Vec<u8>,
    /// What changed.
    pub events: Vec<Value>,
}

/// Bytes that are no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Written by a newer version of this program.
    #[error("entry format {found} is newer than {VERSION}, the newest that this program reads")]
    Newer {
        /// The version it bears.
        found: u8,
    },
    /// Shorter or longer than it says of itself.
    #[error("{what} is cut short or overlong")]
    Length {
        /// Which part.
        what: &'static str,
    },
    /// Not of the kind that the store has it down as, or of none.
    #[error("the tag is {found}, the store says {kind:?}")]
    Tag {
        /// What stands there.
        found: u8,
        /// What the store says.
        kind: EntryKind,
    },
    /// A text that is not UTF-8 or not JSON.
    #[error("{what}: {why}")]
    Text {
        /// Which part.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl Body {
    /// The kind that the store is told.
    #[must_use]
    pub const fn kind(&self) -> EntryKind {
        match self {
            Self::Invocation(_) => EntryKind::Invocation,
            Self::Snapshot(_) => EntryKind::Snapshot,
        }
    }

    /// As bytes. The caller checks them against [`MAX_BODY`].
    #[must_use]
    pub fn encode(&self, id: EntryId) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Self::Invocation(invoked) => {
                out.push(TAG_INVOCATION);
                out.extend(id.0);
                put(&mut out, invoked.method.as_bytes());
                put(&mut out, &invoked.answer);
                out.extend(length(invoked.events.len()));
                for event in &invoked.events {
                    put(&mut out, event.to_string().as_bytes());
                }
            }
            Self::Snapshot(state) => {
                out.push(TAG_SNAPSHOT);
                out.extend(id.0);
                out.extend(state);
            }
        }
        out
    }

    /// What `bytes`, stored as an entry of `kind`, say.
    ///
    /// # Errors
    /// Says what is wrong with them.
    pub fn decode(kind: EntryKind, bytes: &[u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        let version = take(&mut rest, 1, "the version")?[0];
        if version == 0 || version > VERSION {
            return Err(Error::Newer { found: version });
        }
        let tag = take(&mut rest, 1, "the tag")?[0];
        take(&mut rest, 16, "the entry id")?;
        match (kind, tag) {
            (EntryKind::Invocation, TAG_INVOCATION) => decode_invocation(rest).map(Self::Invocation),
            (EntryKind::Snapshot, TAG_SNAPSHOT) => Ok(Self::Snapshot(rest.to_vec())),
            (EntryKind::Invocation | EntryKind::Snapshot, found) => Err(Error::Tag { found, kind }),
        }
    }
}

fn decode_invocation(mut rest: &[u8]) -> Result<Invoked, Error> {
    let method = String::from_utf8(field(&mut rest, "the method")?.to_vec())
        .map_err(|e| Error::Text { what: "the method", why: e.to_string() })?;
    let answer = field(&mut rest, "the answer")?.to_vec();
    let count = number(&mut rest, "the number of events")?;
    // An event takes at least its length's four bytes: a count beyond that is refused before anything is reserved.
    if count > rest.len() / 4 {
        return Err(Error::Length { what: "the list of events" });
    }
    let mut events = Vec::with_capacity(count);
    for _ in 0..count {
        let text = field(&mut rest, "an event")?;
        events.push(serde_json::from_slice(text).map_err(|e| Error::Text { what: "an event", why: e.to_string() })?);
    }
    if rest.is_empty() { Ok(Invoked { method, answer, events }) } else { Err(Error::Length { what: "the entry" }) }
}

fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("bodies are bounded by MAX_BODY long before 4 GiB").to_be_bytes()
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(length(text.len()));
    out.extend(text);
}

fn take<'a>(rest: &mut &'a [u8], len: usize, what: &'static str) -> Result<&'a [u8], Error> {
    let (taken, after) = rest.split_at_checked(len).ok_or(Error::Length { what })?;
    *rest = after;
    Ok(taken)
}

fn number(rest: &mut &[u8], what: &'static str) -> Result<usize, Error> {
    let bytes: [u8; 4] = take(rest, 4, what)?.try_into().expect("four bytes were taken");
    usize::try_from(u32::from_be_bytes(bytes)).map_err(|_| Error::Length { what })
}

fn field<'a>(rest: &mut &'a [u8], what: &'static str) -> Result<&'a [u8], Error> {
    let len = number(rest, what)?;
    take(rest, len, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;
    use serde_json::json;

    fn invocation(method: String, answer: Vec<u8>, events: Vec<String>) -> Body {
        Body::Invocation(Invoked { method, answer, events: events.into_iter().map(Value::from).collect() })
    }

    quickcheck! {
        fn what_is_encoded_is_decoded_again(method: String, answer: Vec<u8>, events: Vec<String>, state: Vec<u8>) -> bool {
            [invocation(method, answer, events), Body::Snapshot(state)]
                .into_iter()
                .all(|body| Body::decode(body.kind(), &body.encode(EntryId::new(3, 9))) == Ok(body))
        }

        fn any_bytes_are_an_entry_or_an_error(bytes: Vec<u8>, versioned: bool) -> bool {
            let mut bytes = bytes;
            if versioned {
                bytes.splice(0..0, [VERSION, TAG_INVOCATION]);
            }
            let _ = Body::decode(EntryKind::Snapshot, &bytes);
            Body::decode(EntryKind::Invocation, &bytes).is_err() || versioned
        }

        fn a_cut_invocation_is_an_error(method: String, events: Vec<String>, cut: usize) -> bool {
            let bytes = invocation(method, b"1".to_vec(), events).encode(EntryId::new(0, 0));
            let cut = cut % bytes.len();
            Body::decode(EntryKind::Invocation, &bytes[..cut]).is_err()
        }
    }

    #[test]
    fn the_bytes_of_version_1_stay_readable() {
        let body = Body::Invocation(Invoked { method: "add".into(), answer: b"1".to_vec(), events: vec![json!([7])] });
        let bytes = b"\x01\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05\0\0\0\x03add\0\0\0\x011\0\0\0\x01\0\0\0\x03[7]";
        assert_eq!(body.encode(EntryId::new(2, 5)), bytes);
        assert_eq!(Body::decode(EntryKind::Invocation, bytes), Ok(body));
    }

    #[test]
    fn a_newer_format_is_named_as_such() {
        assert_eq!(Body::decode(EntryKind::Snapshot, &[9, 2]), Err(Error::Newer { found: 9 }));
    }

    #[test]
    fn a_count_of_events_that_cannot_fit_reserves_nothing() {
        let mut bytes = Body::Invocation(Invoked { method: String::new(), answer: vec![], events: vec![] })
            .encode(EntryId::new(0, 0));
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&[0xff; 4]);
        assert_eq!(Body::decode(EntryKind::Invocation, &bytes), Err(Error::Length { what: "the list of events" }));
    }

    #[test]
    fn an_entry_of_another_kind_is_refused() {
        let bytes = Body::Snapshot(vec![1]).encode(EntryId::new(0, 0));
        assert_eq!(
            Body::decode(EntryKind::Invocation, &bytes),
            Err(Error::Tag { found: TAG_SNAPSHOT, kind: EntryKind::Invocation })
        );
    }
}
