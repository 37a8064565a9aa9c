//! What callers were answered against one order of events, then against what the store holds.

use super::world::World;
use super::{Result, Summary};
use leasehold::testkit::history::{Ended, History, check};
use leasehold_model::AgentId;
use serde_json::Value;
use std::collections::BTreeMap;

/// Violations of one agent that are told.
const TOLD: usize = 5;

/// Judges the histories, then the store by `oplog check`, then each acknowledged append by what `oplog dump` prints.
pub fn judge(world: &World, histories: &[(AgentId, History)], summary: &mut Summary) -> Result<()> {
    for (agent, history) in histories {
        match check(history) {
            Ok(explained) => {
                summary.acknowledged += explained.acknowledged;
                summary.unknown.0 += explained.landed + explained.open;
                summary.unknown.1 += explained.landed;
                summary.reads += explained.reads;
            }
            Err(found) => {
                let told = found.iter().take(TOLD).map(|violation| format!("{agent}: {violation}"));
                summary.violations.extend(told);
                if found.len() > TOLD {
                    summary.violations.push(format!("{agent}: and {} more", found.len() - TOLD));
                }
            }
        }
    }
    let output = world.oplog(&["check", "--json"])?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("oplog check: {error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    summary.entries = report["entries"].as_u64().unwrap_or(0);
    if report["verdict"] != "proven" || !output.status.success() {
        let findings = report["findings"].as_array().into_iter().flatten().take(TOLD);
        summary.violations.push(format!("oplog check: {}, {} findings", report["verdict"], report["found"]));
        summary.violations.extend(findings.map(|finding| format!("oplog check: {finding}")));
    }
    for (agent, history) in histories {
        let positions = stored(world, agent)?;
        let wrong = wrong(history, &positions);
        summary.violations.extend(wrong.iter().take(TOLD).map(|what| format!("{agent}: {what}")));
    }
    Ok(())
}

/// Every position at which the store has an invocation with this key.
fn stored(world: &World, agent: &AgentId) -> Result<BTreeMap<String, Vec<u64>>> {
    let output = world.oplog(&["dump", agent.as_str()])?;
    if !output.status.success() {
        return Err(format!("oplog dump {agent}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut positions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut position = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let entry: Value = serde_json::from_str(line)?;
        if entry["kind"] == "invocation" {
            position += 1;
            positions.entry(entry["key"].as_str().unwrap_or_default().to_owned()).or_default().push(position);
        }
    }
    Ok(positions)
}

/// Acknowledged appends that are not in the store exactly where callers were told, and others that are there more than once.
fn wrong(history: &History, stored: &BTreeMap<String, Vec<u64>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for append in &history.appends {
        let there = stored.get(&append.token).map_or(&[][..], Vec::as_slice);
        let right = match append.ended {
            Ended::Appended { position, .. } => there == [position],
            Ended::Unknown => there.len() <= 1,
            Ended::Refused => there.is_empty(),
        };
        if !right {
            wrong.push(format!(
                "{} ended as {:?}, and the store has it at positions {there:?}",
                append.token, append.ended
            ));
        }
    }
    wrong
}
