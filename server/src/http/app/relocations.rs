//! The gates of the relocations that this server runs: they hold writes off during the last step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// How long the last step waits for writes under way. It is safe without: writes that are late fail, and can
/// be sent again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The gates, by the names of their databases.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<String, Arc<RwLock<()>>>>);

/// The gate of a relocation, until it is dropped.
#[derive(Debug)]
pub(crate) struct Gate<'a> {
    gates: &'a Gates,
    name: String,
    /// Writes hold it shared, the last step alone.
    lock: Arc<RwLock<()>>,
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<RwLock<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets up the gate of a relocation.
    pub(crate) fn set_up(&self, name: &str) -> Gate<'_> {
        let lock = Arc::default();
        self.lock().insert(name.to_owned(), Arc::clone(&lock));
        Gate { gates: self, name: name.to_owned(), lock }
    }

    /// Lets a write pass. It holds the last step off until the guard is dropped, or waits until that is over.
    pub(crate) async fn admit(&self, name: &str) -> Option<OwnedRwLockReadGuard<()>> {
        let gate = self.lock().get(name).cloned()?;
        Some(gate.read_owned().await)
    }
}

impl Gate<'_> {
    /// Waits for the writes under way, and holds others off. To be called on a thread that may block.
    pub(crate) fn close(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        let closing = tokio::time::timeout(PATIENCE, self.lock.clone().write_owned());
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(closing)).ok()
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        let mut gates = self.gates.lock();
        if gates.get(&self.name).is_some_and(|lock| Arc::ptr_eq(lock, &self.lock)) {
            gates.remove(&self.name);
        }
    }
}
