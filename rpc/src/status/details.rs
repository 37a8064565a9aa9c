//! A refusal's evidence as text, and the refusal back from it.

use crate::bounds::MAX_DETAIL;
use leasehold_model::message::Owner;
use leasehold_model::refusal::{Credential, Mismatch};
use leasehold_model::{InvalidValue, Refusal};
use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;

/// Every detail of a refusal, by name, as it stands in `ErrorInfo.metadata` and in `application/problem+json`. Texts
/// are cut to [`MAX_DETAIL`] bytes.
#[must_use]
pub fn details(refusal: &Refusal) -> BTreeMap<&'static str, String> {
    let text = |value: &str| cut(value, MAX_DETAIL).to_owned();
    match refusal {
        Refusal::ShardingNotReady { executor } | Refusal::Draining { executor } => {
            BTreeMap::from([("executor", text(executor))])
        }
        Refusal::WrongOwner { shard, owner, revision } => {
            let mut all = BTreeMap::from([("shard", shard.to_string()), ("revision", revision.to_string())]);
            if let Some(owner) = owner {
                all.insert("owner_id", owner.executor.to_string());
                all.insert("owner", owner.name.to_string());
                all.insert("address", owner.address.to_string());
            }
            all
        }
        Refusal::HandoffInProgress { shard, why } | Refusal::ShardUnassigned { shard, why } => {
            BTreeMap::from([("shard", shard.to_string()), ("why", text(why))])
        }
        Refusal::NotLeader { leader } => leader.iter().map(|leader| ("leader", leader.to_string())).collect(),
        Refusal::LeadershipUnconfirmed { why }
        | Refusal::StoreUnavailable { why }
        | Refusal::InvocationRejected { why } => BTreeMap::from([("why", text(why))]),
        Refusal::EpochFenced { held, recorded } => {
            BTreeMap::from([("held", held.to_string()), ("recorded", recorded.to_string())])
        }
        Refusal::UnknownExecutor | Refusal::Superseded | Refusal::Unheard | Refusal::BadCredential(_) => {
            BTreeMap::new()
        }
        Refusal::PlanStale { expected, actual } => {
            BTreeMap::from([("expected", expected.to_string()), ("actual", actual.to_string())])
        }
        Refusal::Mismatch { what: _, expected, actual } => {
            BTreeMap::from([("expected", text(expected)), ("actual", text(actual))])
        }
        Refusal::Overloaded { resource, used, limit } => {
            BTreeMap::from([("resource", text(resource)), ("used", used.to_string()), ("limit", limit.to_string())])
        }
        Refusal::InvalidField(InvalidValue { field, value, accepted }) => {
            BTreeMap::from([("field", text(field)), ("value", text(value)), ("accepted", text(accepted))])
        }
        Refusal::UnknownMethod { what } => BTreeMap::from([("what", text(what))]),
        Refusal::AppUnavailable { kind, why } | Refusal::AppFault { kind, why } => {
            BTreeMap::from([("type", text(kind)), ("why", text(why))])
        }
    }
}

/// The longest prefix of at most `max` bytes that ends between characters.
pub(super) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The refusal with this reason and these details; `None` if this build does not know the reason or a detail is missing
/// or out of range.
pub(super) fn refusal(reason: &str, details: &HashMap<String, String>) -> Option<Refusal> {
    let read = Details(details);
    Some(match reason {
        "SHARDING_NOT_READY" => Refusal::ShardingNotReady { executor: read.text("executor")? },
        "WRONG_OWNER" => {
            Refusal::WrongOwner { shard: read.shard()?, owner: read.owner()?, revision: read.revision("revision")? }
        }
        "HANDOFF_IN_PROGRESS" => Refusal::HandoffInProgress { shard: read.shard()?, why: read.text("why")? },
        "SHARD_UNASSIGNED" => Refusal::ShardUnassigned { shard: read.shard()?, why: read.text("why")? },
        "DRAINING" => Refusal::Draining { executor: read.text("executor")? },
        "NOT_LEADER" => Refusal::NotLeader { leader: read.optional("leader")? },
        "LEADERSHIP_UNCONFIRMED" => Refusal::LeadershipUnconfirmed { why: read.text("why")? },
        "STORE_UNAVAILABLE" => Refusal::StoreUnavailable { why: read.text("why")? },
        "EPOCH_FENCED" => Refusal::EpochFenced { held: read.epoch("held")?, recorded: read.epoch("recorded")? },
        "UNKNOWN_EXECUTOR" => Refusal::UnknownExecutor,
        "SUPERSEDED" => Refusal::Superseded,
        "UNHEARD" => Refusal::Unheard,
        "PLAN_STALE" => Refusal::PlanStale { expected: read.revision("expected")?, actual: read.revision("actual")? },
        "SHARD_COUNT_MISMATCH" => read.mismatch(Mismatch::ShardCount)?,
        "CLUSTER_ID_MISMATCH" => read.mismatch(Mismatch::Cluster)?,
        "HASH_SCHEME_MISMATCH" => read.mismatch(Mismatch::HashScheme)?,
        "OVERLOADED" => Refusal::Overloaded {
            resource: read.text("resource")?,
            used: read.number("used")?,
            limit: read.number("limit")?,
        },
        "INVALID_FIELD" => Refusal::InvalidField(InvalidValue {
            field: read.text("field")?,
            value: read.text("value")?,
            accepted: read.text("accepted")?,
        }),
        "UNKNOWN_METHOD" => Refusal::UnknownMethod { what: read.text("what")? },
        "INVOCATION_REJECTED" => Refusal::InvocationRejected { why: read.text("why")? },
        "APP_UNAVAILABLE" => Refusal::AppUnavailable { kind: read.text("type")?, why: read.text("why")? },
        "APP_FAULT" => Refusal::AppFault { kind: read.text("type")?, why: read.text("why")? },
        "BAD_JOIN_TOKEN" => Refusal::BadCredential(Credential::JoinToken),
        "BAD_LEASE_KEY" => Refusal::BadCredential(Credential::LeaseKey),
        "BAD_ADMIN_TOKEN" => Refusal::BadCredential(Credential::AdminToken),
        _ => return None,
    })
}

/// Reads details. Each method yields `None` when the refusal cannot be put together from them.
struct Details<'a>(&'a HashMap<String, String>);

impl Details<'_> {
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.0.get(name)?.parse().ok()
    }

    /// `Some(None)` when it is absent, `None` when it is malformed.
    fn optional<T: FromStr>(&self, name: &str) -> Option<Option<T>> {
        self.0.get(name).map(|value| value.parse().ok()).map_or(Some(None), |value: Option<T>| value.map(Some))
    }

    fn shard(&self) -> Option<leasehold_model::ShardId> {
        self.number("shard").map(leasehold_model::ShardId)
    }

    fn revision(&self, name: &str) -> Option<leasehold_model::Revision> {
        leasehold_model::Revision::new(self.number(name)?).ok()
    }

    fn epoch(&self, name: &str) -> Option<leasehold_model::ShardEpoch> {
        leasehold_model::ShardEpoch::new(self.number(name)?).ok()
    }

    fn owner(&self) -> Option<Option<Owner>> {
        let Some(executor) = self.optional("owner_id")? else { return Some(None) };
        Some(Some(Owner { executor, name: self.number("owner")?, address: self.number("address")? }))
    }

    fn mismatch(&self, what: Mismatch) -> Option<Refusal> {
        Some(Refusal::Mismatch { what, expected: self.text("expected")?, actual: self.text("actual")? })
    }
}
