//! The state as rows, and rows as the state: what the databases with tables share.

use super::{Error, check_head};
use leasehold_model::message::Weight;
use leasehold_model::state::{ClusterState, Executor, Head, Shard, ShardState, StateRows};
use leasehold_model::{
    Address, ClusterName, ExecutorId, ExecutorName, LeaseKeyHash, Revision, ShardCount, ShardEpoch, ShardId, Ttl,
};
use std::fmt::Display;

/// The bits of a number that was checked to fit, or is bounded by its type.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or_else(|_| panic!("{value} was not checked before it was written"))
}

/// A shard's columns `state` and `since`.
pub(super) fn state_columns(state: &ShardState) -> (&'static str, Option<i64>) {
    match state {
        ShardState::Unassigned => ("unassigned", None),
        ShardState::Owned(_) => ("owned", None),
        ShardState::Releasing { since, .. } => ("releasing", Some(signed(since.0))),
    }
}

/// The columns of one row, NULL as `None`; what cannot be read is said in words.
pub(super) trait Columns {
    fn integer(&self, name: &str) -> Result<Option<i64>, String>;
    fn flag(&self, name: &str) -> Result<Option<bool>, String>;
    fn text(&self, name: &str) -> Result<Option<&str>, String>;
    fn bytes(&self, name: &str) -> Result<Option<&[u8]>, String>;
}

/// One stored row, which knows how to say where it is.
struct Stored<'a> {
    row: &'a dyn Columns,
    place: String,
}

impl Stored<'_> {
    fn corrupt(&self, column: &str, what: impl Display) -> Error {
        Error::Corrupt { place: format!("{}, column {column}", self.place), what: what.to_string() }
    }

    /// A column that may not be NULL, turned into `T` by `decode`.
    fn decode<C, T, E: Display>(
        &self,
        name: &str,
        value: Result<Option<C>, String>,
        decode: impl FnOnce(C) -> Result<T, E>,
    ) -> Result<T, Error> {
        let value = value.map_err(|what| self.corrupt(name, what))?.ok_or_else(|| self.corrupt(name, "NULL"))?;
        decode(value).map_err(|what| self.corrupt(name, what))
    }

    fn integer<T, E: Display>(&self, name: &str, decode: impl FnOnce(i64) -> Result<T, E>) -> Result<T, Error> {
        self.decode(name, self.row.integer(name), decode)
    }

    fn text<T, E: Display>(&self, name: &str, decode: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Error> {
        self.decode(name, self.row.text(name), decode)
    }

    fn unsigned(&self, name: &str) -> Result<u64, Error> {
        self.integer(name, |value| u64::try_from(value).map_err(|_| format!("{value} is negative")))
    }

    fn flag(&self, name: &str) -> Result<bool, Error> {
        self.decode(name, self.row.flag(name), Ok::<_, String>)
    }

    fn id(&self, name: &str) -> Result<ExecutorId, Error> {
        self.text(name, str::parse::<ExecutorId>)
    }
}

fn decode_head(row: &Stored<'_>) -> Result<Head, Error> {
    Ok(Head {
        cluster: row.text("cluster", |text| ClusterName::new(text))?,
        shard_count: row.integer("shard_count", |count| {
            u32::try_from(count)
                .map_err(|why| why.to_string())
                .and_then(|it| ShardCount::new(it).map_err(|e| e.to_string()))
        })?,
        revision: Revision(row.unsigned("revision")?),
    })
}

fn decode_shard(row: &Stored<'_>) -> Result<Shard, Error> {
    let epoch = ShardEpoch::new(row.unsigned("epoch")?).map_err(|what| row.corrupt("epoch", what))?;
    let state = row.text("state", |state| Ok::<_, String>(state.to_owned()))?;
    let state = match state.as_str() {
        "unassigned" => ShardState::Unassigned,
        "owned" => ShardState::Owned(row.id("executor")?),
        "releasing" => ShardState::Releasing { from: row.id("executor")?, since: Revision(row.unsigned("since")?) },
        other => return Err(row.corrupt("state", format!("{other:?} is no state of a shard"))),
    };
    Ok(Shard { epoch, state })
}

