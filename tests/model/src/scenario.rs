//! The small worlds that are explored: who is there, and how much may go wrong.

use crate::mark::Mark;

/// How often each thing may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "each is named after the action that it bounds")]
pub struct Budget {
    pub doubles: u8,
    pub failures: u8,
    pub works: u8,
    pub executor_crashes: u8,
    pub executor_starts: u8,
    pub shutdowns: u8,
    pub drains: u8,
    pub manager_crashes: u8,
    pub manager_starts: u8,
    pub refusals: u8,
    pub doubts: u8,
    pub wipes: u8,
    pub heals: u8,
}

const NONE: Budget = Budget {
    doubles: 0,
    failures: 0,
    works: 0,
    executor_crashes: 0,
    executor_starts: 0,
    shutdowns: 0,
    drains: 0,
    manager_crashes: 0,
    manager_starts: 0,
    refusals: 0,
    doubts: 0,
    wipes: 0,
    heals: 1,
};

/// What is late by any time, apart from messages, executors' timers and their agents, which always are. The less there is, the deeper
/// a world can be explored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// Managers' timers, writes on their way to the store, confirmations, and the answers to both.
    Free,
    /// As before, but for the answers: what the store does is heard at once.
    Prompt,
    /// Nothing: time passes only once the managers have done what is due.
    Punctual,
}

/// What happens, in time, before anything is explored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// An executor is started.
    Start(usize),
    /// An operator drains an executor.
    Drain(usize),
    /// An operator ends its drain.
    Undrain(usize),
    /// An executor renews, and a copy of that stays on its way.
    LateRenewal(usize),
    /// An operator drains the first, and a copy of the push that gives its shard to the second stays on its way.
    LatePush(usize, usize),
    /// A manager takes over, and everybody follows it.
    TakeOver(usize),
    /// An executor works on shard 0.
    Work(usize),
    /// An executor works on shard 0, and its append stays on its way.
    LateAppend(usize),
}

/// One world.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub text: &'static str,
    /// Slots for executors, and how many of them run at the beginning.
    pub executors: (usize, usize),
    /// Whether all executors have one name.
    pub same_name: bool,
    /// How many shards.
    pub shards: u32,
    /// Slots for managers; one runs at the beginning.
    pub managers: usize,
    /// Lease of the first manager, and of each that follows, in units of time.
    pub leases: (u8, u8),
    /// What has happened before.
    pub opening: &'static [Opening],
    /// What is late.
    pub pace: Pace,
    /// How many units of time pass at most once everything is served.
    pub horizon: u8,
    /// How many messages may be on their way at a time.
    pub messages: usize,
    /// What may go wrong.
    pub budget: Budget,
    /// What must be reached.
    pub reach: &'static [Mark],
}

const WORLD: Scenario = Scenario {
    name: "",
    text: "",
    executors: (2, 2),
    same_name: false,
    shards: 1,
    managers: 1,
    leases: (3, 3),
    opening: &[],
    pace: Pace::Prompt,
    horizon: 4,
    messages: 3,
    budget: NONE,
    reach: &[],
};

