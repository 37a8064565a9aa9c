//! Walks through all oplogs of a store, whatever its backend.

use super::report::MAX_FINDINGS;
use super::walk::{Found, Seen, Walk};
use super::{ChunkPart, Damage, Depth, Finding, Kind, Layers, Part, Reader, Report, Rule};
use crate::oplog::{EntryIndex, Error};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;

/// Names in one page.
const NAMES: u32 = 1024;
/// Entries in one page.
const ENTRIES: u32 = 512;
/// How often the walk through one oplog is begun anew, because the oplog changed its life or its file meanwhile.
const ATTEMPTS: u32 = 16;

/// What to check, and what to take for granted.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only these oplogs; none: all.
    pub only: Vec<String>,
    /// Oplogs whose epochs were cleared, each with the next index as it was then: at that index epochs may begin anew.
    pub cleared: BTreeMap<String, u64>,
}

/// Reads the whole store. `progress` is told now and then how far it is.
///
/// # Errors
/// [`Error::Unavailable`] when the store cannot be read, [`Error::Corrupt`] when it is none, [`Error::Invalid`] when `only` names an oplog
/// that is not there. Whatever is wrong with records and entries is in the report.
pub async fn check(
    layers: Layers<'_>,
    options: &Options,
    progress: &mut (dyn FnMut(&Report) + Send),
) -> Result<Report, Error> {
    let mut report = Report::default();
    let store = layers.store;
    if !options.only.is_empty() {
        for name in &options.only {
            let seen = walk(layers, name, options.cleared.get(name).copied()).await?;
            let absent = || Error::Invalid(format!("{}: there is no oplog {name:?}", store.place()));
            take(&mut report, name, seen.ok_or_else(absent)?);
            progress(&report);
        }
        return Ok(report);
    }
    for what in store.faults().await? {
        report.find(Finding { rule: Rule::Readable, agent: None, index: None, writer: None, what });
    }
    let mut after = None;
    loop {
        let names = store.names(after.as_deref(), NAMES).await?;
        let Some(last) = names.last().cloned() else { return Ok(report) };
        let walks = names.into_iter().map(|name| async move {
            let seen = walk(layers, &name, options.cleared.get(&name).copied()).await?;
            Ok::<_, Error>((name, seen))
        });
        let mut walks = stream::iter(walks).buffered(store.width().max(1));
        while let Some((name, seen)) = walks.try_next().await? {
            // Gone since its name was read: only a store that was emptied does that.
            let vanished = || Seen::broken(None, Rule::Readable, "its record went away while the store was read");
            take(&mut report, &name, seen.unwrap_or_else(vanished));
            progress(&report);
        }
        after = Some(last);
    }
}
fn take(report: &mut Report, name: &str, seen: Seen) {
    let kind = name.split_once('/').map_or(name, |(kind, _)| kind);
    report.total.add(&seen.usage);
    report.by.entry(Kind::Type(kind.to_owned())).or_default().add(&seen.usage);
    if let Some(shard) = seen.shard {
        report.by.entry(Kind::Shard(shard)).or_default().add(&seen.usage);
    }
    if seen.usage.oplogs > 0 && report.largest.as_ref().is_none_or(|(_, most)| seen.usage.bytes > *most) {
        report.largest = Some((name.to_owned(), seen.usage.bytes));
    }
    report.greatest_epoch = report.greatest_epoch.max(seen.greatest_epoch);
    if seen.unsettled {
        report.unsettled.push(name.to_owned());
    }
    if let Some(why) = seen.unread {
        report.left_unread += 1;
        if report.unread.len() < MAX_FINDINGS {
            report.unread.push((name.to_owned(), why));
        }
    }
    let untold = seen.found - seen.findings.len() as u64;
    for Found { rule, index, writer, what } in seen.findings {
        report.find(Finding { rule, agent: Some(name.to_owned()), index, writer, what });
    }
    report.found += untold;
}
/// Reads one oplog to its end. `None`: there is none.
async fn walk(layers: Layers<'_>, name: &str, cleared: Option<u64>) -> Result<Option<Seen>, Error> {
    for _ in 0..ATTEMPTS {
        let mut reader = layers.read(name, EntryIndex(1), Depth::Heads);
        let Some(first) = reader.part(ENTRIES).await? else { return Ok(None) };
        if let Some(seen) = along(layers, (name, &mut reader), first, cleared).await? {
            return Ok(Some(seen));
        }
    }
    Ok(Some(Seen { unsettled: true, ..Seen::default() }))
}

/// From its first part on. `None`: it changed its life or its file, so that its parts do not belong together.
async fn along(
    layers: Layers<'_>,
    (name, reader): (&str, &mut Reader<'_>),
    first: Part,
    cleared: Option<u64>,
) -> Result<Option<Seen>, Error> {
    let begun = first.life();
    let mut walk = Walk::new(begun.1.unwrap_or(EntryIndex(1)), cleared);
    let mut part = first;
    loop {
        let more = part.more;
        let astray = astray(layers, name, &part.chunks).await?;
        if !astray.is_empty() && life(layers, name).await? != begun {
            return Ok(None);
        }
        for (index, what) in astray {
            walk.seen.find(Rule::KeysFound, Some(index), None, what);
        }
        let record = walk.part(part);
        if more.is_none() {
            walk.end(record);
            return Ok(Some(walk.seen));
        }
        part = match reader.part(ENTRIES).await? {
            Some(part) if part.life() == begun => part,
            Some(_) | None => return Ok(None),
        };
    }
}

async fn life(layers: Layers<'_>, name: &str) -> Result<(u64, Option<EntryIndex>), Error> {
    let part = layers.read(name, EntryIndex(i64::MAX as u64), Depth::Heads).part(1).await?;
    Ok(part.map_or((0, None), |part| part.life()))
}

/// Archived entries whose idempotency keys do not lead to them any more.
async fn astray(
    layers: Layers<'_>,
    name: &str,
    chunks: &[Result<ChunkPart, Damage>],
) -> Result<Vec<(u64, String)>, Error> {
    let mut astray = Vec::new();
    for entries in chunks.iter().flatten().filter_map(|chunk| chunk.entries.as_ref().ok()) {
        let keyed = entries.iter().filter_map(|read| Some((read.entry.index, read.entry.entry.key.as_deref()?)));
        let (indexes, keys): (Vec<_>, Vec<_>) = keyed.unzip();
        if keys.is_empty() {
            continue;
        }
        let positions = layers.store.positions(name, &keys).await?;
        for ((index, key), found) in indexes.into_iter().zip(keys).zip(positions) {
            if found != Some(index) {
                let to = found.map_or_else(|| "nothing".to_owned(), |at| format!("entry {}", at.0));
                astray.push((index.0, format!("its idempotency key {key:?} leads to {to}")));
            }
        }
    }
    Ok(astray)
}
