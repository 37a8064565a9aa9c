//! Histories of callers, and whether there is one order of events that explains them (linearizability).
//!
//! The object is a register that only grows: [`Append`] puts a token at its end and is answered with the position, from 1; [`Read`] is
//! answered with the length. A counter that is incremented by one is such a register (its new value is the position), and so is an
//! oplog. [`Contents`] is what callers read when all was over: which tokens are in it, and how often.
//!
//! An append whose outcome is unknown may have taken effect at any time after it was called, or never. The verdict is exact, in
//! `n log n`: positions fix the order of what was answered; each position that nobody was answered must be an unknown append's,
//! and of these the earliest called goes to the first such position, because what a position demands of its append (to have been
//! called before everything later was answered) gets weaker from position to position.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How an append ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was answered at this time with this position.
    Appended {
        /// When.
        at: Duration,
        /// Where its token stands, from 1.
        position: u64,
    },
    /// Surely nothing was done.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// One call that appends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// What it appends; no other call of the history has it.
    pub token: String,
    /// When it was called, on the clock of all callers.
    pub called: Duration,
    /// How it ended.
    pub ended: Ended,
}

/// One call that reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// When it was called.
    pub called: Duration,
    /// When it was answered.
    pub answered: Duration,
    /// How many tokens there were.
    pub length: u64,
}

/// What was there in the end, read by a caller when no call was under way any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// How many tokens.
    pub length: u64,
    /// How often each token that anybody appended is in it.
    pub times: BTreeMap<String, u64>,
}

/// All calls of one register.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Those that append, in any order.
    pub appends: Vec<Append>,
    /// Those that read, in any order.
    pub reads: Vec<Read>,
    /// What was there in the end, if it was read.
    pub contents: Option<Contents>,
}

/// Why no order of events explains a history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// It was answered with a position, and is not there in the end.
    Lost {
        /// Whose.
        token: String,
    },
    /// It is there more than once.
    Doubled {
        /// Whose.
        token: String,
        /// How often.
        times: u64,
    },
    /// It is there although it was refused.
    RefusedYetThere {
        /// Whose.
        token: String,
    },
    /// Two were answered with one position.
    OnePosition {
        /// The position.
        position: u64,
        /// The one.
        one: String,
        /// The other.
        other: String,
    },
    /// A position that no call explains: none that was answered with it, none of unknown outcome.
    FromNowhere {
        /// The position.
        position: u64,
    },
    /// Fewer tokens are there than were answered for.
    Shorter {
        /// How many are there.
        length: u64,
        /// The greatest position that was answered, length that was read, or number of tokens that were found there.
        seen: u64,
    },
    /// What was answered first is of a later state than what was called after that.
    OutOfOrder {
        /// What must come first, by its position.
        first: String,
        /// What was over before that was called.
        then: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { token } => write!(f, "lost: {token} was acknowledged and is not there"),
            Self::Doubled { token, times } => write!(f, "doubled: {token} is there {times} times"),
            Self::RefusedYetThere { token } => write!(f, "{token} was refused and is there"),
            Self::OnePosition { position, one, other } => {
                write!(f, "{one} and {other} were both answered with position {position}")
            }
            Self::FromNowhere { position } => write!(f, "nobody's call explains position {position}"),
            Self::Shorter { length, seen } => write!(f, "{length} tokens are there, {seen} were seen before"),
            Self::OutOfOrder { first, then } => {
                write!(f, "{first} stands before {then}, which was over before that was called")
            }
        }
    }
}

/// Counts of a history that is explained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Explained {
    /// Appends that were acknowledged.
    pub acknowledged: u64,
    /// Appends of unknown outcome that took effect, at least.
    pub landed: u64,
    /// Other appends of unknown outcome.
    pub open: u64,
    /// Reads.
    pub reads: u64,
}

