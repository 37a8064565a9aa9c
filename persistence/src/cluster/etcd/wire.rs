//! The transactions themselves: each under the leader's key, each read a linearizable one.

use super::keys::Keys;
use super::plan::{Op, Part};
use super::values::{HeadValue, decode_head};
use crate::cluster::Error;
use crate::etcd::{EtcdConnection, Failure, LeaderKey};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// How many keys a page has. A chunk is at most 100 KiB, an executor 1 KiB.
const CHUNKS_A_PAGE: i64 = 16;
const EXECUTORS_A_PAGE: i64 = 512;
/// The largest answer that is accepted: far above the largest page.
const MAX_ANSWER: usize = 16 << 20;

/// What stands in the way of a write, or what a look found.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Whether the leader's key is the one that was created by our election.
    pub leads: bool,
    /// The head, and the etcd revision of its last change; 0 if there is none.
    pub head: Option<HeadValue>,
    pub changed_at: i64,
    /// etcd's revision when this was seen.
    pub at: i64,
}

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum Sent {
    /// Stored, at this etcd revision.
    Landed(i64),
    /// Its condition did not hold.
    Not(Seen),
    Failed(Failure),
}

/// What was sent to etcd to be stored, retries included.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub transactions: AtomicU64,
    pub bytes: AtomicU64,
}

/// One page of a listing, at one revision.
pub(super) enum Page {
    /// Keys in order, and whether there are more.
    Keys(Vec<(String, Vec<u8>)>, bool),
    /// The revision is gone: begin anew.
    Compacted,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub connection: EtcdConnection,
    pub keys: Keys,
    pub leader: Option<LeaderKey>,
    pub traffic: Traffic,
    /// The newest change of the head that this process wrote or saw: an etcd that knows only an older one was restored from a backup.
    newest: AtomicI64,
}

/// Whether a process leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Leads,
    /// The election's key is gone, or another leader's.
    Deposed,
    /// The key stands, under a head that is older than one that this leadership has seen.
    Restored,
}

impl Wire {
    pub fn new(connection: EtcdConnection, keys: Keys, leader: Option<LeaderKey>) -> Self {
        Self { connection, keys, leader, traffic: Traffic::default(), newest: AtomicI64::new(0) }
    }

    /// Holds as long as the leader's key is the one that our election created.
    fn leads(&self) -> Vec<Compare> {
        let of =
            |leader: &LeaderKey| Compare::create_revision(leader.key.clone(), CompareOp::Equal, leader.create_revision);
        self.leader.iter().map(of).collect()
    }

    /// Stores `part` if we lead and the head was last changed at `head_changed_at`.
    pub async fn send(&self, head_changed_at: i64, part: &Part) -> Sent {
        let answer = self.connection.call(|mut client| {
            // Made for each attempt, of which there is mostly one: a part is too large to be copied for another that never comes.
            let txn = self.storing(head_changed_at, part);
            async move { client.txn(txn).await }
        });
        match answer.await {
            Err(failed) => Sent::Failed(failed),
            Ok(answer) if answer.succeeded() => {
                self.newest.fetch_max(revision(&answer), Ordering::AcqRel);
                Sent::Landed(revision(&answer))
            }
            // The answer is no doubt: nothing was written. What it shows must be readable, though.
            Ok(answer) => match self.seen(&answer) {
                Ok(seen) => Sent::Not(seen),
                Err(error) => Sent::Failed(Failure::Refused(error.to_string())),
            },
        }
    }

    fn storing(&self, head_changed_at: i64, part: &Part) -> Txn {
        let mut compares = self.leads();
        compares.push(Compare::mod_revision(self.keys.head(), CompareOp::Equal, head_changed_at));
        let leadership = self.leader.as_ref().map_or(0, |leader| leader.create_revision);
        let mut bytes = 0;
        let op = |op: Op| {
            bytes += op.key.len() + op.value.as_ref().map_or(0, Vec::len);
            match op.value {
                Some(value) => TxnOp::put(op.key, value, None),
                None => TxnOp::delete(op.key, None),
            }
        };
        let ops: Vec<_> = part.with_head(&self.keys, leadership).map(op).collect();
        self.traffic.transactions.fetch_add(1, Ordering::Relaxed);
        self.traffic.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Txn::new().when(compares).and_then(ops).or_else(self.look_ops())
    }

