//! What may happen to a call, exactly.

use crate::oplog::{Error, Gate};
use std::time::Duration;

/// What happens to one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It takes this long before it is applied.
    DelayBefore(Duration),
    /// It is applied at once, its answer takes this long.
    DelayAfter(Duration),
    /// It is applied only once the gate is released.
    HoldBefore(Gate),
    /// It is applied at once, its answer waits for the gate.
    HoldAfter(Gate),
    /// It is not applied: `Unavailable`.
    Refuse,
    /// It is not applied: `Unknown`.
    LoseRequest,
    /// It is applied: `Unknown`.
    LoseAnswer,
}

/// Carries a call out as `fault` says.
pub(crate) async fn carried_out<T>(
    fault: Option<Fault>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match &fault {
        Some(Fault::Refuse) => return Err(Error::Unavailable("refused by the test's script".into())),
        Some(Fault::LoseRequest) => return Err(Error::Unknown("the request was lost by the test's script".into())),
        Some(Fault::DelayBefore(span)) => tokio::time::sleep(*span).await,
        Some(Fault::HoldBefore(gate)) => gate.pass().await,
        Some(Fault::DelayAfter(_) | Fault::HoldAfter(_) | Fault::LoseAnswer) | None => {}
    }
    let outcome = call.await;
    match &fault {
        Some(Fault::LoseAnswer) => return Err(Error::Unknown("the answer was lost by the test's script".into())),
        Some(Fault::DelayAfter(span)) => tokio::time::sleep(*span).await,
        Some(Fault::HoldAfter(gate)) => gate.pass().await,
        Some(Fault::Refuse | Fault::LoseRequest | Fault::DelayBefore(_) | Fault::HoldBefore(_)) | None => {}
    }
    outcome
}