/// Looks for an order of events in which each call took effect between its calling and its answer.
///
/// # Errors
/// Why there is none.
pub fn check(history: &History) -> Result<Explained, Vec<Violation>> {
    let mut violations = Vec::new();
    let placed = placed(history, &mut violations);
    let seen = placed.keys().last().copied().unwrap_or(0);
    let seen = history.reads.iter().map(|read| read.length).fold(seen, u64::max);
    let length = history.contents.as_ref().map_or(seen, |contents| contents.length);
    if length < seen {
        violations.push(Violation::Shorter { length, seen });
    }
    let there: u64 = history.contents.iter().flat_map(|contents| contents.times.values()).sum();
    if there > length {
        violations.push(Violation::Shorter { length, seen: there });
    }
    let unknown = landed(history, &mut violations);
    let missing: Vec<u64> = (1..=length.max(seen)).filter(|position| !placed.contains_key(position)).collect();
    let landed = missing.len().min(unknown.len());
    violations.extend(missing.iter().skip(landed).map(|position| Violation::FromNowhere { position: *position }));
    let mut steps: Vec<Step<'_>> = placed
        .into_iter()
        .map(|(position, (append, at))| Step {
            key: (position, 0),
            called: append.called,
            ended: at,
            of: Of::Append(append),
        })
        .collect();
    steps.extend(missing.iter().zip(&unknown).map(|(position, append)| Step {
        key: (*position, 0),
        called: append.called,
        ended: Duration::MAX,
        of: Of::Append(append),
    }));
    steps.extend(history.reads.iter().map(|read| Step {
        key: (read.length, 1),
        called: read.called,
        ended: read.answered,
        of: Of::Read(read),
    }));
    violations.extend(in_order(steps));
    if violations.is_empty() {
        let all = history.appends.iter().filter(|append| append.ended == Ended::Unknown).count();
        let acknowledged =
            history.appends.iter().filter(|append| matches!(append.ended, Ended::Appended { .. })).count();
        return Ok(Explained {
            acknowledged: acknowledged as u64,
            landed: landed as u64,
            open: (all - landed) as u64,
            reads: history.reads.len() as u64,
        });
    }
    violations.sort();
    violations.dedup();
    Err(violations)
}

type Placed<'a> = BTreeMap<u64, (&'a Append, Duration)>;

/// The acknowledged appends by position.
fn placed<'a>(history: &'a History, violations: &mut Vec<Violation>) -> Placed<'a> {
    let mut placed: Placed<'a> = BTreeMap::new();
    for append in &history.appends {
        let Ended::Appended { at, position } = append.ended else { continue };
        if let Some((other, _)) = placed.insert(position, (append, at)) {
            let (one, other) = (other.token.clone(), append.token.clone());
            violations.push(Violation::OnePosition { position, one, other });
        }
        if position == 0 {
            violations.push(Violation::FromNowhere { position });
        }
    }
    placed
}

/// The unknown appends that may have taken effect, the earliest called first: those that are there in the end, if that was read.
fn landed<'a>(history: &'a History, violations: &mut Vec<Violation>) -> Vec<&'a Append> {
    let times = |token: &String| Some(history.contents.as_ref()?.times.get(token).copied().unwrap_or(0));
    let mut landed = Vec::new();
    for append in &history.appends {
        let (token, times) = (append.token.clone(), times(&append.token));
        match (append.ended, times) {
            (_, Some(times @ 2..)) => violations.push(Violation::Doubled { token, times }),
            (Ended::Appended { .. }, Some(0)) => violations.push(Violation::Lost { token }),
            (Ended::Refused, Some(1)) => violations.push(Violation::RefusedYetThere { token }),
            (Ended::Unknown, None | Some(1)) => landed.push(append),
            (Ended::Unknown, Some(0)) | (Ended::Appended { .. } | Ended::Refused, None | Some(_)) => {}
        }
    }
    landed.sort_by_key(|append| append.called);
    landed
}

/// A call with its place in the order.
struct Step<'a> {
    /// Reads come after the append that made their length.
    key: (u64, u8),
    called: Duration,
    ended: Duration,
    of: Of<'a>,
}

