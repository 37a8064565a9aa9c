//! Blob storage, as far as the archive needs it: objects that are put once under a fresh path, read, listed and deleted. Nothing here is
//! fenced or conditional.

use crate::oplog::Error;
use crate::oplog::memory::{Fault, carried_out};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A place for objects. Paths are relative to its root, see [`super::names::ObjectPath`].
#[async_trait]
pub trait Blobs: Send + Sync + 'static {
    /// What errors call it.
    fn place(&self) -> String;

    /// Stores an object, whole or not at all, durably. A path is used once: what is there is never replaced, as far as the storage knows how.
    /// Putting the same again is fine.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it may be there or not, or come there later; nobody knows its path. Also when another object is there.
    async fn put(&self, path: &str, bytes: Vec<u8>) -> Result<(), Error>;

    /// An object's bytes; `None`: it is not there.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn get(&self, path: &str) -> Result<Option<Vec<u8>>, Error>;

    /// Removes an object; one that is not there is fine.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it may be gone or not.
    async fn delete(&self, path: &str) -> Result<(), Error>;

    /// The paths of all objects whose path begins with `folder`, in any order.
    fn list(&self, folder: &str) -> BoxStream<'static, Result<String, Error>>;
}

/// The calls that a fault can be scripted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobCall {
    /// [`Blobs::put`]
    Put,
    /// [`Blobs::get`]
    Get,
    /// [`Blobs::delete`]
    Delete,
    /// [`Blobs::list`]; of faults, `Refuse` alone.
    List,
}

/// Objects in memory, with scriptable faults: for tests and simulations.
#[derive(Debug, Default)]
pub struct MemoryBlobs {
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    faults: Mutex<VecDeque<(BlobCall, Fault)>>,
    away: Mutex<bool>,
}

/// Nothing is left half changed by a panic here: every change is complete before the guard goes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused() -> Error {
    Error::Unavailable("archive memory: refused by the test's script".into())
}

impl MemoryBlobs {
    /// Another handle on the same objects, with faults of its own.
    #[must_use]
    pub fn handle(&self) -> Self {
        Self { objects: Arc::clone(&self.objects), ..Self::default() }
    }

    /// The next `call` meets `fault`. Faults of a kind queue up, one per call.
    pub fn script(&self, call: BlobCall, fault: Fault) {
        lock(&self.faults).push_back((call, fault));
    }

    /// From now on nothing, or everything again, can be reached.
    pub fn set_away(&self, away: bool) {
        *lock(&self.away) = away;
    }

    /// Every object's path.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        lock(&self.objects).keys().cloned().collect()
    }

    fn arrive(&self, call: BlobCall) -> Result<Option<Fault>, Error> {
        if *lock(&self.away) {
            return Err(refused());
        }
        let mut faults = lock(&self.faults);
        let at = faults.iter().position(|(on, _)| *on == call);
        Ok(at.and_then(|at| faults.remove(at)).map(|(_, fault)| fault))
    }

    async fn perform<T>(
        &self,
        call: BlobCall,
        change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T + Send,
    ) -> Result<T, Error> {
        let fault = self.arrive(call)?;
        // Blob storage knows no unknown outcome: nobody relies on what was not acknowledged.
        carried_out(fault, async { Ok(change(&mut lock(&self.objects))) }).await.map_err(|_| refused())
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    fn place(&self) -> String {
        "memory".into()
    }

    async fn put(&self, path: &str, bytes: Vec<u8>) -> Result<(), Error> {
        let there = self.perform(BlobCall::Put, |objects| {
            let there = objects.entry(path.to_owned()).or_insert_with(|| bytes.clone());
            *there == bytes
        });
        if there.await? {
            return Ok(());
        }
        let what = "there is another object already; it was not replaced";
        Err(Error::Unavailable(format!("archive memory: object {path:?}: {what}")))
    }

    async fn get(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        self.perform(BlobCall::Get, |objects| objects.get(path).cloned()).await
    }

    async fn delete(&self, path: &str) -> Result<(), Error> {
        self.perform(BlobCall::Delete, |objects| drop(objects.remove(path))).await
    }

    fn list(&self, folder: &str) -> BoxStream<'static, Result<String, Error>> {
        if !matches!(self.arrive(BlobCall::List), Ok(None)) {
            return stream::iter([Err(refused())]).boxed();
        }
        let paths = self.paths().into_iter().filter(|path| path.starts_with(folder)).map(Ok);
        stream::iter(paths.collect::<Vec<_>>()).boxed()
    }
}
