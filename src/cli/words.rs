//! A real file as a sequence of invocations.
//!
//! *Words* are the maximal runs of ASCII letters, in lower case: exactly the non-empty lines of
//! `tr -cs 'A-Za-z' '\n' < FILE | tr A-Z a-z`, in order. *Lines* end at a newline; ASCII blanks around them do not count, and
//! empty ones are left out.

use super::{Exit, Failure};
use leasehold_model::AgentId;
use leasehold_model::message::Invocation;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The largest file that is read: 64 MiB.
pub const FILE_MOST: u64 = 64 * 1024 * 1024;

/// The longest word or line that is counted under its own name, in bytes: as long as a tally's words may be.
const KEY_MOST: usize = 256;

/// What one invocation is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// A line
    Line,
    /// A run of ASCII letters, in lower case
    Word,
}

/// Which agents count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One agent per word or line: `counter/<word>`
    Counter,
    /// One agent per first character, which counts by word or line: `tally/<character>`
    Tally,
}

/// A file's words or lines.
#[derive(Debug)]
pub struct Input {
    text: Vec<u8>,
    units: Vec<Range<usize>>,
    per: Per,
}

impl Input {
    /// Reads a file of at most [`FILE_MOST`] bytes.
    ///
    /// # Errors
    /// Exit code 64 when it cannot be read, is too large, or has no word or line at all.
    pub fn read(path: &Path, per: Per) -> Result<Self, Failure> {
        let refuse = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?.len();
        if size > FILE_MOST {
            return Err(refuse(format!("{size} bytes; at most {FILE_MOST} are read")));
        }
        let input = Self::new(std::fs::read(path).map_err(|error| refuse(error.to_string()))?, per);
        if input.units.is_empty() { Err(refuse("it has no words".into())) } else { Ok(input) }
    }

    /// The words or lines of `text`.
    #[must_use]
    pub fn new(mut text: Vec<u8>, per: Per) -> Self {
        let units = match per {
            Per::Word => {
                text.make_ascii_lowercase();
                runs(&text, |byte| byte.is_ascii_lowercase())
            }
            Per::Line => {
                let lines = runs(&text, |byte| byte != b'\n').into_iter().map(|line| trimmed(&text, line));
                lines.filter(|line| !line.is_empty()).collect()
            }
        };
        Self { text, units, per }
    }

    /// How many words or lines there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.units.len() as u64
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The word or line that invocation `ordinal` is for: after the last comes the first again.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn unit(&self, ordinal: u64) -> &[u8] {
        let at = usize::try_from(ordinal % self.len()).expect("below a length that fits");
        &self.text[self.units[at].clone()]
    }

    /// A number that tells this input from others (FNV-1a, 64 bits).
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fnv(&self.text) ^ (self.per as u64)
    }

    /// Every distinct word or line as it is counted, with how often it occurs.
    #[must_use]
    pub fn distinct(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for at in 0..self.len() {
            *counts.entry(key(self.unit(at))).or_insert(0) += 1;
        }
        counts
    }
}