/// Every world.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "renew",
        text: "renewals late, lost and answered late; leases lapse",
        pace: Pace::Punctual,
        budget: Budget { failures: 1, ..NONE },
        horizon: 4,
        reach: &[
            Mark::Lapsed,
            Mark::Revived,
            Mark::Reaped,
            Mark::SecondOwner,
            Mark::LateGrant,
            Mark::CallFailed,
            Mark::Unregistered,
            Mark::Healed,
        ],
        ..WORLD
    },
    Scenario {
        name: "move",
        pace: Pace::Punctual,
        text: "a second executor comes, and a shard moves to it",
        executors: (2, 1),
        shards: 2,
        horizon: 2,
        messages: 4,
        budget: Budget { executor_starts: 1, doubles: 1, ..NONE },
        reach: &[Mark::LetGo, Mark::SecondOwner, Mark::StalePush, Mark::StaleGrant, Mark::Healed],
        ..WORLD
    },
    Scenario {
        name: "three",
        pace: Pace::Punctual,
        text: "three executors, of which one dies",
        executors: (3, 3),
        shards: 3,
        horizon: 4,
        messages: 3,
        budget: Budget { executor_crashes: 1, ..NONE },
        reach: &[Mark::Reaped, Mark::SecondOwner, Mark::Healed],
        ..WORLD
    },
    Scenario {
        name: "leave",
        text: "executors are drained and stopped",
        shards: 2,
        horizon: 2,
        budget: Budget { shutdowns: 1, drains: 1, ..NONE },
        reach: &[Mark::Deregistered, Mark::LetGo, Mark::SecondOwner],
        ..WORLD
    },
    Scenario {
        name: "store",
        text: "the store refuses writes and loses answers while a shard moves",
        pace: Pace::Free,
        horizon: 2,
        budget: Budget { drains: 1, doubts: 2, refusals: 1, ..NONE },
        reach: &[Mark::DoubtApplied, Mark::DoubtRefused, Mark::StoreRefused, Mark::SecondOwner],
        ..WORLD
    },
    Scenario {
        name: "failover",
        pace: Pace::Free,
        text: "a second manager takes over, also from one that still runs",
        executors: (2, 1),
        shards: 2,
        managers: 2,
        horizon: 4,
        messages: 3,
        budget: Budget { executor_starts: 1, manager_starts: 1, manager_crashes: 1, ..NONE },
        reach: &[
            Mark::TookOver,
            Mark::TwoManagers,
            Mark::Deposed,
            Mark::Conflict,
            Mark::Orphan,
            Mark::ForeignPush,
            Mark::Refollowed,
        ],
        ..WORLD
    },
    Scenario {
        name: "longer",
        text: "the successor grants longer leases",
        managers: 2,
        leases: (2, 4),
        horizon: 6,
        messages: 2,
        budget: Budget { manager_starts: 1, manager_crashes: 1, ..NONE },
        reach: &[Mark::TookOver, Mark::Lengthened, Mark::Reaped],
        ..WORLD
    },
    Scenario {
        name: "shorter",
        text: "the successor grants shorter leases",
        managers: 2,
        leases: (4, 2),
        horizon: 5,
        messages: 2,
        budget: Budget { manager_starts: 1, manager_crashes: 1, ..NONE },
        reach: &[Mark::TookOver, Mark::Reaped],
        ..WORLD
    },
    Scenario {
        name: "names",
        text: "two processes have one name; one returns at its address",
        executors: (2, 1),
        same_name: true,
        horizon: 4,
        budget: Budget { executor_starts: 1, executor_crashes: 1, ..NONE },
        reach: &[Mark::Superseded, Mark::Replaced, Mark::SecondOwner],
        ..WORLD
    },
    Scenario {
        name: "agents",
        pace: Pace::Punctual,
        text: "an append is late while its shard moves",
        opening: &[Opening::LateAppend(0), Opening::Start(1)],
        horizon: 1,
        budget: Budget { works: 1, drains: 1, ..NONE },
        reach: &[Mark::Fenced, Mark::Appended, Mark::SecondOwner],
        executors: (2, 1),
        ..WORLD
    },
    Scenario {
        name: "agents back",
        text: "an append is late while its shard moves away and back",
        executors: (2, 1),
        pace: Pace::Punctual,
        opening: &[
            Opening::LateAppend(0),
            Opening::Start(1),
            Opening::Drain(0),
            Opening::Undrain(0),
            Opening::Drain(1),
            Opening::Undrain(1),
        ],
        horizon: 2,
        budget: Budget { works: 2, ..NONE },
        reach: &[Mark::Fenced, Mark::Appended],
        ..WORLD
    },
    Scenario {
        name: "return",
        pace: Pace::Punctual,
        text: "an executor dies with an append on its way and returns at its address",
        executors: (1, 1),
        opening: &[Opening::LateAppend(0)],
        horizon: 2,
        messages: 3,
        budget: Budget { works: 2, executor_crashes: 1, executor_starts: 1, ..NONE },
        reach: &[Mark::Fenced, Mark::Appended, Mark::Replaced, Mark::SecondOwner],
        ..WORLD
    },
    Scenario {
        name: "wipe",
        pace: Pace::Punctual,
        text: "the managers' store is emptied; oplogs are not",
        executors: (1, 1),
        managers: 2,
        opening: &[Opening::Work(0)],
        horizon: 1,
        messages: 2,
        budget: Budget { works: 1, wipes: 1, manager_starts: 1, ..NONE },
        reach: &[Mark::Fenced, Mark::Appended, Mark::Floor, Mark::TookOver],
        ..WORLD
    },
];

