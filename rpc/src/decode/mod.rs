//! Wire to model. Total: whatever bytes arrived, the outcome is a value or an [`InvalidValue`] that names the field as
//! the sender knows it (`claim.shards[3].epoch`); never a panic, and nothing is taken for granted (R8).

mod agent;
mod cluster;
mod lease;

pub(crate) use agent::{agent_page, agent_query, answer, deletion, deletion_answer, inspection, invocation};
pub(crate) use cluster::{draining, explanation, routing_table, shard, status};
pub(crate) use lease::{deregistration, grant, push, push_answer, registration, renewal};

use crate::bounds::MAX_LIST;
use crate::wire;
use leasehold_model::message::{Condition, Owner};
use leasehold_model::set::Holdings;
use leasehold_model::{Address, ExecutorId, ExecutorName, InvalidValue, Revision, ShardCount, ShardEpoch, ShardId};

/// A decoded value, or which field was wrong.
pub(crate) type Decoded<T> = Result<T, InvalidValue>;

/// Puts what lies around a field before its name.
trait Path<T> {
    /// The error's field becomes `prefix.field`.
    fn within(self, prefix: &str) -> Decoded<T>;
    /// The error's field becomes `field`.
    fn called(self, field: &str) -> Decoded<T>;
}

impl<T> Path<T> for Decoded<T> {
    fn within(self, prefix: &str) -> Self {
        self.map_err(|invalid| invalid.within(prefix))
    }

    fn called(self, field: &str) -> Self {
        self.map_err(|invalid| InvalidValue { field: field.to_owned(), ..invalid })
    }
}

fn required<T>(field: &str, value: Option<T>) -> Decoded<T> {
    value.ok_or_else(|| InvalidValue::new(field, "absent", "a value"))
}

/// `1..=max` bytes of text.
fn text(field: &str, value: String, max: usize) -> Decoded<String> {
    if (1..=max).contains(&value.len()) {
        Ok(value)
    } else {
        Err(InvalidValue::new(field, value, format!("1 to {max} bytes")))
    }
}

fn at_most(field: &str, len: usize, max: usize) -> Decoded<()> {
    if len <= max { Ok(()) } else { Err(InvalidValue::new(field, format!("{len} entries"), format!("at most {max}"))) }
}

/// Milliseconds that are only shown or compared, never a lease: `0..=2^63-1`.
fn millis(field: &str, ms: u64) -> Decoded<u64> {
    if i64::try_from(ms).is_ok() { Ok(ms) } else { Err(InvalidValue::new(field, ms, "0..=9223372036854775807 ms")) }
}

fn executor_id(bytes: &[u8]) -> Decoded<ExecutorId> {
    ExecutorId::from_slice("executor_id", bytes)
}

fn bytes32(field: &str, bytes: &[u8]) -> Decoded<[u8; 32]> {
    bytes.try_into().map_err(|_| InvalidValue::new(field, format!("{} bytes", bytes.len()), "32 bytes"))
}

/// A revision of something committed: `1..=2^63-1` (S4).
fn committed(revision: u64) -> Decoded<Revision> {
    match Revision::new(revision)? {
        Revision(0) => Err(InvalidValue::new("revision", 0, "1..=9223372036854775807")),
        revision => Ok(revision),
    }
}

/// Shards and their epochs in two equally long lists; each shard below `count` and once, each epoch `1..=2^63-1`.
fn pairs(shards: &[u32], epochs: &[u64], count: u32) -> Decoded<Vec<(ShardId, ShardEpoch)>> {
    at_most("shards", shards.len(), MAX_LIST)?;
    if shards.len() != epochs.len() {
        return Err(InvalidValue::new(
            "epochs",
            format!("{} entries", epochs.len()),
            format!("{}, one per shard", shards.len()),
        ));
    }
    let mut list = Vec::with_capacity(shards.len());
    for (at, (shard, epoch)) in shards.iter().zip(epochs).enumerate() {
        if *shard >= count {
            return Err(InvalidValue::new(format!("shards[{at}].shard"), shard, format!("0..{count}")));
        }
        let epoch = ShardEpoch::owned(*epoch).map_err(|invalid| invalid.within(&format!("shards[{at}]")))?;
        list.push((ShardId(*shard), epoch));
    }
    Ok(list)
}

fn holdings(shards: &[u32], epochs: &[u64], count: u32) -> Decoded<Holdings> {
    Holdings::new(pairs(shards, epochs, count)?)
}

/// A shard of a cluster whose shard count is not known here.
fn any_shard(shard: u32) -> Decoded<ShardId> {
    if shard < ShardCount::MAX { Ok(ShardId(shard)) } else { Err(InvalidValue::new("shard", shard, "0..65536")) }
}

fn condition(wire: Option<wire::Condition>) -> Decoded<Condition> {
    let wire = wire.unwrap_or_default();
    let oldest_running_ms = millis("condition.oldest_running_ms", wire.oldest_running_ms)?;
    let oplog_failing_ms = millis("condition.oplog_failing_ms", wire.oplog_failing_ms)?;
    Ok(Condition { agents: wire.agents, running: wire.running, oldest_running_ms, oplog_failing_ms })
}

fn owner(wire: wire::Owner) -> Decoded<Owner> {
    let executor = executor_id(&wire.executor_id)?;
    Ok(Owner { executor, name: ExecutorName::new(wire.name)?, address: Address::new(wire.address)? })
}

fn zone(zone: Option<String>) -> Decoded<Option<String>> {
    zone.map(|zone| text("zone", zone, crate::bounds::MAX_ZONE)).transpose()
}
