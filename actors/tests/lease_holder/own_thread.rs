//! R45, case 17, in real time: the renewal's thread does not care what the others do.

use crate::bench::{M1, ScriptedHost, ScriptedManager, identity, local, settings, shards};
use actix::{AsyncContext, Context};
use leasehold_actors::clock::{Clock, HolderClock};
use leasehold_actors::executor::lease_holder::{HolderParts, Shutdown, spawn_on_own_thread};
use leasehold_actors::executor::lease_metrics::LeaseMetrics;
use leasehold_actors::executor::message::{CurrentLife, Inspect, Pulse};
use leasehold_actors::lease_key::fresh;
use leasehold_model::ShardId;
use leasehold_model::fence::FenceKeeper;
use leasehold_model::holder::Life;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Blocks this thread, and with it its whole runtime, until `condition`. It sleeps while it blocks: a loop that spins would take a
/// processor away from the thread whose freedom is tested, and fail on a machine that has few.
fn block_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Case 17, R45
#[tokio::test]
async fn renewals_go_out_while_the_works_runtime_is_blocked_for_two_leases() {
    local(async {
        // The machine may be loaded: two thirds of this may pass before a renewal that is due must have been answered.
        let ttl = Duration::from_secs(3);
        let clock: Arc<dyn Clock> = Arc::new(HolderClock);
        let manager = ScriptedManager::new(clock.clone(), ttl, &[(3, 7)]);
        let told: Arc<Mutex<Vec<_>>> = Arc::default();
        let sweeps_take = Arc::new(Mutex::new(Duration::ZERO));
        // In production the host needs the holder's address too: so its own is taken before it runs.
        let unstarted = Context::<ScriptedHost>::new();
        let host = unstarted.address();
        let keeper = FenceKeeper::new();
        let fence = keeper.fence();
        let parts = HolderParts {
            settings: settings(Duration::from_secs(1)),
            identity: identity(),
            mint: Box::new(|| {
                let (executor, lease_key) = fresh();
                Life { executor, lease_key }
            }),
            seed: 5,
            keeper,
            clock: clock.clone(),
            current: CurrentLife::new(leasehold_model::ExecutorId::from_u128(1)),
            sweep: host.clone().recipient(),
            recover: host.clone().recipient(),
            pulse: Arc::new(Pulse::default()),
            metrics: LeaseMetrics::default(),
        };
        let client = manager.clone();
        let (holder, mut exit) = spawn_on_own_thread(parts, move || Arc::new(client)).unwrap();
        unstarted.run(ScriptedHost { told: Arc::clone(&told), sweeps_take, mailbox: 16, clock: clock.clone() });
        block_until("admitted", || fence.admit(clock.now(), ShardId(3)).is_ok());
        let (began, before) = (Instant::now(), manager.renewals().len());
        let closed = std::cell::Cell::new(0);
        block_until("two leases", || {
            closed.set(closed.get() + u32::from(fence.admit(clock.now(), ShardId(3)).is_err()));
            began.elapsed() > ttl * 2
        });
        assert_eq!(closed.get(), 0, "admitted all the time");
        // One each second when nothing else runs; without at least three the lease would have ended.
        assert!(manager.renewals().len() >= before + 3, "{}", manager.renewals().len());

        let inspection = holder.send(Inspect).await.unwrap();
        assert_eq!((inspection.manager, inspection.held.iter().collect()), (Some(M1), shards(&[(3, 7)])));
        // The answer came from another thread, perhaps before this one has let the host run at all.
        let told = async || {
            while told.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            told.lock().unwrap().len()
        };
        let recoveries = tokio::time::timeout(Duration::from_secs(30), told()).await.unwrap();
        assert_eq!(recoveries, 1, "the recovery waited for the host to run");
        holder.send(Shutdown).await.unwrap();
        assert_eq!(exit.ended().await.code, 0);
        assert_eq!(manager.deregistrations().len(), 1);
    })
    .await;
}