enum Of<'a> {
    Append(&'a Append),
    Read(&'a Read),
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Of::Append(append) => write!(f, "{} at position {}", append.token, self.key.0),
            Of::Read(read) => write!(f, "a read of {} tokens at {:?}", read.length, read.called),
        }
    }
}

/// Every step that was over before one was called that must come before it. Steps of one key are reads of one state, in any order.
fn in_order(mut steps: Vec<Step<'_>>) -> BTreeSet<Violation> {
    steps.sort_by_key(|step| step.key);
    let mut violations = BTreeSet::new();
    let (mut latest, mut pending): (Option<usize>, Option<usize>) = (None, None);
    for at in 0..steps.len() {
        if at > 0 && steps[at].key != steps[at - 1].key {
            latest = pending;
        }
        if let Some(first) = latest.filter(|first| steps[at].ended < steps[*first].called) {
            let (first, then) = (steps[first].to_string(), steps[at].to_string());
            violations.insert(Violation::OutOfOrder { first, then });
        }
        if pending.is_none_or(|pending| steps[pending].called < steps[at].called) {
            pending = Some(at);
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::{Arbitrary, Gen, quickcheck};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn append(token: &str, called: u64, ended: Ended) -> Append {
        Append { token: token.into(), called: ms(called), ended }
    }

    fn at(at: u64, position: u64) -> Ended {
        Ended::Appended { at: ms(at), position }
    }

    fn read(called: u64, answered: u64, length: u64) -> Read {
        Read { called: ms(called), answered: ms(answered), length }
    }

    fn contents(tokens: &[(&str, u64)]) -> Option<Contents> {
        let times: BTreeMap<_, _> = tokens.iter().map(|(token, times)| ((*token).to_owned(), *times)).collect();
        Some(Contents { length: times.values().sum(), times })
    }

    type Kinds = Vec<&'static str>;

    fn verdict(appends: Vec<Append>, reads: Vec<Read>, contents: Option<Contents>) -> Kinds {
        let history = History { appends, reads, contents };
        check(&history).err().unwrap_or_default().iter().map(kind).collect()
    }

    fn kind(violation: &Violation) -> &'static str {
        match violation {
            Violation::Lost { .. } => "lost",
            Violation::Doubled { .. } => "doubled",
            Violation::RefusedYetThere { .. } => "refused",
            Violation::OnePosition { .. } => "one position",
            Violation::FromNowhere { .. } => "nowhere",
            Violation::Shorter { .. } => "shorter",
            Violation::OutOfOrder { .. } => "order",
        }
    }

    #[test]
    fn known_histories_get_the_verdicts_that_they_deserve() {
        use Ended::{Refused, Unknown};
        let good: Kinds = vec![];
        let two = || vec![append("a", 0, at(10, 1)), append("b", 20, at(30, 2))];
        assert_eq!(verdict(vec![], vec![], None), good);
        assert_eq!(verdict(two(), vec![read(12, 18, 1), read(25, 28, 1), read(25, 28, 2)], None), good);
        assert_eq!(verdict(two(), vec![], contents(&[("a", 1), ("b", 1)])), good);
        // Concurrent appends may stand in either order, also such that touch.
        assert_eq!(verdict(vec![append("a", 0, at(10, 2)), append("b", 10, at(30, 1))], vec![], None), good);
        assert_eq!(verdict(vec![append("a", 0, at(10, 2)), append("b", 11, at(30, 1))], vec![], None), ["order"]);
        // What a stale owner answers: a state from before an append that was acknowledged before the read was called.
        assert_eq!(verdict(two(), vec![read(31, 40, 1)], None), ["order"]);
        assert_eq!(verdict(two(), vec![read(0, 19, 2)], None), ["order"]);
        assert_eq!(verdict(two(), vec![read(31, 40, 3)], None), ["nowhere"]);
        // Two owners at once.
        assert_eq!(
            verdict(vec![append("a", 0, at(10, 1)), append("b", 20, at(30, 1))], vec![], None),
            ["one position"]
        );
        // An acknowledged one that a later one overwrote.
        assert_eq!(verdict(two(), vec![], contents(&[("b", 1)])), ["lost", "shorter"]);
        assert_eq!(verdict(two(), vec![], contents(&[("a", 1), ("b", 2)])), ["doubled", "nowhere"]);
        // Unknown: never, once, late; not twice, and not before it was called.
        let and = |unknown: Append| [two(), vec![unknown]].concat();
        assert_eq!(verdict(and(append("u", 5, Unknown)), vec![], None), good);
        assert_eq!(verdict(and(append("u", 5, Unknown)), vec![], contents(&[("a", 1), ("b", 1), ("u", 1)])), good);
        let with_gap = |unknown: Append| vec![append("a", 0, at(10, 1)), append("b", 20, at(30, 3)), unknown];
        assert_eq!(verdict(with_gap(append("u", 30, Unknown)), vec![], None), good);
        assert_eq!(verdict(with_gap(append("u", 31, Unknown)), vec![], None), ["order"]);
        assert_eq!(verdict(with_gap(append("u", 5, Refused)), vec![], None), ["nowhere"]);
        let there = contents(&[("a", 1), ("b", 1), ("u", 1)]);
        assert_eq!(verdict(with_gap(append("u", 5, Refused)), vec![], there), ["refused", "nowhere"]);
        let absent = Some(Contents { length: 3, times: BTreeMap::from([("a".into(), 1), ("b".into(), 1)]) });
        assert_eq!(verdict(with_gap(append("u", 5, Unknown)), vec![], absent), ["nowhere"]);
        let more =
            Some(Contents { length: 2, times: BTreeMap::from([("a".into(), 1), ("b".into(), 1), ("u".into(), 1)]) });
        assert_eq!(verdict(and(append("u", 5, Unknown)), vec![], more), ["shorter"]);
    }

    /// A few calls with any answers whatever.
    #[derive(Debug, Clone)]
    struct Any(History);

    impl Arbitrary for Any {
        fn arbitrary(g: &mut Gen) -> Self {
            let pick = |g: &mut Gen, below: u64| u64::arbitrary(g) % below;
            let mut history = History::default();
            for call in 0..pick(g, 5) {
                let called = pick(g, 8);
                let ended = match pick(g, 5) {
                    0 => Ended::Unknown,
                    1 if pick(g, 2) == 0 => Ended::Refused,
                    _ => at(called + pick(g, 6), 1 + pick(g, 4)),
                };
                history.appends.push(append(&call.to_string(), called, ended));
            }
            for _ in 0..pick(g, 3) {
                let called = pick(g, 10);
                history.reads.push(read(called, called + pick(g, 6), pick(g, 5)));
            }
            if bool::arbitrary(g) {
                let mut contents = Contents::default();
                for append in &history.appends {
                    let there = match append.ended {
                        Ended::Appended { .. } => u64::from(pick(g, 12) != 0),
                        Ended::Unknown => pick(g, 2),
                        Ended::Refused => u64::from(pick(g, 12) == 0),
                    };
                    contents.times.insert(append.token.clone(), there);
                    contents.length += there;
                }
                history.contents = Some(contents);
            }
            Self(history)
        }
    }

    /// By trying every order: the definition itself.
    fn explained(history: &History) -> bool {
        let tokens = |history: &History| history.contents.clone().map(|contents| contents.times);
        let done: Vec<&Append> = history.appends.iter().filter(|append| append.ended != Ended::Refused).collect();
        search(history, &mut Vec::new(), &done, &mut history.reads.iter().collect(), &tokens(history))
    }

    fn search(
        history: &History,
        order: &mut Vec<(Duration, Duration)>,
        appends: &[&Append],
        reads: &mut Vec<&Read>,
        times: &Option<BTreeMap<String, u64>>,
    ) -> bool {
        let all_acknowledged = |rest: &[&Append]| rest.iter().all(|append| append.ended == Ended::Unknown);
        let length = history.appends.iter().filter(|append| append.ended != Ended::Refused).count() - appends.len();
        if reads.is_empty() && all_acknowledged(appends) {
            let rest = |append: &Append| appends.iter().any(|left| left.token == append.token);
            let right = times.as_ref().is_none_or(|times| {
                history.appends.iter().all(|append| {
                    let applied = append.ended != Ended::Refused && !rest(append);
                    times.get(&append.token).copied().unwrap_or(0) == u64::from(applied)
                })
            });
            if right {
                return true;
            }
        }
        let fits = |order: &[(Duration, Duration)], ended: Duration| order.iter().all(|(called, _)| *called <= ended);
        for at in 0..appends.len() {
            let append = appends[at];
            let ended = match append.ended {
                Ended::Appended { at, position } if position == length as u64 + 1 => at,
                Ended::Unknown => Duration::MAX,
                Ended::Appended { .. } | Ended::Refused => continue,
            };
            if fits(order, ended) {
                let rest: Vec<_> = appends.iter().copied().filter(|left| left.token != append.token).collect();
                order.push((append.called, ended));
                let found = search(history, order, &rest, reads, times);
                order.pop();
                if found {
                    return true;
                }
            }
        }
        for at in 0..reads.len() {
            let read = reads[at];
            if read.length == length as u64 && fits(order, read.answered) {
                reads.remove(at);
                order.push((read.called, read.answered));
                let found = search(history, order, appends, reads, times);
                order.pop();
                reads.insert(at, read);
                if found {
                    return true;
                }
            }
        }
        false
    }

    /// A register that works, and callers that are answered late or not at all.
    #[derive(Debug, Clone)]
    struct Good(History);

    impl Arbitrary for Good {
        fn arbitrary(g: &mut Gen) -> Self {
            let pick = |g: &mut Gen, below: u64| u64::arbitrary(g) % below;
            let (mut history, mut length, mut contents) = (History::default(), 0, Contents::default());
            for now in 10..10 + g.size() as u64 {
                let (called, answered, token) = (now - pick(g, 9), now + pick(g, 9), now.to_string());
                if pick(g, 3) == 0 {
                    history.reads.push(read(called, answered, length));
                    continue;
                }
                let (there, ended) = match pick(g, 8) {
                    0 => (false, Ended::Refused),
                    1 => (false, Ended::Unknown),
                    2 => (true, Ended::Unknown),
                    _ => (true, at(answered, length + 1)),
                };
                length += u64::from(there);
                contents.times.insert(token.clone(), u64::from(there));
                history.appends.push(append(&token, called, ended));
            }
            contents.length = length;
            history.contents = bool::arbitrary(g).then_some(contents);
            Self(history)
        }
    }

    quickcheck! {
        fn the_verdict_is_that_of_trying_every_order(any: Any) -> bool {
            check(&any.0).is_ok() == explained(&any.0)
        }

        fn what_a_register_that_works_answers_is_explained(good: Good) -> bool {
            check(&good.0).is_ok()
        }

        fn a_lost_acknowledgement_is_never_explained(good: Good, which: usize) -> bool {
            let mut history = good.0;
            let acknowledged: Vec<_> =
                history.appends.iter().filter(|append| matches!(append.ended, Ended::Appended { .. })).collect();
            let (Some(contents), false) = (&mut history.contents, acknowledged.is_empty()) else { return true };
            let lost = acknowledged[which % acknowledged.len()].token.clone();
            contents.times.insert(lost.clone(), 0);
            contents.length -= 1;
            check(&history).is_err_and(|found| found.contains(&Violation::Lost { token: lost }))
        }

        fn an_answer_from_a_state_long_gone_is_never_explained(good: Good) -> bool {
            let mut history = good.0;
            let last = history.appends.iter().filter_map(|append| match append.ended {
                Ended::Appended { at, position } => Some((position, at)),
                Ended::Refused | Ended::Unknown => None,
            }).max();
            let Some((position, answered)) = last else { return true };
            history.reads.push(Read { called: answered + ms(1), answered: answered + ms(2), length: position - 1 });
            check(&history).is_err()
        }
    }
}
