//! sled panics where others return errors. This is where that ends.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use kv_api::{Error, Result, error};
use occ::folder::io_error;

thread_local! {
    static SILENCED: Cell<bool> = const { Cell::new(false) };
}

/// Calls into sled: a panic in it comes back as 1522.
pub(crate) fn caught<T>(doing: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(|cause| sled_error(doing, &cause)),
        Err(_) => Err(Error::new(error::FILE_CORRUPT).with_context(format!("{doing}: sled failed unexpectedly"))),
    }
}

/// As [`caught`], and nothing of the panic is printed. Changes the process's panic hook while the call
/// lasts, so only for the opening.
pub(crate) fn silently<T>(call: impl FnOnce() -> T) -> Result<T, ()> {
    type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before: Arc<Hook> = Arc::new(panic::take_hook());
    let shared = before.clone();
    panic::set_hook(Box::new(move |info| {
        // sled's own threads take part in the opening.
        let is_sleds = std::thread::current().name().is_some_and(|name| name.starts_with("sled"));
        if !is_sleds && !SILENCED.get() {
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
    outcome.map_err(drop)
}

/// sled's error in our words.
pub(crate) fn sled_error(doing: &str, cause: &sled::Error) -> Error {
    match cause {
        sled::Error::Io(cause) => io_error(doing, cause),
        sled::Error::Corruption { .. } => Error::new(error::FILE_CORRUPT)
            .with_context(format!("{doing}: the data is damaged ({cause}); restore it from a backup")),
        _ => Error::new(error::OPERATION_FAILED).with_context(format!("{doing}: {cause}")),
    }
}
