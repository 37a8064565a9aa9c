//! What a gained shard's agents cost: each is claimed, read from its newest snapshot on, and rebuilt.

use crate::cluster::folder;
use crate::figure::{Measured, Result};
use crate::rounds::median;
use actix::{Actor, Addr, Context, Handler};
use leasehold::agents;
use leasehold_actors::clock::{Clock, HolderClock};
use leasehold_actors::executor::agent::Surroundings;
use leasehold_actors::executor::agent_core::AgentLimits;
use leasehold_actors::executor::agent_host::{AgentHost, HostLimits, HostParts, Invoke};
use leasehold_actors::executor::agent_type::AgentTypes;
use leasehold_actors::executor::message::{CurrentLife, Fenced, Pulse, Recover};
use leasehold_actors::executor::metrics::ExecutorMetrics;
use leasehold_model::fence::{Admitted, FenceKeeper};
use leasehold_model::message::Invocation;
use leasehold_model::{AgentId, ExecutorId, ExecutorName, ShardCount, ShardEpoch, ShardId, Tick};

use leasehold_actors::executor::oplog_entry::{Body, EntryId, Invoked};
use leasehold_persistence::oplog::layers::{Archive, Layered, Upto};
use leasehold_persistence::oplog::{
    Append, EntryIndex, EntryKind, MAX_ENTRIES_PER_APPEND, NewEntry, OplogStore, SqliteOplogStore, Writer,
};
use sqlx::{Connection, Row, SqliteConnection, query};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Agents on the shard.
const AGENTS: usize = 2_000;
/// What each was asked, with a snapshot after [`SNAPSHOT_EVERY`].
const INVOCATIONS: u32 = 7;
const SNAPSHOT_EVERY: u32 = 4;
const ROUNDS: u64 = 9;

const SHARD: ShardId = ShardId(0);

/// Stands for the `LeaseHolder`: nobody is fenced here.
struct Deaf;

impl Actor for Deaf {
    type Context = Context<Self>;
}

impl Handler<Fenced> for Deaf {
    type Result = ();
    fn handle(&mut self, fenced: Fenced, _: &mut Self::Context) {
        unreachable!("{fenced:?}");
    }
}

/// One executor life, which holds the shard at `epoch`.
struct Life {
    host: Addr<AgentHost>,
    admitted: Admitted,
    // Its fence stays open for as long as this.
    _keeper: FenceKeeper,
    metrics: ExecutorMetrics,
}

impl Life {
    fn begin(store: Arc<dyn OplogStore>, number: u64) -> Result<Self> {
        let (keeper, epoch) = (FenceKeeper::new(), ShardEpoch::owned(number)?);
        assert!(keeper.size(ShardCount::new(1)?), "it is new");
        keeper.open(SHARD, epoch);
        keeper.arm(Tick::NEVER);
        let limits = HostLimits {
            agent: AgentLimits { snapshot_every: SNAPSHOT_EVERY, ..AgentLimits::default() },
            ..HostLimits::default()
        };
        let metrics = ExecutorMetrics::default();
        let around = Surroundings {
            fence: keeper.fence(),
            clock: Arc::new(HolderClock),
            store,
            archiver: None,
            store_timeout: limits.store_timeout,
            metrics: metrics.clone(),
            pulse: Arc::new(Pulse::default()),
        };
        let host = AgentHost::new(HostParts {
            name: ExecutorName::new(format!("executor-{number}"))?,
            life: CurrentLife::new(ExecutorId::from_u128(u128::from(number))),
            around,
            types: AgentTypes::new(agents::shipped()),
            fenced: Deaf.start().recipient(),
            limits,
        });
        Ok(Self { host: host.start(), admitted: Admitted { shard: SHARD, epoch }, _keeper: keeper, metrics })
    }

    async fn call(&self, agent: AgentId, method: &str, idempotency_key: Option<String>) -> Result<Vec<u8>> {
        let invocation = Invocation { agent, method: method.to_owned(), payload: b"{}".to_vec(), idempotency_key };
        let until = HolderClock.now().plus(Duration::from_secs(60));
        let answer = self.host.send(Invoke { invocation, admitted: self.admitted, until }).await??;
        Ok(answer.payload)
    }
}

fn agent(number: usize) -> Result<AgentId> {
    Ok(AgentId::new(format!("counter/{number}"))?)
}

