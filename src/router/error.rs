//! Why a routed call did not end well, and what was tried.

use super::policy::Outcome;
use leasehold_model::message::Owner;
use leasehold_model::refusal::Class;
use leasehold_model::{Address, AgentId, CallError, Refusal, ShardId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The most owners told apart in one [`Attempts`]; further ones are counted together.
pub const MAX_OWNERS_LISTED: usize = 16;

/// The most characters quoted of what was heard last.
const HEARD_MOST: usize = 400;

/// What one owner answered to one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// The executor's name; `None` where no owner was known, or for owners beyond the first [`MAX_OWNERS_LISTED`].
    pub executor: Option<String>,
    /// Where it was dialled.
    pub address: Option<Address>,
    /// How often it was asked.
    pub times: u32,
    /// How often it answered what, by reason (`SHARDING_NOT_READY`, `TIMED_OUT`, `UNREACHABLE`, …).
    pub answers: BTreeMap<&'static str, u32>,
}

/// Every attempt of one call, in the order in which the owners were first asked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Attempts {
    /// By owner.
    pub tried: Vec<Tried>,
    /// Whether one of them may have run the call.
    pub may_have_run: bool,
    /// The last refusal, whose advice is the freshest.
    #[serde(skip)]
    pub last_refusal: Option<Refusal>,
    /// The last attempt that ended with words, and not in silence: its reason and what was said.
    #[serde(skip)]
    pub last_heard: Option<(&'static str, String)>,
}

impl Attempts {
    /// How many tries there were.
    #[must_use]
    pub fn times(&self) -> u32 {
        self.tried.iter().map(|tried| tried.times).sum()
    }

    pub(super) fn note(&mut self, owner: Option<&Owner>, outcome: &Outcome) {
        self.may_have_run |= outcome.may_have_run();
        if let Outcome::Refused(refusal) = outcome {
            self.last_refusal = Some(refusal.clone());
        }
        if let Some(words) = outcome.words() {
            self.last_heard = Some((outcome.reason(), words.chars().take(HEARD_MOST).collect()));
        }
        let tried = self.entry(owner);
        tried.times = tried.times.saturating_add(1);
        let times = tried.answers.entry(outcome.reason()).or_default();
        *times = times.saturating_add(1);
    }

    /// What was heard last, to be put into a sentence: the list of reasons alone does not say what is wrong.
    fn quoted(&self) -> String {
        let quoted = self.last_heard.as_ref();
        quoted.map(|(reason, words)| format!(" (last heard: {reason}, {words})")).unwrap_or_default()
    }

    fn entry(&mut self, owner: Option<&Owner>) -> &mut Tried {
        let listed = owner.filter(|owner| {
            self.tried.len() < MAX_OWNERS_LISTED
                || self.tried.iter().any(|tried| tried.address.as_ref() == Some(&owner.address))
        });
        let (executor, address) =
            (listed.map(|owner| owner.name.to_string()), listed.map(|owner| owner.address.clone()));
        let known = self.tried.iter().position(|tried| tried.executor == executor && tried.address == address);
        let at = known.unwrap_or_else(|| {
            self.tried.push(Tried { executor, address, times: 0, answers: BTreeMap::new() });
            self.tried.len() - 1
        });
        &mut self.tried[at]
    }
}

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried.is_empty() {
            return f.write_str("nobody was asked");
        }
        for (at, tried) in self.tried.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            match (&tried.executor, &tried.address) {
                (Some(executor), Some(address)) => write!(f, "{separator}{executor} at {address}")?,
                _ => write!(f, "{separator}no owner")?,
            }
            write!(f, " x{}", tried.times)?;
            for (at, (reason, times)) in tried.answers.iter().enumerate() {
                write!(f, "{}{reason} {times}", if at == 0 { " (" } else { ", " })?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// Why [`super::Router::call`] did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// The call was refused for good: repeating it would change nothing.
    #[error("{refusal}")]
    Refused {
        /// By whom and why.
        refusal: Refusal,
        /// What was tried before, this refusal included.
        attempts: Attempts,
    },
    /// The caller's deadline passed.
    #[error("no answer from {agent} within {}{}: {attempts}", humantime::format_duration(*within), attempts.quoted())]
    DeadlineExceeded {
        /// Who was called.
        agent: AgentId,
        /// Its shard, if a table was known.
        shard: Option<ShardId>,
        /// The time that the caller gave.
        within: Duration,
        /// What was tried.
        attempts: Attempts,
    },
}

impl RouterError {
    /// What a caller should do.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Refused { refusal, .. } => refusal.class(),
            Self::DeadlineExceeded { .. } => Class::Retry,
        }
    }

    /// The machine-readable reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Refused { refusal, .. } => refusal.reason(),
            Self::DeadlineExceeded { .. } => "DEADLINE_EXCEEDED",
        }
    }

    /// What was tried.
    #[must_use]
    pub const fn attempts(&self) -> &Attempts {
        match self {
            Self::Refused { attempts, .. } | Self::DeadlineExceeded { attempts, .. } => attempts,
        }
    }
}

