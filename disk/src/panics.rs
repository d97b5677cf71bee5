//! Catches panics of store libraries. Some panic where others return errors, for instance on a damaged file.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Arc;
use std::thread;

use kv_api::{Error, Result, error};
use parking_lot::Mutex;

thread_local! {
    static SILENCED: Cell<bool> = const { Cell::new(false) };
}

/// Calls into a store and turns a panic into 1522, with a description of the call. Unlike [`silently`] it costs
/// nothing. The process's panic hook still prints the panic.
pub fn caught<T>(doing: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Error::new(error::FILE_CORRUPT).with_context(format!("{doing}: the store failed unexpectedly")))
    })
}

/// A call panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Calls `call` and turns a panic in it into an error. Panics in it, and in threads whose names begin with
/// `threads`, are not printed. It changes the process's panic hook during the call, so it is only for opening a
/// store.
pub fn silently<T>(threads: &'static str, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let before: Arc<Hook> = Arc::new(panic::take_hook());
    let shared = before.clone();
    panic::set_hook(Box::new(move |info| {
        let takes_part = !threads.is_empty() && thread::current().name().is_some_and(|name| name.starts_with(threads));
        if !takes_part && !SILENCED.get() {
            shared(info);
        }
    }));
    SILENCED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    SILENCED.set(false);
    drop(panic::take_hook());
    // This is the last clone. With another one, the default hook would stay.
    if let Ok(before) = Arc::try_unwrap(before) {
        panic::set_hook(before);
    }
    outcome.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_hook_comes_back() {
        static SEEN: Mutex<u32> = Mutex::new(0);
        panic::set_hook(Box::new(|_| *SEEN.lock() += 1));
        assert_eq!(silently("none", || panic!("damage")), Err::<(), _>(Panicked));
        assert_eq!(*SEEN.lock(), 0, "nothing is told");
        assert_eq!(silently("none", || 7), Ok(7));
        assert!(thread::spawn(|| panic!("ours")).join().is_err());
        assert_eq!(*SEEN.lock(), 1, "the application's hook is back");
        drop(panic::take_hook());
    }
}
