//! The client's network thread: started once in a process, and stopped before the process ends.
//!
//! `libfdb_c` allows one start in a process (`api-c.rst`, "Network"), so a stop is final. The stop must come
//! before `main` returns: exit handlers destroy objects that the thread uses, in an unknown order.

use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};
use kv_api::{Error, error};
use parking_lot::Mutex;

use crate::convert::kv_error;

enum Network {
    NotStarted,
    Running(#[allow(dead_code, reason = "its drop stops the thread")] NetworkAutoStop),
    /// Stopped, or failed to start. It cannot be tried again: the client selects its version once.
    Ended(Error),
}

static NETWORK: Mutex<Network> = Mutex::new(Network::NotStarted);

/// Starts the network thread unless it runs.
///
/// # Errors
///
/// 1043 after [`stop_network`]; otherwise the client's error (2203: the installed `libfdb_c` is older than 7.3).
#[allow(unsafe_code, reason = "the client's network must be stopped before exit; see the use")]
pub(crate) fn start_network() -> Result<(), Error> {
    let mut network = NETWORK.lock();
    match &*network {
        Network::Running(_) => return Ok(()),
        Network::Ended(error) => return Err(error.clone()),
        Network::NotStarted => {}
    }
    let booted = FdbApiBuilder::default().build().and_then(|builder| {
        // SAFETY: the handle lives in `NETWORK` until `stop_network` drops it. The documentation of `FdbDatabase`
        // requires that call. A process that is killed or aborts needs no stop.
        unsafe { builder.boot() }
    });
    match booted {
        Ok(handle) => {
            *network = Network::Running(handle);
            Ok(())
        }
        Err(failure) => {
            let error = kv_error(failure).with_context("the FoundationDB client library did not start");
            *network = Network::Ended(error.clone());
            Err(error)
        }
    }
}

/// Stops the client's network thread and waits for its end. Operations in progress fail, and this process cannot open a
/// database any more.
///
/// Call it before `main` returns, also after an error: a process that exits while the thread runs may crash. Does
/// nothing if no database was opened.
pub fn stop_network() {
    let mut network = NETWORK.lock();
    let stopped = Error::new(error::SHUTDOWN_IN_PROGRESS).with_context("the FoundationDB client was stopped");
    if let Network::Running(handle) = std::mem::replace(&mut *network, Network::Ended(stopped)) {
        drop(handle);
    }
}