/// `recover_agents_per_s`: against reads of the same rows, agent after agent, on a connection of the same file.
pub async fn agents() -> Result<Measured> {
    let folder = folder()?;
    let store: Arc<dyn OplogStore> = Arc::new(SqliteOplogStore::open(folder.path()).await?);
    let first = Life::begin(Arc::clone(&store), 1)?;
    for call in 0..INVOCATIONS {
        let calls =
            (0..AGENTS).map(async |number| first.call(agent(number)?, "increment", Some(format!("call-{call}"))).await);
        futures::future::try_join_all(calls).await?;
    }
    drop(first);
    let (mut values, mut baselines) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let life = Life::begin(Arc::clone(&store), round + 2)?;
        let (began, shards) = (Instant::now(), vec![(SHARD, life.admitted.epoch)]);
        life.host.send(Recover { shards }).await?;
        values.push(AGENTS as f64 / began.elapsed().as_secs_f64());
        assert_eq!(life.metrics.replays.get(), AGENTS as u64, "all of them are recovered");
        baselines.push(read_all(folder.path()).await?);
        eprintln!("  round {}: {:.0} against {:.0}", round + 1, values[round as usize], baselines[round as usize]);
    }
    Ok(Measured { value: median(values), baseline: median(baselines) })
}

/// Agents per second, each with its record and its entries from its newest snapshot on.
async fn read_all(folder: &Path) -> Result<f64> {
    const AGENTS_OF_SHARD: &str = "SELECT id FROM records WHERE shard = 0 AND state = 1 ORDER BY agent";
    const ENTRIES: &str = "SELECT r.epoch, e.idx, e.kind, e.key, e.body FROM records r JOIN entries e ON e.oplog = r.id \
         WHERE r.id = ? AND e.idx >= (SELECT max(s.idx) FROM entries s WHERE s.oplog = r.id AND s.kind = 2) ORDER BY e.idx";
    let mut connection = SqliteConnection::connect(&database(folder)?).await?;
    let began = Instant::now();
    let (mut agents, mut bytes) = (0, 0);
    for record in query(AGENTS_OF_SHARD).fetch_all(&mut connection).await? {
        for entry in query(ENTRIES).bind(record.try_get::<i64, _>(0)?).fetch_all(&mut connection).await? {
            bytes += entry.try_get::<&[u8], _>("body")?.len();
        }
        agents += 1;
    }
    assert!(agents == AGENTS && bytes > 0, "the rows of {agents} agents");
    Ok(agents as f64 / began.elapsed().as_secs_f64())
}

/// The only database file in the store's folder.
fn database(folder: &Path) -> Result<String> {
    let files = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let file = files.iter().map(std::fs::DirEntry::path).find(|path| path.extension().is_some_and(|it| it == "db"));
    let file = file.ok_or("the store has no database file")?;
    Ok(format!("sqlite://{}?mode=ro", file.display()))
}

/// Entries of the agent that is replayed.
const LONG: u64 = 100_000;

/// `replay_100k_ms`: until an agent with 100,000 entries, half of them archived, and no snapshot has answered first, against one whose
/// entries are all where they were written.
pub async fn replay() -> Result<Measured> {
    let folder = folder()?;
    let store = Arc::new(SqliteOplogStore::open(folder.path()).await?);
    let layered = Arc::new(Layered::in_list(Arc::clone(&store) as _));
    let writer = Writer { epoch: ShardEpoch::owned(1)?, executor: ExecutorId::from_u128(1) };
    let (archived, whole) = (agent(1)?, agent(2)?);
    for agent in [&archived, &whole] {
        write_long(&*store, agent, writer).await?;
    }
    let half = Upto { index: EntryIndex(LONG / 2 + 1), least: 1 };
    while layered.archive(&archived, SHARD, writer, half).await?.entries > 0 {}
    let (mut values, mut baselines) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let life = Life::begin(Arc::clone(&layered) as _, round + 2)?;
        values.push(first_answer_ms(&life, &archived).await?);
        baselines.push(first_answer_ms(&life, &whole).await?);
        let (value, baseline) = (values[round as usize], baselines[round as usize]);
        eprintln!("  round {}: {value:.0} ms against {baseline:.0} ms", round + 1);
    }
    Ok(Measured { value: median(values), baseline: median(baselines) })
}

async fn write_long(store: &dyn OplogStore, agent: &AgentId, writer: Writer) -> Result<()> {
    let mut next = store.claim(agent, SHARD, writer).await?.next;
    while next.0 <= LONG {
        let count = (LONG + 1 - next.0).min(MAX_ENTRIES_PER_APPEND as u64);
        let entry = |index: u64| {
            let (answer, events) =
                (format!("{{\"value\":{index}}}").into_bytes(), vec![serde_json::json!({ "by": 1 })]);
            let body = Body::Invocation(Invoked { method: "increment".to_owned(), answer, events });
            let key = Some(format!("call-{index}"));
            NewEntry { kind: EntryKind::Invocation, key, body: body.encode(EntryId::new(1, index)) }
        };
        let entries = (next.0..next.0 + count).map(entry).collect();
        next = store.append(Append { agent: agent.clone(), writer, expected: next, entries }).await?;
    }
    Ok(())
}

async fn first_answer_ms(life: &Life, agent: &AgentId) -> Result<f64> {
    let began = Instant::now();
    let answer = life.call(agent.clone(), "get", None).await?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    assert_eq!(answer, format!("{{\"value\":{LONG}}}").into_bytes(), "every entry counts");
    Ok(took)
}
