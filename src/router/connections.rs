//! Connections to executors: dialled once per address, the least recently used dropped beyond a bound.

use super::request::Request;
use leasehold_model::message::InvocationAnswer;
use leasehold_model::{Address, CallError};
use leasehold_rpc::api::InvokeApi;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Makes connections to executors.
pub trait ExecutorDialer: Send + Sync + 'static {
    /// A connection to the executor at `address`. Does not block and does not fail because nobody is there: the first call
    /// does. It reconnects by itself.
    ///
    /// # Errors
    /// When no connection to such an address can ever be made.
    fn dial(&self, address: &Address) -> Result<Arc<dyn InvokeApi>, CallError>;
}

impl<F> ExecutorDialer for F
where
    F: Fn(&Address) -> Result<Arc<dyn InvokeApi>, CallError> + Send + Sync + 'static,
{
    fn dial(&self, address: &Address) -> Result<Arc<dyn InvokeApi>, CallError> {
        self(address)
    }
}

struct Cached {
    executor: Arc<dyn InvokeApi>,
    used: u64,
}

#[derive(Default)]
struct Cache {
    by_address: BTreeMap<Address, Cached>,
    uses: u64,
}

pub(super) struct Connections {
    dialer: Arc<dyn ExecutorDialer>,
    most: usize,
    cache: Mutex<Cache>,
}

impl Connections {
    pub(super) fn new(dialer: Arc<dyn ExecutorDialer>, most: usize) -> Self {
        Self { dialer, most: most.max(1), cache: Mutex::default() }
    }

    /// Calls the executor at `address`, which is dialled if it was not yet.
    pub(super) async fn send(
        &self,
        address: &Address,
        request: Request,
        within: Duration,
    ) -> Result<InvocationAnswer, CallError> {
        let executor = self.executor(address)?;
        request.send(&*executor, within).await
    }

    fn executor(&self, address: &Address) -> Result<Arc<dyn InvokeApi>, CallError> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.uses += 1;
        let used = cache.uses;
        if let Some(cached) = cache.by_address.get_mut(address) {
            cached.used = used;
            return Ok(Arc::clone(&cached.executor));
        }
        let executor = self.dialer.dial(address)?;
        if cache.by_address.len() >= self.most {
            let oldest = cache.by_address.iter().min_by_key(|(_, cached)| cached.used);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                // Calls in flight keep their connection; it closes with the last of them.
                cache.by_address.remove(&oldest);
            }
        }
        cache.by_address.insert(address.clone(), Cached { executor: Arc::clone(&executor), used });
        Ok(executor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use leasehold_model::message::Invocation;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Nobody;

    #[async_trait]
    impl InvokeApi for Nobody {
        async fn invoke(&self, _: Invocation, _: Duration) -> Result<InvocationAnswer, CallError> {
            Err(CallError::Unreachable("nobody".into()))
        }
    }

    #[test]
    fn an_address_is_dialled_once_and_the_least_recently_used_connection_makes_room() {
        let dialled = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&dialled);
        let dialer = move |_: &Address| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Arc::new(Nobody) as Arc<dyn InvokeApi>)
        };
        let connections = Connections::new(Arc::new(dialer), 2);
        let dial = |port: u16| {
            let address = Address::new(format!("host:{port}")).unwrap();
            assert!(connections.executor(&address).is_ok());
            dialled.load(Ordering::SeqCst)
        };
        assert_eq!([dial(1), dial(2), dial(1)], [1, 2, 2]);
        assert_eq!(dial(3), 3, "2 made room");
        assert_eq!(dial(1), 3, "1 was used since and stayed");
        assert_eq!(dial(2), 4);
    }
}
