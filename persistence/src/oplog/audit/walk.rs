//! The rules, along one oplog.

use super::report::MAX_FINDINGS;
use super::{ChunkPart, Damage, Part, Read, Record, Rule, Standing, Unread, Usage};
use crate::oplog::{EntryIndex, EntryKind, Writer};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// One oplog, as it was found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub shard: Option<u32>,
    pub usage: Usage,
    pub greatest_epoch: u64,
    pub findings: Vec<Found>,
    /// With those that are not told.
    pub found: u64,
    pub unsettled: bool,
    /// Why a part of it could not be had.
    pub unread: Option<String>,
}

#[derive(Debug)]
pub(super) struct Found {
    pub rule: Rule,
    pub index: Option<u64>,
    pub writer: Option<Writer>,
    pub what: String,
}

impl Seen {
    pub fn broken(index: Option<u64>, rule: Rule, what: &str) -> Self {
        let mut seen = Self::default();
        seen.find(rule, index, None, what);
        seen
    }

    pub fn find(&mut self, rule: Rule, index: Option<u64>, writer: Option<Writer>, what: impl Into<String>) {
        self.found += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Found { rule, index, writer, what: what.into() });
        }
    }

    fn damaged(&mut self, damage: Damage) {
        self.find(Rule::Readable, damage.index, None, damage.what);
    }
}
/// The way along one oplog.
pub(super) struct Walk {
    pub seen: Seen,
    /// The index that belongs here.
    next: u64,
    cleared: Option<u64>,
    last: Option<Writer>,
    /// Who wrote under each epoch first.
    writers: BTreeMap<u64, Writer>,
    /// The greatest epoch's writer among the entries, and where it wrote last.
    above: Option<(Writer, u64)>,
    /// 128 bits of each key's hash, with its index.
    keys: HashMap<(u64, u64), u64>,
    snapshot: Option<EntryIndex>,
    /// Entries in chunks that were not read, as ranges.
    unread: Vec<(EntryIndex, EntryIndex)>,
    /// The entries before `next` were in the primary layer when they were read. They may have moved since, with those from here on.
    in_primary: bool,
}

impl Walk {
    pub fn new(base: EntryIndex, cleared: Option<u64>) -> Self {
        Self {
            seen: Seen::default(),
            next: base.0,
            cleared,
            last: None,
            writers: BTreeMap::new(),
            above: None,
            keys: HashMap::new(),
            snapshot: None,
            unread: Vec::new(),
            in_primary: false,
        }
    }

    /// Goes through a part; answers the record that belongs to it.
    pub fn part(&mut self, part: Part) -> Result<Record, Damage> {
        for chunk in part.chunks {
            self.chunk(chunk);
            self.in_primary = false;
        }
        if let Some(Damage { index, what }) = part.seam {
            self.seen.find(Rule::Contiguous, index, None, what);
            self.next = part.more.map_or(self.next, |more| more.0);
        }
        for read in part.entries {
            self.visit(read);
            self.in_primary = true;
        }
        part.record
    }

    fn chunk(&mut self, chunk: Result<ChunkPart, Damage>) {
        let ChunkPart { first, last, stored, entries } = match chunk {
            Ok(chunk) => chunk,
            Err(damage) => {
                self.next = damage.index.map_or(self.next, |last| last.saturating_add(1));
                return self.seen.damaged(damage);
            }
        };
        let begins = if self.in_primary && first.0 < self.next { self.next } else { first.0 };
        if begins != self.next {
            let what = format!("the list has a chunk {}..={} where {} belongs", first.0, last.0, self.next);
            self.seen.find(Rule::Contiguous, Some(first.0), None, what);
        }
        let count = last.0.saturating_sub(first.0).saturating_add(1);
        let usage = &mut self.seen.usage;
        (usage.chunks, usage.archived, usage.stored) =
            (usage.chunks + 1, usage.archived + count, usage.stored.saturating_add(stored));
        match entries {
            Ok(entries) => {
                self.next = begins;
                entries.into_iter().for_each(|read| self.visit(Ok(read)));
            }
            Err(unread) => {
                usage.entries += last.0.saturating_sub(begins).saturating_add(1);
                self.unread.push((first, last));
                match unread {
                    Unread::Damaged(what) => self.seen.find(Rule::Readable, Some(first.0), None, what),
                    Unread::Away(why) => self.seen.unread = Some(why),
                }
            }
        }
        self.next = last.0.saturating_add(1);
    }

