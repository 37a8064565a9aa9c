//! Whom a client command talks to: the owners themselves, found through the managers' table, or a gateway.

use super::{Exit, Failure};
use crate::router::policy::{self, Facts, Next, Outcome};
use crate::router::{ExecutorDialer, Router, RouterError, RouterSettings};
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{Address, CallError};
use leasehold_rpc::api::InvokeApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::AgentClient;
use leasehold_rpc::managers::Managers;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// The most managers that a command takes.
const ADDRESSES_MOST: usize = 16;

/// Whom to talk to.
#[derive(Debug, Clone, clap::Args)]
pub struct TargetArgs {
    /// A manager to read the routing table from; may be given several times
    #[arg(long = "manager", value_name = "HOST:PORT", env = "LEASEHOLD_MANAGER", value_delimiter = ',')]
    #[arg(default_value = "127.0.0.1:7470")]
    pub managers: Vec<Address>,
    /// Go through this gateway (gRPC) instead of routing here
    #[arg(long, value_name = "HOST:PORT", env = "LEASEHOLD_GATEWAY")]
    pub gateway: Option<Address>,
}

/// Why a call did not end well, as commands show and count it.
#[derive(Debug, Clone)]
pub struct CallFailure {
    /// The machine-readable reason.
    pub reason: &'static str,
    /// What to tell the person, and the exit code.
    pub failure: Failure,
}

/// A way to call agents.
#[derive(Clone)]
pub enum Target {
    /// Routing here.
    Direct(Router),
    /// Through a gateway.
    Gateway(Arc<Through>),
}

impl TargetArgs {
    /// Prepares to call; nothing is dialled before the first call.
    ///
    /// # Errors
    /// Exit code 64 for too many addresses.
    pub fn target(&self) -> Result<Target, Failure> {
        not_too_many(&self.managers)?;
        Ok(match &self.gateway {
            Some(gateway) => Target::Gateway(Arc::new(Through::new(AgentClient::new(Dialer::tcp().dial(gateway))))),
            None => Target::Direct(router(&self.managers, RouterSettings::default())),
        })
    }
}

/// Refuses a list of managers that is too long.
///
/// # Errors
/// Exit code 64.
pub(crate) fn not_too_many(managers: &[Address]) -> Result<(), Failure> {
    if managers.len() <= ADDRESSES_MOST {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("--manager: at most {ADDRESSES_MOST} addresses are accepted")))
}

/// A router over the network.
pub(crate) fn router(managers: &[Address], settings: RouterSettings) -> Router {
    let dialer = Dialer::tcp();
    Router::new(Managers::dial(dialer.clone(), managers), Arc::new(TcpExecutors(dialer)), settings)
}

struct TcpExecutors(Dialer);

impl ExecutorDialer for TcpExecutors {
    fn dial(&self, address: &Address) -> Result<Arc<dyn InvokeApi>, CallError> {
        Ok(Arc::new(AgentClient::new(self.0.dial(address))))
    }
}

