//! A gate that stops whoever passes until it is released: how tests hold a write inside a store.

use std::sync::Arc;
use tokio::sync::Semaphore;

/// Closed when made; released once and for all. Clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    arrived: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { arrived: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }
}

impl Gate {
    /// Waits until the gate is released.
    pub async fn pass(&self) {
        self.arrived.add_permits(1);
        // The semaphore is never closed; its permit goes back at once, so everybody after the first passes too.
        drop(self.open.acquire().await);
    }

    /// Waits until one more caller stands at the gate, or has passed it.
    pub async fn reached(&self) {
        if let Ok(permit) = self.arrived.acquire().await {
            permit.forget();
        }
    }

    /// Opens the gate for good.
    pub fn release(&self) {
        self.open.add_permits(1);
    }
}