fn decode_executor(row: &Stored<'_>) -> Result<Executor, Error> {
    Ok(Executor {
        name: row.text("name", |text| ExecutorName::new(text))?,
        address: row.text("address", |text| Address::new(text))?,
        zone: row.row.text("zone").map_err(|what| row.corrupt("zone", what))?.map(str::to_owned),
        weight: row.integer("weight", |weight| Weight::new(u32::try_from(weight).unwrap_or(0)))?,
        lease_length: Ttl::from_ms(row.unsigned("lease_length_ms")?)
            .map_err(|what| row.corrupt("lease_length_ms", what))?,
        key_hash: row.decode("key_hash", row.row.bytes("key_hash"), |hash| {
            hash.try_into().map(LeaseKeyHash).map_err(|_| format!("{} bytes, not 32", hash.len()))
        })?,
        draining: row.flag("draining")?,
        superseded: row.flag("superseded")?,
        registered_at_ms: row.integer("registered_at_ms", Ok::<_, String>)?,
    })
}

/// Puts a state together out of the rows of one snapshot: the head, then the executors, then the shards ascending.
pub(super) struct StateReader {
    store: String,
    shard_count: ShardCount,
    /// Whether there was a head.
    stored: bool,
    rows: StateRows,
    executors: usize,
    shards: usize,
}

impl StateReader {
    /// Begins with the head's row; `store` names the store in errors.
    ///
    /// # Errors
    /// Another cluster's or shard count's head, before anything else is read: its rows are none of our business.
    pub fn new(
        store: &str,
        head: Option<&dyn Columns>,
        cluster: &ClusterName,
        shard_count: ShardCount,
    ) -> Result<Self, Error> {
        let decode = |row| decode_head(&Stored { row, place: format!("{store}, table head") });
        let head = head.map(decode).transpose()?;
        if let Some(head) = &head {
            check_head(head, cluster, shard_count)?;
        }
        let stored = head.is_some();
        let empty = || Head { cluster: cluster.clone(), shard_count, revision: Revision(0) };
        let rows = StateRows::new(head.unwrap_or_else(empty));
        Ok(Self { store: store.to_owned(), shard_count, stored, rows, executors: 0, shards: 0 })
    }

    pub fn executor(&mut self, row: &dyn Columns) -> Result<(), Error> {
        let mut row = Stored { row, place: format!("{}, table executors", self.store) };
        let id = row.id("id")?;
        row.place = format!("{}, table executors, row {id}", self.store);
        self.rows.executor(id, decode_executor(&row)?);
        self.executors += 1;
        Ok(())
    }

    pub fn shard(&mut self, row: &dyn Columns) -> Result<(), Error> {
        let mut row = Stored { row, place: format!("{}, table shards", self.store) };
        let number = row.integer("shard", Ok::<_, String>)?;
        row.place = format!("{}, table shards, row {number}", self.store);
        let shard = u32::try_from(number).ok().and_then(|number| self.shard_count.shard(number).ok());
        let shard: ShardId =
            shard.ok_or_else(|| row.corrupt("shard", format!("not below shard_count {}", self.shard_count)))?;
        let decoded = decode_shard(&row)?;
        if let Some(executor) = decoded.state.executor().filter(|executor| !self.rows.has_executor(*executor)) {
            return Err(row.corrupt("executor", format!("{executor} is not in table executors")));
        }
        self.rows.shard(shard, decoded).map_err(|broken| row.corrupt("shard", broken))?;
        self.shards += 1;
        Ok(())
    }

    pub fn finish(self) -> Result<ClusterState, Error> {
        if !self.stored && self.executors + self.shards > 0 {
            return Err(Error::Corrupt {
                place: format!("{}, table head", self.store),
                what: format!("no row, beside {} executors and {} shards", self.executors, self.shards),
            });
        }
        self.rows.finish().map_err(|broken| Error::Corrupt { place: self.store, what: broken.to_string() })
    }
}
