//! Chunks that were read lately, so that a page is not a whole chunk's decompression. Indexes are never used twice, so a chunk that was read
//! once stays right; whether it may be read is asked of the store each time.

use crate::oplog::{Entry, EntryIndex};
use leasehold_model::AgentId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of entries that are kept.
const MAX_BYTES: usize = 32 << 20;
/// Chunks that are kept.
const MAX_CHUNKS: usize = 256;

/// The entries of a chunk, ascending.
pub(super) type Entries = Arc<[Entry]>;

#[derive(Debug)]
struct Kept {
    agent: AgentId,
    entries: Entries,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Chunks {
    newest_first: VecDeque<Kept>,
    bytes: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Chunks>);

impl Cache {
    /// The chunk of `agent` that holds entry `at`.
    pub fn find(&self, agent: &AgentId, at: EntryIndex) -> Option<Entries> {
        let chunks = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |kept: &Kept| {
            let ends = kept.entries.first().zip(kept.entries.last());
            kept.agent == *agent && ends.is_some_and(|(first, last)| (first.index..=last.index).contains(&at))
        };
        let place = chunks.newest_first.iter().position(holds)?;
        let kept = chunks.newest_first.remove(place)?;
        let entries = Arc::clone(&kept.entries);
        chunks.newest_first.push_front(kept);
        Some(entries)
    }

    pub fn keep(&self, agent: &AgentId, entries: &Entries) {
        let size = |entry: &Entry| {
            size_of::<Entry>() + entry.entry.body.len() + entry.entry.key.as_ref().map_or(0, String::len)
        };
        let bytes = entries.iter().map(size).sum();
        if bytes > MAX_BYTES {
            return;
        }
        let chunks = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.newest_first.push_front(Kept { agent: agent.clone(), entries: Arc::clone(entries), bytes });
        chunks.bytes += bytes;
        while chunks.bytes > MAX_BYTES || chunks.newest_first.len() > MAX_CHUNKS {
            let Some(oldest) = chunks.newest_first.pop_back() else { break };
            chunks.bytes -= oldest.bytes;
        }
    }
}