/// For services that speak [`CallError`]: a deadline under which nothing can have run becomes the last refusal, or says that
/// the shard has no owner; otherwise the outcome is unknown.
impl From<RouterError> for CallError {
    fn from(error: RouterError) -> Self {
        let text = error.to_string();
        match error {
            RouterError::Refused { refusal, .. } => Self::Refused(refusal),
            RouterError::DeadlineExceeded { attempts, .. } if attempts.may_have_run => Self::Unknown(text),
            RouterError::DeadlineExceeded { attempts: Attempts { last_refusal: Some(refusal), .. }, .. } => {
                Self::Refused(refusal)
            }
            RouterError::DeadlineExceeded { shard: Some(shard), .. } => {
                Self::Refused(Refusal::ShardUnassigned { shard, why: text })
            }
            RouterError::DeadlineExceeded { shard: None, .. } => Self::Unreachable(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_model::{ExecutorId, ExecutorName};

    fn owner(number: usize) -> Owner {
        Owner {
            executor: ExecutorId::from_u128(1),
            name: ExecutorName::new(format!("e{number}")).unwrap(),
            address: Address::new(format!("host:{}", number + 1)).unwrap(),
        }
    }

    fn deadline(attempts: Attempts, shard: Option<ShardId>) -> RouterError {
        let agent = AgentId::new("counter/a").unwrap();
        RouterError::DeadlineExceeded { agent, shard, within: Duration::from_secs(5), attempts }
    }

    #[test]
    fn the_list_says_who_was_tried_how_often_and_what_each_answered() {
        let mut attempts = Attempts::default();
        attempts.note(Some(&owner(1)), &Outcome::TimedOut);
        attempts.note(None, &Outcome::NoOwner);
        attempts.note(Some(&owner(1)), &Outcome::Refused(Refusal::Draining { executor: "e1".into() }));
        attempts.note(Some(&owner(1)), &Outcome::TimedOut);
        assert_eq!(
            deadline(attempts, None).to_string(),
            "no answer from counter/a within 5s (last heard: DRAINING, executor e1 is draining): e1 at host:2 x3 \
             (DRAINING 1, TIMED_OUT 2); no owner x1 (NO_OWNER 1)"
        );
    }

    #[test]
    fn what_was_heard_last_is_quoted_however_many_tries_timed_out_after_it() {
        let mut attempts = Attempts::default();
        attempts.note(Some(&owner(1)), &Outcome::TimedOut);
        let silent = deadline(attempts.clone(), None).to_string();
        assert_eq!(silent, "no answer from counter/a within 5s: e1 at host:2 x1 (TIMED_OUT 1)");
        let full = "gen-000001.db: error returned from database: (code: 13) database or disk is full";
        attempts.note(Some(&owner(1)), &Outcome::Refused(Refusal::StoreUnavailable { why: full.into() }));
        attempts.note(Some(&owner(1)), &Outcome::TimedOut);
        let said = deadline(attempts.clone(), None).to_string();
        let quoted = format!("(last heard: STORE_UNAVAILABLE, the store is unavailable: {full})");
        assert!(said.contains(&quoted), "{said}");
        let grpc = CallError::from(deadline(attempts.clone(), None)).to_string();
        assert!(grpc.contains(&quoted), "{grpc}");
        attempts.note(Some(&owner(1)), &Outcome::Unknown("the entry may or may not be stored".into()));
        let said = deadline(attempts.clone(), None).to_string();
        assert!(said.contains("(last heard: OUTCOME_UNKNOWN, the entry may"), "{said}");
        attempts.note(Some(&owner(1)), &Outcome::Unreachable("x".repeat(5000)));
        assert!(deadline(attempts, None).to_string().len() < 1000, "the list after it is not pushed out of an answer");
    }

    #[test]
    fn a_call_that_was_chased_around_keeps_a_short_list() {
        let mut attempts = Attempts::default();
        for number in 0..100 {
            attempts.note(Some(&owner(number)), &Outcome::Unreachable(String::new()));
        }
        assert_eq!(attempts.tried.len(), MAX_OWNERS_LISTED + 1);
        assert_eq!(attempts.times(), 100);
        assert!(!attempts.may_have_run);
    }

    #[test]
    fn a_deadline_says_unknown_only_if_the_call_may_have_run() {
        let refusal = Refusal::Draining { executor: "e1".into() };
        let refused = || {
            let mut attempts = Attempts::default();
            attempts.note(Some(&owner(1)), &Outcome::Refused(refusal.clone()));
            attempts
        };
        assert_eq!(CallError::from(deadline(refused(), Some(ShardId(1)))), CallError::Refused(refusal.clone()));
        let mut unsure = refused();
        unsure.note(Some(&owner(1)), &Outcome::TimedOut);
        assert!(matches!(CallError::from(deadline(unsure, Some(ShardId(1)))), CallError::Unknown(_)));
        assert!(matches!(CallError::from(deadline(Attempts::default(), None)), CallError::Unreachable(_)));
        assert!(matches!(
            CallError::from(deadline(Attempts::default(), Some(ShardId(1)))),
            CallError::Refused(Refusal::ShardUnassigned { .. })
        ));
    }
}
