//! Relocations of this server: which databases are moving, how far they are, and the gate that holds writes off
//! during the last step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::JoinHandle;

use crate::relocation::{Asked, Status};

/// How long the last step waits for writes under way. It is safe without: writes that are late fail, and can
/// be sent again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The relocations of a server, by the name of their database.
#[derive(Debug, Default)]
pub(crate) struct Relocations(Mutex<HashMap<String, Arc<Relocation>>>);

/// One relocation, under way or over.
#[derive(Debug)]
pub(crate) struct Relocation {
    pub(crate) asked: Asked,
    /// Writes hold it shared, the last step alone.
    gate: Arc<RwLock<()>>,
    is_stopped: AtomicBool,
    status: Mutex<Status>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relocation {
    pub(crate) fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    pub(crate) fn set_status(&self, status: Status) {
        *lock(&self.status) = status;
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.status(), Status::Running { .. })
    }

    /// Whether it has been told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) async fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end().await;
    }

    /// Waits until it is over.
    async fn end(&self) {
        if let Some(task) = self.task.lock().await.take() {
            // It has ended either way.
            let _ = task.await;
        }
    }

    /// Waits for the writes under way, and holds others off. To be called on a thread that may block.
    pub(crate) fn close_gate(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        let closing = tokio::time::timeout(PATIENCE, self.gate.clone().write_owned());
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(closing)).ok()
    }
}

impl Relocations {
    pub(crate) fn of(&self, name: &str) -> Option<Arc<Relocation>> {
        lock(&self.0).get(name).cloned()
    }

    /// Starts a relocation with `run`. `Err`: one of this database is under way, which asked for this.
    pub(crate) async fn begin(
        &self,
        name: &str,
        asked: Asked,
        run: impl FnOnce(Arc<Relocation>) -> Option<JoinHandle<()>>,
    ) -> Result<(), Asked> {
        let relocation = Arc::new(Relocation {
            asked,
            gate: Arc::default(),
            is_stopped: AtomicBool::new(false),
            status: Mutex::new(Status::Running { phase: "copying", documents: 0, expected: 0 }),
            task: tokio::sync::Mutex::default(),
        });
        // Taken before others can see the relocation, so that whoever waits for its end waits for the task.
        let mut task = relocation.task.lock().await;
        {
            let mut relocations = lock(&self.0);
            if let Some(running) = relocations.get(name).filter(|running| running.is_running()) {
                return Err(running.asked.clone());
            }
            relocations.insert(name.to_owned(), relocation.clone());
        }
        *task = run(relocation.clone());
        Ok(())
    }

    /// Lets a write pass. It holds the last step off until the guard is dropped, or waits until that is over.
    pub(crate) async fn admit(&self, name: &str) -> Option<OwnedRwLockReadGuard<()>> {
        let running = self.of(name).filter(|relocation| relocation.is_running())?;
        Some(running.gate.clone().read_owned().await)
    }

    /// Each relocation under way, with the name of its database.
    pub(crate) fn running(&self) -> Vec<(String, Arc<Relocation>)> {
        let relocations = lock(&self.0);
        let running = relocations.iter().filter(|(_, relocation)| relocation.is_running());
        running.map(|(name, relocation)| (name.clone(), relocation.clone())).collect()
    }

    /// Waits for all of them. The end of the server stops them.
    pub(crate) async fn end(&self) {
        let all: Vec<_> = lock(&self.0).values().cloned().collect();
        for relocation in all {
            relocation.end().await;
        }
    }
}