    /// Reads, linearizably and at one revision, whether we lead and what the head is.
    pub async fn look(&self) -> Result<Seen, Error> {
        let txn = Txn::new().when(self.leads()).and_then(self.look_ops()).or_else(self.look_ops());
        let answer = self.connection.read(|mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        });
        self.seen(&answer.await?)
    }

    fn look_ops(&self) -> Vec<TxnOp> {
        let leader = self.leader.iter().map(|leader| TxnOp::get(leader.key.clone(), None));
        [TxnOp::get(self.keys.head(), None)].into_iter().chain(leader).collect()
    }

    fn seen(&self, answer: &TxnResponse) -> Result<Seen, Error> {
        let mut seen = Seen { leads: self.leader.is_none(), head: None, changed_at: 0, at: revision(answer) };
        for read in answer.op_responses() {
            let TxnOpResponse::Get(read) = read else { continue };
            for pair in read.kvs() {
                if pair.key() == self.keys.head().as_bytes() {
                    seen.head = Some(decode_head(&self.keys.head(), pair.value())?);
                    seen.changed_at = pair.mod_revision();
                    self.newest.fetch_max(seen.changed_at, Ordering::AcqRel);
                } else {
                    seen.leads |= self.is_ours(pair);
                }
            }
        }
        Ok(seen)
    }

    fn is_ours(&self, pair: &KeyValue) -> bool {
        let ours = |leader: &LeaderKey| leader.key == pair.key() && leader.create_revision == pair.create_revision();
        self.leader.as_ref().is_some_and(ours)
    }

    /// R7: whether we lead, by a read that begins now. A transaction without a range would be answered by any member out of its own
    /// data, however old: the read of the keys makes it linearizable. The election's key alone is not enough: a backup that is restored
    /// under a running leader brings the key back, and an older state with it.
    pub async fn confirm(&self) -> Result<Standing, Error> {
        let Some(leader) = &self.leader else { return Ok(Standing::Deposed) };
        let newest = self.newest.load(Ordering::Acquire);
        let read = |key: &[u8]| TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
        let reads = [read(&leader.key), read(self.keys.head().as_bytes())];
        let txn = Txn::new().when(self.leads()).and_then(reads.clone()).or_else(reads);
        let answer = self.connection.read(|mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        });
        let answer = answer.await?;
        if !answer.succeeded() {
            return Ok(Standing::Deposed);
        }
        let gets = answer.op_responses();
        let pairs = gets.iter().flat_map(|read| match read {
            TxnOpResponse::Get(read) => read.kvs(),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => &[],
        });
        let head = pairs.filter(|pair| pair.key() == self.keys.head().as_bytes()).map(KeyValue::mod_revision).max();
        Ok(if head.unwrap_or(0) >= newest { Standing::Leads } else { Standing::Restored })
    }

    /// The chunks from key `from` on, as they were at `revision`.
    pub async fn chunks(&self, from: String, revision: i64) -> Result<Page, Error> {
        self.page(&self.keys.chunks(), from, revision, CHUNKS_A_PAGE).await
    }

    /// The executors from key `from` on, as they were at `revision`.
    pub async fn executors(&self, from: String, revision: i64) -> Result<Page, Error> {
        self.page(&self.keys.executors(), from, revision, EXECUTORS_A_PAGE).await
    }

    async fn page(&self, prefix: &str, from: String, revision: i64, limit: i64) -> Result<Page, Error> {
        // Every prefix ends with '/', and '0' is the byte after it.
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
        let answer = self.connection.call(|client| {
            let (from, options) = (from.clone(), options.clone());
            let mut client = client.kv_client().max_decoding_message_size(MAX_ANSWER);
            async move { client.get(from, Some(options)).await }
        });
        let mut answer = match answer.await {
            Ok(answer) => answer,
            Err(Failure::Compacted(_)) => return Ok(Page::Compacted),
            Err(other) => return Err(Error::Unavailable(other.why().to_owned())),
        };
        let more = answer.more();
        let pair = |pair: KeyValue| {
            let (key, value) = pair.into_key_value();
            (String::from_utf8_lossy(&key).into_owned(), value)
        };
        Ok(Page::Keys(answer.take_kvs().into_iter().map(pair).collect(), more))
    }

    /// Forgets history up to `revision`.
    pub async fn compact(&self, revision: i64) -> Result<(), Error> {
        let answer = self.connection.call(|mut client| async move { client.compact(revision, None).await });
        match answer.await {
            // Somebody has gone further already.
            Ok(_) | Err(Failure::Compacted(_)) => Ok(()),
            Err(other) => Err(Error::Unavailable(other.why().to_owned())),
        }
    }
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, etcd_client::ResponseHeader::revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::EtcdOptions;
    use leasehold_harness::Etcd;
    use leasehold_model::ClusterName;

    /// What makes a load begin anew instead of failing.
    #[tokio::test]
    async fn a_page_of_a_compacted_revision_is_told_from_a_failure() {
        let etcd = Etcd::start();
        for round in ["1", "2", "3"] {
            etcd.ctl(&["put", "/leasehold/a/shards/00", round]);
        }
        let options = EtcdOptions { endpoints: etcd.endpoints(), ..EtcdOptions::default() };
        let connection = EtcdConnection::open(options).await.unwrap();
        let now = connection.revision().await.unwrap();
        let keys = Keys::of(&ClusterName::new("a").unwrap());
        let from = keys.chunks();
        let wire = Wire::new(connection, keys, None);
        let page = wire.chunks(from.clone(), now - 1).await.unwrap();
        assert!(matches!(page, Page::Keys(pairs, false) if pairs[0].1 == b"2"));
        wire.compact(now).await.unwrap();
        wire.compact(now).await.expect("compacted already");
        assert!(matches!(wire.chunks(from, now - 1).await.unwrap(), Page::Compacted));
    }
}
