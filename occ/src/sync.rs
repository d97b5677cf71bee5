//! Locks that ignore poisoning, and a promise that many tasks can wait for.
//!
//! The crate takes its locks, atomics and threads from here. They are the standard library's. In the crate's unit tests
//! they are shuttle's: a scheduler chosen by the test decides at each lock, atomic and wake-up which thread runs next
//! (`schedules`). So a unit test that touches any of them runs inside `schedules::explore`. The counter of `random`
//! needs no order, so it uses the standard library.
//!
//! Data under this crate's locks are consistent between any two statements. So the lock of a panicked thread is simply
//! taken over.

use std::task::{Context, Poll, Waker};

#[cfg(test)]
pub(crate) use shuttle::{sync::*, thread, thread_local};
#[cfg(not(test))]
pub(crate) use std::{sync::*, thread, thread_local};

#[cfg(test)]
pub(crate) use self::once::OnceLock;

/// Locks a mutex, even if its last holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition, even if another holder of the lock panicked.
pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// shuttle has no `OnceLock`. This is the standard library's, with a scheduling point before each access.
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

/// A value that comes once. Any number of tasks can wait for it.
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
    /// Sets the value, unless there is one. Returns whether this call set it.
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

    /// The value, if it is there.
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
