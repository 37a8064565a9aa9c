//! `oplog dump`: an agent's entries, as they are.

use super::{Opened, check};
use crate::cli::{Exit, Failure, say};
use leasehold_actors::executor::oplog_entry::Body;
use leasehold_model::AgentId;
use leasehold_persistence::oplog::audit::{ChunkPart, Damage, Depth, Part, Read, Unread};
use leasehold_persistence::oplog::{EntryIndex, EntryKind};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::io::{self, Write as _};

/// Entries in one page: each may have a MiB.
const PAGE: u32 = 64;

/// Arguments of `oplog dump`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DumpArgs {
    /// The agent, as `type/id`
    agent: AgentId,
    /// The first index
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from: u64,
    /// At most so many entries [default: all]
    #[arg(long)]
    limit: Option<u64>,
}

/// Runs `oplog dump`.
///
/// # Errors
/// As the store's; 1 when the agent has no oplog, 75 when it is deleted meanwhile. Entries that cannot be read are shown as that,
/// and the exit code is 1.
pub(super) async fn run(args: DumpArgs, opened: &Opened) -> Result<Exit, Failure> {
    let DumpArgs { agent, from, limit } = args;
    check::exists(opened, agent.as_str()).await?;
    let (mut left, mut life) = (limit.unwrap_or(u64::MAX), None);
    let mut reader = opened.layers().read(agent.as_str(), EntryIndex(from), Depth::Bodies);
    let mut exit = Exit::Fine;
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
        let part = reader.part(limit).await.map_err(|error| opened.failed(&error))?;
        let Some(part) = part.filter(|part| life.is_none_or(|life| life == part.life())) else {
            let why = format!("{}: {agent} was deleted, or its store replaced, while it was dumped", opened.named);
            return Err(Failure::new(Exit::TryAgain, why));
        };
        life = Some(part.life());
        if let Err(Damage { what, .. }) = &part.record {
            exit = Exit::Failed;
            drop(writeln!(io::stderr(), "the record of {agent} cannot be read: {what}"));
        }
        let last = part.more.is_none();
        for read in lines(part).take(usize::try_from(left).unwrap_or(usize::MAX)) {
            if read.is_err() {
                exit = Exit::Failed;
            }
            say(&line(read).to_string())?;
            left -= 1;
        }
        if last {
            break;
        }
    }
    Ok(exit)
}

/// Entries of either layer, and what cannot be read of them.
fn lines(part: Part) -> impl Iterator<Item = Result<Read, Damage>> {
    let archived = part.chunks.into_iter().flat_map(|chunk| match chunk {
        Ok(ChunkPart { entries: Ok(entries), .. }) => entries.into_iter().map(Ok).collect(),
        Ok(ChunkPart { first, entries: Err(Unread::Damaged(what) | Unread::Away(what)), .. }) => {
            vec![Err(Damage { index: Some(first.0), what })]
        }
        Err(damage) => vec![Err(damage)],
    });
    archived.chain(part.seam.map(Err)).chain(part.entries)
}

fn line(read: Result<Read, Damage>) -> Value {
    let Read { entry, size } = match read {
        Ok(read) => read,
        Err(Damage { index, what }) => return json!({ "index": index, "damage": what }),
    };
    let kind = match entry.entry.kind {
        EntryKind::Invocation => "invocation",
        EntryKind::Snapshot => "snapshot",
    };
    let mut told = Map::new();
    told.insert("index".into(), json!(entry.index.0));
    told.insert("epoch".into(), json!(entry.writer.epoch.get()));
    told.insert("executor".into(), json!(entry.writer.executor.to_string()));
    told.insert("kind".into(), json!(kind));
    told.insert("key".into(), json!(entry.entry.key));
    told.insert("size".into(), json!(size));
    match Body::decode(entry.entry.kind, &entry.entry.body) {
        Ok(Body::Invocation(invoked)) => {
            told.insert("method".into(), json!(invoked.method));
            told.insert("answer".into(), text(&invoked.answer));
            told.insert("events".into(), Value::Array(invoked.events));
        }
        Ok(Body::Snapshot(state)) => drop(told.insert("state".into(), text(&state))),
        // Of a newer build, or of a service that writes entries of its own.
        Err(error) => {
            told.insert("undecoded".into(), json!(error.to_string()));
            told.insert("body_hex".into(), json!(hex(&entry.entry.body)));
        }
    }
    Value::Object(told)
}

/// JSON as JSON, other bytes in hexadecimal.
fn text(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| json!({ "hex": hex(bytes) }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_actors::executor::oplog_entry::{EntryId, Invoked};
    use leasehold_model::{ExecutorId, ShardEpoch};
    use leasehold_persistence::oplog::{Entry, NewEntry, Writer};

    fn shown(kind: EntryKind, body: Vec<u8>) -> Value {
        let writer = Writer { epoch: ShardEpoch::owned(7).unwrap(), executor: ExecutorId::from_u128(1) };
        let size = body.len() as u64;
        let entry = Entry { index: EntryIndex(3), writer, entry: NewEntry { kind, key: Some("k".into()), body } };
        line(Ok(Read { entry, size }))
    }

    #[test]
    fn an_entry_is_shown_with_what_it_says_and_bytes_that_say_nothing_in_hexadecimal() {
        let invoked =
            Invoked { method: "increment".into(), answer: br#"{"value":1}"#.to_vec(), events: vec![json!({"by": 1})] };
        let told = shown(EntryKind::Invocation, Body::Invocation(invoked).encode(EntryId([0; 16])));
        assert_eq!((&told["index"], &told["epoch"], &told["key"]), (&json!(3), &json!(7), &json!("k")));
        assert_eq!((&told["answer"]["value"], &told["events"][0]["by"]), (&json!(1), &json!(1)));
        let told = shown(EntryKind::Snapshot, Body::Snapshot(vec![0xff, 0x0a]).encode(EntryId([0; 16])));
        assert_eq!(told["state"]["hex"], "ff0a");
        let told = shown(EntryKind::Invocation, vec![9, 9]);
        assert_eq!(told["body_hex"], "0909");
        assert!(told["undecoded"].as_str().unwrap().contains("newer"), "{told}");
        assert_eq!(
            line(Err(Damage { index: Some(2), what: "kind 9".into() })),
            json!({"index": 2, "damage": "kind 9"})
        );
    }
}
