//! How a test waits for a future.

use std::future::Future;

/// Runs a future on this thread, in a tokio runtime with timers, as scenarios need it.
///
/// # Panics
///
/// When the runtime cannot be made, or when called inside a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => panic!("no runtime: {error}"),
    }
}