    fn visit(&mut self, read: Result<Read, Damage>) {
        let Read { entry, size } = match read {
            Ok(read) => read,
            Err(damage) => {
                self.next = damage.index.map_or(self.next, |index| index.saturating_add(1));
                return self.seen.damaged(damage);
            }
        };
        let (index, writer) = (entry.index.0, entry.writer);
        let at = (Some(index), Some(writer));
        self.seen.usage.entries += 1;
        self.seen.usage.bytes = self.seen.usage.bytes.saturating_add(size);
        if index != self.next {
            let what = format!("index {index} where {} belongs", self.next);
            self.seen.find(Rule::Contiguous, at.0, at.1, what);
        }
        self.next = index.saturating_add(1);
        if self.cleared.is_some_and(|next| index >= next) {
            // What was written before the clearing is of another count of epochs.
            (self.cleared, self.last, self.above) = (None, None, None);
            self.writers.clear();
        }
        self.epochs(index, writer);
        if entry.entry.kind == EntryKind::Snapshot {
            self.seen.usage.snapshots += 1;
            self.snapshot = Some(entry.index);
        }
        if let Some(key) = &entry.entry.key
            && let Some(before) = self.keys.insert(hashed(key), index)
        {
            let what = format!("idempotency key {key:?} stands at entry {before} already");
            self.seen.find(Rule::KeysUnique, at.0, at.1, what);
        }
    }

    fn epochs(&mut self, index: u64, writer: Writer) {
        let epoch = writer.epoch.get();
        self.seen.greatest_epoch = self.seen.greatest_epoch.max(epoch);
        if let Some(last) = self.last.filter(|last| last.epoch > writer.epoch) {
            let what = format!("epoch {epoch} after {}", last.epoch);
            self.seen.find(Rule::EpochsNeverFall, Some(index), Some(writer), what);
        }
        let first = *self.writers.entry(epoch).or_insert(writer);
        if first != writer {
            let what = format!("epoch {epoch} written by {} and by {}", first.executor, writer.executor);
            self.seen.find(Rule::OneWriterPerEpoch, Some(index), Some(writer), what);
        }
        if self.above.is_none_or(|(above, _)| above.epoch <= writer.epoch) {
            self.above = Some((writer, index));
        }
        self.last = Some(writer);
    }

    /// `record` is of the same moment as the last page: whatever was written before that is not above it.
    pub fn end(&mut self, record: Result<Record, Damage>) {
        let record = match record {
            Ok(record) => record,
            Err(damage) => {
                self.seen.usage.oplogs = 1;
                return self.seen.damaged(damage);
            }
        };
        let holder = Some(record.writer);
        self.seen.shard = Some(record.shard.0);
        match record.standing {
            Standing::Deleted => self.seen.usage.deleted = 1,
            Standing::Suspended => self.seen.usage.oplogs = 1,
            Standing::Running => (self.seen.usage.oplogs, self.seen.usage.running) = (1, 1),
        }
        self.seen.greatest_epoch = self.seen.greatest_epoch.max(record.writer.epoch.get());
        for what in record.faults {
            self.seen.find(Rule::Readable, None, holder, what);
        }
        if self.next != record.next.0 {
            let what = format!("its entries end before index {}, its record goes on at {}", self.next, record.next.0);
            self.seen.find(Rule::Contiguous, None, holder, what);
        }
        let within = |at: EntryIndex| self.unread.iter().any(|(first, last)| (*first..=*last).contains(&at));
        if self.snapshot != record.snapshot && !record.snapshot.is_some_and(within) {
            let told = |at: Option<EntryIndex>| at.map_or_else(|| "none".to_owned(), |at| at.0.to_string());
            let (found, named) = (told(self.snapshot), told(record.snapshot));
            let what = format!("its newest snapshot is {found}, its record names {named}");
            self.seen.find(Rule::NewestSnapshot, None, holder, what);
        }
        let above = self.above.filter(|(writer, _)| {
            writer.epoch > record.writer.epoch || (writer.epoch == record.writer.epoch && *writer != record.writer)
        });
        if let Some((writer, index)) = above.filter(|_| self.cleared.is_none()) {
            let (epoch, executor) = (record.writer.epoch, record.writer.executor);
            let what = format!("written above its record, which is epoch {epoch} of {executor}");
            self.seen.find(Rule::RecordNotBelow, Some(index), Some(writer), what);
        }
    }
}

