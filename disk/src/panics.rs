//! Stores that panic where others return errors, on a damaged file say: where that ends.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use kv_api::{Error, Result, error};

thread_local! {
    static SILENCED: Cell<bool> = const { Cell::new(false) };
}

/// Calls into a store: a panic in it comes back as 1522, with what was being done. Unlike [`silently`]
/// it costs nothing, and leaves the panic's own words to the process's hook.
pub fn caught<T>(doing: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Error::new(error::FILE_CORRUPT).with_context(format!("{doing}: the store failed unexpectedly")))
    })
}

/// A call panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Calls `call`; a panic in it, or in threads whose names begin with `threads`, comes back as an error
/// and is not printed. Changes the process's panic hook while the call lasts, so only for the opening.
pub fn silently<T>(threads: &'static str, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
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
    // No one else has it now; if someone did, the default hook stays.
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
        panic::set_hook(Box::new(|_| *SEEN.lock().unwrap() += 1));
        assert_eq!(silently("none", || panic!("damage")), Err::<(), _>(Panicked));
        assert_eq!(*SEEN.lock().unwrap(), 0, "nothing is told");
        assert_eq!(silently("none", || 7), Ok(7));
        assert!(thread::spawn(|| panic!("ours")).join().is_err());
        assert_eq!(*SEEN.lock().unwrap(), 1, "the application's hook is back");
        drop(panic::take_hook());
    }
}
