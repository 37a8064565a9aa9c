//! A gRPC port that is open while this process leads (`leadership.standby_grpc = closed`).
//!
//! A leader that cannot be reached is worse than none: it renews its own lease and nobody else's. So a port that is not to be had
//! is waited for with bounded patience, and then the process gives its leadership up and ends. It does not merely stand back: the
//! next election could make it the leader again, for another moment without service. Its supervisor starts it anew, which checks
//! the port *before* it stands for leadership, so that it disturbs nobody for as long as the port is taken.

use super::manager::{serve, told};
use crate::cli::Failure;
use leasehold_actors::manager::{ManagerFront, Standing};
use leasehold_rpc::server::{Limits, serve_manager};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How long a leader may be without its port.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
/// The pause before a port that is not to be had is tried again.
const PORT_PAUSE: Duration = Duration::from_millis(100);

/// The port's keeper.
pub(super) struct Door {
    pub(super) front: ManagerFront,
    pub(super) standing: watch::Receiver<Standing>,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) limits: Limits,
    /// Set while the port is open.
    pub(super) open: Arc<AtomicBool>,
    /// Told why the port is not to be had; nothing is opened after that.
    pub(super) unreachable: watch::Sender<Option<Failure>>,
}

impl Door {
    /// Opens `address` for each leadership and closes it after, until the process stops.
    pub(super) async fn keep(mut self, address: SocketAddr) {
        // Connections of former leaderships, which end within the grace. The next one waits for none of them.
        let mut draining: Vec<JoinHandle<()>> = Vec::new();
        loop {
            tokio::select! {
                led = self.standing.wait_for(|standing| standing.leadership().is_some()) => {
                    if led.is_err() { break }
                }
                () = told(self.stopping.clone()) => break,
            }
            match self.bind(address).await {
                Ok(Some(listener)) => {
                    draining.retain(|server| !server.is_finished());
                    draining.extend(self.serve(listener).await);
                }
                Ok(None) => {}
                Err(failure) => {
                    self.unreachable.send_replace(Some(failure));
                    break;
                }
            }
        }
        for server in draining {
            // A server that panicked has said so.
            drop(server.await);
        }
    }

    /// The listener; `None` when there is no leadership to open it for any more.
    async fn bind(&self, address: SocketAddr) -> Result<Option<TcpListener>, Failure> {
        let give_up = Instant::now() + PORT_PATIENCE;
        loop {
            match super::bind("listen.grpc", address).await {
                Ok((listener, _)) => return Ok(Some(listener)),
                Err(failure) if Instant::now() >= give_up => return Err(failure),
                Err(why) => tracing::warn!(%why, "this process leads and cannot be reached; trying again"),
            }
            tokio::select! {
                () = self.over() => return Ok(None),
                () = sleep(PORT_PAUSE) => {}
            }
        }
    }

    /// Serves until the leadership is over; what is still under way then goes on in the task that is answered.
    async fn serve(&self, listener: TcpListener) -> Option<JoinHandle<()>> {
        let (front, limits, over) = (Arc::new(self.front.clone()), self.limits, self.over());
        let mut server = serve("gRPC", serve_manager(listener, front, limits, over));
        self.open.store(true, Ordering::Release);
        tracing::info!("gRPC is open");
        let ended = tokio::select! {
            () = self.over() => false,
            _ = &mut server => true,
        };
        self.open.store(false, Ordering::Release);
        tracing::info!("gRPC is closed");
        if ended {
            // By itself, and it has said why: not to be begun again in a loop without a pause.
            sleep(PORT_PAUSE).await;
            return None;
        }
        Some(server)
    }

    /// Resolves when this process does not lead any more, or is going to end.
    fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut standing, stopping) = (self.standing.clone(), self.stopping.clone());
        async move {
            tokio::select! {
                // An error means that the election is gone, and the leadership with it.
                lost = standing.wait_for(|standing| standing.leadership().is_none()) => drop(lost),
                () = told(stopping) => {}
            }
        }
    }
}