impl Target {
    /// Runs `invocation` within `within`.
    ///
    /// # Errors
    /// With the reason, the text and the exit code.
    pub async fn call(&self, invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallFailure> {
        match self {
            Self::Direct(router) => router.call(invocation, within).await.map_err(routed),
            Self::Gateway(gateway) => gateway.call(invocation, within).await.map_err(|error| {
                let reason = error.reason();
                CallFailure { reason, failure: error.into() }
            }),
        }
    }

    /// How often a call was repeated here, by reason.
    #[must_use]
    pub fn retries(&self) -> BTreeMap<&'static str, u64> {
        match self {
            Self::Direct(router) => router.metrics().retries(),
            Self::Gateway(gateway) => gateway.retries.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

fn routed(error: RouterError) -> CallFailure {
    let (reason, text, heard) = (error.reason(), error.to_string(), error.attempts().times() > 0);
    let answered = error.attempts().tried.iter().any(|tried| {
        tried.executor.is_some() && tried.answers.keys().any(|reason| !matches!(*reason, "UNREACHABLE" | "TIMED_OUT"))
    });
    let exit = match &error {
        RouterError::Refused { refusal, .. } => super::exit_of(refusal),
        RouterError::DeadlineExceeded { .. } if heard && answered => Exit::TryAgain,
        RouterError::DeadlineExceeded { .. } => Exit::NobodyAnswers,
    };
    CallFailure { reason, failure: Failure::new(exit, text) }
}

/// Calls through one gateway. The gateway finds the owners; here the way to the gateway is retried, under one idempotency key.
pub struct Through {
    gateway: Arc<dyn InvokeApi>,
    settings: RouterSettings,
    retries: Mutex<BTreeMap<&'static str, u64>>,
}

impl Through {
    fn new(gateway: impl InvokeApi) -> Self {
        Self { gateway: Arc::new(gateway), settings: RouterSettings::default(), retries: Mutex::default() }
    }

    async fn call(&self, mut invocation: Invocation, within: Duration) -> Result<InvocationAnswer, CallError> {
        invocation.idempotency_key.get_or_insert_with(|| Uuid::new_v4().to_string());
        let deadline = Instant::now() + within;
        let mut tries = 0_u32;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let answer = timeout(remaining, self.gateway.invoke(invocation.clone(), remaining)).await;
            let error = match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => CallError::Unknown(format!("no answer within {}", humantime::format_duration(within))),
            };
            let outcome = match &error {
                CallError::Refused(refusal) => Outcome::Refused(refusal.clone()),
                CallError::Unreachable(why) => Outcome::Unreachable(why.clone()),
                CallError::Unknown(why) => Outcome::Unknown(why.clone()),
            };
            let least =
                match policy::decide(&outcome, Facts { keyed: true, asked: None, hints: policy::MAX_HINTS }).next {
                    Next::Wait(least) => least,
                    Next::FollowHint | Next::GiveUp => return Err(error),
                };
            let RouterSettings { back_off_first: first, back_off_most: most, .. } = self.settings;
            let wish = policy::back_off(tries, first, most, rand::random()).max(least);
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Some(wait) = policy::pause(wish, remaining, first) else { return Err(error) };
            *self.retries.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome.reason()).or_default() += 1;
            tries = tries.saturating_add(1);
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use leasehold_model::{AgentId, ExecutorName, Refusal, ShardEpoch, ShardId};

    struct Script(Mutex<Vec<CallError>>, Arc<Mutex<Vec<String>>>);

    #[async_trait]
    impl InvokeApi for Script {
        async fn invoke(&self, invocation: Invocation, _: Duration) -> Result<InvocationAnswer, CallError> {
            self.1.lock().unwrap().push(invocation.idempotency_key.unwrap());
            match self.0.lock().unwrap().pop() {
                Some(error) => Err(error),
                None => Ok(InvocationAnswer {
                    payload: b"1".to_vec(),
                    shard: ShardId(0),
                    epoch: ShardEpoch::new(1).unwrap(),
                    executor: ExecutorName::new("e").unwrap(),
                    replayed: false,
                }),
            }
        }
    }

    fn call() -> Invocation {
        let agent = AgentId::new("counter/a").unwrap();
        Invocation { agent, method: "add".into(), payload: Vec::new(), idempotency_key: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_restarts_is_retried_under_one_key() {
        let keys = Arc::new(Mutex::new(Vec::new()));
        let errors = vec![CallError::Unknown("reset".into()), CallError::Unreachable("refused".into())];
        let through = Through::new(Script(Mutex::new(errors), Arc::clone(&keys)));
        through.call(call(), Duration::from_secs(5)).await.unwrap();
        let keys = keys.lock().unwrap();
        assert_eq!((keys.len(), keys.iter().all(|key| *key == keys[0])), (3, true));
        assert_eq!(*through.retries.lock().unwrap(), BTreeMap::from([("OUTCOME_UNKNOWN", 1), ("UNREACHABLE", 1)]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_gateway_refuses_for_good_is_not_repeated() {
        let keys = Arc::new(Mutex::new(Vec::new()));
        let refusal = Refusal::InvocationRejected { why: "no".into() };
        let through = Through::new(Script(Mutex::new(vec![refusal.clone().into()]), Arc::clone(&keys)));
        assert_eq!(through.call(call(), Duration::from_secs(5)).await, Err(CallError::Refused(refusal)));
        assert_eq!(keys.lock().unwrap().len(), 1);
    }
}
