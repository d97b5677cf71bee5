//! The gates of this server's relocations, which make writes wait during the last step.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Time that the last step waits for running writes. Waiting is not needed for safety: a late write fails, and its
/// client may retry it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Gates by database name.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<String, Arc<RwLock<()>>>>);

/// The gate of a relocation. Dropping it removes the gate.
#[derive(Debug)]
pub(crate) struct Gate<'a> {
    gates: &'a Gates,
    name: String,
    /// Writes hold it shared, the last step exclusively.
    lock: Arc<RwLock<()>>,
}

impl Gates {
    /// Sets up the gate of a relocation.
    pub(crate) fn set_up(&self, name: &str) -> Gate<'_> {
        let lock = Arc::default();
        self.0.lock().insert(name.to_owned(), Arc::clone(&lock));
        Gate { gates: self, name: name.to_owned(), lock }
    }

    /// Admits a write. The last step waits until the guard is dropped; during the last step, this call waits.
    pub(crate) async fn admit(&self, name: &str) -> Option<OwnedRwLockReadGuard<()>> {
        let gate = self.0.lock().get(name).cloned()?;
        Some(gate.read_owned().await)
    }
}

impl Gate<'_> {
    /// Waits for running writes, and makes others wait until the guard is dropped. It blocks the calling thread.
    pub(crate) fn close(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        let closing = tokio::time::timeout(LOCK_TIMEOUT, self.lock.clone().write_owned());
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(closing)).ok()
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        let mut gates = self.gates.0.lock();
        if gates.get(&self.name).is_some_and(|lock| Arc::ptr_eq(lock, &self.lock)) {
            gates.remove(&self.name);
        }
    }
}
