//! The executor as its callers see it: [`InvokeApi`] and [`ExecutorApi`] in front of the actors. It admits at the fence and
//! hands on; it decides nothing else and holds no state of its own.

use super::agent_host::{Delete, Invoke, ListAgents};
use super::agent_type::AgentTypes;
use super::message::{Assign, Inspect};
use super::metrics::ExecutorMetrics;
use crate::clock::SharedClock;
use actix::{MailboxError, Recipient};
use async_trait::async_trait;
use leasehold_model::agents::{AgentPage, AgentQuery, DeletionAnswer};
use leasehold_model::fence::{Admitted, Closed, Fence};
use leasehold_model::message::{Inspection, Invocation, InvocationAnswer, Push, PushAnswer};
use leasehold_model::routing::shard_of;
use leasehold_model::{AgentId, CallError, ExecutorName, InvalidValue, Refusal, ShardId};
use leasehold_rpc::api::{ExecutorApi, InvokeApi};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest payload of an invocation, in bytes.
pub const MAX_PAYLOAD: usize = 1024 * 1024;
/// The longest method name and idempotency key, in bytes.
pub const MAX_NAME: usize = 128;
/// No invocation waits longer, whatever its caller asks for.
pub const MAX_WAIT: Duration = Duration::from_secs(300);
/// How long the `LeaseHolder` may take to answer a push or an inspection, and the `AgentHost` to list agents.
const HOLDER_WAIT: Duration = Duration::from_secs(5);

/// Set when the executor begins to shut down: nothing new is admitted. Cheap to clone, shared.
#[derive(Debug, Clone, Default)]
pub struct Draining(Arc<AtomicBool>);

impl Draining {
    /// Admits nothing new from now on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it began.
    #[must_use]
    pub fn begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The executor's side of the services.
pub struct ExecutorFront {
    /// This executor's name.
    pub name: ExecutorName,
    /// Admission.
    pub fence: Fence,
    /// The holder's clock.
    pub clock: SharedClock,
    /// The types hosted: an invocation of another is refused before it reaches an actor.
    pub types: AgentTypes,
    /// The `AgentHost`, for invocations.
    pub host: Recipient<Invoke>,
    /// The `AgentHost`, for deletions.
    pub delete: Recipient<Delete>,
    /// The `AgentHost`, for lists.
    pub list: Recipient<ListAgents>,
    /// The `LeaseHolder`, for pushes.
    pub assign: Recipient<Assign>,
    /// The `LeaseHolder`, for questions.
    pub inspect: Recipient<Inspect>,
    /// Whether this executor is leaving.
    pub draining: Draining,
    /// What is counted.
    pub metrics: ExecutorMetrics,
}

impl ExecutorFront {
    /// Whether work for `agent` may begin here; a refusal is counted.
    fn admit(&self, agent: &AgentId) -> Result<Admitted, Refusal> {
        self.admitted(agent).inspect_err(|refusal| self.metrics.count_admission_refusal(refusal.reason()))
    }

    fn admitted(&self, agent: &AgentId) -> Result<Admitted, Refusal> {
        let kind = agent.kind();
        if self.types.find(kind).is_none() {
            return Err(Refusal::UnknownMethod { what: format!("agent type {kind}") });
        }
        if self.draining.begun() {
            return Err(Refusal::Draining { executor: self.name.to_string() });
        }
        self.holds(shard_of(agent, self.fence.shard_count().ok_or_else(|| self.not_ready())?))
    }

    fn holds(&self, shard: ShardId) -> Result<Admitted, Refusal> {
        self.fence.admit(self.clock.now(), shard).map_err(|closed| match closed {
            Closed::NotReady => self.not_ready(),
            // An executor knows what it holds, not what others do: the owner is left for the router to find.
            Closed::NotHeld => Refusal::WrongOwner { shard, owner: None, revision: self.fence.revision() },
        })
    }

    fn not_ready(&self) -> Refusal {
        Refusal::ShardingNotReady { executor: self.name.to_string() }
    }
}

fn check(invocation: &Invocation) -> Result<(), InvalidValue> {
    let Invocation { method, payload, idempotency_key, .. } = invocation;
    let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if method.is_empty() || method.len() > MAX_NAME || !is_name(method) {
        return Err(InvalidValue::new("method", method, "1 to 128 of letters, digits, '.', '_', '-'"));
    }
    if payload.len() > MAX_PAYLOAD {
        return Err(InvalidValue::new("payload", format!("{} bytes", payload.len()), "at most 1048576 bytes"));
    }
    match idempotency_key {
        Some(key) if key.is_empty() || key.len() > MAX_NAME => {
            Err(InvalidValue::new("idempotency_key", format!("{} bytes", key.len()), "1 to 128 bytes"))
        }
        Some(_) | None => Ok(()),
    }
}

/// A message that did not come back: the actor may have acted on it.
fn lost(who: &str, error: &MailboxError, within: Duration) -> CallError {
    CallError::Unknown(match error {
        MailboxError::Closed => format!("the {who} ended"),
        MailboxError::Timeout => format!("the {who} did not answer within {} ms", within.as_millis()),
    })
}

#[async_trait]
impl InvokeApi for ExecutorFront {
    async fn invoke(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        check(&invocation).map_err(Refusal::InvalidField).inspect_err(|refusal| {
            self.metrics.count_admission_refusal(refusal.reason());
        })?;
        let admitted = self.admit(&invocation.agent)?;
        if !self.host.connected() {
            return Err(self.not_ready().into());
        }
        let within = within.min(MAX_WAIT);
        let until = self.clock.now().plus(within);
        let answer = self.host.send(Invoke { invocation, admitted, until }).timeout(within).await;
        answer.unwrap_or_else(|error| Err(lost("agent", &error, within)))
    }

    async fn delete(&self, agent: AgentId, within: Duration) -> Result<DeletionAnswer, CallError> {
        let admitted = self.admit(&agent)?;
        if !self.delete.connected() {
            return Err(self.not_ready().into());
        }
        let within = within.min(MAX_WAIT);
        let until = self.clock.now().plus(within);
        let answer = self.delete.send(Delete { agent, admitted, until }).timeout(within).await;
        answer.unwrap_or_else(|error| Err(lost("agent", &error, within)))
    }
}

#[async_trait]
impl ExecutorApi for ExecutorFront {
    async fn assign(&self, push: Push) -> Result<PushAnswer, CallError> {
        let answer = self.assign.send(Assign(push)).timeout(HOLDER_WAIT).await;
        answer.unwrap_or_else(|error| Err(lost("LeaseHolder", &error, HOLDER_WAIT)))
    }

    async fn inspect(&self) -> Result<Inspection, CallError> {
        let answer = self.inspect.send(Inspect).timeout(HOLDER_WAIT).await;
        answer.map_err(|error| lost("LeaseHolder", &error, HOLDER_WAIT))
    }

    async fn list_agents(&self, query: AgentQuery) -> Result<AgentPage, CallError> {
        let _held = self.holds(query.shard)?;
        let answer = self.list.send(ListAgents(query)).timeout(HOLDER_WAIT).await;
        answer.unwrap_or_else(|error| Err(lost("AgentHost", &error, HOLDER_WAIT)))
    }
}
