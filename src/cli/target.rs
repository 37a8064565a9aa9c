//! Whom a client command talks to: the owners themselves, found through the managers' table, or a gateway.

use super::wrong_port::{self, Wanted};
use super::{Exit, Failure, Signals};
use crate::router::policy::{self, Facts, Next, Outcome};
use crate::router::{Doubt, ExecutorDialer, Request, Router, RouterError, RouterSettings, deleted};
use async_trait::async_trait;
use leasehold_model::agents::DeletionAnswer;
use leasehold_model::message::{Invocation, InvocationAnswer};
use leasehold_model::{Address, AgentId, CallError};
use leasehold_rpc::api::InvokeApi;
use leasehold_rpc::channel::Dialer;
use leasehold_rpc::client::AgentClient;
use leasehold_rpc::managers::Managers;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The most managers that a command takes.
const ADDRESSES_MOST: usize = 16;

/// How long something else than a gateway must have answered at the gateway's address to be taken for what is there: a proxy answers
/// so while the gateway behind it restarts.
const WRONG_PORT_AFTER: Duration = Duration::from_secs(3);

/// How long an attempt under way may go on once a signal has ended the waiting: longer than making a connection may take.
const LAST_WORD: Duration = Duration::from_millis(1500);
const LAST_WORD_PACE: Duration = Duration::from_millis(10);

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
    /// Routing here, by the table of these managers.
    Direct(Router, Vec<Address>),
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
            Some(gateway) => {
                let client = AgentClient::new(Dialer::tcp().dial(gateway));
                Target::Gateway(Arc::new(Through::new(client, At(gateway.clone()))))
            }
            None => Target::Direct(router(&self.managers, RouterSettings::default()), self.managers.clone()),
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
        self.call_in_doubt(invocation, within, &Doubt::default()).await
    }

    /// As [`Target::call`], for a caller that may stop waiting: `doubt` then says whether the call may have run.
    ///
    /// # Errors
    /// As [`Target::call`].
    pub async fn call_in_doubt(
        &self,
        invocation: Invocation,
        within: Duration,
        doubt: &Doubt,
    ) -> Result<InvocationAnswer, CallFailure> {
        self.send(Request::invoke(invocation), within, doubt).await
    }

    /// Deletes `agent` within `within`; `doubt` says whether that may have happened, for a caller that stops waiting.
    ///
    /// # Errors
    /// As [`Target::call`].
    pub async fn delete(&self, agent: AgentId, within: Duration, doubt: &Doubt) -> Result<DeletionAnswer, CallFailure> {
        self.send(Request::Delete(agent), within, doubt).await.map(deleted)
    }

    async fn send(&self, request: Request, within: Duration, doubt: &Doubt) -> Result<InvocationAnswer, CallFailure> {
        match self {
            Self::Direct(router, managers) => match router.send(request, within, doubt).await {
                Ok(answer) => Ok(answer),
                Err(error) => {
                    let no_table = router.subscribe().borrow().is_none();
                    let CallFailure { reason, mut failure } = routed(error);
                    if no_table {
                        failure = wrong_port::explained(failure, managers, Wanted::Manager).await;
                    }
                    Err(CallFailure { reason, failure })
                }
            },
            Self::Gateway(gateway) => gateway.send(request, within, doubt).await,
        }
    }

    /// How often a call was repeated here, by reason.
    #[must_use]
    pub fn retries(&self) -> BTreeMap<&'static str, u64> {
        match self {
            Self::Direct(router, _) => router.metrics().retries(),
            Self::Gateway(gateway) => gateway.retries.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Awaits `call` until a signal. Then an attempt under way may take [`LAST_WORD`] to end, so that what is said of it is known; a second
/// signal ends that. `told`: what is said when the call may have run, and when it has not.
///
/// # Errors
/// As the call ended; exit code 75 after a signal.
pub(super) async fn until_signal<T>(
    call: impl Future<Output = Result<T, CallFailure>>,
    signals: &mut Signals,
    doubt: &Doubt,
    told: (&str, &str),
) -> Result<T, Failure> {
    let mut call = pin!(call);
    let signal = tokio::select! {
        answer = &mut call => return answer.map_err(|failed| failed.failure),
        signal = signals.recv() => signal,
    };
    let known = async {
        while doubt.may_have_run() {
            sleep(LAST_WORD_PACE).await;
        }
    };
    tokio::select! {
        biased;
        () = known => {}
        answer = &mut call => return answer.map_err(|failed| failed.failure),
        () = sleep(LAST_WORD) => {}
        _ = signals.recv() => {}
    }
    let told = if doubt.may_have_run() { told.0 } else { told.1 };
    Err(Failure::new(Exit::TryAgain, format!("{signal}: stopped waiting; {told}")))
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

/// Looks what is at the gateway's address.
#[async_trait]
trait Look: Send + Sync {
    /// What it is, if it is something else than a gateway.
    async fn look(&self) -> Option<String>;
}

struct At(Address);

#[async_trait]
impl Look for At {
    async fn look(&self) -> Option<String> {
        wrong_port::look(&self.0, Wanted::Gateway).await
    }
}

/// Calls through one gateway. The gateway finds the owners; here the way to the gateway is retried, under one idempotency key.
pub struct Through {
    gateway: Arc<dyn InvokeApi>,
    address: Box<dyn Look>,
    settings: RouterSettings,
    retries: Mutex<BTreeMap<&'static str, u64>>,
}

impl Through {
    fn new(gateway: impl InvokeApi, address: impl Look + 'static) -> Self {
        let (gateway, address) = (Arc::new(gateway), Box::new(address));
        Self { gateway, address, settings: RouterSettings::default(), retries: Mutex::default() }
    }

    async fn send(&self, request: Request, within: Duration, doubt: &Doubt) -> Result<InvocationAnswer, CallFailure> {
        let began = Instant::now();
        let deadline = began + within;
        let mut tries = 0_u32;
        let mut may_have_run = false;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            doubt.set(true);
            let answer = timeout(remaining, request.clone().send(&*self.gateway, remaining)).await;
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
            may_have_run |= outcome.may_have_run();
            doubt.set(may_have_run);
            let Some(wait) = self.pause(&outcome, tries, deadline) else {
                return Err(self.failed(error, deadline).await);
            };
            if outcome.may_have_run()
                && began.elapsed() >= WRONG_PORT_AFTER
                && let Some(there) = self.address.look().await
            {
                let failure = wrong_port::refused(&there, Wanted::Gateway);
                return Err(CallFailure { reason: error.reason(), failure });
            }
            *self.retries.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome.reason()).or_default() += 1;
            tries = tries.saturating_add(1);
            sleep(wait).await;
        }
    }

    /// How long to wait before the next try; `None`: there is none.
    fn pause(&self, outcome: &Outcome, tries: u32, deadline: Instant) -> Option<Duration> {
        let least = match policy::decide(outcome, Facts { keyed: true, asked: None, hints: policy::MAX_HINTS }).next {
            Next::Wait(least) => least,
            Next::FollowHint | Next::GiveUp => return None,
        };
        let RouterSettings { back_off_first: first, back_off_most: most, .. } = self.settings;
        let wish = policy::back_off(tries, first, most, rand::random()).max(least);
        policy::pause(wish, deadline.saturating_duration_since(Instant::now()), first)
    }

    async fn failed(&self, error: CallError, deadline: Instant) -> CallFailure {
        let reason = error.reason();
        // At the deadline nothing odd was answered, but nothing at all.
        let odd = matches!(error, CallError::Unknown(_)) && Instant::now() < deadline;
        let there = if odd { self.address.look().await } else { None };
        let failure = there.map_or_else(|| error.into(), |there| wrong_port::refused(&there, Wanted::Gateway));
        CallFailure { reason, failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// Finds at the address what it is given.
    struct There(Option<&'static str>);

    #[async_trait]
    impl Look for There {
        async fn look(&self) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    const WITHIN: Duration = Duration::from_secs(5);

    fn through(errors: Vec<CallError>, there: Option<&'static str>) -> (Through, Arc<Mutex<Vec<String>>>) {
        let keys = Arc::new(Mutex::new(Vec::new()));
        (Through::new(Script(Mutex::new(errors), Arc::clone(&keys)), There(there)), keys)
    }

    fn call() -> Invocation {
        let agent = AgentId::new("counter/a").unwrap();
        Invocation { agent, method: "add".into(), payload: Vec::new(), idempotency_key: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_restarts_is_retried_under_one_key() {
        let errors = vec![CallError::Unknown("reset".into()), CallError::Unreachable("refused".into())];
        let (through, keys) = through(errors, None);
        through.send(Request::invoke(call()), WITHIN, &Doubt::default()).await.unwrap();
        let keys = keys.lock().unwrap();
        assert_eq!((keys.len(), keys.iter().all(|key| *key == keys[0])), (3, true));
        assert_eq!(*through.retries.lock().unwrap(), BTreeMap::from([("OUTCOME_UNKNOWN", 1), ("UNREACHABLE", 1)]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_gateway_refuses_for_good_is_not_repeated() {
        let refusal = Refusal::InvocationRejected { why: "no".into() };
        let (through, keys) = through(vec![refusal.clone().into()], Some("never looked at"));
        let failed = through.send(Request::invoke(call()), WITHIN, &Doubt::default()).await.unwrap_err();
        assert_eq!((failed.reason, failed.failure), (refusal.reason(), CallError::from(refusal).into()));
        assert_eq!(keys.lock().unwrap().len(), 1);
    }

    /// A proxy answers so for a moment, while its gateway restarts; a wrong port does for ever.
    #[tokio::test(start_paused = true)]
    async fn a_port_that_is_no_gateways_is_given_up_and_named_once_it_has_lasted() {
        let odd = CallError::Unknown("invalid compression flag: 123".into());
        let (through, _) = through(vec![odd.clone(); 1_000], Some("x:1 is not a gateway's gRPC port"));
        let began = Instant::now();
        let failed = through
            .send(Request::invoke(call()), Duration::from_secs(30), &Doubt::default())
            .await
            .unwrap_err()
            .failure;
        assert_eq!(failed.exit, Exit::NobodyAnswers);
        assert!(failed.message.starts_with("x:1 is not a gateway's gRPC port; give --gateway"), "{failed}");
        assert!((WRONG_PORT_AFTER..2 * WRONG_PORT_AFTER).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_reached_nobody_has_surely_not_run_and_one_without_an_answer_may_have() {
        let down = || CallError::Unreachable("refused".into());
        for (errors, may_have_run) in [
            (vec![down(); 1_000], false),
            ([vec![down(); 1_000], vec![CallError::Unknown("reset".into())]].concat(), true),
        ] {
            let ((through, _), doubt) = (through(errors, None), Doubt::default());
            let waited = timeout(Duration::from_secs(1), through.send(Request::invoke(call()), WITHIN, &doubt)).await;
            assert!(waited.is_err());
            assert_eq!(doubt.may_have_run(), may_have_run);
        }
    }
}