fn runs(text: &[u8], belongs: impl Fn(u8) -> bool) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = None;
    for (at, byte) in text.iter().enumerate() {
        match (belongs(*byte), from) {
            (true, None) => from = Some(at),
            (false, Some(start)) => {
                found.push(start..at);
                from = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
    found.extend(from.map(|start| start..text.len()));
    found
}

fn trimmed(text: &[u8], line: Range<usize>) -> Range<usize> {
    let part = &text[line.clone()];
    let front = part.len() - part.trim_ascii_start().len();
    let rest = part.trim_ascii().len();
    line.start + front..line.start + front + rest
}

const fn fnv(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// How a word or line is called: itself, or `hash-<FNV-1a>` where it cannot stand in an agent's id.
#[must_use]
pub fn key(unit: &[u8]) -> String {
    let fits = |text: &&str| text.len() <= KEY_MOST && AgentId::new(format!("counter/{text}")).is_ok();
    let text = std::str::from_utf8(unit).ok().filter(fits);
    text.map_or_else(|| format!("hash-{:016x}", fnv(unit)), str::to_owned)
}

impl Kind {
    /// The method that counts one, where the command line names none.
    #[must_use]
    pub const fn counts_with(self) -> &'static str {
        match self {
            Self::Counter => "increment",
            Self::Tally => "add",
        }
    }

    /// The call that counts `unit` once more.
    #[must_use]
    pub fn count(self, unit: &[u8], method: &str, idempotency_key: String) -> Invocation {
        let key = key(unit);
        let payload = match self {
            // `null` counts one.
            Self::Counter => Vec::new(),
            Self::Tally => json!({ "word": key }).to_string().into_bytes(),
        };
        let idempotency_key = Some(idempotency_key);
        Invocation { agent: self.agent(&key), method: method.to_owned(), payload, idempotency_key }
    }

    /// The call that reads how often `key` was counted.
    #[must_use]
    pub fn read(self, key: &str) -> Invocation {
        let payload = match self {
            Self::Counter => Vec::new(),
            Self::Tally => json!({ "word": key }).to_string().into_bytes(),
        };
        Invocation { agent: self.agent(key), method: "get".into(), payload, idempotency_key: None }
    }

    /// The count in an answer to [`Kind::read`]; `None` if there is none in it.
    #[must_use]
    pub fn counted(self, answer: &[u8]) -> Option<u64> {
        let answer: Value = serde_json::from_slice(answer).ok()?;
        match self {
            Self::Counter => answer.get("value")?.as_u64(),
            Self::Tally => answer.get("count")?.as_u64(),
        }
    }

    fn agent(self, key: &str) -> AgentId {
        let id = match self {
            Self::Counter => format!("counter/{key}"),
            Self::Tally => format!("tally/{}", key.chars().next().unwrap_or('_')),
        };
        AgentId::new(id).expect("a key can stand in an agent's id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn words(text: &[u8]) -> Vec<Vec<u8>> {
        let input = Input::new(text.to_vec(), Per::Word);
        (0..input.len()).map(|at| input.unit(at).to_vec()).collect()
    }

    /// What the shell makes of it.
    fn tr(text: &[u8]) -> Vec<Vec<u8>> {
        let script = r"LC_ALL=C tr -cs 'A-Za-z' '\n' | LC_ALL=C tr A-Z a-z";
        let mut child =
            Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text).unwrap();
        let out = child.wait_with_output().unwrap().stdout;
        out.split(|byte| *byte == b'\n').filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn words_are_what_tr_makes_of_a_file() {
        let texts: [&[u8]; 6] = [
            b"The quick, brown FOX's 2nd jump--over.",
            b"  leading\nand trailing  ",
            b"",
            b"0123 !?",
            "na\u{ef}ve caf\u{e9}".as_bytes(),
            b"\xff\xfea\x00b",
        ];
        for text in texts {
            assert_eq!(words(text), tr(text), "{:?}", String::from_utf8_lossy(text));
        }
        let licence = std::fs::read("/usr/share/common-licenses/GPL-3").unwrap_or_else(|_| b"GNU General".to_vec());
        assert_eq!(words(&licence), tr(&licence));
    }

    #[test]
    fn lines_are_trimmed_and_empty_ones_left_out() {
        let input = Input::new(b"one \r\n\n  two\t\nthree".to_vec(), Per::Line);
        let lines: Vec<&[u8]> = (0..input.len()).map(|at| input.unit(at)).collect();
        assert_eq!(lines, [&b"one"[..], b"two", b"three"]);
        assert_eq!(input.unit(4), b"two", "after the last comes the first again");
    }

    #[test]
    fn whatever_cannot_stand_in_an_id_is_counted_under_its_hash() {
        assert_eq!(key(b"word"), "word");
        for odd in [&b"\xff"[..], b"a\x07b", "x".repeat(600).as_bytes()] {
            assert!(key(odd).starts_with("hash-") && key(odd).len() == 21, "{}", key(odd));
        }
        assert_ne!(key(b"\xff"), key(b"\xfe"));
    }

    #[test]
    fn a_counter_is_named_by_the_word_and_a_tally_by_its_first_letter() {
        let call = Kind::Counter.count(b"the", "increment", "run:1".into());
        assert_eq!((call.agent.as_str(), call.payload.as_slice()), ("counter/the", &b""[..]));
        assert_eq!(call.idempotency_key.as_deref(), Some("run:1"));
        let call = Kind::Tally.count(b"the", "add", "run:1".into());
        assert_eq!((call.agent.as_str(), call.payload.as_slice()), ("tally/t", &br#"{"word":"the"}"#[..]));
        assert_eq!(Kind::Tally.read("the").agent.as_str(), "tally/t");
        assert_eq!(Kind::Counter.read("the").agent.as_str(), "counter/the");
    }

    #[test]
    fn distinct_words_add_up() {
        let input = Input::new(b"the cat the hat".to_vec(), Per::Word);
        assert_eq!(input.distinct(), BTreeMap::from([("cat".into(), 1), ("hat".into(), 1), ("the".into(), 2)]));
    }

    quickcheck! {
        fn words_never_hold_anything_but_lower_case_letters(text: Vec<u8>) -> bool {
            words(&text).iter().all(|word| !word.is_empty() && word.iter().all(u8::is_ascii_lowercase))
        }
    }
}
