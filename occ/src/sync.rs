//! Locks that outlive a panic of their holder, and a promise that many can wait for.
//!
//! What threads of this crate meet at comes from here: the standard library's own, but in the crate's
//! unit tests, where shuttle's take their place, and a scheduler of the test's choice decides at each
//! lock, each atomic and each wake-up who runs next (`schedules`). So a unit test that touches any of
//! them runs inside `schedules::explore`. What has no order to get wrong stays with the standard
//! library: the counter of `random`, the panic hook of `panics`, the folders of engines on disk.
//!
//! What this crate guards with locks is valid between any two statements, so a lock that a panicking
//! thread held is taken over rather than spread as a second panic.

use std::task::{Context, Poll, Waker};

#[cfg(test)]
pub(crate) use shuttle::{sync::*, thread, thread_local};
#[cfg(not(test))]
pub(crate) use std::{sync::*, thread, thread_local};

#[cfg(test)]
pub(crate) use self::once::OnceLock;

/// Locks, whatever became of the last holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condition`, whatever became of the others that held the lock.
pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// shuttle has no such cell: the standard library's, with a choice of who runs next before each access.
#[cfg(test)]
mod once {
    use super::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        cell: std::sync::OnceLock<T>,
        touched: AtomicBool,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            OnceLock { cell: std::sync::OnceLock::new(), touched: AtomicBool::new(false) }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            self.touched.load(Ordering::SeqCst);
            self.cell.get()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            self.touched.store(true, Ordering::SeqCst);
            self.cell.set(value)
        }
    }
}

/// A value that comes once, for any number of waiting tasks.
#[derive(Debug)]
pub(crate) struct Promise<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    wakers: Vec<Waker>,
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Promise(Mutex::new(State { value: None, wakers: Vec::new() }))
    }
}

impl<T: Clone> Promise<T> {
    /// Gives the value, unless there is one: true if this call gave it.
    pub(crate) fn resolve(&self, value: T) -> bool {
        let wakers = {
            let mut state = lock(&self.0);
            if state.value.is_some() {
                return false;
            }
            state.value = Some(value);
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
        true
    }

    /// The value, if it has come.
    pub(crate) fn peek(&self) -> Option<T> {
        lock(&self.0).value.clone()
    }

    /// The value, or a wake-up when it comes.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        if let Some(value) = &state.value {
            return Poll::Ready(value.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