const LONE: Scenario = Scenario {
    text: "one executor, whose lease ends",
    executors: (1, 1),
    horizon: 5,
    messages: 2,
    budget: Budget { heals: 0, ..NONE },
    ..WORLD
};

/// Worlds as small as a bug lets them be: what is shallow there is deep in the others.
pub const NARROW: &[Scenario] = &[
    Scenario {
        name: "lone",
        reach: &[Mark::Lapsed, Mark::Revived, Mark::Reaped, Mark::StoodStill, Mark::Unregistered, Mark::CallFailed],
        ..LONE
    },
    Scenario { name: "lone healing", budget: NONE, reach: &[Mark::Lapsed, Mark::Revived, Mark::Healed], ..LONE },
    Scenario { name: "lone leaving", budget: Budget { shutdowns: 1, heals: 0, ..NONE }, horizon: 2, ..LONE },
    Scenario {
        name: "lone failover",
        pace: Pace::Punctual,
        text: "one executor, and a second manager that takes over",
        managers: 2,
        budget: Budget { manager_starts: 1, heals: 0, ..NONE },
        ..LONE
    },
    Scenario {
        name: "lone shorter",
        pace: Pace::Punctual,
        text: "one executor, and a successor that grants shorter leases",
        managers: 2,
        leases: (4, 2),
        budget: Budget { manager_starts: 1, heals: 0, ..NONE },
        ..LONE
    },
    Scenario {
        name: "lone longer",
        pace: Pace::Punctual,
        text: "one executor, and a successor that grants longer leases",
        managers: 2,
        leases: (2, 4),
        budget: Budget { manager_starts: 1, heals: 0, ..NONE },
        ..LONE
    },
    Scenario {
        name: "late claim",
        text: "a shard has moved and moves back, and a claim from before is on its way",
        executors: (2, 1),
        opening: &[Opening::Start(1), Opening::LateRenewal(1), Opening::Drain(0), Opening::Undrain(0)],
        budget: Budget { drains: 1, heals: 0, ..NONE },
        horizon: 1,
        messages: 3,
        reach: &[Mark::LetGo, Mark::SecondOwner],
        ..LONE
    },
    Scenario {
        name: "late push",
        text: "a shard is where an earlier manager put it, whose push is still on its way",
        executors: (2, 1),
        managers: 2,
        opening: &[
            Opening::Start(1),
            Opening::Drain(0),
            Opening::Undrain(0),
            Opening::LatePush(1, 0),
            Opening::Undrain(1),
            Opening::TakeOver(1),
        ],
        budget: Budget { drains: 1, heals: 0, ..NONE },
        horizon: 1,
        messages: 3,
        reach: &[Mark::ForeignPush, Mark::LetGo, Mark::SecondOwner],
        ..LONE
    },
    Scenario {
        name: "wiped",
        text: "a store of many revisions is emptied, and revisions start over",
        executors: (2, 1),
        pace: Pace::Punctual,
        opening: &[Opening::Start(1), Opening::Drain(1), Opening::Undrain(1), Opening::Drain(1), Opening::Undrain(1)],
        budget: Budget { wipes: 1, ..NONE },
        horizon: 1,
        reach: &[Mark::Healed],
        ..LONE
    },
];

/// The world with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Scenario> {
    ALL.iter().chain(NARROW).find(|scenario| scenario.name == name)
}
