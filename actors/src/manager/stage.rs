//! Where the actors of a leadership run: beside the election, or on a thread that the election is not to wait for (R45).

use super::{Running, Settings, Surroundings, start};
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::Error as StoreError;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Starts the actors of leaderships. Cheap to clone.
#[derive(Clone)]
pub struct Stage(Option<mpsc::Sender<Opening>>);

/// A leadership to be started.
struct Opening {
    settings: Settings,
    store: Arc<dyn ClusterStore>,
    with: Surroundings,
    reply: oneshot::Sender<Result<Unclaimed, StoreError>>,
}

/// A leadership that was started; it ends if nobody takes it.
struct Unclaimed(Option<Running>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            running.handle.abandon("nobody waited for it any more when it was ready".to_owned());
        }
    }
}

impl Stage {
    /// On the `LocalSet` of the election itself.
    #[must_use]
    pub const fn beside_the_election() -> Self {
        Self(None)
    }

    /// On the current `LocalSet`, for as long as the election lives, whichever thread that runs on.
    #[must_use]
    pub fn on_this_thread() -> Self {
        // A process has one leadership at a time.
        let (openings, mut asked) = mpsc::channel::<Opening>(1);
        actix::spawn(async move {
            while let Some(opening) = asked.recv().await {
                opening.open().await;
            }
        });
        Self(Some(openings))
    }

    /// As [`start`]. Dropped before it ends, it leaves nothing that runs.
    pub(super) async fn start(
        self,
        settings: Settings,
        store: Arc<dyn ClusterStore>,
        with: Surroundings,
    ) -> Result<Running, StoreError> {
        let Some(openings) = self.0 else { return start(settings, store, with).await };
        let gone = || StoreError::Unavailable("the thread of the manager's actors is gone".to_owned());
        let (reply, started) = oneshot::channel();
        openings.send(Opening { settings, store, with, reply }).await.map_err(|_| gone())?;
        let mut unclaimed = started.await.map_err(|_| gone())??;
        unclaimed.0.take().ok_or_else(gone)
    }
}

impl Opening {
    async fn open(self) {
        let Self { settings, store, with, mut reply } = self;
        let started = tokio::select! {
            started = start(settings, store, with) => started,
            // Whoever asked has stopped waiting: the load is not wanted any more.
            () = reply.closed() => return,
        };
        // What nobody takes ends as it is dropped.
        let _ = reply.send(started.map(|running| Unclaimed(Some(running))));
    }
}
