//! Callers that append and read without a pause, and write down what they were answered and when.

use super::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use leasehold::cli::target::{Target, TargetArgs};
use leasehold::router::Doubt;
use leasehold::testkit::history::{Append, Contents, Ended, History, Read};
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{Address, AgentId};
use rand::Rng;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Agents at a time.
pub const AGENTS: usize = 8;
/// How long a caller waits before it gives up: one through every take-over, one not so long.
const APPENDERS: [Duration; 2] = [Duration::from_secs(20), Duration::from_millis(400)];
const READER: Duration = Duration::from_secs(20);
/// Between two calls of one caller.
const PAUSE_MS: std::ops::Range<u64> = 10..90;
/// Reads of tokens at once in the end.
const READS: usize = 16;

/// One agent, as its callers see it.
pub struct Register {
    pub agent: AgentId,
    history: Mutex<History>,
    /// Who answered the newest append, and when that was called.
    newest: Mutex<Option<(Instant, String)>>,
}

impl Register {
    /// Whether somebody else than `name` has answered an append that was called after `instant`.
    pub fn moved_on(&self, name: &str, instant: Instant) -> bool {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().is_some_and(|(called, by)| *called > instant && by != name)
    }

    fn note(&self, append: Append, called: Instant, by: Option<String>) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).appends.push(append);
        if let Some(by) = by {
            *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((called, by));
        }
    }
}

/// All callers of a chapter.
pub struct Callers {
    pub registers: Arc<Vec<Register>>,
    target: Target,
    began: Instant,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

fn invocation(agent: &AgentId, method: &str, payload: &Value, key: Option<String>) -> Invocation {
    let payload = payload.to_string().into_bytes();
    Invocation { agent: agent.clone(), method: method.to_owned(), payload, idempotency_key: key }
}

fn number(answer: &InvocationAnswer, field: &str) -> Option<u64> {
    serde_json::from_slice::<Value>(&answer.payload).ok()?.get(field)?.as_u64()
}

impl Callers {
    /// Begins to call fresh agents.
    pub fn start(manager: &str, chapter: u32) -> Result<Self> {
        let target = TargetArgs { managers: vec![Address::new(manager)?], gateway: None };
        let target = target.target().map_err(|failure| Error::from(failure.message))?;
        let register = |number| {
            let agent = AgentId::new(format!("tally/{chapter}-{number}"))?;
            Ok(Register { agent, history: Mutex::default(), newest: Mutex::default() })
        };
        let registers: Result<Vec<_>> = (0..AGENTS).map(register).collect();
        let mut callers = Self {
            registers: Arc::new(registers?),
            target,
            began: Instant::now(),
            stop: Arc::default(),
            tasks: JoinSet::new(),
        };
        for number in 0..AGENTS {
            for (who, within) in APPENDERS.into_iter().enumerate() {
                callers.append(number, who, within);
            }
            callers.read(number);
        }
        Ok(callers)
    }

    fn append(&mut self, number: usize, who: usize, within: Duration) {
        let (registers, target, stop) = (Arc::clone(&self.registers), self.target.clone(), Arc::clone(&self.stop));
        let began = self.began;
        self.tasks.spawn(async move {
            let register = &registers[number];
            for serial in 0_u64.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let token = format!("{}.{who}.{serial}", register.agent.key());
                let call = invocation(&register.agent, "add_many", &json!({ "words": [token] }), Some(token.clone()));
                let (at, doubt) = (Instant::now(), Doubt::default());
                let answer = target.call_in_doubt(call, within, &doubt).await;
                let position = answer.as_ref().ok().and_then(number_of);
                let ended = match (&answer, position) {
                    (Ok(_), Some(position)) => Ended::Appended { at: began.elapsed(), position },
                    (Err(_), _) if !doubt.may_have_run() => Ended::Refused,
                    (Ok(_), None) | (Err(_), _) => Ended::Unknown,
                };
                let by = answer.ok().map(|answer| answer.executor.to_string());
                register.note(Append { token, called: at - began, ended }, at, by);
                pause().await;
            }
        });
    }

    fn read(&mut self, number: usize) {
        let (registers, target, stop) = (Arc::clone(&self.registers), self.target.clone(), Arc::clone(&self.stop));
        let began = self.began;
        self.tasks.spawn(async move {
            let register = &registers[number];
            while !stop.load(Ordering::SeqCst) {
                let called = began.elapsed();
                let answer = target.call(invocation(&register.agent, "total", &Value::Null, None), READER).await;
                if let Some(length) = answer.ok().and_then(|answer| number_of(&answer)) {
                    let read = Read { called, answered: began.elapsed(), length };
                    register.history.lock().unwrap_or_else(PoisonError::into_inner).reads.push(read);
                }
                pause().await;
            }
        });
    }

    /// Ends the calls, reads what is there, and gives each agent's history with it.
    pub async fn end(mut self) -> Result<Vec<(AgentId, History)>> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        // What a caller gave up may still be under way in an executor.
        sleep(Duration::from_secs(1)).await;
        let mut all = Vec::new();
        for register in self.registers.iter() {
            let mut history = register.history.lock().unwrap_or_else(PoisonError::into_inner).clone();
            history.contents = Some(self.contents(&register.agent, &history).await?);
            all.push((register.agent.clone(), history));
        }
        Ok(all)
    }

    async fn contents(&self, agent: &AgentId, history: &History) -> Result<Contents> {
        let ask = async |method: &str, payload: &Value, field: &str| -> Result<u64> {
            let answer = self.target.call(invocation(agent, method, payload, None), READER).await;
            let answer = answer.map_err(|failed| format!("{agent} {method}: {}", failed.failure))?;
            number(&answer, field).ok_or_else(|| format!("{agent} {method}: no {field} in the answer").into())
        };
        let length = ask("total", &Value::Null, "total").await?;
        let times = stream::iter(&history.appends).map(|append| {
            let ask = &ask;
            async move {
                let times = ask("get", &json!({ "word": append.token }), "count").await?;
                Ok::<_, Error>((append.token.clone(), times))
            }
        });
        Ok(Contents { length, times: times.buffered(READS).try_collect().await? })
    }
}

/// A tally's answers say its size as `total`.
fn number_of(answer: &InvocationAnswer) -> Option<u64> {
    number(answer, "total")
}

async fn pause() {
    let ms = rand::rng().random_range(PAUSE_MS);
    sleep(Duration::from_millis(ms)).await;
}