fn hashed(key: &str) -> (u64, u64) {
    let of = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        key.hash(&mut hasher);
        hasher.finish()
    };
    (of(0), of(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oplog::{Entry, NewEntry};
    use leasehold_model::{AgentId, ExecutorId, ShardEpoch, ShardId};

    fn writer(epoch: u64, executor: u128) -> Writer {
        Writer { epoch: ShardEpoch::owned(epoch).unwrap(), executor: ExecutorId::from_u128(executor) }
    }

    fn read(index: u64, writer: Writer, key: Option<&str>) -> Result<Read, Damage> {
        let entry = NewEntry { kind: EntryKind::Invocation, key: key.map(str::to_owned), body: Vec::new() };
        Ok(Read { entry: Entry { index: EntryIndex(index), writer, entry }, size: 10 })
    }

    fn record(writer: Writer, next: u64) -> Result<Record, Damage> {
        let (base, next) = (EntryIndex(1), EntryIndex(next));
        let agent = AgentId::new("counter/a").unwrap();
        let (standing, faults) = (Standing::Running, Vec::new());
        Ok(Record {
            agent,
            shard: ShardId(3),
            writer,
            standing,
            base,
            primary_from: base,
            next,
            snapshot: None,
            faults,
        })
    }

    type Entries = Vec<Result<Read, Damage>>;

    fn rules(entries: Entries, record: Result<Record, Damage>, cleared: Option<u64>) -> Vec<(Rule, Option<u64>)> {
        let mut walk = Walk::new(EntryIndex(1), cleared);
        for entry in entries {
            walk.visit(entry);
        }
        walk.end(record);
        walk.seen.findings.iter().map(|found| (found.rule, found.index)).collect()
    }

    /// What is tried, what is stored, and what is to be found.
    type Row = (&'static str, Entries, Result<Record, Damage>, Vec<(Rule, Option<u64>)>);

    /// F1, F3, F4 in what is stored.
    #[test]
    fn each_broken_rule_is_found_where_it_is_broken_and_a_sound_oplog_is_not() {
        let (old, new, rival) = (writer(5, 1), writer(6, 2), writer(6, 3));
        let damage = || Damage { index: Some(2), what: "kind 9".into() };
        let table: Vec<Row> = vec![
            ("sound", vec![read(1, old, Some("a")), read(2, new, Some("b"))], record(new, 3), vec![]),
            ("nothing yet", vec![], record(new, 1), vec![]),
            ("a gap", vec![read(1, old, None), read(3, old, None)], record(old, 4), vec![(Rule::Contiguous, Some(3))]),
            ("a twin", vec![read(1, old, None), read(1, old, None)], record(old, 2), vec![(Rule::Contiguous, Some(1))]),
            ("the end is lost", vec![read(1, old, None)], record(old, 3), vec![(Rule::Contiguous, None)]),
            (
                "a stale owner's entry",
                vec![read(1, new, None), read(2, old, None)],
                record(new, 3),
                vec![(Rule::EpochsNeverFall, Some(2))],
            ),
            (
                "two writers of one epoch",
                vec![read(1, new, None), read(2, rival, None)],
                record(writer(7, 2), 3),
                vec![(Rule::OneWriterPerEpoch, Some(2))],
            ),
            ("above the record", vec![read(1, new, None)], record(old, 2), vec![(Rule::RecordNotBelow, Some(1))]),
            ("another's record", vec![read(1, new, None)], record(rival, 2), vec![(Rule::RecordNotBelow, Some(1))]),
            (
                "a key twice",
                vec![read(1, old, Some("k")), read(2, new, Some("k"))],
                record(new, 3),
                vec![(Rule::KeysUnique, Some(2))],
            ),
            (
                "an entry that cannot be read",
                vec![read(1, old, None), Err(damage()), read(3, old, None)],
                record(old, 4),
                vec![(Rule::Readable, Some(2))],
            ),
            (
                "a record that cannot be read",
                vec![read(1, old, None)],
                Err(Damage { index: None, what: "epoch -1".into() }),
                vec![(Rule::Readable, None)],
            ),
        ];
        for (what, entries, record, expected) in table {
            assert_eq!(rules(entries, record, None), expected, "{what}");
        }
    }

    /// What was read in the primary layer may be moved right after, in a chunk that goes on with what is read next.
    #[test]
    fn a_chunk_may_begin_before_the_walk_where_entries_were_moved_behind_it_and_nowhere_else() {
        let ours = writer(5, 1);
        let part = |chunks: Vec<(u64, u64, Vec<u64>)>, entries: &[u64]| {
            let chunk = |(first, last, entries): (u64, u64, Vec<u64>)| {
                let entries = Ok(entries.into_iter().map(|index| read(index, ours, None).unwrap()).collect());
                Ok(ChunkPart { first: EntryIndex(first), last: EntryIndex(last), stored: 9, entries })
            };
            let chunks = chunks.into_iter().map(chunk).collect();
            let entries = entries.iter().map(|index| read(*index, ours, None)).collect();
            Part { record: record(ours, 7), chunks, seam: None, entries, more: None, source: 0 }
        };
        let findings = |base: u64, parts: Vec<Part>| {
            let mut walk = Walk::new(EntryIndex(base), None);
            let records: Vec<_> = parts.into_iter().map(|part| walk.part(part)).collect();
            walk.end(records.into_iter().last().unwrap());
            let found = walk.seen.findings.iter().map(|found| (found.rule, found.index)).collect::<Vec<_>>();
            (found, walk.seen.usage.entries)
        };
        let moved = vec![part(vec![], &[1, 2]), part(vec![(1, 4, vec![3, 4]), (5, 6, vec![5, 6])], &[])];
        assert_eq!(findings(1, moved), (vec![], 6));
        let twice = vec![part(vec![], &[1, 2]), part(vec![(1, 4, vec![3, 4]), (4, 6, vec![4, 5, 6])], &[])];
        assert_eq!(findings(1, twice).0, [(Rule::Contiguous, Some(4))], "the second one overlaps the first");
        let before = vec![part(vec![(1, 6, vec![2, 3, 4, 5, 6])], &[])];
        assert_eq!(
            findings(2, before).0,
            [(Rule::Contiguous, Some(1)), (Rule::Contiguous, Some(2))],
            "of an earlier life"
        );
        let later = vec![part(vec![], &[1, 2]), part(vec![(4, 6, vec![4, 5, 6])], &[])];
        assert_eq!(findings(1, later).0, [(Rule::Contiguous, Some(4))], "3 is lost");
    }

    #[test]
    fn a_snapshot_that_the_record_does_not_name_is_found() {
        let ours = writer(5, 1);
        let mut at = record(ours, 2).unwrap();
        at.snapshot = Some(EntryIndex(1));
        assert_eq!(rules(vec![read(1, ours, None)], Ok(at), None), [(Rule::NewestSnapshot, None)]);
    }

    /// Epochs begin anew where they were cleared, and nowhere else.
    #[test]
    fn after_a_clearing_epochs_may_begin_anew_once() {
        let (giant, next) = (writer(1 << 60, 1), writer(2, 2));
        let entries = || vec![read(1, giant, None), read(2, next, None), read(3, giant, None), read(4, next, None)];
        let falls = |at: u64| (Rule::EpochsNeverFall, Some(at));
        let above = (Rule::RecordNotBelow, Some(3));
        assert_eq!(rules(entries(), record(next, 5), Some(2)), [falls(4), above]);
        assert_eq!(rules(entries(), record(next, 5), None), [falls(2), falls(4), above]);
        let untouched = vec![read(1, giant, None)];
        assert_eq!(rules(untouched, record(writer(1, 9), 2), Some(2)), [], "cleared, and nothing written since");
    }
}
