//! Locks that outlive a panic of their holder, and a promise that many can wait for.
//!
//! What this crate guards with locks is valid between any two statements, so a lock that a panicking
//! thread held is taken over rather than spread as a second panic.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Locks, whatever became of the last holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
